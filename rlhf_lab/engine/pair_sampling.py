"""Samples pairs of responses to compare, and scores them with the newest reward model."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from rlhf_lab.common.enums import Source
from rlhf_lab.common.progress import FractionCallback, ProgressCallback, ignore_fraction, no_progress
from rlhf_lab.common.records import Completion, NewCompletion, Pair, Project, Prompt, RewardModelRow
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.labelling import TEACHING_RESPONSES
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.completions import JOB_POLICY_SLOT, JOB_REWARD_SLOT, reference_samples
from rlhf_lab.engine.job_progress import counting_tokens
from rlhf_lab.engine.label_preparation import prepare_labels
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.engine.text_features import feature_vectors
from rlhf_lab.errors import LabelError, LabError
from rlhf_lab.jobs.instant_reward import InstantModel
from rlhf_lab.jobs.model_speed import ModelSpeed
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import token_attributes
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import sample, uniforms
from rlhf_lab.store.label_snapshots import current_labels
from rlhf_lab.store.projects import add_completions, add_pairs, newest_pairs, next_pair_index, prompts
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.reward_scores import add_scores
from rlhf_lab.training.reward.active_selection import (
    CANDIDATES_PER_PAIR,
    Candidate,
    select_most_diverse,
    select_most_informative,
    select_most_uncertain,
    select_teaching_pair,
    uncertainty_kind,
    word_set,
)

log = logging.getLogger("rlhf_lab.engine")
MAX_PAIR_ATTEMPTS = 8  # each with another prompt, if the two responses of a pair are equal
PAIR_BATCH_SIZE = 128  # pairs per batch of samples, which has twice as many responses
TEACHING_BATCH_SIZE = 64  # the same where each pair is selected among four responses
EXPLORED = 5  # of this many teaching pairs, one is selected without the scores of its texts
DIVERSITY_NEIGHBOURS = 64  # number of newest pairs with which "diversity" compares candidates

CompletionPair = tuple[NewCompletion, NewCompletion]
Responses = list[NewCompletion]  # to one prompt


class _SamplingSpec(NamedTuple):
    """What determines the responses of pairs. on_fraction: called with the fraction of a batch's tokens sampled so far."""

    project: Project
    checkpoint: str
    slot: str | None
    max_new_tokens: int
    prompts: list[Prompt]
    speed: ModelSpeed
    purpose: str = "pair"  # part of the path that seeds are derived from
    sides: tuple[str, ...] = ("first", "second")  # the responses to a prompt; the last part of that path
    prefers_complete: bool = False  # try another prompt if fewer than two different responses ended by themselves
    on_fraction: FractionCallback = ignore_fraction


@dataclass(frozen=True)
class PairRequest:
    """How many pairs to sample, and how.

    sampling: "random" keeps all pairs; the others sample CANDIDATES_PER_PAIR times as many and select the most informative
    ("information"), uncertain ("uncertainty") or diverse ones ("diversity"); see training/reward/active_selection.py.
    "teaching" samples four responses to each prompt and selects two of them.
    max_new_tokens: None for that of the project, shortened to the context.
    stored_first: number of random or teaching pairs that are sampled and stored before the others, for a person who is waiting.
    """

    count: int
    checkpoint: str = "base"
    max_new_tokens: int | None = None
    sampling: str = "random"
    stored_first: int = 0


def sample_pairs(
    model_cache: ModelCache,
    project: Project,
    request: PairRequest,
    *,
    on_note: Callable[[str], None] = lambda _: None,
    on_progress: ProgressCallback = no_progress,
    on_fraction: FractionCallback = ignore_fraction,
) -> list[Pair]:
    """Sample pairs of different responses to train prompts, and score them with the newest reward model, if any.

    Each pair stores its kind of sampling, for "uncertainty" also the kind of uncertainty. Pairs are random if there are no labels
    or no reward model to select them by. The n-th random pair of a project depends only on the project's seed, temperature,
    length and chat settings, the checkpoint and n; so do the responses among which the n-th teaching pair is selected.
    on_note: called with a message for the user if some prompts are too long.
    Raises LabelError if the two responses of a pair are equal in all attempts; the pairs before that one are stored.
    """
    count, sampling = request.count, request.sampling
    backbone, adapters = model_cache.load_project(project)
    available = prompts(model_cache.db, project.id, "train")
    if not available:
        raise LabelError(f"project {project.id} has no prompts to write for. Add some prompts.")
    max_new_tokens, shortens = request.max_new_tokens or project.max_new_tokens, request.max_new_tokens is None
    filtered_prompts = filter_prompts(backbone, available, max_new_tokens, shortens=shortens)
    if filtered_prompts.too_long_count:
        log.warning("project %d: %s", project.id, filtered_prompts.message)
        on_note(filtered_prompts.message)
    slot = model_cache.load_checkpoint(request.checkpoint, JOB_POLICY_SLOT)
    spec = _SamplingSpec(
        project, request.checkpoint, slot, filtered_prompts.response_length, filtered_prompts.prompts, model_cache.speed
    )
    reward_model = newest_reward_model(model_cache, project) if sampling == "uncertainty" else None
    if sampling == "uncertainty" and reward_model is None:
        sampling = "random"
    if sampling == "information" and not current_labels(model_cache.db, project.id).vote_ids:
        sampling = "random"
    reason = sampling if reward_model is None else f"{sampling}: {uncertainty_kind(reward_model)}"
    pairs: list[Pair] = []
    has_gap = False
    instant = _up_to_date_model(model_cache, project) if sampling == "teaching" else None
    for batch_size in _batch_sizes(request, sampling):
        start = next_pair_index(model_cache.db, project.id)
        spec = spec._replace(on_fraction=partial(_report_batch, on_fraction, len(pairs) / count, batch_size / count))
        groups, has_gap = _sample_groups(backbone, adapters, spec, batch_size, start, sampling, on_progress)
        if instant is not None:
            completion_pairs, reasons = _select_teaching_pairs(adapters, project, spec, groups, start, instant)
        else:
            completion_pairs = [(first, second) for first, second in groups]
            if sampling != "random":
                completion_pairs = _select_pairs(model_cache, project, completion_pairs, count, sampling, on_progress)
            reasons = [reason] * len(completion_pairs)
        pairs += _store_pairs(model_cache, project, completion_pairs, reasons)
        if has_gap:
            break
    if has_gap:
        raise LabelError(
            f"Only {len(pairs)} of {count} pairs were sampled: then both responses to a prompt were identical "
            f"{MAX_PAIR_ATTEMPTS} times in a row, and identical texts cannot be compared. The model's samples hardly "
            "vary here: allow longer responses (max_new_tokens), or use another checkpoint or more prompts."
            + (f" {filtered_prompts.message}." if filtered_prompts.message else "")
        )
    return pairs


def _report_batch(on_fraction: FractionCallback, before: float, share: float, fraction: float) -> None:
    on_fraction(before + share * fraction)


def _batch_sizes(request: PairRequest, sampling: str) -> list[int]:
    """Numbers of pairs that are sampled and stored together."""
    count = request.count
    if sampling not in ("random", "teaching"):  # selected among the responses to all prompts
        return [count]
    sizes = [min(request.stored_first, count)]
    largest = TEACHING_BATCH_SIZE if sampling == "teaching" else max(1, count)
    sizes += [min(largest, count - start) for start in range(sizes[0], count, largest)]
    return [size for size in sizes if size]


def _sample_groups(
    backbone: Backbone,
    adapters: Adapters,
    spec: _SamplingSpec,
    count: int,
    start: int,
    sampling: str,
    on_progress: ProgressCallback,
) -> tuple[list[Responses], bool]:
    """The responses up to the first prompt for which they were equal in all attempts, and whether there is such a gap.

    If pairs are selected among the responses to all prompts, those of all candidates are returned.
    """
    indices = range(start, start + count)
    if sampling == "teaching":
        sides = tuple(map(str, range(TEACHING_RESPONSES)))
        spec = spec._replace(purpose="teaching", sides=sides, prefers_complete=True)
    elif sampling != "random":  # each batch has its own range of indices
        indices = range(start * CANDIDATES_PER_PAIR, (start + count) * CANDIDATES_PER_PAIR)
        groups_by_index = _sample_at_indices(
            backbone, adapters, spec._replace(purpose="candidate"), indices, on_progress
        )
        groups = [groups_by_index[n] for n in indices if n in groups_by_index]
        return groups, len(groups) < count
    groups_by_index = _sample_at_indices(backbone, adapters, spec, indices, on_progress)
    first_gap = next((n for n in indices if n not in groups_by_index), indices.stop)
    # Pairs after the gap are dropped: the next call samples the same texts at their indices.
    return [groups_by_index[n] for n in range(start, first_gap)], first_gap < indices.stop


def _up_to_date_model(model_cache: ModelCache, project: Project) -> InstantModel:
    model = InstantModel(model_cache.db, project.id)
    model.update()
    return model


def _select_teaching_pairs(
    adapters: Adapters,
    project: Project,
    spec: _SamplingSpec,
    groups: Sequence[Responses],
    start: int,
    instant: InstantModel,
) -> tuple[list[CompletionPair], list[str]]:
    """A pair of each group of responses, and how it was selected: "teaching: better" by scores, "teaching: different" without."""
    if not groups:
        return [], []
    backbone = adapters.backbone
    prompt_of = {prompt.id: prompt.text for prompt in spec.prompts}
    responses = [response for group in groups for response in group]
    rows = [(backbone.encode_prompt(prompt_of[response.prompt_id]), list(response.token_ids)) for response in responses]
    vectors = feature_vectors(adapters, rows).astype(np.float32)
    vectors[~np.isfinite(vectors).all(axis=1)] = 0.0  # a model whose states overflow half precision
    prompt_ids, response_ids = [prompt for prompt, _ in rows], [ids for _, ids in rows]
    attributes = token_attributes(backbone, prompt_ids, response_ids, instant.figures.ignored).numpy()
    scores = instant.scores(vectors, attributes)
    pairs, reasons = [], []
    for i, group in enumerate(groups):
        of_group = slice(TEACHING_RESPONSES * i, TEACHING_RESPONSES * (i + 1))
        explores = derive_seed(project.seed, "teaching exploration", start + i) % EXPLORED == 0
        first, second = select_teaching_pair(
            [response.token_ids for response in group],
            [response.token_ids[-1] in backbone.eos_ids for response in group],
            vectors[of_group],
            backbone.state_count,
            None if scores is None or explores else scores[of_group].tolist(),
        )
        pairs.append((group[first], group[second]))
        reasons.append("teaching: different" if scores is None or explores else "teaching: better")
    return pairs, reasons


def _select_pairs(
    model_cache: ModelCache,
    project: Project,
    completion_pairs: list[CompletionPair],
    count: int,
    sampling: str,
    on_progress: ProgressCallback,
) -> list[CompletionPair]:
    """The candidates with the greatest value for labelling."""
    backbone, adapters = model_cache.load_project(project)
    prompt_texts = {prompt.id: prompt.text for prompt in prompts(model_cache.db, project.id, "train")}
    prompt_ids = [backbone.encode_prompt(prompt_texts[first.prompt_id]) for first, _ in completion_pairs]
    firsts, seconds = ([list(pair[side].token_ids) for pair in completion_pairs] for side in (0, 1))
    reward_model = newest_reward_model(model_cache, project) if sampling == "uncertainty" else None
    if reward_model is not None:
        selected = select_most_uncertain(reward_model, prompt_ids, firsts, seconds, count, on_progress)
    elif sampling == "information":
        reward_model_row = _newest_reward_model_row(model_cache, project)
        config = RewardConfig() if reward_model_row is None else RewardConfig.from_dict(reward_model_row.config)
        selected = select_most_informative(
            adapters,
            prepare_labels(model_cache.db, current_labels(model_cache.db, project.id), backbone, {}).labels,
            reference_samples(model_cache, project, on_progress),
            [Candidate(*sides) for sides in zip(prompt_ids, firsts, seconds, strict=True)],
            count,
            config,
            on_progress=on_progress,
        )
        selected = sorted(selected)
    else:
        existing = [
            word_set(pair.first.text, pair.second.text)
            for pair in newest_pairs(model_cache.db, project.id, DIVERSITY_NEIGHBOURS)
        ]
        selected = select_most_diverse(
            [word_set(first.text, second.text) for first, second in completion_pairs], existing, count
        )
    return [completion_pairs[i] for i in selected]


def _store_pairs(
    model_cache: ModelCache, project: Project, completion_pairs: list[CompletionPair], reasons: list[str]
) -> list[Pair]:
    firsts = add_completions(model_cache.db, [first for first, _ in completion_pairs])
    seconds = add_completions(model_cache.db, [second for _, second in completion_pairs])
    ids = [(a.id, b.id, reason) for a, b, reason in zip(firsts, seconds, reasons, strict=True)]
    pairs = add_pairs(model_cache.db, project.id, ids)
    score_new_pairs(model_cache, project, pairs)
    return pairs


def _sample_at_indices(
    backbone: Backbone, adapters: Adapters, spec: _SamplingSpec, indices: Sequence[int], on_progress: ProgressCallback
) -> dict[int, Responses]:
    """index -> responses to a prompt, without the indices at which all of them were equal in all attempts.

    Where complete responses are preferred, they must be enough in the first attempt only.
    """
    groups_by_index: dict[int, Responses] = {}
    for attempt in range(MAX_PAIR_ATTEMPTS):
        remaining = [n for n in indices if n not in groups_by_index]
        for start in range(0, len(remaining), PAIR_BATCH_SIZE):
            chunk = remaining[start : start + PAIR_BATCH_SIZE]
            before = (len(indices) - len(remaining) + start) / len(indices)
            report = partial(_report_batch, spec.on_fraction, before, len(chunk) / len(indices))
            with adapters.using(spec.slot, merged=spec.slot is not None):
                completions = _sample_sides(backbone, spec._replace(on_fraction=report), chunk, attempt, on_progress)
            for i, n in enumerate(chunk):
                group = completions[i :: len(chunk)]
                needs_complete = spec.prefers_complete and attempt == 0
                usable = [r.token_ids for r in group if not needs_complete or r.token_ids[-1] in backbone.eos_ids]
                if len(set(usable)) > 1:
                    groups_by_index[n] = group
    return groups_by_index


def _sample_sides(
    backbone: Backbone, spec: _SamplingSpec, indices: Sequence[int], attempt: int, on_progress: ProgressCallback
) -> list[NewCompletion]:
    """The first responses at these indices, then the second ones, and so on, in one batch, which encodes each prompt once."""
    project = spec.project
    index_prompts = [spec.prompts[_prompt_index(project.seed, n, attempt, len(spec.prompts))] for n in indices]
    chosen_prompts = index_prompts * len(spec.sides)
    seeds = [
        derive_seed(project.seed, spec.purpose, spec.checkpoint, n, attempt, side)
        for side in spec.sides
        for n in indices
    ]
    prompt_ids = [backbone.encode_prompt(prompt.text) for prompt in chosen_prompts]
    uniform, start_time = uniforms(seeds, spec.max_new_tokens), time.monotonic()
    count = counting_tokens(on_progress, lambda done, longest: spec.on_fraction(done / longest), spec.max_new_tokens)
    responses = sample(backbone, prompt_ids, uniform, temperature=project.temperature, on_progress=count).tokens
    spec.speed.record_sampling(time.monotonic() - start_time, responses)
    if spec.slot is None:
        spec.speed.record_texts(prompt_ids, responses, spec.max_new_tokens)
    return [
        NewCompletion(prompt.id, backbone.decode(response, after=ids), tuple(response), spec.checkpoint, seed)
        for prompt, ids, response, seed in zip(chosen_prompts, prompt_ids, responses, seeds, strict=True)
    ]


def _prompt_index(seed: int, n: int, attempt: int, count: int) -> int:
    """Index of the prompt of the n-th pair. Every `count` pairs use all prompts in a new random order.

    Later attempts choose any prompt at random.
    """
    if attempt:
        return derive_seed(seed, "pair prompts again", n, attempt) % count
    generator = torch.Generator().manual_seed(derive_seed(seed, "pair prompts", n // count))
    return int(torch.randperm(count, generator=generator)[n % count])


def newest_reward_model(model_cache: ModelCache, project: Project) -> RewardModel | None:
    """The newest reward model from human labels, otherwise from simulated ones; None if none can be loaded."""
    row = _newest_reward_model_row(model_cache, project)
    try:
        return None if row is None else model_cache.reward_model(row.id, JOB_REWARD_SLOT)
    except LabError as error:
        log.warning("the newest reward model could not choose pairs: %s", error)
        return None


def _newest_reward_model_row(model_cache: ModelCache, project: Project) -> RewardModelRow | None:
    return latest_reward_model(model_cache.db, project.id, Source.HUMAN) or latest_reward_model(
        model_cache.db, project.id, Source.SIMULATED
    )


def score_new_pairs(model_cache: ModelCache, project: Project, pairs: Sequence[Pair]) -> None:
    """Score new pairs with the newest reward model, if there is one, and store the scores."""
    row = _newest_reward_model_row(model_cache, project)
    if row is None or not pairs:
        return
    try:
        add_scores(model_cache.db, row.id, score_pairs(model_cache.reward_model(row.id, JOB_REWARD_SLOT), pairs))
    except LabError as error:  # the pairs can be labelled without scores
        log.warning("the new pairs were not scored: %s", error)


def score_pairs(
    model: RewardModel, pairs: Sequence[Pair], on_progress: ProgressCallback = no_progress
) -> dict[int, float]:
    """completion id -> score, for both sides of each pair, except imported pairs that do not fit the context."""
    backbone = model.backbone
    encoded = {prompt: backbone.encode_prompt(prompt) for prompt in {pair.prompt.text for pair in pairs}}
    rows: list[tuple[Completion, list[int], list[int]]] = []
    for pair in pairs:
        prompt = encoded[pair.prompt.text]
        sides = [
            (side, prompt, list(side.token_ids) or backbone.encode_response(side.text))
            for side in (pair.first, pair.second)
        ]
        if all(len(prompt) + len(response) <= backbone.context_length for _, _, response in sides):
            rows += sides
    if not rows:
        return {}
    scores = model.scores(
        [prompt for _, prompt, _ in rows], [response for _, _, response in rows], on_progress
    ).tolist()
    return {side.id: float(score) for (side, _, _), score in zip(rows, scores, strict=True)}

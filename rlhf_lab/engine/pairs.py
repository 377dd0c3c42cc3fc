"""Writing pairs to compare, and what the reward model of the day thinks of them beforehand."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from rlhf_lab.engine.lab import Lab
from rlhf_lab.engine.texts import JOB, JOB_REWARD, room
from rlhf_lab.errors import LabelError, LabError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick, sample, uniforms
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.records import Completion, NewCompletion, Pair, Project, Prompt, Source
from rlhf_lab.seeds import derive
from rlhf_lab.store.projects import add_completions, add_pairs, count_pairs, prompts
from rlhf_lab.store.runs import latest_reward_model
from rlhf_lab.store.scores import add_scores

log = logging.getLogger("rlhf_lab.engine")
TRIES = 8  # two samples that come out equal teach nothing: how often to try again, with other prompts
BATCH = 256


class _Wanted(NamedTuple):
    """What pairs are written with."""

    project: Project
    checkpoint: str
    slot: str | None
    max_new_tokens: int
    prompts: list[Prompt]


def sample_pairs(
    lab: Lab,
    project: Project,
    count: int,
    *,
    checkpoint: str = "base",
    max_new_tokens: int | None = None,
    reason: str = "random",
    tick: Tick = no_tick,
) -> list[Pair]:
    """Write `count` pairs of different responses to train prompts, and score them with the newest reward model, if any.

    The n-th pair of a project is a function of its seed, the checkpoint and n, however the pairs were asked for.
    Raises LabelError when two responses to a prompt keep coming out equal; the pairs before that one are kept.
    """
    backbone, adapters = lab.open(project)
    available = prompts(lab.db, project.id, "train")
    if not available:
        raise LabelError(f"project {project.id} has no prompts to write for. Add some prompts.")
    length = room(backbone, [prompt.text for prompt in available], max_new_tokens)
    wanted = _Wanted(project, checkpoint, lab.checkpoint(checkpoint, JOB), length, available)
    start = count_pairs(lab.db, project.id)
    found = _write(backbone, adapters, wanted, range(start, start + count), tick)
    whole = [found[n] for n in range(start, start + count) if n in found]
    missing = next((n for n in range(start, start + count) if n not in found), None)
    if missing is not None:
        whole = whole[: missing - start]  # those behind the gap would take the places of others
    firsts = add_completions(lab.db, [first for first, _ in whole])
    seconds = add_completions(lab.db, [second for _, second in whole])
    pairs = add_pairs(lab.db, project.id, [(a.id, b.id, reason) for a, b in zip(firsts, seconds, strict=True)])
    score_new(lab, project, pairs)
    if missing is not None:
        raise LabelError(
            f"{len(pairs)} of {count} pairs were written: then two responses to the same prompt came out equal {TRIES} times "
            "in a row, and equal texts teach nothing. The model hardly varies here: allow longer responses "
            "(max_new_tokens), or use another checkpoint or more prompts."
        )
    return pairs


def _write(
    backbone: Backbone, adapters: Adapters, wanted: _Wanted, places: Sequence[int], tick: Tick
) -> dict[int, tuple[NewCompletion, NewCompletion]]:
    """place -> two different responses; places where all tries came out equal are left out."""
    found: dict[int, tuple[NewCompletion, NewCompletion]] = {}
    for attempt in range(TRIES):
        left = [n for n in places if n not in found]
        for begin in range(0, len(left), BATCH):
            some = left[begin : begin + BATCH]
            with adapters.using(wanted.slot, merged=wanted.slot is not None):
                firsts, seconds = (_side(backbone, wanted, some, attempt, side, tick) for side in ("first", "second"))
            for n, first, second in zip(some, firsts, seconds, strict=True):
                if first.token_ids != second.token_ids:
                    found[n] = (first, second)
    return found


def _side(
    backbone: Backbone, wanted: _Wanted, places: Sequence[int], attempt: int, side: str, tick: Tick
) -> list[NewCompletion]:
    project = wanted.project
    chosen = [wanted.prompts[_position(project.seed, n, attempt, len(wanted.prompts))] for n in places]
    seeds = [derive(project.seed, "pair", wanted.checkpoint, n, attempt, side) for n in places]
    ids = [backbone.encode_prompt(prompt.text) for prompt in chosen]
    written = sample(backbone, ids, uniforms(seeds, wanted.max_new_tokens), tick=tick).tokens
    return [
        NewCompletion(prompt.id, backbone.decode(row), tuple(row), wanted.checkpoint, seed)
        for prompt, row, seed in zip(chosen, written, seeds, strict=True)
    ]


def _position(seed: int, n: int, attempt: int, count: int) -> int:
    """Which prompt the n-th pair is about: all in a random order, then all again in another; any, when tried again."""
    if attempt:
        return derive(seed, "pair prompts again", n, attempt) % count
    generator = torch.Generator().manual_seed(derive(seed, "pair prompts", n // count))
    return int(torch.randperm(count, generator=generator)[n % count])


def score_new(lab: Lab, project: Project, pairs: Sequence[Pair]) -> None:
    """Note what the newest reward model thinks of pairs nobody has judged: of labels by people first, else simulated ones."""
    row = latest_reward_model(lab.db, project.id, Source.HUMAN) or latest_reward_model(
        lab.db, project.id, Source.SIMULATED
    )
    if row is None or not pairs:
        return
    try:
        add_scores(lab.db, row.id, score_pairs(lab.reward_model(row.id, JOB_REWARD), pairs))
    except LabError as error:  # the pairs are good all the same
        log.warning("the new pairs were not scored: %s", error)


def score_pairs(model: RewardModel, pairs: Sequence[Pair], tick: Tick = no_tick) -> dict[int, float]:
    """completion id -> score, of both sides of each pair."""
    texts: list[tuple[Completion, str]] = [(side, p.prompt.text) for p in pairs for side in (p.first, p.second)]
    if not texts:
        return {}
    encoded = {prompt: model.backbone.encode_prompt(prompt) for prompt in {prompt for _, prompt in texts}}
    responses = [list(side.token_ids) or model.backbone.encode_response(side.text) for side, _ in texts]
    scores = model.scores([encoded[prompt] for _, prompt in texts], responses, tick).tolist()
    return {side.id: float(score) for (side, _), score in zip(texts, scores, strict=True)}

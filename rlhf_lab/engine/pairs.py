"""Writing pairs to compare, and what the reward model of the day thinks of them beforehand."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from rlhf_lab.config import RewardConfig
from rlhf_lab.engine.choosing import CANDIDATES, doubt_of, least_alike, least_sure, words
from rlhf_lab.engine.fitting import fitting
from rlhf_lab.engine.lab import Lab
from rlhf_lab.engine.texts import JOB, JOB_REWARD, reference_samples
from rlhf_lab.errors import LabelError, LabError
from rlhf_lab.kinds import Source
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick, sample, uniforms
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.records import Completion, LabelSnapshot, NewCompletion, Pair, Project, Prompt, RewardModelRow
from rlhf_lab.seeds import derive
from rlhf_lab.store.comparisons import comparisons, snapshot
from rlhf_lab.store.projects import add_completions, add_pairs, count_pairs, newest_pairs, prompts
from rlhf_lab.store.runs import latest_reward_model
from rlhf_lab.store.scores import add_scores
from rlhf_lab.trainers.pair_choice import Candidate, most_telling

log = logging.getLogger("rlhf_lab.engine")
TRIES = 8  # two samples that come out equal teach nothing: how often to try again, with other prompts
BATCH = 256
NEIGHBOURS = 64  # the newest pairs that new ones should differ from

Two = tuple[NewCompletion, NewCompletion]


class _Wanted(NamedTuple):
    """What pairs are written with."""

    project: Project
    checkpoint: str
    slot: str | None
    max_new_tokens: int
    prompts: list[Prompt]
    purpose: str = "pair"  # what the seeds are derived for


def sample_pairs(
    lab: Lab,
    project: Project,
    count: int,
    *,
    checkpoint: str = "base",
    max_new_tokens: int | None = None,
    sampling: str = "random",
    note: Callable[[str], None] | None = None,
    tick: Tick = no_tick,
) -> list[Pair]:
    """Write `count` pairs of different responses to train prompts, and score them with the newest reward model, if any.

    sampling: "random" keeps what was written; the others write CANDIDATES times as many and keep some: "information" whose
    answers would tell the most (`pair_choice`), "uncertainty" and "diversity" as in `choosing`. Each pair says which it was,
    those of "uncertainty" also by what doubt;
    while there is no label, or no reward model, to choose by, the pairs are random ones.
    The n-th random pair of a project is a function of its seed, the checkpoint and n, however the pairs were asked for.
    note is called with what a person should know: how many prompts were too long.
    Raises LabelError when two responses to a prompt keep coming out equal; the pairs before that one are kept.
    """
    backbone, adapters = lab.open(project)
    available = prompts(lab.db, project.id, "train")
    if not available:
        raise LabelError(f"project {project.id} has no prompts to write for. Add some prompts.")
    fit = fitting(backbone, available, max_new_tokens)
    if fit.left_out:
        log.warning("project %d: %s", project.id, fit.words)
        if note is not None:
            note(fit.words)
    wanted = _Wanted(project, checkpoint, lab.checkpoint(checkpoint, JOB), fit.length, fit.prompts)
    judge = newest_judge(lab, project) if sampling == "uncertainty" else None
    if sampling == "uncertainty" and judge is None:
        sampling = "random"
    if sampling == "information" and not labels_so_far(lab, project).vote_ids:
        sampling = "random"
    whole, missing = _whole(backbone, adapters, wanted, count, count_pairs(lab.db, project.id), sampling, tick)
    if sampling != "random":
        whole = _chosen(lab, project, whole, count, sampling, tick)
    pairs = _add(lab, project, whole, sampling if judge is None else f"{sampling}: {doubt_of(judge)}")
    if missing:
        raise LabelError(
            f"{len(pairs)} of {count} pairs were written: then two responses to the same prompt came out equal {TRIES} times "
            "in a row, and equal texts teach nothing. The model hardly varies here: allow longer responses "
            "(max_new_tokens), or use another checkpoint or more prompts." + (f" {fit.words}." if fit.words else "")
        )
    return pairs


def _whole(
    backbone: Backbone, adapters: Adapters, wanted: _Wanted, count: int, start: int, sampling: str, tick: Tick
) -> tuple[list[Two], bool]:
    """The pairs written up to the first that did not succeed, and whether there was one."""
    places = range(start, start + count)
    if sampling != "random":  # places of their own, which no later batch uses again
        places = range(start * CANDIDATES, (start + count) * CANDIDATES)
        wanted = wanted._replace(purpose="candidate")
    found = _write(backbone, adapters, wanted, places, tick)
    if sampling != "random":
        whole = [found[n] for n in places if n in found]
        return whole, len(whole) < count
    missing = next((n for n in places if n not in found), None)
    # those behind the gap would take the places of others
    return [found[n] for n in places if n in found and (missing is None or n < missing)], missing is not None


def _chosen(lab: Lab, project: Project, whole: list[Two], count: int, sampling: str, tick: Tick) -> list[Two]:
    """The candidates worth a person's time."""
    backbone, adapters = lab.open(project)
    text = {prompt.id: prompt.text for prompt in prompts(lab.db, project.id, "train")}
    asked = [backbone.encode_prompt(text[first.prompt_id]) for first, _ in whole]
    firsts, seconds = ([list(pair[side].token_ids) for pair in whole] for side in (0, 1))
    judge = newest_judge(lab, project) if sampling == "uncertainty" else None
    if judge is not None:
        keep = least_sure(judge, asked, firsts, seconds, count, tick)
    elif sampling == "information":
        row = _newest(lab, project)
        config = RewardConfig() if row is None else RewardConfig.from_dict(row.config)
        keep = most_telling(
            adapters, comparisons(lab.db, labels_so_far(lab, project)), reference_samples(lab, project, tick),
            [Candidate(*one) for one in zip(asked, firsts, seconds, strict=True)], count, config, tick=tick,
        )  # fmt: skip
        keep = sorted(keep)
    else:
        known = [words(pair.first.text, pair.second.text) for pair in newest_pairs(lab.db, project.id, NEIGHBOURS)]
        keep = least_alike([words(first.text, second.text) for first, second in whole], known, count)
    return [whole[i] for i in keep]


def _add(lab: Lab, project: Project, whole: list[Two], reason: str) -> list[Pair]:
    firsts = add_completions(lab.db, [first for first, _ in whole])
    seconds = add_completions(lab.db, [second for _, second in whole])
    pairs = add_pairs(lab.db, project.id, [(a.id, b.id, reason) for a, b in zip(firsts, seconds, strict=True)])
    score_new(lab, project, pairs)
    return pairs


def _write(
    backbone: Backbone, adapters: Adapters, wanted: _Wanted, places: Sequence[int], tick: Tick
) -> dict[int, Two]:
    """place -> two different responses; places where all tries came out equal are left out."""
    found: dict[int, Two] = {}
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
    seeds = [derive(project.seed, wanted.purpose, wanted.checkpoint, n, attempt, side) for n in places]
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


def labels_so_far(lab: Lab, project: Project) -> LabelSnapshot:
    """The labels by people, or simulated ones where there are none."""
    found = snapshot(lab.db, project.id, Source.HUMAN)
    return found if found.vote_ids else snapshot(lab.db, project.id, Source.SIMULATED)


def newest_judge(lab: Lab, project: Project) -> RewardModel | None:
    """The newest reward model, of labels by people first, else simulated ones; None where none can be used."""
    row = _newest(lab, project)
    try:
        return None if row is None else lab.reward_model(row.id, JOB_REWARD)
    except LabError as error:
        log.warning("the newest reward model could not choose pairs: %s", error)
        return None


def _newest(lab: Lab, project: Project) -> RewardModelRow | None:
    return latest_reward_model(lab.db, project.id, Source.HUMAN) or latest_reward_model(
        lab.db, project.id, Source.SIMULATED
    )


def score_new(lab: Lab, project: Project, pairs: Sequence[Pair]) -> None:
    """Note what the newest reward model thinks of pairs nobody has judged: of labels by people first, else simulated ones."""
    row = _newest(lab, project)
    if row is None or not pairs:
        return
    try:
        add_scores(lab.db, row.id, score_pairs(lab.reward_model(row.id, JOB_REWARD), pairs))
    except LabError as error:  # the pairs are good all the same
        log.warning("the new pairs were not scored: %s", error)


def score_pairs(model: RewardModel, pairs: Sequence[Pair], tick: Tick = no_tick) -> dict[int, float]:
    """completion id -> score, of both sides of each pair; pairs of imported texts that it cannot read whole have none."""
    backbone = model.backbone
    encoded = {prompt: backbone.encode_prompt(prompt) for prompt in {pair.prompt.text for pair in pairs}}
    rows: list[tuple[Completion, list[int], list[int]]] = []
    for pair in pairs:
        prompt = encoded[pair.prompt.text]
        both = [
            (side, prompt, list(side.token_ids) or backbone.encode_response(side.text))
            for side in (pair.first, pair.second)
        ]
        if all(len(prompt) + len(response) <= backbone.context for _, _, response in both):
            rows += both
    if not rows:
        return {}
    scores = model.scores([prompt for _, prompt, _ in rows], [response for _, _, response in rows], tick).tolist()
    return {side.id: float(score) for (side, _, _), score in zip(rows, scores, strict=True)}

"""What the engine does for a job, except policy runs: sample pairs, train a reward model, complete prompts.

The command line's `demo` calls the same functions in its own process.
"""

import dataclasses
import json
import shutil
import time
from collections.abc import Callable
from typing import Any

import torch

from rlhf_lab.config import RewardConfig
from rlhf_lab.engine.lab import REWARD_MODELS, Lab
from rlhf_lab.errors import LabelError
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.records import NewCompletion, Pair, Project, RewardModelRow, Source
from rlhf_lab.seeds import derive
from rlhf_lab.store.comparisons import comparisons, snapshot
from rlhf_lab.store.projects import add_completions, add_pairs, count_pairs, prompts
from rlhf_lab.store.runs import add_reward_model
from rlhf_lab.trainers.evaluation import Written, write
from rlhf_lab.trainers.reward import Reference, train_reward

#: progress(share done, seconds left or None)
Progress = Callable[[float, float | None], None]
MAX_NEW_TOKENS = 64
REFERENCE_SAMPLES = 128


def no_progress(share: float, left: float | None) -> None:
    return None


def sample_pairs(
    lab: Lab, project: Project, count: int, *, checkpoint: str = "base", reason: str = "random", tick: Tick = no_tick
) -> list[Pair]:
    """Write two responses for each of `count` train prompts and put them side by side.

    The n-th pair of a project is a function of its seed and n. Responses that come out equal are left out.
    """
    backbone, adapters = lab.open(project)
    slot = lab.checkpoint(checkpoint, "job")
    available = prompts(lab.db, project.id, "train")
    if not available:
        raise LabelError(f"project {project.id} has no prompts to write for. Add some prompts.")
    start = count_pairs(lab.db, project.id)
    chosen = [available[_position(project.seed, start + i, len(available))] for i in range(count)]
    texts = [prompt.text for prompt in chosen]
    sides = []
    with adapters.using(slot, merged=slot is not None):
        for side in ("first", "second"):
            seed = derive(project.seed, "pair", checkpoint, start, side)
            sides.append(
                (seed, write(backbone, texts, seed=seed, purpose=side, max_new_tokens=MAX_NEW_TOKENS, tick=tick))
            )
    new = [
        [
            NewCompletion(prompt.id, written.texts[i], tuple(written.tokens[i]), checkpoint, seed)
            for i, prompt in enumerate(chosen)
        ]
        for seed, written in sides
    ]
    different = [i for i in range(count) if new[0][i].token_ids != new[1][i].token_ids]
    firsts = add_completions(lab.db, [new[0][i] for i in different])
    seconds = add_completions(lab.db, [new[1][i] for i in different])
    return add_pairs(lab.db, project.id, [(a.id, b.id, reason) for a, b in zip(firsts, seconds, strict=True)])


def _position(seed: int, n: int, count: int) -> int:
    """Which prompt the n-th pair is about: all in a random order, then all again in another."""
    generator = torch.Generator().manual_seed(derive(seed, "pair prompts", n // count))
    return int(torch.randperm(count, generator=generator)[n % count])


def reference_samples(lab: Lab, project: Project, tick: Tick = no_tick) -> Reference:
    """Base samples on train prompts: the scale of the scores. The same for every reward model of a project."""
    backbone, adapters = lab.open(project)
    available = prompts(lab.db, project.id, "train")
    texts = [available[i % len(available)].text for i in range(REFERENCE_SAMPLES)]
    with adapters.using(None):
        written = write(
            backbone, texts, seed=project.seed, purpose="reference", max_new_tokens=MAX_NEW_TOKENS, tick=tick
        )
    return Reference(written.prompts, written.tokens)


def train_reward_model(
    lab: Lab,
    project: Project,
    config: RewardConfig,
    source: Source,
    *,
    annotators: list[str] | None = None,
    progress: Progress = no_progress,
    tick: Tick = no_tick,
) -> RewardModelRow:
    """Pin the labels of one source, train on them, and store the result as a new, immutable reward model."""
    backbone, adapters = lab.open(project)
    pinned = snapshot(lab.db, project.id, source, annotators)
    begun = time.monotonic()

    def report_progress(done: int, total: int, loss: float) -> None:
        left = (time.monotonic() - begun) / done * (total - done)
        progress(done / total, left)

    try:
        model, report = train_reward(
            backbone, adapters, comparisons(lab.db, pinned), reference_samples(lab, project, tick), config,
            adapter="reward training", progress=report_progress, tick=tick,
        )  # fmt: skip
    except BaseException:
        adapters.remove("reward training")
        raise
    name = f"{REWARD_MODELS}/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**6:06d}"
    folder = lab.home / name
    building = folder.with_name(f".building-{folder.name}")
    model.save(building)
    told = dataclasses.asdict(report) | {"seconds": time.monotonic() - begun, "source": source.value}
    (building / "report.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    (building / "config.json").write_text(json.dumps(config.to_dict(), indent=1), encoding="utf-8")
    building.rename(folder)
    adapters.remove("reward training")
    try:
        return add_reward_model(lab.db, project.id, name, config=config.to_dict(), report=told, snapshot=pinned)
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def complete(lab: Lab, project: Project, payload: dict[str, Any], *, tick: Tick = no_tick) -> dict[str, Any]:
    """Continue prompts with the base or a checkpoint, and score the texts where a reward model is named.

    payload: prompts (list of texts), checkpoint, seed, and optionally temperature, max_new_tokens, reward_model_id.
    """
    backbone, adapters = lab.open(project)
    slot = lab.checkpoint(payload.get("checkpoint", "base"), "job")
    with adapters.using(slot, merged=slot is not None):
        written: Written = write(
            backbone, payload["prompts"], seed=int(payload.get("seed", 0)), purpose="complete",
            max_new_tokens=int(payload.get("max_new_tokens", MAX_NEW_TOKENS)),
            temperature=float(payload.get("temperature", 1.0)), tick=tick,
        )  # fmt: skip
    result: dict[str, Any] = {"texts": written.texts, "tokens": written.tokens}
    if payload.get("reward_model_id") is not None:
        scorer = lab.reward_model(int(payload["reward_model_id"]), "job reward")
        result["scores"] = scorer.scores(written.prompts, written.tokens, tick).tolist()
    return result

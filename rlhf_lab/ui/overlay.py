"""Several runs beside each other: one metric over the steps, score and gold over the distance travelled, and what differs."""

import math
from collections.abc import Sequence
from typing import Any

from rlhf_lab.config import PolicyConfig, fields_of
from rlhf_lab.kinds import Source
from rlhf_lab.records import Run, RunEvent
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import events, get_reward_model
from rlhf_lab.store.steps import Point, metric_names, metric_series
from rlhf_lab.ui import story

MAX_RUNS = 8
MAX_POINTS = 600  # of a curve over the steps
BUCKETS = 16  # points of a curve over √KL: single steps are noisy in both directions
ALONE = 8  # up to so many steps each one is a point
KL, SCORE, GOLD = "objective/kl", "objective/scores", "objective/gold"
EVERYTHING = 10**9


def overlay(db: Database, chosen: Sequence[Run], metric: str) -> dict[str, Any]:
    """Everything the charts and the table of these runs show."""
    drawn = []
    names: dict[str, None] = {}
    for run in chosen:
        names |= dict.fromkeys(metric_names(db, run.id))
        curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=EVERYTHING)
        points = metric_series(db, run.id, [metric], max_points=MAX_POINTS)[metric]
        drawn.append(
            {
                "id": run.id,
                "name": run.name,
                "points": story.packed(points),
                "score": frontier(curves[KL], curves[SCORE]),
                "gold": frontier(curves[KL], curves[GOLD]),
            }
        )
    return {"runs": drawn, "names": sorted(names), "differs": differs(db, chosen)}


def frontier(kl: Sequence[Point], value: Sequence[Point]) -> list[list[float]]:
    """[√KL, value, first step, last step] of consecutive steps put together: two or more of a run of more than ALONE steps.

    √KL is the scale on which over-optimisation is usually read (Gao et al. 2022); the k1 estimate can be below 0 at the
    start, which counts as 0. Steps where either is missing or not finite are left out.
    """
    distance = dict(kl)
    both = [
        (step, distance[step], number)
        for step, number in value
        if step in distance and math.isfinite(number) and math.isfinite(distance[step])
    ]
    size = max(1 if len(both) <= ALONE else 2, math.ceil(len(both) / BUCKETS))
    found = []
    for start in range(0, len(both), size):
        bucket = both[start : start + size]
        mean_kl, mean = (sum(item[i] for item in bucket) / len(bucket) for i in (1, 2))
        found.append([round(math.sqrt(max(0.0, mean_kl)), 4), round(mean, 4), bucket[0][0], bucket[-1][0]])
    return found


def differs(db: Database, chosen: Sequence[Run]) -> list[dict[str, Any]]:
    """The settings that are not the same in all these runs: {"name", "about", "values": one a run, in words}."""
    if len(chosen) < 2:
        return []
    columns = [settings(db, run) for run in chosen]
    about = {item.name: item.help for item in fields_of(PolicyConfig)}
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        values = [column.get(name, "–") for column in columns]
        known = {values[i] for i, run in enumerate(chosen) if name in columns[i] or run.manifest.get("machine")}
        if len(known) > 1:  # a run that never began has no record of its machine
            rows.append({"name": name, "about": about.get(name, ""), "values": values})
    return rows


def settings(db: Database, run: Run) -> dict[str, str]:
    """All that decides what a run does, in words; a setting its record does not have was the default's."""
    row = get_reward_model(db, run.reward_model_id)
    source = "simulated" if row.snapshot.source is Source.SIMULATED else "people's"
    machine = run.manifest.get("machine") or {}
    packages = machine.get("packages") or {}
    found = {
        "reward model": str(row.id),
        "labels": f"{len(row.snapshot.vote_ids)} {source}",
        "labels, digest": row.snapshot.digest[:8],
        "gold by": str(run.manifest.get("judge") or "nobody"),
    }
    known = {item.name: item.default for item in fields_of(PolicyConfig)} | run.config
    found |= {name: words(value) for name, value in known.items()}
    found["changed while it ran"] = changes(run, events(db, run.id)) or "nothing"
    if machine:
        found |= {"device": str(machine.get("device", "–")), "dtype": str(machine.get("dtype", "–"))}
        found["threads"] = words(machine.get("threads"))
        found |= {f"version of {name}": str(version) for name, version in packages.items()}
        found["model's weights"] = str(machine.get("backbone_sha256", "–"))[:8]
    return found


def changes(run: Run, said: Sequence[RunEvent]) -> str:
    """The changes people made on the way, without pauses: those alter no number."""
    marks = [mark for mark in story.marks(run, said) if "→" in mark["words"]]
    return "; ".join(f"{mark['words']} after step {mark['step']}" for mark in marks)


def words(value: Any) -> str:
    """A setting's value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Several runs beside each other: one metric over the steps, score and gold over the distance travelled, and what differs."""

import math
from collections.abc import Sequence
from typing import Any

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Run, RunEvent
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import Point, metric_names, metric_series
from rlhf_lab.store.runs import events, get_reward_model
from rlhf_lab.ui.services import run_summary

MAX_RUNS = 8
MAX_POINTS = 600  # of a curve over the steps
BUCKETS = 16  # points of a curve over √KL: single steps are noisy in both directions
MAX_UNBUCKETED_STEPS = 8  # up to so many steps each one is a point
KL, SCORE, GOLD = "objective/kl", "objective/scores", "objective/gold"
NO_POINT_LIMIT = 10**9


def compare_runs(db: Database, selected_runs: Sequence[Run], metric: str) -> dict[str, Any]:
    """Everything the charts and the table of these runs show."""
    run_rows = []
    names: dict[str, None] = {}
    for run in selected_runs:
        names |= dict.fromkeys(metric_names(db, run.id))
        curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=NO_POINT_LIMIT)
        points = metric_series(db, run.id, [metric], max_points=MAX_POINTS)[metric]
        run_rows.append(
            {
                "id": run.id,
                "name": run.name,
                "points": run_summary.encode_points(points),
                "score": frontier(curves[KL], curves[SCORE]),
                "gold": frontier(curves[KL], curves[GOLD]),
            }
        )
    return {"runs": run_rows, "names": sorted(names), "differs": setting_differences(db, selected_runs)}


def frontier(kl: Sequence[Point], value: Sequence[Point]) -> list[list[float]]:
    """[√KL, value, first step, last step] of consecutive steps put together: two or more of a run of more than ALONE steps.

    √KL is the scale on which over-optimisation is usually read (Gao et al. 2022); the k1 estimate can be below 0 at the
    start, which counts as 0. Steps where either is missing or not finite are left out.
    """
    kl_by_step = dict(kl)
    matched = [
        (step, kl_by_step[step], metric_value)
        for step, metric_value in value
        if step in kl_by_step and math.isfinite(metric_value) and math.isfinite(kl_by_step[step])
    ]
    bucket_size = max(1 if len(matched) <= MAX_UNBUCKETED_STEPS else 2, math.ceil(len(matched) / BUCKETS))
    points = []
    for start in range(0, len(matched), bucket_size):
        bucket = matched[start : start + bucket_size]
        mean_kl, mean = (sum(item[i] for item in bucket) / len(bucket) for i in (1, 2))
        points.append([round(math.sqrt(max(0.0, mean_kl)), 4), round(mean, 4), bucket[0][0], bucket[-1][0]])
    return points


def setting_differences(db: Database, selected_runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The settings that are not the same in all these runs: {"name", "about", "values": one a run, in words}."""
    if len(selected_runs) < 2:
        return []
    columns = [run_settings(db, run) for run in selected_runs]
    help_texts = {item.name: item.help for item in fields_of(PolicyConfig)}
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = []
    for name in names:
        values = [column.get(name, "–") for column in columns]
        distinct_values = {
            values[i] for i, run in enumerate(selected_runs) if name in columns[i] or run.manifest.get("machine")
        }
        if len(distinct_values) > 1:  # a run that never began has no record of its machine
            rows.append({"name": name, "about": help_texts.get(name, ""), "values": values})
    return rows


def run_settings(db: Database, run: Run) -> dict[str, str]:
    """All that decides what a run does, in words; a setting its record does not have was the default's."""
    row = get_reward_model(db, run.reward_model_id)
    label_source = "simulated" if row.snapshot.source is Source.SIMULATED else "people's"
    machine = run.manifest.get("machine") or {}
    packages = machine.get("packages") or {}
    settings_text = {
        "reward model": str(row.id),
        "labels": f"{len(row.snapshot.vote_ids)} {label_source}",
        "labels, digest": row.snapshot.digest[:8],
        "gold by": str(run.manifest.get("judge") or "nobody"),
    }
    config = {item.name: item.default for item in fields_of(PolicyConfig)} | run.config
    settings_text |= {name: format_value(value) for name, value in config.items()}
    settings_text["changed while it ran"] = changes_text(run, events(db, run.id)) or "nothing"
    if machine:
        settings_text |= {"device": str(machine.get("device", "–")), "dtype": str(machine.get("dtype", "–"))}
        settings_text["threads"] = format_value(machine.get("threads"))
        settings_text |= {f"version of {name}": str(version) for name, version in packages.items()}
        settings_text["model's weights"] = str(machine.get("backbone_sha256", "–"))[:8]
    return settings_text


def changes_text(run: Run, run_events: Sequence[RunEvent]) -> str:
    """The changes people made on the way, without pauses: those alter no number."""
    markers = [marker for marker in run_summary.change_markers(run, run_events) if "→" in marker["words"]]
    return "; ".join(f"{marker['words']} after step {marker['step']}" for marker in markers)


def format_value(value: Any) -> str:
    """A setting's value as a person writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)

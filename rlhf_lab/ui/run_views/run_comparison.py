"""Comparison of several runs: a metric over the steps, score and gold over the distance from the base, different settings."""

import math
from collections.abc import Sequence
from typing import Any

from typing_extensions import TypedDict

from rlhf_lab.common.curves import Point
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import MADE_ELSEWHERE, LabelSnapshot, RewardModelRow, Run
from rlhf_lab.common.text import plain_number
from rlhf_lab.common.text_attributes import attribute_labels, ignored_in
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.jobs import run_control
from rlhf_lab.jobs.retraining import IGNORED_KEY
from rlhf_lab.rewards.terms import TERMS_KEY, read_terms
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import label_count_of
from rlhf_lab.store.reward_models import reward_model_of
from rlhf_lab.store.run_metrics import metric_names, metric_series
from rlhf_lab.ui.run_views import run_summary
from rlhf_lab.ui.run_views.run_summary import JsonPoint, RunView
from rlhf_lab.ui.shared.charts import CURVES

MAX_RUNS = 8
MAX_POINTS = 600  # of a curve over the steps
BUCKETS = 16  # points of a curve over √KL: single steps are noisy in both directions
MAX_UNBUCKETED_STEPS = 8  # for runs of at most this many steps, each step is a point
KL, SCORE, GOLD = "objective/kl", "objective/scores", "objective/gold"
NO_POINT_LIMIT = 10**9


class ComparedRun(TypedDict):
    """outside_file: as in `RunRow`."""

    id: int
    name: str
    outside_file: str
    points: list[JsonPoint]
    score_frontier: list[list[float]]
    gold_frontier: list[list[float]]


class SettingDifference(TypedDict):
    """values: one for each run."""

    name: str
    about: str
    values: list[str]


class RunComparison(TypedDict):
    """metrics: the names of all metrics of these runs. metric: the one that is drawn."""

    runs: list[ComparedRun]
    metric: str
    metrics: list[str]
    setting_differences: list[SettingDifference]


def compare_runs(db: Database, selected_runs: Sequence[Run], metric: str) -> RunComparison:
    """Everything that the charts and the table of these runs show; the score in place of an unknown metric."""
    compared_runs: list[ComparedRun] = []
    metrics = {name for run in selected_runs for name in metric_names(db, run.id, of_all_steps=bool(run.outside_file))}
    if metric not in metrics and metric not in {curve.metric for curve in CURVES}:
        metric = SCORE
    for run in selected_runs:
        curves = metric_series(db, run.id, [KL, SCORE, GOLD], max_points=NO_POINT_LIMIT)
        points = metric_series(db, run.id, [metric], max_points=MAX_POINTS)[metric]
        compared_runs.append(
            {
                "id": run.id,
                "name": run.name,
                "outside_file": run.outside_file,
                "points": run_summary.encode_points(points),
                "score_frontier": frontier(curves[KL], curves[SCORE]),
                "gold_frontier": frontier(curves[KL], curves[GOLD]),
            }
        )
    return {
        "runs": compared_runs,
        "metrics": sorted(metrics),
        "metric": metric,
        "setting_differences": setting_differences(db, selected_runs),
    }


def frontier(kl: Sequence[Point], values: Sequence[Point]) -> list[list[float]]:
    """[√KL, value, first step, last step] of buckets of consecutive steps, each the mean of its steps.

    A run of more than MAX_UNBUCKETED_STEPS steps has at least two steps per bucket. √KL is the usual scale for over-optimisation
    (Gao et al. 2022); the k1 estimate can be negative at the start, which counts as 0. Steps where either value is missing or
    not finite are left out.
    """
    kl_by_step = dict(kl)
    matched = [
        (step, kl_by_step[step], value)
        for step, value in values
        if step in kl_by_step and math.isfinite(value) and math.isfinite(kl_by_step[step])
    ]
    bucket_size = max(1 if len(matched) <= MAX_UNBUCKETED_STEPS else 2, math.ceil(len(matched) / BUCKETS))
    points = []
    for start in range(0, len(matched), bucket_size):
        bucket = matched[start : start + bucket_size]
        mean_kl, mean = (sum(item[i] for item in bucket) / len(bucket) for i in (1, 2))
        points.append([round(math.sqrt(max(0.0, mean_kl)), 4), round(mean, 4), bucket[0][0], bucket[-1][0]])
    return points


def setting_differences(db: Database, selected_runs: Sequence[Run]) -> list[SettingDifference]:
    """The settings that are not the same in all these runs."""
    if len(selected_runs) < 2:
        return []
    columns = [run_settings(db, run) for run in selected_runs]
    help_texts = {item.name: item.help for item in fields_of(PolicyConfig)}
    rows: list[SettingDifference] = []
    for name in dict.fromkeys(name for column in columns for name in column):
        distinct_values = {
            column.get(name, "–")
            for column, run in zip(columns, selected_runs, strict=True)
            # of a run that never started, the machine is not known; of one made elsewhere, nothing is
            if name in column or run.manifest.get("machine")
        }
        if len(distinct_values) > 1:
            values = [column.get(name, "–") for column in columns]
            rows.append({"name": name, "about": help_texts.get(name, ""), "values": values})
    return rows


def run_settings(db: Database, run: Run) -> dict[str, str]:
    """Everything that determines what a run does, as text; a setting missing from its config has the default.

    Of a run that was made elsewhere nothing is known but its file.
    """
    if run.outside_file:
        digest = str(run.manifest[MADE_ELSEWHERE].get("sha256", ""))[:8]
        return {"made": f"elsewhere: {run.outside_file}, {digest}"}
    row, terms = reward_model_of(db, run.reward_model_id), read_terms(run.manifest.get(TERMS_KEY) or [])
    machine = run.manifest.get("machine") or {}
    settings_text = {
        "made": "in this lab",
        "reward model": str(row.id) if row else "none",
        **({"reward": run_control.reward_text(run.reward_model_id, terms)} if terms else {}),
        **_label_settings(run, row),
        "gold by": portable_name(str(run.manifest.get("judge") or "nobody")),
    }
    config = {item.name: item.default for item in fields_of(PolicyConfig)} | run.config
    settings_text |= {name: format_value(value) for name, value in config.items()}
    settings_text["changed while it ran"] = changes_text(RunView.load(db, run)) or "nothing"
    if machine:
        packages = machine.get("packages") or {}
        settings_text |= {"device": str(machine.get("device", "–")), "dtype": str(machine.get("dtype", "–"))}
        settings_text["threads"] = format_value(machine.get("threads"))
        settings_text |= {f"version of {name}": str(version) for name, version in packages.items()}
        settings_text["model's weights"] = str(machine.get("backbone_sha256", "–"))[:8]
    return settings_text


def _label_settings(run: Run, row: RewardModelRow | None) -> dict[str, str]:
    """The settings of the labels of a run's reward model, or of the run itself; empty if the run uses no labels."""
    if row is None and "labels" not in run.manifest:
        return {}
    labels = row.snapshot if row else LabelSnapshot.from_record(run.manifest["labels"])
    label_source = "simulated" if labels.source is Source.SIMULATED else "people's"
    count = label_count_of(row.report if row else run.manifest, len(labels.vote_ids))
    ignored = attribute_labels(ignored_in(row.config) if row else run.manifest.get(IGNORED_KEY, ()))
    return {
        "labels": f"{count} {label_source}", "labels, digest": labels.digest[:8],
        **({"scores ignore": ignored} if ignored else {}),
    }  # fmt: skip


def changes_text(view: RunView) -> str:
    """What people changed during the run. Pauses are left out, because they do not change the results."""
    markers = run_summary.change_markers(view, only_settings=True)
    return "; ".join(f"{marker['text']} after step {marker['step']}" for marker in markers)


def format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain_number(value) if isinstance(value, float) else str(value)

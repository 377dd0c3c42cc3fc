"""Screen "Learn": one idea a page, from a cat in a grid to the tokens of a run.

The page draws and computes (`view.js`); this module gives it the numbers about language: those of the project's newest run and
reward model, and recorded ones (assets/recording.json, written by benchmarks/record_run.py) where there are none.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from rlhf_lab.common.enums import JobStatus, RunStatus
from rlhf_lab.common.records import Role, Run
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs.experiments import EXPERIMENTS, start_experiment
from rlhf_lab.jobs.retraining import last_training
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.run_metrics import metric_series
from rlhf_lab.store.runs import runs
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.share.recording import shipped, shipped_replay
from rlhf_lab.ui.shared.api import Api, Message, Payload
from rlhf_lab.ui.shared.crowd import sees_comparisons
from rlhf_lab.ui.shared.widgets import widget
from rlhf_lab.ui.train.token_view import TokenRow, TokenView, token_view

api = Api("learn")
#: Metrics of the curves by their names on the page.
CURVES = {
    "score": "objective/scores", "gold": "objective/gold", "kl": "objective/kl", "clip_fraction": "policy/clipfrac_avg",
}  # fmt: skip
MIN_CURVE_STEPS = 8
MAX_CURVE_POINTS = 200
MIN_LABELS = 5
DECIMALS = 4
MAX_STEPS_BACK = 20
CACHED_S = 60.0
CLEAR_CHANGE = 0.01  # of a ratio
CLEAR_KL = 0.05  # nats of a text

Kind = Literal["run", "labels", "curves", "recording"]


class Curves(TypedDict):
    """Of one run; all lists have the same length."""

    run: int
    steps: list[int]
    score: list[float]
    gold: list[float]
    kl: list[float]
    clip_fraction: list[float]


class ExperimentView(TypedDict):
    """An experiment of the open project. name: in EXPERIMENTS. step: 0 before its run. problem: why it does not go on, or ""."""

    name: str
    problem: str
    step: int
    steps: int
    curves: Curves | None


class StartPayload(Payload):
    name: str


class NextTokens(TypedDict):
    """The likeliest next tokens after a text. logprobs: in nats, of the whole vocabulary."""

    text: str
    tokens: list[str]
    logprobs: list[float]


class Numbers(TypedDict):
    """What the pages about language draw. view: one step of a run. differences: of the scores of labelled texts, chosen minus
    rejected, by a model that had not seen the label."""

    view: TokenView
    curves: Curves
    differences: list[float]
    distribution: NextTokens


class LearnMaterial(Numbers):
    """recorded: which numbers are not of this project."""

    recorded: list[Kind]
    experiment: ExperimentView | None


def build(ctx: Context) -> None:
    experiments = [
        {"name": name, "title": one.title, "look_for": one.look_for, "explanation": one.explanation}
        for name, one in EXPERIMENTS.items()
    ]
    widget("learn", "learn/view.js", label="Learn", data={"experiments": experiments})


@api.read(Payload)
def material(ctx: Context, _: Payload) -> LearnMaterial:
    recording = recorded_material()
    view, curves, differences = own_view(ctx), own_curves(ctx), own_differences(ctx)
    own: dict[Kind, object] = {"run": view, "curves": curves, "labels": differences}
    return {
        "recorded": ["recording", *(kind for kind, value in own.items() if value is None)],
        "view": view or recording["view"],
        "curves": curves or recording["curves"],
        "differences": differences or recording["differences"],
        "distribution": recording["distribution"],
        "experiment": own_experiment(ctx),
    }


@api.action(StartPayload, role=Role.OPERATOR)
def start(ctx: Context, payload: StartPayload) -> Message:
    project = start_experiment(ctx.db, ctx.home, payload.name)
    return {"message": f"The project “{project.name}” is open. Its run starts in a few seconds."}


@cache
def recorded_material() -> Numbers:
    tokens = shipped_replay()["tokens"]
    return TypeAdapter(Numbers).validate_python(shipped()["learn"] | {"view": tokens[max(tokens)]})


def own_view(ctx: Context) -> TokenView | None:
    """`last_view`, read again only when a run has changed."""
    project_runs = runs(ctx.db, ctx.project.id)
    key = f"learn/view/{ctx.project.id}/{max((run.updated_at for run in project_runs), default=0)}"
    return ctx.cache.get(key, CACHED_S, lambda: last_view(ctx.db, project_runs))


def last_view(db: Database, project_runs: Sequence[Run]) -> TokenView | None:
    """The last step with stored tokens, a clear change of some token and a clear KL of the text that the pages show, of the
    newest run whose numbers the pages explain.

    It clips ratios, trains a value function, and takes log-ratios for the KL. At step 1 these are 0: the policy is still the
    base.
    """
    for run in project_runs:
        config = PolicyConfig.from_dict(run.config)
        has_numbers = config.token_rows and config.spec.clips and config.uses_value_function
        if has_numbers and config.kl_estimator == "k1":
            for step in range(run.step, max(1, run.step - MAX_STEPS_BACK), -1):
                view = token_view(db, run.id, step)
                if any(has_clear_change(row) for row in view["rows"]) and has_clear_kl(view):
                    return view
    return None


def has_clear_kl(view: TokenView) -> bool:
    """Whether the page about the KL penalty can ask for a beta that changes the reward of its text by 1."""
    kl = view["rows"][view["notable"][0]]["columns"]["kl"]
    return abs(sum(value or 0.0 for value in kl)) >= CLEAR_KL


def has_clear_change(row: TokenRow) -> bool:
    """Whether the step moved a token's ratio away from 1 in the direction that its advantage asks for."""
    pairs = zip(row["columns"]["ratio"], row["columns"]["advantage"], strict=True)
    return any(
        ratio and advantage and (ratio - 1) * math.copysign(1, advantage) > CLEAR_CHANGE for ratio, advantage in pairs
    )


def own_curves(ctx: Context) -> Curves | None:
    """Those of the newest run with a score and a judge's score for some steps."""
    curves = (curves_of(ctx.db, run) for run in runs(ctx.db, ctx.project.id) if run.step >= MIN_CURVE_STEPS)
    return next((one for one in curves if len(one["steps"]) >= MIN_CURVE_STEPS), None)


def curves_of(db: Database, run: Run) -> Curves:
    series = metric_series(db, run.id, list(CURVES.values()), max_points=MAX_CURVE_POINTS)
    points = [
        {step: value for step, value, *_ in series[name] if value is not None and math.isfinite(value)}
        for name in CURVES.values()
    ]
    steps = sorted(set.intersection(*map(set, points)))
    score, gold, kl, clip_fraction = ([round(values[step], DECIMALS) for step in steps] for values in points)
    return {"run": run.id, "steps": steps, "score": score, "gold": gold, "kl": kl, "clip_fraction": clip_fraction}


def own_differences(ctx: Context) -> list[float] | None:
    """Of the newest reward model. None for visitors who must not learn how many labels there are."""
    if not sees_comparisons(ctx):
        return None
    reports = (model.report.get("differences") or [] for model in list_reward_models(ctx.db, ctx.project.id))
    return next((differences for differences in reports if len(differences) >= MIN_LABELS), None)


def own_experiment(ctx: Context) -> ExperimentView | None:
    name = next((name for name, one in EXPERIMENTS.items() if ctx.project.name.startswith(one.project_name)), None)
    if name is None:
        return None
    run = next((run for run in runs(ctx.db, ctx.project.id) if run.name == EXPERIMENTS[name].title), None)
    if run is None:
        job = last_training(ctx.db, ctx.project.id)
        is_cancelled = job is not None and job.status is JobStatus.CANCELLED
        problem = "The training of its reward model was cancelled." if is_cancelled else job.error if job else ""
        return {"name": name, "problem": problem, "step": 0, "steps": 0, "curves": None}
    has_ended = run.status in (RunStatus.STOPPED, RunStatus.FAILED, RunStatus.INTERRUPTED)
    curves = curves_of(ctx.db, run)
    return {
        "name": name, "problem": f"Its run is {run.status}." if has_ended else "", "step": run.step, "steps": run.total_steps,
        "curves": curves if len(curves["steps"]) > 1 else None,
    }  # fmt: skip

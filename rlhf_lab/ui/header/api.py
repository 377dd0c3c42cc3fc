"""The strip above every screen: engine, device, memory, labels, reward accuracy, the running job and its remaining time."""

import contextlib
import time

from typing_extensions import TypedDict

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import EngineState, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.program_names import page_command
from rlhf_lab.common.records import EngineStatus, Job, Role
from rlhf_lab.common.storage import is_on_storage
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue, retraining, run_control
from rlhf_lab.jobs.engine_work import JOB_LABELS
from rlhf_lab.jobs.mirror_loop import MIRROR_VARIABLE, MirrorView, mirror_view
from rlhf_lab.jobs.startup_project import StartupPhase
from rlhf_lab.store.annotators import MAX_PERSON_NAME_CHARS
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_model_list import accuracy_of, list_reward_models
from rlhf_lab.store.runs import get_run, runs
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header.guide import HeaderGuide, guide_view, progress_of
from rlhf_lab.ui.run_views.run_summary import select_run
from rlhf_lab.ui.scripts import PLOTLY_ADDRESS
from rlhf_lab.ui.shared.api import Api, Payload
from rlhf_lab.ui.shared.charts import CURVES, PLOTLY_CONFIG, layout
from rlhf_lab.ui.shared.glossary import definitions
from rlhf_lab.ui.shared.instant_view import rounded_bound
from rlhf_lab.ui.shared.presence import PRESENCE
from rlhf_lab.ui.shared.widgets import widget

api = Api("header")
CACHED_S = 1.0
ENGINE_LABELS = {
    EngineState.ABSENT: ("engine idle", "", "It starts automatically when there is work to do."),
    EngineState.STARTING: ("engine starts", "busy", "It is loading the model. This takes seconds, or minutes on a busy machine."),
    EngineState.ALIVE: ("engine ready", "good", "The process that trains and samples. It continues when this page is closed."),
    EngineState.DEAD: ("engine lost", "bad", "It does not answer. Work continues from the last checkpoint after a restart."),
}  # fmt: skip


class StatusQuery(Payload):
    """guide: whether the page shows it. tab: the open one, as in the page's address."""

    guide: bool = True
    tab: str = ""


class HeaderReward(TypedDict):
    """The reward model whose accuracy is shown: the one that a new run learns from. low, high: bounds of its 95 % interval."""

    id: int
    labels: int
    accuracy: float | None
    low: float | None
    high: float | None
    simulated: bool


class HeaderEngine(TypedDict):
    """style: of the dot before the label."""

    label: str
    style: str
    description: str
    device: str
    memory_mib: float | None
    is_working: bool


class HeaderJob(TypedDict):
    """The running job. run, step: of a run of PPO of the open project. progress: from 0 to 1."""

    label: str
    run: int | None
    step: int | None
    progress: float
    show_percent: bool
    eta_s: float | None


class HeaderRun(TypedDict):
    """A run of the open project that has begun. is_training: it trains, or is paused. is_live: while people label."""

    id: int
    is_training: bool
    is_live: bool


class HeaderDemo(TypedDict):
    reset_at: float
    is_reset_due: bool


class HeaderStartup(TypedDict):
    """The model that the variables of a Space name, until it has been downloaded."""

    phase: StartupPhase
    model: str
    message: str
    downloaded_bytes: int | None
    total_bytes: int | None
    eta_s: float | None


class HeaderState(TypedDict):
    """What all visitors see. Of two counts of a project the one with the greater `counted_at` is newer."""

    project: str
    model: str
    project_created_at: float
    counted_at: int
    labels: int
    simulated: int
    reward: HeaderReward | None
    engine: HeaderEngine
    job: HeaderJob | None
    run: HeaderRun | None
    demo: HeaderDemo | None
    startup: HeaderStartup | None
    mirror: MirrorView | None
    warning: str


class HeaderStatus(HeaderState):
    """may_label: whether this visitor may. can_invite: whether they are the operator of a lab that others can join."""

    is_operator: bool
    may_label: bool
    can_invite: bool
    people_here: int
    guide: HeaderGuide | None


def build() -> None:
    charts = {
        "curves": [curve._asdict() for curve in CURVES],
        "layout": layout(),
        "config": PLOTLY_CONFIG,
        "plotly": PLOTLY_ADDRESS,
    }
    data = {"definitions": definitions(), "charts": charts, "page_command": page_command()}
    widget("header", "header/view.js", data=data, label="State of the lab")


@api.read(StatusQuery)
def status(ctx: Context, query: StatusQuery) -> HeaderStatus:
    name = ctx.annotator_name(query.annotator)[:MAX_PERSON_NAME_CHARS]
    if name and name.isprintable() and ctx.is_labeller():
        PRESENCE.touch(name)
    is_operator, may_label = ctx.is_operator(), ctx.is_labeller()
    shared, guide = ctx.cache.get("header", CACHED_S, lambda: refresh(ctx)), None
    if query.guide:
        progress = ctx.cache.get("guide", CACHED_S, lambda: progress_of(ctx))
        role = Role.OPERATOR if is_operator else Role.LABELLER if may_label else Role.VIEWER
        guide = guide_view(progress, role, name, is_demo=ctx.demo is not None, tab=query.tab)
    can_invite = is_operator and ctx.access.is_multi_user
    return {
        **shared, "is_operator": is_operator, "may_label": may_label, "can_invite": can_invite,
        "people_here": PRESENCE.count(), "guide": guide,
    }  # fmt: skip


def refresh(ctx: Context) -> HeaderState:
    """The state, and a note for the engine that a page is open."""
    engine_process.touch_ui(ctx.db)
    return state(ctx)


def state(ctx: Context) -> HeaderState:
    project, counted_at = ctx.project, time.time_ns() // 1000
    label_counts = retraining.get_label_progress(ctx.db, project.id)
    row = run_control.best_supported(list_reward_models(ctx.db, project.id))
    accuracy = accuracy_of(row.report if row else {})
    running = queue.jobs(ctx.db, statuses=[JobStatus.RUNNING])
    job = min(running, key=lambda job: job.id) if running else None
    engine = engine_process.engine_state(ctx.db)
    return {
        "project": project.name,
        "model": "embedded model" if project.model == EMBEDDED_MODEL else project.model.rstrip("/").rsplit("/", 1)[-1],
        "project_created_at": project.created_at,
        "counted_at": counted_at,
        "labels": label_counts.human,
        "simulated": label_counts.simulated,
        "reward": {
            "id": row.id,
            "labels": row.label_count,
            "accuracy": rounded_bound(accuracy.value),
            "low": rounded_bound(accuracy.low),
            "high": rounded_bound(accuracy.high),
            "simulated": row.source is Source.SIMULATED,
        } if row else None,
        "engine": _engine_view(engine, job is not None),
        "job": _job_view(ctx, job) if job else None,
        "run": _run_view(ctx),
        "demo": {"reset_at": ctx.demo.reset_at, "is_reset_due": ctx.demo.is_reset_due()} if ctx.demo else None,
        "startup": _startup_view(ctx),
        "mirror": mirror_view(ctx.home, ctx.mirror.repository) if ctx.mirror and ctx.mirror.repository else None,
        "warning": engine_process.start_failure(engine, ctx.home) or ctx.settings_problem or _warning(ctx),
    }  # fmt: skip


def _engine_view(status: EngineStatus, has_running_job: bool) -> HeaderEngine:
    text, dot_style, description = ENGINE_LABELS[status.state]
    if status.failed_starts > 1 and status.state is EngineState.DEAD:
        text = "engine does not start"
    is_working = has_running_job and status.state is EngineState.ALIVE
    if is_working:
        text, dot_style = "engine works", "busy"
    row = status.row if status.state is EngineState.ALIVE else None
    return {
        "label": text, "style": dot_style or "rest", "description": description, "device": row.device if row else "",
        "memory_mib": row.memory_mib if row else None, "is_working": is_working,
    }  # fmt: skip


def _job_view(ctx: Context, job: Job) -> HeaderJob:
    text, is_run, eta_s = JOB_LABELS[job.kind], job.kind is JobKind.TRAIN_POLICY, job.eta_s
    run_id = step = None
    if is_run:
        run = get_run(ctx.db, int(job.payload["run_id"]))
        run_id, step = run.id, run.step
        status_text = "" if run.status is RunStatus.RUNNING else f" {run.status.value}"
        eta_s = None if run.status is RunStatus.PAUSED else eta_s  # unknown while it is paused
        text = f"run {run.id}{status_text}, step {run.step} of {run.total_steps}"
    if job.project_id not in (None, ctx.project.id):
        run_id = step = None
        with contextlib.suppress(LabError):  # deleted in between
            text += f" for {get_project(ctx.db, job.project_id).name}"
    return {
        "label": text, "run": run_id, "step": step, "progress": job.progress, "eta_s": eta_s,
        "show_percent": not is_run and job.progress > 0,  # some kinds of job do not report any
    }  # fmt: skip


def _run_view(ctx: Context) -> HeaderRun | None:
    run = select_run(runs(ctx.db, ctx.project.id), None)
    is_training = run is not None and run.status in (RunStatus.RUNNING, RunStatus.PAUSED)
    if run is None or not (is_training or run.step):
        return None
    return {"id": run.id, "is_training": is_training, "is_live": bool(run.config.get("live"))}


def _startup_view(ctx: Context) -> HeaderStartup | None:
    startup = ctx.startup.state() if ctx.startup is not None else None
    if startup is None or startup.phase is StartupPhase.READY:
        return None
    progress = ctx.downloads.progress() if startup.phase is StartupPhase.DOWNLOADING else None
    return {
        "phase": startup.phase, "model": startup.model.rstrip("/").rsplit("/", 1)[-1], "message": startup.message,
        "downloaded_bytes": progress.downloaded_bytes if progress else None,
        "total_bytes": progress.total_bytes if progress else None, "eta_s": progress.eta_s if progress else None,
    }  # fmt: skip


def _warning(ctx: Context) -> str:
    if (
        not ctx.on_space
        or is_on_storage(ctx.home)
        or (ctx.mirror is not None and ctx.mirror.is_set_by_variable)
        or ctx.demo is not None
    ):  # visitors of a demo cannot export
        return ""
    return (
        "This Space keeps labels and models on a disk that is wiped when it restarts. Export what you want to keep "
        f"under Runs & data, or let the lab save itself to the Hub: set {MIRROR_VARIABLE} (docs/SPACES.md)."
    )

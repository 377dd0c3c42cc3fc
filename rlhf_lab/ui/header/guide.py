"""The guide in the header: a visitor's steps, the present one, what is missing there, and the next action.

`progress_of` reads the project, once a second for all visitors; `guide_view` decides from that alone. The numbers are those that
the screens show.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import TypedDict

from rlhf_lab.common.enums import ACTIVE_RUN_STATUSES, Choice, RunStatus, Source
from rlhf_lab.common.records import Role, Run
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import retraining, run_control
from rlhf_lab.jobs.retraining import LabelProgress
from rlhf_lab.store.blind_tests import ENDED_KEY, answers, blind_tests
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.runs import runs
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.compare.blind_results import BlindPair, is_check, pair_texts
from rlhf_lab.ui.compare.blind_test.api import remaining_positions, test_jobs
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.generation_requests import column_view


class Step(StrEnum):
    """The steps by the names of their tabs."""

    LABEL = "Label"
    REWARD_MODEL = "Reward model"
    TRAIN = "Train"
    COMPARE = "Compare"


STEPS = {
    Role.OPERATOR: tuple(Step),
    Role.LABELLER: (Step.LABEL, Step.COMPARE),
    Role.VIEWER: (Step.LABEL, Step.TRAIN),
}


class HeaderGuide(TypedDict):
    """steps: the visitor's, by the names of the tabs; done: those that have been reached. note: what is missing at the present
    one, or how far it is. button: opens its tab. hint: what to do there, shown in place of the button while the tab is open."""

    steps: tuple[Step, ...]
    done: list[Step]
    present: Step
    note: str
    button: str
    hint: str


@dataclass(frozen=True)
class NextAction:
    """The last four fields of HeaderGuide."""

    step: Step
    note: str
    button: str
    hint: str


@dataclass(frozen=True)
class BlindTestProgress:
    """The newest blind test. pairs: None until its texts are written. has_ended: the operator has ended it, or in a lab without a
    login its result has been shown. is_check: it is of a reward model, not of a run."""

    created_at: float
    is_check: bool
    pairs: Mapping[int, BlindPair] | None
    answers: Mapping[str, Mapping[int, Choice]]
    has_ended: bool

    def remaining(self, annotator: str) -> int:
        """How many pairs the person still has to judge."""
        if self.pairs is None or self.has_ended or not annotator:
            return 0
        return len(remaining_positions(dict(self.pairs), dict(self.answers.get(annotator, {}))))


@dataclass(frozen=True)
class ProjectProgress:
    """What the guide depends on. label_note: `label_note`. training: what a reward model does that is trained, or will be without
    anybody's help; "" for none. is_guessing: no reward model ranks better than chance for certain. runs: newest first. test: None
    if there is none, or none since the newest run. result_waits: for the operator to end the test."""

    labels: LabelProgress
    label_note: str
    has_preferences: bool
    has_model: bool
    is_guessing: bool
    training: str
    runs: tuple[Run, ...]
    test: BlindTestProgress | None
    result_waits: bool


def progress_of(ctx: Context) -> ProjectProgress:
    db, project = ctx.db, ctx.project
    labels, counts = retraining.get_label_progress(db, project.id), vote_counts(db, project.id)[Source.HUMAN]
    project_runs = tuple(runs(db, project.id))
    trained = [run for run in project_runs if run.step > 0]
    test = _newest_test(ctx, with_checks=not trained)
    if test and trained and test.created_at < trained[0].created_at:
        test = None
    return ProjectProgress(
        labels=labels,
        label_note=label_note(db, project.id, labels),
        has_preferences=counts[Choice.FIRST] + counts[Choice.SECOND] > 1,
        has_model=bool(list_reward_models(db, project.id)),
        is_guessing=is_guessing(db, project.id),
        training=(retraining.open_training(db, project.id) or ("", ""))[1],
        runs=project_runs,
        test=test,
        result_waits=test is not None and ctx.access.is_multi_user and not test.has_ended,
    )


def is_guessing(db: Database, project_id: int) -> bool:
    """Whether there are reward models, but none that ranks better than chance for certain."""
    models = list_reward_models(db, project_id)
    return bool(models) and all(run_control.accuracy_warning(model.report) for model in models)


def label_note(db: Database, project_id: int, labels: LabelProgress) -> str:
    """How many labels are missing for the next reward model from people's labels; "" for none."""
    if labels.remaining <= 0:
        return ""
    which = "a better" if is_guessing(db, project_id) else "the next" if labels.newest_model_id else "a"
    return f"{pluralize(labels.remaining, 'more label')} for {which} reward model"


def _newest_test(ctx: Context, *, with_checks: bool) -> BlindTestProgress | None:
    """The newest blind test; None if there is none, or if its texts could not be written."""
    for test in blind_tests(ctx.db, ctx.project.id):
        try:
            jobs = test_jobs(ctx, test)
        except StoreError:  # deleted in between
            return None
        if with_checks or not is_check([job.payload for job in jobs]):
            break
    else:
        return None
    if any("error" in column_view(job) for job in jobs):
        return None
    pairs, given = pair_texts(*jobs), answers(ctx.db, test.id)
    is_shown = pairs is not None and any(not remaining_positions(pairs, choices) for choices in given.values())
    has_ended = bool(jobs[0].payload.get(ENDED_KEY)) or (is_shown and not ctx.access.is_multi_user)
    return BlindTestProgress(test.created_at, is_check([job.payload for job in jobs]), pairs, given, has_ended)


def guide_view(
    progress: ProjectProgress, role: Role, annotator: str, *, is_demo: bool = False, tab: str = ""
) -> HeaderGuide:
    """annotator: "" for a viewer. is_demo: labellers train and start runs, too. tab: the open one; under Train a labeller watches
    the run, if there is one."""
    has_all_steps = role is Role.OPERATOR or (is_demo and role is Role.LABELLER)
    remaining = progress.test.remaining(annotator) if progress.test else 0
    watching = _watching(progress.runs, is_operator=role is Role.OPERATOR)
    if has_all_steps:
        action = watching or _training_action(progress, remaining)
        if action is None and role is Role.OPERATOR:
            action = _comparison_action(progress, remaining)
        action = action or (_judging(remaining) if remaining else _labelling(progress))
    elif role is Role.LABELLER:
        action = (watching if tab == "train" else None) or (_judging(remaining) if remaining else _labelling(progress))
    else:
        action = watching or NextAction(Step.LABEL, "to label, join the lab", "Join", "Use the button below.")
    own_steps = STEPS[Role.OPERATOR if has_all_steps else role]
    steps = tuple(step for step in Step if step in own_steps or step is action.step)
    reached = {
        Step.LABEL: progress.has_model,
        Step.REWARD_MODEL: progress.has_model,
        Step.TRAIN: any(run.step > 0 for run in progress.runs),
        Step.COMPARE: bool(progress.test and progress.test.pairs and not progress.test.is_check and not remaining),
    }
    return {
        "steps": steps,
        "done": [step for step in steps if reached[step] and step is not action.step],
        "present": action.step,
        "note": action.note,
        "button": action.button,
        "hint": action.hint,
    }


def _labelling(progress: ProjectProgress) -> NextAction:
    note = progress.label_note or pluralize(progress.labels.human, "label")
    return NextAction(Step.LABEL, note, "Label pairs", "Choose the better text below.")


def _judging(remaining: int) -> NextAction:
    note = f"{pluralize(remaining, 'more pair')} to judge"
    return NextAction(Step.COMPARE, note, "Judge them", "Choose the better text in the blind test below.")


def _watching(project_runs: tuple[Run, ...], *, is_operator: bool) -> NextAction | None:
    """The newest run that trains, is paused or waits, and what it needs."""
    active = [run for run in project_runs if run.status in ACTIVE_RUN_STATUSES]
    if not active:
        return None
    run = next((run for run in active if run.status is RunStatus.RUNNING), active[0])
    status = "" if run.status is RunStatus.RUNNING else f" is {run.status},"
    note = f"run {run.id}{status} step {run.step} of {run.total_steps}"
    hints = {
        RunStatus.RUNNING: "Watch the curves, and how the samples change.",
        RunStatus.QUEUED: "The line above its curves says what it waits for.",
        RunStatus.PAUSED: "Press Resume to continue it." if is_operator else "It waits until the operator resumes it.",
    }
    return NextAction(Step.TRAIN, note, "Watch the run", hints[run.status])


def _training_action(progress: ProjectProgress, remaining: int) -> NextAction | None:
    """What leads to a run; None if there is one to compare. remaining: pairs of a check of the reward model."""
    has_run = any(run.step > 0 for run in progress.runs)
    if (not progress.has_model or progress.is_guessing) and not has_run:
        return _reward_model_action(progress)
    if progress.runs and progress.runs[0].status is RunStatus.FAILED:
        note = f"run {progress.runs[0].id} failed"
        return NextAction(Step.TRAIN, note, "Show the run", "The line above its curves says why it failed.")
    if has_run:
        return None
    if remaining:
        return _judging(remaining)
    hint = (
        "Press Start. Before that, a one-minute check under Reward model shows whether people prefer what it prefers."
    )
    return NextAction(Step.TRAIN, "no run yet", "Start a run", hint if progress.test is None else "Press Start.")


def _reward_model_action(progress: ProjectProgress) -> NextAction:
    """While there is no reward model to rely on."""
    if progress.training:
        hint = "It appears below when it is ready. You do not need to do anything."
        return NextAction(Step.REWARD_MODEL, f"a reward model {progress.training}", "Show it", hint)
    if progress.labels.remaining > 0:
        return _labelling(progress)
    if not progress.has_preferences:
        return NextAction(Step.LABEL, "no label prefers a text yet", "Label pairs", "Choose the better text below.")
    return NextAction(
        Step.REWARD_MODEL,
        "the last training stopped before it was done",
        "Train again",
        "Press Train reward model. Your labels are kept.",
    )


def _comparison_action(progress: ProjectProgress, remaining: int) -> NextAction:
    test = progress.test
    if test is None:
        newest = next(run.id for run in progress.runs if run.step > 0)
        return NextAction(Step.COMPARE, f"run {newest} has no blind test yet", "Compare", "Press Start a blind test.")
    if test.pairs is None:
        return NextAction(Step.COMPARE, "the texts are being written", "Show it", "Wait for the texts below.")
    if remaining:
        return _judging(remaining)
    if progress.result_waits:
        return NextAction(
            Step.COMPARE,
            "you have judged every pair",
            "See the result",
            "Press End the test when the others have judged.",
        )
    return _labelling(progress)

"""The check before PPO: do people prefer what a reward model prefers? A blind test of the best of four texts by the reward model
against the base's, which takes a person about a minute."""

from typing_extensions import TypedDict

from rlhf_lab.common.enums import JobKind
from rlhf_lab.jobs.time_estimate import Estimate, estimate_completions, project_speed
from rlhf_lab.store.blind_tests import job_payloads_by_test
from rlhf_lab.store.projects import prompts
from rlhf_lab.ui.compare.blind_results import is_check, size_note
from rlhf_lab.ui.compare.blind_test.api import StartTestPayload, start_test, state
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.run_views.stage_estimates import busy_note
from rlhf_lab.ui.shared.generation_requests import MAX_TOKENS, texts_per_sample

MODELS = ("base/best/4", "base")
#: Numbers of pairs; the first whose texts take at most MAX_SECONDS, else the last. 12 can show a preference of 87 %, 8 only one
#: of 98 % (`detectable_share`).
SIZES, MAX_SECONDS = (12, 10, 8), 75.0


class CheckView(TypedDict):
    """The check of a reward model. note: what `pairs` pairs can show, and how long the texts take. test: the newest check, None
    without one; text: how far it is, or its result. is_open: the engine writes its texts. can_judge: pairs wait for this
    person."""

    pairs: int
    note: str
    test: int | None
    text: str
    is_open: bool
    can_judge: bool


def check_view(ctx: Context, reward_model_id: int, annotator: str) -> CheckView:
    pairs, estimate = next_size(ctx)
    duration = f" Writing the texts takes {estimate.text()}.{busy_note(ctx, JobKind.COMPLETE)}" if estimate else ""
    view: CheckView = {
        "pairs": pairs, "test": newest_check(ctx, reward_model_id), "text": "", "is_open": False, "can_judge": False,
        "note": size_note(pairs) + duration,
    }  # fmt: skip
    if view["test"] is None:
        return view
    test = state(ctx, view["test"], annotator)
    if test.get("is_waiting"):
        return {**view, "is_open": True, "text": "The engine is writing the texts …"}
    if failure := test.get("failure"):
        return {**view, "text": f"The texts could not be written: {failure} Check again."}
    if test.get("pair"):
        return {
            **view,
            "can_judge": True,
            "text": f"You have judged {test['judged_count']} of {test['pair_count']} pairs.",
        }
    if "sentences" not in test:
        return {**view, "text": test["closed_text"]}
    return {**view, "text": " ".join(dict.fromkeys((test["sentences"][0], test["sentences"][-1])))}


def start_check(ctx: Context, reward_model_id: int, pairs: int | None = None) -> None:
    """Request the texts. pairs: as the page announced them; None for `next_size`. Raises LabError."""
    project = ctx.project
    payload = StartTestPayload(
        models=list(MODELS), pairs=pairs or next_size(ctx)[0], seed=0,
        temperature=project.temperature, max_new_tokens=_length(ctx), reward_model_id=reward_model_id,
    )  # fmt: skip
    start_test(ctx, payload)


def next_size(ctx: Context) -> tuple[int, Estimate | None]:
    """The number of pairs of the next check, by the measured speed of the model and the number of held-out prompts, and how long
    its texts take, if that is known."""
    speed, held_out = project_speed(ctx.home, ctx.db, ctx.project), len(prompts(ctx.db, ctx.project.id, "eval"))
    for size in SIZES:
        pairs = max(1, min(size, held_out))
        counts = [pairs * texts_per_sample(model) for model in MODELS]
        estimate = estimate_completions(speed, counts, _length(ctx), scored=True)
        if estimate is None or estimate.high <= MAX_SECONDS:
            break
    return pairs, estimate


def newest_check(ctx: Context, reward_model_id: int) -> int | None:
    """The id of the newest check by this reward model."""
    tests = job_payloads_by_test(ctx.db, ctx.project.id).items()
    return next((i for i, jobs in tests if is_check(jobs) and jobs[0]["reward_model_id"] == reward_model_id), None)


def _length(ctx: Context) -> int:
    return min(ctx.project.max_new_tokens, MAX_TOKENS)

"""Blind tests on the screen "Compare": people judge which of two texts is better; the models' names are shown at the end.

PPO optimises the reward model's score and may exploit its errors; a blind test by people measures what it really achieved. These
answers are not labels: nothing is trained on them.

Nobody judges a pair whose models somebody may have seen. In a lab of several people, where anybody can come back under another
name, the result is therefore shown when the operator has ended the test, and nobody can judge an ended test.
"""

import random
from typing import Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import BlindTest, Job, Role
from rlhf_lab.common.seeding import secret_seed
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import LabError, StaleVoteError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.run_control import check_name
from rlhf_lab.store.blind_tests import (
    ENDED_KEY,
    NAME_KEY,
    add_answers,
    add_test,
    answer_counts,
    answers,
    blind_tests,
    delete_test,
    end_test,
    job_payloads_by_test,
    rename_test,
)
from rlhf_lab.store.projects import prompts
from rlhf_lab.ui.compare.blind_results import (
    BlindPair,
    PairToJudge,
    TestRow,
    is_check,
    left_out_note,
    meaning_of_answers,
    model_name,
    pair_texts,
    test_outcome,
)
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import ANSWER
from rlhf_lab.ui.shared.api import Api, FieldError, Payload
from rlhf_lab.ui.shared.generation_requests import (
    MAX_TEXTS_PER_COLUMN,
    SamplingPayload,
    column_view,
    submit_completions,
)

api = Api("blind_test")
VIEWER_TEXT = "To judge, log in with the join code. The result is shown to those who judged, when the test has ended."
WAITING_TEXT = (
    "Your answers are stored. Others may still judge the same pairs, so the result is shown when the operator ends "
    "the test."
)
ALREADY_JUDGED = "That pair has already been judged; here is the next one."
CHOICE_BY_SIDE = {"left": Choice.FIRST, "right": Choice.SECOND, "tie": Choice.TIE}


class TestQuery(Payload):
    """test_id: None for the newest test."""

    test_id: int | None = None


class StartTestPayload(SamplingPayload):
    """The first two of `models` are compared. Each test draws its own seed in place of `seed`: somebody may have seen its texts
    with their models' names."""

    pairs: int = Field(title="pairs", ge=1, le=MAX_TEXTS_PER_COLUMN)


class TestAnswerPayload(Payload):
    """choice: the better text, or "stop" to end the test for this person; token: of the judged pair."""

    test_id: int
    token: str = ""
    choice: Literal["left", "right", "tie", "stop"]


class EditTestPayload(Payload):
    """name: the new one, for rename."""

    test_id: int
    action: Literal["rename", "end", "delete"]
    name: str = ""


class PairOfTest(PairToJudge):
    position: int


class OthersProgress(TypedDict):
    """How many other people have judged all pairs (finished), and how many a part of them (in_progress)."""

    finished: int
    in_progress: int


class TestState(TypedDict):
    """What the page shows a person of a test. Without a test there is only `id`; until its texts are written, or if they could
    not be, `is_waiting` and `failure` instead of what follows them.

    result_waits: the result is shown when the operator ends the test. closed_text: why neither a pair nor a result is shown.
    """

    id: int | None
    annotator: NotRequired[str]
    model_names: NotRequired[list[str]]
    reward_model_id: NotRequired[int | None]
    deletion_note: NotRequired[str]
    is_waiting: NotRequired[bool]
    failure: NotRequired[str | None]
    pair_count: NotRequired[int]
    judged_count: NotRequired[int]
    left_out_note: NotRequired[str]
    result_waits: NotRequired[bool]
    others_progress: NotRequired[OthersProgress]
    pair: NotRequired[PairOfTest | None]
    closed_text: NotRequired[str]
    figure: NotRequired[tuple[str, str] | None]
    sentences: NotRequired[list[str]]
    rows: NotRequired[list[TestRow]]


class NewTestState(TypedDict):
    """The state after an action. tests: `list_tests`, where it has changed. message: what was changed."""

    state: TestState
    tests: NotRequired[list[tuple[int, str]]]
    message: NotRequired[str]


@api.read(TestQuery)
def get_state(ctx: Context, query: TestQuery) -> TestState:
    return state(ctx, query.test_id, ctx.annotator_or_empty(query.annotator))


@api.action(StartTestPayload, role=Role.OPERATOR)
def start(ctx: Context, payload: StartTestPayload) -> NewTestState:
    annotator = ctx.require_annotator(payload.annotator)
    test = start_test(ctx, payload)
    return {"state": state(ctx, test.id, annotator), "tests": list_tests(ctx)}


@api.action(EditTestPayload, role=Role.OPERATOR)
def edit(ctx: Context, payload: EditTestPayload) -> NewTestState:
    return edit_test(ctx, payload, ctx.require_annotator(payload.annotator))


@api.action(TestAnswerPayload, limit=ANSWER)
def answer(ctx: Context, payload: TestAnswerPayload) -> NewTestState:
    return {"state": record_answer(ctx, payload, ctx.require_annotator(payload.annotator))}


def start_test(ctx: Context, payload: StartTestPayload) -> BlindTest:
    """Request texts of both models for prompts of the evaluation split. Raises LabError."""
    models = payload.models[:2]
    if len(models) < 2 or models[0] == models[1]:
        raise LabError("A blind test needs two different models: choose them in the first and the second column.")
    eval_prompts, count = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")], payload.pairs
    if count > len(eval_prompts):
        raise FieldError(
            "pairs",
            f"pairs = {count}: this project has {len(eval_prompts)} held-out prompts. Choose a number up to that.",
        )
    payload = payload.model_copy(update={"seed": secret_seed()})
    random.Random(payload.seed).shuffle(eval_prompts)
    chosen_prompts = least_recent(eval_prompts, ctx)[:count]
    jobs = submit_completions(ctx, payload, models, chosen_prompts, skip_too_long=True)
    return add_test(ctx.db, ctx.project.id, jobs[0].id, jobs[1].id)


def least_recent(texts: list[str], ctx: Context) -> list[str]:
    """The prompts that no stored test of the project has used, then the others, those of the newest test last. Within each
    group they stay in their order."""
    tests = list(job_payloads_by_test(ctx.db, ctx.project.id).values())
    age = {prompt: i for i in reversed(range(len(tests))) for prompt in tests[i][0]["prompts"]}
    return sorted(texts, key=lambda text: age.get(text, len(tests)), reverse=True)


def record_answer(ctx: Context, payload: TestAnswerPayload, annotator: str) -> TestState:
    """Store an answer and return the new `state`. Raises StaleVoteError for a pair that this person cannot judge."""
    test = find_test(ctx, payload.test_id)
    jobs = test_jobs(ctx, test) if test else None
    pairs = pair_texts(*jobs) if jobs else None
    if test is None or jobs is None or pairs is None:
        raise StaleVoteError("This blind test was deleted, or its texts are not written yet. Nothing was recorded.")
    if jobs[0].payload.get(ENDED_KEY):
        raise StaleVoteError(
            "The operator has ended this blind test. Nothing was recorded; reload the page to see its result."
        )
    remaining = remaining_positions(pairs, answers(ctx.db, test.id).get(annotator, {}))
    if payload.choice == "stop":
        add_answers(ctx.db, test.id, annotator, dict.fromkeys(remaining, Choice.SKIP))
        return state(ctx, test.id, annotator)
    tokens = {_token(ctx, test.id, position, annotator): position for position in remaining}
    if (position := tokens.get(payload.token)) is None:
        raise StaleVoteError(ALREADY_JUDGED)
    choice = CHOICE_BY_SIDE[payload.choice]
    if choice is not Choice.TIE and not is_first_on_left(ctx, test.id, position, annotator):
        choice = Choice.SECOND if choice is Choice.FIRST else Choice.FIRST
    if not add_answers(ctx.db, test.id, annotator, {position: choice}):  # another request was faster
        raise StaleVoteError(ALREADY_JUDGED)
    return state(ctx, test.id, annotator)


def list_tests(ctx: Context) -> list[tuple[int, str]]:
    """(id, name) of the project's tests, newest first. A test without a name is named after its models."""
    return [
        (test_id, payloads[0].get(NAME_KEY) or " against ".join(map(model_name, payloads)))
        for test_id, payloads in job_payloads_by_test(ctx.db, ctx.project.id).items()
    ]


def edit_test(ctx: Context, payload: EditTestPayload, annotator: str) -> NewTestState:
    """Rename, end or delete a test. Raises LabError for an invalid name, StoreError for a deleted test."""
    test = find_test(ctx, payload.test_id)
    if test is None:
        raise StoreError("This blind test was deleted. Nothing was changed.")
    if payload.action == "rename":
        name = check_name(payload.name)
        rename_test(ctx.db, test.id, name)
        message = f'Test {test.id} is called "{name}" now.'
    elif payload.action == "end":
        end_test(ctx.db, test.id)
        message = f"Test {test.id} has ended. Its result is shown now."
    else:
        counts = delete_test(ctx.db, test.id)
        message = f"Test {test.id} is deleted, {deletion_summary(counts)}."
    shown_id = None if payload.action == "delete" else test.id
    return {"state": state(ctx, shown_id, annotator), "tests": list_tests(ctx), "message": message}


def deletion_summary(counts: dict[str, int]) -> str:
    """What is deleted with a test: "with its texts and 14 answers of 2 people". counts: answers by annotator."""
    if not counts:
        return "with its texts (nobody had answered)"
    count, people = sum(counts.values()), len(counts)
    people_text = f"{people} people" if people > 1 else "one person"
    return f"with its texts and {pluralize(count, 'answer')} of {people_text}"


def state(ctx: Context, test_id: int | None, annotator: str) -> TestState:
    """What the page shows a person of a test: the next pair, without the models' names, or the outcome.

    test_id: None for the newest. annotator: "" for a viewer.
    """
    test = find_test(ctx, test_id)
    if test is None:
        return {"id": None}
    jobs = test_jobs(ctx, test)
    model_names, reward_model_id = [model_name(job.payload) for job in jobs], jobs[0].payload.get("reward_model_id")
    reply: TestState = {
        "id": test.id,
        "annotator": annotator,
        "model_names": model_names,
        "reward_model_id": reward_model_id,
        "deletion_note": deletion_summary(answer_counts(ctx.db, test.id)),
    }
    error = next((view["error"] for view in map(column_view, jobs) if "error" in view), None)
    pairs = pair_texts(*jobs)
    if error or pairs is None:
        return {**reply, "is_waiting": not error, "failure": error}
    answers_by_annotator = answers(ctx.db, test.id)
    has_ended = bool(jobs[0].payload.get(ENDED_KEY))
    remaining = [] if has_ended else remaining_positions(pairs, answers_by_annotator.get(annotator, {}))
    pair_count = len(remaining_positions(pairs, {}))
    result_waits = ctx.access.is_multi_user and not has_ended
    reply = {
        **reply,
        "pair_count": pair_count,
        "judged_count": pair_count - len(remaining),
        "left_out_note": left_out_note(jobs[0], pairs),
        "result_waits": result_waits,
        "others_progress": others_progress(pairs, answers_by_annotator, annotator),
        "pair": pair_view(ctx, test.id, remaining[0], pairs[remaining[0]], annotator)
        if annotator and remaining
        else None,
    }
    if not annotator:
        return {**reply, "closed_text": VIEWER_TEXT}
    if remaining:
        return reply
    if result_waits:
        return {**reply, "closed_text": WAITING_TEXT}
    outcome = test_outcome(pairs, answers_by_annotator, annotator, model_names, reward_model_id)
    if is_check([job.payload for job in jobs]):
        are_own = set(answers_by_annotator) == {annotator}
        outcome["sentences"].append(meaning_of_answers(pairs, answers_by_annotator.values(), are_own=are_own))
    return {**reply, **outcome}


def pair_view(ctx: Context, test_id: int, position: int, pair: BlindPair, annotator: str) -> PairOfTest:
    texts = (pair.first, pair.second)
    left, right = texts if is_first_on_left(ctx, test_id, position, annotator) else texts[::-1]
    turns = turns_of_prompt(pair.prompt, ctx.project.system_prompt)
    token = _token(ctx, test_id, position, annotator)
    return {"position": position, "token": token, "turns": turns, "left": left, "right": right}


def _token(ctx: Context, test_id: int, position: int, annotator: str) -> str:
    """Belongs to the sides on which the texts were shown: another version of the lab, or one with another key, refuses it."""
    return ctx.blind_token("blind test", test_id, position, annotator)


def is_first_on_left(ctx: Context, test_id: int, position: int, annotator: str) -> bool:
    """Whether the first model's text is on the left: random per person and pair."""
    return ctx.blind_side("blind test", test_id, position, annotator)


def remaining_positions(pairs: dict[int, BlindPair], own_answers: dict[int, Choice]) -> list[int]:
    """The pairs that a person still has to judge; pairs of identical texts are not judged."""
    return [position for position, pair in pairs.items() if position not in own_answers and not pair.has_equal_texts]


def others_progress(
    pairs: dict[int, BlindPair], answers_by_annotator: dict[str, dict[int, Choice]], annotator: str
) -> OthersProgress:
    has_remaining = [
        bool(remaining_positions(pairs, choices))
        for other_annotator, choices in answers_by_annotator.items()
        if other_annotator != annotator
    ]
    return {"finished": has_remaining.count(False), "in_progress": has_remaining.count(True)}


def find_test(ctx: Context, test_id: int | None) -> BlindTest | None:
    """The project's test with this id, None if there is none. test_id: None for the newest."""
    tests = blind_tests(ctx.db, ctx.project.id)
    return next((test for test in tests if test_id in (None, test.id)), None)


def test_jobs(ctx: Context, test: BlindTest) -> tuple[Job, Job]:
    return queue.get_job(ctx.db, test.first_job), queue.get_job(ctx.db, test.second_job)

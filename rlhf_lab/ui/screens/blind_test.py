"""Blind tests on the screen "Compare": people say which of two texts they like, and learn whose it was when all are judged.

It is the check that no reward model can be fooled at: PPO learns to please the reward model, not those who judge here. These
answers are no labels; nothing learns from them.
"""

import random
from typing import Any

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import BlindTest, Job
from rlhf_lab.common.text import pluralize, prompts_skipped_message
from rlhf_lab.errors import LabError, StaleVoteError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.run_control import check_name
from rlhf_lab.store.blind_tests import (
    NAME_KEY,
    add_answers,
    add_test,
    answer_counts,
    answers,
    blind_tests,
    delete_test,
    job_payloads_by_test,
    rename_test,
)
from rlhf_lab.store.projects import prompts
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.services.blind_results import BlindPair, test_outcome
from rlhf_lab.ui.services.generation_requests import (
    FieldError,
    column_view,
    parse_number,
    requested_models,
    submit_completions,
)
from rlhf_lab.ui.services.voting import coin_flip

CHOICE_BY_SIDE = {"left": Choice.FIRST, "right": Choice.SECOND, "tie": Choice.TIE}


def start_test(ctx: Context, payload: dict[str, Any]) -> BlindTest:
    """Ask both models for texts to prompts that nothing was trained on. said: models (the first two count), pairs, seed,
    temperature, tokens, reward. Raises LabError."""
    models = requested_models(payload)[:2]
    if len(models) < 2 or models[0] == models[1]:
        raise LabError("A blind test needs two different models: choose them in the first and the second column.")
    eval_prompts = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")]
    count = parse_number(payload, "pairs")
    if count > len(eval_prompts):
        raise FieldError(
            "pairs", f"pairs = {count}: this project keeps {len(eval_prompts)} prompts aside. Ask for as many or fewer."
        )
    chosen_prompts = random.Random(parse_number(payload, "seed")).sample(eval_prompts, count)
    jobs = submit_completions(ctx, payload, models, chosen_prompts, skip_too_long=True)
    return add_test(ctx.db, ctx.project.id, jobs[0].id, jobs[1].id)


def record_preference(ctx: Context, payload: dict[str, Any], annotator: str) -> dict[str, Any]:
    """Take an answer: {"test", "position", "prefer": left, right, tie, or stop for "no more of these"}; what is to be seen then.

    Raises StaleVoteError for a pair that is not to be judged, LabError for what cannot be read.
    """
    test = find_test(ctx, payload.get("test"))
    pairs = pair_texts(*test_jobs(ctx, test)) if test else None
    if test is None or pairs is None:
        raise StaleVoteError("This blind test is not there any more, or not written yet. Nothing was recorded.")
    remaining = remaining_positions(pairs, answers(ctx.db, test.id).get(annotator, {}))
    if payload.get("prefer") == "stop":
        add_answers(ctx.db, test.id, annotator, dict.fromkeys(remaining, Choice.SKIP))
        return state(ctx, test.id, annotator)
    try:
        position, choice = int(payload["position"]), CHOICE_BY_SIDE[str(payload["prefer"])]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LabError("The page sent no usable answer. Reload it and try again.") from None
    if position not in remaining:
        raise StaleVoteError("That pair is judged already; here is the next one.")
    if choice is not Choice.TIE and not is_first_on_left(test.id, position, annotator):
        choice = Choice.SECOND if choice is Choice.FIRST else Choice.FIRST
    add_answers(ctx.db, test.id, annotator, {position: choice})
    return state(ctx, test.id, annotator)


def list_tests(ctx: Context) -> list[list[Any]]:
    """The project's tests, newest first: [id, name]; the name is the models' until somebody gives another."""
    return [
        [test_id, payloads[0].get(NAME_KEY) or " against ".join(map(model_name, payloads))]
        for test_id, payloads in job_payloads_by_test(ctx.db, ctx.project.id).items()
    ]


def edit_test(ctx: Context, payload: dict[str, Any], annotator: str) -> dict[str, Any]:
    """Rename or delete a test: {"test", "do": rename or delete, "name"}; what is to be seen then, and "done": words.

    Raises LabError for a name that is none, StoreError for a test that is not there.
    """
    test = find_test(ctx, payload.get("test"))
    if test is None or payload.get("test") is None:
        raise StoreError("This blind test is not there any more. Nothing was changed.")
    if payload.get("do") == "rename":
        name = check_name(str(payload.get("name") or ""))
        rename_test(ctx.db, test.id, name)
        return {"test": state(ctx, test.id, annotator), "done": f'Test {test.id} is called "{name}" now.'}
    if payload.get("do") == "delete":
        counts = delete_test(ctx.db, test.id)
        return {"test": state(ctx, None, annotator), "done": f"Test {test.id} is deleted, {deletion_summary(counts)}."}
    raise LabError("The page asked for no change that there is. Reload it and try again.")


def deletion_summary(counts: dict[str, int]) -> str:
    """What goes with a test: "with its texts and 14 answers of 2 people"."""
    if not counts:
        return "with its texts (nobody had answered)"
    count, people = sum(counts.values()), len(counts)
    people_text = f"{people} people" if people > 1 else "one person"
    return f"with its texts and {pluralize(count, 'answer')} of {people_text}"


def state(ctx: Context, requested_id: Any, annotator: str) -> dict[str, Any]:
    """What this person sees of a test (None: the newest): the next pair without its makers' names, or how it came out.

    annotator: "" for who may not judge.
    """
    test = find_test(ctx, requested_id)
    if test is None:
        return {"id": None}
    jobs = test_jobs(ctx, test)
    views = [column_view(job, None) for job in jobs]
    names, reward_model_id = [model_name(job.payload) for job in jobs], jobs[0].payload.get("reward_model_id")
    reply: dict[str, Any] = {
        "id": test.id,
        "names": names,
        "reward": reward_model_id,
        "losing": deletion_summary(answer_counts(ctx.db, test.id)),
    }
    error = next((view["failed"] for view in views if "failed" in view), None)
    pairs = pair_texts(*jobs)
    if error or pairs is None:
        return reply | {"waiting": not error, "failed": error}
    answers_by_annotator = answers(ctx.db, test.id)
    own_answers = answers_by_annotator.get(annotator, {})
    remaining = remaining_positions(pairs, own_answers) if annotator else []
    identical_count = sum(pair.first == pair.second for pair in pairs.values())
    reply |= {
        "count": len(pairs) - identical_count,
        "alike": identical_count,
        "judged": len(pairs) - identical_count - len(remaining),
        "pair": None,
    }
    reply |= {
        "left_out": too_long_note(jobs[0], pairs),
        "others": others_progress(pairs, answers_by_annotator, annotator),
    }
    if remaining:
        return reply | {"pair": pair_view(test.id, remaining[0], pairs[remaining[0]], annotator)}
    if not annotator:
        return reply | {"closed": "To judge, enter with the join code. How it came out is told to those who judged."}
    return reply | test_outcome(pairs, answers_by_annotator, annotator, names, reward_model_id)


def pair_view(test_id: int, position: int, pair: BlindPair, annotator: str) -> dict[str, Any]:
    """A pair for somebody to judge: nothing in it tells whose text is whose."""
    texts = (pair.first, pair.second)
    left, right = texts if is_first_on_left(test_id, position, annotator) else texts[::-1]
    return {"position": position, "prompt": pair.prompt, "left": left, "right": right}


def is_first_on_left(test_id: int, position: int, annotator: str) -> bool:
    """Whether the first model's text stands on the left: random, the same after a reload, another for everybody."""
    return coin_flip(f"blind/{test_id}/{position}/{annotator}")


def remaining_positions(pairs: dict[int, BlindPair], own_answers: dict[int, Choice]) -> list[int]:
    """The places that one person has still to judge; where both wrote the same there is nothing to say."""
    return [position for position, pair in pairs.items() if position not in own_answers and pair.first != pair.second]


def others_progress(
    pairs: dict[int, BlindPair], answers_by_annotator: dict[str, dict[int, Choice]], annotator: str
) -> dict[str, int]:
    """How many other people have answered: done, who have no pair left to judge, and at_it, who have."""
    has_remaining = [
        bool(remaining_positions(pairs, their_answers))
        for other_annotator, their_answers in answers_by_annotator.items()
        if other_annotator != annotator
    ]
    return {"done": has_remaining.count(False), "at_it": has_remaining.count(True)}


def pair_texts(first: Job, second: Job) -> dict[int, BlindPair] | None:
    """What both wrote, side by side, by the place of the prompt among those asked; None until both have written."""
    first_texts, second_texts = texts_by_position(first), texts_by_position(second)
    if first_texts is None or second_texts is None:
        return None
    test_prompts = prompts_of_test(first)
    pairs = {}
    for position in sorted(first_texts.keys() & second_texts.keys()):
        (first_text, first_score), (second_text, second_score) = first_texts[position], second_texts[position]
        scores = None if first_score is None or second_score is None else (first_score, second_score)
        pairs[position] = BlindPair(test_prompts[position], first_text, second_text, scores)
    return pairs


def texts_by_position(job: Job) -> dict[int, tuple[str, float | None]] | None:
    """The text and score for each prompt that was not too long, by its place among those asked; None until they are written."""
    view, best_of = column_view(job, None), int(job.payload.get("best_of", 1))
    if "texts" not in view:
        return None
    skipped = {index // best_of for index in (job.result or {}).get("left_out", [])}
    positions = [index for index in range(len(prompts_of_test(job))) if index not in skipped]
    scores = view["scores"] or [None] * len(positions)
    return {index: (text, score) for index, text, score in zip(positions, view["texts"], scores, strict=True)}


def prompts_of_test(job: Job) -> list[str]:
    """The prompts of a test; best of n was asked each n times."""
    return list(job.payload["prompts"][:: int(job.payload.get("best_of", 1))])


def too_long_note(job: Job, pairs: dict[int, BlindPair]) -> str:
    """That prompts were too long for the model, and how many; "" where none was."""
    return prompts_skipped_message(len(prompts_of_test(job)) - len(pairs), int(job.payload.get("max_new_tokens", 0)))


def find_test(ctx: Context, requested_id: Any) -> BlindTest | None:
    """The project's test of that number; without a number, or where there is none such, its newest."""
    tests = blind_tests(ctx.db, ctx.project.id)
    return next(
        (test for test in tests if str(test.id) == str(requested_id)),
        tests[0] if tests and requested_id is None else None,
    )


def test_jobs(ctx: Context, test: BlindTest) -> tuple[Job, Job]:
    return queue.get_job(ctx.db, test.first_job), queue.get_job(ctx.db, test.second_job)


def model_name(payload: dict[str, Any]) -> str:
    """Who writes, by what was asked: "base model", "base, best of 4", "run 1, step 40"."""
    if n := payload.get("best_of"):
        return f"base, best of {n}"
    parts = str(payload["checkpoint"]).split("/")
    return (
        f"run {parts[1]}, {'latest step' if parts[2] == 'latest' else f'step {parts[2]}'}"
        if len(parts) == 3
        else "base model"
    )

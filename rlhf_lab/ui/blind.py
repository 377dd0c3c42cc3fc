"""Blind tests on the screen "Compare": people say which of two texts they like, and learn whose it was when all are judged.

It is the check that no reward model can be fooled at: PPO learns to please the reward model, not those who judge here. These
answers are no labels; nothing learns from them.
"""

import random
from typing import Any

from rlhf_lab.counted import counted, too_long
from rlhf_lab.errors import LabError, StaleVoteError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.control import check_name
from rlhf_lab.kinds import Choice
from rlhf_lab.records import BlindTest, Job
from rlhf_lab.store.blind import NAME, add_test, answers, asked, blind_tests, delete_test, give, given, rename_test
from rlhf_lab.store.projects import prompts
from rlhf_lab.ui.asking import FieldError, column, models_of, number, submit
from rlhf_lab.ui.ballot import coin
from rlhf_lab.ui.blind_outcome import Couple, outcome
from rlhf_lab.ui.context import Context

SIDES = {"left": Choice.FIRST, "right": Choice.SECOND, "tie": Choice.TIE}


def begin(ctx: Context, said: dict[str, Any]) -> BlindTest:
    """Ask both models for texts to prompts that nothing was trained on. said: models (the first two count), pairs, seed,
    temperature, tokens, reward. Raises LabError."""
    models = models_of(said)[:2]
    if len(models) < 2 or models[0] == models[1]:
        raise LabError("A blind test needs two different models: choose them in the first and the second column.")
    aside = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")]
    count = number(said, "pairs")
    if count > len(aside):
        raise FieldError(
            "pairs", f"pairs = {count}: this project keeps {len(aside)} prompts aside. Ask for as many or fewer."
        )
    chosen = random.Random(number(said, "seed")).sample(aside, count)
    jobs = submit(ctx, said, models, chosen, leave_out=True)
    return add_test(ctx.db, ctx.project.id, jobs[0].id, jobs[1].id)


def prefer(ctx: Context, said: dict[str, Any], annotator: str) -> dict[str, Any]:
    """Take an answer: {"test", "position", "prefer": left, right, tie, or stop for "no more of these"}; what is to be seen then.

    Raises StaleVoteError for a pair that is not to be judged, LabError for what cannot be read.
    """
    test = found(ctx, said.get("test"))
    couples = couples_of(*jobs_of(ctx, test)) if test else None
    if test is None or couples is None:
        raise StaleVoteError("This blind test is not there any more, or not written yet. Nothing was recorded.")
    left = to_judge(couples, answers(ctx.db, test.id).get(annotator, {}))
    if said.get("prefer") == "stop":
        give(ctx.db, test.id, annotator, dict.fromkeys(left, Choice.SKIP))
        return state(ctx, test.id, annotator)
    try:
        position, choice = int(said["position"]), SIDES[str(said["prefer"])]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise LabError("The page sent no usable answer. Reload it and try again.") from None
    if position not in left:
        raise StaleVoteError("That pair is judged already; here is the next one.")
    if choice is not Choice.TIE and not first_on_left(test.id, position, annotator):
        choice = Choice.SECOND if choice is Choice.FIRST else Choice.FIRST
    give(ctx.db, test.id, annotator, {position: choice})
    return state(ctx, test.id, annotator)


def listed(ctx: Context) -> list[list[Any]]:
    """The project's tests, newest first: [id, name]; the name is the models' until somebody gives another."""
    return [
        [test_id, both[0].get(NAME) or " against ".join(map(maker, both))]
        for test_id, both in asked(ctx.db, ctx.project.id).items()
    ]


def change(ctx: Context, said: dict[str, Any], annotator: str) -> dict[str, Any]:
    """Rename or delete a test: {"test", "do": rename or delete, "name"}; what is to be seen then, and "done": words.

    Raises LabError for a name that is none, StoreError for a test that is not there.
    """
    test = found(ctx, said.get("test"))
    if test is None or said.get("test") is None:
        raise StoreError("This blind test is not there any more. Nothing was changed.")
    if said.get("do") == "rename":
        name = check_name(str(said.get("name") or ""))
        rename_test(ctx.db, test.id, name)
        return {"test": state(ctx, test.id, annotator), "done": f'Test {test.id} is called "{name}" now.'}
    if said.get("do") == "delete":
        lost = delete_test(ctx.db, test.id)
        return {"test": state(ctx, None, annotator), "done": f"Test {test.id} is deleted, {losing(lost)}."}
    raise LabError("The page asked for no change that there is. Reload it and try again.")


def losing(answered: dict[str, int]) -> str:
    """What goes with a test: "with its texts and 14 answers of 2 people"."""
    if not answered:
        return "with its texts (nobody had answered)"
    count, people = sum(answered.values()), len(answered)
    of = f"{people} people" if people > 1 else "one person"
    return f"with its texts and {counted(count, 'answer')} of {of}"


def state(ctx: Context, wanted: Any, annotator: str) -> dict[str, Any]:
    """What this person sees of a test (None: the newest): the next pair without its makers' names, or how it came out.

    annotator: "" for who may not judge.
    """
    test = found(ctx, wanted)
    if test is None:
        return {"id": None}
    jobs = jobs_of(ctx, test)
    both = [column(job, None) for job in jobs]
    names, reward = [maker(job.payload) for job in jobs], jobs[0].payload.get("reward_model_id")
    reply: dict[str, Any] = {"id": test.id, "names": names, "reward": reward, "losing": losing(given(ctx.db, test.id))}
    failed = next((one["failed"] for one in both if "failed" in one), None)
    couples = couples_of(*jobs)
    if failed or couples is None:
        return reply | {"waiting": not failed, "failed": failed}
    said = answers(ctx.db, test.id)
    mine = said.get(annotator, {})
    left = to_judge(couples, mine) if annotator else []
    alike = sum(couple.first == couple.second for couple in couples.values())
    reply |= {"count": len(couples) - alike, "alike": alike, "judged": len(couples) - alike - len(left), "pair": None}
    reply |= {"left_out": unfit(jobs[0], couples), "others": others(couples, said, annotator)}
    if left:
        return reply | {"pair": shown(test.id, left[0], couples[left[0]], annotator)}
    if not annotator:
        return reply | {"closed": "To judge, enter with the join code. How it came out is told to those who judged."}
    return reply | outcome(couples, said, annotator, names, reward)


def shown(test_id: int, position: int, couple: Couple, annotator: str) -> dict[str, Any]:
    """A pair for somebody to judge: nothing in it tells whose text is whose."""
    sides = (couple.first, couple.second)
    left, right = sides if first_on_left(test_id, position, annotator) else sides[::-1]
    return {"position": position, "prompt": couple.prompt, "left": left, "right": right}


def first_on_left(test_id: int, position: int, annotator: str) -> bool:
    """Whether the first model's text stands on the left: random, the same after a reload, another for everybody."""
    return coin(f"blind/{test_id}/{position}/{annotator}")


def to_judge(couples: dict[int, Couple], mine: dict[int, Choice]) -> list[int]:
    """The places that one person has still to judge; where both wrote the same there is nothing to say."""
    return [at for at, couple in couples.items() if at not in mine and couple.first != couple.second]


def others(couples: dict[int, Couple], said: dict[str, dict[int, Choice]], annotator: str) -> dict[str, int]:
    """How many other people have answered: done, who have no pair left to judge, and at_it, who have."""
    left = [bool(to_judge(couples, answered)) for person, answered in said.items() if person != annotator]
    return {"done": left.count(False), "at_it": left.count(True)}


def couples_of(first: Job, second: Job) -> dict[int, Couple] | None:
    """What both wrote, side by side, by the place of the prompt among those asked; None until both have written."""
    one, other = by_place(first), by_place(second)
    if one is None or other is None:
        return None
    asked = asked_of(first)
    couples = {}
    for at in sorted(one.keys() & other.keys()):
        (text, score), (against, its_score) = one[at], other[at]
        scores = None if score is None or its_score is None else (score, its_score)
        couples[at] = Couple(asked[at], text, against, scores)
    return couples


def by_place(job: Job) -> dict[int, tuple[str, float | None]] | None:
    """The text and score for each prompt that was not too long, by its place among those asked; None until they are written."""
    found, every = column(job, None), int(job.payload.get("best_of", 1))
    if "texts" not in found:
        return None
    left_out = {at // every for at in (job.result or {}).get("left_out", [])}
    places = [at for at in range(len(asked_of(job))) if at not in left_out]
    scores = found["scores"] or [None] * len(places)
    return {at: (text, score) for at, text, score in zip(places, found["texts"], scores, strict=True)}


def asked_of(job: Job) -> list[str]:
    """The prompts of a test; best of n was asked each n times."""
    return list(job.payload["prompts"][:: int(job.payload.get("best_of", 1))])


def unfit(job: Job, couples: dict[int, Couple]) -> str:
    """That prompts were too long for the model, and how many; "" where none was."""
    return too_long(len(asked_of(job)) - len(couples), int(job.payload.get("max_new_tokens", 0)))


def found(ctx: Context, wanted: Any) -> BlindTest | None:
    """The project's test of that number; without a number, or where there is none such, its newest."""
    tests = blind_tests(ctx.db, ctx.project.id)
    return next((test for test in tests if str(test.id) == str(wanted)), tests[0] if tests and wanted is None else None)


def jobs_of(ctx: Context, test: BlindTest) -> tuple[Job, Job]:
    return queue.get_job(ctx.db, test.first_job), queue.get_job(ctx.db, test.second_job)


def maker(payload: dict[str, Any]) -> str:
    """Who writes, by what was asked: "base model", "base, best of 4", "run 1, step 40"."""
    if n := payload.get("best_of"):
        return f"base, best of {n}"
    parts = str(payload["checkpoint"]).split("/")
    return (
        f"run {parts[1]}, {'latest step' if parts[2] == 'latest' else f'step {parts[2]}'}"
        if len(parts) == 3
        else "base model"
    )

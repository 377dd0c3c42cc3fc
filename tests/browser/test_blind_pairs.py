"""Blind tests and tournaments: unconfirmed answers are stored and sent again only while the lab shows the same pair.

Also: two people judge a tournament, and its ranking.
"""

import json

import pytest
from accessibility import inspect_screen
from browser_lab import Lab
from helpers import control, expect_text, open_screen, open_tab
from playwright.sync_api import expect
from prepared_labs import fill_pool
from test_people_screen import access_keys, join_as

from rlhf_lab.common.enums import Choice, JobKind
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.blind_tests import add_test, answers
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.tournaments import add_tournament, tournament_answers

CONTESTANTS = {"base": "a", "base/best/4": "b", "run/1/5": "c"}  # "a 0" is what the base wrote to the first prompt
TEXTS = "[...document.querySelectorAll('.tournament .side .lab-text')].map((text) => text.innerText)"
KEPT = "localStorage.getItem('rlhf-lab-blind-answer')"


def fill_home(home) -> None:
    """A blind test of 6 pairs and a tournament of 3 contestants, both with stored texts."""
    with Database.open(home) as db:
        project, jobs = new_project(db), []
        engine = engine_process.record_heartbeat(db, "idle")
        for checkpoint, letter in (("base", "a"), ("run/1/5", "b")):
            payload = {"checkpoint": checkpoint, "prompts": [one.text for one in prompts(db, project.id, "eval")[:6]]}
            jobs.append(queue.submit(db, JobKind.COMPLETE, project.id, payload))
            queue.claim(db, [JobKind.COMPLETE], engine)
            queue.finish(db, jobs[-1].id, {"texts": [f"{letter} {i}" for i in range(6)], "scores": [0.0] * 6})
        add_test(db, project.id, jobs[0].id, jobs[1].id)
        job = queue.submit(db, JobKind.TOURNAMENT, project.id, {})
        queue.claim(db, [JobKind.TOURNAMENT], engine)
        rows = [
            {"model": model, "texts": [f"{letter} {i}" for i in range(8)], "scores": [0.5] * 8, "kl": [1.5] * 8}
            for model, letter in CONTESTANTS.items()
        ]
        prompt_texts = [one.text for one in prompts(db, project.id, "eval")[:8]]
        queue.finish(db, job.id, {"prompts": prompt_texts, "contestants": rows})
        add_tournament(db, project.id, job.id)
        engine_process.mark_engine_stopped(db, engine)
        fill_pool(db, project.id)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    home = tmp_path_factory.mktemp("blind") / "home"
    fill_home(home)
    lab = Lab(home).start()
    yield lab
    lab.stop()


@pytest.fixture
def shared_lab(tmp_path):
    """One that several people use."""
    fill_home(tmp_path / "home")
    lab = Lab(tmp_path / "home", options=("--host", "0.0.0.0")).start()
    yield lab
    lab.stop()


def answer_count(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(len(answered) for answered in answers(db, 1).values())


def open_test(lab, open_page):
    page = open_screen(lab, open_page, "Compare")
    page.wait_for_selector("[data-judged='0']")
    return page


def lose_answer(page):
    page.locator(".blind h2").click()
    page.context.set_offline(True)
    page.keyboard.press("1")
    expect_text(page, "blind-notice", "Your last answer is not stored yet")


def test_an_unanswered_answer_is_sent_again_when_the_lab_replies(lab, open_page):
    page, before = open_test(lab, open_page), answer_count(lab)
    lose_answer(page)
    assert answer_count(lab) == before
    page.context.set_offline(False)
    page.wait_for_selector("[data-judged='1']")
    assert answer_count(lab) == before + 1
    assert page.evaluate(KEPT) is None
    open_page.console_messages.clear()


def test_a_kept_answer_is_not_sent_for_another_person_or_other_texts(lab, open_page):
    page, before = open_test(lab, open_page), answer_count(lab)
    lose_answer(page)
    stored = json.loads(page.evaluate(KEPT))
    page.context.set_offline(False)
    page.evaluate(
        "kept => localStorage.setItem('rlhf-lab-blind-answer', JSON.stringify(kept))", stored | {"by": "another"}
    )
    page.reload()
    open_tab(page, "Compare")
    page.wait_for_selector("[data-judged]")
    page.wait_for_timeout(3000)
    assert json.loads(page.evaluate(KEPT))["by"] == "another"
    other_texts = stored | {"pair": stored["pair"] | {"left": "of another lab"}}
    page.evaluate("kept => localStorage.setItem('rlhf-lab-blind-answer', JSON.stringify(kept))", other_texts)
    expect_text(page, "blind-notice", "stored now")
    assert page.evaluate(KEPT) is None
    assert answer_count(lab) <= before + 1
    open_page.console_messages.clear()


def test_a_kept_answer_can_be_discarded(lab, open_page):
    page, before = open_test(lab, open_page), answer_count(lab)
    lose_answer(page)
    page.click("[data-do=blind-discard]")
    expect_text(page, "blind-notice", "no longer sent")
    assert page.evaluate(KEPT) is None
    page.context.set_offline(False)
    page.wait_for_timeout(3000)
    assert answer_count(lab) == before
    expect(page.locator("[data-judged='0']")).to_be_visible()
    open_page.console_messages.clear()


def open_tournament(lab, open_page):
    """A page whose visitor judges the tournament."""
    page = open_screen(lab, open_page, "Compare")
    page.locator(".tournament > summary").click()
    control(page, "tournament-next").click()
    page.wait_for_selector(".tournament [data-judged='0']")
    page.locator(".tournament .about").click()  # the focus is on no control
    return page


def press_and_wait(page, key) -> list[str]:
    """Answer a pair of the tournament; returns its texts."""
    texts = page.evaluate(TEXTS)
    page.keyboard.press(key)
    page.wait_for_function(
        f"before => JSON.stringify({TEXTS}) !== before", arg=json.dumps(texts, separators=(",", ":"))
    )
    return texts


def given_answers(lab) -> list[tuple[str, Choice, set[str], str | None]]:
    """Annotator, choice, both texts and the preferred one of each answer, in order."""
    letters = list(CONTESTANTS.values())
    with Database.open(lab.home) as db:
        answers = [answer for answer in tournament_answers(db, 1) if answer.choice is not None]
    found = []
    for answer in answers:
        first, second = (f"{letters[i]} {answer.position}" for i in (answer.first, answer.second))
        found.append(
            (answer.annotator, answer.choice, {first, second}, {"first": first, "second": second}.get(answer.choice))
        )
    return found


def test_two_people_judge_a_tournament(lab, open_page):
    page, another = open_tournament(lab, open_page), open_tournament(lab, open_page)
    assert set(page.evaluate(TEXTS)) != set(another.evaluate(TEXTS))
    seen = {key: press_and_wait(page, key) for key in "120xs"}
    answers = given_answers(lab)
    assert [texts for _, _, texts, _ in answers] == [set(texts) for texts in seen.values()]
    assert [preferred for *_, preferred in answers] == [seen["1"][0], seen["2"][1], None, None, None]
    assert [choice for _, choice, *_ in answers[2:]] == [Choice.TIE, Choice.BOTH_BAD, Choice.SKIP]
    assert page.get_attribute(".tournament [data-judged]", "data-judged") == "4"  # a skip is no answer

    control(another, "tournament-right").click()
    another.wait_for_selector(".tournament [data-judged='1']")
    expect_text(another, "tournament-note", "5 answers from 2 people")
    expect_text(page, "tournament-note", "5 answers from 2 people")

    page.context.set_offline(True)
    unanswered = page.evaluate(TEXTS)
    page.keyboard.press("1")
    expect_text(page, "tournament-notice", "Your last answer is not stored yet")
    assert len(given_answers(lab)) == 6
    page.context.set_offline(False)
    page.wait_for_selector(".tournament [data-judged='5']")  # the fold is open, also if Gradio has reloaded the page
    assert given_answers(lab)[6:] == [(answers[0][0], *given_answers(lab)[6][1:3], unanswered[0])]
    assert page.evaluate("localStorage.getItem('rlhf-lab-tournament-answer')") is None
    expect_text(page, "tournament-notice", "stored now")

    light = inspect_screen(page, "Compare")  # opens the ranking
    names = control(page, "tournament-ranking").locator("tbody th").all_inner_texts()
    assert sorted(name.rpartition(". ")[2] for name in names) == ["base model", "base, best of 4", "run 1, step 5"]
    expect(control(page, "tournament-matrix").locator("tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Dark").click()
    assert [text for text in light + inspect_screen(page, "Compare") if text.contrast < 4.5] == []
    open_page.console_messages.clear()


def test_the_operator_ends_a_test_for_everybody(shared_lab, open_page):
    labeller, operator = join_as(shared_lab, open_page, "Bob"), open_page(shared_lab)
    operator.goto(f"{shared_lab.url}enter?key={access_keys(shared_lab)['operator']}")
    for page in (labeller, operator):
        open_tab(page, "Compare")
        page.wait_for_selector("[data-judged='0']")
    labeller.locator(".blind h2").click()
    labeller.keyboard.press("1")
    labeller.wait_for_selector("[data-judged='1']")
    for page in (labeller, operator):
        control(page, "blind-stop").click()
        expect(page.locator(".blind .stage")).to_contain_text("shown when the operator ends the test")
    expect(control(labeller, "blind-end")).to_be_disabled()

    control(operator, "blind-end").click()
    expect(operator.locator(".blind .controls")).to_contain_text("End test 1 for everybody?")
    control(operator, "blind-end-leave").click()
    expect(control(operator, "blind-end")).to_be_focused()
    control(operator, "blind-end").click()
    control(operator, "blind-end-sure").click()
    expect_text(operator, "blind-notice", "Test 1 has ended. Its result is shown now.")
    expect_text(operator, "blind-result", "Those who judged like")
    expect(control(operator, "blind-end")).to_have_count(0)
    expect_text(labeller, "blind-result", "You like")

"""Answers in a blind test that the lab has not confirmed: kept, and sent again only while the lab asks for the same pair."""

import json

import pytest
from browser_lab import Lab
from helpers import expect_text, open_screen, open_tab
from playwright.sync_api import expect

from rlhf_lab.common.enums import JobKind
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.blind_tests import add_test, answers
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts

KEPT = "localStorage.getItem('rlhf-lab-blind-answer')"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab with a blind test of 6 pairs, whose texts are there already."""
    home = tmp_path_factory.mktemp("blind") / "home"
    with Database.open(home) as db:
        project, jobs = new_project(db), []
        engine = engine_process.record_heartbeat(db, "idle")
        for checkpoint, letter in (("base", "a"), ("run/1/5", "b")):
            payload = {"checkpoint": checkpoint, "prompts": [one.text for one in prompts(db, project.id, "eval")[:6]]}
            jobs.append(queue.submit(db, JobKind.COMPLETE, project.id, payload))
            queue.claim(db, [JobKind.COMPLETE], engine)
            queue.finish(db, jobs[-1].id, {"texts": [f"{letter} {i}" for i in range(6)], "scores": [0.0] * 6})
        add_test(db, project.id, jobs[0].id, jobs[1].id)
        engine_process.mark_engine_stopped(db, engine)
    lab = Lab(home).start()
    yield lab
    lab.stop()


def answer_count(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(len(given) for given in answers(db, 1).values())


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
    kept = json.loads(page.evaluate(KEPT))
    page.context.set_offline(False)
    page.evaluate(
        "kept => localStorage.setItem('rlhf-lab-blind-answer', JSON.stringify(kept))", kept | {"by": "another"}
    )
    page.reload()
    open_tab(page, "Compare")
    page.wait_for_selector("[data-judged]")
    page.wait_for_timeout(3000)
    assert json.loads(page.evaluate(KEPT))["by"] == "another"
    other_texts = kept | {"pair": kept["pair"] | {"left": "of another lab"}}
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

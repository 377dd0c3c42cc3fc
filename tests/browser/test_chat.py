"""The screen Chat during a training: an answer appears while it is sampled and can be stopped; two answers become a label."""

import os
import re
import signal
import time
from contextlib import contextmanager

import pytest
from helpers import ENGINE_TIMEOUT_MS, control, open_screen, open_tab, wait_for_engine, wait_until
from playwright.sync_api import expect
from prepared_labs import FAST_CONFIG, lab_with_reward_models, running_run
from sqlalchemy import update

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus, Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.jobs import queue
from rlhf_lab.store import tables
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.votes import label_count, vote_counts

STATUSES = "[...document.querySelectorAll('.lab-chat .reply')].map((reply) => reply.dataset.status)"
FIRST_ANSWER_LENGTH = "(document.querySelector('.lab-chat .reply .lab-text')?.innerText.length ?? 0)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_with_reward_models(tmp_path_factory.mktemp("chat") / "home", Source.SIMULATED, FAST_CONFIG) as lab:
        yield lab


def ask(page, text):
    control(page, "chat-message").fill(text)
    control(page, "chat-send").click()


def show_answers(page, *texts):
    """Show these texts as the two answers. Which ones are sampled, and whether they differ, depends on the processor."""

    def replace(route):
        reply = route.fetch().json()
        for answer, text in zip(reply.get("reply", []), texts, strict=False):
            answer["text"] = text
        route.fulfill(json=reply)

    page.unroute_all(behavior="wait")
    page.route(re.compile("lab-api/chat/answers"), replace)


def store_answers(db, *texts):
    """Replace the stored texts of the two answers."""
    with db.write() as conn:
        for job, text in zip(queue.jobs(db, kinds=[JobKind.CHAT])[::-1], texts, strict=True):
            conn.execute(
                update(tables.jobs).where(tables.jobs.c.id == job.id).values(result=job.result | {"text": text})
            )


@contextmanager
def engine_frozen(lab, db, job_id: int, length: int):
    """The engine stands still from the moment at which an answer has more than `length` characters, or has ended."""

    def has_grown() -> bool:
        job = queue.get_job(db, job_id)
        return job.status not in UNFINISHED_JOB_STATUSES or len((job.result or {}).get("text", "")) > length

    end = time.monotonic() + ENGINE_TIMEOUT_MS / 1000
    while not has_grown():
        assert time.monotonic() < end, "the answer does not grow"
        time.sleep(0.002)
    os.kill(lab.engine_pid(), signal.SIGSTOP)
    try:
        yield queue.get_job(db, job_id).status in UNFINISHED_JOB_STATUSES
    finally:
        os.kill(lab.engine_pid(), signal.SIGCONT)


def ask_and_stop(lab, db, page, text):
    """Ask for two answers; stop both when the page has shown one of them at two lengths.

    The engine stands still while the page draws, so their speeds do not matter. If an answer ends before that, ask again with
    another seed.
    """
    for seed in range(6):
        control(page, "chat-seed").fill(str(seed))
        known = {job.id for job in queue.jobs(db, kinds=[JobKind.CHAT])}
        ask(page, text)
        wait_until(lambda known=known: len(new_chats(db, known)) == 2, "two jobs", page)
        first = min(new_chats(db, known))
        with engine_frozen(lab, db, first, 20) as is_sampled:
            if is_sampled:
                page.wait_for_function(f"{FIRST_ANSWER_LENGTH} > 0")
            length = page.evaluate(FIRST_ANSWER_LENGTH)
        with engine_frozen(lab, db, first, length + 20) as is_sampled:
            if is_sampled:
                page.wait_for_function(f"length => {FIRST_ANSWER_LENGTH} > length", arg=length)
                control(page, "chat-stop").click()
                wait_until(lambda first=first: queue.get_job(db, first).status is JobStatus.CANCELLED, "the stop", page)
        wait_for_engine(page, f"() => /^(done|cancelled),(done|cancelled)$/.test({STATUSES}.join())")
        if page.evaluate(STATUSES) == ["cancelled", "cancelled"]:
            return
        control(page, "chat-begin").click()
    pytest.fail("an answer ended before it could be stopped, with each of six seeds")


def new_chats(db, known: set[int]) -> set[int]:
    return {job.id for job in queue.jobs(db, kinds=[JobKind.CHAT])} - known


def test_a_chat_while_a_run_trains(lab, open_page):
    with Database.open(lab.home) as db, running_run(db, lab.home, batch_size=8, max_new_tokens=8, checkpoint_every=1):
        page = open_screen(lab, open_page, "Chat")
        page.wait_for_function("document.querySelector('[data-do=chat-model]')?.options.length > 1")
        control(page, "chat-model").select_option(index=1)
        control(page, "chat-beside").check()
        page.locator(".lab-chat summary").click()
        control(page, "chat-max_new_tokens").fill("230")
        control(page, "chat-temperature").fill("5")  # such texts hardly end
        ask_and_stop(lab, db, page, "Once upon a time")
        stopped_text = page.locator(".lab-chat .reply .lab-text").first.inner_text()
        assert len(stopped_text) > 20
        expect(control(page, "chat-label")).to_be_disabled()

        control(page, "chat-max_new_tokens").fill("12")
        show_answers(page, "The same.", "The same.")
        ask(page, "The end.")
        expect(page.locator(".lab-chat .turn.assistant .lab-text")).to_have_text(stopped_text)
        wait_for_engine(page, f"() => {STATUSES}.join() === 'done,done'")
        expect(control(page, "chat-label")).to_be_disabled()
        expect(page.locator(".lab-chat .pair")).to_contain_text("Both answers are the same")

        answers = ["A bad end.", "A good end."]
        show_answers(page, *answers)
        ask(page, "Really.")
        wait_for_engine(page, f"() => {STATUSES}.join() === 'done,done'")
        cut = " … cut off at 12 tokens"
        shown = page.locator(".lab-chat .reply .lab-text").all_inner_texts()
        assert [text.removesuffix(cut) for text in shown] == answers
        store_answers(db, *answers)
        control(page, "chat-label").click()
        sides = page.locator(".lab-label .side .lab-text")
        wait_until(
            lambda: (
                page.url.endswith("#label")
                and sorted(text.removesuffix(cut) for text in sides.all_inner_texts()) == answers
            ),
            "the pair",
            page,
        )
        page.unroute_all(behavior="wait")
        project = current_project(db)
        before = label_count(vote_counts(db, project.id)[Source.HUMAN])
        page.wait_for_timeout(400)  # an answer within 300 ms is the second half of a double click
        page.keyboard.press("1")
        wait_until(lambda: label_count(vote_counts(db, project.id)[Source.HUMAN]) == before + 1, "the vote", page)


def test_the_checkpoint_that_people_prefer_is_one_press_away(lab, open_page):
    """The reply says what it would say if the brake had stopped the run."""
    with (
        Database.open(lab.home) as db,
        running_run(db, lab.home, batch_size=8, max_new_tokens=8, checkpoint_every=1) as run,
    ):
        wait_until(lambda: len(checkpoint_steps(run_folder(lab.home, run.id))) > 1, "two checkpoints")
        step = checkpoint_steps(run_folder(lab.home, run.id))[0]
        brake = {"state": "declined", "text": f"People prefer the texts of step {step}.", "step": step}

        def replace(route):
            reply = route.fetch().json()
            if "state" in reply.get("reply", {}):
                reply["reply"]["state"]["brake"] = brake
            route.fulfill(json=reply)

        page = open_page(lab)
        page.route(re.compile("lab-api/train/points"), replace)
        open_tab(page, "Train")
        control(page, "brake-chat").click()
        expect(control(page, "chat-model")).to_have_value(f"run/{run.id}")
        expect(control(page, "chat-step")).to_have_value(str(step))

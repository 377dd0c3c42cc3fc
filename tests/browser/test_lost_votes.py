"""Requests of the screen "Label" without a reply: which are sent again, how often, for whom, and what the page says."""

import sqlite3

import pytest
from browser_lab import current_pair, intercept_votes, kept_requests, press_key, project_created_at
from helpers import call_module, wait_until
from playwright.sync_api import expect

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.votes import vote_counts

#: JavaScript: while window.replyTimeout is set, window.changedReplies replies are awaited for that many ms; window.waits records
#: the real timeouts.
SHORT_TIMEOUTS = """const wait = window.setTimeout, waits = window.waits = [];
    window.changedReplies = Infinity;
    window.setTimeout = (act, ms, ...more) => {
        const isReply = window.replyTimeout && String(act).includes('onTimeout');
        if (isReply) waits.push(ms);
        return wait(act, isReply && waits.length <= window.changedReplies ? window.replyTimeout : ms, ...more); };"""


def vote_count(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(sum(counts.values()) for counts in vote_counts(db, current_project(db).id).values())


def newest_vote(lab) -> tuple:
    """(choice, note, undone)"""
    with sqlite3.connect(lab.home / "lab.db") as db:
        return db.execute("SELECT choice, note, undone_at IS NOT NULL FROM votes ORDER BY id DESC").fetchone()


def keep_lost_vote(page, pair: str, by: str, created_at: float) -> None:
    """Store a vote in the browser as a page does until the reply arrives."""
    vote = {
        "name": "vote",
        "pair_id": int(pair),
        "choice": "left",
        "uuid": f"lost-{by}",
        "duration_ms": 900,
        "strength": "",
        "note": "",
        "by": by,
        "project_created_at": created_at,
    }
    call_module(page, "label/kept_requests.js", "keepRequest", vote)


def open_impatient_page(lab, open_page):
    """A page whose reply timeouts are short once window.replyTimeout is set."""
    page = open_page(lab)
    page.add_init_script(SHORT_TIMEOUTS)
    page.reload()
    current_pair(page)
    return page


def go_offline(page) -> None:
    page.evaluate("window.replyTimeout = 300")
    page.context.set_offline(True)


def go_online(page, open_page) -> None:
    page.context.set_offline(False)
    ignore_lost_connection(open_page)


def ignore_lost_connection(open_page) -> None:
    open_page.console_messages[:] = [text for text in open_page.console_messages if "net::ERR_" not in text]


def message(page):
    return page.locator(".lab-label .message")


def test_unanswered_vote_is_kept_and_sent_again_until_it_is_stored(lab, open_page):
    page, held_requests = open_impatient_page(lab, open_page), []
    pair, before = current_pair(page), vote_count(lab)
    sent = intercept_votes(
        page, *[held_requests.append] * 6
    )  # the seventh request reaches the server, and is awaited for its full time
    page.evaluate("window.replyTimeout = 300; window.changedReplies = 6;")
    page.keyboard.press("1")
    assert page.get_attribute(".lab-label", "data-pair") != pair
    expect(message(page)).to_contain_text("Your last answer is not stored yet")
    wait_until(lambda: len(held_requests) == 6, "six attempts", page)
    assert kept_requests(page) == [sent[0]["uuid"]]
    expect(message(page)).to_have_text("Your last answer is stored now.")
    assert page.evaluate("window.waits")[:6] == [5000, 10000, 20000, 40000, 40000, 40000]
    assert [(str(one["pair_id"]), one["uuid"]) for one in sent] == [(pair, sent[0]["uuid"])] * 7
    assert kept_requests(page) == []
    assert {one["project_created_at"] for one in sent} == {project_created_at(lab)}
    assert vote_count(lab) == before + 1
    assert current_pair(page) != pair


def test_unanswered_vote_is_sent_again_after_a_reload(lab, open_page):
    page, held_requests = open_impatient_page(lab, open_page), []
    pair, before = current_pair(page), vote_count(lab)
    sent = intercept_votes(page, *[held_requests.append] * 6)
    page.evaluate("window.replyTimeout = 300")
    page.keyboard.press("1")
    wait_until(lambda: len(held_requests) == 6, "six attempts", page)
    page.reload()
    wait_until(lambda: vote_count(lab) == before + 1, "the stored vote", page)
    assert {one["uuid"] for one in sent} == {sent[0]["uuid"]}
    assert current_pair(page) != pair


def test_unanswered_vote_is_sent_after_the_tab_was_closed(lab, open_page):
    page = open_impatient_page(lab, open_page)
    pair, before = current_pair(page), vote_count(lab)
    page.fill(".more .note", "so warm")
    page.locator("body").click(position={"x": 2, "y": 2})
    go_offline(page)
    page.keyboard.press("0")
    expect(message(page)).to_contain_text("also if you close it")
    page.close()
    assert vote_count(lab) == before
    go_online(page, open_page)
    reopened = page.context.new_page()
    reopened.goto(lab.url)
    expect(message(reopened)).to_have_text("Your last answer is stored now.")
    assert current_pair(reopened) != pair
    assert (vote_count(lab), newest_vote(lab)) == (before + 1, ("tie", "so warm", 0))
    assert kept_requests(reopened) == []


def test_unanswered_vote_can_be_discarded(lab, open_page):
    page, held_requests = open_impatient_page(lab, open_page), []
    pair, before = current_pair(page), vote_count(lab)
    sent = intercept_votes(page, *[held_requests.append] * 60)
    page.evaluate("window.replyTimeout = 300")
    page.keyboard.press("1")
    page.evaluate("document.body.classList.add('lab-offline')")  # as the page is when it cannot reach the lab
    page.click("[data-do=discard-vote]")
    expect(message(page)).to_contain_text("no longer sent")
    assert kept_requests(page) == []
    count = len(sent)
    page.evaluate("document.body.classList.remove('lab-offline')")
    assert current_pair(page) != pair
    page.wait_for_timeout(1000)
    assert len(sent) == count
    assert vote_count(lab) == before


def test_lost_vote_is_sent_again_by_its_annotator_only(lab, open_page):
    page = open_page(lab)
    pair, before, created_at = current_pair(page), vote_count(lab), project_created_at(lab)
    own_name = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    sent = intercept_votes(page)
    keep_lost_vote(page, pair, "somebody else", created_at)
    page.reload()
    assert current_pair(page) == pair
    expect(message(page)).to_contain_text("It is kept, and sent when somebody else labels here again.")
    assert kept_requests(page) == ["lost-somebody else"]
    keep_lost_vote(page, pair, own_name, created_at)
    page.reload()
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["uuid"] for one in sent] == [f"lost-{own_name}"]
    assert vote_count(lab) == before + 1
    page.click("[data-do=discard-vote]")
    assert kept_requests(page) == []


def test_lost_vote_of_another_project_is_kept_and_not_sent(lab, open_page):
    """Another lab at the same address may have a pair and a person of the same number and name."""
    page = open_page(lab)
    pair, before = current_pair(page), vote_count(lab)
    own_name = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    sent = intercept_votes(page)
    keep_lost_vote(page, pair, own_name, project_created_at(lab) - 1)
    page.reload()
    press_key(page, "1")
    assert [one["uuid"] for one in sent] != [f"lost-{own_name}"]
    assert (len(sent), vote_count(lab)) == (1, before + 1)
    assert kept_requests(page) == [f"lost-{own_name}"]


def test_unanswered_change_is_sent_again_with_its_note(lab, open_page):
    page = open_impatient_page(lab, open_page)
    press_key(page, "1")
    before = vote_count(lab)
    page.click("details.history summary")
    row = page.locator("article[data-vote]").first
    row.locator("select").first.select_option("tie")
    row.locator("input.note").fill("my note")
    go_offline(page)
    row.locator("[data-do=amend]").click()
    expect(message(page)).to_contain_text("Your change of an earlier answer is not stored yet")
    assert newest_vote(lab)[0] != "tie"
    go_online(page, open_page)
    expect(message(page)).to_have_text("Your earlier answer was changed.")
    assert (newest_vote(lab), vote_count(lab)) == (("tie", "my note", 0), before)
    assert kept_requests(page) == []
    ignore_lost_connection(open_page)


@pytest.mark.parametrize(
    ("name", "label"),
    [("undo", "Undo"), ("redo", "Redo"), ("judge", "Judge labels 40 more"), ("reset", "Start a new project")],
)
def test_requests_that_would_act_twice_are_not_sent_again(lab, open_page, name, label):
    page = open_impatient_page(lab, open_page)
    press_key(page, "1")
    if name == "redo":
        page.keyboard.press("u")
        expect(message(page)).to_contain_text("was undone")
    before = (vote_count(lab), newest_vote(lab), project_created_at(lab))
    page.evaluate("document.querySelector('details.talks').open = true; window.confirm = () => true;")
    current_pair(page)
    go_offline(page)
    page.click(f"[data-do={name}]")
    expect(message(page)).to_contain_text(f'The lab does not reply to "{label}". It is not sent again automatically.')
    go_online(page, open_page)
    expect(message(page)).to_have_text(f'"{label}" is not done. Press it again if you still want it.')
    current_pair(page)
    assert (vote_count(lab), newest_vote(lab), project_created_at(lab)) == before
    ignore_lost_connection(open_page)


def test_an_undo_without_a_reply_is_not_done_twice(lab, open_page):
    page = open_impatient_page(lab, open_page)
    press_key(page, "1")
    pair = press_key(page, "2")
    before = vote_count(lab)
    done = []
    sent = intercept_votes(page, lambda route: done.append(route.fetch()), marker='"by"')
    page.evaluate("window.replyTimeout = 600000")
    page.keyboard.press("u")
    wait_until(lambda: done, "the undo that is done", page)
    page.evaluate("window.replyTimeout = 300; window.dispatchEvent(new Event('online'))")  # as after a timeout
    expect(message(page)).to_contain_text('The lab did not reply to "Undo", but something has changed since')
    assert current_pair(page) == pair
    assert (len(sent), vote_count(lab)) == (1, before - 1)

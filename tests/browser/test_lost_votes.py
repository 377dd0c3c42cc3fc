"""Requests of the screen "Label" without a reply, after the connection or the tab was lost: which are sent again, and for whom.

When and how often, without a browser: tests/javascript/label.test.js.
"""

import sqlite3

from browser_lab import current_pair, intercept_votes, kept_requests, press_key, project_created_at
from helpers import call_module
from playwright.sync_api import expect

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.votes import vote_counts

#: JavaScript: while window.replyTimeout is set, replies are awaited for that many ms.
SHORT_TIMEOUTS = """const wait = window.setTimeout;
    window.setTimeout = (act, ms, ...more) =>
        wait(act, window.replyTimeout && String(act).includes('onTimeout') ? window.replyTimeout : ms, ...more);"""


def vote_count(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(sum(counts.values()) for counts in vote_counts(db, current_project(db).id).values())


def newest_vote(lab) -> tuple:
    """(choice, note, undone)"""
    with sqlite3.connect(lab.home / "lab.db") as db:
        return db.execute("SELECT choice, note, undone_at IS NOT NULL FROM votes ORDER BY id DESC").fetchone()


def keep_lost_vote(page, pair: str, by: str, created_at: float, uuid: str = "") -> None:
    """Store a vote in the browser as a page does until the reply arrives."""
    vote = {
        "name": "vote",
        "pair_id": int(pair),
        "choice": "left",
        "uuid": uuid or f"lost-{by}",
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


def test_unanswered_vote_is_sent_after_the_tab_was_closed(lab, open_page):
    page = open_impatient_page(lab, open_page)
    pair, before = current_pair(page), vote_count(lab)
    page.fill(".more .note", "so warm")
    page.locator("body").click(position={"x": 2, "y": 2})
    go_offline(page)
    page.keyboard.press("0")
    expect(message(page)).to_contain_text("also if you close it")
    assert vote_count(lab) == before
    page.close()  # a request on its way may be let through now
    go_online(page, open_page)
    reopened = page.context.new_page()
    reopened.goto(lab.url)
    expect(message(reopened)).to_have_text("Your last answer is stored now.")
    assert current_pair(reopened) != pair
    assert (vote_count(lab), newest_vote(lab)) == (before + 1, ("tie", "so warm", 0))
    assert kept_requests(reopened) == []


def test_an_undo_without_a_reply_is_not_sent_again(lab, open_page):
    page = open_impatient_page(lab, open_page)
    press_key(page, "1")
    before = (vote_count(lab), newest_vote(lab))
    go_offline(page)
    page.click("[data-do=undo]")
    expect(message(page)).to_contain_text('The lab does not reply to "Undo". It is not sent again automatically.')
    go_online(page, open_page)
    expect(message(page)).to_have_text('"Undo" is not done. Press it again if you still want it.')
    current_pair(page)
    assert (vote_count(lab), newest_vote(lab)) == before
    ignore_lost_connection(open_page)


def test_a_lost_vote_is_sent_again_in_its_project_by_its_annotator_only(lab, open_page):
    """Another lab at the same address may have a pair and a person of the same number and name."""
    page = open_page(lab)
    pair, before, created_at = current_pair(page), vote_count(lab), project_created_at(lab)
    own_name = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    sent = intercept_votes(page)
    keep_lost_vote(page, pair, "somebody else", created_at)
    keep_lost_vote(page, pair, own_name, created_at - 1, "other project")
    page.reload()
    assert current_pair(page) == pair
    expect(message(page)).to_contain_text("It is kept, and sent when somebody else labels here again.")
    keep_lost_vote(page, pair, own_name, created_at)
    page.reload()
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["uuid"] for one in sent] == [f"lost-{own_name}"]
    assert vote_count(lab) == before + 1
    assert sorted(kept_requests(page)) == ["lost-somebody else", "other project"]
    page.evaluate("document.body.classList.add('lab-offline')")  # as the page is when it cannot reach the lab
    page.click("[data-do=discard-vote]")
    expect(message(page)).to_contain_text("no longer sent")
    assert kept_requests(page) == ["other project"]

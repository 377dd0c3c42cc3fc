"""Votes without a reply: how often they are sent, and under whose name."""

import json

from browser_lab import current_pair, intercept_votes
from helpers import wait_until
from playwright.sync_api import expect

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.votes import vote_counts

#: JavaScript: while window.shortTimeouts is set, shortens reply timeouts and records the real ones in window.waits.
SHORT_TIMEOUTS = """const wait = window.setTimeout, waits = window.waits = [];
    window.setTimeout = (act, ms, ...more) => {
        const shorter = window.shortTimeouts && String(act).includes('onTimeout');
        if (shorter) waits.push(ms);
        return wait(act, shorter ? 300 : ms, ...more); };"""
STORED_VOTE = "sessionStorage.getItem('rlhf-lab-vote')"


def vote_count(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(sum(counts.values()) for counts in vote_counts(db, current_project(db).id).values())


def project_created_at(lab) -> float:
    with Database.open(lab.home) as db:
        return current_project(db).created_at


def store_lost_vote(page, pair: str, by: str) -> None:
    """Store a vote as a page does until the reply arrives."""
    vote = {
        "pair_id": int(pair),
        "choice": "left",
        "uuid": f"lost-{by}",
        "duration_ms": 900,
        "strength": "",
        "note": "",
        "by": by,
    }
    page.evaluate("vote => sessionStorage.setItem('rlhf-lab-vote', vote)", json.dumps(vote))


def test_unanswered_vote_is_kept_and_sent_again_until_it_is_stored(lab, open_page):
    page, held = open_page(lab), []
    page.add_init_script(SHORT_TIMEOUTS)
    page.reload()
    pair, before = current_pair(page), vote_count(lab)
    sent = intercept_votes(page, *[held.append] * 6)  # the seventh request reaches the server
    page.evaluate("window.shortTimeouts = true")
    page.keyboard.press("1")
    assert page.get_attribute(".lab-label", "data-pair") != pair
    expect(page.locator(".lab-label .message")).to_contain_text("Your last answer is not stored yet")
    wait_until(lambda: len(held) == 6, "six attempts", page)
    assert json.loads(page.evaluate(STORED_VOTE))["uuid"] == sent[0]["uuid"]
    expect(page.locator(".lab-label .message")).to_have_text("Your last answer is stored now.")
    assert page.evaluate("window.waits")[:6] == [5000, 10000, 20000, 40000, 40000, 40000]
    assert [(str(one["pair_id"]), one["uuid"]) for one in sent] == [(pair, sent[0]["uuid"])] * 7
    assert page.evaluate(STORED_VOTE) == ""
    assert {one["project_created_at"] for one in sent} == {project_created_at(lab)}
    assert vote_count(lab) == before + 1
    assert current_pair(page) != pair


def test_unanswered_vote_is_sent_again_after_a_reload(lab, open_page):
    page, held = open_page(lab), []
    page.add_init_script(SHORT_TIMEOUTS)
    page.reload()
    pair, before = current_pair(page), vote_count(lab)
    sent = intercept_votes(page, *[held.append] * 6)
    page.evaluate("window.shortTimeouts = true")
    page.keyboard.press("1")
    wait_until(lambda: len(held) == 6, "six attempts", page)
    page.reload()
    wait_until(lambda: vote_count(lab) == before + 1, "the stored vote", page)
    assert {one["uuid"] for one in sent} == {sent[0]["uuid"]}
    assert current_pair(page) != pair


def test_unanswered_vote_can_be_discarded(lab, open_page):
    page, held = open_page(lab), []
    page.add_init_script(SHORT_TIMEOUTS)
    page.reload()
    pair, before = current_pair(page), vote_count(lab)
    sent = intercept_votes(page, *[held.append] * 60)
    page.evaluate("window.shortTimeouts = true")
    page.keyboard.press("1")
    page.evaluate("document.body.classList.add('lab-offline')")  # as the page is when it cannot reach the lab
    page.click("[data-do=discard-vote]")
    expect(page.locator(".lab-label .message")).to_contain_text("no longer sent")
    assert page.evaluate(STORED_VOTE) == ""
    count = len(sent)
    page.evaluate("document.body.classList.remove('lab-offline')")
    assert current_pair(page) != pair
    page.wait_for_timeout(1000)
    assert len(sent) == count
    assert vote_count(lab) == before


def test_lost_vote_is_sent_again_by_its_annotator_only(lab, open_page):
    page = open_page(lab)
    pair, before = current_pair(page), vote_count(lab)
    me = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    sent = intercept_votes(page)
    store_lost_vote(page, pair, by="somebody else")
    page.reload()
    assert current_pair(page) == pair
    assert page.evaluate(STORED_VOTE) == ""
    expect(page.locator(".lab-label .message")).to_contain_text(
        "An answer of somebody else in this tab was never stored"
    )
    store_lost_vote(page, pair, by=me)
    page.reload()
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["uuid"] for one in sent] == [f"lost-{me}"]
    assert vote_count(lab) == before + 1

"""Votes without a reply: how often they are sent, and under whose name."""

import json

from browser_lab import current_pair, intercept_votes

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


def test_unanswered_vote_is_dropped_after_four_attempts_and_its_pair_shown_again(lab, open_page):
    page, held = open_page(lab), []
    page.add_init_script(SHORT_TIMEOUTS)
    page.reload()
    pair = current_pair(page)
    sent = intercept_votes(page, *[held.append] * 4)  # a fifth request would reach the server
    page.evaluate("window.shortTimeouts = true")
    page.keyboard.press("1")
    assert page.get_attribute(".lab-label", "data-pair") != pair
    page.wait_for_selector(f".lab-label[data-open='{pair}']")
    page.evaluate("window.shortTimeouts = false")
    assert page.evaluate("window.waits")[:4] == [5000, 10000, 20000, 40000]
    assert [(str(one["pair_id"]), one["uuid"]) for one in sent] == [(pair, sent[0]["uuid"])] * 4
    assert page.evaluate(STORED_VOTE) == ""
    assert {one["project_created_at"] for one in sent} == {project_created_at(lab)}
    assert vote_count(lab) == 0
    page.keyboard.press("2")
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["choice"] for one in sent[4:]] == ["right"]
    assert vote_count(lab) == 1


def test_lost_vote_is_sent_again_by_its_annotator_only(lab, open_page):
    page = open_page(lab)
    pair, before = current_pair(page), vote_count(lab)
    me = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    sent = intercept_votes(page)
    store_lost_vote(page, pair, by="somebody else")
    page.reload()
    assert current_pair(page) == pair
    assert page.evaluate(STORED_VOTE) == ""
    store_lost_vote(page, pair, by=me)
    page.reload()
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["uuid"] for one in sent] == [f"lost-{me}"]
    assert vote_count(lab) == before + 1

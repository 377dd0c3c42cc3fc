"""Votes that do not arrive: when they are given up, and whose they stay."""

import json

from browser_lab import pair_of, votes_cut

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.votes import vote_counts

#: Shortens the waits for answers while the page is in a hurry, and writes down what they were.
HURRY = """const wait = window.setTimeout, waits = window.waits = [];
    window.setTimeout = (act, ms, ...more) => {
        const shorter = window.hurry && String(act).includes('unanswered');
        if (shorter) waits.push(ms);
        return wait(act, shorter ? 300 : ms, ...more); };"""
KEPT = "sessionStorage.getItem('rlhf-lab-vote')"


def cast(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(sum(counts.values()) for counts in vote_counts(db, current_project(db).id).values())


def made(lab) -> float:
    with Database.open(lab.home) as db:
        return current_project(db).created_at


def lose(page, pair: str, by: str) -> None:
    """Leave behind what a page keeps of a vote until it is answered."""
    vote = {
        "pair_id": int(pair),
        "choice": "left",
        "uuid": f"lost-{by}",
        "ms": 900,
        "strength": "",
        "note": "",
        "by": by,
    }
    page.evaluate("vote => sessionStorage.setItem('rlhf-lab-vote', vote)", json.dumps(vote))


def test_a_vote_that_nobody_answers_is_given_up_after_four_tries_and_its_pair_comes_back(lab, open_page):
    page, held = open_page(lab), []
    page.add_init_script(HURRY)
    page.reload()
    pair = pair_of(page)
    sent = votes_cut(page, *[held.append] * 4)  # a fifth would arrive
    page.evaluate("window.hurry = true")
    page.keyboard.press("1")
    assert page.get_attribute(".lab-label", "data-pair") != pair
    page.wait_for_selector(f".lab-label[data-open='{pair}']")
    page.evaluate("window.hurry = false")
    assert page.evaluate("window.waits")[:4] == [5000, 10000, 20000, 40000]
    assert [(str(one["pair_id"]), one["uuid"]) for one in sent] == [(pair, sent[0]["uuid"])] * 4
    assert page.evaluate(KEPT) == ""
    assert {one["made"] for one in sent} == {made(lab)}
    assert cast(lab) == 0
    page.keyboard.press("2")
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["choice"] for one in sent[4:]] == ["right"]
    assert cast(lab) == 1


def test_a_lost_vote_is_sent_again_by_whoever_cast_it_and_dropped_under_another_name(lab, open_page):
    page = open_page(lab)
    pair, before = pair_of(page), cast(lab)
    me = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    sent = votes_cut(page)
    lose(page, pair, by="somebody else")
    page.reload()
    assert pair_of(page) == pair
    assert page.evaluate(KEPT) == ""
    lose(page, pair, by=me)
    page.reload()
    page.wait_for_selector(f".lab-label[data-open]:not([data-open='{pair}'])")
    assert [one["uuid"] for one in sent] == [f"lost-{me}"]
    assert cast(lab) == before + 1

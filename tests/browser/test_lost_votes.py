"""Votes that do not arrive: when they are given up, and whose they stay."""

import json

from browser_lab import pair_of, votes_cut

from rlhf_lab.store.comparisons import vote_counts
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project

KEPT = "sessionStorage.getItem('rlhf-lab-vote')"


def cast(lab) -> int:
    with Database.open(lab.home) as db:
        return sum(sum(counts.values()) for counts in vote_counts(db, current_project(db).id).values())


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
    page.clock.install()
    page.reload()
    pair = pair_of(page)
    sent = votes_cut(page, *[held.append] * 4)  # a fifth would arrive
    page.keyboard.press("1")
    assert page.get_attribute(".lab-label", "data-pair") != pair
    for tries, wait in enumerate((5, 10, 20, 40), 1):
        while len(sent) < tries:
            page.wait_for_timeout(50)
        page.clock.fast_forward(1000 * wait)
    page.wait_for_selector(f".lab-label[data-open='{pair}']")
    assert [(str(one["pair_id"]), one["uuid"]) for one in sent] == [(pair, sent[0]["uuid"])] * 4
    assert page.evaluate(KEPT) == ""
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

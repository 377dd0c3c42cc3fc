"""Several people in one lab: joining by code on a phone, different pairs, redo, changed answers, roles."""

import json
import re
import sqlite3

import pytest
from browser_lab import current_pair, intercept_votes, kept_requests, press_key, project_created_at
from helpers import call_module, control, open_tab
from playwright.sync_api import expect
from prepared_labs import idle_lab, without_engine

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import newest_pairs, open_project, set_labelling_config
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.shared.presence import PRESENCE_TIMEOUT_S


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A multi-user lab: a visitor without a role is a viewer."""
    home = tmp_path_factory.mktemp("lab") / "home"
    multi_user = idle_lab(home, options=("--host", "0.0.0.0"), environment={"RLHF_LAB_CONTAINER": "0"})
    with without_engine(multi_user) as lab:
        yield lab


def access_keys(lab) -> dict[str, str]:
    return json.loads((lab.home / "access.json").read_text())


def query_rows(lab, query: str) -> list[tuple]:
    with sqlite3.connect(lab.home / "lab.db") as db:
        return db.execute(query).fetchall()


def active_votes(lab) -> list[tuple[str, int, str]]:
    return query_rows(lab, "SELECT annotator, pair_id, choice FROM votes WHERE undone_at IS NULL ORDER BY id")


def join_as(lab, open_page, name: str, **options):
    page = open_page(lab, **options)
    page.wait_for_selector("text=Join to label")
    assert page.locator("[data-do=undo], [data-do=redo], .talks").count() == 0  # a viewer has no controls
    page.click("text=Join to label")
    page.fill("#code", access_keys(lab)["code"].lower())
    page.fill("#name", name)
    page.click("button")
    current_pair(page)
    return page


def pair_of(lab, name):
    """The pair on a person's screen."""
    return query_rows(lab, f"SELECT pair_id FROM leases WHERE annotator = '{name}' ORDER BY leased_at DESC")[0][0]


def test_two_people_join_by_code_and_get_different_pairs(lab, open_page):
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True}
    ann, bob = join_as(lab, open_page, "Ann", **phone), join_as(lab, open_page, "Bo$$")
    assert ann.evaluate("document.documentElement.scrollWidth") <= 390
    for page in (ann, bob):
        expect(control(page, "left")).to_contain_text("First is better")
    assert ann.inner_text("[data-you]") == "you are Ann"
    assert current_pair(ann) != current_pair(bob)
    for _ in range(3):
        pair = current_pair(ann)
        ann.tap("[data-do=left]")
        assert current_pair(ann) != pair
        press_key(bob, "2")
    for page in (ann, bob):
        page.click("summary:has-text('Your earlier labels')")
        expect(page.locator(".earlier select").first.locator("option").first).to_have_text("first is better")
    cast = active_votes(lab)
    assert sorted(name for name, _, _ in cast) == ["Ann"] * 3 + ["Bo$$"] * 3
    assert len({pair for _, pair, _ in cast}) == 6
    assert bob.inner_text("[data-here]") == "2 people here"
    bob.click("role=tab[name='People']")
    bob.wait_for_selector("tr[data-name=Ann]")
    assert bob.inner_text("tr[data-name='Bo$$']").split()[:3] == ["Bo$$", "(you)", "3"]
    expect(bob.locator("[aria-label='who is connected']")).to_contain_text("You, Bo$$, may label.")
    open_tab(bob, "Label")
    expect(bob.locator(".goal [data-here]")).to_have_text("2 people here")
    ann.close()
    expect(bob.locator(".goal [data-here]")).to_be_hidden(timeout=1000 * PRESENCE_TIMEOUT_S / 2)
    assert bob.locator(".invite").count() == 0


def test_undo_redo_and_changing_an_earlier_answer(lab, open_page):
    page = join_as(lab, open_page, "Cid")
    page.click("[data-strength=much]")
    page.fill(".note", "so warm")
    page.click("[data-do=differ]")
    has_marks = page.locator(".side mark").count() > 0  # the two texts are not always similar
    expect(control(page, "differ")).to_have_text("mark differences" if has_marks else "too different to mark")
    page.locator("body").click(position={"x": 2, "y": 2})
    first = press_key(page, "1")
    query = "SELECT strength, note, choice, first_on_left FROM votes WHERE annotator = 'Cid' AND undone_at IS NULL"
    ((strength, note, choice, on_left),) = query_rows(lab, query)
    assert (strength, note, choice) == ("much", "so warm", "first" if on_left else "second")
    page.keyboard.press("u")
    page.wait_for_selector(f".lab-label[data-open='{first}']")
    assert query_rows(lab, query) == []
    press_key(page, "r")
    assert len(query_rows(lab, query)) == 1
    page.click("summary:has-text('Your earlier labels')")
    page.wait_for_selector(".earlier article")
    answer = page.get_by_label("your answer", exact=True)
    assert answer.input_value() == "left"
    expect(page.locator(".earlier [data-do=amend]")).to_be_disabled()
    answer.select_option("right")
    page.get_by_label("how much better", exact=True).select_option("slightly")
    page.locator(".earlier input").fill("  it rhymes")
    page.click(".earlier [data-do=amend]")
    page.wait_for_selector(".lab-notice:has-text('earlier answer was changed')")
    ((strength, note, choice, _),) = query_rows(lab, query)
    assert (strength, note, choice) == ("slightly", "it rhymes", "second" if on_left else "first")


RULE_CHOICES = {
    "sampling": [
        "any", "two of four texts: complete, of similar length", "whose answers are expected to teach the most",
        "where the reward model is least sure", "least similar to the existing pairs",
    ],
    "texts": ["the base model", "the newest checkpoint of a run"],
}  # fmt: skip


def test_the_operator_changes_the_rules_for_everybody_and_removes_a_person(lab, open_page):
    page = join_as(lab, open_page, "<b>Rude</b>")
    operator = open_page(lab)
    operator.goto(f"{lab.url}enter?key={access_keys(lab)['operator']}")
    operator.click("role=tab[name='People']")
    operator.wait_for_selector(f"[data-code='{access_keys(lab)['code']}']")
    assert operator.locator(".invite svg.qr path").count() == 1
    link = operator.locator(".invite .lab-text")  # the whole link can be copied; the part to type is emphasized
    expect(link).to_have_text(re.compile(f"/join\\?code={access_keys(lab)['code']}$"))
    expect(link.locator(".muted")).to_have_text(f"?code={access_keys(lab)['code']}")
    wide = "document.querySelector('.invite svg.qr').getBoundingClientRect().width"
    usual = operator.evaluate(wide)
    operator.click("[data-do=projector]")
    assert operator.evaluate(wide) > 1.5 * usual  # legible from the back of a room
    operator.click("[data-do=projector]")
    operator.click("summary:has-text('Labelling rules')")
    for name, words in RULE_CHOICES.items():
        expect(operator.locator(f"select[name={name}] option")).to_have_text(words)
    appearances = "boxes => boxes.map(box => getComputedStyle(box).appearance)"  # otherwise Gradio hides the tick
    assert set(operator.locator(".lab-people [type=checkbox]").evaluate_all(appearances)) == {"auto"}
    operator.check("[name=markdown]")
    operator.fill("[name=guideline]", "Prefer the kinder text.")
    operator.click("text=Use these rules")
    operator.wait_for_selector(".rules-form .result:has-text('From the next pair on')")
    press_key(page, "1")
    assert page.inner_text(".guideline") == "Prefer the kinder text."
    assert page.locator(".side .lab-markdown").count() == 2

    operator.click("summary:has-text('Remove a person from this lab')")
    operator.locator("[data-do=erase-name]").select_option("<b>Rude</b>")
    operator.click("[data-do=erase]")
    expect(operator.locator(".lab-question")).to_contain_text(
        "Remove <b>Rude</b> from every project permanently, and keep"
    )
    operator.click("[data-do=erase-sure]")
    operator.wait_for_selector(".lab-people .erasure .result:has-text('The name was removed from this lab')")
    expect(operator.locator("[data-do=erase-name] option", has_text="Rude")).to_have_count(0)
    assert "<b>Rude</b>" not in [name for name, _, _ in active_votes(lab)]
    expect(page.locator("[data-do=out-notice]")).to_be_visible()  # without any action


def test_who_logs_out_is_a_viewer_whose_lost_vote_is_not_sent_until_it_is_discarded(lab, open_page):
    page = join_as(lab, open_page, "Lou")
    page.click("[data-do=log-out]")
    expect(page.locator("form")).to_contain_text("You are logged in as Lou.")
    page.click("button")
    page.wait_for_selector("text=Join to label")
    assert page.locator("[data-you]").count() == 0
    vote = {"name": "vote", "pair_id": 1, "choice": "left", "uuid": "lost"}
    vote["project_created_at"] = project_created_at(lab)
    vote["by"] = page.evaluate("localStorage.getItem('rlhf-lab-annotator')")
    call_module(page, "label/kept_requests.js", "keepRequest", vote)
    sent = intercept_votes(page)
    page.reload()
    page.wait_for_selector("text=With the join code you get a new name")
    assert kept_requests(page) == ["lost"]
    page.click("[data-do=discard-vote]")
    assert kept_requests(page) == []
    page.wait_for_timeout(500)
    assert sent == []
    page.goto(f"{lab.url}enter?key=not+the+secret")  # a wrong key does not stay in the address
    page.wait_for_selector("text=not the operator's link")
    assert page.url == f"{lab.url}enter"
    assert "403" in open_page.console_messages.pop()


def test_gold_pairs_and_an_experts_decision(lab, open_page):
    """The operator makes a gold pair, decides blind what two people disagree about, and makes an expert."""
    with Database.open(lab.home) as db:
        project = new_project(db)
        open_project(db, project.id)
        disputed = newest_pairs(db, project.id, 1)[0]
        for name, choice in (("Ida", Choice.FIRST), ("Jon", Choice.SECOND)):
            cast_vote(db, Vote(f"{name}-dispute", disputed.id, name, Source.HUMAN, choice, True))
    operator = open_page(lab)
    operator.goto(f"{lab.url}enter?key={access_keys(lab)['operator']}")
    press_key(operator, "1")
    ((gold,),) = query_rows(lab, f"SELECT max(pair_id) FROM votes WHERE pair_id <> {disputed.id}")
    operator.click("summary:has-text('Your earlier labels')")
    operator.click("[data-do=gold]")
    operator.wait_for_selector("[data-do=gold][aria-pressed=true]")
    with Database.open(lab.home) as db:
        set_labelling_config(db, project.id, LabellingConfig(gold_rate=0.5, overlap=2))
        cast_vote(db, Vote("Kim-gold", gold, "Kim", Source.HUMAN, Choice.FIRST, True))

    operator.wait_for_selector("summary:has-text('People disagree about 1 pair')", timeout=20_000)
    operator.click("summary:has-text('People disagree')")
    operator.click("[data-do=adjudicate]")
    operator.wait_for_selector(".lab-label[data-open] .decision")
    assert operator.locator("text=Ida").count() == 0
    press_key(operator, "2")
    assert operator.locator(".decision").count() == 0
    ((choice, on_left),) = query_rows(
        lab, f"SELECT choice, first_on_left FROM votes WHERE adjudication AND pair_id = {disputed.id}"
    )
    assert choice == ("second" if on_left else "first")

    operator.click("role=tab[name='People']")
    operator.click("summary:has-text('Gold pairs and experts')")
    row = operator.locator(".gold tr[data-name=Kim]")
    expect(row.locator("td").first).to_have_text(re.compile("^[01] of 1$"), timeout=10_000)
    row.locator("[data-do=expert]").check()
    operator.wait_for_selector(".gold .result:has-text('Kim is an expert')")


def test_the_next_class_joins_with_the_code_on_the_stage(lab, open_page):
    page = join_as(lab, open_page, "Zoe", viewport={"width": 390, "height": 844})
    operator = open_page(lab, viewport={"width": 1920, "height": 1080})
    operator.goto(f"{lab.url}enter?key={access_keys(lab)['operator']}")
    operator.click("[data-do=stage]")
    stage = operator.get_by_role("dialog", name="stage")
    expect(stage).to_contain_text("Which text is better?")
    old = access_keys(lab)["code"]
    expect(stage.locator(".code")).to_have_text(old)
    smallest = stage.evaluate(
        """stage => Math.min(...[...stage.querySelectorAll('*')].filter(
          (node) => node.checkVisibility() && [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())
        ).map((node) => parseFloat(getComputedStyle(node).fontSize)))"""
    )
    assert smallest >= 28
    stage.locator("[data-do=next-class]").click()
    dialog = operator.get_by_role("dialog", name="next class")
    dialog.get_by_label("New project").uncheck()
    dialog.locator("[data-do=class-begin]").click()
    expect(dialog.get_by_role("status")).to_contain_text("The new join code is")
    expect(dialog.locator(".code")).to_have_text(access_keys(lab)["code"])
    assert access_keys(lab)["code"] != old
    expect(stage.locator(".code")).to_have_text(access_keys(lab)["code"])
    dialog.locator("[data-do=class-close]").click()
    operator.keyboard.press("Escape")
    expect(stage).to_have_count(0)
    operator.click("[data-do=stage]")
    expect(stage.locator(".code")).to_have_text(access_keys(lab)["code"])  # also when it is opened again
    expect(control(page, "out-notice")).to_contain_text("no longer logged in")
    page.reload()
    page.wait_for_selector("text=Join to label")

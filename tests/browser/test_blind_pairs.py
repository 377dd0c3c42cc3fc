"""Blind tests and tournaments of stored texts: keys, results, answers that are sent again, renaming and deleting."""

import json

import pytest
from accessibility import inspect_screen
from browser_lab import Lab
from helpers import control, expect_text, open_screen, open_tab
from playwright.sync_api import expect
from prepared_labs import fill_pool, finish_job, without_engine
from test_people_screen import access_keys, join_as

from rlhf_lab.common.enums import Choice, JobKind
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.blind_tests import add_test, answers
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.tournaments import add_tournament, tournament_answers

CONTESTANTS = {"base": "a", "base/best/4": "b", "run/1/5": "c"}  # "a 0" is what the base wrote to the first prompt
TEXTS = "[...document.querySelectorAll('.tournament .side .lab-text')].map((text) => text.innerText)"
#: A click is lost if Gradio draws the screen anew while the page loads.
OPEN_TOURNAMENT = """() => {
  const fold = document.querySelector('.tournament');
  if (fold && !fold.open) fold.querySelector('summary').click();
  return fold?.querySelector('[data-do=tournament-next]');
}"""
KEPT = "localStorage.getItem('rlhf-lab-blind-answer')"


def add_blind_test(db, project_id: int, left_out=()) -> int:
    """A blind test of 6 pairs, without the pairs of the prompts at these positions, which were too long. Returns its id."""
    jobs, positions = [], [i for i in range(6) if i not in left_out]
    for checkpoint, letter in (("base", "a"), ("run/1/5", "b")):
        payload = {"checkpoint": checkpoint, "prompts": [one.text for one in prompts(db, project_id, "eval")[:6]]}
        payload |= {"max_new_tokens": 24, "leave_out": True}
        jobs.append(queue.submit(db, JobKind.COMPLETE, project_id, payload))
        texts = [f"{letter} {i}" for i in positions]
        finish_job(db, jobs[-1], {"texts": texts, "scores": [0.0] * len(texts), "left_out": list(left_out)})
    return add_test(db, project_id, jobs[0].id, jobs[1].id).id


def fill_home(home) -> None:
    """A blind test of 6 pairs and a tournament of 3 contestants, both with stored texts."""
    with Database.open(home) as db:
        project = new_project(db)
        add_blind_test(db, project.id)
        job = queue.submit(db, JobKind.TOURNAMENT, project.id, {})
        rows = [
            {"model": model, "texts": [f"{letter} {i}" for i in range(8)], "scores": [0.5] * 8, "kl": [1.5] * 8}
            for model, letter in CONTESTANTS.items()
        ]
        prompt_texts = [one.text for one in prompts(db, project.id, "eval")[:8]]
        finish_job(db, job, {"prompts": prompt_texts, "contestants": rows})
        add_tournament(db, project.id, job.id)
        fill_pool(db, project.id)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    home = tmp_path_factory.mktemp("blind") / "home"
    fill_home(home)
    with without_engine(Lab(home)) as lab:
        yield lab


@pytest.fixture
def shared_lab(tmp_path):
    """One that several people use."""
    fill_home(tmp_path / "home")
    with without_engine(Lab(tmp_path / "home", options=("--host", "0.0.0.0"))) as lab:
        yield lab


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


def test_an_unanswered_answer_is_sent_again_unless_it_is_discarded_or_not_this_pair(lab, open_page):
    page, before = open_test(lab, open_page), answer_count(lab)
    lose_answer(page)
    page.click("[data-do=blind-discard]")
    expect_text(page, "blind-notice", "no longer sent")
    assert page.evaluate(KEPT) is None
    page.context.set_offline(False)
    page.wait_for_timeout(3000)
    assert answer_count(lab) == before
    expect(page.locator("[data-judged='0']")).to_be_visible()

    lose_answer(page)
    page.context.set_offline(False)
    page.wait_for_selector("[data-judged='1']")
    assert answer_count(lab) == before + 1
    assert page.evaluate(KEPT) is None

    lose_answer(page)
    stored = json.loads(page.evaluate(KEPT))
    store = "kept => localStorage.setItem('rlhf-lab-blind-answer', JSON.stringify(kept))"
    page.context.set_offline(False)
    page.evaluate(store, stored | {"by": "another"})
    page.reload()
    open_tab(page, "Compare")
    page.wait_for_selector("[data-judged]")
    page.wait_for_timeout(3000)
    assert json.loads(page.evaluate(KEPT))["by"] == "another"
    page.evaluate(store, stored | {"pair": stored["pair"] | {"left": "of another lab"}})
    expect_text(page, "blind-notice", "stored now")
    assert page.evaluate(KEPT) is None
    assert answer_count(lab) <= before + 2
    open_page.console_messages.clear()


def add_and_pick(lab, *pages, left_out=()) -> str:
    """Add a blind test, and choose it on the pages. Returns its id."""
    with Database.open(lab.home) as db:
        number = str(add_blind_test(db, 1, left_out))
    for page in pages:
        page.locator(f"[data-do=blind-pick] option[value='{number}']").wait_for(state="attached")
        control(page, "blind-pick").select_option(number)
        page.wait_for_selector("[data-judged='0']")
        page.locator(".blind h2").click()  # leave the field
    return number


def test_blind_test_is_judged_by_keys_and_reveals_the_models(lab, open_page):
    page, another = open_screen(lab, open_page, "Compare"), open_screen(lab, open_page, "Compare")
    add_and_pick(lab, page, another)
    judged, chosen = [], []
    while len(judged) < 5:
        left, right = (page.inner_text(f".blind .{side} .lab-text") for side in ("left", "right"))
        judged.append(sorted((left, right)))
        key = "102"[len(judged) % 3]
        chosen += {"1": [left], "2": [right], "0": []}[key]
        page.keyboard.press(key)
        page.wait_for_selector(f"[data-judged='{len(judged)}']")
    expect(control(another, "blind-others")).to_have_text("1 other: 1 in progress")
    expect(control(page, "blind-others")).to_have_text("")  # a visitor without answers does not count
    shown = page.locator(".blind .sides").element_handle()
    control(another, "blind-stop").click()
    expect_text(another, "blind-result", "Those who judged")
    expect(control(page, "blind-others")).to_have_text("1 other: 1 done")  # although it decided no pair
    assert shown.evaluate("node => node.isConnected")  # the page is not redrawn
    control(page, "blind-tie").click()
    expect_text(page, "blind-result", f"{len(chosen)} decided pair")
    for one in (page, another):
        expect(control(one, "blind-others")).to_have_text("1 other: 1 done")
    page.locator(".blind details summary").click()
    rows = page.locator(".blind tbody tr")
    expect(rows).to_have_count(6)
    texts = [sorted(row.locator("td:not(:first-child) .lab-text").all_inner_texts()) for row in rows.all()]
    assert texts[:5] == judged
    chosen_cells = rows.locator("td", has_text="you chose this").locator(".lab-text")
    assert chosen_cells.all_inner_texts() == chosen
    page.reload()
    open_tab(page, "Compare")
    expect_text(page, "blind-result", f"{len(chosen)} decided pair")


def test_blind_test_is_renamed_and_deleted(lab, open_page):
    page = open_screen(lab, open_page, "Compare")
    control(page, "blind-pairs").fill("999")
    control(page, "blind-begin").click()
    expect_text(page, "blind-notice", "from 1 to 64")
    page.wait_for_selector("[data-judged]")
    judged = control(page, "blind-pick").input_value()
    names = control(page, "blind-pick").locator("option")
    count = names.count()
    with Database.open(lab.home) as db:
        add_blind_test(db, 1)
    expect(names).to_have_count(count + 1)
    for _ in range(2):  # a newer test does not replace the one being judged
        with page.expect_response("**/lab-api/blind_test/get_state"):
            pass
    expect(control(page, "blind-pick")).to_have_value(judged)
    add_and_pick(lab, page, left_out=(1, 4))
    expect_text(page, "blind-left-out", "2 prompts left out: too long for the model with 24 new tokens.")
    requests, released = [], []

    def hold(route):
        route.continue_() if released else requests.append(route)

    page.route("**/lab-api/compare/options", hold)  # the new name is shown without another request
    control(page, "blind-rename").click()
    control(page, "blind-name").fill("<img src=x onerror=alert(1)> {{ value }} <b>once")
    page.keyboard.press("Enter")
    expect_text(page, "blind-notice", "is called")
    expect(names.first).to_contain_text("<img src=x onerror=alert(1)> {{ value }} <b>once")
    released.append(True)
    for route in requests:
        route.continue_()
    page.wait_for_selector("[data-judged='0']")
    page.keyboard.press("1")
    page.wait_for_selector("[data-judged='1']")
    control(page, "blind-delete").click()
    expect(page.locator(".lab-question")).to_contain_text("permanently, with its texts and 1 answer of one person?")
    control(page, "blind-delete-leave").click()
    expect(names).to_have_count(count + 2)
    control(page, "blind-delete").click()
    control(page, "blind-delete-sure").click()
    expect_text(page, "blind-notice", "is deleted, with its texts and 1 answer of one person.")
    expect(names).to_have_count(count + 1)


@pytest.mark.parametrize(
    ("screen", "area", "buttons"),
    [
        ("Compare", ".blind", ("blind-left", "blind-right", "blind-tie")),
        ("Label", ".lab-label", ("left", "right", "tie")),
    ],
)
def test_both_texts_are_in_view_and_the_buttons_do_not_move_with_their_length(lab, open_page, screen, area, buttons):
    """Nor does a button look chosen where the mouse rests."""
    page = open_screen(lab, open_page, screen, viewport={"width": 1280, "height": 800})
    texts = page.locator(f"{area} .side .lab-text")
    expect(texts).to_have_count(2)
    background = "node => getComputedStyle(node).backgroundColor"
    at_rest, boxes = control(page, buttons[0]).evaluate(background), []
    control(page, buttons[0]).hover()
    for text in ("A pear.", "word " * 900):
        texts.first.evaluate("(node, text) => { node.textContent = text; dispatchEvent(new Event('resize')); }", text)
        for shown in (*texts.all(), *(control(page, name) for name in buttons)):
            expect(shown).to_be_in_viewport(ratio=1)
        boxes.append([control(page, name).bounding_box() for name in buttons])
    assert boxes[0] == boxes[1]
    page.wait_for_timeout(200)  # longer than a transition of colors
    assert control(page, buttons[0]).evaluate(background) == at_rest
    page.set_viewport_size({"width": 390, "height": 844})
    expect(texts.first).to_be_in_viewport(ratio=1)


def open_tournament(lab, open_page):
    """A page whose visitor judges the tournament."""
    page = open_screen(lab, open_page, "Compare")
    page.wait_for_function(OPEN_TOURNAMENT, polling=500)
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
    labeller.locator(".blind .asked").click()
    labeller.keyboard.press("1")
    labeller.wait_for_selector("[data-judged='1']")
    expect(control(operator, "blind-stop")).to_be_hidden()
    control(labeller, "blind-stop").click()
    expect(labeller.locator(".blind .stage")).to_contain_text("shown when the operator ends the test")
    expect(control(labeller, "blind-end")).to_be_disabled()

    control(operator, "blind-end").click()
    expect(operator.locator(".lab-question")).to_contain_text("End test 1 for everybody?")
    control(operator, "blind-end-leave").click()
    expect(control(operator, "blind-end")).to_be_focused()
    control(operator, "blind-end").click()
    control(operator, "blind-end-sure").click()
    expect_text(operator, "blind-notice", "Test 1 has ended. Its result is shown now.")
    expect_text(operator, "blind-result", "Those who judged like")
    expect(control(operator, "blind-end")).to_have_count(0)
    expect_text(labeller, "blind-result", "You like")

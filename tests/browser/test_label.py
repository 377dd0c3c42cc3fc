"""Labelling in a real browser: keys, buttons, undo, double key presses, hostile text."""

import re
import sqlite3

from browser_lab import current_pair, intercept_votes, press_key
from helpers import change_replies, wait_until
from playwright.sync_api import expect
from prepared_labs import finish_job

from rlhf_lab.common.enums import JobKind
from rlhf_lab.common.records import NewCompletion
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.answer_length import accept_proposal
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database


def votes(lab) -> list[tuple]:
    with sqlite3.connect(lab.home / "lab.db") as db:
        return db.execute(
            "SELECT pair_id, annotator, choice, first_on_left, undone_at, response_ms FROM votes"
        ).fetchall()


def test_every_answer_by_key_and_undo(lab, open_page):
    page = open_page(lab)
    pair, left = int(current_pair(page)), page.locator(".side.left .lab-text").inner_text()
    page.reload()
    assert (int(current_pair(page)), page.locator(".side.left .lab-text").inner_text()) == (pair, left)
    page.click("[data-do=left]")
    assert current_pair(page) != str(pair)
    with Database.open(lab.home) as db:
        shown = projects.get_pair(db, pair)
    assert getattr(shown, votes(lab)[-1][2]).text.strip() == left
    count = len(votes(lab))
    pairs = [press_key(page, key) for key in ("1", "2", "0", "x", "s", "ArrowLeft", "ArrowRight", "=")]
    assert len(set(pairs)) == 8
    cast = votes(lab)[count:]
    assert [str(vote[0]) for vote in cast] == pairs
    words = [vote[2] for vote in cast]
    assert words[2:5] == ["tie", "both_bad", "skip"]
    assert words[7] == "tie"
    left = [("first" if vote[3] else "second") for vote in cast]
    assert words[0] == left[0]
    assert words[5] == left[5]
    assert words[1] == ("second" if cast[1][3] else "first")
    assert all(vote[5] > 0 for vote in cast)
    page.keyboard.press("u")
    page.wait_for_selector(f".lab-label[data-open='{pairs[-1]}']")
    assert votes(lab)[-1][4] is not None
    # nine votes, one of them undone, one a skip
    assert page.locator("[data-count]").get_attribute("data-count") == "7"


def test_pair_is_shown_before_gradio_has_rendered_the_page(lab, open_page):
    """While Gradio's script is delayed, the pair can be read but not judged. A reload on another screen does not show it."""
    page, held_requests, pair_requests = open_page(lab), [], []

    def hold(route):
        held_requests.append(route)

    pair = current_pair(page)
    texts = [page.locator(f".lab-label .{side} .lab-text").inner_text() for side in ("left", "right")]
    page.route("**/assets/index*.js", hold)
    page.on("request", lambda request: pair_requests.append(request.url) if request.url.endswith("/first") else None)
    page.reload(wait_until="commit")
    first = page.locator(".lab-first")
    expect(first.locator(".side .lab-text")).to_have_text(texts)
    assert first.locator("button:not(:disabled)").count() == 0
    assert page.locator(".lab-label").count() == 0
    for request in held_requests:
        request.continue_()
    page.unroute("**/assets/index*.js")
    assert current_pair(page) == pair
    expect(first).to_have_count(0)
    assert len(pair_requests) == 1
    page.get_by_role("tab", name="Compare").click()
    page.reload()
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    assert len(pair_requests) == 1


#: JavaScript: the first click on "Compare" is lost, and the frames that scripts request are counted.
DEAF_TAB_AND_FRAMES = """new MutationObserver((_, watcher) => {
        const tab = [...document.querySelectorAll('[role=tab]')].find((one) => one.textContent.trim() === 'Compare');
        if (!tab) return;
        watcher.disconnect();
        tab.addEventListener('click', (event) => {
            if (!window.deaf) { window.deaf = 1; event.stopImmediatePropagation(); }
        }, true);
    }).observe(document, {childList: true, subtree: true});
    const draw = window.requestAnimationFrame; window.frames_drawn = 0;
    window.requestAnimationFrame = (callback) => { window.frames_drawn += 1; return draw(callback); };"""


def test_gradios_page_rests_repeats_a_lost_click_and_waits_for_plotly(lab, open_page):
    page, held_requests = open_page(lab), []

    def hold(route):
        held_requests.append(route)

    page.add_init_script(DEAF_TAB_AND_FRAMES)
    page.reload()
    page.get_by_role("tab", name="Compare").click()
    expect(page.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    assert page.evaluate("window.deaf") == 1
    page.get_by_role("tab", name="Label").click()
    current_pair(page)
    page.wait_for_timeout(3000)
    page.evaluate("window.frames_drawn = 0")
    page.wait_for_timeout(2000)
    assert page.evaluate("window.frames_drawn") < 30  # a loop would draw 120
    page.route("**/plotly.min.js*", hold)
    page.get_by_role("tab", name="Reward model").click()
    before = "() => getComputedStyle(document.querySelector('.lab-reward'), '::before').content"
    page.wait_for_function(f"() => document.querySelector('.lab-reward') && ({before})() === '\"Opening …\"'")
    for request in held_requests:
        request.continue_()
    page.wait_for_selector(".lab-reward [data-do=train]")
    assert page.evaluate(before) == "none"


def test_next_pair_is_shown_at_once_and_disabled_until_the_last_vote_is_stored(lab, open_page):
    """Without a reply the same vote is sent again, and counts once."""
    page = open_page(lab)
    first = press_key(page, "1")
    second, count = current_pair(page), len(votes(lab))
    held_requests = []

    def hold(route):
        held_requests.append(route)

    sent = intercept_votes(page, lambda route: route.fetch(), hold)
    page.click("[data-strength=much]")
    page.fill(".more .note", "so warm")
    page.locator("body").click(position={"x": 2, "y": 2})
    page.keyboard.press("2")
    third = page.get_attribute(".lab-label", "data-pair")
    assert third not in (first, second)  # at once
    page.wait_for_timeout(400)
    page.keyboard.press("1")
    assert page.get_attribute(".lab-label", "data-pair") == third
    expect(page.locator(".lab-label .lab-notice")).to_contain_text("is not stored yet")
    wait_until(lambda: held_requests, "the vote that is sent again", page)
    held_requests[0].continue_()
    page.wait_for_selector(f".lab-label[data-open='{third}']")
    expect(page.locator(".lab-label .lab-notice")).to_contain_text("Your last answer is stored now.")
    assert [one["uuid"] for one in sent] == [sent[0]["uuid"]] * 2
    assert len(votes(lab)) == count + 1
    page.keyboard.press("u")
    page.wait_for_selector(f".lab-label[data-open='{second}']")
    expect(page.locator(".more .note")).to_have_value("so warm")
    expect(page.locator("[data-strength=much]")).to_have_attribute("aria-pressed", "true")


def test_a_double_press_is_one_vote_and_an_answer_within_the_reading_time_is_ignored(lab, open_page):
    page = open_page(lab)
    before, count = current_pair(page), len(votes(lab))
    page.evaluate(
        "for (let i = 0; i < 2; i++) document.dispatchEvent(new KeyboardEvent('keydown', {key: '1', bubbles: true}))"
    )
    page.wait_for_function("b => document.querySelector('.lab-label').dataset.pair !== b", arg=before)
    page.wait_for_timeout(500)
    current_pair(page)
    assert len(votes(lab)) == count + 1
    page.evaluate("""() => new MutationObserver((_, watcher) => {
        watcher.disconnect();
        document.dispatchEvent(new KeyboardEvent('keydown', {key: 'x', bubbles: true}));
        document.querySelector('[data-do=both_bad]').click();
    }).observe(document.querySelector('.lab-label'), {attributeFilter: ['data-pair']})""")
    press_key(page, "1")
    message = page.locator(".lab-label .message")
    expect(message).to_have_text("That was too fast to read the new pair, so it did not count.")
    press_key(page, "2")
    expect(message).to_be_empty()
    assert [vote[2] for vote in votes(lab)[count:] if vote[2] == "both_bad"] == []
    assert len(votes(lab)) == count + 3


def test_shortcuts_are_off_in_input_fields_with_modifiers_and_on_other_screens(lab, open_page):
    page = open_page(lab)
    press_key(page, "1")
    before, cast = current_pair(page), votes(lab)
    page.click("summary:has-text('Demonstration')")
    page.click("summary:has-text('Your earlier labels')")
    for field in (".more .note", ".earlier .note"):
        page.locator(field).first.click()
        page.keyboard.type("1 2 x s u")
        expect(page.locator(field).first).to_have_value("1 2 x s u")
    for choice in (".talks select", ".earlier select"):
        page.locator(choice).first.focus()
        page.keyboard.type("12xsu")
    page.locator("body").click(position={"x": 2, "y": 2})
    page.keyboard.press("Control+1")
    page.keyboard.press("Alt+2")
    page.get_by_role("tab", name="People").click()
    page.keyboard.press("1")
    page.wait_for_timeout(400)
    assert page.get_attribute(".lab-label", "data-pair") == before
    assert votes(lab) == cast


def test_late_count_does_not_replace_a_newer_one(lab, open_page):
    page, replies = open_page(lab), []

    def first_reply(reply):
        """The first count, with 77 people here."""
        replies.append(reply | {"people_here": 77})
        return replies[0]

    change_replies(page, "label/presence", first_reply)
    page.wait_for_selector("[data-here='77']")
    count = int(page.get_attribute("[data-count]", "data-count"))
    press_key(page, "1")
    expect(page.locator("[data-count]")).to_have_attribute("data-count", str(count + 1))
    expect(page.locator("[data-here]")).not_to_have_attribute("data-here", "77")  # the reply to the vote
    page.wait_for_selector("[data-here='77']")
    assert page.get_attribute("[data-count]", "data-count") == str(count + 1)


HOSTILE = (
    "${alert(1)} {{value}} {{#each value}}x{{/each}}",
    "<img src=x onerror=alert(2)><script>alert(3)</script> [link](javascript:alert(4)) كان يا ما كان في قديم الزمان",
)


def test_hostile_texts_are_inert(lab, open_page):
    with Database.open(lab.home) as db:
        project = projects.projects(db)[-1]
        prompt = projects.prompts(db, project.id, "train")[0]
        made = projects.add_completions(db, [NewCompletion(prompt.id, text, (), "base", 0) for text in HOSTILE])
        pair = projects.add_pairs(db, project.id, [(made[0].id, made[1].id, "test")])[0]
        with db.write() as conn:  # each other pair was skipped by somebody: this one comes next
            conn.exec_driver_sql(
                "INSERT INTO votes (uuid, pair_id, annotator, source, choice, first_on_left, created_at)"
                " SELECT 'bulk-' || id, id, 'crowd-' || id, 'human', 'skip', 1, 0 FROM pairs"
                f" WHERE id <> {pair.id}"
            )
    page = open_page(lab, viewport={"width": 390, "height": 800})
    assert current_pair(page) == str(pair.id)
    assert {page.inner_text(f".side.{side} .lab-text").strip() for side in ("left", "right")} == set(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator(".lab-label script, .lab-label img").count() == 0


def test_judge_labels_on_request_and_a_new_project_begins(lab, open_page):
    with Database.open(lab.home) as db:
        before = len(projects.projects(db))
    page = open_page(lab)
    current_pair(page)
    page.click("summary:has-text('Demonstration')")
    page.click("[data-do=judge]")
    expect(page.locator(".goal")).to_contain_text("40 simulated, kept apart")
    cast = votes(lab)
    for action in ("close", "begin"):
        page.click(".lab-label [data-do=next-class]")
        page.get_by_role("dialog", name="next class").locator(f"[data-do=class-{action}]").click()
    expect(page.get_by_role("dialog", name="next class").get_by_role("status")).to_contain_text("is open now")
    page.click("[data-do=class-close]")
    expect(page.locator("[data-count]")).to_have_attribute("data-count", "0")
    expect(page.locator(".goal")).not_to_contain_text("simulated")
    expect(page.locator(".lab-header .lab-badge", has_text=re.compile("^0 labels$"))).to_be_visible()
    assert votes(lab) == cast
    with Database.open(lab.home) as db:
        assert len(projects.projects(db)) == before + 1
    press_key(page, "1")
    expect(page.locator("[data-count]")).to_have_attribute("data-count", "1")


def test_the_note_about_cut_texts_goes_when_its_proposal_is_accepted(lab, idle_project, open_page):
    row = {"texts": 32, "low": 0.0, "high": 1.0, "mean_tokens": 40.0, "seconds": 1.0, "adds_instruction": False}
    rows = [{**row, "max_new_tokens": 64, "complete": 10}, {**row, "max_new_tokens": 96, "complete": 32}]
    with Database.open(lab.home) as db:
        job = queue.submit(db, JobKind.MEASURE_LENGTH, idle_project.id, {})
        finish_job(db, job, {"rows": rows, "system_prompt": "", "seconds": 9.0, "note": ""})
        page = open_page(lab)
        note = page.locator("[data-do=length-note]")
        expect(note).to_contain_text("Many texts are cut off")
        accept_proposal(db, idle_project.id)
        pair = press_key(page, "1")
        expect(note).to_have_count(0)
        assert current_pair(page) != pair

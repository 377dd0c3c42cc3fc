"""All seven answer buttons of the screen "Label" are visible when it opens, for any size of the window and the texts."""

import pytest
from browser_lab import current_pair, press_key
from helpers import change_replies, open_tab
from playwright.sync_api import expect

from rlhf_lab.common.records import NewCompletion
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database

BUTTONS = ("left", "right", "tie", "both_bad", "skip", "undo", "redo")
ANSWERS = [f".lab-label [data-do={name}]" for name in BUTTONS]
SIZES = [(844, 390), (568, 320), (667, 375), (320, 568), (360, 640), (390, 844), (1280, 620)]
SIZES_IN_TWO_PARTS = [(844, 390), (320, 568), (390, 844)]
FITS = "node => node.scrollHeight <= node.clientHeight + 1"
WIDE_ENOUGH = "node => node.scrollWidth <= node.clientWidth + 1"
LINES = "node => node.clientHeight / parseFloat(getComputedStyle(node).lineHeight)"
TEXTS = {"short": ("A pear.", "A plum, or a fig."), "long": ("word " * 1200, "W" * 3000 + " word" * 600)}


@pytest.fixture(scope="module", params=TEXTS)
def lab_with_pair(lab, request):
    """A lab whose next pair has these texts, long ones under a long prompt and a guideline. Returns (lab, kind of texts)."""
    with Database.open(lab.home) as db:
        project = projects.projects(db)[-1]
        prompt = projects.prompts(db, project.id, "train")[0]
        texts = [
            NewCompletion(prompt.id, text, (9, side), "base", side) for side, text in enumerate(TEXTS[request.param])
        ]
        made = projects.add_completions(db, texts)
        pair = projects.add_pairs(db, project.id, [(made[0].id, made[1].id, "test")])[0]
        with db.write() as conn:  # each other pair was skipped by somebody: this one comes next
            conn.exec_driver_sql(
                "INSERT INTO votes (uuid, pair_id, annotator, source, choice, first_on_left, created_at)"
                f" SELECT 'bulk-{pair.id}-' || id, id, 'crowd-{pair.id}-' || id, 'human', 'skip', 1, 0 FROM pairs"
                f" WHERE id <> {pair.id}"
            )
            if request.param == "long":
                conn.exec_driver_sql(
                    f"UPDATE prompts SET text = '{'Tell a tale of a fox. ' * 40}' WHERE id = {prompt.id}"
                )
        guideline = "Prefer the text that a child would like to hear. " * 6 if request.param == "long" else ""
        projects.set_labelling_config(db, project.id, LabellingConfig(guideline=guideline, overlap=10))
    return lab, request.param


def expect_buttons_in_view(page, selectors) -> None:
    for selector in selectors:
        expect(page.locator(selector)).to_be_in_viewport(ratio=1)
    assert page.evaluate("window.scrollY") == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def reload_in_two_parts(page) -> None:
    """Reload; the buttons have their places already before Gradio has rendered the page."""
    requests = []
    page.route("**/assets/index*.js", lambda route: requests.append(route))  # noqa: PLW0108  Playwright reads its signature
    page.reload(wait_until="commit")
    expect(page.locator(".lab-first button")).to_have_count(7)
    expect_buttons_in_view(page, [f".lab-first button >> nth={i}" for i in range(7)])
    for request in requests:
        request.continue_()
    page.unroute("**/assets/index*.js")
    current_pair(page)


def test_all_answers_are_visible_when_the_screen_opens(lab_with_pair, open_page):
    lab, kind = lab_with_pair
    page = open_page(lab)
    sides = [page.locator(f".side.{name} .lab-text") for name in ("left", "right")]
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        if (width, height) in SIZES_IN_TWO_PARTS:
            reload_in_two_parts(page)
        else:
            page.reload()
            current_pair(page)
        expect_buttons_in_view(page, ANSWERS)
        page.evaluate("document.body.classList.toggle('dark')")
        expect_buttons_in_view(page, ANSWERS)
        for selector in ANSWERS:
            box = page.locator(selector).bounding_box()
            assert min(box["width"], box["height"]) >= 40, selector  # for a thumb
        if kind == "short":
            assert [body.evaluate(FITS) for body in sides] == [True, True]
        else:  # each text scrolls separately
            assert sides[0].evaluate("node => { node.scrollTop = 200; return node.scrollTop; }") == 200
            assert sides[1].evaluate("node => node.scrollTop") == 0
            assert min(body.bounding_box()["height"] for body in sides) >= 40
        if (width, height) == (390, 844):
            expect(page.locator("#lab-question")).to_be_in_viewport()
            expect(page.locator(".lab-header .strip > .what")).to_be_visible()  # the project's name
            expect(page.locator("[role=tablist][data-more=true]")).to_be_visible()
            assert [page.locator(f".lab-header {name}").evaluate(WIDE_ENOUGH) for name in (".strip", ".missing")] == [
                True,
                True,
            ]
        if (kind, width) == ("long", 390):
            assert sum(body.evaluate(LINES) for body in sides) >= 8
        if (kind, width) == ("short", 390):  # a long text gets the room that the short one leaves
            sides[0].evaluate("node => { node.textContent = 'word '.repeat(50); dispatchEvent(new Event('resize')); }")
            assert sides[0].evaluate(FITS)
            expect_buttons_in_view(page, ANSWERS)
        if height >= 568:
            page.evaluate("document.querySelector('.lab-header').style.minHeight = '100px'")  # a job is shown there
            expect_buttons_in_view(page, ANSWERS)


def places(page, selectors) -> list[float]:
    """Positions and sizes, in pixels."""
    return [value for selector in selectors for value in page.locator(selector).bounding_box().values()]


def test_buttons_do_not_move_between_pairs(lab, open_page):
    """Long and short texts, a prompt of one line and one that scrolls, on a phone with and without room for the last panel."""
    texts = ["A pear.", "word " * 40, "A plum, or a fig.", "word " * 400, "a b c " * 25]
    page = open_page(lab, viewport={"width": 390, "height": 844})

    def vary(reply):
        for pair in filter(None, (reply.get("pair"), reply.get("next_pair")) if isinstance(reply, dict) else ()):
            first = pair["id"] % len(texts)
            pair |= {"left": texts[first], "right": texts[first - 1]}
            pair["turns"][-1]["content"] = "Tell a tale of a fox. " * (1 + 15 * (pair["id"] % 2))
        return reply

    change_replies(page, "label/*", vary)
    for height in (844, 640):
        page.set_viewport_size({"width": 390, "height": height})
        page.reload()
        shown = []
        for _ in range(2 * len(texts)):
            current_pair(page)
            shown.append(places(page, ANSWERS))
            press_key(page, "s")
        for one in shown:
            assert one == pytest.approx(shown[0], abs=1)
        expect_buttons_in_view(page, ANSWERS)
    page.unroute_all(behavior="wait")


def test_blind_test_shows_the_whole_prompt_above_fixed_buttons(lab, open_page):
    page = open_page(lab, viewport={"width": 390, "height": 844})
    prompts = ["Tell a tale.", "Tell a tale of a fox who finds a lamp in the wood. " * 4]
    texts, shown = [("A pear.", "word " * 30), ("word " * 200, "A plum.")], []
    state = {
        "id": 1,
        "annotator": "x",
        "model_names": ["base model", "run 1, step 40"],
        "is_waiting": False,
        "judged_count": 3,
    }
    state |= {"pair_count": 20, "left_out_note": "", "others_progress": {"finished": 0, "in_progress": 0}}

    def pair_of(number):
        left, right = texts[number]
        turns = [{"role": "user", "content": prompts[number]}]
        return {"position": number, "token": str(number), "turns": turns, "left": left, "right": right}

    number = 0
    change_replies(page, "blind_test/get_state", lambda _: state | {"pair": pair_of(number)})
    open_tab(page, "Compare")
    buttons = [f".blind [data-do=blind-{name}]" for name in ("left", "right", "tie")]
    for number in (0, 1):
        expect(page.locator(".blind .asked")).to_have_text(prompts[number].rstrip())
        shown.append(places(page, buttons))
        assert page.locator(".blind .asked").evaluate(FITS)
        assert min(body.bounding_box()["height"] for body in page.locator(".blind .side .lab-text").all()) >= 40
        expect_buttons_in_view(page, buttons)
    assert shown[1] == pytest.approx(shown[0], abs=1)
    page.unroute_all(behavior="wait")


def test_tabs_do_not_move_when_the_header_changes(lab, open_page):
    working = {"label": "engine works", "style": "busy", "description": "", "device": "cpu", "memory_mib": 512.0}
    working["is_working"] = True
    model = {"id": 7, "accuracy": 0.8, "low": 0.6, "high": 0.92, "simulated": False}
    job = {"label": "writing pairs", "run": None, "step": None, "progress": 0.3, "show_percent": True, "eta_s": 90.0}
    states = [
        {"job": None, "labels": 3, "simulated": 0},
        {"job": job, "engine": working},
        {"job": job | {"label": "training the reward model", "eta_s": None}, "engine": working, "reward": model},
        {"job": None, "reward": model, "labels": 1234, "simulated": 160},
        {"job": job | {"label": "run 17, step 123 of 400"}, "engine": working, "reward": model | {"low": 0.75}},
    ]
    notes = ["1 label", "the last training stopped before it was done", "10 more labels for a better reward model"]
    shown = dict(states[0])
    page = open_page(lab, viewport={"width": 390, "height": 844})

    def change(reply):
        return reply | shown | {"guide": reply["guide"] and reply["guide"] | {"note": note}}

    note = notes[0]
    change_replies(page, "header/status", change)
    tops = []
    for state in states:
        for note in notes:
            shown = state
            with page.expect_response("**/lab-api/header/status"):
                pass
            expect(page.locator(".lab-header .missing b")).to_have_text(note)
            expect(page.locator(".lab-header .job")).to_have_count(int(state["job"] is not None))
            tops.append(page.locator("[role=tablist]").last.bounding_box()["y"])
    assert set(tops) == {tops[0]}
    page.unroute_all(behavior="wait")

"""The whole loop by hand: a new project, 30 labels by keyboard, a reward model by itself, PPO by the button; a run's controls.

One lab for the file, with a person's labels and a reward model. The run that a test needs goes on or has been stopped.
"""

import re
import sqlite3

import pytest
from accessibility import SCREENS, look
from browser_lab import pair_of
from helpers import made, screen, tab, until, wait_status, wait_step, works
from playwright.sync_api import expect
from prepared_labs import going_run, learnt_lab

from rlhf_lab.common.enums import Source
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.jobs import run_control
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import token_records_at
from rlhf_lab.store.runs import events, get_run, pending_events

CURVES = ("objective/scores", "objective/kl", "policy/clipfrac_avg", "loss/value_avg")
#: All that Train draws, in order; gold only where a judge labelled.
DRAWN = ["objective/scores", "objective/rlhf_reward", "objective/kl", "objective/gold", "policy/clipfrac_avg", "loss/value_avg",
         "policy/entropy_avg", "tokens/response_len"]  # fmt: skip
#: Where a curve's point of a step is, in pixels of the window; null before it is drawn.
POINT = """(step) => {
    const plot = document.querySelector("[data-metric='objective/scores'] .js-plotly-plot");
    const box = plot?.querySelectorAll('.scatterlayer .point')[plot.data[0].x.indexOf(step)]?.getBoundingClientRect();
    return box ? [box.x + box.width / 2, box.y + box.height / 2] : null; }"""
SCORES = "document.querySelector(`[data-metric='objective/scores'] .js-plotly-plot`)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with learnt_lab(tmp_path_factory.mktemp("lab") / "home", Source.HUMAN, RewardConfig()) as lab:
        yield lab


@pytest.fixture(scope="module")
def finished_run(lab):
    """A run whose beta was changed while it went on, and that was stopped then."""
    with Database.open(lab.home) as db:
        with going_run(db, lab.home, batch_size=8) as run:
            run_control.set_live_setting(db, run.id, "beta", 0.25)
            until(lambda: not pending_events(db, run.id) and get_run(db, run.id).step >= 10, "a change of beta")
        return run


@pytest.fixture
def stopped(lab, finished_run):
    """The run of the lab, which has been stopped."""
    with Database.open(lab.home) as db:
        return get_run(db, finished_run.id)


@pytest.fixture
def going(lab):
    """A run that goes on while the test lasts, and is gone after it."""
    with Database.open(lab.home) as db:
        with going_run(db, lab.home) as run:
            yield run
        run_control.delete(db, lab.home, run.id)


def training(lab, open_page, **options):
    page = screen(lab, open_page, "Train", **options)
    page.wait_for_selector(".lab-train [data-step]")
    return page


def step(page) -> int:
    return int(page.get_attribute(".lab-train [data-step]", "data-step"))


def points(page, metric: str) -> int:
    return page.evaluate(
        "m => document.querySelector(`[data-metric='${m}'] .js-plotly-plot`)?.data?.[0]?.x?.length ?? 0", metric
    )


def cursor_stands_at(page, step: int) -> None:
    """Wait until the line that marks a step on the curves stands at the curve's point of that step."""
    page.wait_for_function(
        f"""step => {{
            const line = document.querySelector("[data-metric='objective/scores'] .cursor").getBoundingClientRect();
            const at = ({POINT})(step);
            return line.height > 50 && at && Math.abs(line.x + line.width / 2 - at[0]) < 2; }}""",
        arg=step,
    )


def test_thirty_labels_by_keyboard_a_reward_model_by_itself_and_ppo_by_the_button(lab, fresh, open_page):
    page = open_page(lab)
    thirty_labels(lab, fresh, page)
    works(page, "() => /accuracy \\d/.test(document.querySelector('.lab-header').innerText)")
    tab(page, "Train")
    curves_grow_and_samples_change(lab, fresh, page)


def thirty_labels(lab, project, page):
    voted, judge = 0, load_judge("cheerful")
    while voted < 30:
        before = pair_of(page)
        left, right = (judge.score(page.inner_text(f".side.{side} .lab-text")) for side in ("left", "right"))
        key = {3: "0", 5: "s"}.get(voted, "1" if left > right else "2" if right > left else "0")
        page.keyboard.press(key)
        page.wait_for_function("b => document.querySelector('.lab-label').dataset.pair !== b", arg=before)
        voted += 1
        if voted == 7:  # take one back and give it again
            pair_of(page)
            page.keyboard.press("u")
            page.wait_for_selector(f".lab-label[data-open='{before}']")
            page.keyboard.press(key)
            page.wait_for_function("b => document.querySelector('.lab-label').dataset.pair !== b", arg=before)
    pair_of(page)
    with sqlite3.connect(lab.home / "lab.db") as db:
        live, undone = db.execute(
            "SELECT sum(undone_at IS NULL), sum(undone_at IS NOT NULL) FROM votes"
            " WHERE pair_id IN (SELECT id FROM pairs WHERE project_id = ?)",
            (project.id,),
        ).fetchone()
    assert (live, undone) == (30, 1)


def curves_grow_and_samples_change(lab, project, page):
    for algorithm, words in (("ppo_penalty", "Start PPO PENALTY"), ("ppo", "Start PPO")):
        page.wait_for_selector("[data-do=start]:not([disabled])")
        page.select_option("[data-do=start-algorithm]", algorithm)
        expect(page.locator("[data-do=start]")).to_have_text(words)
    page.wait_for_selector("[data-do=start]:not([disabled])")
    page.click("[data-do=start]")
    made(page, ".lab-train .side mark")
    wait_step(page, 2)
    before = {metric: points(page, metric) for metric in CURVES}
    assert all(before.values())
    wait_step(page, 11)
    assert all(points(page, metric) > before[metric] for metric in CURVES)
    shown = "figures => figures.filter(one => one.offsetParent).map(one => one.dataset.metric)"
    figures = page.locator(".lab-train .grid > [data-metric]")
    assert figures.evaluate_all("figures => figures.map(one => one.dataset.metric)") == DRAWN
    assert figures.evaluate_all(shown) == [metric for metric in DRAWN if metric != "objective/gold"]
    for metric in CURVES:
        verdict = page.locator(f"[data-metric='{metric}'] .verdict")
        expect(verdict).to_have_attribute("data-level", re.compile("^(info|good|warn|alert)$"))
        expect(verdict).to_have_text(re.compile(r"\w+ .*\w"))
    assert page.locator(".lab-train [data-check=ok]").count() == 2
    works(page, "() => Number(document.querySelector('.lab-train [data-at]').dataset.at) >= 10")
    now = page.inner_text(".lab-train .side")
    assert page.locator(".lab-train .side mark").count() > 0
    with sqlite3.connect(lab.home / "lab.db") as db:
        query = "SELECT text FROM samples JOIN runs ON runs.id = run_id WHERE project_id = ? AND samples.step = ?"
        texts, early, base = ([row[0] for row in db.execute(query, (project.id, at))] for at in (10, 5, 0))
    assert texts != base
    assert early != base  # seen to change within the first steps
    flat = " ".join(now.split())
    assert any(" ".join(text.split()) in flat for text in texts)
    page.locator("[data-do=scrub]").focus()
    page.keyboard.press("Home")  # back to the base
    page.wait_for_function("() => document.querySelector('.lab-train [data-at]').dataset.at === '0'")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.lab-train [data-at]').dataset.at === '10'")
    cursor_stands_at(page, 10)
    page.keyboard.press("ArrowLeft")
    cursor_stands_at(page, 5)
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "t => document.querySelector('.lab-train .side').innerText.replace(/\\s+/g, ' ').includes(t)",
        arg=" ".join(texts[0].split()),
    )


def test_zoom_survives_the_next_step(lab, going, open_page):
    page = training(lab, open_page)
    wait_step(page, 3)
    page.wait_for_selector("[data-metric='objective/scores'] .js-plotly-plot")
    page.evaluate(f"Plotly.relayout({SCORES}, {{'xaxis.range': [2, 6]}})")
    count = points(page, "objective/scores")
    page.wait_for_function(
        "n => document.querySelector(\"[data-metric='objective/scores'] .js-plotly-plot\").data[0].x.length > n",
        arg=count,
    )
    where = "document.querySelector(\"[data-metric='objective/scores'] .js-plotly-plot\").layout.xaxis.range"
    assert page.evaluate(where) == pytest.approx([2, 6])


def test_a_reload_and_a_second_person_see_the_same_run(lab, going, open_page):
    first, second = training(lab, open_page), training(lab, open_page)
    first.reload()
    tab(first, "Train")
    first.wait_for_selector(".lab-train [data-step]")
    at = step(second)
    wait_step(first, at)
    assert abs(step(first) - step(second)) <= 2
    assert first.input_value("[data-do=pick]") == second.input_value("[data-do=pick]") == str(going.id)


def test_pause_change_beta_resume_and_stop(lab, going, open_page):
    page = training(lab, open_page)
    works(page, "() => Number(document.querySelector('.lab-train [data-at]').dataset.at) >= 5")
    page.click("[data-do=pause]")
    wait_status(page, "paused")
    held = step(page)
    page.wait_for_timeout(3000)
    assert step(page) == held
    page.fill("[data-do=knob-beta]", "0.25")
    page.click("[data-do=set-beta]")
    asked = page.locator("[data-asked]")
    expect(asked).to_have_text("asked for: beta = 0.25 (takes effect with the next whole step)")
    expect(page.locator(".lab-header .job .what")).to_have_text(f"run {going.id} paused, step {held} of 400")
    page.wait_for_timeout(5000)  # longer than the page waits for a lost answer to "pause"
    expect(asked).to_contain_text("beta = 0.25")
    page.click("[data-do=resume]")
    wait_step(page, held + 2)
    with Database.open(lab.home) as db:
        told = [event.payload for event in events(db, going.id) if event.kind == "set"]
        assert told == [{"name": "beta", "value": 0.25}]
    works(page, f"() => ({SCORES}.layout.annotations || []).some(mark => mark.text.includes('0.25'))")
    page.fill("[data-do=knob-lr]", "7")
    page.click("[data-do=set-lr]")
    page.wait_for_selector("[data-do=error]:not([hidden])")
    assert "greatest value" in page.inner_text("[data-do=error]")
    page.click("[data-do=stop]")
    wait_status(page, "stopped")
    assert page.is_visible("[data-do=resume]")
    page.locator("[data-metric='objective/scores']").scroll_into_view_if_needed()
    page.mouse.click(*page.evaluate(POINT, 5))  # a click on a curve shows the texts of that step
    page.wait_for_selector(".lab-train [data-at='5']")
    cursor_stands_at(page, 5)


def said(value: float) -> str:
    """A token's number as the microscope writes it."""
    return f"{value:.4f}".replace("-0.0000", "0.0000").replace("-", "−")


def test_the_microscope_tells_of_every_token_what_the_step_knew(lab, stopped, open_page):
    page = training(lab, open_page)
    page.click("[data-do=to-tokens]")
    page.wait_for_selector(".microscope .token.seen")
    shown, heading = page.locator("[data-token-step]"), page.locator(".microscope .facts .lab-row")
    at = int(shown.get_attribute("data-token-step"))
    assert at == int(page.get_attribute(".lab-train [data-at]", "data-at"))
    with Database.open(lab.home) as db:
        first, second = token_records_at(db, stopped.id, at)
        before = token_records_at(db, stopped.id, at - 1)
    texts = page.locator(".microscope .tokens")
    assert texts.all_text_contents() == ["".join(record.tokens) for record in (first, second)]
    count = len(first.tokens)
    expect(heading).to_contain_text(f"token {count} of {count}")
    sums = page.locator(".microscope .sum").all_text_contents()
    assert sums[0].startswith(f"{said(first.kl[-1])} = ")
    assert sums[1].startswith(f"{said(first.reward[-1])} = −0.")
    earned = said(first.earned)  # the score stands on the last token
    assert sums[1].endswith(f" + ({earned})" if first.earned < 0 else f" + {earned}")
    texts.nth(1).locator(".token").first.hover()
    expect(heading).to_contain_text(f"token 1 of {len(second.tokens)}")
    texts.nth(0).locator(".token").first.click()
    texts.nth(1).locator(".token").nth(2).hover()
    expect(heading).to_contain_text(f"token 1 of {count}")  # what was clicked stays
    page.keyboard.press("ArrowRight")
    expect(heading).to_contain_text(f"token 2 of {count}")
    page.keyboard.press("Enter")
    texts.nth(1).locator(".token").nth(4).hover()
    expect(heading).to_contain_text(f"token 5 of {len(second.tokens)}")
    for shade, white in (("ratio", "1"), ("kl", "0")):
        page.select_option("[data-do=token-colour]", shade)
        expect(page.locator(".microscope .legend")).to_contain_text(white)
    page.click("[data-do=token-back]")
    expect(shown).to_have_text(f"step {at - 1}")
    assert texts.all_text_contents() == ["".join(record.tokens) for record in before]
    page.locator("[data-do=scrub]").focus()
    page.keyboard.press("Home")  # the base learnt from nothing: the first step's tokens
    expect(shown).to_have_text("step 1")


def test_labelling_goes_on_while_nothing_runs_and_keys_reach_only_the_visible_screen(lab, stopped, open_page):
    page = training(lab, open_page)
    with sqlite3.connect(lab.home / "lab.db") as db:
        before = db.execute("SELECT count(*) FROM votes").fetchone()
    page.keyboard.press("1")
    page.wait_for_timeout(500)
    with sqlite3.connect(lab.home / "lab.db") as db:
        assert db.execute("SELECT count(*) FROM votes").fetchone() == before


def test_every_screen_is_legible_light_dark_and_from_the_back_of_the_room(lab, stopped, open_page):
    page = open_page(lab, viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    expect(page.get_by_role("tab")).to_have_text(list(SCREENS))
    light = {name: look(page, name) for name in SCREENS}
    page.get_by_role("button", name="Dark").click()
    dark = {name: look(page, name) for name in SCREENS}
    page.get_by_role("button", name="Projector").click()
    large = {name: look(page, name) for name in SCREENS}
    for name in SCREENS:
        assert [text for text in light[name] + dark[name] if text.contrast < 4.5] == []
        assert all(text.behind > text.ink for text in light[name] if text.contrast > 12)
        assert all(text.behind < text.ink for text in dark[name] if text.contrast > 12)
        small, big = ([text.size for text in texts] for texts in (dark[name], large[name]))
        assert min(big) > 1.2 * min(small)
        assert max(big) > 1.2 * max(small)

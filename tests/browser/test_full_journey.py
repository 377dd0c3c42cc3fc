"""The whole loop: a new project, 30 labels by keyboard, an automatic reward model, PPO; then the controls of a run.

One lab for the file, with a person's labels and a reward model. Tests use a stopped run or an active one.
"""

import re
import sqlite3

import pytest
from accessibility import SCREENS, inspect_screen
from browser_lab import current_pair
from helpers import open_screen, open_tab, wait_for_engine, wait_status, wait_step, wait_until, wait_visible
from playwright.sync_api import expect
from prepared_labs import lab_with_reward_models, running_run

from rlhf_lab.common.enums import Source
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.jobs import run_control
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import token_records_at
from rlhf_lab.store.runs import events, get_run, pending_events

CURVES = ("objective/scores", "objective/kl", "policy/clipfrac_avg", "loss/value_avg")
#: The charts of Train in order, and those without values for PPO on people's labels.
CHART_ORDER = [
    "objective/scores", "objective/rlhf_reward", "objective/kl", "objective/gold", "policy/clipfrac_avg", "loss/value_avg",
    "rewards/margins", "rewards/accuracies", "loss/dpo_avg", "loss/sft_avg", "policy/entropy_avg", "tokens/response_len",
]  # fmt: skip
NOT_SHOWN = {"objective/gold", "rewards/margins", "rewards/accuracies", "loss/dpo_avg", "loss/sft_avg"}
#: JavaScript: the position of a step's point on the score curve in window pixels; null before it is drawn.
POINT_POSITION = """(step) => {
    const plot = document.querySelector("[data-metric='objective/scores'] .js-plotly-plot");
    const box = plot?.querySelectorAll('.scatterlayer .point')[plot.data[0].x.indexOf(step)]?.getBoundingClientRect();
    return box ? [box.x + box.width / 2, box.y + box.height / 2] : null; }"""
SCORE_PLOT = "document.querySelector(`[data-metric='objective/scores'] .js-plotly-plot`)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_with_reward_models(tmp_path_factory.mktemp("lab") / "home", Source.HUMAN, RewardConfig()) as lab:
        yield lab


@pytest.fixture(scope="module")
def finished_run(lab):
    """A stopped run whose beta was changed while it was running."""
    with Database.open(lab.home) as db:
        with running_run(db, lab.home, batch_size=8, max_new_tokens=24) as run:
            run_control.set_live_setting(db, run.id, "beta", 0.25)
            wait_until(lambda: not pending_events(db, run.id) and get_run(db, run.id).step >= 10, "a change of beta")
        return run


@pytest.fixture
def stopped_run(lab, finished_run):
    """The current record of the stopped run."""
    with Database.open(lab.home) as db:
        return get_run(db, finished_run.id)


@pytest.fixture
def active_run(lab):
    """A run that is active during the test and deleted after it."""
    with Database.open(lab.home) as db:
        with running_run(db, lab.home, batch_size=8, max_new_tokens=24) as run:
            yield run
        run_control.delete(db, lab.home, run.id)


def open_training(lab, open_page, **options):
    page = open_screen(lab, open_page, "Train", **options)
    page.wait_for_selector(".lab-train [data-step]")
    return page


def shown_step(page) -> int:
    return int(page.get_attribute(".lab-train [data-step]", "data-step"))


def point_count(page, metric: str) -> int:
    return page.evaluate(
        "m => document.querySelector(`[data-metric='${m}'] .js-plotly-plot`)?.data?.[0]?.x?.length ?? 0", metric
    )


def wait_for_cursor(page, step: int) -> None:
    """Wait until the vertical line on the curves is at the point of that step."""
    page.wait_for_function(
        f"""step => {{
            const line = document.querySelector("[data-metric='objective/scores'] .cursor").getBoundingClientRect();
            const at = ({POINT_POSITION})(step);
            return line.height > 50 && at && Math.abs(line.x + line.width / 2 - at[0]) < 2; }}""",
        arg=step,
    )


def test_thirty_labels_then_automatic_reward_model_then_ppo(lab, fresh_project, open_page):
    page = open_page(lab)
    label_thirty_pairs(lab, fresh_project, page)
    wait_for_engine(page, "() => /accuracy \\d/.test(document.querySelector('.lab-header').innerText)")
    open_tab(page, "Train")
    check_curves_and_samples(lab, fresh_project, page)


def label_thirty_pairs(lab, project, page):
    voted, judge = 0, load_judge("cheerful")
    while voted < 30:
        before = current_pair(page)
        left, right = (judge.score("", page.inner_text(f".side.{side} .lab-text")) for side in ("left", "right"))
        key = {3: "0", 5: "s"}.get(voted, "1" if left > right else "2" if right > left else "0")
        page.keyboard.press(key)
        page.wait_for_function("b => document.querySelector('.lab-label').dataset.pair !== b", arg=before)
        voted += 1
        if voted == 7:  # undo one and repeat it
            current_pair(page)
            page.keyboard.press("u")
            page.wait_for_selector(f".lab-label[data-open='{before}']")
            page.keyboard.press(key)
            page.wait_for_function("b => document.querySelector('.lab-label').dataset.pair !== b", arg=before)
    current_pair(page)
    with sqlite3.connect(lab.home / "lab.db") as db:
        live, undone = db.execute(
            "SELECT sum(undone_at IS NULL), sum(undone_at IS NOT NULL) FROM votes"
            " WHERE pair_id IN (SELECT id FROM pairs WHERE project_id = ?)",
            (project.id,),
        ).fetchone()
    assert (live, undone) == (30, 1)


def check_curves_and_samples(lab, project, page):
    for algorithm, words in (("ppo_penalty", "Start PPO PENALTY"), ("ppo", "Start PPO")):
        page.wait_for_selector("[data-do=start]:not([disabled])")
        page.select_option("[data-do=start-algorithm]", algorithm)
        expect(page.locator("[data-do=start]")).to_have_text(words)
    page.wait_for_selector("[data-do=start]:not([disabled])")
    page.click("[data-do=start]")
    wait_visible(page, ".lab-train .side mark")
    wait_step(page, 2)
    before = {metric: point_count(page, metric) for metric in CURVES}
    assert all(before.values())
    wait_step(page, 6)
    assert all(point_count(page, metric) > before[metric] for metric in CURVES)
    shown = "figures => figures.filter(one => one.offsetParent).map(one => one.dataset.metric)"
    figures = page.locator(".lab-train .grid > [data-metric]")
    assert figures.evaluate_all("figures => figures.map(one => one.dataset.metric)") == CHART_ORDER
    assert figures.evaluate_all(shown) == [metric for metric in CHART_ORDER if metric not in NOT_SHOWN]
    for metric in CURVES:
        verdict = page.locator(f"[data-metric='{metric}'] .verdict")
        expect(verdict).to_have_attribute("data-level", re.compile("^(info|good|warn|alert)$"))
        expect(verdict).to_have_text(re.compile(r"\w+ .*\w"))
    assert page.locator(".lab-train [data-check=ok]").count() == 2
    wait_for_engine(page, "() => Number(document.querySelector('.lab-train [data-at]').dataset.at) >= 5")
    early, base = (sample_texts(lab, project.id, step) for step in (5, 0))
    assert early != base  # the texts change within the first steps

    def are_shown() -> bool:
        """Whether the page shows samples of its step, beside those of the base model with the changed words marked."""
        texts = sample_texts(lab, project.id, int(page.get_attribute(".lab-train [data-at]", "data-at")))
        shown = " ".join(page.inner_text(".lab-train .side").split())
        return any(text in shown for text in texts) and page.locator(".lab-train .side mark").count() > 0

    wait_until(are_shown, "the samples of the newest step", page)


def sample_texts(lab, project_id: int, step: int) -> list[str]:
    """The sampled texts at a step of a project's only run, each blank a single space."""
    query = "SELECT text FROM samples JOIN runs ON runs.id = run_id WHERE project_id = ? AND samples.step = ?"
    with sqlite3.connect(lab.home / "lab.db") as db:
        return [" ".join(text.split()) for (text,) in db.execute(query, (project_id, step))]


def test_the_last_of_an_odd_number_of_charts_spans_both_columns(lab, stopped_run, open_page):
    page = open_training(lab, open_page)
    plots = page.locator(".lab-train .grid .plot")

    def widths() -> list[int | None]:
        return plots.evaluate_all(
            "charts => charts.filter(one => one.checkVisibility())"
            ".map(one => one.querySelector('.main-svg')?.clientWidth)"
        )

    def is_arranged() -> bool:
        *others, last = widths()
        return (last > 2 * max(others)) == (len(others) % 2 == 0)

    wait_until(lambda: None not in widths(), "the charts", page)
    count = len(CHART_ORDER) - len(NOT_SHOWN)
    assert len(widths()) == count
    wait_until(is_arranged, f"the widths of {count} charts", page)
    plots.first.evaluate("plot => plot.closest('figure').remove()")
    assert len(widths()) == count - 1  # of the two numbers one is odd
    wait_until(is_arranged, f"the widths of {count - 1} charts", page)


def test_the_slider_shows_the_samples_and_the_point_of_a_step(lab, stopped_run, open_page):
    page = open_training(lab, open_page)
    early, base = (sample_texts(lab, stopped_run.project_id, step) for step in (5, 0))
    page.locator("[data-do=scrub]").focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelector('.lab-train [data-at]').dataset.at === '0'")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.lab-train [data-at]').dataset.at === '10'")
    wait_for_cursor(page, 10)
    page.keyboard.press("ArrowLeft")
    wait_for_cursor(page, 5)
    for text in (base[0], early[0]):  # the text before on the left, the one of this step on the right
        page.wait_for_function(
            "t => document.querySelector('.lab-train .side').innerText.replace(/\\s+/g, ' ').includes(t)", arg=text
        )


def test_zoom_survives_the_next_step(lab, active_run, open_page):
    page = open_training(lab, open_page)
    wait_step(page, 3)
    page.wait_for_selector("[data-metric='objective/scores'] .js-plotly-plot")
    page.evaluate(f"Plotly.relayout({SCORE_PLOT}, {{'xaxis.range': [2, 6]}})")
    count = point_count(page, "objective/scores")
    page.wait_for_function(
        "n => document.querySelector(\"[data-metric='objective/scores'] .js-plotly-plot\").data[0].x.length > n",
        arg=count,
    )
    where = "document.querySelector(\"[data-metric='objective/scores'] .js-plotly-plot\").layout.xaxis.range"
    assert page.evaluate(where) == pytest.approx([2, 6])


def test_reload_and_second_visitor_show_the_same_run(lab, active_run, open_page):
    first, second = open_training(lab, open_page), open_training(lab, open_page)
    first.reload()
    open_tab(first, "Train")
    first.wait_for_selector(".lab-train [data-step]")
    at = shown_step(second)
    wait_step(first, at)
    assert abs(shown_step(first) - shown_step(second)) <= 2
    assert first.input_value("[data-do=pick]") == second.input_value("[data-do=pick]") == str(active_run.id)


def test_pause_change_beta_resume_and_stop(lab, active_run, open_page):
    page = open_training(lab, open_page)
    wait_for_engine(page, "() => Number(document.querySelector('.lab-train [data-at]').dataset.at) >= 5")
    page.click("[data-do=pause]")
    wait_status(page, "paused")
    paused_step = shown_step(page)
    page.wait_for_timeout(3000)
    assert shown_step(page) == paused_step
    page.fill("[data-do=knob-beta]", "0.25")
    page.click("[data-do=set-beta]")
    pending_change = page.locator("[data-asked]")
    expect(pending_change).to_have_text("requested: beta = 0.25 (takes effect at the next step)")
    expect(page.locator(".lab-header .job .what")).to_have_text(
        f"run {active_run.id} paused, step {paused_step} of 400"
    )
    page.wait_for_timeout(5000)  # longer than the page waits for a lost reply to "pause"
    expect(pending_change).to_contain_text("beta = 0.25")
    page.click("[data-do=resume]")
    wait_step(page, paused_step + 2)
    with Database.open(lab.home) as db:
        settings = [event.payload for event in events(db, active_run.id) if event.kind == "set"]
        assert settings == [{"name": "beta", "value": 0.25}]
    wait_for_engine(page, f"() => ({SCORE_PLOT}.layout.annotations || []).some(mark => mark.text.includes('0.25'))")
    page.fill("[data-do=knob-lr]", "7")
    page.click("[data-do=set-lr]")
    page.wait_for_selector("[data-do=error]:not([hidden])")
    assert "greatest value" in page.inner_text("[data-do=error]")
    page.click("[data-do=stop]")
    wait_status(page, "stopped")
    assert page.is_visible("[data-do=resume]")
    page.locator("[data-metric='objective/scores']").scroll_into_view_if_needed()
    page.mouse.click(*page.evaluate(POINT_POSITION, 5))  # a click on a curve shows the samples of that step
    page.wait_for_selector(".lab-train [data-at='5']")
    wait_for_cursor(page, 5)


def format_value(value: float) -> str:
    """A token's value as the token view shows it."""
    return f"{value:.4f}".replace("-0.0000", "0.0000").replace("-", "−")


def test_token_view_shows_the_recorded_values_of_every_token(lab, stopped_run, open_page):
    page = open_training(lab, open_page)
    page.click("[data-do=to-tokens]")
    page.wait_for_selector(".microscope .token.seen")
    shown, heading = page.locator("[data-token-step]"), page.locator(".microscope .facts .lab-row")
    at = int(shown.get_attribute("data-token-step"))
    assert at == int(page.get_attribute(".lab-train [data-at]", "data-at"))
    with Database.open(lab.home) as db:
        first, second = token_records_at(db, stopped_run.id, at)
        before = token_records_at(db, stopped_run.id, at - 1)
    texts = page.locator(".microscope .tokens")
    assert texts.all_text_contents() == ["".join(record.tokens) for record in (first, second)]
    count = len(first.tokens)
    expect(heading).to_contain_text(f"token {count} of {count}")
    sums = page.locator(".microscope .sum").all_text_contents()
    assert sums[0].startswith(f"{format_value(first.kl[-1])} = ")
    assert sums[1].startswith(f"{format_value(first.reward[-1])} = −0.")
    score = format_value(first.shaped_score)  # the score is given at the last token
    assert sums[1].endswith(f" + ({score})" if first.shaped_score < 0 else f" + {score}")
    texts.nth(1).locator(".token").first.hover()
    expect(heading).to_contain_text(f"token 1 of {len(second.tokens)}")
    texts.nth(0).locator(".token").first.click()
    texts.nth(1).locator(".token").nth(2).hover()
    expect(heading).to_contain_text(f"token 1 of {count}")  # the clicked token stays selected
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
    page.keyboard.press("Home")  # step 0 has no tokens: those of the first step
    expect(shown).to_have_text("step 1")


def test_label_keys_do_nothing_while_another_screen_is_open(lab, stopped_run, open_page):
    page = open_training(lab, open_page)
    with sqlite3.connect(lab.home / "lab.db") as db:
        before = db.execute("SELECT count(*) FROM votes").fetchone()
    page.keyboard.press("1")
    page.wait_for_timeout(500)
    with sqlite3.connect(lab.home / "lab.db") as db:
        assert db.execute("SELECT count(*) FROM votes").fetchone() == before


def test_every_screen_is_legible_in_light_dark_and_projector_mode(lab, stopped_run, open_page):
    page = open_page(lab, viewport={"width": 1280, "height": 800})
    expect(page.get_by_role("tab")).to_have_text(list(SCREENS))
    light = {name: inspect_screen(page, name) for name in SCREENS}
    page.get_by_role("button", name="Dark").click()
    dark = {name: inspect_screen(page, name) for name in SCREENS}
    page.get_by_role("button", name="Projector").click()
    large = {name: inspect_screen(page, name) for name in SCREENS}
    for name in SCREENS:
        assert [text for text in light[name] + dark[name] if text.contrast < 4.5] == []
        assert all(text.background > text.ink for text in light[name] if text.contrast > 12)
        assert all(text.background < text.ink for text in dark[name] if text.contrast > 12)
        small, big = ([text.font_size for text in texts] for texts in (dark[name], large[name]))
        assert min(big) > 1.2 * min(small)
        assert max(big) > 1.2 * max(small)

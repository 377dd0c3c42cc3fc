"""The whole loop: a new project, 30 labels by keyboard, an automatic reward model, PPO; then the controls of a run, its charts,
and what is lost when page and engine are killed: nothing.

One lab and one project for the file.
"""

import os
import re
import signal
import sqlite3

import pytest
from accessibility import SCREENS, inspect_screen
from browser_lab import current_pair, press_key
from helpers import (
    ENGINE_TIMEOUT_MS,
    control,
    open_screen,
    open_tab,
    wait_for_engine,
    wait_status,
    wait_step,
    wait_until,
    wait_visible,
)
from playwright.sync_api import expect
from prepared_labs import (
    FAST_CONFIG,
    add_labels,
    idle_lab,
    running_run,
    stop_all_runs,
    submit_reward_training,
    temporary_project,
    wait_for_job,
)

from rlhf_lab.common.enums import Source
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import reward_models
from rlhf_lab.store.run_metrics import samples_at, token_records_at
from rlhf_lab.store.runs import events, get_run, runs
from rlhf_lab.store.votes import label_count, vote_counts

CURVES = ("objective/scores", "objective/kl", "policy/clipfrac_avg", "loss/value_avg")
#: The charts of Train in order, and those without values for PPO on people's labels.
CHART_ORDER = [
    "objective/scores", "objective/kl", "policy/clipfrac_avg", "loss/value_avg", "objective/rlhf_reward", "objective/gold",
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
    lab = idle_lab(tmp_path_factory.mktemp("lab") / "home").start()
    yield lab
    lab.stop()


@pytest.fixture(scope="module")
def fresh_project(lab):
    """The project of the file; a test that runs first finds it new."""
    with Database.open(lab.home) as db, temporary_project(db, lab.home) as project:
        yield project


@pytest.fixture
def trained_project(lab, fresh_project):
    """The same project with a reward model and without an active run."""
    with Database.open(lab.home) as db:
        stop_all_runs(db)
        if not reward_models(db, fresh_project.id):
            add_labels(db, fresh_project.id, Source.HUMAN, 14)
            wait_for_job(db, submit_reward_training(db, fresh_project.id, Source.HUMAN, FAST_CONFIG))
    return fresh_project


@pytest.fixture
def active_run(lab, trained_project):
    """A run that is active during the test and stopped after it."""
    with Database.open(lab.home) as db, running_run(db, lab.home, batch_size=8, max_new_tokens=24) as run:
        yield run


@pytest.fixture
def stopped_run(lab, trained_project):
    """The newest run of the project."""
    with Database.open(lab.home) as db:
        if not runs(db):
            with running_run(db, lab.home, batch_size=8, max_new_tokens=24):
                pass
        return runs(db)[0]


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
        page.wait_for_selector(".lab-label[data-open]", timeout=ENGINE_TIMEOUT_MS)  # further pairs come from the engine
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


def test_a_run_while_it_is_active_and_after_it_was_stopped(lab, active_run, open_page):
    page, second = open_training(lab, open_page), open_training(lab, open_page)
    check_zoom_survives_the_next_step(page)
    check_reload_and_second_visitor_show_the_same_run(page, second, active_run)
    second.close()
    check_pause_change_beta_resume_and_stop(lab, page, active_run)
    check_slider_shows_the_samples_and_the_point_of_a_step(lab, active_run, page)
    check_token_view_shows_the_recorded_values_of_every_token(lab, page, active_run)
    check_last_of_an_odd_number_of_charts_spans_both_columns(page)


def check_zoom_survives_the_next_step(page):
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


def check_reload_and_second_visitor_show_the_same_run(first, second, run):
    first.reload()
    open_tab(first, "Train")
    first.wait_for_selector(".lab-train [data-step]")
    at = shown_step(second)
    wait_step(first, at)
    assert abs(shown_step(first) - shown_step(second)) <= 2
    assert first.input_value("[data-do=pick]") == second.input_value("[data-do=pick]") == str(run.id)


def check_pause_change_beta_resume_and_stop(lab, page, run):
    wait_for_engine(page, "() => Number(document.querySelector('.lab-train [data-at]').dataset.at) >= 5")
    page.click("[data-do=pause]")
    wait_status(page, "paused")
    paused_step = shown_step(page)
    page.wait_for_timeout(3000)
    assert shown_step(page) == paused_step
    page.fill("[data-do=knob-beta]", "0.25")
    page.click("[data-do=set-beta]")
    pending_change = page.locator("[data-asked]")
    expect(pending_change).to_have_text("requested: beta = 0.25 (takes effect when the present step has ended)")
    expect(page.locator(".lab-header .job .what")).to_have_text(f"run {run.id} paused, step {paused_step} of 400")
    page.wait_for_timeout(5000)  # longer than the page waits for a lost reply to "pause"
    expect(pending_change).to_contain_text("beta = 0.25")
    page.click("[data-do=resume]")
    wait_step(page, max(paused_step + 2, 11))  # samples of the steps 0, 5 and 10
    with Database.open(lab.home) as db:
        settings = [event.payload for event in events(db, run.id) if event.kind == "set"]
        assert settings == [{"name": "beta", "value": 0.25}]
    wait_for_engine(page, f"() => ({SCORE_PLOT}.layout.annotations || []).some(mark => mark.text.includes('0.25'))")
    page.fill("[data-do=knob-lr]", "7")
    page.click("[data-do=set-lr]")
    page.wait_for_selector("[data-do=error]:not([hidden])")
    assert "above the maximum" in page.inner_text("[data-do=error]")
    page.click("[data-do=stop]")
    wait_status(page, "stopped")
    assert page.is_visible("[data-do=resume]")
    page.locator("[data-metric='objective/scores']").scroll_into_view_if_needed()
    page.mouse.click(*page.evaluate(POINT_POSITION, 5))  # a click on a curve shows the samples of that step
    page.wait_for_selector(".lab-train [data-at='5']")
    wait_for_cursor(page, 5)


def check_slider_shows_the_samples_and_the_point_of_a_step(lab, run, page):
    with Database.open(lab.home) as db:
        early, base = ([" ".join(one.text.split()) for one in samples_at(db, run.id, step)] for step in (5, 0))
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


def format_value(value: float) -> str:
    """A token's value as the token view shows it."""
    return f"{value:.4f}".replace("-0.0000", "0.0000").replace("-", "−")


def check_token_view_shows_the_recorded_values_of_every_token(lab, page, run):
    page.locator("[data-do=scrub]").press("End")
    page.mouse.move(0, 0)  # a token under the mouse would be shown
    page.locator("[data-do=to-tokens]").press("Enter")
    page.wait_for_selector(".token-view .token.seen")
    shown, heading = page.locator("[data-token-step]"), page.locator(".token-view .facts .lab-row")
    at = int(shown.get_attribute("data-token-step"))
    assert at == int(page.get_attribute(".lab-train [data-at]", "data-at"))
    with Database.open(lab.home) as db:
        first, second = token_records_at(db, run.id, at)
        before = token_records_at(db, run.id, at - 1)
    texts = page.locator(".token-view .tokens")
    assert texts.all_text_contents() == ["".join(record.tokens) for record in (first, second)]
    count = len(first.tokens)
    opened = int(page.get_attribute(".token-view .token.seen", "data-token"))
    expect(heading).to_contain_text(f"token {opened + 1} of")
    row = page.locator(".token-view .tokens").evaluate_all("all => all.findIndex((one) => one.querySelector('.seen'))")
    any_clipped = any(first.clipped + second.clipped)
    advantages = [
        [
            abs(advantage)
            for advantage, clipped in zip(one.advantage, one.clipped, strict=True)
            if clipped or not any_clipped
        ]
        for one in (first, second)
    ]
    assert abs((first, second)[row].advantage[opened]) == max(map(max, filter(None, advantages)))
    texts.nth(0).locator(".token").last.hover()
    expect(heading).to_contain_text(f"token {count} of {count}")
    sums = page.locator(".token-view .sum").all_text_contents()
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
        expect(page.locator(".token-view .legend")).to_contain_text(white)
    page.click("[data-do=token-back]")
    expect(shown).to_have_text(f"step {at - 1}")
    assert texts.all_text_contents() == ["".join(record.tokens) for record in before]
    page.locator("[data-do=scrub]").focus()
    page.keyboard.press("Home")  # step 0 has no tokens: those of the first step
    expect(shown).to_have_text("step 1")


def check_last_of_an_odd_number_of_charts_spans_both_columns(page):
    """Removes a chart."""
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


def test_first_view_of_train_has_four_curves_and_a_sample(lab, stopped_run, open_page):
    page = open_training(lab, open_page, viewport={"width": 1280, "height": 800})
    for metric in CURVES:
        expect(page.locator(f"[data-metric='{metric}'] .plot")).to_be_in_viewport(ratio=1)
    expect(page.locator(".lab-train .sample").first).to_be_in_viewport(ratio=0.9)
    settings = page.locator(".lab-train .details")
    assert settings.evaluate("node => node.previousElementSibling.dataset.metric") == CURVES[-1]
    page.get_by_role("tab", name="Train", exact=True).focus()
    tokens, stops = control(page, "to-tokens"), 0
    while not tokens.evaluate("node => node === document.activeElement"):
        page.keyboard.press("Tab")
        stops += 1
        assert stops <= 15


def test_every_screen_is_legible_in_light_dark_and_large_type(lab, stopped_run, open_page):
    page = open_page(lab, viewport={"width": 1280, "height": 800})
    expect(page.get_by_role("tab")).to_have_text(list(SCREENS))
    light = {name: inspect_screen(page, name) for name in SCREENS}
    page.get_by_role("button", name="Dark").click()
    dark = {name: inspect_screen(page, name) for name in SCREENS}
    page.get_by_role("button", name="larger text").click()
    large = {name: inspect_screen(page, name) for name in SCREENS}
    for name in SCREENS:
        assert [text for text in light[name] + dark[name] if text.contrast < 4.5] == []
        assert all(text.background > text.ink for text in light[name] if text.contrast > 12)
        assert all(text.background < text.ink for text in dark[name] if text.contrast > 12)
        small, big = ([text.font_size for text in texts] for texts in (dark[name], large[name]))
        assert min(big) > 1.2 * min(small)
        assert max(big) > 1.2 * max(small)


def test_killed_engine_and_killed_page_lose_nothing(lab, trained_project, open_page):
    with (
        Database.open(lab.home) as db,
        running_run(db, lab.home, batch_size=8, max_new_tokens=24, checkpoint_every=1) as run,
    ):
        votes_before = label_count(vote_counts(db, trained_project.id)[Source.HUMAN])
        page = open_training(lab, open_page)
        wait_step(page, 3)

        os.kill(lab.engine_pid(), signal.SIGKILL)  # the page's process restarts it
        page.wait_for_function(
            "() => /engine (lost|starts|idle)/.test(document.querySelector('.lab-header').innerText)",
            timeout=ENGINE_TIMEOUT_MS,
        )
        wait_step(page, get_run(db, run.id).step + 2)

        open_tab(page, "Label")
        press_key(page, "1")
        lab.kill()  # the engine continues without the page
        open_page.console_messages.clear()
        page.wait_for_function("() => document.body.classList.contains('lab-offline')", timeout=ENGINE_TIMEOUT_MS)
        open_page.console_messages.clear()  # connection errors while the server is down are expected
        lab.start()
        assert label_count(vote_counts(db, trained_project.id)[Source.HUMAN]) == votes_before + 1
        step = get_run(db, run.id).step
        page.context.close()
        open_page.console_messages.clear()
        reopened = open_training(lab, open_page)
        wait_step(reopened, step + 1)
        reopened.click("[data-do=stop]")
        wait_status(reopened, "stopped")

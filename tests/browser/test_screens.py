"""The screens Reward model, Train, Runs & data, Compare and Project.

One lab for the file, with a judge's labels, two reward models and a stopped run. What a test adds is deleted after it.
"""

import itertools
import math
import re
import uuid

import pytest
from accessibility import visible_texts
from helpers import (
    ENGINE_TIMEOUT_MS,
    control,
    expect_text,
    open_screen,
    open_tab,
    wait_for_engine,
    wait_status,
    wait_step,
    wait_until,
    wait_visible,
)
from playwright.sync_api import expect
from prepared_labs import FAST_CONFIG, add_labels, delete_other_runs, lab_with_reward_models, running_run, wait_for_job

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Choice, EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.records import Sample, StepResult, TokenRecord, Vote
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.store.blind_tests import add_test
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import current_project, projects, prompts
from rlhf_lab.store.reward_models import add_reward_model, reward_models
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, events, get_run, pending_events, rename_run, runs, set_run_status
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair
from rlhf_lab.ui.run_views.run_comparison import MAX_RUNS
from rlhf_lab.ui.run_views.run_summary import RunView, current_reward_model_id

HOSTILE = "</script><img src=x onerror=alert(1)> {{ value }} <b>once"
TEMPLATE = "${alert(1)} {{value}}"
HOSTILE_TOKENS = TokenRecord(
    row=0, prompt=HOSTILE, token_ids=[1, 2], tokens=[HOSTILE, f" {TEMPLATE}"], logprob=[-1.0, -2.0], old_logprob=[-1.0, -2.5],
    ref_logprob=[-1.0, -1.0], kl=[0.0, -1.5], value=[0.5, 0.25], reward=[0.0, 1.0], advantage=[1.0, -1.0], ratio=[1.0, math.inf],
    clipped=[False, True],
)  # fmt: skip
SCORE_PLOT = "document.querySelector(`[data-metric='objective/scores'] .js-plotly-plot`)"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab with 14 labels by a judge and the reward models 1 and 2 trained on them."""
    with lab_with_reward_models(
        tmp_path_factory.mktemp("lab") / "home", Source.SIMULATED, FAST_CONFIG, FAST_CONFIG
    ) as lab:
        yield lab


@pytest.fixture(scope="module")
def stopped_run(lab):
    """A stopped run that started with reward model 2 and switched to 1."""
    with Database.open(lab.home) as db:
        with running_run(db, lab.home, batch_size=8, checkpoint_every=1, sample_every=1) as run:
            run_control.switch_reward_model(db, run.id, 1)
            wait_until(lambda: not pending_events(db, run.id), "another reward model in a run")
            wait_until(lambda: get_run(db, run.id).step >= 6, "a policy that writes other texts than the base")
        return run


@pytest.fixture
def run(lab, stopped_run):
    """The stopped run, the only one of the lab before and after the test."""
    with Database.open(lab.home) as db:
        yield get_run(db, stopped_run.id)
        delete_other_runs(db, lab.home, stopped_run)


@pytest.fixture
def blind_test(lab, run):
    """An unanswered blind test of the base model against the run, with 8 prompts."""
    with Database.open(lab.home) as db:
        payload = {"prompts": [prompt.text for prompt in prompts(db, run.project_id, "eval")[:8]], "reward_model_id": 1}
        payload |= {"seed": 0, "temperature": 1.0, "max_new_tokens": 24}
        jobs = [
            queue.submit(db, JobKind.COMPLETE, run.project_id, payload | {"checkpoint": checkpoint})
            for checkpoint in ("base", f"run/{run.id}/latest")
        ]
        for job in jobs:
            wait_for_job(db, job)
        return add_test(db, run.project_id, *(job.id for job in jobs))


def test_reward_model_trains_automatically_and_on_request_and_scores_words(lab, fresh_project, open_page):
    page = open_screen(lab, open_page, "Reward model")
    page.wait_for_selector("[data-do=train]")
    control(page, "train").click()
    expect_text(page, "train-error", "fewer than 2 decided people's labels")
    with Database.open(lab.home) as db:
        add_labels(db, fresh_project.id, Source.SIMULATED, 14)
        page.locator(".headline [data-accuracy]").wait_for(timeout=ENGINE_TIMEOUT_MS)
        control(page, "source").select_option("simulated")
        page.click("[data-do=train]:not([disabled])")
        wait_for_engine(page, "() => document.querySelectorAll('[data-do^=look-]').length === 2")
        newest, first = reward_models(db, fresh_project.id)
    assert len(newest.snapshot.vote_ids) == 14
    for name in ("curve", "histogram"):
        expect(page.locator(f".{name}-part .js-plotly-plot")).to_be_visible()
    if newest.report["adapter"]["used"]:
        expect(page.locator(".losses-part .js-plotly-plot")).to_be_visible()
    else:
        expect_text(page, "no-losses", "An adapter was also trained, but it was not clearly better on held-out labels.")
    expect(page.locator(".calibration-part")).to_be_hidden()
    expect_text(page, "more-to-come", "With 30 unseen pairs (there are ")
    if newest.report["disagreements"]:
        control(page, "disagreements").locator("summary").click()
        expect(control(page, "disagreements").locator("li")).to_have_count(len(newest.report["disagreements"]))
    page.click(f"[data-do=look-{first.id}]")
    expect(page.locator(".headline")).to_contain_text(f"Reward model {first.id}")
    page.click("[data-do=newest]")
    expect(page.locator(".headline")).to_contain_text(f"Reward model {newest.id}")
    low, high = (newest.report[f"accuracy_{end}"] for end in ("low", "high"))
    figure = f"{round(100 * low)}–{100 * high:.0f}" if high - low > 0.25 else f"{100 * newest.report['accuracy']:.0f}"
    expect(page.locator(".headline .big")).to_contain_text(figure)  # with few labels the interval is shown instead
    why = "few labels" if high - low > 0.25 else f"{round(100 * low)}–{100 * high:.0f} %"
    expect(page.locator(".lab-header")).to_contain_text(f"accuracy {figure} %, simulated ({why})")
    usual = page.viewport_size
    assert page.locator(".lab-header .why:visible").count() == (why == "few labels")
    page.set_viewport_size({"width": 390, "height": 844})  # on a phone it would need another line
    expect(page.locator(".lab-header .why:visible")).to_have_count(0)
    page.set_viewport_size(usual)
    control(page, "explain-text").fill(f"She smiled and was happy. {HOSTILE}")
    page.click("[data-do=explain]")
    wait_visible(page, ".lab-reward .token")
    written = "".join(page.locator(".lab-reward .token").all_inner_texts())
    assert "smiled" in written
    assert "onerror" in written
    assert page.locator(".lab-reward .tokens img").count() == 0
    assert page.locator(".lab-reward .token.up, .lab-reward .token.down").count()
    assert [text for text in visible_texts(page) if text.contrast < 4.5] == []
    page.get_by_role("button", name="Dark").click()
    assert [text for text in visible_texts(page) if text.contrast < 4.5] == []


def test_losses_are_drawn_and_labels_left_out_are_reported(lab, fresh_project, open_page):
    report = {
        "labels": 14, "ties": 0, "folds": 0, "accuracy": None, "accuracy_low": 0.0, "accuracy_high": 1.0, "train_accuracy": 0.5,
        "loss": [0.7, 0.6], "note": "2 labels are left out: the model reads the same tokens for both texts",
    }  # fmt: skip
    with Database.open(lab.home) as db:
        snapshot = snapshot_labels(db, fresh_project.id, Source.HUMAN)
        add_reward_model(db, fresh_project.id, "x", config={"pooling": "mean"}, report=report, snapshot=snapshot)
    page = open_screen(lab, open_page, "Reward model")
    expect_text(page, "note", f"{report['note']}.")
    expect(page.locator(".losses-part .js-plotly-plot")).to_be_visible()


def test_switching_the_reward_model_during_a_run_marks_the_curve(lab, run, open_page):
    page = open_screen(lab, open_page, "Train")
    page.click("[data-do=start-open]")
    page.click("[data-do=start]:not([disabled])")
    wait_status(page, "queued", "running")
    wait_step(page, 2)
    gold = page.locator("[data-metric='objective/gold']")  # a judge labelled: its own score is drawn too
    expect(gold.locator(".verdict")).not_to_have_text("")
    assert (
        gold.evaluate("figure => figure.querySelector('.js-plotly-plot').data[0].y.filter(Number.isFinite).length") >= 2
    )
    assert page.input_value("[data-do=switch]") == "2"
    control(page, "switch").select_option("1")
    wait_for_engine(
        page, f"() => ({SCORE_PLOT}?.layout.annotations || []).some(one => one.text.includes('reward model 2 → 1'))"
    )
    page.click("[data-do=stop]")
    wait_status(page, "stopped")
    with Database.open(lab.home) as db:
        started = runs(db)[0]
        assert started.id > run.id
        assert EventKind.SWITCH_REWARD in [event.kind for event in events(db, started.id)]
    expect(control(page, "switch")).to_have_value("1")


def test_stopped_run_is_renamed_and_resumed_in_the_list(lab, run, open_page):
    page = open_screen(lab, open_page, "Runs & data")
    page.click("[data-do=run-rename]")
    control(page, "run-name").fill("<b>first</b> try")
    control(page, "run-name").press("Enter")
    expect_text(page, "runs-notice", 'is called "<b>first</b> try" now')
    expect(page.locator(".lab-runs td.name")).to_contain_text("<b>first</b> try")
    page.click("[data-do=run-rename]")
    control(page, "run-name").fill(" ")
    control(page, "run-name").press("Enter")
    expect_text(page, "runs-notice", "1 to 80 characters")
    with Database.open(lab.home) as db:
        before = runs(db)[0]
    assert (before.name, before.status) == ("<b>first</b> try", RunStatus.STOPPED)
    page.click("[data-do=run-resume]")
    expect_text(page, "runs-notice", f"Run {before.id} continues")
    page.click("[data-do=run-watch]")
    wait_step(page, before.step + 2)
    page.click("[data-do=stop]")
    wait_status(page, "stopped")


@pytest.mark.parametrize("width", [1280, 390])
def test_long_run_name_is_truncated_and_moves_no_button(lab, run, open_page, width):
    places, name = [], "all that can be said of an experiment stands in its name, however long it gets: 7"
    with Database.open(lab.home) as db:
        for shown in ("a", name[:80]):
            rename_run(db, run.id, shown)
            page = open_screen(lab, open_page, "Train", viewport={"width": width, "height": 900})
            expect(control(page, "pick")).to_have_attribute("title", f"{run.id} · {shown} ({run.status})")
            button, picker = (control(page, name).bounding_box() for name in ("resume", "pick"))
            places.append(button["y"] - picker["y"])  # relative: what is above both changes while the lab works
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert places[0] == places[1]


def test_axes_of_a_run_with_one_step(lab, run, open_page):
    with Database.open(lab.home) as db:
        short_run = create_run(
            db, run.project_id, run.reward_model_id, "begun", config=run.config, manifest={}, total_steps=3
        )
        values = {"objective/scores": -0.02, "objective/kl": 0.0}
        for at, texts in enumerate(((TEMPLATE, HOSTILE), (HOSTILE, TEMPLATE))):
            samples = [Sample(HOSTILE, seed, text, 0.0, cut=seed or None) for seed, text in enumerate(texts)]
            record_step(db, short_run.id, StepResult(at, values if at else {}, [HOSTILE_TOKENS] if at else [], samples))
        set_run_status(db, short_run.id, RunStatus.STOPPED)
    page = open_screen(lab, open_page, "Train")
    page.wait_for_function(f"() => {SCORE_PLOT}?.data?.[0]?.x.length === 1")
    for metric, low in (("objective/scores", -0.1), ("objective/kl", 0.0)):
        plot = page.locator(f"[data-metric='{metric}']")
        assert plot.evaluate("node => node.querySelector('.js-plotly-plot')._fullLayout.yaxis.range[0]") >= low
        assert plot.locator(".xtick").all_text_contents() == ["0", "1"]
    shown = page.locator(".lab-train .sample")  # hostile text is shown as text
    expect(shown.locator(".now .lab-text")).to_have_text([HOSTILE, f"{TEMPLATE} … cut off at 1 token"])
    expect(shown.locator(".before .lab-text")).to_have_text([TEMPLATE, f"{HOSTILE} … cut off at 1 token"])
    assert shown.locator("img, script, b").count() == 0
    page.click("[data-do=to-tokens]")
    expect(page.locator(".microscope .tokens")).to_have_text("".join(HOSTILE_TOKENS.tokens))
    expect(page.locator(".microscope .word")).to_have_text(f"“{TEMPLATE}”")
    expect(page.locator(".microscope .sum").filter(has_text="not finite")).to_have_count(2)  # ratio and loss
    assert page.locator(".microscope").locator("img, script, b").count() == 0


def test_lost_reply_with_samples_is_requested_again_after_the_run_has_ended(lab, run, open_page):
    page, lost_requests = open_page(lab), []

    def lose_the_first(route):
        if not lost_requests:
            lost_requests.append(route)  # not answered yet: the page shows a placeholder
        else:
            route.continue_()

    page.route("**/lab-api/train/samples", lose_the_first)
    open_tab(page, "Train")
    rows = page.locator(".lab-train .rows")
    expect(rows).to_have_text("Loading the texts of this step …")
    lost_requests[0].abort()
    page.wait_for_selector(".lab-train .sample")
    open_page.console_messages[:] = [words for words in open_page.console_messages if "ERR_FAILED" not in words]


def test_runs_are_compared_and_one_is_deleted(lab, run, open_page):
    with Database.open(lab.home) as db:
        config = run.config | {"beta": 0.77}
        other = create_run(db, run.project_id, run.reward_model_id, "other", config=config, manifest={}, total_steps=3)
        for step in (1, 2, 3):
            record_step(db, other.id, StepResult(step, {"objective/scores": 0.1 * step, "objective/kl": 0.2 * step}))
        set_run_status(db, other.id, RunStatus.STOPPED)
    page = open_screen(lab, open_page, "Runs & data")
    page.wait_for_function("() => document.querySelector('.lab-runs .plot.wide')?.data?.length === 2")
    expect(page.locator(".differs")).to_contain_text("0.77")
    distances = page.evaluate("document.querySelector('.lab-runs .plot.score').data.map(run => run.x)")
    assert len(distances) == 2
    assert [0.4472, 0.6325, 0.7746] in distances  # square roots of the KL values above
    control(page, "run-choose").first.uncheck()
    page.wait_for_function("() => document.querySelector('.lab-runs .plot.wide').data.length === 1")
    page.click(f"[data-do=run-delete][data-run='{other.id}']")
    page.click("[data-do=run-delete-leave]")
    page.click(f"[data-do=run-delete][data-run='{other.id}']")
    page.click("[data-do=run-delete-sure]")
    expect_text(page, "runs-notice", f"Run {other.id} was deleted")
    with Database.open(lab.home) as db:
        assert [left.id for left in runs(db)] == [run.id]


def test_every_export_downloads_a_file_with_content(lab, run, open_page):
    page = open_screen(lab, open_page, "Runs & data")
    page.wait_for_selector("[data-do=export-labels]:not([disabled])")
    control(page, "export-source").select_option("simulated")
    for what in ("labels", "dataset", "run", "adapter", "model", "reward-model"):
        with page.expect_download() as download:
            control(page, f"export-{what}").click()
        path = download.value.path()
        assert path.stat().st_size > 200, what
        if what == "labels":
            assert len(path.read_text().splitlines()) == 13  # and a tie
            expect_text(page, "runs-notice", "1 vote left out, because a tie has no better text")
        else:
            assert path.read_bytes()[:2] == b"PK", what
        assert control(page, "export-link").count() == 1
    with Database.open(lab.home) as db:
        pair = next_unvoted_pair(db, run.project_id, "Ann")
        cast_vote(db, Vote(str(uuid.uuid4()), pair.id, "Ann", Source.HUMAN, Choice.FIRST, True))
    control(page, "export-source").select_option("human")
    for names, known in (("with", True), ("without", False)):
        control(page, "export-names").select_option(names)
        with page.expect_download() as download:
            control(page, "export-labels").click()
        assert ('"Ann"' in download.value.path().read_text()) is known
    control(page, "export-ties").select_option("drop")  # the offered file no longer matches the form
    expect(control(page, "export-link")).to_have_count(0)
    with Database.open(lab.home) as db:
        for number in range(MAX_RUNS):
            options = {"config": run.config, "manifest": {}, "total_steps": 3}
            more = create_run(db, run.project_id, run.reward_model_id, f"more {number}", **options)
            set_run_status(db, more.id, RunStatus.STOPPED)
    expect(control(page, "run-choose")).to_have_count(MAX_RUNS + 1)
    chosen = page.locator("[data-do=run-choose]:checked")
    expect(chosen).to_have_count(MAX_RUNS)  # runs that start while the list is open are selected up to the maximum
    page.locator("[data-do=run-choose]:not(:checked)").click()
    expect_text(page, "runs-notice", f"At most {MAX_RUNS} runs")
    expect(page.locator("[data-do=runs-notice] + .list")).to_be_visible()  # above the list again, not below the exports


class WithholdScorers:
    """A route handler that removes the runs' scorers from replies until `released`.

    The route stays until the end of the test, because removing it fails requests in flight.
    """

    released = False

    def __call__(self, route) -> None:
        if self.released:
            return route.continue_()
        answer = route.fetch().json()
        if "reply" in answer and not self.released:
            answer = {"reply": answer["reply"] | {"scorer_by_run": {}}, "revision": ""}
        return route.fulfill(json=answer)


def reply_with_markup(route) -> None:
    """A route handler: replaces the models' texts by a template (base) and by markup (others)."""
    answer = route.fetch().json()
    for number, column in enumerate(answer.get("reply", {}).get("columns", [])):
        if "texts" in column:
            column["texts"] = [HOSTILE if number else TEMPLATE for _ in column["texts"]]
    route.fulfill(json=answer)


def test_compare_samples_base_and_run_on_a_hostile_prompt(lab, run, open_page):
    page = open_screen(lab, open_page, "Compare")
    control(page, "prompt").fill(HOSTILE)
    control(page, "max_new_tokens").fill("12")
    control(page, "samples").fill("0")
    page.wait_for_selector("[data-do=step-2]:visible")  # a run is selected on the right, and its reward model scores
    with Database.open(lab.home) as db:
        learnt = str(current_reward_model_id(RunView.load(db, run)))
    models = control(page, "model-2")
    expect(control(page, "write")).to_be_enabled()
    assert int(models.input_value().split("/")[1]) == run.id
    selected = control(page, "reward").input_value()
    assert selected == learnt
    withhold = WithholdScorers()
    page.route("**/lab-api/compare/options", withhold)
    models.select_option("base")
    models.select_option(f"run/{run.id}/latest")
    expect(control(page, "write")).to_be_disabled()  # its reward model is not known yet
    withhold.released = True
    models.select_option(f"run/{run.id}/latest")  # known after the next request
    expect(control(page, "reward")).to_have_value(learnt)
    page.click("[data-do=write]")
    expect_text(page, "compare-error", 'samples each = "0"')
    expect(control(page, "samples")).to_be_focused()
    control(page, "samples").fill("2")
    control(page, "model-3").select_option("base/best/4")
    page.click("[data-do=write]")
    wait_visible(page, "[data-do=answer] [data-column-name]")
    answer = control(page, "answer")
    assert answer.locator(".asked").inner_text() == HOSTILE
    assert answer.locator(".text").count() == 6
    assert answer.locator("text=score").count() >= 6
    assert answer.locator("text=best of 4 by its score").count() == 2
    assert page.locator(".lab-compare .results img").count() == 0
    assert "was trained on" not in answer.inner_text()
    other = next(value for value in ("1", "2") if value != selected)
    control(page, "reward").select_option(other)
    page.route("**/lab-api/compare/completions", reply_with_markup)
    page.click("[data-do=write]")
    expect(answer.first).to_contain_text(
        f"Run {run.id} was trained on reward model {selected}.", timeout=ENGINE_TIMEOUT_MS
    )
    expect(answer.first.locator("[data-column-name] .lab-text")).to_contain_text([TEMPLATE, HOSTILE, HOSTILE] * 2)
    assert page.locator(".lab-compare .results").locator("img, script, b").count() == 0
    page.unroute_all(behavior="wait")
    control(page, "model-2").select_option("base")
    expect(control(page, "reward")).to_have_value(other)  # a person's choice is kept


def test_blind_test_is_judged_by_keys_and_reveals_the_models(lab, run, open_page):
    page = open_screen(lab, open_page, "Compare")
    control(page, "blind-pairs").fill("999")
    control(page, "blind-begin").click()
    expect_text(page, "blind-notice", "from 1 to 64")
    control(page, "blind-pairs").fill("8")
    control(page, "blind-begin").click()
    wait_visible(page, "[data-judged='0']")
    expect(control(page, "blind-notice")).to_be_hidden()
    page.locator(".blind h2").click()  # leave the input field
    count = int(re.search(r"of (\d+)", page.inner_text("[data-judged]"))[1])
    assert 2 <= count <= 8
    judged, chosen = [], []
    while len(judged) < count - 1:
        left, right = (page.inner_text(f".blind .{side} .lab-text") for side in ("left", "right"))
        assert left != right
        judged.append(sorted((left, right)))
        key = "102"[len(judged) % 3]
        chosen += {"1": [left], "2": [right], "0": []}[key]
        page.keyboard.press(key)
        page.wait_for_selector(f"[data-judged='{len(judged)}']")
    another = open_screen(lab, open_page, "Compare")  # another visitor has answered none
    another.wait_for_selector("[data-judged='0']")
    expect(control(another, "blind-others")).to_have_text("1 other: 1 in progress")
    expect(control(page, "blind-others")).to_have_text("")  # a visitor without answers does not count
    shown = page.locator(".blind .sides").element_handle()
    control(another, "blind-stop").click()
    expect_text(another, "blind-result", "You decided no pair.")
    expect(control(another, "blind-others")).to_have_text("1 other: 1 in progress")
    expect(control(page, "blind-others")).to_have_text(
        "1 other: 1 done"
    )  # although it decided no pair; the page is not redrawn
    assert shown.evaluate("node => node.isConnected")
    control(page, "blind-tie").click()
    expect_text(page, "blind-result", f"{len(chosen)} decided pair")
    expect(control(page, "blind-others")).to_have_text("1 other: 1 done")
    expect(control(another, "blind-others")).to_have_text("1 other: 1 done")
    expect_text(page, "blind-result", "reward model")
    page.locator(".blind summary").click()
    rows = page.locator(".blind tbody tr")
    expect(rows).to_have_count(count)
    shown = [sorted(row.locator("td:not(:first-child) .lab-text").all_inner_texts()) for row in rows.all()]
    assert shown[: len(judged)] == judged
    chosen_cells = rows.locator("td", has_text="you chose this").locator(".lab-text")
    assert chosen_cells.all_inner_texts() == chosen
    page.reload()
    open_tab(page, "Compare")
    expect_text(page, "blind-result", f"{len(chosen)} decided pair")


def test_blind_test_is_renamed_and_deleted(lab, blind_test, open_page):
    another = open_screen(lab, open_page, "Compare")
    another.wait_for_selector("[data-judged='0']")
    judged = control(another, "blind-pick").input_value()
    page = open_screen(lab, open_page, "Compare")
    control(page, "blind-begin").click()
    wait_visible(page, "[data-judged='0']")
    names = control(page, "blind-pick").locator("option")
    expect(names).to_have_count(2)
    expect(control(another, "blind-pick").locator("option")).to_have_count(2)
    for _ in range(2):  # a newer test does not replace the one being judged
        with another.expect_response("**/lab-api/blind_test/get_state"):
            pass
    expect(control(another, "blind-pick")).to_have_value(judged)
    newest = names.first.get_attribute("value")
    control(another, "blind-pick").select_option(newest)
    expect(control(another, "blind-pick")).to_have_value(newest)
    another.wait_for_selector("[data-judged='0']")
    note = "2 prompts left out: too long for the model with 64 new tokens"

    seen = []

    def leave_out(route):
        if seen:
            return route.continue_()
        answer = route.fetch().json()
        if "judged_count" in answer.get("reply", {}):
            answer["reply"]["skipped_note"] = note
        return route.fulfill(json=answer)

    another.route("**/lab-api/blind_test/get_state", leave_out)
    expect(control(another, "blind-left-out")).to_have_text(note)
    seen.append(True)
    held_requests, released = [], []

    def hold(route):
        route.continue_() if released else held_requests.append(route)

    page.route("**/lab-api/compare/options", hold)  # the new name is shown without another request
    control(page, "blind-rename").click()
    control(page, "blind-name").fill(HOSTILE)
    page.keyboard.press("Enter")
    expect_text(page, "blind-notice", "is called")
    expect(names.first).to_contain_text(HOSTILE)
    released.append(True)
    for route in held_requests:
        route.continue_()
    page.wait_for_selector("[data-judged='0']")
    page.keyboard.press("1")
    page.wait_for_selector("[data-judged='1']")
    control(page, "blind-delete").click()
    expect(page.locator(".blind .controls")).to_contain_text("permanently, with its texts and 1 answer of one person?")
    control(page, "blind-delete-leave").click()
    expect(names).to_have_count(2)
    control(page, "blind-delete").click()
    control(page, "blind-delete-sure").click()
    expect_text(page, "blind-notice", "is deleted, with its texts and 1 answer of one person.")
    expect(names).to_have_count(1)
    control(page, "blind-stop").click()  # the remaining test is shown; this visitor has not judged it
    expect_text(page, "blind-result", "You decided no pair.")


def tab_order_goes_down(page) -> bool:
    """Whether the Tab key never moves up a row on the screen "Compare"."""
    stops = page.locator(".lab-compare").locator("button, select, input, textarea, summary").all()
    boxes = [stop.bounding_box() for stop in stops if stop.is_visible()]
    assert len(boxes) > 5
    return all(box["y"] + box["height"] > before["y"] for before, box in itertools.pairwise(boxes))


def test_compare_on_a_phone_shows_the_blind_test_first_and_collapses_settings(lab, blind_test, open_page):
    page = open_screen(lab, open_page, "Compare", viewport={"width": 390, "height": 844})
    page.wait_for_selector("[data-judged='0']")
    top = "(what) => document.querySelector(what).getBoundingClientRect().top"
    assert page.evaluate(top, ".blind .asked") < page.evaluate(top, ".lab-compare .form")
    assert page.evaluate(top, ".blind .sides") < page.evaluate(top, "[data-do=blind-begin]")
    assert tab_order_goes_down(page)
    expect(control(page, "seed")).to_be_hidden()
    page.locator(".fold summary").click()
    control(page, "seed").fill("7")
    expect(page.locator(".fold summary")).to_contain_text("seed 7")
    control(page, "max_new_tokens").fill("12")
    control(page, "samples").fill("0")
    control(page, "write").click()
    expect_text(page, "compare-error", 'samples each = "0"')
    expect(control(page, "samples")).to_be_focused()  # opened again after it was collapsed
    control(page, "samples").fill("1")
    control(page, "write").click()
    wait_visible(page, "[data-do=answer] [data-column-name]")
    expect(control(page, "seed")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(control(page, "seed")).to_have_value("7")
    expect(control(page, "seed")).to_be_visible()
    assert tab_order_goes_down(page)
    assert page.evaluate(top, ".lab-compare .form") < page.evaluate(top, ".blind .asked")


def test_new_project_from_pasted_prompts_and_its_error_messages(lab, open_page, tmp_path):
    page = open_screen(lab, open_page, "Project")
    page.wait_for_selector("[data-do=new-create]")
    control(page, "new-model").select_option("other")
    control(page, "new-other").fill("/there/is/no model")
    for button in ("new-check", "new-create"):
        control(page, button).click()
        expect_text(
            page, "new-check-result" if button == "new-check" else "project-notice", "is neither a folder nor a Hub id"
        )
    control(page, "new-model").select_option(index=0)
    control(page, "new-set").select_option("own")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "fine"}\n{"prompt": \n')
    control(page, "new-file").set_input_files(broken)
    expect_text(page, "new-preview", "line 2")
    page.click("[data-do=new-create]")
    expect_text(page, "project-notice", "cannot be used")
    for name in ("People", "Project"):  # leaving the screen clears the error and keeps the input
        open_tab(page, name)
    expect(control(page, "project-notice")).to_be_hidden()
    expect(control(page, "new-set")).to_have_value("own")
    control(page, "new-text").fill("")
    control(page, "new-text").fill("\n".join([f"Prompt number {i} {HOSTILE}" for i in range(6)]))
    expect_text(page, "new-preview", "6 prompts")
    control(page, "new-name").fill("mine")
    page.click("[data-do=new-create]")
    expect_text(page, "project-notice", 'Project "mine" was created and opened')
    expect(page.locator(".make [data-do=project-notice]")).to_be_visible()  # next to the pressed button
    expect(control(page, "new-name")).to_have_value("")
    expect(control(page, "new-set")).not_to_have_value("own")
    expect(control(page, "new-text")).to_be_hidden()
    with Database.open(lab.home) as db:
        assert (current_project(db).name, current_project(db).prompt_set) == ("mine", "own prompts")
    page.click("[data-do=project-open]")
    expect_text(page, "project-notice", "is open, for everybody")
    expect(page.locator(".make [data-do=project-notice]")).to_have_count(0)
    control(page, "project-rename").first.click()
    control(page, "project-name").fill("not kept")
    page.keyboard.press("Escape")
    expect(control(page, "project-rename").first).to_have_text("mine")
    control(page, "project-rename").first.click()
    control(page, "project-name").fill("<b>ours</b>")
    page.keyboard.press("Enter")
    expect_text(page, "project-notice", 'is called "<b>ours</b>" now')
    expect(control(page, "project-rename").first).to_have_text("<b>ours</b>")
    with Database.open(lab.home) as db:
        written = projects(db)[-1].id
        wait_until(lambda: not queue.jobs(db, project_id=written, statuses=UNFINISHED_JOB_STATUSES), "its first pairs")
    control(page, "project-delete").click()  # of the project that is not open
    expect(page.locator("td.actions .lab-row")).to_contain_text("with its texts, 0 labels, 0 reward models, 0 runs?")
    control(page, "project-delete-leave").click()
    control(page, "project-delete").press("Enter")
    expect(control(page, "project-delete-sure")).to_be_focused()
    control(page, "project-delete-sure").press("Enter")
    expect_text(page, "project-notice", 'The project "<b>ours</b>" is deleted.')
    expect(control(page, "project-rename")).to_have_count(1)

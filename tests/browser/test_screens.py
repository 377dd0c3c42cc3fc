"""The screens Reward model, Train, Runs & data, Compare and Project.

One lab for the file, with a judge's labels, two reward models and a stopped run. What a test adds is deleted after it.
"""

import itertools
import math

import pytest
from accessibility import visible_texts
from helpers import (
    ENGINE_TIMEOUT_MS,
    control,
    expect_text,
    open_screen,
    open_tab,
    wait_for_engine,
    wait_until,
    wait_visible,
)
from playwright.sync_api import expect
from prepared_labs import FAST_CONFIG, add_labels, delete_other_runs, lab_with_reward_models, running_run, wait_for_job

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, RunStatus, Source
from rlhf_lab.common.records import Sample, StepResult, TokenRecord
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.store.blind_tests import add_test
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project, projects, prompts
from rlhf_lab.store.reward_model_list import list_reward_models
from rlhf_lab.store.reward_models import reward_models
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, get_run, pending_events, rename_run, runs, set_run_status
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
    expect_text(page, "train-error", "fewer than 2 decided labels by people")
    with Database.open(lab.home) as db:
        add_labels(db, fresh_project.id, Source.SIMULATED, 14)
        page.locator(".headline [data-accuracy]").wait_for(timeout=ENGINE_TIMEOUT_MS)
        control(page, "source").select_option("simulated")
        page.click("[data-do=train]:not([disabled])")
        wait_for_engine(page, "() => document.querySelectorAll('[data-do^=look-]').length === 2")
        newest, first = reward_models(db, fresh_project.id)
        default = run_control.best_supported(list_reward_models(db, fresh_project.id))
    assert len(newest.snapshot.vote_ids) == 14
    for name in ("curve", "histogram"):
        expect(page.locator(f".{name}-part .js-plotly-plot")).to_be_visible()
    if default.report["adapter"]["used"]:
        expect(page.locator(".losses-part .js-plotly-plot")).to_be_visible()
    else:
        expect_text(
            page,
            "no-losses",
            "An adapter of the language model was trained too, but it was not clearly better on held-out labels.",
        )
    expect(page.locator(".calibration-part")).to_be_hidden()
    expect_text(page, "more-to-come", "With 30 unseen pairs (there are ")
    if default.report["disagreements"]:
        control(page, "disagreements").locator("summary").click()
        expect(control(page, "disagreements").locator("li")).to_have_count(len(default.report["disagreements"]))
    page.click(f"[data-do=look-{first.id}]")
    expect(page.locator(".headline")).to_contain_text(f"Reward model {first.id}")
    page.click(f"[data-do=look-{newest.id if default.id == first.id else first.id}]")
    page.click("[data-do=look-at-default]")
    expect(page.locator(".headline")).to_contain_text(f"Reward model {default.id}")
    low, high = (default.report[f"accuracy_{end}"] for end in ("low", "high"))
    figure = f"{round(100 * low)}–{100 * high:.0f}" if high - low > 0.25 else f"{100 * default.report['accuracy']:.0f}"
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


def test_axes_of_a_run_with_one_step_its_hostile_texts_and_its_long_name(lab, run, open_page):
    """Its samples are requested again after a reply was lost, although it has ended."""
    with Database.open(lab.home) as db:
        short_run = create_run(
            db, run.project_id, run.reward_model_id, "begun", config=run.config, manifest={}, total_steps=3
        )
        values = {"objective/scores": -0.02, "objective/kl": 0.0}
        for at, texts in enumerate(((TEMPLATE, HOSTILE), (HOSTILE, TEMPLATE))):
            samples = [Sample(HOSTILE, seed, text, 0.0, cut=seed or None) for seed, text in enumerate(texts)]
            record_step(db, short_run.id, StepResult(at, values if at else {}, [HOSTILE_TOKENS] if at else [], samples))
        set_run_status(db, short_run.id, RunStatus.STOPPED)
    page, lost_requests = open_page(lab), []

    def lose_the_first(route):
        if not lost_requests:
            lost_requests.append(route)  # not answered yet: the page shows a placeholder
        else:
            route.continue_()

    page.route("**/lab-api/train/samples", lose_the_first)
    open_tab(page, "Train")
    expect(page.locator(".lab-train .rows")).to_have_text("Loading the texts of this step …")
    lost_requests[0].abort()
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
    expect(page.locator(".token-view .tokens")).to_have_text("".join(HOSTILE_TOKENS.tokens))
    expect(page.locator(".token-view .word")).to_have_text(f"“{TEMPLATE}”")
    expect(page.locator(".token-view .sum").filter(has_text="not finite")).to_have_count(2)  # ratio and loss
    assert page.locator(".token-view").locator("img, script, b").count() == 0
    open_page.console_messages[:] = [words for words in open_page.console_messages if "ERR_FAILED" not in words]
    expect_long_name_moves_no_button(lab, page, short_run)
    control(page, "sample-why").first.click()
    expect(control(page, "explain-text")).to_have_value(HOSTILE)
    control(page, "explain-back").click()
    expect(page.get_by_role("tab", name="Train", exact=True)).to_have_attribute("aria-selected", "true")


DISTANCE_OF_BUTTON = """() => {
  const [button, picker] = ["resume", "pick"].map(name => document.querySelector(`.lab-train [data-do=${name}]`));
  return button.getBoundingClientRect().top - picker.getBoundingClientRect().top;
}"""


def expect_long_name_moves_no_button(lab, page, run) -> None:
    places, name = {}, "all that can be said of an experiment stands in its name, however long it gets: 7"
    for shown in ("a", name[:80]):
        with Database.open(lab.home) as db:
            rename_run(db, run.id, shown)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            expect(control(page, "pick")).to_have_attribute("title", f"{run.id} · {shown} ({RunStatus.STOPPED})")
            places.setdefault(width, []).append(page.evaluate(DISTANCE_OF_BUTTON))  # what is above both may change
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert all(first == second for first, second in places.values())


def test_runs_are_compared_exported_renamed_and_deleted(lab, run, open_page):
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
    page.locator(f"[data-do=run-rename][data-run='{other.id}']").click()
    control(page, "run-name").fill("<b>first</b> try")
    control(page, "run-name").press("Enter")
    expect_text(page, "runs-notice", 'is called "<b>first</b> try" now')
    expect(page.locator(".lab-runs td.name").first).to_contain_text("<b>first</b> try")
    page.click(f"[data-do=run-delete][data-run='{other.id}']")
    page.click("[data-do=run-delete-leave]")
    page.click(f"[data-do=run-delete][data-run='{other.id}']")
    page.click("[data-do=run-delete-sure]")
    expect_text(page, "runs-notice", f"Run {other.id} was deleted")
    with Database.open(lab.home) as db:
        assert [left.id for left in runs(db)] == [run.id]
    expect_every_export(page)


def expect_every_export(page) -> None:
    """Each button downloads a file with content; the offered file is gone when it no longer matches the form."""
    control(page, "export-source").select_option("simulated")
    for what in ("labels", "dataset", "label-recipe", "run", "recipe", "adapter", "model", "reward-model"):
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
    control(page, "export-layout").select_option("votes")
    expect(control(page, "export-link")).to_have_count(0)


class WithholdDetails:
    """A route handler that removes the runs' details from replies until `released`.

    The route stays until the end of the test, because removing it fails requests in flight.
    """

    released = False

    def __call__(self, route) -> None:
        if self.released:
            return route.continue_()
        answer = route.fetch().json()
        if "reply" in answer and not self.released:
            answer = {"reply": answer["reply"] | {"steps_by_run": {}, "scorer_by_run": {}}, "revision": ""}
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
    page.locator(".fold summary").click()
    control(page, "max_new_tokens").fill("12")
    control(page, "samples").fill("0")
    page.wait_for_selector("[data-do=step-2]:visible")  # a run is selected on the right, and its reward model scores
    with Database.open(lab.home) as db:
        learned = str(current_reward_model_id(RunView.load(db, run)))
    models = control(page, "model-2")
    expect(control(page, "write")).to_be_enabled()
    assert int(models.input_value().split("/")[1]) == run.id
    selected = control(page, "reward").input_value()
    assert selected == learned
    withhold = WithholdDetails()
    page.route("**/lab-api/compare/options", withhold)
    models.select_option("base")
    models.select_option(f"run/{run.id}/latest")
    expect(control(page, "write")).to_be_disabled()  # its reward model is not known yet
    withhold.released = True
    models.select_option(f"run/{run.id}/latest")  # known after the next request
    expect(control(page, "reward")).to_have_value(learned)
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


def tab_order_goes_down(page) -> bool:
    """Whether the Tab key never moves up a row on the screen "Compare". The explained words are above the fields of their row."""
    stops = page.locator(".lab-compare").locator("button:not(.lab-term), select, input, textarea, summary").all()
    boxes = [stop.bounding_box() for stop in stops if stop.is_visible()]
    assert len(boxes) > 5
    return all(box["y"] + box["height"] > before["y"] for before, box in itertools.pairwise(boxes))


def test_compare_shows_a_blind_test_in_progress_first_and_collapses_settings(lab, blind_test, open_page):
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
    page.locator(".fold summary").click()
    control(page, "write").click()
    expect_text(page, "compare-error", 'samples each = "0"')
    expect(control(page, "samples")).to_be_focused()  # the fold is opened again
    control(page, "samples").fill("1")
    control(page, "write").click()
    wait_visible(page, "[data-do=answer] [data-column-name]")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(control(page, "seed")).to_have_value("7")
    expect(control(page, "seed")).to_be_visible()
    assert tab_order_goes_down(page)
    assert page.evaluate(top, ".blind .asked") < page.evaluate(top, ".lab-compare .form")


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
    expect(page.locator(".lab-question")).to_contain_text("with its texts, 0 labels, 0 reward models, 0 runs?")
    control(page, "project-delete-leave").click()
    control(page, "project-delete").press("Enter")
    control(page, "project-delete-sure").press("Enter")
    expect_text(page, "project-notice", 'The project "<b>ours</b>" is deleted.')
    expect(control(page, "project-rename")).to_have_count(1)

"""Nothing is cut off at the edges of a screen, in any state, on phones and on a desktop.

`scrollWidth` of the page does not show this: Gradio hides what overflows. So the edges of every visible element and text are
measured. What a container scrolls sideways, or shortens with an ellipsis, may be wider than the window; the container may not.
"""

import re
import uuid
from contextlib import contextmanager

import numpy as np
import pytest
from browser_lab import current_pair
from helpers import control, expect_text, open_tab, wait_until
from playwright.sync_api import expect
from prepared_labs import idle_lab, without_engine

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.enums import Choice, EventKind, JobKind, RunStatus, Source
from rlhf_lab.common.records import NewCompletion, Sample, StepResult, TokenRecord, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store import tables as t
from rlhf_lab.store.features import TextFeatures, add_features
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import (
    add_completions,
    add_pairs,
    create_project,
    open_project,
    prompts,
    set_labelling_config,
)
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run, pending_events, set_run_status
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair
from rlhf_lab.ui.shared.charts import CURVES

WIDTHS = (320, 390, 1280)
LONG = "W" * 120  # longer than any of these screens is wide
#: JavaScript: the visible elements and texts that reach over an edge of the window, and what scrolls sideways though it is no
#: row of tabs, header strip or table.
OUTSIDE = """() => {
    const width = document.documentElement.clientWidth, found = [];  // plotly measures texts far outside
    const mayBeWider = (style) => /auto|scroll/.test(style.overflowX)
        || (style.textOverflow === 'ellipsis' && style.overflowX !== 'visible');
    const isHeld = (node) => {
        for (let at = node; at && at !== document.body; at = at.parentElement) if (mayBeWider(getComputedStyle(at))) return true;
        return false; };
    const note = (node, text, rect) => {
        if (rect.width && rect.height && (rect.right > width + 1 || rect.left < -1))
            found.push(`${node.className} ${text.trim().slice(0, 40)}: ${rect.left} to ${rect.right} of ${width}`); };
    for (const node of document.body.querySelectorAll(':not(script, style, option, #js-plotly-tester)')) {
        if (node.ownerSVGElement || !node.checkVisibility({ visibilityProperty: true })) continue;
        if (!isHeld(node.parentElement)) note(node, node.textContent, node.getBoundingClientRect());
        const scrolls = /auto|scroll/.test(getComputedStyle(node).overflowX) && node.scrollWidth > node.clientWidth + 1;
        if (scrolls && !node.matches('.strip, [role=tablist], :has(table), pre')) found.push(`scrolls: ${node.className}`);
        if (isHeld(node)) continue;
        for (const child of node.childNodes) if (child.nodeType === Node.TEXT_NODE && child.data.trim()) {
            const range = document.createRange();
            range.selectNodeContents(child);
            for (const rect of range.getClientRects()) note(node, child.data, rect);
        }
    }
    return found; }"""


def expect_inside(page, state: str) -> None:
    """At each width everything is between the edges, after charts have been drawn again."""
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        found = ["not measured"]
        for _ in range(20):
            page.wait_for_timeout(50)
            if not (found := page.evaluate(OUTSIDE)):
                break
        assert found == [], f"{state}, {width} px"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with without_engine(idle_lab(tmp_path_factory.mktemp("edge") / "home")) as lab:
        yield lab


def add_project(db, name: str = "Long words", word: str = LONG):
    """A new open project whose texts contain this word. Of a pair, the text that begins with A has the higher feature."""
    chat = prompt_of_chat([{"role": role, "content": f"{role} {word}"} for role in ("user", "assistant", "user")])
    texts = [chat if word == LONG else word, *(f"{number} {word}" for number in range(1, 40))]
    project = create_project(
        db, name, "embedded", "", "tales", 0, [(text, "train") for text in texts] + [("Eval", "eval")]
    )
    rows = prompts(db, project.id, "train")
    sides = [
        add_completions(db, [NewCompletion(row.id, f"{side} {word}", (5, 1), "base", 0) for row in rows])
        for side in "AB"
    ]
    for sign, completions in zip((1, -1), sides, strict=True):
        noise = np.random.default_rng(sign + 1).normal(scale=0.05, size=(len(completions), 3))
        vectors = (noise + np.array([sign, 0, 0])).astype(np.float16)
        add_features(db, {row.id: TextFeatures(1, vector) for row, vector in zip(completions, vectors, strict=True)})
    add_pairs(db, project.id, [(first.id, second.id, "test") for first, second in zip(*sides, strict=True)])
    set_labelling_config(db, project.id, LabellingConfig(guideline=f"Prefer {word}"))
    return project


def vote(db, project, annotator: str, choice: Choice) -> None:
    pair = next_unvoted_pair(db, project.id, annotator)
    cast_vote(db, Vote(str(uuid.uuid4()), pair.id, annotator, Source.HUMAN, choice, first_on_left=True))


def choose(page, beginning: str) -> None:
    """Answer that the text with this beginning is better; wait until the lab accepts the next answer."""
    pair = current_pair(page)
    page.locator(".side", has=page.locator(".lab-text", has_text=re.compile(f"^{beginning}"))).locator("button").click()
    page.wait_for_function(
        "before => ![undefined, before].includes(document.querySelector('.lab-label').dataset.open)", arg=pair
    )


def test_label(lab, db, open_page):
    project = add_project(db)
    page = open_page(lab)
    me = page.evaluate("localStorage['rlhf-lab-annotator']")
    current_pair(page)
    expect_inside(page, "before the first vote")
    for _ in range(7):
        vote(db, project, "Ann", Choice.FIRST)
    panel = page.locator(".lab-label .instant")
    expect(panel).to_contain_text("predicts your next answer")
    expect_inside(page, "after votes of others")
    for beginning, verdict in (("A", "predicted your last answer"), ("B", "predicted the other text")):
        choose(page, beginning)
        expect(panel).to_contain_text(verdict)
        expect_inside(page, verdict)
    page.keyboard.press("0")
    expect(panel).to_contain_text("preferred neither text")
    expect_inside(page, "tie")
    message = page.locator(".lab-label .message")
    for key, text in (("u", "was undone"), ("r", "counts again"), ("r", "nothing to redo")):
        current_pair(page)
        page.keyboard.press(key)
        expect(message).to_contain_text(text)
        expect_inside(page, text)
    for choice in (Choice.FIRST, Choice.SECOND):  # disagreement about one pair
        pair = next_unvoted_pair(db, project.id, "nobody")
        for person, own in (("Ann", choice), (LONG[:60], Choice.TIE)):
            cast_vote(db, Vote(str(uuid.uuid4()), pair.id, person, Source.HUMAN, own, first_on_left=True))
    expect(page.locator(".lab-label .disputed")).to_contain_text("disagree")
    page.evaluate("for (const one of document.querySelectorAll('.lab-label details')) one.open = true")
    expect(page.locator(".lab-label .earlier article")).not_to_have_count(0)
    expect_inside(page, "lists open")
    page.locator(".lab-label .disputed button").first.click()
    expect(page.locator(".lab-label")).to_contain_text("You decide this pair")
    expect_inside(page, "deciding as an expert")
    for _ in range(10):
        vote(db, project, me, Choice.FIRST)
    with db.write() as conn:
        conn.execute(t.pairs.update().where(t.pairs.c.project_id == project.id).values(gold=Choice.TIE, gold_at=0.0))
    rules = LabellingConfig(gold_rule="inform", gold_answers=5)
    for rule, text in (("inform", "quality-note"), ("pause", "")):
        set_labelling_config(db, project.id, rules.replace(gold_rule=rule))
        page.reload()
        expect(page.locator(f".lab-label [data-do={text}]" if text else ".lab-label .lab-empty")).to_be_visible()
        expect_inside(page, rule)
    empty = create_project(db, LONG[:80], "embedded", "", "tales", 0, [("One", "train"), ("Two", "eval")])
    kept = {"name": "vote", "uuid": "u", "by": LONG[:60], "project_created_at": empty.created_at}
    page.evaluate("kept => localStorage.setItem('rlhf-lab-unconfirmed-u', JSON.stringify(kept))", kept)
    expect(message).to_contain_text("is not stored yet")
    expect(page.locator(".lab-label .lab-empty")).to_be_visible()
    expect_inside(page, "no pair, and an answer of somebody else that is not stored")


REPORT = {
    "labels": 14, "ties": 3, "folds": 5, "accuracy": 0.62, "accuracy_low": 0.5, "accuracy_high": 0.74, "train_accuracy": 0.95,
    "loss": [0.7, 0.6, 0.5], "note": f"2 labels are left out {LONG}", "chosen_scores": [0.1, 0.2, 0.3], "length_correlation": 0.3,
    "rejected_scores": [-0.1, 0.2, 0.0], "adapter": {"used": True}, "expected_calibration_error": 0.1,
    "calibration": [[0.55, 0.5, 40]], "seconds": 12.0,
}  # fmt: skip


@contextmanager
def working_on(db, kind: JobKind, project_id: int, payload: dict):
    """A job that this process is working on; at the end it is cancelled."""
    job = queue.submit(db, kind, project_id, payload)
    queue.claim(db, [kind], engine_process.record_heartbeat(db, f"{kind} (job {job.id})"), project_id)
    yield job
    queue.cancel(db, job.id)


def add_model(db, project, accuracy: float, disagreements: int = 0):
    report = REPORT | {
        "accuracy": accuracy,
        "disagreements": [{"index": one, "probability": 0.1} for one in range(disagreements)],
    }
    snapshot = snapshot_labels(db, project.id, Source.HUMAN)
    return add_reward_model(db, project.id, "x", config={"pooling": "mean"}, report=report, snapshot=snapshot)


def test_reward_model(lab, db, open_page):
    project = add_project(db)
    page = open_page(lab)
    open_tab(page, "Reward model")
    expect(control(page, "empty")).to_be_visible()
    expect_inside(page, "no reward model")
    for number in range(9):
        vote(db, project, "Ann", Choice.FIRST if number % 3 else Choice.SECOND)
    with working_on(db, JobKind.TRAIN_REWARD, project.id, {"source": "human", "config": {}}) as job:
        partial = {"loss": [0.7, 0.6, 0.65], "stage": "validation", "note": f"out of memory {LONG}"}
        queue.update_progress(db, job.id, 0.3, 500.0, partial)
        expect_text(page, "training", "validation")
        expect_inside(page, "training")
    with working_on(db, JobKind.TRAIN_REWARD, project.id, {"source": "human", "config": {}}) as job:
        queue.fail(db, job.id, f"No memory {LONG}")
        expect_text(page, "train-error", "No memory")
        expect_inside(page, "failed")
    for accuracy in (0.62, 0.7):
        add_model(db, project, accuracy, disagreements=3)
    for part in ("curve", "losses"):
        expect(page.locator(f".{part}-part .js-plotly-plot")).to_be_visible()
    expect_text(page, "note", f"{REPORT['note']}.")
    page.evaluate("for (const one of document.querySelectorAll('.lab-reward details')) one.open = true")
    expect_inside(page, "trained")
    control(page, "explain-text").fill(f"A text {LONG}")
    control(page, "explain").click()
    wait_until(lambda: queue.jobs(db, kinds=[JobKind.EXPLAIN]), "the text to score", page)
    job = queue.claim(db, [JobKind.EXPLAIN], engine_process.record_heartbeat(db, "explain"))
    words = {"score": 1.0, "tokens": ["A", " text ", LONG], "token_scores": [0.1, -0.4, 1.3]}
    queue.finish(db, job.id, {"items": [words]})
    expect(page.locator(".lab-reward .token").first).to_be_visible()
    expect_inside(page, "words")


TOKENS = TokenRecord(
    row=0, prompt=LONG, token_ids=[1, 2], tokens=["A ", LONG], logprob=[-1.0, -2.0], old_logprob=[-1.0, -2.5],
    ref_logprob=[-1.0, -1.0], kl=[0.0, -1.5], value=[0.5, 0.25], reward=[0.0, 1.0], advantage=[1.0, -1.0], ratio=[1.0, 1.6],
    clipped=[False, True],
)  # fmt: skip


def test_train(lab, db, open_page):
    project = add_project(db)
    for _ in range(4):
        vote(db, project, "Ann", Choice.FIRST)
    page = open_page(lab)
    open_tab(page, "Train")
    expect(page.locator(".lab-train .lab-empty")).to_contain_text("No run yet")
    expect_inside(page, "no run")
    first, second = (add_model(db, project, accuracy) for accuracy in (0.6, 0.7))
    expect(control(page, "start")).to_be_enabled()
    page.evaluate(
        "for (const one of document.querySelectorAll('#lab-start-run details, #start-settings details')) one.open = true"
    )
    expect_inside(page, "form of the first run")
    config = PolicyConfig(steps=40).to_dict()
    run = create_run(db, project.id, first.id, LONG[:80], config=config, manifest={}, total_steps=40)
    with working_on(db, JobKind.TRAIN_POLICY, project.id, {"run_id": run.id}):
        set_run_status(db, run.id, RunStatus.RUNNING)
        expect(page.locator(".lab-train [data-status=running]")).to_be_visible()
        expect_inside(page, "running, before the first step")
        metrics = [curve.metric for curve in CURVES] + ["objective/kl_coef", "lr", "val/first_ratio_deviation"]
        for step in range(13):
            samples = [Sample(LONG, seed, f"{step} {LONG}", 0.1, 0.2) for seed in range(2)]
            values = dict.fromkeys(metrics, 0.01 * step * (-1) ** step) if step else {}
            record_step(db, run.id, StepResult(step, values, [TOKENS] if step else [], samples))
        expect(page.locator(".lab-train .chart .js-plotly-plot").first).to_be_visible()
        control(page, "switch").select_option(str(second.id))
        wait_until(lambda: pending_events(db, run.id), "the request for another reward model", page)
        (event,) = pending_events(db, run.id)
        assert (event.kind, event.payload["reward_model_id"]) == (EventKind.SWITCH_REWARD, second.id)
        expect(control(page, "switch")).to_have_value(str(second.id))
        gold = page.locator("[data-metric='objective/gold']")  # of a judge, if one labelled
        expect(gold.locator(".verdict")).not_to_have_text("")
        expect_inside(page, "running")
        control(page, "start-open").click()
        expect(control(page, "start")).to_be_enabled()
        expect_inside(page, "form open")
        control(page, "start-close").click()
        expect_toolbars_out_of_the_way(page)
        control(page, "to-tokens").click()
        expect(page.locator(".token-view .word")).to_be_visible()
        page.evaluate("for (const one of document.querySelectorAll('.lab-train details')) one.open = true")
        expect_inside(page, "token view")
        page.locator(".token-view .token").last.click()
        expect_inside(page, "token view of a long token")
        new_project_while_a_run_goes_on(page, run)
        open_project(db, project.id)
        for status, message in ((RunStatus.PAUSED, ""), (RunStatus.FAILED, f"No memory {LONG}")):
            set_run_status(db, run.id, status, message)
            expect(page.locator(f".lab-train [data-status={status}]")).to_be_visible()
            expect_inside(page, status)


def new_project_while_a_run_goes_on(page, run) -> None:
    """The question says that a run goes on; in the new project, the run is named and can be reached."""
    open_tab(page, "Label")
    page.locator("summary", has_text="Demonstration").click()
    control(page, "next-class").click()
    dialog = page.get_by_role("dialog", name="next class")
    expect(dialog).to_contain_text(f"Run {run.id} (")
    expect_inside(page, "dialog before the next class")
    dialog.get_by_label("Stop training").uncheck()
    control(page, "class-begin").click()
    expect(dialog.get_by_role("status")).to_contain_text(re.compile(r"Run \d+ of .* is (running|paused|queued)"))
    control(page, "class-close").click()
    open_tab(page, "Train")
    elsewhere = page.locator(f".lab-train [data-elsewhere='{run.id}']")
    expect(elsewhere).to_contain_text("is running")
    expect(elsewhere.locator("[data-do=elsewhere-stop]")).to_be_enabled()
    expect_inside(page, "a run of another project")
    control(page, "elsewhere-open").click()
    expect(page.get_by_role("tab", name="Project")).to_have_attribute("aria-selected", "true")
    open_tab(page, "Train")


def expect_toolbars_out_of_the_way(page) -> None:
    """The charts' buttons keep the data in the lab, and the Tab key reaches none of them."""
    page.mouse.move(0, 0)
    buttons = page.locator(".modebar-btn")
    titles = set(buttons.evaluate_all("all => all.map((one) => one.dataset.title)"))
    assert titles == {"Download plot as a PNG", "Zoom", "Pan", "Reset axes"}
    for button in buttons.all():
        expect(button).to_be_hidden()
    chart = page.locator(".lab-train .chart .js-plotly-plot").first
    chart.hover()
    expect(chart.locator(".modebar-btn").first).to_be_visible()
    page.mouse.move(0, 0)


def test_other_screens(lab, db, open_page):
    project = add_project(db, LONG[:80])
    for person in ("Ann", LONG[:60]):
        for _ in range(3):
            vote(db, project, person, Choice.FIRST)
    model = add_model(db, project, 0.7)
    run = create_run(db, project.id, model.id, LONG[:80], config=PolicyConfig().to_dict(), manifest={}, total_steps=9)
    for step in range(3):
        record_step(
            db, run.id, StepResult(step, {"objective/scores": step, "objective/kl": 0.1 * step} if step else {})
        )
    set_run_status(db, run.id, RunStatus.STOPPED)
    page = open_page(lab, locale="ar")
    for name, loaded in (
        ("Compare", "[data-do=write]"), ("Chat", "[data-do=chat-message]"), ("Runs & data", ".lab-runs td.name"),
        ("People", "[aria-label='who is connected']"), ("Project", "[data-do=new-create]"),
    ):  # fmt: skip
        open_tab(page, name)
        page.locator(loaded).first.wait_for()
        page.evaluate("for (const one of document.querySelectorAll('.lab details')) one.open = true")
        expect_inside(page, name)
    expect_english(page)
    open_tab(page, "Runs & data")
    control(page, "run-resume").click()
    expect_text(page, "runs-notice", f"Run {run.id} continues")
    control(page, "run-watch").click()
    expect(page.locator(".lab-train")).to_have_attribute("data-run", str(run.id))


def expect_english(page) -> None:
    """The page is in one language, also in a browser with another one: Gradio has translations of its own words."""
    assert page.evaluate("document.documentElement.lang") == "en"
    shown = page.evaluate(
        """document.body.textContent + [...document.querySelectorAll('*')].flatMap(
            (one) => ['title', 'aria-label', 'placeholder'].map((name) => one.getAttribute(name) || '')).join(' ')"""
    )
    assert [letter for letter in shown if "\u0600" <= letter <= "\u06ff"] == []

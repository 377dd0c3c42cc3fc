"""A prompt of several turns is shown turn by turn on every screen, never as a transcript."""

import pytest
from browser_lab import Lab
from helpers import control, open_screen, open_tab, wait_until, wait_visible
from playwright.sync_api import expect
from prepared_labs import finish_job, without_engine

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.enums import Choice, JobKind, JobStatus, Source
from rlhf_lab.common.records import ChatSettings, NewCompletion, Sample, StepResult, TokenRecord, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.blind_tests import add_test
from rlhf_lab.store.database import Database
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import add_completions, add_pairs, prompts
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote

TURNS = [("user", "Hi <|im_end|>"), ("assistant", "Hello.\n" * 24), ("user", "A joke,\nplease?")]
SHOWN = [("User", "Hi <|im_end|>"), ("Model", ("Hello.\n" * 24).strip()), ("User", "A joke,\nplease?")]
#: Whether the last text of a conversation can be seen when the conversation itself is in view.
IS_LAST_TURN_SHOWN = """(node) => {
  node.scrollIntoView({ block: 'center' });
  const [outer, inner] = [node, [...node.querySelectorAll('.turn .lab-text')].at(-1)].map((one) => one.getBoundingClientRect());
  const [top, bottom] = [Math.max(0, outer.top), Math.min(innerHeight, outer.bottom)];
  return inner.top >= top - 1 && inner.bottom <= bottom + 1;
}"""
SYSTEM = ("System prompt", "Be kind.")
STORED = prompt_of_chat([{"role": role, "content": content} for role, content in TURNS])
TOKENS = TokenRecord(
    row=0, prompt=STORED, token_ids=[1], tokens=["Who"], logprob=[-1.0], old_logprob=[-1.0], ref_logprob=[-1.0], kl=[0.0],
    value=[0.0], reward=[1.0], advantage=[1.0], ratio=[1.0], clipped=[False],
)  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab whose only prompt is a conversation: two pairs, a label and a reward model that disagrees with it, a blind test, and
    a run with samples at two steps and tokens."""
    lab = Lab(tmp_path_factory.mktemp("talk") / "home")
    with Database.open(lab.home) as db:
        project = new_project(db, custom_prompts={STORED: "eval"}, prompt_set="own", chat=ChatSettings("Be kind."))
        (prompt,) = prompts(db, project.id, "eval")
        texts = add_completions(
            db, [NewCompletion(prompt.id, text, (1,), "base", 0) for text in ("Knock.", "No.", "Why?")]
        )
        pairs = add_pairs(db, project.id, [(texts[0].id, text.id, "random") for text in texts[1:]])
        cast_vote(db, Vote("v", pairs[0].id, "Ann", Source.HUMAN, Choice.FIRST, first_on_left=True))
        report = {
            "accuracy": 0.8, "accuracy_low": 0.7, "accuracy_high": 0.9, "train_accuracy": 0.8, "folds": 5, "ties": 0,
            "disagreements": [{"index": 0, "probability": 0.1}],
        }  # fmt: skip
        snapshot = snapshot_labels(db, project.id, Source.HUMAN)
        model = add_reward_model(db, project.id, "x", config={}, report=report, snapshot=snapshot)
        payload = {"prompts": [STORED], "checkpoint": "base", "temperature": 1.0, "max_new_tokens": 16}
        jobs = [queue.submit(db, JobKind.COMPLETE, project.id, payload | {"seed": seed}) for seed in (0, 1)]
        for job, text in zip(jobs, ("Knock, knock.", "No."), strict=True):
            finish_job(db, job, {"texts": [text], "scores": [0.5]})
        add_test(db, project.id, *(job.id for job in jobs))
        config = PolicyConfig().to_dict()
        run = create_run(db, project.id, model.id, "a run", config=config, manifest={}, total_steps=9)
        for step, text in ((0, "Knock, knock."), (5, "Who is there?")):
            record_step(db, run.id, StepResult(step, {}, [TOKENS] * bool(step), [Sample(STORED, 1, text, 0.5)]))
        with without_engine(lab):
            yield lab


def turns(root) -> list[tuple[str, str]]:
    """(speaker, text) of a conversation on the page; its last turn is in view."""
    root.locator(".turn").last.wait_for()
    speakers = root.locator(".turn > .muted").all_inner_texts()
    contents = [text.strip() for text in root.locator(".turn > .lab-text").all_inner_texts()]
    conversation = root.locator(".conversation")  # cards above it may still be drawn
    wait_until(lambda: conversation.evaluate(IS_LAST_TURN_SHOWN), "the last turn", root.page)
    return list(zip(speakers, contents, strict=True))


SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


def test_samples_and_tokens_of_a_run(lab, open_page):
    page = open_screen(lab, open_page, "Train")
    sample = page.locator(".sample")
    expect(sample).to_contain_text("Who is there?")
    for size in SIZES.values():
        page.set_viewport_size(size)
        assert turns(sample) == SHOWN
        assert "Human:" not in sample.inner_text()
        control(page, "to-tokens").click()
        expect(page.locator(".token-view .tokens")).to_have_text("Who")
        assert turns(page.locator(".token-view")) == SHOWN
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def expect_last_turn_and_answers_in_view(page) -> None:
    shown = page.locator(".lab-label > .conversation .turn")
    speakers, texts = (shown.locator(part).all_inner_texts() for part in (".muted", ".lab-text"))
    assert list(zip(speakers, [text.strip() for text in texts], strict=True)) == [SYSTEM, *SHOWN]
    expect(shown.last.locator(".lab-text")).to_be_in_viewport(ratio=1)
    for name in ("left", "right", "tie", "both_bad", "skip"):
        expect(page.locator(f".lab-label [data-do={name}]")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_pair_examples_and_earlier_labels(lab, open_page):
    page = open_screen(lab, open_page, "Label")
    page.wait_for_selector(".lab-label[data-open]")
    for size in SIZES.values():
        page.set_viewport_size(size)
        expect_last_turn_and_answers_in_view(page)
    page.keyboard.press("1")
    expect(page.locator("[data-count]")).to_have_attribute("data-count", "2")  # the reply redraws the list
    page.click("summary:has-text('Your earlier labels')")
    article = page.locator(".earlier article")
    expect(article).to_have_count(1)
    assert turns(article) == SHOWN
    open_tab(page, "Reward model")
    control(page, "disagreements").locator("summary").click()
    assert turns(control(page, "disagreements")) == SHOWN
    words, prompt = page.locator(".lab-reward .words"), control(page, "explain-prompt")
    assert turns(words) == SHOWN
    expect(prompt).to_be_hidden()
    control(page, "explain-edit").click()
    expect(prompt).to_be_focused()
    expect(prompt).to_have_value(STORED)
    open_tab(page, "Runs & data")
    page.locator("#runs-quality > button").click()
    assert turns(page.locator(".lab-quality .again")) == SHOWN
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_blind_test(lab, open_page):
    page = open_screen(lab, open_page, "Compare")
    stage = page.locator(".blind .stage")
    wait_visible(page, ".blind .side")
    for size in SIZES.values():
        page.set_viewport_size(size)
        assert turns(stage) == [SYSTEM, *SHOWN]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    control(page, "blind-left").click()
    expect(page.locator("[data-do=blind-result]")).to_be_visible()
    page.locator(".blind details summary").click()
    for size in SIZES.values():
        page.set_viewport_size(size)
        assert turns(page.locator(".blind td").first) == SHOWN
        assert "Human:" not in stage.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_comparison_shows_turns_and_lets_them_be_edited_as_text(lab, open_page):
    page = open_screen(lab, open_page, "Compare")
    form, prompt = page.locator(".lab-compare .form"), control(page, "prompt")
    wait_visible(page, ".form .turn")
    assert turns(form) == SHOWN
    expect(prompt).to_be_hidden()
    control(page, "model-2").select_option("")
    page.locator(".fold summary").click()
    control(page, "reward").select_option("")
    control(page, "max_new_tokens").fill("4")
    control(page, "write").click()
    with Database.open(lab.home) as db:
        kinds = {"kinds": [JobKind.COMPLETE], "statuses": [JobStatus.QUEUED]}
        wait_until(lambda: queue.jobs(db, **kinds), "the request for texts", page)
        for job in reversed(queue.jobs(db, **kinds)):
            finish_job(db, job, {"texts": ["Who is there?"] * len(job.payload["prompts"]), "scores": []})
    results = page.locator(".results .lab-card").first
    wait_visible(page, "[data-do=answer] .turn")
    assert turns(results) == [SYSTEM, *SHOWN]
    control(page, "edit-prompt").click()
    expect(prompt).to_be_focused()
    expect(prompt).to_have_value(STORED)
    expect(control(page, "edit-prompt")).to_be_hidden()
    expect(form.locator(".turn")).to_have_count(0)

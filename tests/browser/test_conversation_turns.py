"""A prompt of several turns on the screens Compare and Train: turn by turn, as on the screen Label, and never as a transcript."""

import pytest
from browser_lab import Lab
from helpers import control, open_screen, wait_visible
from playwright.sync_api import expect
from prepared_labs import wait_for_job

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.enums import JobKind, Source
from rlhf_lab.common.records import ChatSettings, LabelSnapshot, Sample, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.blind_tests import add_test
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run

TURNS = [("user", "Hi <|im_end|>"), ("assistant", "Hello.\n" * 24), ("user", "A joke,\nplease?")]
SHOWN = [("User", "Hi <|im_end|>"), ("Model", ("Hello.\n" * 24).strip()), ("User", "A joke,\nplease?")]
SYSTEM = ("System prompt", "Be kind.")
STORED = prompt_of_chat([{"role": role, "content": content} for role, content in TURNS])


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab whose only prompt is a conversation, with a blind test and a run's samples at two steps."""
    lab = Lab(tmp_path_factory.mktemp("talk") / "home")
    with Database.open(lab.home) as db:
        project = new_project(db, custom_prompts={STORED: "eval"}, prompt_set="own", chat=ChatSettings("Be kind."))
        snapshot = LabelSnapshot((), "", Source.HUMAN)
        model = add_reward_model(db, project.id, "x", config={}, report={"accuracy": 0.8}, snapshot=snapshot)
        asked = {"prompts": [STORED], "checkpoint": "base", "temperature": 1.0, "max_new_tokens": 16}
        jobs = [queue.submit(db, JobKind.COMPLETE, project.id, asked | {"seed": seed}) for seed in (0, 1)]
        add_test(db, project.id, *(job.id for job in jobs))
        config = PolicyConfig().to_dict()
        run = create_run(db, project.id, model.id, "a run", config=config, manifest={}, total_steps=9)
        for step, text in ((0, "Knock, knock."), (5, "Who is there?")):
            record_step(db, run.id, StepResult(step, {}, samples=[Sample(STORED, 1, text, 0.5)]))
        lab.start()
        try:
            for job in jobs:
                wait_for_job(db, job)
            yield lab
        finally:
            lab.stop()


def turns(root) -> list[tuple[str, str]]:
    """(speaker, text) of a conversation on the page; its last turn is in view."""
    speakers = root.locator(".turn > .muted").all_inner_texts()
    contents = [text.strip() for text in root.locator(".turn > .lab-text").all_inner_texts()]
    root.locator(".conversation").scroll_into_view_if_needed()
    expect(root.locator(".turn").last.locator(".lab-text")).to_be_in_viewport(ratio=1)
    return list(zip(speakers, contents, strict=True))


SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.mark.parametrize("size", SIZES)
def test_samples_of_a_run(lab, open_page, size):
    page = open_screen(lab, open_page, "Train", viewport=SIZES[size])
    sample = page.locator(".sample")
    expect(sample).to_contain_text("Who is there?")
    assert turns(sample) == SHOWN
    assert "Human:" not in sample.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", SIZES)
def test_blind_test(lab, open_page, size):
    page = open_screen(lab, open_page, "Compare", viewport=SIZES[size])
    stage = page.locator(".blind .stage")
    wait_visible(page, ".blind .side")
    assert turns(stage) == [SYSTEM, *SHOWN]
    control(page, "blind-left").click()
    expect(page.locator("[data-do=blind-result]")).to_be_visible()
    page.locator(".blind details summary").click()
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
    control(page, "reward").select_option("")
    control(page, "max_new_tokens").fill("4")
    control(page, "write").click()
    results = page.locator(".results .lab-card").first
    wait_visible(page, "[data-do=answer] .turn")
    assert turns(results) == [SYSTEM, *SHOWN]
    control(page, "edit-prompt").click()
    expect(prompt).to_be_focused()
    expect(prompt).to_have_value(STORED)
    expect(control(page, "edit-prompt")).to_be_hidden()
    expect(form.locator(".turn")).to_have_count(0)

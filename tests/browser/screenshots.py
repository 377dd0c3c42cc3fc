"""Make all pictures of the page that the documentation shows: `python tests/browser/screenshots.py`.

It starts a lab in a temporary home. A simulated judge labels pairs of the embedded model, a reward model and three short runs are
trained, and Chromium opens the screens. The pictures go to docs/images. The remaining ones there (smollm2-*, conversation-*) show
the sessions with downloaded models that docs/REAL_MODELS.md and docs/REWARDS.md report; the plots are those of
benchmarks/algorithms.py.
"""

import argparse
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import helpers
from browser_lab import Lab, press_key
from conftest import CHROMIUM
from helpers import (
    control,
    open_tab,
    wait_for_engine,
    wait_status,
    wait_step,
    wait_until,
    wait_visible,
)
from playwright.sync_api import Locator, Page, expect, sync_playwright

from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, Source
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.jobs import queue, run_control
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.rewards.terms import parse_term
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import reward_models
from rlhf_lab.store.votes import label_count, vote_counts

IMAGES = ROOT / "docs" / "images"
helpers.ENGINE_TIMEOUT_MS = 20 * 60_000  # also on a machine that does other work
SIZE = {"width": 1280, "height": 860}
TOURNAMENT_ANSWERS = 12
JUDGE = load_judge("cheerful")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        lab = Lab(Path(folder) / "home")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        with Database.open(lab.home) as db:
            project = new_project(db)
            try:
                lab.start()
                page = browser.new_page(viewport=SIZE)
                page.set_default_timeout(helpers.ENGINE_TIMEOUT_MS)
                page.goto(lab.url)
                label_and_train(page, db, project.id)
                picture_labels_and_reward_model(page)
                run_control.start_run(db, lab.home, project.id, PolicyConfig.for_algorithm("ppo", steps=40))
                picture_training(page)
                picture_learn(page)
                picture_chat(page)
                picture_tournament(page)
                picture_run(page, "dpo.png", db, lab, project.id, PolicyConfig.for_algorithm("dpo", steps=40))
                terms = [parse_term(term) for term in ("length:5-20", "0.5*regex:happy|joy|glorious", "repetition")]
                config = PolicyConfig.for_algorithm("ppo", steps=20)
                picture_run(page, "reward-terms.png", db, lab, project.id, config, reward_terms=terms)
            finally:
                lab.stop()


def save(target: Page | Locator, name: str) -> None:
    """Save a picture of the window or of an element once the page has stopped changing."""
    page = target if isinstance(target, Page) else target.page
    page.mouse.move(0, 0)
    page.evaluate("document.activeElement?.blur()")
    page.wait_for_timeout(1500)
    target.screenshot(path=IMAGES / name, animations="disabled")
    print(name, flush=True)


def label_and_train(page: Page, db: Database, project_id: int) -> None:
    """80 labels by the simulated judge, on which reward models are trained automatically."""

    def is_done(labels: int, previous_models: int) -> bool:
        return (
            label_count(vote_counts(db, project_id)[Source.SIMULATED]) == labels
            and len(reward_models(db, project_id)) > previous_models
            and not queue.jobs(db, statuses=UNFINISHED_JOB_STATUSES)
        )

    for labels in (40, 80):
        count = len(reward_models(db, project_id))
        page.locator(".lab-label summary", has_text="Demonstration").click()
        control(page, "judge").click()
        page.locator(".lab-label summary", has_text="Demonstration").click()
        wait_until(lambda labels=labels, count=count: is_done(labels, count), f"{labels} labels and a reward model")


def better_side(page: Page, texts: str) -> str:
    """The key of the text that the judge prefers."""
    left, right = (JUDGE.score("", page.inner_text(f"{texts} .side.{side} .lab-text")) for side in ("left", "right"))
    return "1" if left > right else "2" if right > left else "0"


def picture_labels_and_reward_model(page: Page) -> None:
    page.wait_for_selector(".lab-label[data-open]")
    for _ in range(8):  # the instant reward model predicts from the seventh answer on
        press_key(page, better_side(page, ".lab-label"))
    save(page, "label.png")
    open_tab(page, "Reward model")
    page.locator(".lab-reward .plot .main-svg").first.wait_for()
    save(page, "reward.png")


def picture_training(page: Page) -> None:
    open_tab(page, "Train")
    wait_step(page, 27)
    save(page, "train.png")
    page.set_viewport_size({"width": 1920, "height": 1080})
    control(page, "stage").click()
    page.locator(".lab-stage .pair").wait_for()
    save(page, "stage.png")
    control(page, "stage-close").click()
    page.set_viewport_size(SIZE)
    wait_status(page, "done")
    control(page, "to-tokens").click()
    wait_visible(page, ".token-view .token.seen")
    page.locator(".token-view .tokens").first.locator(".token").nth(11).click()
    save(page.locator(".token-view"), "token-view.png")


def picture_learn(page: Page) -> None:
    """The page about clipping, with the numbers of the run."""
    open_tab(page, "Learn")
    control(page, "learn-clipping").click()
    control(page, "slide-exponent").evaluate(
        "(node) => { node.value = -1.7; node.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    save(page, "learn.png")


def picture_chat(page: Page) -> None:
    open_tab(page, "Chat")
    page.wait_for_function("document.querySelector('[data-do=chat-model]')?.options.length > 1")
    control(page, "chat-model").select_option(index=1)
    control(page, "chat-beside").check()
    for second_message in SECOND_MESSAGES:
        if control(page, "chat-begin").is_enabled():
            control(page, "chat-begin").click()
        for message in ("Once upon a time there was a bird", second_message):
            control(page, "chat-message").fill(message)
            control(page, "chat-send").click()
            wait_for_engine(page, f"text => {REPLIES}.join() === 'done,done' && {LAST_MESSAGE} === text", message)
        if page.evaluate(f"new Set({REPLY_TEXTS}).size > 1"):
            break  # the two models answer differently
    page.evaluate("scrollTo(0, 0)")
    page.set_viewport_size({"width": 1280, "height": 900})
    save(page, "chat.png")
    page.set_viewport_size(SIZE)


#: Tried one after the other, because short answers of the two models, which have the same seed, are often equal.
SECOND_MESSAGES = ("In a small house a bear", "Then the cat", "One day a girl named Lena", "The king of the mice")
REPLY_TEXTS = "[...document.querySelectorAll('.lab-chat .reply .lab-text')].map((text) => text.innerText.trim())"
REPLIES = "[...document.querySelectorAll('.lab-chat .reply')].map((reply) => reply.dataset.status)"
LAST_MESSAGE = "[...document.querySelectorAll('.lab-chat .turn.user .lab-text')].at(-1)?.innerText.trim()"


def picture_tournament(page: Page) -> None:
    """Base, best of 4, the run's last step and an earlier one."""
    open_tab(page, "Compare")
    page.locator(".lab-compare .fold summary").click()
    control(page, "model-3").select_option(index=2)
    control(page, "step-3").select_option(index=1)
    page.locator(".tournament > summary").click()
    control(page, "tournament-add").click()
    control(page, "tournament-prompts").fill(
        str(TOURNAMENT_ANSWERS // 2)
    )  # with two pairs each; equal texts are no pair
    control(page, "tournament-begin").click()
    control(page, "tournament-next").click()
    control(page, "tournament-left").wait_for()
    while control(page, "tournament-left").count():
        page.wait_for_timeout(1500)  # an answer within 300 ms of a pair is not accepted
        page.keyboard.press(better_side(page, ".tournament"))
        page.wait_for_timeout(1500)
    summary = page.locator(".tournament .ranking summary")  # no pair is left: all answers are in the ranking
    expect(summary).to_have_text(re.compile(r"Ranking after [1-9]\d* answers"))
    summary.click()
    save(page.locator(".tournament .ranking"), "tournament.png")


def picture_run(
    page: Page, name: str, db: Database, lab: Lab, project_id: int, config: PolicyConfig, **options
) -> None:
    """Train a run and show its curves and samples."""
    run = run_control.start_run(db, lab.home, project_id, config, **options)
    open_tab(page, "Train")
    page.wait_for_function(
        f"[...document.querySelector('[data-do=pick]')?.options ?? []].some((one) => one.value === '{run.id}')"
    )
    control(page, "pick").select_option(str(run.id))
    wait_for_engine(page, f"() => document.querySelector('.lab-train [data-step]')?.dataset.step === '{config.steps}'")
    wait_status(page, "done")
    page.set_viewport_size({"width": 1280, "height": 1120})
    save(page, name)
    page.set_viewport_size(SIZE)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()

"""Estimated durations of stages on the page, from measurements of the engine and the current settings.

The model of these tests samples in no time and reads a text of 20 tokens in 0.1 s, with log-probabilities as well.
"""

import socket
from dataclasses import replace

import pytest

from rlhf_lab.common.enums import JobKind
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.model_speed import ModelSpeed, save_speed
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.jobs.time_estimate import duration_text
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_scores import unjudged_pairs
from rlhf_lab.ui.compare import api as compare
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.reward import check as reward_check
from rlhf_lab.ui.run_views import stage_estimates
from rlhf_lab.ui.shared.api import parse_payload
from rlhf_lab.ui.shared.forms import form_values
from rlhf_lab.ui.train.start_run import api as start_run

SPEED = ModelSpeed(
    "cpu", forward=[0.005], sampling={"4": [0.0]}, prompt_tokens=10, response_tokens=[10], load=[7.0]
)  # fmt: skip
SPEED_OF_PAIRS = replace(SPEED, sampling={"4": [0.2]})


def measured(ctx, speed=SPEED):
    save_speed(ctx.home, socket.gethostname(), ctx.project.model, speed)


def test_nothing_is_promised_before_anything_was_measured(ctx):
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    assert stage_estimates.reward_sentences(ctx, RewardConfig()) == {"human": "", "simulated": ""}
    assert stage_estimates.policy_sentence(ctx, PolicyConfig()) == ""
    assert stage_estimates.next_pair_sentence(ctx) == ""
    query = {"models": ["base"], "samples": "2", "pairs": "20", "max_new_tokens": "64"}
    sentences = compare.estimates(ctx, compare.EstimateQuery(**query))
    assert [sentences[name] for name in ("comparison", "blind_test", "tournament")] == [""] * 3


def test_a_training_of_the_labels_of_each_source(ctx, calls):
    """14 labels: features of 28 texts and 128 samples, and two texts of each pair that nobody has judged."""
    measured(ctx)
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    seconds = 0.1 * (28 + 128 + 2 * len(unjudged_pairs(ctx.db, ctx.project.id, 400)))
    expected = {"human": "", "simulated": f"About {duration_text(seconds)} on this machine."}
    screen = calls(reward, ctx)
    assert screen.estimates({"settings": {"epochs": "0"}}) == expected
    assert screen.estimates({"settings": {"epochs": "x"}}) == {}


def test_a_run_with_the_settings_of_the_form(ctx, calls):
    """A step of 4 responses: read by policy and reference, forward and backward in each epoch: 16 texts; with an adapter of the
    reward model they are scored, too: 20 texts. For 20 steps 32 to 40 s, about the geometric mean 36."""
    measured(ctx)
    screen, values = calls(start_run, ctx), form_values(PolicyConfig(batch_size=4, epochs=1, sample_count=0))
    for steps, sentence in (("2", "About 4 s on this machine."), ("20", "About 35 s on this machine.")):
        assert screen.estimate({"settings": values | {"steps": steps}}) == sentence
    assert screen.estimate({"settings": values | {"steps": "many"}}) == ""
    grpo = screen.recommended({"preset": "lab", "algorithm": "grpo"})
    sentence = stage_estimates.policy_sentence(ctx, start_run.preset_config("lab", "grpo"))
    assert screen.estimate({"settings": grpo}) == sentence
    assert sentence.endswith("minutes on this machine.")


@pytest.mark.parametrize(
    ("changes", "comparison", "blind_test"),
    [
        ({}, "About 2 s on this machine.", "About 6 s on this machine."),
        ({"models": ("base",)}, "About 1 s on this machine.", ""),
        ({"reward_model_id": ""}, "Less than a second on this machine.", "Less than a second on this machine."),
        ({"models": ("base", "base/best/4")}, "About 5 s on this machine.", "About 15 s on this machine."),
    ],
)
def test_a_comparison_and_a_blind_test(ctx, changes, comparison, blind_test):
    """10 texts of each model are scored, or those of 30 pairs."""
    measured(ctx)
    query = {
        "models": ["base", "run/1/5"],
        "samples": "10",
        "pairs": "30",
        "max_new_tokens": "64",
        "reward_model_id": "1",
    }
    reply = compare.estimates(ctx, parse_payload(compare.EstimateQuery, query | changes))
    assert [reply[name] for name in ("comparison", "blind_test", "tournament")] == [comparison, blind_test, ""]


@pytest.mark.parametrize(
    ("reward_model_id", "sentence"), [("1", "About 8 s on this machine."), ("", "About 2 s on this machine.")]
)
def test_a_tournament(ctx, reward_model_id, sentence):
    """Ten prompts: 60 texts are scored, and ten read by the policy and the base."""
    measured(ctx)
    query = {
        "contestants": ["base", "base/best/4", "run/1/5"],
        "prompts": "10",
        "samples": "1",
        "pairs": "1",
        "max_new_tokens": "64",
        "reward_model_id": reward_model_id,
    }
    assert compare.estimates(ctx, parse_payload(compare.EstimateQuery, query))["tournament"] == sentence


def test_which_preference_the_chosen_sizes_can_show(ctx):
    """Of 10 fair choices 9 or more are equal in 2 x 11 of 1024 cases, of 6 all in 2 of 64; of 5 even all may be chance. With a
    share s, 9 or more of 10 occur with s^10 + 10 s^9 (1 - s) = 80 % at s = 0.917, all of 6 with s^6 = 80 % at s = 0.963: more
    often than 9 of 10 and 5 of 6."""
    query = {"models": ["base"], "samples": "1", "pairs": "10", "prompts": "6", "max_new_tokens": "64"}
    reply = compare.estimates(ctx, parse_payload(compare.EstimateQuery, query))
    assert reply["blind_test_size"] == (
        "10 pairs without ties usually show a preference if one model is chosen nearly every time; a weaker preference needs "
        "more pairs."
    )
    assert reply["tournament_size"] == (
        "Any two models are compared on up to 6 prompts. 6 pairs without ties usually show a preference "
        "if one model is chosen nearly every time; a weaker preference needs more pairs."
    )
    reply = compare.estimates(ctx, parse_payload(compare.EstimateQuery, query | {"pairs": "5", "prompts": "1"}))
    assert reply["blind_test_size"] == "5 pairs are too few to show a preference, however people choose."
    assert reply["tournament_size"].endswith(
        "up to 1 prompt. 1 pair is too few to show a preference, however people choose."
    )


def test_who_waits_for_a_pair_reads_how_long(tmp_path, monkeypatch):
    """Four responses in 2 s, and 7 s to load the model if the engine has not started; sixteen pairs in 16 s."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    with Database.open(tmp_path) as db:
        new_project(db, custom_prompts=["a", "b"])
        ctx = Context(tmp_path, db)
        save_speed(tmp_path, socket.gethostname(), "embedded", SPEED_OF_PAIRS)
        assert label.state(ctx, "ann")["waiting_text"].endswith(", is starting … The first pair takes about 9 s.")
        engine_process.record_heartbeat(db, "idle")
        waiting_text = label.state(ctx, "ann")["waiting_text"]
        assert (
            waiting_text
            == "There is no pair yet. The engine is writing the first ones … The first pair takes about 2 s."
        )
        monkeypatch.setattr(stage_estimates, "count_pairs", lambda *_: 5)
        assert stage_estimates.next_pair_sentence(ctx) == "The next pair takes about 15 s."
        queue.submit(db, JobKind.SAMPLE_PAIRS, ctx.project.id, {"count": 32})
        assert stage_estimates.next_pair_sentence(ctx) == "The next pair takes about 30 s."
        queue.submit(db, JobKind.SAMPLE_PAIRS, ctx.project.id, {"count": 32, "sampling": "diversity"})
        assert stage_estimates.next_pair_sentence(ctx) == "The next pair takes about 30 s."  # the older job comes first


def test_an_estimate_says_what_else_the_engine_does(ctx, monkeypatch):
    """Not of its own kind: the page says that a run waits for another one, and shows a training in progress."""
    monkeypatch.setattr(engine_process, "ensure_engine", lambda db, home: None)
    measured(ctx)
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 14)
    before = stage_estimates.estimates_key(ctx)
    job = queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {"source": "human", "config": {}})
    queue.claim(ctx.db, [JobKind.TRAIN_REWARD], engine_process.record_heartbeat(ctx.db, "busy"))
    busy = " on this machine. The engine is training the reward model now, so it takes longer."
    assert stage_estimates.estimates_key(ctx) != before
    assert stage_estimates.policy_sentence(ctx, PolicyConfig()).endswith(busy)
    assert stage_estimates.completions_sentence(ctx, [10, 10], 64, scored=True) == f"About 2 s{busy}"
    assert stage_estimates.tournament_sentence(ctx, ["base"], 10, 64, scored=True).endswith(busy)
    assert reward_check.check_view(ctx, 1, "ann")["note"].endswith(busy.partition(". ")[2])
    assert stage_estimates.next_pair_sentence(ctx).endswith(busy.partition(". ")[2])
    assert stage_estimates.reward_sentences(ctx, RewardConfig())["simulated"].endswith(" on this machine.")
    queue.finish(ctx.db, job.id, {})
    assert stage_estimates.completions_sentence(ctx, [10, 10], 64, scored=True) == "About 2 s on this machine."
    assert stage_estimates.estimates_key(ctx) == before

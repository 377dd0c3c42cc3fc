"""Every screen gets a prompt of several turns as turns, not as the stored transcript."""

import json

import pytest

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, StepResult, TokenRecord, Vote
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.summary import build_preview
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import add_completions, add_pairs, prompts
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.ui.project import api as project
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.runs.quality import api as quality
from rlhf_lab.ui.shared.voting import recent_votes
from rlhf_lab.ui.train.token_view import token_view

CHAT = [
    {"role": "user", "content": "Name a fruit."},
    {"role": "assistant", "content": "A pear."},
    {"role": "user", "content": "Another?"},
]
STORED = prompt_of_chat(CHAT)


@pytest.fixture
def reward_model(ctx):
    """A reward model of one label, with which it disagrees; the prompt is a conversation."""
    project = new_project(ctx.db, custom_prompts={STORED: "train"}, prompt_set="own")
    (prompt,) = prompts(ctx.db, project.id, "train")
    texts = add_completions(ctx.db, [NewCompletion(prompt.id, text, (1,), "base", 0) for text in ("A plum.", "A car.")])
    (pair,) = add_pairs(ctx.db, project.id, [(texts[0].id, texts[1].id, "random")])
    cast_vote(ctx.db, Vote("v", pair.id, "ann", Source.HUMAN, Choice.FIRST, True))
    snapshot = snapshot_labels(ctx.db, project.id, Source.HUMAN)
    report = {"disagreements": [{"index": 0, "probability": 0.1}]}
    return add_reward_model(ctx.db, project.id, "x", config={}, report=report, snapshot=snapshot)


def test_earlier_labels(ctx, reward_model):
    (row,) = recent_votes(ctx, "ann")
    assert (row["turns"], row["left"], row["right"]) == (CHAT, "A plum.", "A car.")


def test_examples_of_a_reward_model(ctx, reward_model):
    detail = reward.model_detail(ctx, reward_model.id)
    assert [row["turns"] for row in detail["disagreements"]] == [CHAT]
    assert [(row["prompt"], row["turns"]) for row in detail["example_texts"]] == [(STORED, CHAT)] * 4


def test_labels_to_look_at_again(ctx, reward_model):
    doubtful = quality.state(ctx, quality.QualityQuery())["figures"]["unlikely_labels"]
    assert [row["turns"] for row in doubtful["labels"]] == [CHAT]


def test_token_microscope(ctx, reward_model):
    config = PolicyConfig().to_dict()
    run = create_run(ctx.db, ctx.project.id, reward_model.id, "r", config=config, manifest={}, total_steps=9)
    numbers = [-0.5]
    record = TokenRecord(
        row=0, prompt=STORED, token_ids=[7], tokens=["A plum."], logprob=numbers, old_logprob=numbers,
        ref_logprob=numbers, kl=[0.0], value=[0.0], reward=[1.0], advantage=[1.0], ratio=[1.0], clipped=[False],
    )  # fmt: skip
    record_step(ctx.db, run.id, StepResult(1, {}, tokens=[record]))
    assert [row["turns"] for row in token_view(ctx.db, run.id, 1)["rows"]] == [CHAT]


def test_first_prompts_of_a_new_project(ctx):
    lines = [json.dumps({"messages": CHAT}), *(json.dumps(f"p {i}") for i in range(5))]
    reply = project.preview_prompts(ctx, project.PromptsPayload(text="\n".join(lines), file="mine.jsonl"))
    assert reply["first_prompts"][:2] == [CHAT, [{"role": "user", "content": "p 0"}]]


def test_first_rows_of_an_import(tmp_path):
    """Each turn is truncated separately, not the transcript."""
    long = [{"role": "user", "content": "x" * 601}, *CHAT[1:]]
    path = tmp_path / "votes.jsonl"
    path.write_text(json.dumps({"prompt": long, "chosen": "A plum.", "rejected": "A car."}))
    (row,) = build_preview(parse_file(ImportRequest(str(path))))["first"]
    assert row["turns"] == [{"role": "user", "content": "x" * 600}, *CHAT[1:]]

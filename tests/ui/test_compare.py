"""Screen "Compare" without a browser: what can be compared, what is asked of the engine, what is refused."""

import pytest

from rlhf_lab.errors import LabError
from rlhf_lab.jobs import queue, supervisor
from rlhf_lab.judges import load_judge
from rlhf_lab.records import JobKind, LabelSnapshot, Source, StepResult
from rlhf_lab.store.runs import add_reward_model, create_run
from rlhf_lab.store.steps import record_step
from rlhf_lab.ui import compare

SAID = {
    "prompt": "Once upon a time", "models": ["base", "run/1/latest"], "samples": "2", "seed": "7", "temperature": "0.8",
    "tokens": "40", "reward": "1",
}  # fmt: skip


def test_a_new_project_has_its_base_and_unseen_prompts(ctx):
    found = compare.choices(ctx)
    assert found["models"] == [["base", "base model"]]
    assert found["rewards"] == []
    assert len(found["prompts"]) == 64


def test_runs_with_steps_and_their_checkpoints_are_offered(ctx):
    pinned = LabelSnapshot((), "", Source.HUMAN)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={"accuracy": 0.8}, snapshot=pinned)
    kept = create_run(ctx.db, ctx.project.id, row.id, "kept", config={}, manifest={}, total_steps=9)
    create_run(ctx.db, ctx.project.id, row.id, "not begun", config={}, manifest={}, total_steps=9)
    record_step(ctx.db, kept.id, StepResult(5, {"lr": 1.0}))
    for name in ("step-5", "step-10", ".building-step-15", "step-x"):
        (ctx.home / "runs" / str(kept.id) / name).mkdir(parents=True)
    found = compare.choices(ctx)
    assert found["models"][1:] == [[f"run/{kept.id}/latest", f"run {kept.id}: kept"]]
    assert found["steps"] == {str(kept.id): [5, 10]}
    assert found["rewards"][0][0] == row.id


def test_one_job_a_column_with_the_same_seed(ctx):
    jobs = compare.ask(ctx, SAID)
    assert [job.kind for job in jobs] == [JobKind.COMPLETE] * 2
    assert [job.payload["checkpoint"] for job in jobs] == ["base", "run/1/latest"]
    for job in jobs:
        assert job.payload["prompts"] == ["Once upon a time"] * 2
        assert {job.payload[name] for name in ("seed", "max_new_tokens", "reward_model_id")} == {7, 40, 1}
        assert job.payload["temperature"] == 0.8
    assert "reward_model_id" not in compare.ask(ctx, SAID | {"reward": ""})[0].payload


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": " "}, "1 to 4000"),
        ({"prompt": "x" * 4001}, "1 to 4000"),
        ({"seed": "seven"}, "not a number"),
        ({"samples": "17"}, "Samples are 1 to 16"),
        ({"temperature": "0"}, "temperature 0.05"),
        ({"tokens": "0"}, "tokens 1 to 512"),
        ({"seed": "-1"}, "0 or more"),
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused_before_anything_is_asked(ctx, change, words):
    with pytest.raises(LabError, match=words):
        compare.ask(ctx, SAID | change)
    assert queue.jobs(ctx.db) == []


def test_a_column_waits_fails_or_shows_texts_with_scores_and_gold(ctx):
    job = compare.ask(ctx, SAID)[0]
    assert compare.column(job, "cheerful") == {"waiting": True, "begun": False}
    engine = supervisor.beat(ctx.db, "x")
    queue.claim(ctx.db, [JobKind.COMPLETE], engine)
    queue.finish(ctx.db, job.id, {"texts": [" so happy and merry ", "the end"], "scores": [1.23456, 0.5]})
    shown = compare.column(queue.get_job(ctx.db, job.id), "cheerful")
    assert shown["texts"] == ["so happy and merry", "the end"]
    assert shown["scores"] == [1.235, 0.5]
    assert shown["gold"] == [load_judge("cheerful").score(text) for text in shown["texts"]]
    assert compare.column(queue.get_job(ctx.db, job.id), "no such judge")["gold"] == []
    other = compare.ask(ctx, SAID)[1]
    queue.fail(ctx.db, other.id, "run 1 has no checkpoint yet")
    assert compare.column(queue.get_job(ctx.db, other.id), "")["failed"] == "run 1 has no checkpoint yet"

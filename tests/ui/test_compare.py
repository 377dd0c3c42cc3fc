"""Screen "Compare" without a browser: what can be compared, what is asked of the engine, what is refused."""

import pytest
from fake_runs import run_with_checkpoint

from rlhf_lab.common.enums import EventKind, JobKind, Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.errors import LabError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import set_max_new_tokens
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import add_event, create_run, runs
from rlhf_lab.ui.chat import api as chat
from rlhf_lab.ui.compare import api as compare
from rlhf_lab.ui.shared import generation_requests
from rlhf_lab.ui.shared.api import parse_payload

REQUEST = {
    "prompt": "Once upon a time", "models": ["base", "run/1/latest"], "samples": "2", "seed": "7", "temperature": "0.8",
    "max_new_tokens": "40", "reward_model_id": "1",
}  # fmt: skip


def submit(ctx, **changes):
    if not runs(ctx.db, ctx.project.id):
        run_with_checkpoint(ctx, 4)
    return compare.submit_comparison(ctx, parse_payload(compare.ComparePayload, REQUEST | changes), "ann")


def model(ctx):
    """Reward model 1."""
    pinned = LabelSnapshot((), "", Source.HUMAN)
    return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={"accuracy": 0.8}, snapshot=pinned)


def finished(ctx, job, texts, scores):
    """The column of a job whose engine wrote this."""
    queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
    queue.finish(ctx.db, job.id, {"texts": texts, "scores": scores})
    return generation_requests.column_view(queue.get_job(ctx.db, job.id), "cheerful")


def test_a_new_project_has_its_base_and_unseen_prompts(ctx):
    found = compare.comparison_options(ctx)
    assert found["max_new_tokens"] == chat.options(ctx, chat.OptionsQuery())["max_new_tokens"] // 2 == 64
    for length, proposed in ((100, (100, 128)), (200, (200, 200)), (1000, (512, 512))):
        set_max_new_tokens(ctx.db, ctx.project.id, length)
        options = (
            compare.comparison_options(ctx)["max_new_tokens"],
            chat.options(ctx, chat.OptionsQuery())["max_new_tokens"],
        )
        assert options == proposed
    assert found["models"] == [("base", "base model")]
    assert found["reward_models"] == []
    assert len(found["prompts"]) == 64


def test_runs_with_steps_and_their_checkpoints_are_offered(ctx):
    row = model(ctx)
    kept = create_run(ctx.db, ctx.project.id, row.id, "kept", config={}, manifest={}, total_steps=9)
    create_run(ctx.db, ctx.project.id, row.id, "not begun", config={}, manifest={}, total_steps=9)
    record_step(ctx.db, kept.id, StepResult(5, {"lr": 1.0}))
    for name in (
        "step-000005/state.json",
        "step-000010/state.json",
        ".building-step-000015/state.json",
        "step-x/state.json",
    ):
        path = ctx.home / "runs" / str(kept.id) / name
        path.parent.mkdir(parents=True)
        path.touch()
    found = compare.comparison_options(ctx)
    assert found["models"][1:] == [
        (f"run/{kept.id}/latest", f"run {kept.id}: kept"),
        ("base/best/4", "base, best of 4"),
        ("base/best/16", "base, best of 16"),
    ]
    assert found["reward_models"][0][0] == row.id
    assert compare.run_details(ctx, [kept.id])["steps_by_run"] == {str(kept.id): [5, 10]}


def test_every_run_and_reward_model_can_be_chosen_however_many_there_are(ctx):
    for _ in range(31):
        row = model(ctx)
    made = [
        create_run(ctx.db, ctx.project.id, row.id, "many", config={}, manifest={}, total_steps=9) for _ in range(51)
    ]
    for run in made:
        record_step(ctx.db, run.id, StepResult(5, {"lr": 1.0}))
    found = compare.comparison_options(ctx)
    runs = [name for name, _ in found["models"] if name.startswith("run/")]
    assert runs == [f"run/{run.id}/latest" for run in reversed(made)]
    assert [known for known, _ in found["reward_models"]] == list(range(31, 0, -1))
    oldest = made[0].id
    assert compare.run_details(ctx, [oldest]) == {
        "steps_by_run": {str(oldest): []},
        "best_by_run": {str(oldest): None},
        "scorer_by_run": {str(oldest): (31, "")},
    }


def test_malformed_run_ids_are_refused_and_missing_or_foreign_runs_left_out(ctx, calls):
    nothing = {"steps_by_run": {}, "best_by_run": {}, "scorer_by_run": {}}
    assert compare.run_details(ctx, []) == compare.run_details(ctx, [7]) == nothing
    run = create_run(ctx.db, ctx.project.id, model(ctx).id, "mine", config={}, manifest={}, total_steps=9)
    new_project(ctx.db)
    assert compare.run_details(ctx, [run.id]) == nothing
    read = calls(compare, ctx).options
    assert read({})["steps_by_run"] == read({"runs": [str(run.id)]})["steps_by_run"] == {}
    for wrong in ("x", {"1": 1}, [None], [{}], 7, [float("inf")]):
        assert read({"runs": wrong}) == {"error": "The page sent no usable runs. Reload it and try again."}


def test_one_job_a_column_with_the_same_seed(ctx):
    model(ctx)
    jobs = submit(ctx)
    assert [job.kind for job in jobs] == [JobKind.COMPLETE] * 2
    assert [job.payload["checkpoint"] for job in jobs] == ["base", "run/1/latest"]
    for job in jobs:
        assert job.payload["prompts"] == ["Once upon a time"] * 2
        assert {job.payload[name] for name in ("seed", "max_new_tokens", "reward_model_id")} == {7, 40, 1}
        assert job.payload["temperature"] == 0.8
    assert "reward_model_id" not in submit(ctx, reward_model_id="")[0].payload


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": " "}, "Prompt: write 1 to 4,000"),
        ({"prompt": "x" * 4001}, "1 to 4,000"),
        ({"seed": "seven"}, 'seed = "seven": give a whole number from 0 to'),
        ({"samples": "17"}, 'samples each = "17": give a whole number from 1 to 16'),
        ({"temperature": "0"}, 'temperature = "0": give a number from 0.05 to 5'),
        ({"max_new_tokens": "0"}, "max_new_tokens = .* from 1 to 512"),
        ({"seed": "-1"}, "seed = .* from 0 to"),
        ({"seed": str(2**31)}, "seed = .* from 0 to"),
        ({"reward_model_id": "mine"}, "Reload it"),
        ({"reward_model_id": "9"}, "9"),
        ({"models": ["base", "base/best/4"], "reward_model_id": ""}, "needs a reward model"),
        ({"models": ["base/best/16"], "samples": "5"}, "80 texts; at most 64"),
        ({"models": ["base/best/7"]}, "n = 4, 16"),
        ({"models": ["base/best/x"]}, "n = 4, 16"),
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused_before_anything_is_asked(ctx, change, words):
    model(ctx)
    with pytest.raises(LabError, match=words):
        submit(ctx, **change)
    assert queue.jobs(ctx.db) == []


def test_a_column_waits_fails_or_shows_texts_with_scores_and_gold(ctx):
    model(ctx)
    job = submit(ctx)[0]
    assert generation_requests.column_view(job, "cheerful") == {"is_waiting": True, "running": False}
    engine = engine_process.record_heartbeat(ctx.db, "x")
    queue.claim(ctx.db, [JobKind.COMPLETE], engine)
    queue.finish(
        ctx.db,
        job.id,
        {
            "texts": [" so happy and merry ", "the end"],
            "scores": [1.23456, 0.5],
            "note": "an older one",
            "tokens": [[5, 6, 7], [5, 2]],
        },
    )
    shown = generation_requests.column_view(queue.get_job(ctx.db, job.id), "cheerful", {2})
    assert shown["cut"] == [3, None]
    assert shown["texts"] == ["so happy and merry", "the end"]
    assert shown["scores"] == [1.235, 0.5]
    assert shown["gold"] == [load_judge("cheerful").score("Once upon a time", text) for text in shown["texts"]]
    assert generation_requests.column_view(queue.get_job(ctx.db, job.id), "no such judge")["gold"] == []
    assert shown["note"] == "an older one"
    other = submit(ctx)[1]
    queue.fail(ctx.db, other.id, "run 1 has no checkpoint yet")
    assert (
        generation_requests.column_view(queue.get_job(ctx.db, other.id), "")["error"] == "Run 1 has no checkpoint yet"
    )


def test_a_judge_gets_the_prompt_of_each_text_that_was_written(ctx):
    """The second prompt was too long; best of four shows one text per prompt."""
    prompts = ["red hats", "green hats", "blue hats"]
    payload = {"prompts": [prompt for prompt in prompts for _ in range(4)], "checkpoint": "base", "best_of": 4}
    job = queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, payload)
    queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
    scores = [0.0, 1.0, 0.0, 0.0] * 2
    queue.finish(ctx.db, job.id, {"texts": ["It is red."] * 8, "scores": scores, "left_out": [4, 5, 6, 7]})
    # One of the two words of "red hats" is used, and none of "blue hats".
    assert generation_requests.column_view(queue.get_job(ctx.db, job.id), "relevant")["gold"] == [5.0, 0.0]


def test_best_of_n_writes_n_texts_for_each_one_shown(ctx):
    model(ctx)
    job = submit(ctx, models=["base/best/4"])[0]
    assert job.payload["prompts"] == ["Once upon a time"] * 8
    assert job.payload["checkpoint"] == "base"
    shown = finished(ctx, job, list("abcdefgh"), [0.0, 3.0, 1.0, 3.0, -1.0, -2.0, -0.5, -3.0])
    assert (shown["texts"], shown["scores"], shown["best_of"]) == (["b", "g"], [3.0, -0.5], 4)
    assert len(shown["gold"]) == 2


def test_every_text_of_an_ordinary_column_is_shown(ctx):
    model(ctx)
    shown = finished(ctx, submit(ctx)[0], ["a", "b"], [1.0, 2.0])
    assert (shown["texts"], shown["scores"], shown["best_of"]) == (["a", "b"], [1.0, 2.0], 1)


def test_the_scorer_proposed_is_what_the_run_learned_from_and_its_judge(ctx):
    assert compare.comparison_options(ctx)["default_scorer"] is None
    label_with_judge(ctx.db, ctx.project.id, load_judge("cheerful"), 4)
    pinned = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    row = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={}, snapshot=pinned)
    run = create_run(ctx.db, ctx.project.id, row.id, "judged", config={}, manifest={}, total_steps=9)
    record_step(ctx.db, run.id, StepResult(5, {"lr": 1.0}))

    def learned():
        return compare.run_details(ctx, [run.id])["scorer_by_run"][str(run.id)]

    assert compare.comparison_options(ctx)["default_scorer"] == learned() == (row.id, "cheerful")
    newest = model(ctx)  # by people, and the run did not learn from it
    assert (compare.comparison_options(ctx)["default_scorer"], learned()) == ((newest.id, ""), (row.id, "cheerful"))
    add_event(ctx.db, run.id, EventKind.SWITCH_REWARD, {"reward_model_id": newest.id})
    assert learned() == (newest.id, "")
    label_with_judge(ctx.db, ctx.project.id, load_judge("polite"), 4)
    both = snapshot_labels(ctx.db, ctx.project.id, Source.SIMULATED)
    mixed = add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={}, snapshot=both)
    assert compare.comparison_options(ctx)["default_scorer"] == (mixed.id, "")


def test_a_page_gets_the_texts_it_asked_for_and_no_other_job(ctx):
    model(ctx)
    jobs = submit(ctx)
    job_ids = [job.id for job in jobs]
    assert [job.id for job in compare.own_jobs(ctx, job_ids, "ann")] == job_ids
    other = queue.submit(ctx.db, JobKind.TRAIN_REWARD, ctx.project.id, {})
    for query in ({"jobs": [other.id]}, {"jobs": ["x"]}, {}, {"jobs": [99]}):
        with pytest.raises(LabError):
            compare.own_jobs(ctx, parse_payload(compare.JobsQuery, query).jobs, "ann")


def test_a_full_queue_is_refused_with_words(ctx):
    for _ in range(generation_requests.MAX_QUEUED_JOBS):
        queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, {})
    with pytest.raises(LabError, match="At most 24 texts can wait"):
        submit(ctx, reward_model_id="")

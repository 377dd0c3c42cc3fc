"""Screen "Learn" without a browser: recorded numbers, the project's own, and experiments."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import KL, SCORE, a_run, reward_model

from rlhf_lab.common.enums import JobKind, RunStatus, Source
from rlhf_lab.common.records import StepResult, TokenRecord
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.engine import job_handlers
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import queue
from rlhf_lab.jobs.experiments import EXPERIMENTS, start_experiment
from rlhf_lab.jobs.retraining import THEN_RUN, cancel_training
from rlhf_lab.store.projects import set_labelling_config
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import runs, set_run_status
from rlhf_lab.store.votes import vote_counts
from rlhf_lab.ui.learn import api as learn
from rlhf_lab.ui.learn.api import CURVES, recorded_material
from rlhf_lab.ui.share.recording import shipped

GOLD = CURVES["gold"]
TOKENS = TokenRecord(
    row=0, prompt="Once", token_ids=[5, 6], tokens=["a", "b"], logprob=[-1.0, -2.0], old_logprob=[-1.1, -2.0],
    ref_logprob=[-1.0, -1.5], kl=[-0.1, -0.5], value=[0.5, 0.25], reward=[0.0, 1.0], advantage=[1.0, -1.0], ratio=[1.1, 1.0],
    clipped=[False, False], raw_advantage=[0.5, 0.75], target=[1.0, 1.0], score=1.0, shaped_score=1.0,
)  # fmt: skip


@pytest.fixture
def material(ctx, calls):
    return lambda: calls(learn, ctx).material({})


def add_steps(ctx, run, count, **changes):
    for at in range(1, count + 1):
        values = {SCORE: at, GOLD: -at, KL: 0.5 * at, CURVES["clip_fraction"]: 0.0} | changes
        record_step(ctx.db, run.id, StepResult(at, values, [TOKENS] if at > 1 else []))


def test_a_new_project_shows_what_was_recorded(material):
    recording = shipped()["learn"]
    shown = json.loads(json.dumps(material()))
    assert shown["recorded"] == ["recording", "run", "curves", "labels"]
    assert {name: shown[name] for name in recording} == recording
    tokens = shipped()["replay"]["tokens"]
    assert shown["view"] == tokens[max(tokens, key=int)]
    assert shown["experiment"] is None


def test_the_recording_has_all_that_the_pages_draw():
    recording = recorded_material()
    curves = recording["curves"]
    assert len({len(values) for name, values in curves.items() if name != "run"}) == 1
    assert max(curves["gold"]) - curves["gold"][-1] > 1.0  # over-optimised
    assert curves["score"][-1] > curves["score"][curves["gold"].index(max(curves["gold"]))]
    columns = {"kl", "ratio", "advantage", "value", "target", "delta", "old_logprob"}
    assert all(columns <= row["columns"].keys() for row in recording["view"]["rows"])
    ratios = [ratio for row in recording["view"]["rows"] for ratio in row["columns"]["ratio"]]
    assert max(ratios) > 1.01
    assert min(recording["differences"]) < 0 < max(recording["differences"])


def test_numbers_of_the_project_replace_the_recorded_ones(ctx, material):
    reward_model(ctx, differences=[0.5, -0.5, 1.0, 2.0, 0.1])
    run = a_run(ctx, algorithm="ppo")
    add_steps(ctx, run, 9)
    shown = material()
    assert shown["recorded"] == ["recording"]
    assert (shown["view"]["run"], shown["view"]["step"]) == (run.id, 9)
    assert shown["view"]["rows"][0]["tokens"] == ["a", "b"]
    assert shown["curves"]["gold"] == [-at for at in range(1, 10)]
    assert shown["differences"] == [0.5, -0.5, 1.0, 2.0, 0.1]


def test_a_step_that_moved_no_token_gives_way_to_an_earlier_one(ctx, material):
    run = a_run(ctx, algorithm="ppo")
    add_steps(ctx, run, 3)
    wrong_way = replace(TOKENS, ratio=[0.9, 1.1])
    for at, tokens in ((4, replace(TOKENS, ratio=[1.0, 1.0])), (5, wrong_way)):
        record_step(ctx.db, run.id, StepResult(at, {SCORE: 1.0}, [tokens]))
    assert material()["view"]["step"] == 3


def test_a_step_with_almost_no_kl_gives_way_to_an_earlier_one(ctx, material):
    """No beta of the page's slider, up to 2 / 0.05, would change the reward by 1."""
    run = a_run(ctx, algorithm="ppo")
    add_steps(ctx, run, 3)
    record_step(ctx.db, run.id, StepResult(4, {SCORE: 1.0}, [replace(TOKENS, kl=[-0.51, 0.5])]))
    assert material()["view"]["step"] == 3


def test_the_first_step_is_not_used(ctx, material):
    """The policy is still the base then: there is no KL to weigh."""
    run = a_run(ctx, algorithm="ppo")
    record_step(ctx.db, run.id, StepResult(1, {SCORE: 1.0}, [replace(TOKENS, kl=[0.0, 0.0])]))
    assert "run" in material()["recorded"]
    record_step(ctx.db, run.id, StepResult(2, {SCORE: 1.0}, [TOKENS]))
    assert material()["view"]["step"] == 2


def test_a_run_without_values_clipping_tokens_or_gold_is_not_used(ctx, material):
    reward_model(ctx, differences=[0.5] * 4)  # too few
    add_steps(ctx, a_run(ctx, algorithm="rloo", group_size=4, epochs=1, minibatches=1), 9, **{GOLD: float("nan")})
    record_step(ctx.db, a_run(ctx, algorithm="ppo").id, StepResult(1, {SCORE: 1.0}))  # no tokens
    assert material()["recorded"] == ["recording", "run", "curves", "labels"]


def test_no_visitor_learns_from_the_differences_how_many_labels_there_are(ctx, calls):
    """While gold pairs are shown: they are those that already have a vote."""
    reward_model(ctx, differences=[0.5, -0.5, 1.0, 2.0, 0.1])
    shared = ctx.as_multi_user(open_to_all=True)
    assert "labels" not in calls(learn, shared).material({})["recorded"]
    set_labelling_config(ctx.db, ctx.project.id, LabellingConfig(gold_rate=0.5))
    assert "labels" in calls(learn, shared).material({})["recorded"]


def test_a_run_whose_kl_is_no_log_ratio_is_not_used(ctx, material):
    add_steps(ctx, a_run(ctx, algorithm="ppo", kl_estimator="k2"), 3)
    assert "run" in material()["recorded"]


def test_an_experiment_that_was_stopped_says_so(ctx, material):
    project = start_experiment(ctx.db, ctx.home, "length")
    (run,) = runs(ctx.db, project.id)
    assert material()["experiment"]["problem"] == ""
    set_run_status(ctx.db, run.id, RunStatus.STOPPED)
    assert material()["experiment"]["problem"] == "Its run is stopped."


def test_an_experiment_whose_training_was_cancelled_says_so(ctx, material):
    project = start_experiment(ctx.db, ctx.home, "no-penalty")
    assert material()["experiment"]["problem"] == ""
    cancel_training(ctx.db, project.id)
    assert material()["experiment"]["problem"] == "The training of its reward model was cancelled."


def test_every_experiment_has_a_labelled_project_and_a_run_to_come(ctx):
    for name, experiment in EXPERIMENTS.items():
        project = start_experiment(ctx.db, ctx.home, name)
        assert ctx.project.id == project.id
        assert sum(vote_counts(ctx.db, project.id)[Source.SIMULATED].values()) >= 10
        if experiment.reward_terms:
            (run,) = runs(ctx.db, project.id)
            config, title = run.config, run.name
            assert run.reward_model_id is None
            assert run.manifest["judge"] == "cheerful"
        else:
            (job,) = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD])
            config, title = job.payload[THEN_RUN]["config"], job.payload[THEN_RUN]["name"]
        assert title == experiment.title
        assert config == experiment.config(project).to_dict()
    with pytest.raises(ConfigError, match="choose one of no-penalty"):
        start_experiment(ctx.db, ctx.home, "another")


def test_the_run_follows_the_reward_model(ctx, material, monkeypatch):
    project = start_experiment(ctx.db, ctx.home, "no-penalty")
    assert material()["experiment"] == {"name": "no-penalty", "problem": "", "step": 0, "steps": 0, "curves": None}
    row = reward_model(ctx, note="")
    cache = type("Cache", (), {"db": ctx.db, "home": ctx.home, "distributed": job_handlers.ModelCache.distributed})()
    monkeypatch.setattr(job_handlers, "train_reward_model", lambda *_, **__: row)
    (job,) = queue.jobs(ctx.db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD])
    job_handlers.reward_job(cache, job)
    (run,) = runs(ctx.db, project.id)
    assert (run.name, run.reward_model_id) == ("No KL penalty", row.id)
    assert PolicyConfig.from_dict(run.config).beta == 0
    add_steps(ctx, run, 3)
    shown = material()["experiment"]
    assert (shown["step"], shown["steps"], shown["curves"]["gold"]) == (3, 60, [-1, -2, -3])


def test_formulas_name_functions_of_core():
    script = "".join(path.read_text() for path in Path(learn.__file__).parent.glob("*_pages.js"))
    names = [line.split("'")[1] for line in script.splitlines() if line.strip().startswith("core: ")]
    assert len(names) == 14
    for name in names:
        module, _, function = name.rpartition(".")
        assert callable(getattr(importlib.import_module(f"rlhf_lab.{module}"), function))

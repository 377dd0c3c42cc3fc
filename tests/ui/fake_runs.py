"""A store with runs in it, for the tests of the Train screen; no engine starts."""

from rlhf_lab.common.checkpoint_index import STATE_FILE, checkpoint_folder
from rlhf_lab.common.enums import Source
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run

SCORE, KL = "objective/scores", "objective/kl"


def reward_model(ctx, source=Source.SIMULATED, accuracy=0.81, **report):
    snapshot = LabelSnapshot((1, 2, 3), "digest", source)
    return add_reward_model(
        ctx.db, ctx.project.id, "x", config={}, report={"accuracy": accuracy} | report, snapshot=snapshot
    )


def a_run(ctx, name="a run", steps=40, judge="cheerful", **changes):
    row = reward_model(ctx)
    config = PolicyConfig(steps=steps, beta=0.1, lr=6e-4, **changes).to_dict()  # not the preset: it may be tuned again
    return create_run(ctx.db, ctx.project.id, row.id, name, config=config, manifest={"judge": judge}, total_steps=steps)


def run_with_checkpoint(ctx, step):
    """A run of the open project, without a reward model, whose models can be asked for texts."""
    run = create_run(ctx.db, ctx.project.id, None, "a run", config={}, manifest={}, total_steps=step)
    write_checkpoint(ctx, run.id, step)
    return run


def write_checkpoint(ctx, run_id, step):
    folder = checkpoint_folder(run_folder(ctx.home, run_id), step)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_FILE).write_text("{}")


def step(ctx, run, at, score=0.0, samples=()):
    metrics = {SCORE: score, KL: 0.1 * (at - 1), "val/first_ratio_deviation": 0.0, "grad_norm": 1.0} if at else {}
    record_step(ctx.db, run.id, StepResult(at, metrics, samples=list(samples)))

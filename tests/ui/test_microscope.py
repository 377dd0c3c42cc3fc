"""The token microscope: its equations are true of every token that a trainer records, whatever the algorithm."""

import dataclasses
import math
import re

import pytest
import tiny
from fake_runs import a_run

from rlhf_lab.config import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.records import StepResult, TokenRecord
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.steps import record_step
from rlhf_lab.ui.microscope import looked_at, names_in

SIGNS = {"−": "-", "·": "*", "½": "0.5", "²": "**2"}
KNOWN = {"exp": math.exp, "max": max, "clip": lambda x, low, high: min(max(x, low), high)}


def worked_out(equation, values):
    """Both sides of an equation with the numbers in it."""
    words = re.sub(r"\{(\w+)\}", lambda found: f"({values[found[1]]!r})", equation)
    for sign, python in SIGNS.items():
        words = words.replace(sign, python)
    return [eval(side, {"__builtins__": {}}, KNOWN) for side in words.split("=")]


def told(ctx, trainer, result):
    config = trainer.config.to_dict()
    run = create_run(ctx.db, ctx.project.id, a_run(ctx).reward_model_id, "r", config=config, manifest={}, total_steps=9)
    record_step(ctx.db, run.id, result)
    return looked_at(ctx.db, run.id, result.step)


SETTINGS = [
    ("ppo", {"score_clip": 0.5, "beta": 0.3, "gamma": 0.9, "lam": 0.8}),
    ("ppo", {"kl_estimator": "k2", "score_placement": "spread", "whiten_advantages": False, "value_target": "monte_carlo"}),
    ("ppo", {"kl_estimator": "k3", "bootstrap_cut": True, "cliprange": None, "whiten_rewards": True}),
    ("ppo", {"kl_estimator": "full", "advantage": "nstep", "nstep": 2, "kl_controller": "adaptive", "kl_horizon": 30.0}),
    ("ppo", {"kl_estimator": "k2", "kl_penalty": "loss"}),
    ("ppo_penalty", {}), ("trpo", {}), ("a2c", {}), ("rloo", {}), ("grpo", {}),
    ("reinforce", {}), ("reinforce", {"baseline": "batch_mean", "credit": "total"}),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "settings"), SETTINGS)
def test_every_equation_holds_of_every_token(ctx, llama_folder, algorithm, settings):
    """In the middle of a run, where policy, reference and values differ; worked out wherever this text alone gives a number."""
    trainer = tiny.midway(llama_folder, algorithm, token_rows=6, missing_eos_penalty=0.7, **settings)
    reply = told(ctx, trainer, trainer.run_step())
    assert len(reply["rows"]) == 6
    checked = set()
    for row in reply["rows"]:
        assert "".join(row["tokens"])
        for i in range(len(row["tokens"])):
            values = reply["constants"] | {name: column[i] for name, column in row["columns"].items()}
            for line in reply["lines"]:
                if "=" not in line["equation"]:
                    assert names_in(line["equation"]) <= values.keys()
                    continue
                left, right = worked_out(line["equation"], values)
                assert left == pytest.approx(right, abs=3e-5, rel=1e-4), (line, values)
                checked.add(line["name"])
    expected = {"ratio", "KL", "reward"} - ({"KL"} if settings.get("kl_estimator") == "full" else set())
    expected -= {"reward"} if settings.get("whiten_rewards") else set()
    if algorithm in ("ppo", "ppo_penalty", "trpo", "a2c"):
        expected |= {"surprise", "value's loss"}
        if settings.get("advantage") != "nstep":
            expected.add("advantage before whitening" if trainer.config.whiten_advantages else "advantage")
    if trainer.config.whiten_advantages:
        expected.add("advantage")
    assert expected <= checked
    for shade in reply["shades"]:
        assert shade["column"] in reply["rows"][0]["columns"]


OLD = TokenRecord(
    row=0, prompt="Once", token_ids=[7, 0], tokens=[" ${alert(1)}", "<img src=x>"],
    logprob=[-0.1, -2.5], old_logprob=[-0.1, -2.0], ref_logprob=[-0.3, -1.0],
    kl=[0.2, -1.0], value=[0.5, 0.25], reward=[-0.02, 1.1], advantage=[1.0, -1.0],
    ratio=[1.0, 0.6065306597126334], clipped=[False, True],
)  # fmt: skip


def test_numbers_by_hand(ctx):
    """gamma 1, lambda 0.95, clip 0.2, the score 1.2 on the last token; beta as the step had it, not as the run began."""
    run = a_run(ctx)
    record = dataclasses.replace(
        OLD, raw_advantage=[0.5975, 0.85], target=[1.0975, 1.1], score=3.0, earned=1.0, centre=0.5, spread=0.25
    )
    record_step(ctx.db, run.id, StepResult(1, {"objective/kl_coef": 0.25}, tokens=[record]))
    reply = looked_at(ctx.db, run.id, 1)
    assert reply["constants"] == {"beta": 0.25, "gamma": 1.0, "lam": 0.95, "low": 0.8, "high": 1.2}
    (row,) = reply["rows"]
    assert (row["prompt"], row["tokens"], row["score"], row["earned"]) == ("Once", OLD.tokens, 3.0, 1.0)
    assert row["clipped"] == [False, True]
    columns = row["columns"]
    assert columns["earned"] == [0.0, 1.0]
    assert columns["next_value"] == [0.25, 0.0]
    assert columns["next_raw"] == [0.85, 0.0]
    assert columns["delta"] == pytest.approx([-0.27, 0.85])
    assert columns["loss"] == pytest.approx([-1.0, 0.8])  # -A · ratio is 0.61, at the clip 0.8
    assert columns["value_loss"] == pytest.approx([0.17850, 0.36125], abs=1e-5)
    assert [line["name"] for line in reply["lines"]] == [
        "KL", "reward", "surprise", "advantage before whitening", "advantage", "ratio", "loss", "value's target", "value's loss",
    ]  # fmt: skip


def test_a_step_of_an_older_version_says_what_it_kept(ctx):
    """Without what came later: neither scores nor raw advantages, so no equation that needs them."""
    run = a_run(ctx)
    record_step(ctx.db, run.id, StepResult(1, {}, tokens=[OLD]))
    reply = looked_at(ctx.db, run.id, 1)
    assert reply["constants"]["beta"] == 0.1  # the run's: the step has none
    assert [line["name"] for line in reply["lines"]] == ["KL", "surprise", "ratio", "loss"]
    assert {"earned", "raw", "target", "spread"}.isdisjoint(reply["rows"][0]["columns"])


def test_a_step_without_tokens_and_no_run(ctx):
    run = a_run(ctx)
    reply = looked_at(ctx.db, run.id, 3)
    assert (reply["rows"], reply["kept"], reply["step"], reply["steps"]) == ([], PolicyConfig().token_rows, 3, 0)
    with pytest.raises(StoreError, match="run 99"):
        looked_at(ctx.db, 99, 1)

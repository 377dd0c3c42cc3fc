"""A step of PPO computed again from an exported run alone: plain loops in float64 over its files."""

import csv
import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from sqlalchemy import insert
from support import tiny_models

from rlhf_lab.common.records import TokenRecord
from rlhf_lab.exporters.run_export import export_run
from rlhf_lab.store import tables as t
from rlhf_lab.store.run_metrics import record_step, token_records_at
from rlhf_lab.store.runs import create_run

#: One update a step, so that its losses are those of the recorded numbers; all six responses are recorded.
SETTINGS = {"epochs": 1, "minibatches": 1, "token_rows": 6, "gamma": 0.9, "beta": 0.2}


def exported_run(db, project, home, out, trainer):
    """The files of a run with two steps of the trainer: config, metrics of step 2, its token records."""
    run = create_run(db, project.id, None, "run", config=trainer.state.config.to_dict(), manifest={}, total_steps=2)
    for result in tiny_models.run(trainer, 2):
        record_step(db, run.id, result)
    export_run(db, home, run.id, out)
    config = json.loads((out / f"run-{run.id}-manifest.json").read_text())["config"]
    with (out / f"run-{run.id}-metrics.csv").open(newline="") as file:
        metrics = {name: float(value or "nan") for name, value in list(csv.DictReader(file))[1].items()}
    lines = (out / f"run-{run.id}-tokens.jsonl").read_text().split("\n")[:-1]
    return config, metrics, [row for row in map(json.loads, lines) if row["step"] == 2]


def gae(row, config):
    """A_t = sum over k of (gamma lambda)^k delta_(t+k), as a double loop over the definition."""
    values = [*row["value"], row["bootstrap_value"]]
    deltas = [r + config["gamma"] * values[t + 1] - values[t] for t, r in enumerate(row["reward"])]
    decay = config["gamma"] * config["lam"]
    return [sum(decay ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


@pytest.mark.parametrize(("whitened", "bootstraps"), [(True, True), (False, True), (True, False)])
def test_rewards_advantages_and_losses_of_a_step(db, project, home, out, llama_folder, whitened, bootstraps):
    trainer = tiny_models.trainer(llama_folder, whiten_advantages=whitened, bootstrap_cut=bootstraps, **SETTINGS)
    config, metrics, rows = exported_run(db, project, home, out, trainer)
    assert len(rows) == 6
    assert any(row["bootstrap_value"] for row in rows) == bootstraps  # texts that were cut
    raw = [gae(row, config) for row in rows]
    everything = [a for row in raw for a in row]
    mean = math.fsum(everything) / len(everything)
    sd = math.sqrt(math.fsum((a - mean) ** 2 for a in everything) / (len(everything) - 1))
    policy_losses, value_losses = [], []
    for row, raw_row in zip(rows, raw, strict=True):
        kl = [old - ref for old, ref in zip(row["old_logprob"], row["ref_logprob"], strict=True)]
        scores = [0.0] * (len(kl) - 1) + [row["shaped_score"]]
        assert row["kl"] == pytest.approx(kl, abs=1e-6)
        assert row["reward"] == pytest.approx(
            [score - metrics["objective/kl_coef"] * d for score, d in zip(scores, kl, strict=True)], abs=1e-6
        )
        assert row["raw_advantage"] == pytest.approx(raw_row, abs=1e-5)
        advantages = [(a - mean) / sd for a in raw_row] if whitened else raw_row
        assert row["advantage"] == pytest.approx(advantages, abs=1e-4)
        if whitened:
            assert (row["advantage_mean"], row["advantage_sd"]) == pytest.approx((mean, sd), abs=1e-4)
        else:
            assert row["advantage_mean"] is row["advantage_sd"] is None
        targets = [a + v for a, v in zip(raw_row, row["value"], strict=True)]
        assert row["target"] == pytest.approx(targets, abs=1e-5)
        moved = [now - old for now, old in zip(row["logprob"], row["old_logprob"], strict=True)]
        assert row["ratio"] == pytest.approx([math.exp(m) for m in moved], rel=1e-5)
        policy_losses += [-a for a in advantages]  # the ratio is 1 at the only update
        value_losses += [0.5 * (v - target) ** 2 for v, target in zip(row["value"], targets, strict=True)]
    count = len(policy_losses)
    assert count == sum(len(row["token_ids"]) for row in rows) == 6 * metrics["tokens/response_len"]
    assert metrics["loss/policy_avg"] == pytest.approx(math.fsum(policy_losses) / count, abs=1e-5)
    assert whitened or abs(metrics["loss/policy_avg"]) > 0.01
    assert metrics["loss/value_avg"] == pytest.approx(math.fsum(value_losses) / count, rel=1e-4)
    assert metrics["objective/kl"] == pytest.approx(math.fsum(d for row in rows for d in row["kl"]) / 6, abs=1e-5)


def test_log_probabilities_can_be_computed_again(db, project, home, out, llama_folder):
    """From the ids of prompt and response, at the run's temperature; `logprob` belongs to the policy after the step."""
    trainer = tiny_models.trainer(llama_folder, temperature=0.8, **SETTINGS)
    config, _, rows = exported_run(db, project, home, out, trainer)
    for row in rows:
        with trainer.adapters.using("policy"):
            expected = tiny_models.teacher_forced(
                trainer.backbone, row["prompt_ids"], row["token_ids"], config["temperature"]
            )
        assert row["logprob"] == pytest.approx(expected.tolist(), abs=1e-4)


def test_every_field_is_documented():
    text = (Path(__file__).resolve().parents[2] / "docs" / "FORMATS.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in text.partition("## Exported runs")[2].split("\n") if line.startswith("| `")]
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(["step", *(field.name for field in dataclasses.fields(TokenRecord))])


def test_records_of_an_older_version(db, project, home, out):
    """Its fields had other names; the numbers are those that were stored."""
    numbers = {
        name: [0.5] for name in ("logprob", "old_logprob", "ref_logprob", "kl", "value", "reward", "advantage", "ratio")
    }
    stored = {"row": 0, "prompt": "Once", "token_ids": [7], "tokens": ["Ġupon"], "clipped": [False], **numbers}
    old = {"earned": 1.0, "centre": 0.25, "spread": 2.0, "after": 0.125, "score": 3.0}
    run = create_run(db, project.id, None, "run", config={}, manifest={}, total_steps=2)
    with db.write() as conn:
        conn.execute(insert(t.token_records).values(run_id=run.id, step=1, position=0, record=stored | old))
    new = {"shaped_score": 1.0, "advantage_mean": 0.25, "advantage_sd": 2.0, "bootstrap_value": 0.125, "score": 3.0}
    assert token_records_at(db, run.id, 1) == [TokenRecord(**stored, **new)]
    export_run(db, home, run.id, out)
    (line,) = (out / f"run-{run.id}-tokens.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert json.loads(line) == {"step": 1} | dataclasses.asdict(TokenRecord(**stored, **new))

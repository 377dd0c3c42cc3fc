"""benchmarks/ppo_step.py compares variants of the same step: a variant that computes less would make the times useless."""

import sys
from pathlib import Path

import pytest

from rlhf_lab.config.policy import PolicyConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))


def test_every_variant_makes_the_same_step(llama_folder):
    import ppo_step

    config = PolicyConfig(
        batch_size=4, minibatches=2, micro_batch=1, epochs=2, max_new_tokens=4, token_rows=0, sample_every=9
    )
    actual = ppo_step.measure(ppo_step.make_trainer(str(llama_folder), "cpu", config), list(ppo_step.VARIANTS), 1)
    for way, row in actual.items():
        most = {"rel": 0.1, "abs": 0.03} if way == "bfloat16" else {"rel": 1e-3}
        for figure in ("KL", "grad_norm"):
            assert row[figure] == pytest.approx(actual["ours"][figure], **most), (way, figure)
    assert actual["ours"]["grad_norm"] > 0.01

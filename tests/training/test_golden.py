"""A short run against metrics recorded before layers, batches and losses were made faster.

They were recorded with PEFT's own forward pass (three products), left-padded rows under a mask and the full log-softmax. The
faster code computes the same function; the tolerance covers another order of float32 additions in adapters, heads and losses,
which Adam magnifies. Measured: at most 8e-5 (PyTorch without vector instructions), and 5e-7 of the sum of parameters.
`val/ratio_var` alone was recorded again, from the ratios themselves: the old definition mixed a mean over tokens with one over
updates.
"""

import pytest
import torch
from support import tiny_models

#: model: ((metric, its value after step 1, 2 and 3) …, sum of |parameters| at the end)
# fmt: off
GOLDEN = {
    "llama": (
        [
            ("objective/kl", 0, 0.120138519, 0.677679479),
            ("objective/scores", 0.166666672, 0.666666687, 0.333333343),
            ("objective/entropy", 23.5792999, 28.8419437, 25.8879623),
            ("policy/approxkl_avg", 0.029352692, 0.00884224241, 0.00105298663),
            ("policy/clipfrac_avg", 0.195075758, 0.0902777778, 0.0138888889),
            ("policy/entropy_avg", 2.42981838, 2.39353355, 2.3644651),
            ("loss/policy_avg", -0.192780534, -0.0404642214, -0.0168205542),
            ("loss/value_avg", 0.295523919, 0.190623056, 0.155679749),
            ("val/ratio_var", 0.0788609914, 0.0203757169, 0.00244452797),
            ("val/explained_variance", 0, 0.0037304163, 0.0907614231),
            ("tokens/response_len", 9.66666667, 12, 12),
            ("grad_norm", 1.97727968, 2.12520916, 2.00102534),
        ],
        182.666539,
    ),
    "gpt2": (
        [
            ("objective/kl", 0, 0.127939343, 0.221832171),
            ("objective/scores", 0, 0.166666672, 0),
            ("objective/entropy", 24.5268459, 31.1210403, 21.8236389),
            ("policy/approxkl_avg", 0.0245782053, 0.00436348099, 0.00120351524),
            ("policy/clipfrac_avg", 0.178030303, 0.0498737374, 0),
            ("policy/entropy_avg", 2.62117979, 2.66256233, 2.41179515),
            ("loss/policy_avg", -0.198180983, -0.0409255981, -0.0655915999),
            ("loss/value_avg", 0.101221697, 0.14173774, 0.128424386),
            ("val/ratio_var", 0.0643123004, 0.00931751222, 0.00225630391),
            ("val/explained_variance", 0, 0.000149190426, 0.171213806),
            ("tokens/response_len", 9.16666667, 11.5, 7.83333333),
            ("grad_norm", 1.51475082, 1.57554731, 2.23665),
        ],
        136.569714,
    ),
}
# fmt: on


@pytest.mark.parametrize("micro_batch", [4, 2])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_three_steps_as_recorded(folders, kind, micro_batch):
    settings = {"beta": 0.1, "lr": 3e-3, "max_new_tokens": 12, "entropy_coef": 0.01, "temperature": 0.8}
    trainer = tiny_models.trainer(folders[kind], torch.float64, micro_batch=micro_batch, **settings)
    metrics = [trainer.run_step().metrics for _ in range(3)]
    recorded, total = GOLDEN[kind]
    for name, *values in recorded:
        assert [step[name] for step in metrics] == pytest.approx(values, rel=5e-4, abs=5e-6), name
    assert sum(float(p.detach().double().abs().sum()) for p in trainer.state.parameters) == pytest.approx(
        total, rel=5e-6
    )


def test_a_tiny_entropy_bonus_changes_no_number(llama_folder):
    """Without an entropy bonus the entropy is only a metric; a negligible bonus uses the other code path."""
    runs = []
    for coefficient in (0.0, 1e-12):
        trainer = tiny_models.trainer(llama_folder, torch.float64, entropy_coef=coefficient)
        metrics = [tiny_models.numbers(trainer.run_step().metrics) for _ in range(2)]
        runs.append((metrics, [p.detach().clone() for p in trainer.state.parameters]))
    for without, tiny_bonus in zip(runs[0][0], runs[1][0], strict=True):
        assert without == pytest.approx(tiny_bonus, rel=1e-5, abs=1e-6)
    for without, tiny_bonus in zip(runs[0][1], runs[1][1], strict=True):
        torch.testing.assert_close(without, tiny_bonus, rtol=1e-5, atol=1e-6)

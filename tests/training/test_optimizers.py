"""A fused step of Adam: its values against a loop, and the version counters of the tensors."""

import math

import pytest
import torch

from rlhf_lab.training.optimizers import make_fused_adam
from rlhf_lab.training.policy.train_state import to_device_of


@pytest.mark.parametrize(("kind", "decay"), [(torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.1)])
def test_three_steps_equal_a_plain_loop(kind, decay):
    """Kingma & Ba 2015, algorithm 1; decay apart from the gradient by Loshchilov & Hutter 2019. One number at a time."""
    values, gradients = [[0.5, -2.0], [3.0]], [[[0.1, -3.0], [0.0]], [[0.2, 1.0], [-5.0]], [[-0.1, 0.0], [2.0]]]
    parameters = [torch.nn.Parameter(torch.tensor(row)) for row in values]
    optimiser = make_fused_adam(kind, parameters, lr=0.01, eps=1e-5, weight_decay=decay)
    first, second = ([[0.0] * len(row) for row in values] for _ in range(2))
    for t, step in enumerate(gradients, 1):
        for i, row in enumerate(step):
            parameters[i].grad = torch.tensor(row)
            for j, g in enumerate(row):
                first[i][j] = 0.9 * first[i][j] + 0.1 * g
                second[i][j] = 0.999 * second[i][j] + 0.001 * g * g
                size = math.sqrt(second[i][j] / (1 - 0.999**t)) + 1e-5
                values[i][j] -= 0.01 * (decay * values[i][j] + first[i][j] / (1 - 0.9**t) / size)
        optimiser.step()
        assert [p.tolist() for p in parameters] == [pytest.approx(row, rel=1e-5, abs=1e-7) for row in values]


def test_parameters_without_a_gradient_do_not_change():
    """Where only the values learn, the policy's merged weights stay as they are."""
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))]
    optimiser = make_fused_adam(torch.optim.Adam, parameters, lr=0.01)
    parameters[1].grad = torch.ones(1)
    before = [p._version for p in parameters]
    optimiser.step()
    assert parameters[0].tolist() == [1, 1]
    assert [p._version - version for p, version in zip(parameters, before, strict=True)] == [0, 1]


def test_restored_optimizer_state_is_on_the_device_of_a_first_step():
    """The count of steps too: on a GPU fused Adam reads it there (torch/optim/adam.py, _init_group). "meta" stands for a GPU."""
    parameter = torch.nn.Parameter(torch.empty(2, device="meta"))
    entry = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    assert {value.device.type for value in to_device_of(parameter, entry).values()} == {"meta"}
    copied = to_device_of(torch.nn.Parameter(torch.empty(2)), entry)
    assert all(torch.equal(copied[key], value) and copied[key] is not value for key, value in entry.items())


def test_a_step_increments_the_version_of_every_tensor():
    """By which merged weights are recognised as outdated."""
    parameters = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1))]
    optimiser = make_fused_adam(torch.optim.Adam, parameters, lr=0.01)
    for p in parameters:
        p.grad = torch.ones_like(p)
    before = [p._version for p in parameters]
    optimiser.step()
    assert all(p._version > version for p, version in zip(parameters, before, strict=True))

"""A PPO step calls every kernel; otherwise the kernels could be correct but unused."""

import pytest
import torch
from support import tiny_models

from rlhf_lab.core.logprobs import HeadKernel
from rlhf_lab.kernels import c_ops
from rlhf_lab.training.policy import rollout


def ppo_step(folder, dtype):
    small = {"batch_size": 4, "minibatches": 1, "micro_batch": 2, "steps": 1, "token_rows": 0}
    tiny_models.run(tiny_models.learner(folder, "ppo", dtype, **small), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_ppo_step_calls_every_kernel(kernels, llama_folder, monkeypatch, dtype):
    called = set()

    def call(name, *args, call=c_ops._call_kernel):
        called.add((name, args[0].dtype))
        call(name, *args)

    monkeypatch.setattr(c_ops, "_call_kernel", call)
    ppo_step(llama_folder, dtype)
    assert called == {(name, dtype) for name in c_ops.SIGNATURES}


def test_every_log_probability_of_a_ppo_step_is_computed_by_the_kernel_of_the_head(llama_folder, monkeypatch):
    """Two micro-batches: of the old policy, of the reference, of two epochs, which multiply once more for the gradient, and to
    measure the KL of the updates.
    """
    calls = []

    def counted(name, function):
        return lambda *args: calls.append(name) or function(*args)

    kernel = rollout.HEAD_KERNEL
    monkeypatch.setattr(rollout, "HEAD_KERNEL", HeadKernel(*map(counted, kernel._fields, kernel)))
    ppo_step(llama_folder, torch.float32)
    assert (calls.count("logprobs_and_entropy_inplace"), calls.count("linear")) == (10, 14)

"""A PPO step calls every kernel; otherwise the kernels could be correct but unused."""

import pytest
import torch
from support import tiny_models

from rlhf_lab.kernels import c_ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_ppo_step_calls_every_kernel(kernels, llama_folder, monkeypatch, dtype):
    called = set()

    def call(name, *args, call=c_ops._call_kernel):
        called.add((name, args[0].dtype))
        call(name, *args)

    monkeypatch.setattr(c_ops, "_call_kernel", call)
    small = {"batch_size": 4, "minibatches": 1, "micro_batch": 2, "steps": 1, "token_rows": 0}
    tiny_models.run(tiny_models.learner(llama_folder, "ppo", dtype, **small), 1)
    assert called == {(name, dtype) for name in c_ops.SIGNATURES}

"""A PPO step asks every kernel; else each could be right and none of use."""

import tiny

from rlhf_lab.fused import calls


def test_a_step_of_ppo_asks_all_of_them(kernels, llama_folder, monkeypatch):
    asked = set()
    monkeypatch.setattr(calls, "_call", lambda name, *given, call=calls._call: (asked.add(name), call(name, *given)))
    trainer = tiny.learner(llama_folder, "ppo", batch_size=4, minibatches=1, micro_batch=2, steps=1, token_rows=0)
    tiny.run(trainer, 1)
    assert asked == set(calls.TAKES)

"""Several processes train like one: the same numbers from the same rows, for every algorithm."""

import threading

import pytest
import torch
from support import tiny_models
from support.subprocesses import launch, run_here

from rlhf_lab.errors import ConfigError
from rlhf_lab.training import distributed
from rlhf_lab.training.distributed import SINGLE_PROCESS, Distributed

#: One config a line of reductions: values and clipping; penalty and its KL; groups; a separate critic, exact KL and a warm-up;
#: pretraining text and the entropy's gradient; a minibatch too small for its micro-batches; updates beyond the limit of a budget;
#: held-out responses of which one is left for two processes.
CASES = [
    {},
    {"algorithm": "ppo_penalty"},
    {"algorithm": "grpo", "group_size": 2, "minibatches": 1},
    {"value_trunk": "critic", "kl_estimator": "full", "value_warmup": 1, "bootstrap_cut": True},
    {"ptx_coef": 0.5, "entropy_coef": 0.1, "rollouts": 2, "scale_scores": True},
    {"micro_batch": 1, "batch_size": 5},
    {"kl_budget": 1.0, "lr": 0.1, "checkpoint_every": 1},
    {"kl_budget": 1.0, "batch_size": 31, "checkpoint_every": 1},
]

CHILD = """
from support import tiny_models
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.training.policy.trainer import PolicyTrainer, PolicyTask

results = []
for changes in given["cases"]:
    backbone = tiny_models.load(given["folder"], torch.float64)
    scorer, prompts = tiny_models.CountToken(tiny_models.ID["cat"]), tiny_models.PROMPTS
    task = PolicyTask(prompts, scorer, sample_prompts=prompts[:2], ptx_texts=prompts, eval_prompts=prompts)
    config = PolicyConfig(**(tiny_models.SMALL | {"steps": 2} | changes))
    trainer = PolicyTrainer(backbone, Adapters(backbone), task, config, distributed=distributed)
    metrics = [tiny_models.numbers(trainer.run_step().metrics) for _ in range(2)]
    total = sum(float(p.detach().double().sum()) for p in trainer.state.parameters)
    results.append([metrics, total, distributed.all_gather([total])])
answer(results)
"""


@pytest.mark.parametrize(
    "fake_device",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["on the CPU", "on devices that are not the CPU"],
)
def test_two_processes_give_the_numbers_of_one(tmp_path, fake_device):
    folder = tiny_models.save_llama(tmp_path / "model")
    cases = CASES[3:5] if fake_device else CASES  # those with most communication
    given = {"folder": str(folder), "cases": cases, "fake_device": fake_device}
    alone, together = run_here(CHILD, given), launch(tmp_path, CHILD, given, processes=2)
    for case, (metrics, total, _), (actual, sums, sums_of_all) in zip(cases, alone, together, strict=True):
        for one, two in zip(metrics, actual, strict=True):
            assert one.keys() == two.keys()
            for name in one:
                # Adapters are float32 and Adam divides by small gradients: sums in another order show up to 2e-5 (an Intel CPU).
                assert two[name] == pytest.approx(one[name], rel=1e-4, abs=1e-7), (case, name)
        assert sums == pytest.approx(total, rel=1e-7)
        assert sums_of_all[0] == sums_of_all[1]  # and both hold the same weights, bit for bit


def test_slices_cover_the_rows_in_order():
    for count in (1, 2, 7, 8):
        rows = list(range(count))
        assert [row for rank in range(3) for row in rows[Distributed(rank, 3).shard_slice(count)]] == rows
        assert sorted(row for rank in range(3) for row in Distributed(rank, 3).shard(rows)) == rows


def test_a_single_process_sends_nothing():
    tensor = torch.ones(2)
    SINGLE_PROCESS.all_reduce_([tensor])
    SINGLE_PROCESS.all_reduce_grads([tensor])
    assert tensor.tolist() == [1.0, 1.0]
    assert tensor.grad is None
    assert (SINGLE_PROCESS.all_gather([1, 2]), SINGLE_PROCESS.broadcast("x"), SINGLE_PROCESS.is_main_process) == (
        [1, 2],
        "x",
        True,
    )


def test_shutdown_leaves_the_group_without_waiting_for_others(monkeypatch):
    distributed.shutdown()  # in none
    distributed.dist.init_process_group("gloo", rank=0, world_size=1, store=distributed.dist.HashStore())
    distributed.shutdown()
    assert not distributed.dist.is_initialized()
    never = threading.Event()
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.dist, "destroy_process_group", never.wait)
    monkeypatch.setattr(distributed, "SHUTDOWN_TIMEOUT_S", 0.01)
    distributed.shutdown()
    never.set()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "trpo", "value_trunk": "detached"}, "one process"),
        ({"batch_size": 2}, "Raise batch_size"),
        ({"batch_size": 3}, "Raise batch_size"),
    ],
)
def test_work_that_processes_cannot_share_is_refused(llama_folder, changes, message):
    from rlhf_lab.config.policy import PolicyConfig
    from rlhf_lab.training.policy.invariants import check_process_count

    with pytest.raises(ConfigError, match=message):
        check_process_count(3, PolicyConfig(**(tiny_models.SMALL | {"minibatches": 2} | changes)))


def test_another_number_of_processes_than_configured_is_allowed():
    from rlhf_lab.config.policy import PolicyConfig
    from rlhf_lab.training.policy.invariants import check_process_count

    for processes in (1, 3):
        check_process_count(processes, PolicyConfig(**tiny_models.SMALL, processes=2, shard_backbone=True))

"""Tests of the package on the fake device: the same numbers as on the CPU, and few synchronisations.

Run by tests/training/test_fake_device.py in a separate process, because the device stays registered.
"""

import contextlib

import device
import pytest
import torch
from support import tiny_models
from support.graph_recorders import played
from support.preference_data import comparisons, train
from torch.utils._python_dispatch import _disable_current_modes

from rlhf_lab.common.algorithms import ALGORITHMS
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.sampling.cuda_graphs import GraphedSampler
from rlhf_lab.models.sampling.sampler import sample
from rlhf_lab.training.checkpoints import load_latest, save_checkpoint
from rlhf_lab.training.sft import SFTConfig, SFTRow, encode_examples, train_sft

#: All algorithms, and options of PPO with separate code.
RUNS = {name: {"algorithm": name} for name in ALGORITHMS} | {
    "critic": {"value_trunk": "critic", "value_warmup": 1},
    "detached": {"value_trunk": "detached", "bootstrap_cut": True},
    "full KL": {"kl_estimator": "full"},
    "KL in the loss": {"kl_penalty": "loss", "kl_estimator": "k3"},
    "pretraining texts": {"ptx_coef": 0.5},
    "entropy": {"entropy_coef": 0.01},
    "target": {"target_kl": 1e-4},
}
KINDS = ("llama", "gpt2", "qwen2")
FAST = ("ppo", "grpo", "critic", "full KL")  # the others are SLOW
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def device_mode():
    with device.DeviceMode():
        yield


@pytest.fixture
def use_device(monkeypatch):
    """Sets the device that models are loaded on."""

    def use(name):
        monkeypatch.setattr(
            tiny_models,
            "load",
            lambda folder, dtype=torch.float32: load_backbone(str(folder), device=name, dtype=dtype),
        )

    return use


def on_device(use_device, name, work):
    """The result of `work` with models on a device."""
    use_device(name)
    with contextlib.nullcontext() if name == device.NAME else _disable_current_modes():
        return work()


def on_both(use_device, work):
    return [on_device(use_device, name, work) for name in ("cpu", device.NAME)]


def assert_close(actual, expected):
    """Compares two lists of metrics up to another order of additions."""
    for one, other in zip(actual, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9, nan_ok=True)


# --- the device itself ---


def test_the_device_refuses_what_a_gpu_refuses():
    here, there = torch.arange(3.0), torch.arange(3.0, device=device.NAME)
    assert there.device.type == device.NAME
    assert (there + torch.tensor(1.0)).tolist() == [1, 2, 3]
    with pytest.raises(RuntimeError, match="same device"):
        there + here
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([there[0], here[0]])
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, generator=torch.Generator(), device=device.NAME)


def test_the_device_records_synchronisations():
    there = torch.arange(3.0, device=device.NAME, requires_grad=True)
    with device.recorded_synchronisations() as waits:
        moved = torch.ones(3).to(device.NAME, non_blocking=True)
        (there * moved).sum().backward()
    assert waits == []
    assert there.grad.tolist() == [1, 1, 1]
    there = there.detach()
    requested = [
        lambda: float(there[0]), there.tolist, there.cpu, lambda: there[there > 1],
        lambda: there[torch.tensor([1])], lambda: torch.ones(3).to(device.NAME), (there > 1).nonzero,
        lambda: torch.tensor([1.0], device=device.NAME), lambda: there.copy_(torch.ones(3)),
    ]  # fmt: skip
    for ask in requested:
        with device.recorded_synchronisations() as waits:
            ask()
        assert len(waits) == 1


# --- the package ---


class Watched:
    """Wraps a method of a trainer: records the synchronisations of all calls and the last result."""

    def __init__(self, trainer, name):
        self.method, self.waits, self.actual = getattr(trainer, name), [], None
        setattr(trainer, name, self)

    def __call__(self, *args):
        with device.recorded_synchronisations() as self.waits:
            self.actual = self.method(*args)
        return self.actual


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "llama") if name in FAST else pytest.param(name, "llama", marks=SLOW) for name in RUNS),
        ("ppo", "gpt2"), pytest.param("ppo", "qwen2", marks=SLOW), pytest.param("critic", "qwen2", marks=SLOW),
    ],
)  # fmt: skip
def test_runs_are_equal_and_forward_passes_do_not_synchronise(saved, use_device, name, kind):
    """Measuring a batch waits for nothing; an update twice an optimiser step (is the ratio wild, is the gradient finite) and
    for what steers a run, such as an epoch's KL. Not so where numbers decide what is computed: a search along a line (trpo),
    and texts of pretraining, whose tokens are chosen by a mask. Offline methods check each gradient once."""

    def work():
        trainer = tiny_models.learner(saved[kind], **({"algorithm": "ppo"} | RUNS[name]), dtype=torch.float64)
        config = trainer.state.config
        methods = ("measure_policy", "update_on_texts") if config.is_offline else ("prepare_rollout", "update")
        parts = [Watched(trainer, method) for method in methods]
        return [tiny_models.numbers(one.metrics) for one in tiny_models.run(trainer, 2)], parts, config

    (here, _, _), (there, (measured, updated), config) = on_both(use_device, work)
    assert_close(there, here)
    lines = [line for _, line in updated.waits]
    if config.is_offline:
        assert sum("isfinite" in line for line in lines) == 1
        return
    updates = updated.actual.update_count
    assert [wait for wait in measured.waits if "rewards_and_advantages.py" not in wait[1]] == []
    if name not in ("trpo", "pretraining texts"):
        for word in ('current["ratio"]', "isfinite"):
            assert sum(word in line for line in lines) == updates
        assert len(lines) <= 2 * updates + config.epochs + 2, lines  # and the first ratio and the update's KL


@pytest.mark.parametrize("kind", KINDS)
def test_sampling_of_families_with_and_without_graphs(saved, use_device, kind):
    def work(recorded=False):
        backbone = tiny_models.load(saved[kind], torch.float64)
        backbone.cuda_graphs = GraphedSampler(played) if recorded else None
        actual = sample(backbone, tiny_models.ragged(rows=10)[0], tiny_models.seeded(10, 38), temperature=1.2)
        assert not recorded or not backbone.cuda_graphs.disabled
        return actual

    here, there = on_both(use_device, work)
    recorded = work(recorded=True)
    assert here.tokens == there.tokens == recorded.tokens
    for one, *others in zip(here.logprobs, there.logprobs, recorded.logprobs, strict=True):
        assert [*map(pytest.approx, others)] == [one, one]


def test_half_precision_keeps_its_adapter_in_float32(llama_folder, use_device):
    use_device(device.NAME)
    trainer = tiny_models.learner(llama_folder, "ppo", torch.bfloat16)
    before = tiny_models.weights(trainer)
    tiny_models.run(trainer, 2)
    trained = trainer.adapters.parameters("policy")
    assert {(one.dtype, one.device.type) for one in trained} == {(torch.float32, device.NAME)}
    assert not tiny_models.same(
        {k: v.cpu() for k, v in before.items()}, {k: v.cpu() for k, v in tiny_models.weights(trainer).items()}
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"folds": 3, "ensemble": 2},
        *(pytest.param(one, marks=SLOW) for one in ({}, {"pooling": "last", "warm_start": False})),
    ],
)
def test_reward_models(llama_folder, use_device, changes):
    def work():
        model, report = train(llama_folder, **changes)
        prompts = [model.backbone.encode_prompt(one.prompt) for one in comparisons(3, seed=9)]
        scores = model.scores(prompts, [list(one.chosen_ids) for one in comparisons(3, seed=9)])
        return [*report.chosen_scores, *report.rejected_scores, *scores.tolist()]

    here, there = on_both(use_device, work)
    assert there == pytest.approx(here, abs=2e-3)


def test_supervised_fine_tuning(llama_folder, use_device):
    def work():
        backbone = tiny_models.load(llama_folder, torch.float64)
        texts = encode_examples(backbone, [SFTRow(1, "the cat", "sat . !"), SFTRow(2, "moon", "the dog ran")])
        return train_sft(backbone, Adapters(backbone), texts, SFTConfig(lora_r=4, epochs=2))

    here, there = on_both(use_device, work)
    assert there == pytest.approx(here, rel=1e-7)


@pytest.mark.parametrize("places", [pytest.param(("cpu", device.NAME), marks=SLOW), (device.NAME, "cpu")])
def test_a_run_resumes_on_another_device(llama_folder, use_device, places, tmp_path):
    def trainer_on(place):
        return on_device(use_device, place, lambda: tiny_models.learner(llama_folder, "ppo", torch.float64))

    first, second = map(trainer_on, places)
    tiny_models.run(first, 2)
    save_checkpoint(tmp_path, first.adapters, "policy", *first.state.state_dict())
    second.state.load_state_dict(*load_latest(tmp_path))
    assert_close(
        *[[tiny_models.numbers(one.metrics) for one in tiny_models.run(trainer, 2)] for trainer in (first, second)]
    )

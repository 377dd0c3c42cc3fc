"""The cost of a PPO step, and the gain of each of its optimisations: the same step from the same state in several variants.

    python benchmarks/ppo_step.py --rounds 7
    python benchmarks/ppo_step.py --ways ours,plain,bfloat16 --threads 1 --json

The variants alternate within one process, so that other load slows all of them: compare the ratios, and seconds only on an idle
machine. "plain" is a textbook implementation: PEFT's layers with three matmuls, left-padded rows with a mask in one batch, a
full log-softmax with an entropy that has a gradient. All others are "ours" with one change; "modules" uses transformers' decoder
layers, as "peft-layers", "padded-rows" and "eager" also do.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import torch

from rlhf_lab.common.bundled_assets import shipped_prompts
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.core.logprobs import logprobs_and_entropy
from rlhf_lab.kernels import c_ops
from rlhf_lab.kernels import matmul as products_module
from rlhf_lab.models import adapters as adapters_module
from rlhf_lab.models import features as features_module
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.models.batch import Batch, HiddenStates
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.fused_llama.patch import FusedLayer
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.policy import rollout as rollout_module
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

TIMINGS = ("rollout", "score", "update", "step", "cpu")


def padded_forward(backbone: Backbone, rows: Batch, **_: bool) -> HiddenStates:
    """A forward pass over left-padded rows with a mask and position ids from it."""
    mask = torch.cat([rows.prompt_mask, rows.mask.long()], dim=1)
    output = backbone.trunk(
        input_ids=torch.cat([rows.prompts, rows.responses], dim=1), attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp_min(0), use_cache=False,
    )  # fmt: skip
    width = rows.prompts.shape[1]
    return HiddenStates(output.last_hidden_state, rows.prompt_mask.new_full((len(mask),), width), rows.mask.shape[1])


@contextmanager
def peft_layers(trainer: PolicyTrainer) -> Iterator[None]:
    with patch.object(adapters_module, "lora_weights_of", lambda *_: None):
        trainer.adapters._index_layers()
        yield
    trainer.adapters._index_layers()


@contextmanager
def transformers_layers(trainer: PolicyTrainer) -> Iterator[None]:
    def forward_of(layer: FusedLayer, _weights: object) -> Callable[..., Any]:
        layer.enabled = False  # so that the modules are always called
        return partial(type(layer.module).forward, layer.module)

    with patch.object(FusedLayer, "make_forward", forward_of):
        trainer.adapters._index_layers()
        yield
    trainer.adapters._index_layers()


@contextmanager
def padded_rows(trainer: PolicyTrainer) -> Iterator[None]:
    with (
        patch.object(rollout_module, "forward", padded_forward),
        patch.object(features_module, "forward", padded_forward),
    ):
        yield


@contextmanager
def full_softmax(trainer: PolicyTrainer) -> Iterator[None]:
    def full(
        hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tokens: torch.Tensor, **options: Any
    ) -> Any:
        logits = torch.nn.functional.linear(hidden, weight, bias)
        return logprobs_and_entropy(logits, tokens, temperature=options["temperature"])

    with patch.object(rollout_module, "head_logprobs", full):
        yield


@contextmanager
def one_batch(trainer: PolicyTrainer) -> Iterator[None]:
    with patch.object(
        trainer.state, "config", trainer.state.config.replace(micro_batch=trainer.state.config.batch_size)
    ):
        yield


@contextmanager
def bfloat16_products(trainer: PolicyTrainer) -> Iterator[None]:
    """float32 tensors, matmuls in bfloat16."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


@contextmanager
def swapped_matmul_library(trainer: PolicyTrainer) -> Iterator[None]:
    """Matmuls with frozen weights by oneDNN instead of MKL, or vice versa: see kernels/matmul.py."""
    with patch.object(products_module, "USE_ONEDNN", not products_module.USE_ONEDNN):
        yield


@contextmanager
def no_kernels(trainer: PolicyTrainer) -> Iterator[None]:
    """PyTorch operations instead of C kernels, as without a C compiler."""
    with patch.object(c_ops, "supported", lambda *_: False):
        yield


@contextmanager
def eager_attention(trainer: PolicyTrainer) -> Iterator[None]:
    trainer.backbone.model.set_attn_implementation("eager")
    yield
    trainer.backbone.model.set_attn_implementation("sdpa")


VARIANTS: dict[str, tuple[Callable[[PolicyTrainer], Any], ...]] = {
    "ours": (),
    "plain": (peft_layers, padded_rows, full_softmax, one_batch),
    "modules": (transformers_layers,),
    "peft-layers": (peft_layers,),
    "padded-rows": (padded_rows,),
    "full-softmax": (full_softmax,),
    "one-batch": (one_batch,),
    "other-library": (swapped_matmul_library,),
    "no-kernels": (no_kernels,),
    "bfloat16": (bfloat16_products,),
    "eager": (transformers_layers, eager_attention),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", default="ours,plain", help=f"any of {', '.join(VARIANTS)}, or all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    variants = list(VARIANTS) if args.ways == "all" else args.ways.split(",")
    config = PolicyConfig(batch_size=args.batch_size, epochs=args.epochs, token_rows=0, sample_every=10_000)
    result = measure(make_trainer(args.model, args.device, config), variants, args.rounds)
    print(json.dumps(result) if args.json else table(result))
    return 0


def make_trainer(model: str, device: str, config: PolicyConfig) -> PolicyTrainer:
    """A trainer after one step, so that the adapters are not zero; the reward model is untrained."""
    backbone = load_backbone(model, device=device)
    adapters = Adapters(backbone)
    adapters.add("reward", r=config.lora_r, alpha=config.lora_alpha, seed=1, trainable=False)
    head = RewardHead(backbone.hidden_size, FeatureSpec("mean"), 0).to(backbone.device).requires_grad_(False)
    reward_model = RewardModel(backbone, adapters, "reward", head)
    trainer = PolicyTrainer(backbone, adapters, PolicyTask(shipped_prompts("tales"), reward_model), config)
    trainer.run_step()
    return trainer


def measure(trainer: PolicyTrainer, variants: list[str], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds of each variant, and median of the ratio to the first variant in the same round."""
    saved_state = trainer.state.state_dict()
    seconds: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    last_metrics: dict[str, dict[str, float]] = {}
    for round_ in range(rounds + 1):
        for variant in variants:
            trainer.state.load_state_dict(*saved_state)
            with ExitStack() as stack:
                for enter in VARIANTS[variant]:
                    stack.enter_context(enter(trainer))
                wall, cpu = time.perf_counter(), time.process_time()
                metrics = trainer.run_step().metrics
                timing = {"step": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            if round_:  # the first round warms up
                seconds[variant].append(timing | {phase: metrics[f"time/{phase}"] for phase in TIMINGS[:3]})
            last_metrics[variant] = metrics
    result = {}
    for variant in variants:
        row = {phase: statistics.median(round_timing[phase] for round_timing in seconds[variant]) for phase in TIMINGS}
        pairs = zip(seconds[variant], seconds[variants[0]], strict=True)
        row["cpu / first"] = statistics.median(this["cpu"] / first["cpu"] for this, first in pairs)
        row["KL"], row["grad_norm"] = last_metrics[variant]["objective/kl"], last_metrics[variant]["grad_norm"]
        result[variant] = row
    return result


def table(result: dict[str, dict[str, float]]) -> str:
    names = list(next(iter(result.values())))
    lines = [f"{'way':14}" + "".join(f"{name:>12}" for name in names)]
    lines += [f"{variant:14}" + "".join(f"{row[name]:12.4f}" for name in names) for variant, row in result.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

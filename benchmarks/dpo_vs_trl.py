"""Does one update by dpo have the loss, rewards and gradients of TRL 1.12.0's DPO on the same batch?

    python benchmarks/dpo_vs_trl.py --peer-python peer/bin/python

A random Llama with a LoRA adapter that is not 0, pairs of different lengths, the sigmoid loss, float32. Prints each number twice,
and the largest difference of a gradient relative to the largest gradient of its tensor. Not compared: ipo, where TRL takes
means per token instead of sums (see `core.direct_preference`), label smoothing, which its sigmoid loss ignores, and ties.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peer"))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import torch
from our_ppo import save_random_llama
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.training.offline.trainer import OfflineTrainer
from rlhf_lab.training.offline.updates import preference_update, reference_sums
from rlhf_lab.training.policy.trainer import PolicyTask

SHAPE, PAIRS, BETA = "64,2,4,300", 12, 0.3
METRICS = {  # ours: TRL's
    "loss/dpo_avg": "loss", "rewards/chosen": "rewards/chosen", "rewards/rejected": "rewards/rejected",
    "rewards/margins": "rewards/margins", "rewards/accuracies": "rewards/accuracies",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="Python of an environment with trl==1.12.0")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_random_llama(folder, SHAPE, torch.float32)
        metrics, grads = our_update(folder)
        script = Path(__file__).resolve().parent / "peer" / "trl_dpo.py"
        subprocess.run([args.peer_python, str(script), name], check=True, stdout=sys.stderr)
        peer_metrics = json.loads((folder / "trl.json").read_text(encoding="utf-8"))
        peer_grads = load_file(folder / "trl.safetensors")
    for ours, theirs in METRICS.items():
        print(f"{ours:20s} {metrics[ours]:.8f}   TRL {peer_metrics[theirs]:.8f}")
    assert grads.keys() == peer_grads.keys()
    differences = {key: float((grads[key] - peer_grads[key]).abs().max() / grads[key].abs().max()) for key in grads}
    print(f"gradients of {len(grads)} tensors: largest relative difference {max(differences.values()):.2e}")
    return 0


def our_update(folder: Path) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and gradients of one update; leaves adapter and batch in the folder for TRL."""
    backbone = load_backbone(str(folder), device="cpu", dtype=torch.float32)
    config = PolicyConfig.for_algorithm("dpo", beta=BETA, max_grad_norm=1e3, micro_batch=6)
    labels = make_labels()
    trainer = OfflineTrainer(backbone, Adapters(backbone), PolicyTask(labels=labels), config)
    state, adapters, adapter = trainer.state, trainer.state.policy.adapters, trainer.state.policy.adapter
    generator = torch.Generator().manual_seed(2)
    for parameter in adapters.parameters(adapter):
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    save_file(adapters.tensors(adapter), folder / "adapter.safetensors")
    pairs = [{"prompt_ids": p.prompt, "chosen_ids": p.chosen, "rejected_ids": p.rejected} for p in trainer.pairs]
    batch = {"pairs": pairs, "beta": BETA, "r": config.lora_r, "alpha": config.lora_alpha}
    (folder / "batch.json").write_text(json.dumps(batch), encoding="utf-8")

    def keep_gradients() -> None:
        for parameter in adapters.parameters(adapter):
            assert parameter.grad is not None
            parameter.data = parameter.grad

    state.optimizer.step = keep_gradients  # type: ignore[method-assign, assignment]
    metrics = preference_update(state, trainer.pairs, reference_sums(state, trainer.pairs))
    return metrics, adapters.tensors(adapter)


def make_labels() -> list[Comparison]:
    """Pairs whose prompts and responses have 1 to 19 tokens."""
    generator = torch.Generator().manual_seed(1)

    def tokens() -> tuple[int, ...]:
        length = int(torch.randint(1, 20, (), generator=generator))
        return tuple(torch.randint(4, 300, (length,), generator=generator).tolist())

    return [Comparison(" ".join(f"t{i}" for i in tokens()), "", "", tokens(), tokens()) for _ in range(PAIRS)]


if __name__ == "__main__":
    sys.exit(main())

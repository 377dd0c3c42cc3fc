"""This lab's PPO on the random Llama of trl_ppo.py: seconds of each step and its phases, peak memory, as one JSON line."""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rlhf_lab.common.process_env import set_training_env

set_training_env(standalone=True)  # as `demo`, which also has the machine to itself

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer


def save_random_llama(folder: Path, shape: str, dtype: torch.dtype) -> None:
    hidden, layers, heads, vocab = map(int, shape.split(","))
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=int(hidden * 8 / 3) // 32 * 32, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads, vocab_size=vocab, max_position_embeddings=512,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)  # type: ignore[arg-type]
    word_level = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t3"))
    special = {"pad_token": "t0", "bos_token": "t1", "eos_token": "t2"}
    PreTrainedTokenizerFast(tokenizer_object=word_level, **special).save_pretrained(folder)


def make_trainer(backbone: Backbone, args: argparse.Namespace) -> PolicyTrainer:
    """LoRA r = 8 on all linear layers for policy and reward model; the value head reads the policy's trunk."""
    config = PolicyConfig(
        batch_size=args.batch, max_new_tokens=args.response, epochs=args.epochs, minibatches=args.minibatches,
        micro_batch=args.micro_batch or args.batch // args.minibatches, lr=1e-4, steps=args.steps, token_rows=0, sample_count=0,
    )  # fmt: skip
    adapters = Adapters(backbone)
    adapters.add("reward", r=config.lora_r, alpha=config.lora_alpha, seed=1, trainable=False)
    head = RewardHead(backbone.hidden_size, FeatureSpec("mean"), 0).to(backbone.device).requires_grad_(False)
    trainer = PolicyTrainer(
        backbone, adapters, PolicyTask(["t5"], RewardModel(backbone, adapters, "reward", head)), config
    )
    generator = torch.Generator().manual_seed(0)
    vocab = backbone.model.config.vocab_size
    trainer.prompt_ids = torch.randint(4, vocab, (args.batch * args.steps, args.query), generator=generator).tolist()
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help="hidden,layers,heads,vocabulary")
    for name in ("batch", "query", "response", "epochs", "minibatches", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, default=0, help="rows per forward; default: the whole minibatch")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        save_random_llama(Path(folder), args.shape, getattr(torch, args.dtype))
        backbone = load_backbone(folder, device=device, dtype=getattr(torch, args.dtype))
        trainer = make_trainer(backbone, args)
    phase_seconds, seconds, reserved = [], [], 0
    for _ in range(args.steps):
        start_time = time.perf_counter()
        metrics = trainer.run_step().metrics
        if device == "cuda":
            torch.cuda.synchronize()
            reserved = max(reserved, torch.cuda.max_memory_reserved())  # includes CUDA graphs; each step resets it
        seconds.append(time.perf_counter() - start_time)
        phase_seconds.append({name: metrics[f"time/{name}"] for name in ("rollout", "score", "update")})
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = reserved if device == "cuda" else rss
    print(
        json.dumps(
            {
                "system": "rlhf lab",
                "dtype": args.dtype,
                "seconds": seconds[1:],
                "parts": phase_seconds[1:],
                "peak_bytes": peak,
            }
        )
    )


if __name__ == "__main__":
    main()

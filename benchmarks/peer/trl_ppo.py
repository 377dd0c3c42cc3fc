"""TRL 1.12.0's PPO on a random Llama of a given shape: seconds of each PPO step and peak memory, as one JSON line.

ppo_vs_trl.py runs it with the Python of a separate environment, because TRL dropped PPO in 1.13:

    python -m venv peer && peer/bin/pip install torch==2.13.0 trl==1.12.0 transformers==5.23.0 peft==0.21.2 datasets accelerate

LoRA r = 8 on all linear layers of the policy; reward and value model are full models, as TRL requires.
"""

import argparse
import json
import os
import resource
import tempfile
import time

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer


class StepClock(TrainerCallback):
    """Records the end time of each step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *_, **__) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help="hidden,layers,heads,vocabulary")
    for name in ("batch", "query", "response", "epochs", "minibatches", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), required=True, help="bfloat16: weights on a GPU, autocast on a CPU"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    cuda, use_bfloat16 = torch.cuda.is_available(), args.dtype == "bfloat16"
    hidden, layers, heads, vocab = map(int, args.shape.split(","))
    shape = {
        "hidden_size": hidden, "intermediate_size": int(hidden * 8 / 3) // 32 * 32, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocab, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    dtype = torch.bfloat16 if cuda and use_bfloat16 else torch.float32
    policy = LlamaForCausalLM(LlamaConfig(**shape)).to(dtype)
    reward, value = (LlamaForSequenceClassification(LlamaConfig(**shape, num_labels=1)).to(dtype) for _ in range(2))
    word_level = Tokenizer(models.WordLevel({f"t{i}": i for i in range(vocab)}, unk_token="t3"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_level, pad_token="t0", bos_token="t1", eos_token="t2", padding_side="left"
    )
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(4, vocab, (args.batch * args.steps, args.query), generator=generator)
    data = Dataset.from_dict({"input_ids": prompts.tolist()})
    with tempfile.TemporaryDirectory() as out:
        config = PPOConfig(
            output_dir=out, per_device_train_batch_size=args.batch // args.minibatches,
            gradient_accumulation_steps=args.minibatches, num_mini_batches=args.minibatches,
            total_episodes=args.batch * args.steps, num_ppo_epochs=args.epochs, response_length=args.response,
            report_to="none", bf16=use_bfloat16, use_cpu=not cuda, gradient_checkpointing=False, num_sample_generations=0,
            save_strategy="no", learning_rate=1e-4, disable_tqdm=True, stop_token=None,
        )  # fmt: skip
        clock = StepClock()
        PPOTrainer(
            args=config, processing_class=tokenizer, model=policy, ref_model=None, reward_model=reward, value_model=value,
            train_dataset=data, eval_dataset=data.select(range(args.batch)), callbacks=[clock],
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        ).train()  # fmt: skip
    peak = torch.cuda.max_memory_reserved() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
    print(json.dumps({"system": f"trl {trl.__version__}", "dtype": args.dtype, "seconds": seconds, "peak_bytes": peak}))


if __name__ == "__main__":
    main()

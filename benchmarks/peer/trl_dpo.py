"""TRL 1.12.0's DPO loss and gradients of one batch, for dpo_vs_trl.py, in the environment that trl_ppo.py describes.

The folder holds a model, `adapter.safetensors` with the policy's LoRA weights, and `batch.json` with pairs of token ids. Writes
`trl.json` and `trl.safetensors`, the gradients under PEFT's names.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from datasets import Dataset
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer


def main() -> None:
    folder = Path(sys.argv[1])
    batch = json.loads((folder / "batch.json").read_text(encoding="utf-8"))
    lora = LoraConfig(r=batch["r"], lora_alpha=batch["alpha"], lora_dropout=0.0, target_modules="all-linear")
    config = DPOConfig(
        output_dir=str(folder / "trl"), beta=batch["beta"], use_cpu=True, report_to=[], disable_dropout=True, bf16=False,
        gradient_checkpointing=False, max_length=None,
    )  # fmt: skip
    trainer = DPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "t5", "chosen": "t6", "rejected": "t7"}]),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=lora,
    )
    set_peft_model_state_dict(trainer.model, load_file(folder / "adapter.safetensors"))
    loss = trainer.compute_loss(trainer.model, trainer.data_collator(batch["pairs"]))
    loss.backward()
    metrics = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    for parameter in trainer.model.parameters():
        if parameter.grad is not None:
            parameter.data = parameter.grad
    save_file(get_peft_model_state_dict(trainer.model), folder / "trl.safetensors")
    (folder / "trl.json").write_text(json.dumps({"loss": loss.item()} | metrics), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The README inside an exported zip: what it is, what it came from, and how to load it."""

import json
from typing import Any

from rlhf_lab.assets import EMBEDDED
from rlhf_lab.exports.words import plain
from rlhf_lab.records import RewardModelRow, Run, Source


def policy(run: Run, step: int, row: RewardModelRow, base: str, digest: str) -> str:
    algorithm = str(run.config.get("algorithm", "ppo")).upper()
    return f"""# {run.name}: step {step} of {run.total_steps}

A LoRA adapter in PEFT's format, trained with {algorithm} by RLHF Lab against reward model {row.id}.

| | |
|---|---|
| base model | `{base}`{_shipped(base)} |
| SHA-256 of the base's weights | `{digest or "not recorded"}` |
| run, step | {run.id}, {step} |
| reward model | {row.id}, from {_labels(row)} |
| SHA-256 of the labels | `{row.snapshot.digest}` |

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = {base!r}  # a folder or a Hub id
FOLDER = "."  # where this zip was unpacked
tokenizer = AutoTokenizer.from_pretrained(BASE)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE), FOLDER)
```

The adapter fits the base named above and no other. It was sampled at temperature {run.config.get("temperature", 1.0)} while
it learnt. Config:

```json
{json.dumps(plain(run.config), indent=1)}
```
"""


def reward_model(row: RewardModelRow, base: str, about: dict[str, Any]) -> str:
    accuracy = row.report.get("accuracy")
    tested = "not measured" if accuracy is None else f"{accuracy:.1%} (cross-validated)"
    loaded = "base = PeftModel.from_pretrained(base, FOLDER).get_base_model()\n" if about["adapter"] else ""
    imported = "from peft import PeftModel\n" if about["adapter"] else ""
    pooled = "hidden.mean(0)" if about["pooling"] == "mean" else "hidden[-1]"
    return f"""# Reward model {row.id}

{"A LoRA adapter in PEFT's format and a linear head" if about["adapter"] else "A linear head on the frozen base"}, trained by RLHF
Lab on {_labels(row)}. It scores a response to a prompt; 0 is the mean of the base model's own responses, 1 their spread.

| | |
|---|---|
| base model | `{base}`{_shipped(base)} |
| SHA-256 of the base's weights | `{about.get("backbone_sha256") or "not recorded"}` |
| accuracy | {tested} |
| SHA-256 of the labels | `{row.snapshot.digest}` |

`report.json` says how it was tested, `config.json` how it was trained.

```python
import torch
{imported}from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = {base!r}  # a folder or a Hub id
FOLDER = "."  # where this zip was unpacked
tokenizer = AutoTokenizer.from_pretrained(BASE)
base = AutoModelForCausalLM.from_pretrained(BASE)
{loaded}head = load_file(f"{{FOLDER}}/reward_head.safetensors")


def score(prompt_ids, response_ids):
    with torch.no_grad():
        states = base.base_model(torch.tensor([[*prompt_ids, *response_ids]])).last_hidden_state[0]
    hidden = states[len(prompt_ids) :].float()
    raw = head["linear.weight"] @ {pooled} + head["linear.bias"]
    return ((raw - head["shift"]) / head["scale"]).item()
```

`response_ids` end with the end-of-sequence token where the response ended by itself.
"""


def _labels(row: RewardModelRow) -> str:
    count = len(row.snapshot.vote_ids)
    if row.snapshot.source is Source.SIMULATED:
        return f"{count} simulated labels (by a program, not by people)"
    return f"{count} labels of people"


def _shipped(base: str) -> str:
    return f" (the {EMBEDDED} model, in RLHF Lab's repository)" if base == "assets/model" else ""

"""The README inside an exported zip: what it is, what it came from, and how to load it."""

import json
from typing import Any

from rlhf_lab.assets import EMBEDDED
from rlhf_lab.exports.words import plain
from rlhf_lab.kinds import Source
from rlhf_lab.records import RewardModelRow, Run


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
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE, dtype="float32"), FOLDER)
```

The adapter fits the base named above and no other. It was sampled at temperature {run.config.get("temperature", 1.0)} while
it learnt. Config:

```json
{json.dumps(plain(run.config), indent=1)}
```
"""


def reward_model(row: RewardModelRow, base: str, about: dict[str, Any], offset: float | None = None) -> str:
    """offset: what a score is beyond the logit, where the adapter is a sequence classifier."""
    accuracy = row.report.get("accuracy")
    tested = "not measured" if accuracy is None else f"{accuracy:.1%} (cross-validated)"
    code = _by_hand(base, about) if offset is None else _as_classifier(base, offset)
    return f"""# Reward model {row.id}

{_kind(about, offset)}, trained by RLHF
Lab on {_labels(row)}. It scores a response to a prompt; 0 is the mean of the base model's own responses, 1 their spread.

| | |
|---|---|
| base model | `{base}`{_shipped(base)} |
| SHA-256 of the base's weights | `{about.get("backbone_sha256") or "not recorded"}` |
| accuracy | {tested} |
| SHA-256 of the labels | `{row.snapshot.digest}` |

`report.json` says how it was tested, `config.json` how it was trained.

```python
{code}```

`response_ids` end with the end-of-sequence token where the response ended by itself.
"""


def _kind(about: dict[str, Any], offset: float | None) -> str:
    if offset is not None:
        return "A sequence classifier of one label as a LoRA adapter in PEFT's format"
    heads = f"{about['ensemble']['members']} linear heads" if "ensemble" in about else "a linear head"
    return (
        f"A LoRA adapter in PEFT's format and {heads}"
        if about["adapter"]
        else f"{heads.capitalize()} on the frozen base"
    )


def _as_classifier(base: str, offset: float) -> str:
    """Code that loads it with nothing but PEFT."""
    return f"""import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

BASE = {base!r}  # a folder or a Hub id
FOLDER = "."  # where this zip was unpacked
base = AutoModelForSequenceClassification.from_pretrained(BASE, num_labels=1, dtype=torch.float32)
base.config.pad_token_id = None  # one text at a time: what is read is its last token, also where that is the padding's
model = PeftModel.from_pretrained(base, FOLDER).eval()


def score(prompt_ids, response_ids):
    with torch.no_grad():
        return model(torch.tensor([[*prompt_ids, *response_ids]])).logits.item() + {offset!r}
"""


def _by_hand(base: str, about: dict[str, Any]) -> str:
    """Code that applies adapter and head (or heads)."""
    loaded = "base = PeftModel.from_pretrained(base, FOLDER).get_base_model()\n" if about["adapter"] else ""
    imported = "from peft import PeftModel\n" if about["adapter"] else ""
    last = 1.0 if about["pooling"] == "last" else float(about.get("last_weight", 0.0))
    pooled = {0.0: "states.mean(0)", 1.0: "states[-1]"}.get(
        last, f"{1 - last!r} * states.mean(0) + {last!r} * states[-1]"
    )
    return f"""import torch
{imported}from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = {base!r}  # a folder or a Hub id
FOLDER = "."  # where this zip was unpacked
tokenizer = AutoTokenizer.from_pretrained(BASE)
base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
{loaded}head = load_file(f"{{FOLDER}}/reward_head.safetensors")


def score(prompt_ids, response_ids):
    with torch.no_grad():
        states = base.base_model(torch.tensor([[*prompt_ids, *response_ids]])).last_hidden_state[0]
    states = states[len(prompt_ids) :].float()
    pooled = {pooled}
{_combined(about)}"""


def _combined(about: dict[str, Any]) -> str:
    """The lines of `score` from the pooled state on."""
    if "ensemble" not in about:
        return """    raw = head["linear.weight"] @ pooled + head["linear.bias"]
    return ((raw - head["shift"]) / head["scale"]).item()
"""
    several = about["ensemble"]
    joint = {
        "mean": "scores.mean()",
        "worst": "scores.min()",
        "uncertainty": f"scores.mean() - {several['coef']!r} * scores.var(correction=0)",
    }[several["mode"]]
    return f"""    scores = []
    for k in range({several["members"]}):
        part = {{name: head[f"members.{{k}}.{{name}}"] for name in ("linear.weight", "linear.bias", "shift", "scale")}}
        raw = part["linear.weight"] @ pooled + part["linear.bias"]
        scores.append((raw - part["shift"]) / part["scale"])
    scores = torch.cat(scores)
    return (({joint} - head["shift"]) / head["scale"]).item()
"""


def _labels(row: RewardModelRow) -> str:
    count = len(row.snapshot.vote_ids)
    if row.snapshot.source is Source.SIMULATED:
        return f"{count} simulated labels (by a program, not by people)"
    return f"{count} labels of people"


def _shipped(base: str) -> str:
    return f" (the {EMBEDDED} model, in RLHF Lab's repository)" if base == "assets/model" else ""

"""The card (README.md) of an exported reward model, with code that applies it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.common.records import Project, RewardModelRow
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.exporters.card_parts import card_header, embedded_note, label_summary, prompt_code, sampled_with
from rlhf_lab.store.reward_model_list import accuracy_of


@dataclass(frozen=True)
class RewardModelFacts:
    """Facts for the card of a reward model.

    base: its name. head_config: reward_head.json. offset: score minus logit if the adapter is a sequence classifier, else None.
    unmet: the conditions for a sequence classifier that it does not meet. origin: of `base_model.card_origin`.
    """

    row: RewardModelRow
    project: Project
    base: str
    head_config: dict[str, Any]
    offset: float | None
    unmet: tuple[str, ...]
    origin: Mapping[str, Any] = field(default_factory=dict)


def reward_model_card(facts: RewardModelFacts) -> str:
    row, base, head_config, offset = facts.row, facts.base, facts.head_config, facts.offset
    accuracy = accuracy_of(row.report).value
    accuracy_text = "not measured" if accuracy is None else f"{accuracy:.1%} (cross-validated)"
    code = scoring_code(facts)
    lacks = f"\nIt is not a sequence classifier that transformers loads: that needs {' and '.join(facts.unmet)}.\n" if (
        facts.unmet
    ) else ""  # fmt: skip
    library = {} if offset is None and not head_config["adapter"] else {"library_name": "peft"}
    header = card_header(facts.origin, **library, pipeline_tag="text-classification", tags=["reward-model", "rlhf"])
    return f"""{header}# Reward model {row.id}

{_description(head_config, offset)}, trained by RLHF
Lab on {label_summary(row)}. It scores a response to a prompt; 0 is the mean of the base model's own responses, 1 their spread.

| | |
|---|---|
| base model | `{base}`{embedded_note(base)} |
| SHA-256 of the base's weights | `{head_config.get("backbone_sha256") or "not recorded"}` |
| accuracy | {accuracy_text} |
| SHA-256 of the labels | `{row.snapshot.digest}` |

`report.json` says how it was tested, `config.json` how it was trained.
{lacks}{_correction_text(head_config)}
```python
{code}

{prompt_code(facts.project)}


def score(prompt, response):  # of a response that ended by itself; one that was cut has no end-of-sequence token
    response_ids = tokenizer(response, add_special_tokens=False).input_ids
    return score_ids(encode_prompt(prompt), [*response_ids, tokenizer.eos_token_id])


print(score("Say hello.", "Hello!"))
```

Encode prompts as above: in the base's chat template, if it has one, up to where the answer begins. Other ids give other
scores; they differed by 0.2 to 0.4 where prompts were encoded without the template. {sampled_with(facts.project)}The lab
encodes a special token that is written in a text as text.
"""


def _correction_text(head_config: dict[str, Any]) -> str:
    """How to correct the score of the code for the attributes that the reward model ignores; "" if there are none."""
    if "correction" not in head_config:
        return ""
    labels = ", ".join(ATTRIBUTES[name].label for name in head_config["correction"]["names"])
    return f"""
In the lab its scores ignore: {labels}. The score of the code below still contains them. With `correction` of
`reward_head.json` the lab's score is (score - slopes · (z - mean)) / unit, where z are the values of these attributes
(`rlhf_lab/common/text_attributes.py` in the lab's source).
"""


def _description(head_config: dict[str, Any], offset: float | None) -> str:
    if offset is not None:
        return "A sequence classifier of one label as a LoRA adapter in PEFT's format"
    heads = f"{head_config['ensemble']['members']} linear heads" if "ensemble" in head_config else "a linear head"
    return (
        f"A LoRA adapter in PEFT's format and {heads}"
        if head_config["adapter"]
        else f"{heads.capitalize()} on the frozen base"
    )


def scoring_code(facts: RewardModelFacts, folder: str = ".") -> str:
    """Code that loads an exported reward model from a folder and defines `score_ids`, its score of token ids."""
    if facts.offset is None:
        return _adapter_and_head_code(facts.base, folder, facts.head_config)
    return _classifier_code(facts.base, folder, facts.offset)


def _classifier_code(base: str, folder: str, offset: float) -> str:
    """Code that loads and applies a sequence classifier with PEFT."""
    return f"""import torch
from peft import PeftModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BASE = {base!r}  # a folder or a Hub id
FOLDER = {json.dumps(folder)}  # where its files are
tokenizer = AutoTokenizer.from_pretrained(BASE)
base = AutoModelForSequenceClassification.from_pretrained(BASE, num_labels=1, dtype=torch.float32)
base.config.pad_token_id = None  # one text at a time: what is read is its last token, also where that is the padding's
model = PeftModel.from_pretrained(base, FOLDER).eval()


def score_ids(prompt_ids, response_ids):
    with torch.no_grad():
        return model(torch.tensor([[*prompt_ids, *response_ids]], device=base.device)).logits.item() + {offset!r}
"""


def _adapter_and_head_code(base: str, folder: str, head_config: dict[str, Any]) -> str:
    """Code that applies adapter and head (or heads)."""
    load_line = "base = PeftModel.from_pretrained(base, FOLDER).get_base_model()\n" if head_config["adapter"] else ""
    import_line = "from peft import PeftModel\n" if head_config["adapter"] else ""
    last_weight = 1.0 if head_config["pooling"] == "last" else float(head_config.get("last_weight", 0.0))
    pooling_expr = {0.0: "states.mean(0)", 1.0: "states[-1]"}.get(
        last_weight, f"{1 - last_weight!r} * states.mean(0) + {last_weight!r} * states[-1]"
    )
    reads_all_layers = head_config.get("layers", "last") == "all"
    states_expr = (
        "torch.cat([layer[0] for layer in output.hidden_states], dim=1)"
        if reads_all_layers
        else "output.last_hidden_state[0]"
    )
    return f"""import torch
{import_line}from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = {base!r}  # a folder or a Hub id
FOLDER = {json.dumps(folder)}  # where its files are
tokenizer = AutoTokenizer.from_pretrained(BASE)
base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
{load_line}head = load_file(f"{{FOLDER}}/reward_head.safetensors")


def score_ids(prompt_ids, response_ids):
    with torch.no_grad():
        ids = torch.tensor([[*prompt_ids, *response_ids]], device=base.device)
        output = base.base_model(ids, output_hidden_states=True)
    states = {states_expr}[len(prompt_ids) :].float().cpu()
    pooled = {pooling_expr}
{_scoring_code(head_config)}"""


def _scoring_code(head_config: dict[str, Any]) -> str:
    """The lines of `score` after pooling."""
    if "ensemble" not in head_config:
        return """    raw = head["linear.weight"] @ pooled + head["linear.bias"]
    return ((raw - head["shift"]) / head["scale"]).item()
"""
    ensemble = head_config["ensemble"]
    combine_expr = {
        "mean": "scores.mean()",
        "worst": "scores.min()",
        "uncertainty": f"scores.mean() - {float(ensemble['coef'])!r} * scores.var(correction=0)",
    }[ensemble["mode"]]
    return f"""    scores = []
    for k in range({int(ensemble["members"])}):
        part = {{name: head[f"members.{{k}}.{{name}}"] for name in ("linear.weight", "linear.bias", "shift", "scale")}}
        raw = part["linear.weight"] @ pooled + part["linear.bias"]
        scores.append((raw - part["shift"]) / part["scale"])
    scores = torch.cat(scores)
    return (({combine_expr} - head["shift"]) / head["scale"]).item()
"""

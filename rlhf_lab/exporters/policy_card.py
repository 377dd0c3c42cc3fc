"""Cards (README.md) of an exported policy: of the adapter, and of the model with the adapter merged in."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.common.algorithms import algorithm_of, spec_of
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS, Project, RewardModelRow, Run
from rlhf_lab.exporters.card_parts import (
    card_header,
    embedded_note,
    in_line,
    label_summary,
    prompt_code,
    sampled_with,
)
from rlhf_lab.exporters.json_io import portable_name, to_strict_json
from rlhf_lab.rewards.terms import REWARD_MODEL, TERMS_KEY, has_score_unit, read_terms
from rlhf_lab.store.reward_model_list import accuracy_of

#: Titles and units of the metrics on a merged model's card.
MODEL_CARD_FIGURES = {
    "objective/scores": ("score of the step's responses", "sd of the base's"),
    "objective/kl": ("KL to the base, on the step's responses", "nats per response"),
    "eval/scores": ("score on held-out prompts", "sd of the base's"),
    "eval/kl": ("KL to the base on held-out prompts", "nats per response"),
    "objective/gold": ("score of the judge", ""),
}

#: Values of vLLM's --max-lora-rank (its vllm/config/lora.py).
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)

MODELFILE_NOTE = (
    "Ollama's prompts then have the tokens that the model learned with: the Modelfile contains the chat template, the system\n"
    "prompt and the sampling of the run. Other servers read the chat template and get the system prompt from you. The lab\n"
    "reads a control token that somebody types as text; servers read it as a control token.\n"
)


@dataclass(frozen=True)
class PolicyFacts:
    """Facts for the card of a policy. base, digest: name and SHA-256 of the base. origin: of `base_model.card_origin`."""

    run: Run
    step: int
    reward_model: RewardModelRow | None
    project: Project
    base: str
    digest: str
    origin: Mapping[str, Any] = field(default_factory=dict)


def policy_card(facts: PolicyFacts, adapter_config: Mapping[str, Any]) -> str:
    """The card of an adapter. adapter_config: its adapter_config.json."""
    run, step, row, project, base, digest = (
        facts.run, facts.step, facts.reward_model, facts.project, facts.base, facts.digest,
    )  # fmt: skip
    algorithm = algorithm_of(run.config).upper()
    header = card_header(
        facts.origin, library_name="peft", pipeline_tag="text-generation", tags=["lora", "rlhf", algorithm.lower()]
    )
    return f"""{header}# {in_line(run.name)}: step {step} of {run.total_steps}

A LoRA adapter in PEFT's format, trained with {algorithm} by RLHF Lab {_reward_text(run, row)}.

| | |
|---|---|
| base model | `{base}`{embedded_note(base)} |
| SHA-256 of the base's weights | `{digest or "not recorded"}` |
| run, step | {run.id}, {step} |
{_reward_rows(row)}
```python
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

BASE = {base!r}  # a folder or a Hub id
FOLDER = "."  # where this zip was unpacked
tokenizer = AutoTokenizer.from_pretrained(BASE)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE, dtype="float32"), FOLDER)
ends = model.generation_config.eos_token_id
ends = {{tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}} - {{None}}
model.generation_config = GenerationConfig(  # samples as the run did, without the base's penalties and filters
    do_sample=True, temperature={run.config.get("temperature", 1.0)}, top_k=0, eos_token_id=sorted(ends), pad_token_id=min(ends)
)
```

The adapter fits the base named above and no other. It was sampled at temperature {run.config.get("temperature", 1.0)} while
it learned. {sampled_with(project)}
{_vllm_text(base, adapter_config)}
## Config

```json
{json.dumps(to_strict_json(run.config), indent=1)}
```
"""


def _vllm_text(base: str, adapter_config: Mapping[str, Any]) -> str:
    """How vLLM serves the adapter, and what it requires."""
    rank, modules = adapter_config["r"], {name.rpartition(".")[2] for name in adapter_config["target_modules"]}
    limit = next((limit for limit in VLLM_RANKS if limit >= rank), None)
    if limit is None:
        return f"vLLM serves adapters of a rank up to {VLLM_RANKS[-1]}; this one has {rank}.\n"
    names = ", ".join(f"`{name}`" for name in sorted(modules))
    return f"""## Serve it

```bash
vllm serve {shlex.quote(base)} --enable-lora --max-lora-rank {limit} --lora-modules policy=FOLDER
```

FOLDER is where this zip was unpacked; requests then name the model `policy`. The adapter has rank {rank}, and vLLM admits
ranks up to 16 without `--max-lora-rank`. It serves adapters only for models whose class supports LoRA there, and this
one changes these modules: {names}. For other servers `export model` writes base and adapter as one model.
"""


@dataclass(frozen=True)
class MergedModelFacts:
    """Facts for the card of a merged model.

    figures: metrics of the step, None where it has none. rounding: the measured error of merging. modelfile_problem: why there is
    no Modelfile, "" if there is one.
    """

    policy: PolicyFacts
    figures: Mapping[str, float | None]
    rounding: str
    modelfile_problem: str


def model_card(facts: MergedModelFacts) -> str:
    policy, figures = facts.policy, facts.figures
    run, row, project, base = policy.run, policy.reward_model, policy.project, policy.base
    algorithm = algorithm_of(run.config).upper()
    judge = in_line(portable_name(str(run.manifest.get("judge") or "")))
    units = {name: unit for name, (_, unit) in MODEL_CARD_FIGURES.items()}
    units["objective/gold"] = f"({judge})" if judge else ""
    if not has_score_unit(run.config, run.manifest):
        units["objective/scores"] = "in the unit of the reward's terms"
    measured = "\n".join(
        f"| {title} | {figures[name]:.2f} {units[name]} |"
        for name, (title, _) in MODEL_CARD_FIGURES.items()
        if figures.get(name) is not None
    )
    header = card_header(
        policy.origin, library_name="transformers", pipeline_tag="text-generation", tags=["rlhf", algorithm.lower()]
    )
    return f"""{header}# {in_line(run.name)}: step {policy.step} of {run.total_steps}

`{base}`{embedded_note(base)}, trained with {algorithm} by RLHF Lab {__version__} {_reward_text(run, row)}. The LoRA
adapter of the run is merged into the weights.

| | |
|---|---|
{_reward_rows(row, with_accuracy=True)}{measured}
| temperature that it learned at | {run.config.get("temperature", 1.0)} |
| rounding of the merged weights | {facts.rounding} |
| SHA-256 of the base's weights | `{policy.digest or "not recorded"}` |

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = "."  # this folder, or its id on the Hub
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForCausalLM.from_pretrained(FOLDER)


{prompt_code(project)}

inputs = torch.tensor([encode_prompt("Say hello.")])
outputs = model.generate(inputs, max_new_tokens={run.config.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)})
print(tokenizer.decode(outputs[0], skip_special_tokens=True))
```

{sampled_with(project)}
{_serve_text(facts.modelfile_problem)}
## Limits

It answers in the way that its reward scores highly, which is not always what people prefer: compare it with the base
before you use it. It learned on prompts like those of the project, and nobody trained it for truth or safety. The licence of the
base model applies.
"""


def _serve_text(modelfile_problem: str) -> str:
    """How programs serve a model folder."""
    ollama = "ollama create my-model -f FOLDER/Modelfile && ollama run my-model\n" if not modelfile_problem else ""
    note = (
        f"There is no Modelfile for Ollama: {modelfile_problem}. The others read the chat template itself.\n"
        if modelfile_problem
        else MODELFILE_NOTE
    )
    return f"""Serve it with

```bash
transformers serve FOLDER
vllm serve FOLDER
python llama.cpp/convert_hf_to_gguf.py FOLDER --outfile FOLDER/model.gguf
llama-server -m FOLDER/model.gguf
{ollama}```

{note}"""


def _reward_text(run: Run, row: RewardModelRow | None) -> str:
    """What the policy was trained with: its reward, or the labels if it was trained on labels."""
    if spec_of(algorithm_of(run.config)).learns_from == "labels":
        return "on labels, without a reward model" if row is None else f"on the labels of reward model {row.id}"
    if run.config.get("live"):
        return "against a reward model that learned from labels during the run"
    terms = read_terms(run.manifest.get(TERMS_KEY) or [])
    functions = ", ".join(f"{term.weight:g} · {in_line(term.label)}" for term in terms if term.name != REWARD_MODEL)
    if row is None:
        return f"on reward functions, without a reward model ({functions})"
    weight = next(
        (f" with weight {term.weight:g}" for term in terms if term.name == REWARD_MODEL and term.weight != 1), ""
    )
    return f"against reward model {row.id}{weight}" + (f" and other terms ({functions})" if functions else "")


def _reward_rows(row: RewardModelRow | None, *, with_accuracy: bool = False) -> str:
    """Rows of a card's table."""
    if row is None:
        return ""
    rows = [f"| reward model | {row.id}, from {label_summary(row)} |"]
    if with_accuracy:
        accuracy = accuracy_of(row.report).value
        rows.append(
            f"| its accuracy on unseen pairs | {'not measured' if accuracy is None else f'{accuracy:.1%} (cross-validated)'} |"
        )
    return "\n".join([*rows, f"| SHA-256 of the labels | `{row.snapshot.digest}` |", ""])

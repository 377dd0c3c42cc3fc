"""README texts: cards of an exported policy adapter, reward model and data set."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.common.algorithms import algorithm_of, spec_of
from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS, Project, RewardModelRow, Run
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.exporters.json_io import portable_name, to_strict_json
from rlhf_lab.exporters.label_export import LabelExportOptions
from rlhf_lab.exporters.tabular import COLUMN_TYPES, column_kind


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


def _header(origin: Mapping[str, Any], **fields: Any) -> str:
    """The header of a model card, as the Hub reads it."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**fields, **origin).to_yaml()}\n---\n\n"


def policy_card(facts: PolicyFacts, adapter_config: Mapping[str, Any]) -> str:
    """The card of an adapter. adapter_config: its adapter_config.json."""
    run, step, row, project, base, digest = (
        facts.run, facts.step, facts.reward_model, facts.project, facts.base, facts.digest,
    )  # fmt: skip
    algorithm = algorithm_of(run.config).upper()
    header = _header(
        facts.origin, library_name="peft", pipeline_tag="text-generation", tags=["lora", "rlhf", algorithm.lower()]
    )
    return f"""{header}# {run.name}: step {step} of {run.total_steps}

A LoRA adapter in PEFT's format, trained with {algorithm} by RLHF Lab {_reward_text(run, row)}.

| | |
|---|---|
| base model | `{base}`{_embedded_note(base)} |
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
it learnt. {_sampled_with(project)}
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
    measured = "\n".join(
        f"| {title} | {figures[name]:.2f} {unit} |"
        for name, (title, unit) in MODEL_CARD_FIGURES.items()
        if figures.get(name) is not None
    )
    header = _header(
        policy.origin, library_name="transformers", pipeline_tag="text-generation", tags=["rlhf", algorithm.lower()]
    )
    return f"""{header}# {run.name}: step {policy.step} of {run.total_steps}

`{base}`{_embedded_note(base)}, trained with {algorithm} by RLHF Lab {__version__} {_reward_text(run, row)}. The LoRA
adapter of the run is merged into the weights.

| | |
|---|---|
{_reward_rows(row, with_accuracy=True)}{measured}
| temperature that it learnt at | {run.config.get("temperature", 1.0)} |
| rounding of the merged weights | {facts.rounding} |
| SHA-256 of the base's weights | `{policy.digest or "not recorded"}` |

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FOLDER = "."  # this folder, or its id on the Hub
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = AutoModelForCausalLM.from_pretrained(FOLDER)


{_prompt_code(project)}

inputs = torch.tensor([encode_prompt("Say hello.")])
outputs = model.generate(inputs, max_new_tokens={run.config.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)})
print(tokenizer.decode(outputs[0], skip_special_tokens=True))
```

{_sampled_with(project)}
{_serve_text(facts.modelfile_problem)}
## Limits

It answers in the way that its reward scores highly, which is not always what people prefer: compare it with the base
before you use it. It learnt on prompts like those of the project, and nobody trained it for truth or safety. The licence of the
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
    accuracy = row.report.get("accuracy")
    accuracy_text = "not measured" if accuracy is None else f"{accuracy:.1%} (cross-validated)"
    code = scoring_code(facts)
    lacks = f"\nIt is no sequence classifier that transformers loads: that needs {' and '.join(facts.unmet)}.\n" if (
        facts.unmet
    ) else ""  # fmt: skip
    library = {} if offset is None and not head_config["adapter"] else {"library_name": "peft"}
    header = _header(facts.origin, **library, pipeline_tag="text-classification", tags=["reward-model", "rlhf"])
    return f"""{header}# Reward model {row.id}

{_description(head_config, offset)}, trained by RLHF
Lab on {_label_summary(row)}. It scores a response to a prompt; 0 is the mean of the base model's own responses, 1 their spread.

| | |
|---|---|
| base model | `{base}`{_embedded_note(base)} |
| SHA-256 of the base's weights | `{head_config.get("backbone_sha256") or "not recorded"}` |
| accuracy | {accuracy_text} |
| SHA-256 of the labels | `{row.snapshot.digest}` |

`report.json` says how it was tested, `config.json` how it was trained.
{lacks}{_correction_text(head_config)}
```python
{code}

{_prompt_code(facts.project)}


def score(prompt, response):  # of a response that ended by itself; one that was cut has no end-of-sequence token
    response_ids = tokenizer(response, add_special_tokens=False).input_ids
    return score_ids(encode_prompt(prompt), [*response_ids, tokenizer.eos_token_id])


print(score("Say hello.", "Hello!"))
```

Encode prompts as above: in the base's chat template, if it has one, up to where the answer begins. Other ids give other
scores; they differed by 0.2 to 0.4 where prompts were encoded without the template. {_sampled_with(facts.project)}The lab
encodes a special token that is written in a text as text.
"""


def _sampled_with(project: Project) -> str:
    """What the prompts were encoded with beside themselves, as sentences; "" if there is nothing."""
    parts = []
    if project.system_prompt:
        parts.append(
            f"The texts were sampled with the system prompt {json.dumps(project.system_prompt, ensure_ascii=False)} before each "
            "prompt that has none of its own (a template without a system role has it at the beginning of the first message)."
        )
    if project.template_arguments:
        parts.append(
            f"Arguments of the chat template: {json.dumps(dict(project.template_arguments), ensure_ascii=False)}."
        )
    return "".join(f"{part}\n" for part in parts)


def _prompt_code(project: Project) -> str:
    """A function `encode_prompt` that encodes as `Backbone.encode_prompt` does, for a prompt of one text; needs `tokenizer`."""
    arguments = f", **{dict(project.template_arguments)!r}" if project.template_arguments else ""
    render = f"tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False{arguments})"
    if not project.system_prompt:
        return f"""def encode_prompt(prompt):
    if tokenizer.chat_template is None:
        ids = tokenizer(prompt).input_ids
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    chat = [{{"role": "user", "content": prompt}}]
    text = {render}
    return tokenizer(text, add_special_tokens=False).input_ids"""
    system_prompt = repr(project.system_prompt).replace("`", r"\x60")  # a fence of Markdown would end the code
    return f"""import jinja2

SYSTEM = {system_prompt}


def encode_prompt(prompt):
    joined = f"{{SYSTEM}}\\n\\n{{prompt}}"
    if tokenizer.chat_template is None:
        ids = tokenizer(joined).input_ids
        return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
    system, user = {{"role": "system", "content": SYSTEM}}, {{"role": "user", "content": prompt}}
    for chat in ([system, user], [{{"role": "user", "content": joined}}]):
        try:  # some templates refuse a system message, others leave it out
            text = {render}
        except jinja2.TemplateError:
            continue
        if SYSTEM.strip() in text:
            break
    return tokenizer(text, add_special_tokens=False).input_ids"""


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


def _reward_text(run: Run, row: RewardModelRow | None) -> str:
    """What the policy was trained with: its reward, or the labels if it was trained on labels."""
    if spec_of(algorithm_of(run.config)).learns_from == "labels":
        return "on labels, without a reward model" if row is None else f"on the labels of reward model {row.id}"
    if run.config.get("live"):
        return "against a reward model that learned from labels during the run"
    terms = ", ".join(f"{item['weight']:g} · {item['name']}" for item in run.manifest.get("reward_terms") or [])
    if row is None:
        return f"on reward functions, without a reward model ({terms})"
    return f"against reward model {row.id}" + (f" and other terms ({terms})" if terms else "")


def _reward_rows(row: RewardModelRow | None, *, with_accuracy: bool = False) -> str:
    """Rows of a card's table."""
    if row is None:
        return ""
    rows = [f"| reward model | {row.id}, from {_label_summary(row)} |"]
    if with_accuracy:
        accuracy = row.report.get("accuracy")
        rows.append(
            f"| its accuracy on unseen pairs | {'not measured' if accuracy is None else f'{accuracy:.1%} (cross-validated)'} |"
        )
    return "\n".join([*rows, f"| SHA-256 of the labels | `{row.snapshot.digest}` |", ""])


def _label_summary(row: RewardModelRow) -> str:
    count = len(row.snapshot.vote_ids)
    if row.snapshot.source is Source.SIMULATED:
        return f"{count} simulated labels (by a program, not by people)"
    return f"{count} labels of people"


def _embedded_note(base: str) -> str:
    return f" (the {EMBEDDED_MODEL} model, in RLHF Lab's repository)" if base == "assets/model" else ""


#: Titles and units of the metrics on a merged model's card.
MODEL_CARD_FIGURES = {
    "objective/scores": ("score of the step's responses", "sd of the base's"),
    "objective/kl": ("KL to the base, on the step's responses", "nats per response"),
    "eval/scores": ("score on held-out prompts", "sd of the base's"),
    "eval/kl": ("KL to the base on held-out prompts", "nats per response"),
    "objective/gold": ("score of the judge that labelled", ""),
}
#: Values of vLLM's --max-lora-rank (its vllm/config/lora.py).
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MODELFILE_NOTE = (
    "Ollama's prompts then have the tokens that the model learned with: the Modelfile contains the chat template, the system\n"
    "prompt and the sampling of the run. Other servers read the chat template and get the system prompt from you. The lab\n"
    "reads a control token that somebody types as text; servers read it as a control token.\n"
)
COLUMN_DESCRIPTIONS = {
    "prompt": "what the texts answer or continue",
    "chosen": "the preferred text (of a tie: the first one)",
    "rejected": "the other text (of a tie: the second one)",
    "tie": "nobody won: leave such rows out, or train them with the target 0.5",
    "both_bad": "the annotator found both bad; tie is true as well",
    "choice": "first, second, tie or both_bad; first and second name the texts, not the sides of the screen",
    "source": "human, or simulated: a program's vote",
    "annotator": "who voted; a nickname",
    "first_on_left": "which text stood on the left; null where nobody knows",
    "response_ms": "from showing to voting; null where no clock ran",
    "created_at": "seconds since 1970",
    "strength": "slightly, clearly or much better; null where it was not said",
    "note": "the annotator's words",
    "repeat": "a second look at the same pair with the sides swapped: it measures the annotator and is no further label",
    "adjudication": "an expert's decision on a pair that people disagreed about: the label of that pair, in place of the votes",
    "gold": "the known answer of a gold pair, on which people's answers were measured; empty for other pairs",
    "via": "page, api or import",
    "uuid": "of the vote",
    "pair_id": "votes of several people on the same two texts share it",
    "reason": "why the two texts were put side by side",
    "split": "the prompt's part in the project: train, or eval",
    "system": "the system prompt before the prompt; empty where the prompt begins with a message of the system",
    "checkpoint_chosen": "what wrote the chosen text",
    "checkpoint_rejected": "what wrote the rejected text",
    "seed_chosen": "its seed",
    "seed_rejected": "its seed",
    "chosen_ids": "token ids as sampled, for the model named below",
    "rejected_ids": "token ids as sampled, for the model named below",
    "model_hash": "SHA-256 of the weights that the ids belong to",
}
#: Kind of a column (`tabular.column_kind`) -> its type in the header of a card.
FEATURE_LINES = {
    "text": "    dtype: string\n", "bool": "    dtype: bool\n", "int": "    dtype: int64\n", "float": "    dtype: float64\n",
    "ids": "    list: int64\n",
    "chat": "    list:\n    - name: role\n      dtype: string\n    - name: content\n      dtype: string\n",
}  # fmt: skip
CSV_NOTE = (
    " It is a CSV: prompt, chosen, rejected and system are exactly the texts, which a spreadsheet may take for formulas; in the "
    "other columns an apostrophe keeps it from that, and the lab's import takes the apostrophe away. The words null, None and "
    "NaN are texts, as the header of this card says; other programs need an option for this (pandas: keep_default_na=False). "
    "A missing text is an empty one."
)
SIZE_CATEGORIES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


@dataclass(frozen=True)
class DatasetFacts:
    """Facts for the card of a data set. The votes_by dicts (value -> count) are empty for TRL's layouts.

    digest: SHA-256 of the data file. ties_left_out: votes that the export leaves out because they choose neither text.
    """

    project: Project
    options: LabelExportOptions
    data_file: str
    row_count: int
    columns: tuple[str, ...]
    digest: str
    ties_left_out: int
    votes_by_source: dict[str, int] = field(default_factory=dict)
    votes_by_annotator: dict[str, int] = field(default_factory=dict)
    votes_by_choice: dict[str, int] = field(default_factory=dict)

    @property
    def config_name(self) -> str:
        """Names the data, because `datasets` keeps what it has read under the names of folder and configuration."""
        return f"labels-{self.digest[:12]}"


def _reading_options(facts: DatasetFacts) -> str:
    """Lines of the card's header that say how the file is read: the types of columns, and in CSV that a text is never missing.

    Without types, a column that is empty at the beginning of a long file is an error of `datasets` where its first value comes.
    """
    if facts.options.format == "parquet":  # holds its types
        return ""
    is_csv = facts.options.format == "csv"
    kinds = {name: "text" if is_csv else column_kind(name, is_chat=facts.options.messages) for name in facts.columns}
    kinds |= {name: COLUMN_TYPES[name] for name in facts.columns if is_csv and COLUMN_TYPES.get(name, "ids") != "ids"}
    features = "".join(f"  - name: {name}\n{FEATURE_LINES[kind]}" for name, kind in kinds.items())
    if not is_csv:
        return f"  features:\n{features}"
    may_be_missing = "".join(f"    {name}: ['']\n" for name, kind in kinds.items() if kind != "text")
    missing = f"  na_values:\n{may_be_missing}" if may_be_missing else ""
    return (
        f"  keep_default_na: false\n{missing}dataset_info:\n  config_name: {facts.config_name}\n  features:\n{features}"
    )


def dataset_card(facts: DatasetFacts) -> str:
    """Markdown with a YAML header for the Hub."""
    size_category = next((category for limit, category in SIZE_CATEGORIES if facts.row_count < limit), "n>1M")
    simulated = facts.votes_by_source.get("simulated", 0)
    warning = (
        f"\n**{simulated:,} of the votes are simulated**: a program scored the texts, nobody read them.\n"
        if simulated
        else ""
    )
    return f"""---
tags:
- preference
- rlhf
- trl
size_categories:
- {size_category}
configs:
- config_name: {facts.config_name}
  default: true
  data_files:
  - split: train
    path: {facts.data_file}
{_reading_options(facts)}---

# Preferences of project {facts.project.id}

{facts.row_count:,} rows: which of two texts is better. Collected with RLHF Lab {__version__}.
{warning}
```python
from pathlib import Path

from datasets import load_dataset

data = load_dataset(str(Path.cwd()), split="train")  # run in this folder; elsewhere give its path, or its id on the Hub
```

{_format_description(facts)}

## Columns

| column | what it says |
|---|---|
{_column_table(facts)}

## Where it comes from

| | |
|---|---|
| texts written by | `{_model_name(facts)}` and its fine-tuned checkpoints, unless the checkpoint columns say "imported" |
| SHA-256 of the weights | `{facts.project.model_hash or "not recorded"}` |
| prompt set | `{portable_name(facts.project.prompt_set)}` |
{_vote_table(facts)}
{_sampled_with(facts.project)}{_place_of_system_prompt(facts)}
`provenance.json` holds the same for programs, with the file's SHA-256. The texts are a language model's: nobody checked them for
truth or decency. Choose a licence before you publish this.
"""


def _format_description(facts: DatasetFacts) -> str:
    options = facts.options
    layout_text = {
        "training": "One row a label that a training uses: no hidden repeats, an expert's decision in place of the votes",
        "votes": "One row a vote, ties among them (`tie`)",
        "explicit": "TRL's format with an explicit prompt, a row a vote",
        "implicit": "TRL's format with an implicit prompt, a row a vote",
    }[options.layout]
    phrases = [layout_text, "conversational" if options.messages else "standard (texts, no chats)"]
    if options.drops_ties:
        phrases.append(f"without ties ({facts.ties_left_out:,} left out)")
    if options.agreement:
        phrases.append(f"only votes that at least {options.agreement:.0%} of the pair's votes agree with")
    return ", ".join(phrases) + "." + (CSV_NOTE if options.format == "csv" else "")


def _column_table(facts: DatasetFacts) -> str:
    return "\n".join(f"| `{name}` | {COLUMN_DESCRIPTIONS[name]} |" for name in facts.columns)


def _place_of_system_prompt(facts: DatasetFacts) -> str:
    if not facts.project.system_prompt:
        return ""
    if facts.options.messages:
        if not facts.options.system_role:
            return "Each row begins with it, in the first message of the user: the chat template has no other place for it.\n"
        return "Each row begins with it, as the message of the system.\n"
    if "system" in facts.columns:
        return "It is in the column `system`.\n"
    return "These columns cannot hold it; an export with `--messages` does.\n"


def _model_name(facts: DatasetFacts) -> str:
    return "RLHF Lab's embedded model" if facts.project.model == EMBEDDED_MODEL else portable_name(facts.project.model)


def _vote_table(facts: DatasetFacts) -> str:
    if not facts.votes_by_source:
        return ""
    votes = ", ".join(f"{n:,} {name}" for name, n in facts.votes_by_source.items())
    choices = ", ".join(f"{n:,} {name}" for name, n in facts.votes_by_choice.items())
    return f"| votes | {votes} by {len(facts.votes_by_annotator):,} annotator(s) |\n| choices | {choices} |\n"

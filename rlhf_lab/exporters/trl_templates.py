"""Texts of a recipe for TRL: train.py, reward.py and README."""

import json
import textwrap
from dataclasses import dataclass
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.common.records import Project
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.exporters.card_parts import code_span, in_line
from rlhf_lab.exporters.reward_functions import NO_FUNCTIONS, PROMPT_COLUMN, ExportedFunctions
from rlhf_lab.exporters.reward_model_card import RewardModelFacts, scoring_code
from rlhf_lab.exporters.trl_settings import TRL_VERSION, TrlSettings


@dataclass(frozen=True)
class RecipeFacts:
    """What the texts of a recipe say.

    title: of what it is made. model: as train.py loads it. rows: of the data. reward: the reward model of reward.py, functions:
    those of reward.py; trainers that learn from preferences have neither. notes: sentences about what is not translated.
    """

    title: str
    model: str
    project: Project
    settings: TrlSettings
    rows: list[dict[str, Any]]
    reward: RewardModelFacts | None = None
    functions: ExportedFunctions = NO_FUNCTIONS
    notes: tuple[str, ...] = ()

    @property
    def is_online(self) -> bool:
        return self.settings.prompts_per_step > 0

    @property
    def is_chat(self) -> bool:
        return isinstance(self.rows[0]["prompt"], list)

    @property
    def needs_template_column(self) -> bool:
        """Whether the data have a column with arguments of the chat template: trainers that sample have a setting for it."""
        return self.is_chat and not self.is_online and bool(self.project.template_arguments)


def train_script(facts: RecipeFacts) -> str:
    settings, name = facts.settings, facts.settings.trainer
    arguments = {argument.name: argument.value for argument in settings.arguments}
    template_arguments = dict(facts.project.template_arguments)
    if facts.is_online and facts.is_chat and template_arguments:
        arguments["chat_template_kwargs"] = template_arguments
    lines = "".join(f"    {key}={_python(value)},\n" for key, value in arguments.items())
    rank, alpha = settings.lora
    task = 'task_type="SEQ_CLS", modules_to_save=["score"]' if name == "Reward" else 'task_type="CAUSAL_LM"'
    changes = ""
    if facts.needs_template_column:
        changes += f'data = data.add_column("chat_template_kwargs", [{_python(template_arguments)}] * len(data))\n'
    if settings.prompts_per_step > len(facts.rows):
        repeats = -(-settings.prompts_per_step // len(facts.rows))
        changes += f"data = data.repeat({repeats})  # a step takes {settings.prompts_per_step} prompts\n"
    padding, reward = (', padding_side="left"', " reward_funcs=reward,") if facts.is_online else ("", "")
    import_reward = "\nfrom reward import reward\n" if facts.is_online else ""
    return f'''"""{_in_docstring(facts.title)} of RLHF Lab: `python train.py`, or `python train.py 2` for two steps."""

import sys

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import {name}Config, {name}Trainer
{import_reward}
MODEL = {_python(facts.model)}

tokenizer = AutoTokenizer.from_pretrained(MODEL{padding})
data = load_dataset("json", data_files="data/train.jsonl", split="train")
{changes}lora = LoraConfig(r={rank}, lora_alpha={alpha}, lora_dropout=0.0, target_modules="all-linear", {task})
args = {name}Config(
    output_dir="output",
{lines})
if len(sys.argv) > 1:
    args.max_steps = int(sys.argv[1])
trainer = {name}Trainer(
    MODEL,{reward} args=args, train_dataset=data, processing_class=tokenizer, peft_config=lora
)
trainer.train()
trainer.save_model("output/final")
trainer.save_state()  # output/trainer_state.json: the metrics of every step
'''


@dataclass(frozen=True)
class RewardFacts:
    """What reward.py computes.

    model: None for a reward of functions alone; folder: of its files; weight: of its score. base: of the tokenizer. unit: mean
    and sd of the weighted sums of the base's responses, None if they were not measured. end_ids: that end a response.
    """

    project: Project
    base: str
    model: RewardModelFacts | None
    folder: str
    weight: float
    unit: tuple[float, float] | None
    has_functions: bool
    end_ids: list[int]


def reward_script(facts: RewardFacts, config: PolicyConfig) -> str:
    """reward.py: the reward that a run's policy is trained with, from token ids."""
    template_arguments = dict(facts.project.template_arguments)
    template = f", **{_python(template_arguments)}" if template_arguments else ""
    changes, clip = "", config.score_clip
    if clip is not None:
        changes += f"    rewards = [max(-{clip}, min({clip}, value)) for value in rewards]  # score_clip\n"
    if config.missing_eos_penalty:
        changes += f"""    for i, ids in enumerate(completion_ids):
        if not ids or ids[-1] not in {facts.end_ids!r}:
            rewards[i] -= {config.missing_eos_penalty}  # missing_eos_penalty
"""
    parts = [f"reward model {facts.model.row.id}"] if facts.model else []
    parts += ["functions"] if facts.has_functions else []
    unit = "0 is the mean of the base's responses, 1 their standard deviation."
    unit = unit if facts.unit or not facts.has_functions else "In the unit of its terms."
    mean, sd = facts.unit or (0.0, 1.0)
    return f'''"""The reward: {" and ".join(parts)}. {unit}"""

{_scoring(facts)}
WEIGHT, MEAN, SD = {facts.weight!r}, {mean!r}, {sd!r}  # of the reward model; mean and sd of the base's weighted sums


def encode_prompt(prompt):
    """The ids from which TRL samples."""
    if isinstance(prompt, str):
        return tokenizer(prompt).input_ids
    encoded = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True{template})
    return encoded["input_ids"]


{_FUNCTION_CODE if facts.has_functions else ""}def reward(prompts, completion_ids, log_metric=None, **columns):
    rows = [(encode_prompt(prompt), ids) for prompt, ids in zip(prompts, completion_ids, strict=True)]
    totals = {"[WEIGHT * score_ids(*row) for row in rows]" if facts.model else "[0.0] * len(rows)"}
{_FUNCTION_LINES if facts.has_functions else ""}    rewards = [(total - MEAN) / SD for total in totals]
    if log_metric:
        log_metric("objective/scores", sum(rewards) / len(rewards))
{changes}    return rewards
'''


def _scoring(facts: RewardFacts) -> str:
    """Imports, tokenizer and, if there is a reward model, `score_ids`."""
    imports = "\nfrom reward_functions import TERMS\n" if facts.has_functions else ""
    if facts.model is None:
        return f"""from transformers import AutoTokenizer
{imports}
tokenizer = AutoTokenizer.from_pretrained({_python(facts.base)})"""
    return f"""{scoring_code(facts.model, facts.folder)}{imports}

if torch.cuda.is_available():
    base.to("cuda")"""


_FUNCTION_CODE = '''def response_text(prompt_ids, ids):
    """As in the lab: the text that the response adds to the prompt, without special tokens."""
    before, whole, alone = (
        tokenizer.decode(part, skip_special_tokens=True) for part in (prompt_ids, [*prompt_ids, *ids], ids)
    )
    return whole[len(before) :] if whole.startswith(before) else alone


'''
_FUNCTION_LINES = f"""    texts = [response_text(*row) for row in rows]
    for name, weight, function in TERMS:
        values = function(texts, columns["{PROMPT_COLUMN}"])
        if log_metric:
            log_metric(f"objective/reward/{{name}}", sum(values) / len(values))
        totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
"""


def readme(facts: RecipeFacts) -> str:
    settings = facts.settings
    rows = "\n".join(
        f"| {', '.join(f'`{name}`' for name in argument.settings) or '–'} | `{argument.name}` | `{_python(argument.value)}` |"
        for argument in (*settings.arguments, *settings.elsewhere)
    )
    rank, alpha = settings.lora
    left_out = "\n".join(f"- {text}" for text in (*settings.left_out, *facts.notes)) or "- nothing"
    return f"""# {in_line(facts.title)} with TRL {TRL_VERSION}

Written by RLHF Lab {__version__}. The training starts again from the base model, with {settings.trainer}Trainer and the
settings below. It needs Python 3.11 or newer.
{_paragraph(settings.replacement)}
```bash
python3 -m venv .venv && . .venv/bin/activate
pip install -r requirements.txt
python train.py 2    # two steps of TRL, to try it
python train.py      # all of it
```

Run it in this folder. Warnings about `gradient_checkpointing` and, without a GPU, about `pin_memory` mean nothing here. The
adapter is then in `output/final`: `{_auto_class(settings)}.from_pretrained("output/final"{_labels(settings)})` of PEFT loads it
with the base. The metrics of every step are in `output/trainer_state.json`. The lab shows them beside its own under *Runs &
data* after this command, or after *Import a run's metrics* there{_in_form(settings)}:

```bash
python -m rlhf_lab import-run THIS_FOLDER/output{_updates(settings)}
```

With several GPUs (`accelerate launch train.py`), divide `per_device_train_batch_size` or `gradient_accumulation_steps` in
train.py by their number, so that an update has as many rows.

## What is here

| | |
|---|---|
| `data/train.jsonl` | {len(facts.rows):,} {"prompts" if facts.is_online else "preferences"}, {_form(facts)} |
| base model | {"the folder `model`" if facts.model == "model" else f"`{facts.model}` of the Hub"} |
{_reward_rows(facts)}
## Settings

| in the lab | {settings.trainer}Config | value |
|---|---|---|
{rows}
| `lora_r`, `lora_alpha` | `LoraConfig` | `{rank}`, `{alpha}`, all linear layers of the decoder |

"–": not a setting of the lab; with this value TRL computes as the lab does.{_step_text(settings)}

## What is not translated

{left_out}

Not a setting, but different: the random numbers of adapter and sampling, so no step is the same; {_text_differences(facts)}.
"""


def _paragraph(text: str) -> str:
    """A paragraph below another one; "" without a text."""
    return f"\n{textwrap.fill(text, 120)}\n" if text else ""


def _auto_class(settings: TrlSettings) -> str:
    return f"AutoPeftModelFor{'SequenceClassification' if settings.trainer == 'Reward' else 'CausalLM'}"


def _labels(settings: TrlSettings) -> str:
    return ", num_labels=1" if settings.trainer == "Reward" else ""


def _updates(settings: TrlSettings) -> str:
    return f" --updates-per-step {settings.updates_per_step}" if settings.updates_per_step > 1 else ""


def _in_form(settings: TrlSettings) -> str:
    return f" ({settings.updates_per_step} updates in a step)" if settings.updates_per_step > 1 else ""


def _step_text(settings: TrlSettings) -> str:
    if settings.updates_per_step == 1:
        return ""
    return f" TRL's steps are updates: {settings.updates_per_step} (`epochs` × `minibatches`) are one step of the lab."


def _form(facts: RecipeFacts) -> str:
    if not facts.is_chat:
        begins = "; each prompt begins with the system prompt" if facts.project.system_prompt else ""
        return f"as texts, because the model has no chat template{begins}"
    system = ", the system prompt among them" if facts.project.system_prompt else ""
    if not (arguments := facts.project.template_arguments):
        return f"as chats{system}"
    span = code_span(json.dumps(dict(arguments))).replace("|", "\\|")  # in a cell of a table
    return f"as chats{system}; arguments of the chat template: {span}"


def _reward_rows(facts: RecipeFacts) -> str:
    if not facts.is_online:
        return ""
    rows = [("reward.py", "the reward, from the same token ids as in the lab and in its unit, which is written there")]
    if facts.reward is not None:
        form = "its adapter and head"
        if facts.reward.offset is not None:
            call = '`AutoModelForSequenceClassification.from_pretrained("reward_model", num_labels=1)`'
            form = f"{call}: its logit + {facts.reward.offset:.6g} is the score of the reward model"
        rows.append(("reward_model/", form))
    if facts.functions.names:
        terms = "; ".join(
            f"{in_line(label)}, weight {weight:g}, of `{file}`" for label, weight, file in facts.functions.names
        )
        copies = "copies of the run's own and the lab's functions: code, which you should read before you run it"
        rows += [("reward_functions.py", f"functions with TRL's signature: {terms}"), ("function_*.py", copies)]
    return "".join(f"| `{name}` | {text} |\n" for name, text in rows)


def _text_differences(facts: RecipeFacts) -> str:
    special = "a special token that is written in a text is encoded as that token, in the lab as text"
    if facts.is_online:
        return special
    end = "the end of the chat template" if facts.is_chat else "an end token"
    return f"{special}; TRL ends every text with {end}, in the lab a text that was cut off has none"


def _python(value: Any) -> str:
    """A value as Python source, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_python(key)}: {_python(item)}' for key, item in value.items())}}}"
    return repr(value)


def _in_docstring(text: str) -> str:
    """A text within one line of a docstring."""
    return " ".join(text.split()).replace("\\", "/").replace('"""', "'''")

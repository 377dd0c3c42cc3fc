"""The card (README.md) of an exported data set."""

from dataclasses import dataclass, field

from rlhf_lab import __version__
from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.records import Project
from rlhf_lab.exporters.card_parts import sampled_with
from rlhf_lab.exporters.json_io import portable_name
from rlhf_lab.exporters.label_export import LabelExportOptions, LeftOut
from rlhf_lab.exporters.tabular import COLUMN_TYPES, column_kind

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
    "repeat": "a second look at the same pair with the sides swapped: it measures the annotator and is not a further label",
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

    digest: SHA-256 of the data file.
    """

    project: Project
    options: LabelExportOptions
    data_file: str
    row_count: int
    columns: tuple[str, ...]
    digest: str
    left_out: LeftOut
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
{sampled_with(facts.project)}{_place_of_system_prompt(facts)}
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
        phrases.append(f"without ties ({facts.left_out.ties:,} left out)")
    if facts.left_out.gold:
        phrases.append(f"without votes on pairs with a known answer ({facts.left_out.gold:,} left out)")
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

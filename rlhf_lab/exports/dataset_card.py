"""The README of a data set of labels: what it is, how it was made, what each column says."""

from dataclasses import dataclass, field

from rlhf_lab import __version__
from rlhf_lab.assets import EMBEDDED
from rlhf_lab.exports.wanted import LabelExport
from rlhf_lab.exports.words import portable
from rlhf_lab.records import Project

COLUMNS = {
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
    "via": "page, api or import",
    "uuid": "of the vote",
    "pair_id": "votes of several people on the same two texts share it",
    "reason": "why the two texts were put side by side",
    "split": "the prompt's part in the project: train, or eval",
    "checkpoint_chosen": "what wrote the chosen text",
    "checkpoint_rejected": "what wrote the rejected text",
    "seed_chosen": "its seed",
    "seed_rejected": "its seed",
    "chosen_ids": "token ids as sampled, for the model named below",
    "rejected_ids": "token ids as sampled, for the model named below",
    "model_hash": "SHA-256 of the weights that the ids belong to",
}
IN_A_CSV = (
    " It is a CSV: prompt, chosen and rejected are exactly the texts, which a spreadsheet may take for formulas; in the other "
    "columns an apostrophe keeps it from that, and the lab's import takes the apostrophe away."
)
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


@dataclass(frozen=True)
class DatasetFacts:
    """What a card says. votes: by source and by annotator; choices: first, second, tie, both_bad (empty for TRL's layouts)."""

    project: Project
    wanted: LabelExport
    file: str
    rows: int
    columns: tuple[str, ...]
    sources: dict[str, int] = field(default_factory=dict)
    annotators: dict[str, int] = field(default_factory=dict)
    choices: dict[str, int] = field(default_factory=dict)


def card(facts: DatasetFacts) -> str:
    """Markdown with the YAML head that the Hub reads."""
    size = next((words for most, words in SIZES if facts.rows < most), "n>1M")
    simulated = facts.sources.get("simulated", 0)
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
- {size}
configs:
- config_name: default
  data_files:
  - split: train
    path: {facts.file}
---

# Preferences of project {facts.project.id}

{facts.rows:,} rows: which of two texts is better. Collected with RLHF Lab {__version__}.
{warning}
```python
from datasets import load_dataset

data = load_dataset(".", split="train")  # this folder, or its id on the Hub
```

{_how(facts)}

## Columns

| column | what it says |
|---|---|
{_columns(facts)}

## Where it comes from

| | |
|---|---|
| texts written by | `{_model(facts)}` and its fine-tuned checkpoints, unless the checkpoint columns say "imported" |
| SHA-256 of the weights | `{facts.project.model_hash or "not recorded"}` |
| prompt set | `{portable(facts.project.prompt_set)}` |
{_people(facts)}
`provenance.json` holds the same for programs, with the file's SHA-256. The texts are a language model's: nobody checked them for
truth or decency. Choose a licence before you publish this.
"""


def _how(facts: DatasetFacts) -> str:
    wanted = facts.wanted
    shape = {"votes": "One row a vote, ties among them (`tie`)", "explicit": "TRL's format with an explicit prompt, a row a vote",
             "implicit": "TRL's format with an implicit prompt, a row a vote"}[wanted.layout]  # fmt: skip
    parts = [shape, "conversational" if wanted.messages else "standard (texts, no chats)"]
    if wanted.drops_ties:
        parts.append("without ties")
    if wanted.agreement:
        parts.append(f"only votes that at least {wanted.agreement:.0%} of the pair's votes agree with")
    return ", ".join(parts) + "." + (IN_A_CSV if wanted.format == "csv" else "")


def _columns(facts: DatasetFacts) -> str:
    return "\n".join(f"| `{name}` | {COLUMNS[name]} |" for name in facts.columns)


def _model(facts: DatasetFacts) -> str:
    return "RLHF Lab's embedded model" if facts.project.model == EMBEDDED else portable(facts.project.model)


def _people(facts: DatasetFacts) -> str:
    if not facts.sources:
        return ""
    votes = ", ".join(f"{n:,} {name}" for name, n in facts.sources.items())
    choices = ", ".join(f"{n:,} {name}" for name, n in facts.choices.items())
    return f"| votes | {votes} by {len(facts.annotators):,} annotator(s) |\n| choices | {choices} |\n"

"""The model card of the embedded model: how it was made, and what its samples are like, measured."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_lab.assets import PROMPT_SETS
from rlhf_lab.judges import JUDGES
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.pretrain.corpus import prompt_list
from rlhf_lab.pretrain.mistakes import never_side_by_side, strange_names, unwritable
from rlhf_lab.pretrain.reading import document
from rlhf_lab.pretrain.train import PretrainConfig, held_out
from rlhf_lab.seeds import derive
from rlhf_lab.trainers.evaluation import Written, write

SAMPLES = 1000
COPIES_CHECKED = 100
LENGTH = 64
Say = Callable[[str], None]


def measure(backbone: Backbone, config: PretrainConfig, corpus: Path, say: Say) -> dict[str, Any]:
    """Figures over 1,000 samples at temperature 1 for prompts that training did not fix."""
    say("writing 1,000 samples")
    each = -(-SAMPLES // len(PROMPT_SETS))
    prompts = [p for name in PROMPT_SETS for p in prompt_list(name, each, derive(config.seed, "card"))][:SAMPLES]
    written = write(backbone, prompts, seed=config.seed, purpose="card", max_new_tokens=LENGTH)
    ended = [row[-1] in backbone.eos_ids for row in written.tokens]
    say("looking for copies of the training text")
    step = len(prompts) // COPIES_CHECKED
    runs = longest_runs([written.texts[i * step].strip() for i in range(COPIES_CHECKED)], corpus)
    say("looking for mistakes")
    lines = [document(prompt, text.strip()) for prompt, text in zip(prompts, written.texts, strict=True)]
    sets = {name: slice(i * each, (i + 1) * each) for i, name in enumerate(PROMPT_SETS)}
    broken = [x for name, part in sets.items() for x in unwritable(name, written.texts[part], ended[part])]
    odd = never_side_by_side([*lines, *held_out(config)], corpus)
    say("asking the judges")
    return {
        "samples": len(prompts),
        "ended_within_64": share(ended),
        "distinct": len(set(written.texts)) / len(prompts),
        "mean_tokens": sum(map(len, written.tokens)) / len(prompts),
        "copied_whole": sum(run["whole"] for run in runs),
        "longest_common_run_words": max(run["words"] for run in runs),
        "median_common_run_words": sorted(run["words"] for run in runs)[len(runs) // 2],
        "strange_names": share(strange_names(prompts[sets["tales"]], written.texts[sets["tales"]])),
        "unwritable": share(broken),
        "odd_pairs": share(odd[: len(lines)]),
        "odd_pairs_corpus": share(odd[len(lines) :]),
        "told_apart": told_apart(backbone, config),
    }


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


def longest_runs(texts: list[str], corpus: Path) -> list[dict[str, int]]:
    """For each text: the longest run of consecutive words that stands in the training text, and whether it is all of it."""
    training = corpus.read_text(encoding="utf-8")
    found = []
    for text in texts:
        words = text.split()
        best = 0
        for start in range(len(words)):
            while start + best < len(words) and " ".join(words[start : start + best + 1]) in training:
                best += 1
        found.append({"words": best, "whole": int(f" {text}\n" in training)})
    return found


def told_apart(backbone: Backbone, config: PretrainConfig, count: int = 200) -> dict[str, dict[str, float]]:
    """For each prompt set and judge, the share of same-prompt sample pairs that the judge does not tie."""
    shares: dict[str, dict[str, float]] = {}
    for name in PROMPT_SETS:
        prompts = prompt_list(name, count, derive(config.seed, "pairs"))
        sides: list[Written] = [
            write(backbone, prompts, seed=config.seed, purpose=f"card {side}", max_new_tokens=LENGTH) for side in (0, 1)
        ]
        shares[name] = {
            judge.name: sum(
                judge.score(a) != judge.score(b) for a, b in zip(sides[0].texts, sides[1].texts, strict=True)
            )
            / count
            for judge in JUDGES.values()
        }
    return shares


def card(config: PretrainConfig, trained: dict[str, float], figures: dict[str, Any], digest: str) -> str:
    """The text of README.md in the model's folder."""
    apart = "\n".join(
        f"| {name} | " + " | ".join(f"{share:.0%}" for share in by_judge.values()) + " |"
        for name, by_judge in figures["told_apart"].items()
    )
    judges = list(next(iter(figures["told_apart"].values())))
    third = (
        f"A third pass over {config.third_texts:,} gives nothing to any token that the grammar could not write at its place\n"
        "and leaves out every response that was read before. "
        if config.third_texts
        else ""
    )
    computed = "bfloat16 autocast" if config.precision == "bfloat16" else "float32"
    return f"""# The embedded model of RLHF Lab

A Llama of {trained["parameters"] / 1e6:.2f} million parameters that writes tiny tales, support replies and reviews. It exists so
that the whole loop of reinforcement learning from human feedback runs live on two CPU cores, without a download.

**Not for any other use**: it knows {config.vocab} tokens and nothing of the world.

## Corpus

Every text was written by the grammar in `rlhf_lab/pretrain` (hand-written phrases, no external text), fresh for each update
and read once: {config.texts:,} texts, a third for each prompt set. Mood, length, dialogue, detail and politeness are drawn
independently of the prompt, so that two samples for one prompt usually differ in something a person cares about.

## Recipe

`python -m rlhf_lab pretrain --out DIR` makes it again. Byte-level BPE; Muon for the matrices, AdamW for the rest; {computed}
on the CPU. A second, short pass over {config.second_texts:,} fresh texts adds two terms to the loss: the right
name where a text repeats one, and nothing for words that never follow in the corpus. {third}The temperature {config.sharpen:g} is
built into the last norm afterwards, which takes more of the thin tail of wrong words away. {trained["seconds"] / 60:.0f}
minutes on 2 cores for the shipped weights.

```json
{json.dumps(dataclasses.asdict(config))}
```

## Figures

| what | value |
|---|---|
| held-out perplexity, per token | {trained["held_out_perplexity"]:.3f} \
({trained["held_out_perplexity_unsharpened"]:.3f} before the temperature {config.sharpen:g} was built in) |
| training loss at the end, nats per token | {trained["loss"]:.3f} |
| samples at temperature 1 | {figures["samples"]:,} |
| ended by themselves within {LENGTH} tokens | {figures["ended_within_64"]:.1%} |
| distinct | {figures["distinct"]:.1%} |
| mean length | {figures["mean_tokens"]:.1f} tokens |
| of {COPIES_CHECKED} samples, copied whole from the training text | {figures["copied_whole"]} |
| tales with a hero's name that the prompt does not know | {figures["strange_names"]:.1%} |
| samples that the grammar could not have written, whatever the mood and the prompt (its own texts: none) | \
{figures["unwritable"]:.1%} |
| samples with two words side by side that stand so nowhere in the training text (texts of the grammar kept aside) | \
{figures["odd_pairs"]:.1%} ({figures["odd_pairs_corpus"]:.1%}) |
| longest run of words shared with the training text (longest, median of {COPIES_CHECKED}) | \
{figures["longest_common_run_words"]}, {figures["median_common_run_words"]} |

Share of same-prompt pairs of samples that a simulated judge can tell apart (the judges' word lists are independent of the
grammar):

| prompts | {" | ".join(judges)} |
|---|{"---|" * len(judges)}
{apart}

SHA-256 of the weights: `{digest}`
"""

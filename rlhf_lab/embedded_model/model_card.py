"""The model card of the embedded model: recipe and measurements of samples."""

import dataclasses
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from rlhf_lab.common.bundled_assets import EMBEDDED_PROMPT_SETS
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.embedded_model.corpus import generate_prompts, join_document
from rlhf_lab.embedded_model.sample_checks import (
    has_unseen_bigram,
    longest_overlaps,
    names_not_in_prompt,
    not_in_grammar,
)
from rlhf_lab.embedded_model.train import PretrainConfig, held_out_texts
from rlhf_lab.judges.builtin import JUDGES
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.training.evaluation import SampledResponses, sample_responses

SAMPLE_COUNT = 1000
COPIES_CHECKED = 100
MAX_NEW_TOKENS = 64
StatusCallback = Callable[[str], None]


def measure_samples(
    backbone: Backbone, config: PretrainConfig, corpus: Path, on_status: StatusCallback
) -> dict[str, Any]:
    """Measurements on 1,000 samples at temperature 1 for fresh prompts."""
    on_status("writing 1,000 samples")
    per_set = -(-SAMPLE_COUNT // len(EMBEDDED_PROMPT_SETS))
    prompts = [
        p for name in EMBEDDED_PROMPT_SETS for p in generate_prompts(name, per_set, derive_seed(config.seed, "card"))
    ]
    prompts = prompts[:SAMPLE_COUNT]
    samples = sample_responses(
        backbone, prompts, seed=config.seed, purpose="card", max_new_tokens=MAX_NEW_TOKENS, temperature=1.0
    )
    ended = [row[-1] in backbone.eos_ids for row in samples.tokens]
    on_status("looking for copies of the training text")
    stride = len(prompts) // COPIES_CHECKED
    overlaps = longest_overlaps([samples.texts[i * stride].strip() for i in range(COPIES_CHECKED)], corpus)
    on_status("looking for mistakes")
    documents = [join_document(prompt, text.strip()) for prompt, text in zip(prompts, samples.texts, strict=True)]
    set_slices = {name: slice(i * per_set, (i + 1) * per_set) for i, name in enumerate(EMBEDDED_PROMPT_SETS)}
    unwritable_flags = [
        x
        for name, set_slice in set_slices.items()
        for x in not_in_grammar(name, samples.texts[set_slice], ended[set_slice])
    ]
    unseen_bigram_flags = has_unseen_bigram([*documents, *held_out_texts(config)], corpus)
    on_status("asking the judges")
    return {
        "samples": len(prompts),
        "ended_within_64": fmean(ended),
        "distinct": len(set(samples.texts)) / len(prompts),
        "mean_tokens": sum(map(len, samples.tokens)) / len(prompts),
        "copied_whole": sum(overlap["whole"] for overlap in overlaps),
        "longest_common_run_words": max(overlap["words"] for overlap in overlaps),
        "median_common_run_words": sorted(overlap["words"] for overlap in overlaps)[len(overlaps) // 2],
        "strange_names": fmean(names_not_in_prompt(prompts[set_slices["tales"]], samples.texts[set_slices["tales"]])),
        "unwritable": fmean(unwritable_flags),
        "odd_pairs": fmean(unseen_bigram_flags[: len(documents)]),
        "odd_pairs_corpus": fmean(unseen_bigram_flags[len(documents) :]),
        "told_apart": judge_discrimination(backbone, config),
    }


def judge_discrimination(backbone: Backbone, config: PretrainConfig, count: int = 200) -> dict[str, dict[str, float]]:
    """For each prompt set and judge, the share of same-prompt pairs of samples with different scores."""
    shares: dict[str, dict[str, float]] = {}
    for name in EMBEDDED_PROMPT_SETS:
        prompts = generate_prompts(name, count, derive_seed(config.seed, "pairs"))
        sides: list[SampledResponses] = [
            sample_responses(
                backbone,
                prompts,
                seed=config.seed,
                purpose=f"card {side}",
                max_new_tokens=MAX_NEW_TOKENS,
                temperature=1.0,
            )
            for side in (0, 1)
        ]
        shares[name] = {
            judge.name: sum(
                judge.score(prompt, a) != judge.score(prompt, b)
                for prompt, a, b in zip(prompts, sides[0].texts, sides[1].texts, strict=True)
            )
            / count
            for judge in JUDGES.values()
            if judge.prompt_set in EMBEDDED_PROMPT_SETS
        }
    return shares


def render_card(
    config: PretrainConfig, training_stats: dict[str, float], measurements: dict[str, Any], digest: str
) -> str:
    """The README.md of the model folder."""
    third_pass = (
        f"A third pass over {config.third_texts:,} texts penalises every token that the grammar could not write at its\n"
        "place, and leaves out every response that was read before. "
        if config.third_texts
        else ""
    )
    arithmetic = "bfloat16 autocast" if config.precision == "bfloat16" else "float32"
    parameters, minutes = training_stats["parameters"], training_stats["seconds"] / 60
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# The embedded model of RLHF Lab

A Llama of {parameters / 1e6:.2f} million parameters that writes tiny tales, support replies and reviews. It exists so
that the whole loop of reinforcement learning from human feedback runs live on two CPU cores, without a download.

**Not for any other use**: it has {config.vocab} tokens and no knowledge of the world.

## Corpus

Every text was generated by the grammar in `rlhf_lab/embedded_model` (hand-written phrases, no external text) and read
once: {config.texts:,} texts, a third for each prompt set. Mood, length, dialogue, detail and politeness are drawn
independently of the prompt, so that two samples for one prompt usually differ in something a person cares about.

## Recipe

`python -m rlhf_lab pretrain --out DIR` makes it again. Byte-level BPE; Muon for the matrices, AdamW for the rest; {arithmetic}
on the CPU. A second, short pass over {config.second_texts:,} fresh texts adds two terms to the loss: one for the right
name where a text repeats a name, and one against words that never follow in the corpus. {third_pass}Finally, the last
norm is scaled by a temperature of {config.sharpen:g}, which makes wrong words still rarer. {minutes:.0f} minutes on 2
cores for the shipped weights.

```json
{textwrap.fill(json.dumps(dataclasses.asdict(config)), 120)}
```

## Figures

{_figures_table(config, training_stats, measurements)}
Share of same-prompt pairs of samples that a simulated judge can tell apart (the judges' word lists are independent of the
grammar):

{_discrimination_table(measurements["told_apart"])}

SHA-256 of the weights: `{digest}`
"""


def _figures_table(config: PretrainConfig, training_stats: dict[str, float], measurements: dict[str, Any]) -> str:
    return f"""| what | value |
|---|---|
| held-out perplexity, per token | {training_stats["held_out_perplexity"]:.3f} \
({training_stats["held_out_perplexity_unsharpened"]:.3f} before the temperature {config.sharpen:g} was built in) |
| training loss at the end, nats per token | {training_stats["loss"]:.3f} |
| samples at temperature 1 | {measurements["samples"]:,} |
| ended by themselves within {MAX_NEW_TOKENS} tokens | {measurements["ended_within_64"]:.1%} |
| distinct | {measurements["distinct"]:.1%} |
| mean length | {measurements["mean_tokens"]:.1f} tokens |
| of {COPIES_CHECKED} samples, copied whole from the training text | {measurements["copied_whole"]} |
| tales with a hero's name that is not in the prompt | {measurements["strange_names"]:.1%} |
| samples that the grammar could not have written, whatever the mood and the prompt (texts of the grammar: none) | \
{measurements["unwritable"]:.1%} |
| samples with a pair of adjacent words that is not in the training text (held-out texts of the grammar) | \
{measurements["odd_pairs"]:.1%} ({measurements["odd_pairs_corpus"]:.1%}) |
| longest run of words shared with the training text (longest, median of {COPIES_CHECKED}) | \
{measurements["longest_common_run_words"]}, {measurements["median_common_run_words"]} |
"""


def _discrimination_table(shares: dict[str, dict[str, float]]) -> str:
    judges = list(next(iter(shares.values())))
    header = [f"| prompts | {' | '.join(judges)} |", f"|---|{'---|' * len(judges)}"]
    rows = [f"| {name} | {' | '.join(f'{x:.0%}' for x in by_judge.values())} |" for name, by_judge in shares.items()]
    return "\n".join([*header, *rows])

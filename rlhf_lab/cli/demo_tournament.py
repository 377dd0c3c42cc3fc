"""`demo --tournament`: a judge compares the base, best of 4 and the run's checkpoints on blind pairs."""

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from rlhf_lab.common.checkpoint_index import checkpoint_steps
from rlhf_lab.common.paths import run_folder
from rlhf_lab.common.records import Project, TournamentAnswer
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.common.text import pluralize
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.tournament import sample_contestants
from rlhf_lab.judges.builtin import Judge, prefer
from rlhf_lab.quality.tournament import Contestant, choose_pair, contestants_of, rank_contestants, win_matrix
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import get_run

MAX_PROMPTS = 32
MAX_ANSWERS = 200
MAX_CHECKPOINTS = 6  # with the base and best of 4 there are at most eight contestants


def run_tournament(
    model_cache: ModelCache,
    project: Project,
    run_id: int,
    judge: Judge,
    *,
    noise: float = 0.0,
    max_new_tokens: int | None,
) -> dict[str, Any]:
    """Let the judge answer up to MAX_ANSWERS pairs, which are chosen in the same way as for people. A live run has no stored
    reward model, so neither best of 4 nor rewards.

    Returns:
        A dict with the keys "prompts" and "answers" (counts), "contestants" (best first, each with the fields of `Standing`; None
        for a score that the answers do not determine and an end that they do not limit), "models" (the contestants in the order
        of the matrix) and "wins" ([i][j] how often i was preferred to j; ties count half).
    """
    run = get_run(model_cache.db, run_id)
    steps = [step for step in checkpoint_steps(run_folder(model_cache.home, run_id)) if step > 0]
    request = {
        "contestants": [
            "base",
            *(["base/best/4"] if run.reward_model_id is not None else []),
            *(f"run/{run_id}/{step}" for step in evenly_spaced(steps, MAX_CHECKPOINTS)),
        ],
        "prompts": [prompt.text for prompt in prompts(model_cache.db, project.id, "eval")[:MAX_PROMPTS]],
        "seed": project.seed,
        "max_new_tokens": max_new_tokens,
        "reward_model_id": run.reward_model_id,
    }
    result = sample_contestants(model_cache, project, request)
    contestants, prompt_texts = contestants_of(result), result["prompts"]
    assert isinstance(prompt_texts, list)
    answers = judge_pairs(contestants, prompt_texts, judge, noise, project.seed)
    gold = [list(map(judge.score, prompt_texts, contestant.texts)) for contestant in contestants]
    return {
        "prompts": len(prompt_texts),
        "answers": len(answers),
        "contestants": list(map(dataclasses.asdict, rank_contestants(contestants, answers, gold))),
        "models": [contestant.model for contestant in contestants],
        "wins": win_matrix(len(contestants), answers).tolist(),
    }


def judge_pairs(
    contestants: Sequence[Contestant], prompt_texts: Sequence[str], judge: Judge, noise: float, seed: int
) -> list[TournamentAnswer]:
    """The judge's answers to the pairs chosen by `choose_pair`."""
    rng, answers = random.Random(derive_seed(seed, "tournament", judge.name)), list[TournamentAnswer]()
    while len(answers) < MAX_ANSWERS and (key := choose_pair(contestants, answers, judge.name, math.inf)):
        first, second = (contestants[i].texts[key.position] for i in (key.first, key.second))
        choice = prefer(judge, prompt_texts[key.position], first, second, noise=noise, rng=rng)
        answers.append(TournamentAnswer(judge.name, *key, choice, float(len(answers))))
    return answers


def evenly_spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most `count` of the steps, evenly spaced, including the last."""
    count = min(count, len(steps))
    return [steps[round((i + 1) * len(steps) / count) - 1] for i in range(count)]


def score_text(row: dict[str, Any]) -> str:
    """ "+1.00 (+0.10 to +1.90)", "above +0.10", "below −0.10"; the page shows the same (ui/compare/tournament/view.js)."""
    score, low, high = row["score"], row["low"], row["high"]
    if score is None:
        return "not compared with the base"
    if low is None and high is None:
        return "too few answers for a score"
    if high is None:
        return f"above {low:+.2f}"
    if low is None:
        return f"below {high:+.2f}"
    return f"{score:+.2f} ({low:+.2f} to {high:+.2f})"


def figures_text(row: dict[str, Any]) -> str:
    """ "KL 0.50, reward +1.00, gold +2.00", without what was not measured."""
    figures = (("KL", row["kl"], ".2f"), ("reward", row["reward"], "+.2f"), ("gold", row["gold"], "+.2f"))
    return ", ".join(f"{name} {value:{form}}" for name, value, form in figures if value is not None)


def format_tournament(result: dict[str, Any]) -> list[str]:
    """The ranking and win rates as lines of text."""
    rows, names = result["contestants"], {row["contestant"]: row["name"] for row in result["contestants"]}
    width = max(map(len, names.values()))
    lines = [
        f"tournament: {pluralize(result['answers'], 'answer')} to pairs of {pluralize(result['prompts'], 'prompt')}; "
        "score: log-odds of being preferred to the base, with its 95 % interval",
        *(
            f"  {'–' if row['score'] is None else rank}. {row['name']:{width}} {score_text(row)}, {figures_text(row)}"
            for rank, row in enumerate(rows, 1)
        ),
        "  preferred, row over column: " + ", ".join(f"{i + 1} {name}" for i, name in sorted(names.items())),
    ]
    for i, wins in enumerate(result["wins"]):
        totals = [won + result["wins"][j][i] for j, won in enumerate(wins)]
        cells = [f"{won / total:.0%}" if total else "–" for won, total in zip(wins, totals, strict=True)]
        lines.append(f"  {i + 1} " + " ".join(f"{cell:>5}" for cell in cells))
    return lines

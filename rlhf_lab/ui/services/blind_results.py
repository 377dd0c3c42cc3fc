"""How a blind test came out, in words: for one person, for everybody, and in the eyes of the reward model."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rlhf_lab.common.enums import Choice
from rlhf_lab.common.stats import MIN_CLUSTERS, clustered_interval, wilson_interval
from rlhf_lab.common.text import pluralize


class BlindPair(NamedTuple):
    """What both models wrote to one prompt, and what the reward model gave them; None without one."""

    prompt: str
    first: str
    second: str
    scores: tuple[float, float] | None


class ChoiceCounts(NamedTuple):
    """Answers by what they said."""

    first: int
    second: int
    ties: int


def test_outcome(
    pairs: dict[int, BlindPair],
    answers: dict[str, dict[int, Choice]],
    annotator: str,
    names: list[str],
    reward_model_id: int | None,
) -> dict[str, Any]:
    """How a test came out for one person, for everybody, and in the eyes of the reward model on the pairs that person judged."""
    own_answers = {
        position: choice for position, choice in answers.get(annotator, {}).items() if choice is not Choice.SKIP
    }
    sentences = [f"You {preference_sentence(count_choices(own_answers.values()), names)}"]
    all_answers = [
        their_answers
        for their_answers in answers.values()
        if any(choice is not Choice.SKIP for choice in their_answers.values())
    ]
    if len(all_answers) > 1:
        counts_per_pair = [
            count_choices(their_answers.get(position, Choice.SKIP) for their_answers in all_answers)
            for position in pairs
        ]
        sentences.append(f"All {len(all_answers)} people together {group_preference_sentence(counts_per_pair, names)}")
    reward_choices = {
        position: choice_by_reward(pairs[position]) for position in own_answers if pairs[position].scores is not None
    }
    if reward_choices and reward_model_id is not None:
        sentences.append(
            f"On the same pairs reward model {reward_model_id} {preference_sentence(count_choices(reward_choices.values()), names, third_person=True)}"
        )
        decided = [
            position
            for position in reward_choices
            if Choice.TIE not in (own_answers[position], reward_choices[position])
        ]
        agreed_count = sum(own_answers[position] is reward_choices[position] for position in decided)
        sentences.append(f"Where you and it both decided, you agreed on {agreed_count} of {len(decided)}.")
    rows = [
        {
            "prompt": pairs[position].prompt,
            "first": pairs[position].first,
            "second": pairs[position].second,
            "choice": own_answers[position].value,
        }
        for position in sorted(own_answers)
    ]
    return {"lines": sentences, "rows": rows}


def count_choices(choices: Iterable[Choice]) -> ChoiceCounts:
    """Skipped ones count nowhere."""
    choice_list = list(choices)
    return ChoiceCounts(
        choice_list.count(Choice.FIRST), choice_list.count(Choice.SECOND), choice_list.count(Choice.TIE)
    )


def preference_sentence(counts: ChoiceCounts, names: list[str], *, third_person: bool = False) -> str:
    """ "like run 1, step 40 more often: 14 of 18 decided pairs (78 %, 95 % interval 55 to 91 %), 2 ties."; with a warning where
    it may be chance. third: in the third person."""
    wins, decided = max(counts.first, counts.second), counts.first + counts.second
    return outcome_sentence(
        counts, names, "likes" if third_person else "like", "decided pairs", wilson_interval(wins, decided)
    )


def group_preference_sentence(counts_per_pair: list[ChoiceCounts], names: list[str]) -> str:
    """The same for several people, whose answers to one pair are alike. pairs: what all of them said to each."""
    counts = ChoiceCounts(*(sum(numbers) for numbers in zip(*counts_per_pair, strict=True)))
    decided = [
        (pair_counts.first, pair_counts.second)
        for pair_counts in counts_per_pair
        if pair_counts.first + pair_counts.second
    ]
    wins = [pair_counts[counts.second > counts.first] for pair_counts in decided]
    interval = clustered_interval(zip(wins, map(sum, decided), strict=True))
    return outcome_sentence(counts, names, "like", f"decided answers to {pluralize(len(decided), 'pair')}", interval)


def outcome_sentence(
    counts: ChoiceCounts, names: list[str], verb: str, unit: str, interval: tuple[float, float] | None
) -> str:
    """interval: of the share of the one that is liked more often; None where there are too few pairs for one."""
    decided = counts.first + counts.second
    ties = f", {pluralize(counts.ties, 'tie')}" if counts.ties else ""
    if not decided:
        return f"decided no pair{ties}."
    if counts.first == counts.second:
        return f"{verb} both as often: {counts.first} of {decided} {unit} each{ties}."
    wins = max(counts.first, counts.second)
    winner = names[0] if wins == counts.first else names[1]
    article = "the " if winner.startswith("base") else ""
    share, chance_note = f"{100 * wins / decided:.0f} %", ""
    if interval is None:
        share += f"; an interval takes {MIN_CLUSTERS} pairs"
    else:
        low, high = interval
        share += f", 95 % interval {100 * low:.0f} to {100 * high:.0f} %"
        chance_note = " It may be chance: the interval holds one half." if low <= 0.5 else ""
    return f"{verb} {article}{winner} more often: {wins} of {decided} {unit} ({share}){ties}.{chance_note}"


def choice_by_reward(pair: BlindPair) -> Choice:
    """What the scores say."""
    assert pair.scores is not None
    first, second = pair.scores
    return Choice.TIE if first == second else Choice.FIRST if first > second else Choice.SECOND

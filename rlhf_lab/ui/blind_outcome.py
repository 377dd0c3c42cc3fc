"""How a blind test came out, in words: for one person, for everybody, and in the eyes of the reward model."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from rlhf_lab.counted import counted
from rlhf_lab.intervals import FEWEST_CLUSTERS, clustered_interval, wilson_interval
from rlhf_lab.kinds import Choice


class Couple(NamedTuple):
    """What both models wrote to one prompt, and what the reward model gave them; None without one."""

    prompt: str
    first: str
    second: str
    scores: tuple[float, float] | None


class Tally(NamedTuple):
    """Answers by what they said."""

    first: int
    second: int
    ties: int


def outcome(
    couples: dict[int, Couple], said: dict[str, dict[int, Choice]], annotator: str, names: list[str], reward: int | None
) -> dict[str, Any]:
    """How a test came out for one person, for everybody, and in the eyes of the reward model on the pairs that person judged."""
    mine = {at: choice for at, choice in said.get(annotator, {}).items() if choice is not Choice.SKIP}
    lines = [f"You {preferred(tally(mine.values()), names)}"]
    others = [one for one in said.values() if any(choice is not Choice.SKIP for choice in one.values())]
    if len(others) > 1:
        pairs = [tally(one.get(at, Choice.SKIP) for one in others) for at in couples]
        lines.append(f"All {len(others)} people together {preferred_by_all(pairs, names)}")
    by_score = {at: opinion(couples[at]) for at in mine if couples[at].scores is not None}
    if by_score and reward is not None:
        lines.append(
            f"On the same pairs reward model {reward} {preferred(tally(by_score.values()), names, third=True)}"
        )
        decided = [at for at in by_score if Choice.TIE not in (mine[at], by_score[at])]
        agreed = sum(mine[at] is by_score[at] for at in decided)
        lines.append(f"Where you and it both decided, you agreed on {agreed} of {len(decided)}.")
    rows = [
        {
            "prompt": couples[at].prompt,
            "first": couples[at].first,
            "second": couples[at].second,
            "choice": mine[at].value,
        }
        for at in sorted(mine)
    ]
    return {"lines": lines, "rows": rows}


def tally(choices: Iterable[Choice]) -> Tally:
    """Skipped ones count nowhere."""
    given = list(choices)
    return Tally(given.count(Choice.FIRST), given.count(Choice.SECOND), given.count(Choice.TIE))


def preferred(count: Tally, names: list[str], *, third: bool = False) -> str:
    """ "like run 1, step 40 more often: 14 of 18 decided pairs (78 %, 95 % interval 55 to 91 %), 2 ties."; with a warning where
    it may be chance. third: in the third person."""
    wins, decided = max(count.first, count.second), count.first + count.second
    return in_words(count, names, "likes" if third else "like", "decided pairs", wilson_interval(wins, decided))


def preferred_by_all(pairs: list[Tally], names: list[str]) -> str:
    """The same for several people, whose answers to one pair are alike. pairs: what all of them said to each."""
    count = Tally(*(sum(numbers) for numbers in zip(*pairs, strict=True)))
    decided = [(pair.first, pair.second) for pair in pairs if pair.first + pair.second]
    wins = [pair[count.second > count.first] for pair in decided]
    interval = clustered_interval(zip(wins, map(sum, decided), strict=True))
    return in_words(count, names, "like", f"decided answers to {counted(len(decided), 'pair')}", interval)


def in_words(count: Tally, names: list[str], verb: str, of: str, interval: tuple[float, float] | None) -> str:
    """interval: of the share of the one that is liked more often; None where there are too few pairs for one."""
    decided = count.first + count.second
    ties = f", {counted(count.ties, 'tie')}" if count.ties else ""
    if not decided:
        return f"decided no pair{ties}."
    if count.first == count.second:
        return f"{verb} both as often: {count.first} of {decided} {of} each{ties}."
    wins = max(count.first, count.second)
    winner = names[0] if wins == count.first else names[1]
    the = "the " if winner.startswith("base") else ""
    share, chance = f"{100 * wins / decided:.0f} %", ""
    if interval is None:
        share += f"; an interval takes {FEWEST_CLUSTERS} pairs"
    else:
        low, high = interval
        share += f", 95 % interval {100 * low:.0f} to {100 * high:.0f} %"
        chance = " It may be chance: the interval holds one half." if low <= 0.5 else ""
    return f"{verb} {the}{winner} more often: {wins} of {decided} {of} ({share}){ties}.{chance}"


def opinion(couple: Couple) -> Choice:
    """What the scores say."""
    assert couple.scores is not None
    first, second = couple.scores
    return Choice.TIE if first == second else Choice.FIRST if first > second else Choice.SECOND

"""The pairs of a blind test, read from its jobs, and its outcome in sentences: for one person, for all people, and compared with
the reward model's choices."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import Chat, turns_of_prompt
from rlhf_lab.common.enums import Choice
from rlhf_lab.common.records import Job
from rlhf_lab.common.stats import MIN_CLUSTERS, detectable_share, exact_interval, preference_interval
from rlhf_lab.common.text import pluralize, prompts_skipped_message
from rlhf_lab.ui.shared.generation_requests import column_view

#: A difference of a share from one half that matters little, if the whole interval is nearer to one half.
SMALL_DIFFERENCE = 0.1


class PairToJudge(TypedDict):
    """A pair to judge, of a blind test or a tournament: nothing in it reveals which model wrote which text. token: identifies the
    pair, its person and the sides."""

    token: str
    turns: Chat
    left: str
    right: str


class TestRow(TypedDict):
    """A pair that a person has judged, their choice, and the reward model's; None without scores."""

    turns: Chat
    first: str
    second: str
    choice: str
    reward_choice: str | None


class TestOutcome(TypedDict):
    """figure: the preferred model's share of the decided answers, and what it is; None without one."""

    figure: tuple[str, str] | None
    sentences: list[str]
    rows: list[TestRow]


class BlindPair(NamedTuple):
    """Both models' texts for one prompt, and their scores; None without a reward model."""

    prompt: str
    first: str
    second: str
    scores: tuple[float, float] | None

    @property
    def has_equal_texts(self) -> bool:
        """Such a pair is not judged."""
        return self.first == self.second


class ChoiceCounts(NamedTuple):
    """How many answers chose the first model's text, the second's, or neither."""

    first: int
    second: int
    ties: int


def pair_texts(first: Job, second: Job) -> dict[int, BlindPair] | None:
    """Both models' texts by the position of the prompt in the test; None until both jobs are done."""
    first_texts, second_texts = texts_by_position(first), texts_by_position(second)
    if first_texts is None or second_texts is None:
        return None
    test_prompts = prompts_of_test(first)
    pairs = {}
    for position in sorted(first_texts.keys() & second_texts.keys()):
        (first_text, first_score), (second_text, second_score) = first_texts[position], second_texts[position]
        scores = None if first_score is None or second_score is None else (first_score, second_score)
        pairs[position] = BlindPair(test_prompts[position], first_text, second_text, scores)
    return pairs


def texts_by_position(job: Job) -> dict[int, tuple[str, float | None]] | None:
    """A job's text and score for each prompt that was not too long, by position in the test; None until the job is done."""
    view, best_of = column_view(job), int(job.payload.get("best_of", 1))
    if "texts" not in view:
        return None
    skipped = {index // best_of for index in (job.result or {}).get("left_out", [])}
    positions = [index for index in range(len(prompts_of_test(job))) if index not in skipped]
    scores: list[float | None] = [*view["scores"]] or [None] * len(positions)
    return {index: (text, score) for index, text, score in zip(positions, view["texts"], scores, strict=True)}


def prompts_of_test(job: Job) -> list[str]:
    """The prompts of a test, each once; a best-of-n job contains each of them n times."""
    return list(job.payload["prompts"][:: int(job.payload.get("best_of", 1))])


def left_out_note(job: Job, pairs: dict[int, BlindPair]) -> str:
    """Why fewer pairs are judged than were asked for: prompts that were too long for the model, and equal texts. "" for none."""
    skipped = len(prompts_of_test(job)) - len(pairs)
    too_long = prompts_skipped_message(skipped, int(job.payload.get("max_new_tokens", 0)))
    equal = sum(pair.has_equal_texts for pair in pairs.values())
    same = f"{pluralize(equal, 'pair')} left out: both models wrote the same text" if equal else ""
    return " ".join(f"{note}." for note in (too_long, same) if note)


def model_name(payload: dict[str, Any]) -> str:
    """The model of a job's payload: "base model", "base, best of 4", "run 1, step 40"."""
    if n := payload.get("best_of"):
        return f"base, best of {n}"
    parts = str(payload["checkpoint"]).split("/")
    return (
        f"run {parts[1]}, {'latest step' if parts[2] == 'latest' else f'step {parts[2]}'}"
        if len(parts) == 3
        else "base model"
    )


def is_check(payloads: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a test, by the payloads of its jobs, compares the best of several texts by a reward model with the base's."""
    is_base = all(payload["checkpoint"] == "base" for payload in payloads)
    return is_base and [bool(payload.get("best_of")) for payload in payloads] == [True, False]


def meaning_for_training(counts: ChoiceCounts, interval: tuple[float, float] | None, *, are_own: bool = False) -> str:
    """What the answers to a check say about a training by its reward model.

    interval: of the share for the best of n. are_own: all answers are those of the reader.
    """
    people, they = ("you", "you") if are_own else ("people", "they")
    low, high = interval or (0.0, 1.0)
    if low > 0.5:
        return f"{people.capitalize()} prefer what this reward model prefers, so PPO can follow it."
    if high - 0.5 <= SMALL_DIFFERENCE:
        return (
            f"{people.capitalize()} do not prefer what this reward model prefers, so PPO would not lead to what {they} want. "
            "Label more pairs, then check the next reward model."
        )
    leans = counts.first > counts.second
    advice = "start PPO, or check again with other pairs" if leans else "label more pairs, then check again"
    return (
        f"There are too few answers to tell whether {people} prefer what this reward model prefers: even a perfect one would "
        f"win only about four of five pairs. So far {people} {'seem' if leans else 'do not seem'} to: {advice}."
    )


def test_outcome(
    pairs: dict[int, BlindPair],
    answers: dict[str, dict[int, Choice]],
    annotator: str,
    names: list[str],
    reward_model_id: int | None,
) -> TestOutcome:
    """The outcome of a test; the reward model's choices are those on the pairs that this person judged."""
    own_answers = {
        position: choice for position, choice in answers.get(annotator, {}).items() if choice is not Choice.SKIP
    }
    all_answers = [
        choices for choices in answers.values() if any(choice is not Choice.SKIP for choice in choices.values())
    ]
    sentences = []
    if own_answers or not all_answers:
        sentences.append(f"You {preference_sentence(count_choices(own_answers.values()), names)}")
    if len(all_answers) > 1 or (all_answers and not own_answers):
        counts_per_pair = [
            count_choices(choices.get(position, Choice.SKIP) for choices in all_answers) for position in pairs
        ]
        people = f"All {len(all_answers)} people together" if len(all_answers) > 1 else "Those who judged"
        sentences.append(f"{people} {group_preference_sentence(counts_per_pair, names)}")
    reward_choices = {
        position: choice_by_reward(pairs[position]) for position in own_answers if pairs[position].scores is not None
    }
    if reward_choices and reward_model_id is not None:
        sentence = preference_sentence(count_choices(reward_choices.values()), names, third_person=True)
        sentences.append(f"On the same pairs reward model {reward_model_id} {sentence}")
        decided = [
            position
            for position in reward_choices
            if Choice.TIE not in (own_answers[position], reward_choices[position])
        ]
        agreed_count = sum(own_answers[position] is reward_choices[position] for position in decided)
        sentences.append(f"Of the pairs that both you and it decided, you agreed on {agreed_count} of {len(decided)}.")
    rows: list[TestRow] = [
        {
            "turns": turns_of_prompt(pairs[position].prompt),
            "first": pairs[position].first,
            "second": pairs[position].second,
            "choice": own_answers[position].value,
            "reward_choice": reward_choices[position].value if position in reward_choices else None,
        }
        for position in sorted(own_answers)
    ]
    return {"figure": preferred_share(all_answers, names), "sentences": sentences, "rows": rows}


def meaning_of_answers(
    pairs: Iterable[int], all_answers: Collection[Mapping[int, Choice]], *, are_own: bool = False
) -> str:
    """`meaning_for_training` of the answers of everybody."""
    return meaning_for_training(*counts_and_interval(pairs, all_answers), are_own=are_own)


def counts_and_interval(
    pairs: Iterable[int], all_answers: Collection[Mapping[int, Choice]]
) -> tuple[ChoiceCounts, tuple[float, float] | None]:
    """The answers of everybody, and the interval of the first model's share; None for too few pairs."""
    per_pair = [count_choices(choices.get(position, Choice.SKIP) for choices in all_answers) for position in pairs]
    counts = ChoiceCounts(*(sum(one[i] for one in per_pair) for i in range(3)))
    return counts, preference_interval((one.first, one.first + one.second) for one in per_pair)


def preferred_share(all_answers: list[dict[int, Choice]], names: list[str]) -> tuple[str, str] | None:
    """("78 %", "for run 1, step 40 in 18 decided answers"), of everybody together; None if nobody decided. If the interval
    contains one half, or there is none: ("10 : 8", "for run 1, step 40 against the base model: no clear preference")."""
    counts, interval = counts_and_interval({position for choices in all_answers for position in choices}, all_answers)
    decided, wins = counts.first + counts.second, max(counts.first, counts.second)
    if not decided:
        return None
    first, second = map(_with_article, names)
    if interval is None or interval[0] <= 0.5 <= interval[1]:
        return f"{counts.first} : {counts.second}", f"for {first} against {second}: no clear preference"
    winner = first if wins == counts.first else second
    return f"{100 * wins / decided:.0f} %", f"for {winner} in {pluralize(decided, 'decided answer')}"


def _with_article(model: str) -> str:
    if model.startswith("base, best"):
        return f"the {model.removeprefix('base, ')} texts of the base"
    return f"the {model}" if model.startswith("base") else model


def count_choices(choices: Iterable[Choice]) -> ChoiceCounts:
    """Skipped pairs are not counted."""
    choice_list = list(choices)
    return ChoiceCounts(
        choice_list.count(Choice.FIRST), choice_list.count(Choice.SECOND), choice_list.count(Choice.TIE)
    )


def preference_sentence(counts: ChoiceCounts, names: list[str], *, third_person: bool = False) -> str:
    """ "like run 1, step 40 more often: 14 of 18 decided pairs (78 %, 95 % interval 52 to 94 %), 2 ties."; with a warning if the
    interval contains one half."""
    wins, decided = max(counts.first, counts.second), counts.first + counts.second
    interval, verb = exact_interval(wins, decided), "likes" if third_person else "like"
    return outcome_sentence(counts, names, verb, "decided pairs", interval)


def group_preference_sentence(counts_per_pair: list[ChoiceCounts], names: list[str]) -> str:
    """The same for several people."""
    counts = ChoiceCounts(*(sum(numbers) for numbers in zip(*counts_per_pair, strict=True)))
    decided = [(one[counts.second > counts.first], one.first + one.second) for one in counts_per_pair]
    unit = f"decided answers to {pluralize(sum(trials > 0 for _, trials in decided), 'pair')}"
    interval = preference_interval(decided)
    return outcome_sentence(counts, names, "like", unit, interval)


def outcome_sentence(
    counts: ChoiceCounts, names: list[str], verb: str, unit: str, interval: tuple[float, float] | None
) -> str:
    """The outcome as a sentence. interval: of the share of the preferred model; None if there are too few pairs."""
    decided = counts.first + counts.second
    ties = f", {pluralize(counts.ties, 'tie')}" if counts.ties else ""
    if not decided:
        return "had no preference in any pair."
    if counts.first == counts.second:
        note = no_difference_note(*interval) if interval else ""
        return f"{verb} both equally often: {counts.first} of {decided} {unit} each{ties}.{note}"
    wins = max(counts.first, counts.second)
    winner = names[0] if wins == counts.first else names[1]
    share, chance_note = f"{100 * wins / decided:.0f} %", ""
    if interval is None:
        share += f"; too few pairs for an interval, which needs {MIN_CLUSTERS}"
    else:
        low, high = interval
        share += f", 95 % interval {100 * low:.0f} to {100 * high:.0f} %"
        if low <= 0.5:
            chance_note = (
                f" This may be chance: the interval contains 50 %, no preference.{no_difference_note(low, high)}"
            )
    return f"{verb} {_with_article(winner)} more often: {wins} of {decided} {unit} ({share}){ties}.{chance_note}"


def no_difference_note(low: float, high: float) -> str:
    """What a narrow interval that contains one half means. How many pairs show which preference stands beside the number of pairs
    of the next test (`size_note`)."""
    return " If there is a difference, it is small." if max(high - 0.5, 0.5 - low) <= SMALL_DIFFERENCE else ""


def size_note(trials: int) -> str:
    """Which preference so many decided pairs can show, as a sentence."""
    share, pairs = detectable_share(trials), pluralize(trials, "pair")
    if share is None:
        return f"{pairs} {'is' if trials == 1 else 'are'} too few to show a preference, however people choose."
    often = f"in {math.ceil(100 * share)} % of them or more" if share < 1 - 1 / trials else "nearly every time"
    return f"{pairs} without ties usually show a preference if one model is chosen {often}; a weaker preference needs more pairs."


def choice_by_reward(pair: BlindPair) -> Choice:
    """The reward model's choice."""
    assert pair.scores is not None
    first, second = pair.scores
    return Choice.TIE if first == second else Choice.FIRST if first > second else Choice.SECOND

"""Simulated annotators: deterministic scores of prompt and response, higher is better. They use word lists, not the corpus.

Lexicon judges: a text is split into lower-case words and punctuation marks. At each position, the longest matching entry of the
judge's lexicon is counted (a phrase exactly, a word also in its regular inflections), and
    total    = sum of weight * modifiers * REPEAT_DECAY ** (earlier occurrences of the same entry)
    strength = total / sqrt(max(words, MIN_WORDS))
    score    = MAX_SCORE * strength / (|strength| + half), rounded to a multiple of SCORE_STEP
so the score is between -10 and 10, a text without entries scores 0, and `half` is the strength for which the score is 5.
Modifiers (lexicons/modifiers.txt): "very happy" counts 1.5 times, "not happy" -0.5 times. The lexicons are in lexicons/*.txt.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlhf_lab.common.bundled_assets import EVERYDAY
from rlhf_lab.common.enums import Choice
from rlhf_lab.common.text import split_lines
from rlhf_lab.errors import ConfigError
from rlhf_lab.judges.custom import load_score_function

SCORE_STEP = 0.25  # every score of JUDGES is a multiple of it, so that near-identical texts tie
MAX_SCORE = 10.0  # the largest absolute score of JUDGES
REPEAT_DECAY = 0.25  # "happy happy happy" counts 1 + 1/4 + 1/16 times
MIN_WORDS = 9  # shorter texts are normalised as if they had this many words: one good word is not a good text
NEGATION_WINDOW = 3  # number of following words, within its clause, that a negation affects

_LEXICON_FOLDER = Path(__file__).parent / "lexicons"
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W_]+)*|[.,;:!?()—–]")
_QUOTE = re.compile(r'"([^"]*)"|“([^“”]*)”|«([^«»]*)»')
_SENTENCE_END = re.compile(r"[.!?]+")
_FINISHED = re.compile(r"[.!?…][\"'”’)\]*]*\s*$")


@dataclass(frozen=True)
class Judge:
    """A simulated annotator.

    prompt_set: the prompts that suit it best. score: function of (prompt, response). score_sd: standard deviation of its scores
    on typical responses to these prompts; the unit of noise. score_step: scores are multiples of it; 0: they are not rounded.
    """

    name: str
    description: str
    prompt_set: str
    score: Callable[[str, str], float]
    score_sd: float = 1.0
    score_step: float = 0.0


@dataclass(frozen=True)
class _Lexicon:
    weights: dict[str, float]
    max_words: int  # words in the longest entry


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text.replace("’", "'").lower())


def _words(text: str) -> list[str]:
    return [token for token in _tokens(text) if token[0].isalnum()]


@cache
def _load_lexicon(name: str) -> _Lexicon:
    """Read lexicons/NAME.txt. Its lines are "weight: entry, entry", empty, or comments that start with #."""
    weights: dict[str, float] = {}
    for line in split_lines((_LEXICON_FOLDER / f"{name}.txt").read_text(encoding="utf-8")):
        if line and not line.startswith("#"):
            weight, entries = line.split(":", 1)
            weights.update((" ".join(_tokens(entry)), float(weight)) for entry in entries.split(","))
    return _Lexicon(weights, max(entry.count(" ") + 1 for entry in weights))


# Suffix > replacement; the first stem in the lexicon wins, so "hoping" is hope before hop.
_SUFFIX_RULES = "'s> iness>y ness> ies>y es>e es> s> ied>y ed>e ed> ing>e ing> iest>y est>e est> ier>y ily>y ly> ly>le"


def _stems(word: str) -> Iterator[str]:
    """The word and its possible stems of three letters or more."""
    yield word
    for suffix, replacement in (pair.split(">") for pair in _SUFFIX_RULES.split()):
        stem = word.removesuffix(suffix)
        if stem != word and len(stem) >= 3:
            yield stem + replacement
            if suffix in ("ed", "ing") and stem[-1] == stem[-2]:
                yield stem[:-1]


def _find_entries(tokens: list[str], lexicon: _Lexicon) -> Iterator[tuple[int, str]]:
    """(token index, entry) of each lexicon entry in the text, the longest at each position."""
    index = 0
    while index < len(tokens):
        sizes = range(min(lexicon.max_words, len(tokens) - index), 1, -1)
        phrases = ((size, " ".join(tokens[index : index + size])) for size in sizes)
        words = ((1, stem) for stem in _stems(tokens[index]))
        size, entry = next(
            (hit for candidates in (phrases, words) for hit in candidates if hit[1] in lexicon.weights), (1, "")
        )
        if entry:
            yield index, entry
        index += size


def _modifier_factor(tokens: list[str], index: int) -> float:
    """The factor from the words before an entry: an intensifier directly before it, or a negation in the same clause."""
    modifiers = _load_lexicon("modifiers").weights
    previous = modifiers.get(tokens[index - 1], 1.0) if index else 1.0
    factor = previous if previous > 0 else 1.0
    for earlier in range(index - 1, max(index - 1 - NEGATION_WINDOW, -1), -1):
        token = tokens[earlier]
        if not token[0].isalnum():
            break
        negates = modifiers.get(token, 0.0) < 0 or token.endswith("n't")
        if negates and tokens[earlier + 1] not in ("only", "just"):  # "not only" is not a negation
            return factor * modifiers["not"]
    return factor


def _weighted_total(text: str, lexicon_name: str, *, apply_modifiers: bool = True) -> float:
    """`total`, as defined in the module docstring, for a lexicon."""
    lexicon, tokens, total = _load_lexicon(lexicon_name), _tokens(text), 0.0
    counts: Counter[str] = Counter()
    for index, entry in _find_entries(tokens, lexicon):
        modifier = _modifier_factor(tokens, index) if apply_modifiers else 1.0
        total += lexicon.weights[entry] * modifier * REPEAT_DECAY ** counts[entry]
        counts[entry] += 1
    return total


def _round_to_step(points: float, step: float = SCORE_STEP) -> float:
    """The nearest multiple of `step` (0: not rounded)."""
    return round(points / step) * step if step else points


def _saturate(strength: float, half: float) -> float:
    return _round_to_step(MAX_SCORE * strength / (abs(strength) + half))


def _normalized_score(text: str, total: float, half: float) -> float:
    """`score`, as defined in the module docstring, for a total."""
    return _saturate(total / math.sqrt(max(len(_words(text)), MIN_WORDS)), half)


def _cheerful(text: str) -> float:
    """total of valence.txt, + 0.5 if there is an exclamation mark; half = 2."""
    return _normalized_score(text, _weighted_total(text, "valence") + 0.5 * ("!" in text), half=2.0)


def _gloomy(text: str) -> float:
    """total of gloom.txt - half the total of valence.txt; half = 3."""
    return _normalized_score(text, _weighted_total(text, "gloom") - 0.5 * _weighted_total(text, "valence"), half=3.0)


def _polite(text: str) -> float:
    """total of polite.txt; half = 2."""
    return _normalized_score(text, _weighted_total(text, "polite"), half=2.0)


def _concrete(text: str) -> float:
    """total of concrete.txt, + 2 for a number in digits (all numbers are one entry), unmodified; half = 2."""
    numbers = sum(word[0].isdigit() for word in _words(text))
    digits = 2.0 * (1 - REPEAT_DECAY**numbers) / (1 - REPEAT_DECAY)  # 2 + 2/4 + 2/16 ...
    return _normalized_score(text, _weighted_total(text, "concrete", apply_modifiers=False) + digits, half=2.0)


def _vivid(text: str) -> float:
    """total of vivid.txt, unmodified; half = 1."""
    return _normalized_score(text, _weighted_total(text, "vivid", apply_modifiers=False), half=1.0)


def _concise(text: str) -> float:
    """10 points for 4 words, minus 0.25 for each further word, but at least 0.25; 0 for fewer than 4 words."""
    words = len(_words(text))
    return 0.0 if words < 4 else _round_to_step(max(MAX_SCORE - (words - 4) / 4, SCORE_STEP))


def _dialogue(text: str) -> float:
    """5 s + 4 q / (q + 1) + v / 3, rounded: from 0 to 10.

    s: distinct quoted words / max(words, MIN_WORDS); q: distinct quotations that are closed and not empty;
    v: distinct verbs of speech.txt outside quotations, at most three.
    """
    lines = {tuple(_words("".join(line))) for line in _QUOTE.findall(text)} - {()}
    share = len({word for line in lines for word in line}) / max(len(_words(text)), MIN_WORDS)
    verbs = {verb for _, verb in _find_entries(_tokens(_QUOTE.sub(" ", text)), _load_lexicon("speech"))}
    return _round_to_step(5 * share + 4 * len(lines) / (len(lines) + 1) + min(len(verbs), 3) / 3)


def _plain(text: str) -> float:
    """Short words and short sentences; from -10 to 10.

    strength = (4.25 - mean letters of the distinct words) + (10 - words per sentence) / 10; half = 2.
    For texts of fewer than MIN_WORDS distinct words, strength is multiplied by distinct words / MIN_WORDS.
    """
    words = _words(text)
    unique_words = set(words)
    if not words:
        return 0.0
    mean_letters = sum(map(len, unique_words)) / len(unique_words)
    words_per_sentence = len(words) / max(len(_SENTENCE_END.findall(text)), 1)
    strength = (4.25 - mean_letters) + (10 - words_per_sentence) / 10
    return _saturate(strength * min(len(unique_words) / MIN_WORDS, 1.0), half=2.0)


def _brief(text: str) -> float:
    """1.25 points per word up to 8 words; then 10 points, minus 0.25 for each word after the twentieth, but at least 0.25.

    Half of that for a text that was truncated, that is, does not end with a complete sentence; 0 for an empty text.
    """
    words = len(_words(text))
    points = max(1.25 * min(words, 8) - max(words - 20, 0) / 4, SCORE_STEP) if words else 0.0
    return _round_to_step(points if _FINISHED.search(text) else points / 2)


def _varied(text: str) -> float:
    """20 x (mean fraction of distinct words, word pairs and word triples) - 10; from -10 to 10.

    Texts of fewer than MIN_WORDS words can repeat little: positive points are multiplied by words / MIN_WORDS. 0 without words.
    """
    words = _words(text)
    if not words:
        return 0.0
    shares = [_distinct_share(_ngrams(words, size)) for size in (1, 2, 3)]
    points = 20 * sum(shares) / len(shares) - 10
    return _round_to_step(points * min(len(words) / MIN_WORDS, 1.0) if points > 0 else points)


def _relevant(prompt: str, text: str) -> float:
    """10 x (fraction of the prompt's words used in the text) x (1 - fraction of the text's word triples that occur in the
    prompt).

    Prompt words are distinct, without those of function_words.txt; inflected forms are equal to the word. 0 without words.
    """
    ignored = _load_lexicon("function_words").weights
    topics = {word for word in _words(prompt) if word not in ignored}
    stems = {stem for word in _words(text) for stem in _stems(word)}
    used = sum(not stems.isdisjoint(_stems(word)) for word in topics)
    triples, prompt_triples = _ngrams(_words(text), 3), set(_ngrams(_words(prompt), 3))
    copied = sum(triple in prompt_triples for triple in triples) / len(triples) if triples else 0.0
    return _round_to_step(MAX_SCORE * used / max(len(topics), 1) * (1 - copied))


def _ngrams(words: list[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[start:] for start in range(size)), strict=False))


def _distinct_share(items: list[tuple[str, ...]]) -> float:
    """The fraction of distinct items; 1 if there are none."""
    return len(set(items)) / len(items) if items else 1.0


def _ignoring_prompt(score: Callable[[str], float]) -> Callable[[str, str], float]:
    return lambda _, response: score(response)


# score_sd was measured on texts of two or three sentences (tests/judges/test_builtin.py), for the everyday judges on responses of
# SmolLM2-135M-Instruct (docs/DECISIONS.md).
_RESPONSE_JUDGES = (
    ("cheerful", "Likes happy words, and dislikes sad or angry ones.", "tales", _cheerful, 2.5),
    ("gloomy", "Likes sorrow, loss, rain and darkness.", "tales", _gloomy, 2.5),
    ("dialogue", "Likes people who talk: quoted words and quoted lines.", "tales", _dialogue, 2.0),
    ("vivid", "Likes words one can see, hear, smell or feel.", "tales", _vivid, 3.0),
    ("polite", "Likes please, thank you and sorry, and dislikes rude words.", "support", _polite, 3.0),
    ("concise", "Likes few words, as long as there are at least four.", "support", _concise, 2.0),
    ("concrete", "Likes numbers, colours and things, not vague words.", "reviews", _concrete, 3.5),
    ("plain", "Likes short words and short sentences.", "reviews", _plain, 3.5),
    ("brief", "Likes short answers that come to an end.", EVERYDAY, _brief, 3.2),
    ("varied", "Dislikes words and phrases that are repeated.", EVERYDAY, _varied, 1.8),
)
_BUILTIN_JUDGES = (
    *(
        Judge(name, description, prompt_set, _ignoring_prompt(score), score_sd, SCORE_STEP)
        for name, description, prompt_set, score, score_sd in _RESPONSE_JUDGES
    ),
    Judge("relevant", "Likes words of the prompt in other phrases.", EVERYDAY, _relevant, 2.8, SCORE_STEP),
)
JUDGES: dict[str, Judge] = {judge.name: judge for judge in _BUILTIN_JUDGES}


def builtin_judge(name: str) -> Judge:
    """The built-in judge of this name. Used by the page, where a judge from a file would let any visitor run code.

    Raises ConfigError for an unknown name.
    """
    if name not in JUDGES:
        raise ConfigError(f"There is no judge {name!r} on the page. Choose one of {', '.join(JUDGES)}.")
    return JUDGES[name]


def load_judge(spec: str) -> Judge:
    """A built-in judge by name, or a custom one as "FILE.py:NAME", a function response -> score or (prompt, response) -> score.

    Raises ConfigError for an unknown name, and like `custom.load_score_function`.
    """
    if spec in JUDGES:
        return JUDGES[spec]
    file, _, name = spec.rpartition(":")
    if not file or not name.isidentifier():
        known = ", ".join(JUDGES)
        raise ConfigError(f"There is no judge {spec!r}. Choose one of {known}, or write FILE.py:NAME.")
    return Judge(name, f"The function {name} of {file}.", "tales", load_score_function(file, name))


def prefer(
    judge: Judge, prompt: str, first: str, second: str, *, noise: float = 0.0, rng: random.Random | None = None
) -> Choice:
    """Which of two responses to a prompt the judge prefers: FIRST, SECOND, or TIE for exactly equal scores.

    noise: standard deviation of the Gaussian noise added to both scores, in units of `judge.score_sd`; with 0, `rng` is not used.
    Noisy scores are rounded to the judge's step, so that ties stay possible.
    Raises ConfigError for a noise that is negative or not finite, and for noise without rng.
    """
    if not (math.isfinite(noise) and noise >= 0):
        raise ConfigError(f"A judge's noise must be 0 or more, not {noise}. 0 is no noise, 1 is a lot.")
    scores = [judge.score(prompt, first), judge.score(prompt, second)]
    if noise:
        if rng is None:
            raise ConfigError("A noisy judge needs a random generator. Pass rng=random.Random(seed), or noise=0.")
        scores = [_round_to_step(rng.gauss(score, noise * judge.score_sd), judge.score_step) for score in scores]
    if scores[0] == scores[1]:
        return Choice.TIE
    return Choice.FIRST if scores[0] > scores[1] else Choice.SECOND

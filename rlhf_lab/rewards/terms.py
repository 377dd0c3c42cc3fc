"""The terms of a run's reward, as they are stored in its manifest and given on the command line.

reward = weight of the reward model · its score (sd of base samples) + sum of weight · value over the function terms
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf_lab.common.text import split_lines
from rlhf_lab.errors import ConfigError
from rlhf_lab.judges.custom import load_function
from rlhf_lab.rewards import builtin
from rlhf_lab.rewards.builtin import RewardFunction

REWARD_MODEL = "reward_model"
OWN = "own"
DEFAULT_FUNCTION = "reward"
REWARDS_FOLDER = "rewards"
MAX_WEIGHT = 1000.0
#: Of a value of a function, so that squares of weighted sums are finite in float32.
MAX_VALUE = 1e12
MAX_LABEL_CHARS = 60  # part of a metric's name
TERMS_KEY = "reward_terms"  # in the manifest of a run
FUNCTIONS_KEY = "reward_functions"  # in the manifest: SHA-256 of the file of each custom function, by label

#: The description of each shipped term.
DESCRIPTIONS = {
    "length": "1 inside a window of words, less outside",
    "regex": "1 where a regular expression is found",
    "json": "1 where the response is valid JSON",
    "repetition": "0 without repetition, down to -1 with it",
    "arithmetic": "1 where the result is right; for the prompt set arithmetic",
}
_WITHOUT_OPTIONS: dict[str, RewardFunction] = {
    "json": builtin.valid_json,
    "repetition": builtin.repetition,
    "arithmetic": builtin.arithmetic,
}


@dataclass(frozen=True)
class RewardTerm:
    """name: "reward_model", a shipped function, or "own" with the options file and function."""

    name: str
    weight: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name on curves: objective/reward/<label>."""
        if self.name != OWN:
            return self.name
        stem, function = Path(str(self.options["file"])).stem, self.options["function"]
        return stem if function == DEFAULT_FUNCTION else f"{stem}.{function}"


def term_records(terms: Sequence[RewardTerm]) -> list[dict[str, Any]]:
    """As `read_terms` reads them."""
    return [asdict(term) for term in terms]


def read_terms(records: Iterable[dict[str, Any]]) -> list[RewardTerm]:
    """The terms of a manifest. Raises ConfigError as `check_terms`."""
    return check_terms([RewardTerm(item["name"], item["weight"], dict(item["options"])) for item in records])


def has_score_unit(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether a run's scores are in standard deviations of the base's: those of a reward model alone are, and a KL budget
    measures the unit of a sum of terms."""
    return config.get("kl_budget") is not None or not manifest.get(TERMS_KEY)


def check_terms(terms: list[RewardTerm]) -> list[RewardTerm]:
    """The same terms. Raises ConfigError for an invalid weight or option, or two terms of the same name."""
    labels = set()
    for term in terms:
        if not (math.isfinite(term.weight) and 0 < abs(term.weight) <= MAX_WEIGHT):
            raise ConfigError(
                f"the weight {term.weight} of the reward term {term.name} is not allowed: choose a number other than 0, "
                f"at most {MAX_WEIGHT:g}."
            )
        if term.name == OWN:
            if not str(term.options.get("file", "")).endswith(".py") or not term.options.get("function"):
                raise ConfigError("an own reward function needs a Python file (FILE.py) and the name of its function.")
        elif term.name != REWARD_MODEL:
            shipped_function(term)
        if term.label in labels or len(term.label) > MAX_LABEL_CHARS:
            raise ConfigError(
                f'the reward term "{term.label}" occurs twice or has a name of more than {MAX_LABEL_CHARS} characters. '
                "Give each term once; rename the file of a custom function."
            )
        labels.add(term.label)
    return terms


def shipped_function(term: RewardTerm) -> RewardFunction:
    """The function of a shipped term. Raises ConfigError for an unknown name or an invalid option."""
    if term.name in _WITHOUT_OPTIONS:
        return _WITHOUT_OPTIONS[term.name]
    if term.name == "length":
        return _length_window(term.options.get("min_words"), term.options.get("max_words"))
    if term.name == "regex":
        pattern = str(term.options.get("pattern", ""))
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{pattern!r} is not a regular expression ({error}). Correct it.") from error
        if not pattern:
            raise ConfigError("the reward term regex needs a regular expression, for example ^Yes.")
        return builtin.regular_expression(pattern)
    raise ConfigError(
        f'there is no reward term "{term.name}". Choose one of {", ".join((REWARD_MODEL, *DESCRIPTIONS))}, or FILE.py:FUNCTION.'
    )


def _length_window(min_words: Any, max_words: Any) -> RewardFunction:
    if not (
        isinstance(min_words, int) and isinstance(max_words, int) and 0 <= min_words <= max_words and max_words > 0
    ):
        raise ConfigError(
            f"the reward term length needs a window of words like 5-20; it has {min_words} to {max_words}. Give two "
            "whole numbers, the smaller one first."
        )
    return builtin.length_window(min_words, max_words)


def parse_term(text: str, folder: Path | None = None) -> RewardTerm:
    """A term as people write it: [WEIGHT*]NAME[:OPTION] or [WEIGHT*]FILE.py[:FUNCTION]. Raises ConfigError.

    The option of length is MIN-MAX, that of regex the pattern: "0.5*length:5-20", "regex:^Yes". folder: where files of own
    functions must be; None: any path.
    """
    match = re.fullmatch(r"(?:([-+]?[0-9.]+(?:e[-+]?\d+)?)\s*\*\s*)?([^:]+)(?::(.*))?", text.strip(), re.DOTALL)
    if match is None:
        raise ConfigError(
            f'"{text}" is not a reward term. Write [WEIGHT*]NAME[:OPTION] or [WEIGHT*]FILE.py[:FUNCTION].'
        )
    weight_text, name, option = match[1] or "1", match[2].strip(), match[3]
    try:
        weight = float(weight_text)
    except ValueError:
        raise ConfigError(f'the weight {weight_text} of "{text}" is not a number.') from None
    if name.endswith(".py"):
        path = str(Path(name).expanduser().resolve()) if folder is None else _file_in(folder, name)
        return _checked(RewardTerm(OWN, weight, {"file": path, "function": option or DEFAULT_FUNCTION}))
    return _checked(RewardTerm(name, weight, parse_option(name, option or "")))


def parse_lines(text: str, home: Path, *, with_model: bool, needs_reward: bool = True) -> list[RewardTerm]:
    """The terms of a form, one per line; custom functions are in HOME/rewards. Without lines: [], the reward model alone.

    with_model: a reward model was chosen; it has weight 1 unless a line says otherwise. needs_reward: the algorithm learns from
    a reward, so a reward model or at least one line is needed. Raises ConfigError.
    """
    terms = [parse_term(line, home / REWARDS_FOLDER) for line in split_lines(text) if line.strip()]
    names = [term.name for term in terms]
    if not with_model and ((needs_reward and not terms) or REWARD_MODEL in names):
        raise ConfigError("no reward model is chosen. Choose one, or write reward terms without reward_model.")
    if with_model and terms and REWARD_MODEL not in names:
        terms.insert(0, RewardTerm(REWARD_MODEL))
    return check_terms(terms)


def _file_in(folder: Path, name: str) -> str:
    """The name of a file in the folder. Raises ConfigError with the names of existing files."""
    names = sorted(path.name for path in folder.glob("*.py"))
    if name not in names:
        found = f"It has {', '.join(names)}." if names else "It has none yet."
        raise ConfigError(f'there is no file "{name}" in the folder of own reward functions, {folder}. {found}')
    return name


def parse_option(name: str, text: str) -> dict[str, Any]:
    """The options of a shipped term from their text. Raises ConfigError for an option that the term does not have."""
    if name == "length":
        window = re.fullmatch(r"\s*(\d+)\s*[-–]\s*(\d+)\s*", text)
        return {"min_words": int(window[1]), "max_words": int(window[2])} if window else {}
    if name == "regex":
        return {"pattern": text}
    if text and name in (REWARD_MODEL, *_WITHOUT_OPTIONS):
        raise ConfigError(f'the reward term {name} has no option, so "{text}" means nothing. Leave it out.')
    return {}


def _checked(term: RewardTerm) -> RewardTerm:
    return check_terms([term])[0]


def custom_file(term: RewardTerm, home: Path) -> Path:
    """The file of a custom function: a path, or a name in HOME/rewards."""
    return home / REWARDS_FOLDER / str(term.options["file"])


def load_custom_function(path: str, name: str) -> Callable[..., object]:
    """Import a function from a file; only the process of the reward terms does this. Raises ConfigError."""
    return load_function(path, name, "reward function")

"""The process of the reward terms: `python -m rlhf_lab.rewards SECONDS`. JSON lines on standard input and output.

The first input line is a list of terms, [name, options, path of an own file]; each further line is a request {"prompts",
"responses"}. Before each text the process writes {"term", "index"}, so that the text which takes too long is known; at the
end it writes {"scores": a list per term} or {"error"}. What functions print goes to standard error.

If the lab's engine was killed, nothing stops a function that never returns. Therefore the process ends itself if a batch takes
longer than SECONDS. The timer is faulthandler's, a C thread, because matching a regular expression holds Python's GIL.
"""

import faulthandler
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

from rlhf_lab.errors import LabError
from rlhf_lab.judges.custom import is_batch_function, required_parameters
from rlhf_lab.rewards.terms import MAX_VALUE, OWN, RewardTerm, load_custom_function, shipped_function

EXCERPT_CHARS = 60
#: Of an error message: it is stored and shown, and an exception may hold any text.
MAX_ERROR_CHARS = 1000
Report = Callable[[str, int], None]


class RewardFunctionError(LabError):
    """A function raised an exception, or returned something other than a finite number."""


def excerpt(prompt: str, response: str) -> str:
    """How error messages name a text."""
    return f"the response {response[:EXCERPT_CHARS]!r} to the prompt {prompt[-EXCERPT_CHARS:]!r}"


def load_functions(items: Sequence[tuple[str, dict[str, Any], str]]) -> list[tuple[str, Callable[..., object]]]:
    """(label, function) of each term. Raises ConfigError."""
    functions: list[tuple[str, Callable[..., object]]] = []
    for name, options, path in items:
        term = RewardTerm(name, 1.0, options)
        is_own = name == OWN
        function = load_custom_function(path, options["function"]) if is_own else shipped_function(term)
        functions.append((term.label, function))
    return functions


def evaluate(
    label: str, function: Callable[..., Any], prompts: list[str], responses: list[str], report: Report
) -> list[float]:
    """The values of a function, which may be a batch function. Raises RewardFunctionError that names the text."""
    if is_batch_function(function):
        report(label, 0)
        try:
            values = list(function(prompts, responses))
        except Exception as error:
            raise RewardFunctionError(f"{label} failed on a batch of {len(responses)} texts: {error!r}") from error
        if len(values) != len(responses):
            raise RewardFunctionError(f"{label} gave {len(values)} values for {len(responses)} texts")
        return [_checked_value(label, *row) for row in zip(values, prompts, responses, strict=True)]
    reads_prompt = required_parameters(function) == 2
    scores = []
    for index, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        report(label, index)
        try:
            value = function(prompt, response) if reads_prompt else function(response)
        except Exception as error:
            raise RewardFunctionError(f"{label} failed on {excerpt(prompt, response)}: {error!r}") from error
        scores.append(_checked_value(label, value, prompt, response))
    return scores


def _checked_value(label: str, value: object, prompt: str, response: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not abs(number) <= MAX_VALUE:
        shown = "too large a whole number" if isinstance(value, int) else repr(value)
        raise RewardFunctionError(
            f"{label} gave {shown:.40} for {excerpt(prompt, response)}, not a finite number of at most {MAX_VALUE:g}"
        )
    return number


def main(time_limit_s: float) -> None:
    faulthandler.dump_traceback_later(time_limit_s, exit=True)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def send(reply: dict[str, Any]) -> None:
        reply |= {"error": reply["error"][:MAX_ERROR_CHARS]} if "error" in reply else {}
        print(json.dumps(reply), file=replies, flush=True)

    def report(label: str, index: int) -> None:
        send({"term": label, "index": index})

    try:
        functions = load_functions(json.loads(requests.readline()))
    except LabError as error:
        send({"error": str(error)})
        return
    faulthandler.cancel_dump_traceback_later()
    for line in requests:
        faulthandler.dump_traceback_later(time_limit_s, exit=True)
        request = json.loads(line)
        try:
            texts = request["prompts"], request["responses"]
            send({"scores": [evaluate(label, function, *texts, report) for label, function in functions]})
        except RewardFunctionError as error:
            send({"error": str(error)})
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(float(sys.argv[1]))

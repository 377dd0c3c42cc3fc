"""Custom judges: functions in Python files that score a response, with or without its prompt."""

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType

from rlhf_lab.common.paths import regular_file
from rlhf_lab.errors import ConfigError


def load_score_function(file: str, name: str) -> Callable[[str, str], float]:
    """The function `name` of a Python file as a function (prompt, response) -> score. Each call imports the file again.

    The custom function has one required parameter, the response, or two: the prompt and the response.
    Raises ConfigError if the file or function is missing or unusable. The returned function raises ConfigError if the custom one
    raises or returns anything but a finite number; True and False count as 1 and 0.
    """
    function = load_function(file, name, "judge")
    return partial(_checked_score, function, required_parameters(function) == 2, f"{file}:{name}")


def load_function(file: str, name: str, kind: str) -> Callable[..., object]:
    """The function `name` of a Python file. Each call imports the file again. kind: its designation in messages.

    Raises ConfigError if it is missing, or cannot be called with a response or with a prompt and a response.
    """
    function = getattr(_load_module(Path(file), kind), name, None)
    if function is None:
        raise ConfigError(f"The file {file} has no function {name!r}. Write {_signatures(name)}.")
    if not callable(function):
        raise ConfigError(f"{name!r} in {file} is not a function. Write {_signatures(name)}.")
    reads_prompt = required_parameters(function) == 2
    try:
        inspect.signature(function).bind(*[""] * (1 + reads_prompt))
    except (TypeError, ValueError) as error:
        message = (
            f"The {kind} {name!r} in {file} cannot be called with a response, or a prompt and a response ({error})."
        )
        raise ConfigError(f"{message} Write {_signatures(name)}.") from error
    result: Callable[..., object] = function
    return result


def is_batch_function(function: Callable[..., object]) -> bool:
    """Whether a function takes lists: its parameters are called prompts and responses."""
    return list(inspect.signature(function).parameters)[:2] == ["prompts", "responses"]


def _signatures(name: str) -> str:
    return f"`def {name}(response: str) -> float:` or `def {name}(prompt: str, response: str) -> float:`"


def required_parameters(function: Callable[..., object]) -> int:
    """The number of positional parameters without a default."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(item.kind in positional and item.default is inspect.Parameter.empty for item in parameters)


def _load_module(path: Path, kind: str) -> ModuleType:
    """Import a file by its path. Raises ConfigError."""
    try:
        regular_file(path)
    except OSError as error:
        raise ConfigError(f"The {kind}'s file {path} cannot be used: {error.strerror}. Give a Python file.") from error
    if not path.is_file():
        raise ConfigError(f"The {kind}'s file {path} does not exist. Check the path, or write FILE.py:NAME.")
    name = f"rlhf_lab_outside_judge_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"The {kind}'s file {path} is not a Python file. Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"The {kind}'s file {path} cannot be imported: {error!r}. Correct it.") from error
    return module


def _checked_score(function: Callable[..., object], reads_prompt: bool, spec: str, prompt: str, response: str) -> float:
    """The function's score of a response. Raises ConfigError as described in `load_score_function`."""
    excerpt = repr(response[:40])
    try:
        value = function(prompt, response) if reads_prompt else function(response)
        score = float(value) if isinstance(value, Real) else None
    except Exception as error:
        message = f"The judge {spec} failed on the text that begins {excerpt}: {error!r}. Correct the function."
        raise ConfigError(message) from error
    if score is None or not math.isfinite(score):
        raise ConfigError(f"The judge {spec} gave {value!r} for the text that begins {excerpt}. Return a number.")
    return score

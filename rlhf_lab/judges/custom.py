"""Custom judges: a function text -> float from a Python file."""

import importlib.util
import math
import sys
from collections.abc import Callable
from functools import partial
from numbers import Real
from pathlib import Path
from types import ModuleType

from rlhf_lab.errors import ConfigError


def load_score_function(file: str, name: str) -> Callable[[str], float]:
    """The function `name` of a Python file, which is imported again at each call.

    Raises ConfigError for a file or function that is missing or unusable. The returned function raises ConfigError when the
    custom one raises or returns anything but a finite number; True and False count as 1 and 0.
    """
    function = getattr(_load_module(Path(file)), name, None)
    if function is None:
        raise ConfigError(f"The file {file} has no function {name!r}. Write `def {name}(text: str) -> float:` into it.")
    if not callable(function):
        raise ConfigError(f"{name!r} in {file} is no function. It must take a text and return a number.")
    return partial(_checked_score, function, f"{file}:{name}")


def _load_module(path: Path) -> ModuleType:
    """Import a file by its path. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"The judge's file {path} does not exist. Check the path, or say FILE.py:NAME.")
    name = f"rlhf_lab_outside_judge_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"The judge's file {path} is no Python file. Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"The judge's file {path} cannot be imported: {error!r}. Correct it.") from error
    return module


def _checked_score(function: Callable[[str], object], spec: str, text: str) -> float:
    """The function's score of a text. Raises ConfigError as `load_score_function` says."""
    excerpt = repr(text[:40])
    try:
        value = function(text)
        score = float(value) if isinstance(value, Real) else None
    except Exception as error:
        message = f"The judge {spec} failed on the text that begins {excerpt}: {error!r}. Correct the function."
        raise ConfigError(message) from error
    if score is None or not math.isfinite(score):
        raise ConfigError(f"The judge {spec} gave {value!r} for the text that begins {excerpt}. Return a number.")
    return score

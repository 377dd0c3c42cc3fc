"""Judges of a person's own: a function text -> float out of a file that they name."""

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
    """The function `name` of a Python file, which is imported anew.

    Raises ConfigError for a file or a function that is missing or cannot be used. What comes back raises ConfigError when the
    function raises, or returns anything but a finite number; True and False count as 1 and 0.
    """
    function = getattr(_load_module(Path(file)), name, None)
    if function is None:
        raise ConfigError(f"The file {file} has no function {name!r}. Write `def {name}(text: str) -> float:` into it.")
    if not callable(function):
        raise ConfigError(f"{name!r} in {file} is no function. It must take a text and return a number.")
    return partial(_checked_score, function, f"{file}:{name}")


def _load_module(path: Path) -> ModuleType:
    """Import a file by its path, anew each time. Raises ConfigError when that does not work."""
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
    """What the function gives the text, as a number. Raises ConfigError as score_of says."""
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

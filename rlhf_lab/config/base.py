"""Base class of the configs: frozen dataclasses whose fields have a help text and a range.

The command line, the form in the browser and the saved manifest are generated from these classes (`fields_of`,
`add_arguments`, `to_dict`, `from_dict`). Values are validated on construction; a ConfigError names the field, the value and the
range.
"""

import argparse
import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Self

from rlhf_lab.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """One field of a config class, for forms and command lines."""

    name: str
    type: type
    default: Any
    optional: bool
    help: str
    low: float | None
    high: float | None
    choices: tuple[str, ...] | None
    group: str
    only: tuple[str, ...] | None

    @property
    def range_text(self) -> str:
        """ "0.1 to 1000"; "" without a range."""
        limits = [limit for limit in (self.low, self.high) if limit is not None]
        return " to ".join(str(limit) if isinstance(limit, int) else f"{limit:g}" for limit in limits)

    def applies_to(self, algorithm: str) -> bool:
        """Whether the algorithm uses this setting. For other algorithms it must have its default."""
        return self.only is None or algorithm in self.only


def setting(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    *,
    choices: tuple[str, ...] = (),
    group: str = "other",
    only: tuple[str, ...] | None = None,
) -> Any:
    """A dataclass field with a help text and an inclusive range.

    choices: of a text; those of a Literal type are read from the type. group: the heading in a form. only: the algorithms that
    use the setting; None means all.
    """
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "group": group, "only": only}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Base class of the configs, with validation, (de)serialisation and command-line arguments from the field metadata."""

    def __post_init__(self) -> None:
        for item in fields_of(type(self)):
            _validate(item, getattr(self, item.name))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Create a config from a mapping. Raises ConfigError for unknown names and invalid values."""
        known = {item.name for item in fields_of(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown setting(s) {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        return cls(**values)

    @classmethod
    def recommended(cls, values: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003  overridden by PolicyConfig
        """Recommended values of the other settings, given the values of some."""
        return {}

    def replace(self, **changes: Any) -> Self:
        return type(self).from_dict(self.to_dict() | changes)


_SETTINGS: dict[type, tuple[Setting, ...]] = {}  # by config class


def fields_of(cls: type) -> tuple[Setting, ...]:
    """The settings of a config class, in order."""
    if cls not in _SETTINGS:
        _SETTINGS[cls] = _read_fields(cls)
    return _SETTINGS[cls]


def _read_fields(cls: type) -> tuple[Setting, ...]:
    hints = typing.get_type_hints(cls)
    settings = []
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        optional = isinstance(hint, types.UnionType)
        base_type = next(arg for arg in typing.get_args(hint) if arg is not type(None)) if optional else hint
        choices = typing.get_args(base_type) or item.metadata["choices"] or None
        base_type = str if choices else base_type
        metadata: dict[str, Any] = {**item.metadata, "choices": choices}
        settings.append(Setting(item.name, base_type, item.default, optional, **metadata))
    return tuple(settings)


def _validate(item: Setting, value: Any) -> None:
    if value is None:
        if not item.optional:
            raise ConfigError(f"{item.name} must not be empty: {item.help}")
        return
    if item.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, item.type) or (item.type is int and isinstance(value, bool)):
        raise ConfigError(f"{item.name} = {value!r} is not a {item.type.__name__}: {item.help}")
    if item.choices is not None and value not in item.choices:
        raise ConfigError(f"{item.name} = {value!r} is unknown; choose one of {', '.join(item.choices)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{item.name} = {value!r} is not a finite number: {item.help}")
    number: Any = value
    if item.low is not None and number < item.low:
        raise ConfigError(f"{item.name} = {value} is below the minimum {item.low:g}: {item.help}")
    if item.high is not None and number > item.high:
        raise ConfigError(f"{item.name} = {value} is above the maximum {item.high:g}: {item.help}")


def add_arguments(parser: argparse.ArgumentParser, cls: type[Config], skip: tuple[str, ...] = ()) -> None:
    """Add one `--name` option per field. If an option is absent, `from_args` uses the recommended value."""
    recommended = cls.recommended({})
    for item in fields_of(cls):
        if item.name in skip:
            continue
        kwargs: dict[str, Any] = {"dest": item.name, "default": None}
        default = recommended.get(item.name, item.default)
        limits = f"; {item.range_text}" if item.range_text else ""
        help_text = f"{item.help}{limits} (default {NONE if default is None else default})".replace("%", "%%")
        if item.type is bool:
            kwargs["action"] = argparse.BooleanOptionalAction
        else:
            kwargs["type"] = _optional_parser(item.type) if item.optional else item.type
            kwargs["metavar"] = "{" + ",".join(item.choices) + "}" if item.choices else item.type.__name__.upper()
        parser.add_argument(f"--{item.name.replace('_', '-')}", help=help_text, **kwargs)


#: The value None on a command line. The parser cannot return None for it, because that means that the option is absent.
NONE = "none"


def _optional_parser(base_type: type) -> Any:
    def parse(text: str) -> Any:
        return NONE if text == NONE else base_type(text)

    parse.__name__ = base_type.__name__  # argparse names the type of a value that is none
    return parse


def from_args(cls: type[Config], args: argparse.Namespace, **defaults: Any) -> Any:
    """The config from parsed arguments. Options take precedence over `defaults`, and these over recommended values."""
    values = dict(defaults)
    for item in fields_of(cls):
        value = getattr(args, item.name, None)
        if value is not None:
            values[item.name] = None if item.optional and value == NONE else value
    return cls.from_dict(cls.recommended(values) | values)

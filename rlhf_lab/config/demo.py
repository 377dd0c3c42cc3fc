"""Settings of demo mode: limits for visitors, and when the lab is reset."""

from dataclasses import dataclass
from typing import Any, Self

from rlhf_lab.config.base import Config, fields_of, setting
from rlhf_lab.errors import ConfigError

DEMO_MODE_ENV_VAR = "RLHF_LAB_DEMO_MODE"


@dataclass(frozen=True)
class DemoConfig(Config):
    """The limits of demo mode for each visitor, and the rules of the reset."""

    max_steps: int = setting(40, "maximum number of steps of a visitor's run", 1, 1000)
    max_responses: int = setting(32, "maximum number of responses in each step", 4, 256)
    max_tokens: int = setting(64, "maximum length of a response, in tokens", 8, 512)
    max_queue: int = setting(5, "visitors cannot start a run while this many runs are unfinished", 1, 100)
    reset_hours: float = setting(6.0, "hours between two resets", 0.1, 720.0)
    reset_runs: int = setting(50, "number of visitors' runs after which the reset comes earlier", 1, 1000)
    reset_labels: int = setting(1000, "number of visitors' labels after which the reset comes earlier", 1, 100_000)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse settings such as "max_steps=20 reset_hours=12", separated by spaces or commas. Others have their defaults.

        Raises ConfigError.
        """
        types = {item.name: item.type for item in fields_of(cls)}
        values: dict[str, Any] = {}
        for item in text.replace(",", " ").split():
            name, has_value, value = item.partition("=")
            if not has_value:
                raise ConfigError(f'"{item}" is not a setting. Write NAME=VALUE, such as max_steps=20.')
            try:
                values[name] = types.get(name, str)(value)
            except ValueError:
                raise ConfigError(f'{name} = "{value}" is not a number.') from None
        return cls.from_dict(values)


def demo_config(option: list[str] | None, variable: str | None) -> DemoConfig | None:
    """The demo mode of a lab, or None if it is off.

    option: the arguments of --demo-mode, or None without it; it takes precedence. variable: RLHF_LAB_DEMO_MODE, which is "1" for
    the defaults, or contains settings; empty or "0" means off. Raises ConfigError, which names the option or the variable.
    """
    source, text = DEMO_MODE_ENV_VAR, (variable or "").strip()
    if option is not None:
        source, text = "--demo-mode", " ".join(option)
    elif text in ("", "0"):
        return None
    elif text == "1":
        return DemoConfig()
    try:
        return DemoConfig.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error

"""A form generated from a config class: one Gradio component per setting, with its help text and range."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import gradio as gr

from rlhf_lab.common.enums import Algorithm
from rlhf_lab.config.base import Config, Setting, fields_of
from rlhf_lab.errors import ConfigError
from rlhf_lab.ui.shared.widgets import SILENT_EVENT, SILENT_MULTIPLE_EVENT

#: The event by which a widget asks for the values of a form.
SEND_VALUES = "send_values"
#: The value of a Gradio field.
FormValue = str | float | bool | None


def parse_settings(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config that a form contains, by name. Raises ConfigError for a value that is not a number."""
    return {item.name: parse_value(item, values[item.name]) for item in fields_of(config) if item.name in values}


class Form:
    """The components of a config, in `components`. `parse` converts their values to a dict, `values` a config to values."""

    def __init__(self, initial: Config, prefix: str) -> None:
        self.settings = fields_of(type(initial))
        initial_values = {item.name: value for item, value in zip(self.settings, self.values(initial), strict=True)}
        self.components: list[Any] = []
        components_by_name: dict[str, Any] = {}
        for group in dict.fromkeys(item.group for item in self.settings):
            group_settings = [item for item in self.settings if item.group == group]
            accordion = gr.Accordion(
                f"{group[:1].upper()}{group[1:]}",
                open=False,
                elem_id=f"{prefix}-group-{group.lower().replace(' ', '-')}",
            )
            with accordion, gr.Row(elem_classes="lab-form-row"):
                components_by_name |= {
                    item.name: build_component(item, prefix, initial_values[item.name]) for item in group_settings
                }
        self.components = [components_by_name[item.name] for item in self.settings]

    def component(self, name: str) -> Any:
        """The component of one setting."""
        return self.components[[item.name for item in self.settings].index(name)]

    def on_change(self, handler: Callable[..., Any], output: Any) -> None:
        """Call the handler with all values when one of them changes; its result becomes the value of `output`."""
        gr.on(
            [component.change for component in self.components], handler, self.components, output,
            **SILENT_EVENT | {"trigger_mode": "always_last"},
        )  # fmt: skip

    def send_values_to(self, component: Any) -> None:
        """Send all values to a widget, in the browser alone: when one of them changes, and when the widget triggers SEND_VALUES.

        The widget gets {"settings": values by name, "sent_at"}; native_form.js reads them.
        """
        names = json.dumps([item.name for item in self.settings])
        settings = f"Object.fromEntries({names}.map((name, i) => [name, values[i]]))"
        script = f"(...values) => ({{ settings: {settings}, sent_at: Date.now() }})"
        options = {"js": script, **SILENT_MULTIPLE_EVENT}
        getattr(component, SEND_VALUES)(None, self.components, component, **options)
        gr.on([field.change for field in self.components], None, self.components, component, **options)

    def parse(self, values: Sequence[Any]) -> dict[str, Any]:
        """The settings by name. Raises ConfigError for a value that is not a number."""
        return {item.name: parse_value(item, value) for item, value in zip(self.settings, values, strict=True)}

    def values(self, config: Config) -> list[Any]:
        """The components' values for a config."""
        values_by_name = config.to_dict()
        return [_display_value(item, values_by_name[item.name]) for item in self.settings]

    def keep_user_edits(self, values: Sequence[Any], before: Config, after: Config) -> list[Any]:
        """The values of config `after`, except that values which the user edited (they differ from config `before`) are kept."""
        pairs = zip(values, self.values(before), self.values(after), strict=True)
        return [new if value == old else value for value, old, new in pairs]

    def component_updates(self, values: Sequence[Any], algorithm: str) -> list[Any]:
        """Gradio updates with these values; settings that the algorithm does not read are disabled and show their default."""
        return [
            gr.update(value=value, interactive=True)
            if item.applies_to(algorithm)
            else gr.update(value=_display_value(item, item.default), interactive=False)
            for item, value in zip(self.settings, values, strict=True)
        ]


def build_component(item: Setting, prefix: str, value: Any) -> Any:
    """The Gradio component of one setting."""
    common: dict[str, Any] = {"label": item.name, "info": help_text(item), "elem_id": f"{prefix}-{item.name}"}
    if item.type is bool:
        return gr.Checkbox(value=value, **common)
    if item.choices:
        return gr.Dropdown(choices=list(item.choices), value=value, **common)
    return gr.Textbox(value=value, max_lines=1, **common)


def help_text(item: Setting) -> str:
    """The help text, with the range of the setting."""
    style = ",.0f" if item.type is int else "g"
    low, high = (format(limit, style) if limit is not None else "" for limit in (item.low, item.high))
    range_text = f" ({low} to {high}{', or none' if item.optional else ''})" if low or high else ""
    return f"{item.help}{range_text}{_only_text(item)}"


def _only_text(item: Setting) -> str:
    """Which algorithms use a setting, or which do not, if these are fewer; "" if all use it."""
    if item.only is None:
        return ""
    others = [name for name in get_args(Algorithm) if name not in item.only]
    return f"; not {', '.join(others)}" if len(others) < len(item.only) else f"; {', '.join(item.only)} only"


def _display_value(item: Setting, value: Any) -> Any:
    if item.type is bool or item.choices:
        return value
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def parse_value(item: Setting, value: Any) -> Any:
    """A setting's value from a form. Raises ConfigError for a value that is not a number."""
    if item.type is bool or item.choices:
        return value
    text = str(value if value is not None else "").strip()
    if item.optional and text.lower() in ("", "none"):
        return None
    try:
        return item.type(text)
    except ValueError:
        type_text = "a whole number" if item.type is int else "a number"
        raise ConfigError(f'{item.name} = "{text}" is not {type_text}: {help_text(item)}') from None

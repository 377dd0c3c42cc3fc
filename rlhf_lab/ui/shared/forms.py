"""A form generated from a config class: one Gradio component per setting, with its help text and range."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import gradio as gr

from rlhf_lab.common.algorithms import ALGORITHMS
from rlhf_lab.config.base import Config, Setting, fields_of
from rlhf_lab.errors import ConfigError
from rlhf_lab.ui.shared.api import Payload
from rlhf_lab.ui.shared.widgets import BROWSER_EVENT

#: The events by which a widget asks for the values of a form, and sets them.
SEND_VALUES, FILL_FIELDS = "send_values", "fill_fields"
#: JavaScript: another number for every reply. Gradio does not tell a widget of a value that equals the one before.
NEXT_NUMBER = "(window.labReplies = (window.labReplies ?? 0) + 1)"
#: The value of a Gradio field.
FormValue = str | float | bool | None


def parse_settings(config: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a config that a form contains, by name. Raises ConfigError for a value that is not a number."""
    return {item.name: parse_value(item, values[item.name]) for item in fields_of(config) if item.name in values}


class SettingsQuery(Payload):
    """settings: the values of a form, by name."""

    settings: dict[str, FormValue]


class Form:
    """The native fields of a config, which exchange their values with a widget in the browser; see native_form.js."""

    def __init__(self, initial: Config, prefix: str, skip: Collection[str] = ()) -> None:
        """skip: the settings that have no field."""
        values = {name: value for name, value in form_values(initial).items() if name not in skip}
        groups = dict[str, list[Setting]]()
        for item in fields_of(type(initial)):
            if item.name in values:
                groups.setdefault(item.group, []).append(item)
        fields: dict[str, Any] = {}
        for group, settings in groups.items():
            accordion = gr.Accordion(
                f"{group[:1].upper()}{group[1:]}",
                open=False,
                elem_id=f"{prefix}-group-{group.lower().replace(' ', '-')}",
            )
            with accordion, gr.Row(elem_classes="lab-form-row"):
                fields |= {item.name: build_component(item, prefix, values[item.name]) for item in settings}
        self.fields = {name: fields[name] for name in values}

    def send_values_to(self, component: Any, **others: Any) -> None:
        """Send all values to a widget: when one of them changes, and when the widget triggers SEND_VALUES.

        The widget gets {"settings": values by name, "sent"}. others: further fields that are sent, by name.
        """
        fields = self.fields | others
        settings = f"Object.fromEntries({json.dumps(list(fields))}.map((name, i) => [name, values[i]]))"
        script = f"(...values) => ({{ settings: {settings}, sent: {NEXT_NUMBER} }})"
        inputs, options = list(fields.values()), {"js": script, **BROWSER_EVENT}
        getattr(component, SEND_VALUES)(None, inputs, component, **options)
        gr.on([field.change for field in inputs], None, inputs, component, **options)

    def fill_from(self, component: Any) -> None:
        """Let a widget set the fields: with FILL_FIELDS each gets the properties under its name in the widget's data-fill, JSON.

        Afterwards the widget gets {"filled"}.
        """
        fill = f"JSON.parse(document.querySelector('#{component.elem_id} .lab').dataset.fill)"
        updates = f"{json.dumps(list(self.fields))}.map((name) => ({{ __type__: 'update', ...fill[name] }}))"
        script = f"() => {{ const fill = {fill}; return [...{updates}, {{ filled: {NEXT_NUMBER} }}]; }}"
        outputs = [*self.fields.values(), component]
        getattr(component, FILL_FIELDS)(None, None, outputs, js=script, **BROWSER_EVENT)


def form_values(config: Config) -> dict[str, FormValue]:
    """The values of a form that shows a config, by name."""
    values = config.to_dict()
    return {item.name: _display_value(item, values[item.name]) for item in fields_of(type(config))}


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
    others = [name for name in ALGORITHMS if name not in item.only]
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

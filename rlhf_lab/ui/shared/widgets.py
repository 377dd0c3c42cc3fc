"""Elements of the page that our own JavaScript draws.

Model text is sent to the page as JSON and inserted through textContent only, because Gradio's HTML component runs markup in
its template and value. A widget reads and acts through requests (`api.py`); with events (`trigger('NAME')` in JavaScript,
`widget(...).NAME(...)` here) it exchanges the values of Gradio's fields within the browser (`forms.py`).
"""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from rlhf_lab.ui.scripts import PLOTLY_ADDRESS, module_address

#: Options of an event in the browser: no progress display, and handled also while the previous one is.
BROWSER_EVENT: dict[str, Any] = {
    "show_progress": "hidden",
    "trigger_mode": "multiple",
    "queue": False,
    "api_visibility": "private",
}
#: What Gradio runs as the body of a function when it has drawn a widget.
MOUNT_SCRIPT = """
const events = [{events}];  // Gradio looks here for their names
const load = (address) => import(new URL(address, document.baseURI));
Promise.all([load('{address}'), {plotly}]).then(
  ([{ default: Screen }]) => new Screen(element.querySelector('.lab'), props.data, { element, props, trigger, watch }),
  () => { element.textContent = 'This part of the page did not load. Reload the page.'; },
);
"""
#: plotly.js is loaded once, with the first widget that has charts.
LOAD_PLOTLY = f"load('{module_address('shared/charts.js')}').then(({{ loadPlotly }}) => loadPlotly('{PLOTLY_ADDRESS}'))"


def widget(
    name: str, script: str, *, events: Sequence[str] = (), charts: bool = False, data: Any = None, label: str = ""
) -> gr.HTML:
    """An empty element `root` that a module fills: `new Screen(root, data, {element, props, trigger, watch})`.

    script: the path of the module below rlhf_lab/ui. Its default export is the class.

    Its class and id are `lab-NAME`, with hyphens for underscores. events: the events that the module triggers; each is an
    attribute of the result. charts: load plotly.js first. data: JSON that the class gets once.
    This is a function and not a subclass of gr.HTML, because Gradio writes a .pyi file beside every subclass.
    """
    css_name = f"lab-{name.replace('_', '-')}"
    mount_script = MOUNT_SCRIPT.replace("{events}", ", ".join(f"'{event}'" for event in events))
    mount_script = mount_script.replace("{plotly}", LOAD_PLOTLY if charts else "null")
    return gr.HTML(
        html_template=f'<div class="lab {css_name}" role="region" aria-label="{label or name}"></div>',
        js_on_load=mount_script.replace("{address}", module_address(script)),
        apply_default_css=False,
        padding=False,
        elem_id=css_name,
        data=data,
    )

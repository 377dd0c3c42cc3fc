"""Elements of the page that our own JavaScript draws.

Model text is sent to the page as JSON and inserted through textContent only, because Gradio's HTML component runs markup in
its template and value. A widget reads data through server functions, which never change anything (they accept requests from
other origins), and acts through events (`trigger('NAME')` in JavaScript, `widget(...).NAME(handler)` here).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from rlhf_lab.ui.scripts import module_address
from rlhf_lab.ui.shared.events import server_function

PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
PLOTLY_TAG = f'<script src="gradio_api/file={PLOTLY_JS}?v={int(PLOTLY_JS.stat().st_mtime)}"></script>'
#: Options of an event: no progress display, not part of the API for programs, not queued.
SILENT_EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
#: The same, but sent even while the reply to the previous event is outstanding.
SILENT_MULTIPLE_EVENT: dict[str, Any] = SILENT_EVENT | {"trigger_mode": "multiple"}
#: What Gradio runs as the body of a function when it has drawn a widget.
MOUNT_SCRIPT = """
const events = [{events}];  // Gradio looks here for their names
import(new URL('{address}', document.baseURI)).then(
  ({ default: mount }) => mount({ element, props, server, trigger, watch }),
  () => { element.textContent = 'This part of the page did not load. Reload the page.'; },
);
"""


def widget(
    name: str, script: str, *, events: Sequence[str] = (),
    server_functions: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None, charts: bool = False, data: Any = None,
    label: str = "",
) -> gr.HTML:  # fmt: skip
    """An empty element that a module fills, which exports `mount({element, props, server, trigger, watch})`.

    script: the path of the module below rlhf_lab/ui.

    Its class and id are `lab-NAME`, with hyphens for underscores. events: the events that the module triggers; each is an
    attribute of the result. server_functions: the functions that the module reads from, by name. charts: load plotly.js first.
    data: JSON that the module gets once, as props.data.
    This is a function and not a subclass of gr.HTML, because Gradio writes a .pyi file beside every subclass.
    """
    css_name = f"lab-{name.replace('_', '-')}"
    mount_script = MOUNT_SCRIPT.replace("{events}", ", ".join(f"'{event}'" for event in events))
    return gr.HTML(
        html_template=f'<div class="lab {css_name}" role="region" aria-label="{label or name}"></div>',
        js_on_load=mount_script.replace("{address}", module_address(script)),
        head=PLOTLY_TAG if charts else None,
        server_functions=[server_function(function, name) for name, function in (server_functions or {}).items()],
        apply_default_css=False,
        padding=False,
        elem_id=css_name,
        data=data,
    )

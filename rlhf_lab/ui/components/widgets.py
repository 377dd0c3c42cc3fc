"""Parts of the page drawn by our own JavaScript: `assets/ui/NAME.js` fills an empty element.

Model text reaches the page as JSON and enters it through textContent only: Gradio's HTML component runs what stands in its
template or value as markup. A widget reads through server functions, which never change anything (they accept requests from
other origins), and acts through events (`trigger` in JavaScript, `widget(…).NAME(handler)` here).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from rlhf_lab.common.bundled_assets import ASSETS

UI_ASSETS = ASSETS / "ui"
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
#: What the browser may fetch as files.
STATIC_PATHS = (UI_ASSETS, PLOTLY_JS)
#: Options of an event: nothing flickers, no endpoint for programs, no waiting behind others.
SILENT_EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
#: The same where what follows before an answer must not be dropped.
SILENT_MULTIPLE_EVENT: dict[str, Any] = SILENT_EVENT | {"trigger_mode": "multiple"}


def _script_tag(path: Path) -> str:
    return f'<script src="gradio_api/file={path}?v={int(path.stat().st_mtime)}"></script>'


def widget(
    name: str, *, server_functions: Sequence[Callable[[Any], Any]] = (), charts: bool = False, scripts: Sequence[str] = (),
    data: Any = None, label: str = "",
) -> gr.HTML:  # fmt: skip
    """`assets/ui/NAME.js` at work in an empty element; the events its `trigger` sends are attributes of what is returned.

    reads: its server functions. charts: load plotly.js and charts.js too. scripts: other files of assets/ui that it needs, by
    name (lab.js is there before: ui/page.py). data: JSON that reaches the script as props.data, once.
    A function and not a subclass of gr.HTML: Gradio writes a .pyi file beside every subclass.
    """
    script_paths = [
        *((PLOTLY_JS, UI_ASSETS / "charts.js") if charts else ()),
        *(UI_ASSETS / f"{script}.js" for script in scripts),
    ]
    return gr.HTML(
        html_template=f'<div class="lab lab-{name}" role="region" aria-label="{label or name}"></div>',
        js_on_load=(UI_ASSETS / f"{name}.js").read_text(encoding="utf-8"),
        head="".join(_script_tag(path) for path in script_paths),
        server_functions=list(server_functions),
        apply_default_css=False,
        padding=False,
        elem_id=f"lab-{name}",
        data=data,
    )

"""Elements of the page that our own JavaScript draws.

Model text reaches the page as JSON and enters it through textContent only: Gradio's HTML component runs markup that stands in
its template or value. A widget reads through server functions, which never change anything (they accept requests from other
origins), and acts through events (`trigger('NAME')` in JavaScript, `widget(...).NAME(handler)` here).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from rlhf_lab.common.bundled_assets import ASSETS
from rlhf_lab.ui.events import server_function

UI_ASSETS = ASSETS / "ui"
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
#: What the browser may fetch as files.
STATIC_PATHS = (UI_ASSETS, PLOTLY_JS)
#: Options of an event: no progress display, not part of the API for programs, not queued.
SILENT_EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
#: The same, sent also while the reply to the one before is outstanding.
SILENT_MULTIPLE_EVENT: dict[str, Any] = SILENT_EVENT | {"trigger_mode": "multiple"}


def script_path(name: str) -> Path:
    """The script `NAME.js`, in whichever folder of assets/ui it stands."""
    return next(UI_ASSETS.rglob(f"{name}.js"))


def _script_tag(path: Path) -> str:
    return f'<script src="gradio_api/file={path}?v={int(path.stat().st_mtime)}"></script>'


def widget(
    name: str, *, server_functions: Mapping[str, Callable[[dict[str, Any]], Any]] | None = None, charts: bool = False,
    scripts: Sequence[str] = (), data: Any = None, label: str = "",
) -> gr.HTML:  # fmt: skip
    """An empty element that NAME.js fills. The events that the script triggers are attributes of the result.

    Its class and id are `lab-NAME`, with hyphens for underscores. server_functions: what the script reads, by name. charts:
    load plotly.js and charts.js too. scripts: other files of assets/ui that it needs, besides those of lib/ (see ui/page.py).
    data: JSON that reaches the script as props.data, once.
    A function and not a subclass of gr.HTML: Gradio writes a .pyi file beside every subclass.
    """
    script_paths = [
        *((PLOTLY_JS, script_path("charts")) if charts else ()),
        *(script_path(other) for other in scripts),
    ]
    css_name = f"lab-{name.replace('_', '-')}"
    return gr.HTML(
        html_template=f'<div class="lab {css_name}" role="region" aria-label="{label or name}"></div>',
        js_on_load=script_path(name).read_text(encoding="utf-8"),
        head="".join(_script_tag(path) for path in script_paths),
        server_functions=[server_function(function, name) for name, function in (server_functions or {}).items()],
        apply_default_css=False,
        padding=False,
        elem_id=css_name,
        data=data,
    )

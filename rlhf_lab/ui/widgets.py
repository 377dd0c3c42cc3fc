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

from rlhf_lab.assets import ASSETS

UI = ASSETS / "ui"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
#: What the browser may fetch as files.
STATIC = (UI, PLOTLY)
#: Options of an event: nothing flickers, no endpoint for programs, no waiting behind others.
UNSEEN: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "queue": False}
#: The same where what follows before an answer must not be dropped.
QUIET: dict[str, Any] = UNSEEN | {"trigger_mode": "multiple"}


def _script(path: Path) -> str:
    return f'<script src="gradio_api/file={path}?v={int(path.stat().st_mtime)}"></script>'


def widget(
    name: str, *, reads: Sequence[Callable[[Any], Any]] = (), charts: bool = False, scripts: Sequence[str] = (),
    data: Any = None, label: str = "",
) -> gr.HTML:  # fmt: skip
    """`assets/ui/NAME.js` at work in an empty element; the events its `trigger` sends are attributes of what is returned.

    reads: its server functions. charts: load plotly.js and charts.js too. scripts: other files of assets/ui that it needs, by
    name (lab.js is there before: ui/page.py). data: JSON that reaches the script as props.data, once.
    A function and not a subclass of gr.HTML: Gradio writes a .pyi file beside every subclass.
    """
    needed = [*((PLOTLY, UI / "charts.js") if charts else ()), *(UI / f"{one}.js" for one in scripts)]
    return gr.HTML(
        html_template=f'<div class="lab lab-{name}" role="region" aria-label="{label or name}"></div>',
        js_on_load=(UI / f"{name}.js").read_text(encoding="utf-8"),
        head="".join(_script(path) for path in needed),
        server_functions=list(reads),
        apply_default_css=False,
        padding=False,
        elem_id=f"lab-{name}",
        data=data,
    )

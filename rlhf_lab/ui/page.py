"""The page: a header strip and one tab a screen. No torch here: it starts in seconds and answers whatever the engine does."""

import os
from pathlib import Path
from typing import Any

import fastapi
import gradio as gr
from gradio.utils import get_upload_folder
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from rlhf_lab.store.database import Database
from rlhf_lab.ui import api, compare, header, label, people, project, reward, runs, train
from rlhf_lab.ui.access import Access
from rlhf_lab.ui.context import Context, guard_events
from rlhf_lab.ui.entrance import entrance
from rlhf_lab.ui.first_look import BodyStart, first_look
from rlhf_lab.ui.gate import Gate
from rlhf_lab.ui.widgets import STATIC, UI

SYSTEM_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
OPERATOR = "rlhf-lab-operator"
SCREENS = {
    "Label": label, "Reward model": reward, "Train": train, "Compare": compare, "Runs & data": runs,
    "People": people, "Project": project,
}  # fmt: skip


#: Visits whose components Gradio keeps, 0.3 MB each. One that was dropped gets them anew when it comes back.
MOST_SESSIONS = 40
#: What visitors sent is looked at every ten minutes and goes after an hour; seconds.
KEPT = (600, 3600)


def theme() -> gr.themes.Base:
    """Fonts of the system only: nothing is fetched from elsewhere."""
    return gr.themes.Soft(
        primary_hue="indigo", neutral_hue="slate", font=SYSTEM_FONTS, font_mono=["ui-monospace", "Menlo", "monospace"]
    )


def build_page(ctx: Context) -> gr.Blocks:
    gr.set_static_paths(list(STATIC))
    page: gr.Blocks = gr.Blocks(title="RLHF Lab", analytics_enabled=False, fill_width=True, delete_cache=KEPT)
    with page:
        operator = gr.BrowserState("", storage_key=OPERATOR, secret="rlhf-lab")
        header.build(ctx, operator)
        with gr.Tabs():
            for name, screen in SCREENS.items():
                with gr.Tab(name):
                    screen.build(ctx, operator)
        api.build(ctx)
    guard_events(page, ctx)
    return page


def body_start() -> str:
    """Every style sheet of ours, and the scripts that must run before Gradio's. Not as its `css`, where Gradio rewrites
    selectors and media queries are lost."""
    styles = "\n".join(path.read_text(encoding="utf-8") for path in sorted(UI.glob("*.css")))
    scripts = "\n".join((UI / f"{name}.js").read_text(encoding="utf-8") for name in ("storage", "lab", "first"))
    return f"<style>{styles}</style><script>{scripts}</script>"


def launch_options(ctx: Context) -> dict[str, Any]:
    """Everything `launch` gets besides the address; safe defaults. Where visitors have roles, the pages to enter by."""
    middleware = [
        Middleware(GZipMiddleware, minimum_size=500),  # what a page polls, by half
        Middleware(BodyStart, html=body_start(), access=ctx.access, operates=ctx.operates),
        Middleware(Gate, alone=not ctx.access.guarded, uploads=Path(get_upload_folder())),
    ]
    options: dict[str, Any] = {
        "share": False, "show_error": False, "enable_monitoring": False, "strict_cors": True, "ssr_mode": False,
        "mcp_server": False, "allowed_paths": [], "max_file_size": "5mb", "theme": theme(), "quiet": True,
        "state_session_capacity": MOST_SESSIONS,
        "_frontend": False,  # else Gradio looks at its own page and ends where a busy machine takes 3 s to draw it
        "footer_links": [], "app_kwargs": {"middleware": middleware, "routes": [first_look(ctx)]},
    }  # fmt: skip
    if ctx.proxied:
        options["root_path"] = ctx.address.rstrip("/")
    if not ctx.access.guarded:
        return options
    access = ctx.access

    def user(request: fastapi.Request) -> str:
        visitor = access.visitor(request)
        return f"{visitor.role}:{visitor.name}"

    return options | {
        "auth_dependency": user,
        "app_kwargs": options["app_kwargs"] | {"routes": [first_look(ctx), *doors(ctx.db, access)]},
    }


def doors(db: Database, access: Access) -> list[BaseRoute]:
    """Join code and operator's link; on a Space with OAuth also the account of Hugging Face."""
    if not os.environ.get("OPENID_PROVIDER_URL"):
        return entrance(db, access)
    from rlhf_lab.ui.sign_in import configured, sign_in  # authlib takes as long to import as a screen to build

    provider = configured()
    if provider is None:
        return entrance(db, access)
    return [*entrance(db, access, sign_in=True), *sign_in(db, access, provider)]

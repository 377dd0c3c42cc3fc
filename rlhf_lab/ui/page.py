"""The page: a header strip and one tab per screen. Imports no torch, so that it starts in seconds."""

import math
import os
from typing import Any

import fastapi
import gradio as gr
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute

from rlhf_lab.common.text import pluralize
from rlhf_lab.store.database import Database
from rlhf_lab.ui import http_api
from rlhf_lab.ui.auth.login_routes import login_routes
from rlhf_lab.ui.auth.oauth import OAuthProvider
from rlhf_lab.ui.auth.visitors import Access
from rlhf_lab.ui.body_limits import BodyLimits
from rlhf_lab.ui.chat import api as chat
from rlhf_lab.ui.compare import api as compare
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.compare.tournament import api as tournament
from rlhf_lab.ui.context import Context, sent_secret
from rlhf_lab.ui.gradio_patches import NO_FIRST_REQUEST, upload_folder
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.initial_html import BodyInjectionMiddleware, page_routes
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.learn import api as learn
from rlhf_lab.ui.limits import LIMITS, RequestLimiter
from rlhf_lab.ui.middleware import BodyPieces, FrameGuard, RequestGuard, RouteGuard, frame_origins
from rlhf_lab.ui.people import api as people
from rlhf_lab.ui.project import api as project
from rlhf_lab.ui.request_checks import BadRequestError, RequestChecks
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.runs import api as runs
from rlhf_lab.ui.scripts import FIRST_SCRIPT, STYLES, gradio_assets_route, module_route, module_tags, plotly_route
from rlhf_lab.ui.share import api as share
from rlhf_lab.ui.shared.api import Requests, act_limits
from rlhf_lab.ui.train import api as train
from rlhf_lab.ui.train.demo_run import api as demo_run
from rlhf_lab.ui.train.start_run import api as start_run

SYSTEM_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "sans-serif"]
#: The requests of the page.
APIS = (
    header.api, label.api, reward.api, train.api, start_run.api, demo_run.api, compare.api, blind_test.api, tournament.api,
    chat.api, learn.api, share.api, *runs.APIS, people.api, project.api,
)  # fmt: skip
SCREENS = {
    "Label": label, "Reward model": reward, "Train": train, "Compare": compare, "Chat": chat, "Learn": learn,
    "Runs & data": runs, "People": people, "Project": project,
}  # fmt: skip
#: Sessions (open pages, programs) whose components Gradio keeps in memory, 0.3 MB each. Creating them again for a dropped session
#: takes 20 ms of CPU, for every call if there are more clients than sessions.
MAX_SESSIONS = 200
#: How often Gradio looks for old uploads, and the age at which it deletes them, in seconds.
UPLOAD_CACHE_SECONDS = (600, 3600)


def theme() -> gr.themes.Base:
    """System fonts only: nothing is fetched from other servers."""
    return gr.themes.Soft(
        primary_hue="indigo", neutral_hue="slate", font=SYSTEM_FONTS, font_mono=["ui-monospace", "Menlo", "monospace"]
    )


def build_page(ctx: Context) -> gr.Blocks:
    page: gr.Blocks = gr.Blocks(
        title="RLHF Lab", analytics_enabled=False, fill_width=True, delete_cache=UPLOAD_CACHE_SECONDS
    )
    with page:
        header.build()
        if ctx.on_space:
            build_space_note()
        with gr.Tabs():
            for name, screen in SCREENS.items():
                with gr.Tab(name):
                    screen.build(ctx)
        http_api.build(ctx)
    return page


def build_space_note() -> None:
    """What a visitor of a Space is told first: what it is, where to sign in, and how to get a lab of their own.

    The button does what gr.DuplicateButton does where Gradio knows that it is on a Space (`rlhf_lab.ui`).
    """
    sign_in = '<a href="join">Sign in</a> to label under your name. ' if OAuthProvider.from_env(os.environ) else ""
    with gr.Row(elem_id="lab-space"):
        gr.HTML(
            '<p class="lab"><span class="rest">Here people compare texts, and a language model learns what they prefer. </span>'
            f"{sign_in}Duplicate it to get a lab of your own; you choose its hardware at Hugging Face.</p>",
            padding=False,
        )
        address = f"https://huggingface.co/spaces/{os.environ['SPACE_ID']}?duplicate=true"
        gr.Button("Duplicate this Space", link=address, link_target="_blank", variant="huggingface", size="sm", scale=0)


def initial_body_html() -> str:
    """All our style sheets, the script that must run before Gradio's, and the modules.

    Gradio's own `css` option rewrites selectors and loses media queries.
    """
    styles = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    return f"<style>{styles}</style><script>{FIRST_SCRIPT.read_text(encoding='utf-8')}</script>{module_tags()}"


def launch_options(ctx: Context) -> dict[str, Any]:
    """Arguments of Gradio's `launch` besides the address. A multi-user lab also gets the login routes."""
    requests, limiter = Requests(ctx, APIS), RequestLimiter({**LIMITS, **act_limits(APIS)})
    routes: list[BaseRoute] = [
        requests.route(),
        plotly_route(),
        module_route(),
        gradio_assets_route(),
        *page_routes(ctx),
        *http_api.routes(ctx),
    ]
    if ctx.access.is_multi_user:
        routes += auth_routes(ctx.db, ctx.access)
    middleware = [
        Middleware(FrameGuard, origins=frame_origins(os.environ)),
        Middleware(BodyPieces),
        Middleware(GZipMiddleware, minimum_size=500),  # halves what a page polls
        Middleware(BodyInjectionMiddleware, html=initial_body_html(), access=ctx.access, is_operator=ctx.is_operator),
        Middleware(
            RequestGuard,
            local_only=not ctx.access.is_multi_user,
            public_url=ctx.access.public_url,
        ),
        Middleware(RouteGuard, own_routes=routes),
        Middleware(BodyLimits, may_upload=ctx.is_operator, upload_folder=upload_folder()),
        Middleware(RequestChecks, count=lambda request, name: count_act(ctx, limiter, request, requests.act(name))),
    ]
    options: dict[str, Any] = {
        "share": False, "show_error": False, "enable_monitoring": False, "strict_cors": True, "ssr_mode": False,
        "mcp_server": False, "pwa": False, "run_history": False, "allowed_paths": [], "max_file_size": "5mb", "quiet": True,
        "theme": theme(),
        "state_session_capacity": MAX_SESSIONS,
        **NO_FIRST_REQUEST, "footer_links": [], "app_kwargs": {"middleware": middleware, "routes": routes},
    }  # fmt: skip
    if ctx.behind_proxy:
        options["root_path"] = ctx.public_url.rstrip("/")
    if not ctx.access.is_multi_user:
        return options
    access = ctx.access

    async def identify_visitor(request: fastapi.Request) -> str:
        visitor = await run_in_threadpool(access.visitor, request)
        return f"{visitor.role}:{visitor.name}"

    return options | {"auth_dependency": identify_visitor}


def count_act(ctx: Context, limiter: RequestLimiter, request: Request, act: str) -> None:
    """Count an act of a visitor. Raises BadRequestError if they, or their address, have done it too often. The operator has no
    limit."""
    if not ctx.access.is_multi_user or ctx.is_operator(request):
        return
    visitor, address = ctx.visitor(request).name, ctx.access.client_address(request)
    acts = [act, "wrong_secret"] if sent_secret(request) else [act]
    if wait_s := max(limiter.wait_s(each, visitor, address) for each in acts):
        seconds = math.ceil(wait_s)
        raise BadRequestError(
            f"Too many requests of this kind came from you or from your network. Try again in {wait_text(seconds)}.",
            429,
            seconds,
        )


def wait_text(seconds: int) -> str:
    """ "40 seconds", "3 minutes", "6 hours", rounded up."""
    if seconds < 100:
        return pluralize(seconds, "second")
    return (
        pluralize(math.ceil(seconds / 60), "minute") if seconds < 7200 else pluralize(math.ceil(seconds / 3600), "hour")
    )


def auth_routes(db: Database, access: Access) -> list[BaseRoute]:
    """Login by join code, operator's link and password; on a Space with OAuth also by a Hugging Face account."""
    if not os.environ.get("OPENID_PROVIDER_URL"):
        return login_routes(db, access)
    from rlhf_lab.ui.auth.oauth import OAuthProvider, oauth_routes  # authlib is slow to import

    provider = OAuthProvider.from_env(os.environ)
    if provider is None:
        return login_routes(db, access)
    return [*login_routes(db, access, show_oauth=True), *oauth_routes(db, access, provider)]

"""What Gradio offers, and what the lab has decided about each: a version that offers more fails here."""

import importlib
import inspect
from dataclasses import replace

import gradio as gr
import pytest
from gradio.utils import get_space

import rlhf_lab.ui
from rlhf_lab.ui.page import build_page, launch_options

ON_PAGE = "a part of the page or of its address"
OURS = "the lab has its own"
#: Parameters of Blocks: what they do for the lab, or why it leaves them alone.
BLOCKS = {
    "analytics_enabled": "off: sends data elsewhere", "title": ON_PAGE, "fill_width": ON_PAGE, "fill_height": ON_PAGE,
    "mode": "a word in analytics", "delete_cache": "uploads are removed", "kwargs": "none",
}  # fmt: skip
#: Parameters of launch that the lab sets, with the value that matters; ... for one that depends on the lab.
SET = {
    "share": False, "show_error": False, "enable_monitoring": False, "strict_cors": True, "ssr_mode": False, "mcp_server": False,
    "pwa": False, "run_history": False, "allowed_paths": [], "footer_links": [], "quiet": True, "_frontend": False,
    "max_file_size": "5mb", "theme": ..., "state_session_capacity": ..., "app_kwargs": ...,
}  # fmt: skip
#: Parameters of launch that stay at their defaults.
LEFT = {
    **dict.fromkeys(("auth", "auth_message"), OURS + ": visitors.py"),
    **dict.fromkeys(("css", "css_paths", "js", "head", "head_paths"), OURS + ": initial_html.py"),
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_keyfile_password", "ssl_verify"), "a proxy does it"),
    **dict.fromkeys(("share_server_address", "share_server_protocol", "share_server_tls_certificate"), "share is off"),
    **dict.fromkeys(("node_server_name", "node_port"), "ssr_mode is off"),
    **dict.fromkeys(("inline", "height", "width"), "for notebooks"),
    "inbrowser": "nothing is opened", "debug": "serve.py waits itself", "max_threads": "enough", "blocked_paths": "none allowed",
    "favicon_path": "Gradio's", "num_workers": "one process has the state of the lab", "i18n": "the page is in English",
    "_app": "Gradio makes it", "prevent_thread_lock": "set by serve.py", "server_name": "set by serve.py",
    "server_port": "set by serve.py", "root_path": "set behind a proxy", "auth_dependency": "set where visitors have roles",
}  # fmt: skip


def parameters(function):
    return set(inspect.signature(function).parameters) - {"self"}


def test_there_is_a_decision_about_every_parameter():
    assert parameters(gr.Blocks.__init__) == set(BLOCKS)
    assert parameters(gr.Blocks.launch) == set(SET) | set(LEFT)
    assert not set(SET) & set(LEFT)


def test_what_shows_other_pages_or_sends_data_is_off(ctx, monkeypatch, in_loop):
    for name in ("RUN_HISTORY", "SHARE", "MCP_SERVER", "SSR_MODE", "ANALYTICS_ENABLED"):
        monkeypatch.setenv(f"GRADIO_{name}", "True")
    options = launch_options(ctx)
    assert set(options) == set(SET)
    assert {name: options[name] for name, value in SET.items() if value is not ...} == {
        name: value for name, value in SET.items() if value is not ...
    }
    page = in_loop(lambda: build_page(ctx))
    assert not page.analytics_enabled
    assert not page.dev_mode


@pytest.mark.parametrize("space", ["", "somebody/lab"])
def test_only_a_space_has_the_button_that_duplicates_it(ctx, monkeypatch, in_loop, space):
    monkeypatch.setenv("SPACE_ID", space)
    page = in_loop(lambda: build_page(replace(ctx, on_space=bool(space))))
    links = [block.link for block in page.blocks.values() if isinstance(block, gr.Button) and block.link]
    assert links == (["https://huggingface.co/spaces/somebody/lab?duplicate=true"] if space else [])


def test_gradio_does_not_know_that_it_is_on_a_space(monkeypatch):
    """Otherwise it starts a server that replaces the program's code, and its page asks huggingface.co about the Space."""
    monkeypatch.setenv("SYSTEM", "spaces")
    monkeypatch.setenv("SPACE_ID", "somebody/lab")
    assert get_space() == "somebody/lab"
    importlib.reload(rlhf_lab.ui)
    assert get_space() is None

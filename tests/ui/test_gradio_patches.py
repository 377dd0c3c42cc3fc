"""What the lab uses of Gradio beyond its documented interface: all in one file, and all there in the installed version."""

import importlib
import inspect
import re
from pathlib import Path

import gradio as gr
import pytest
from gradio.block_function import BlockFunction
from gradio.routes import App

from rlhf_lab.ui import gradio_patches

PACKAGE = Path(gradio_patches.__file__).parents[1]
#: Each attribute and what it is used for.
ATTRIBUTES = {
    "gradio.context.LocalContext.request": "the request of a visitor or a program (current_request, set_current_request)",
    "gradio.processing_utils.check_all_files_in_cache": "refusing files that were not uploaded (names_other_file)",
    "gradio.processing_utils.save_file_to_cache": "offering downloads (save_to_cache)",
    "gradio.route_utils.BUILD_PATH_LIB": "serving Gradio's scripts (ASSETS_FOLDER)",
    "gradio.utils.get_upload_folder": "uploads (upload_folder)",
    "uvicorn.protocols.http.auto.AutoHTTPProtocol": "limits of connections (http_protocol)",
    "gradio.component_meta.create_or_modify_pyi": "a faster import (without_stubs)",
}
#: How the package may not reach into Gradio elsewhere: submodules, and attributes of its events, pages and requests.
PRIVATE_USE = re.compile(
    r"from gradio\.|import gradio\.|gr\.\w+\._\w|\bpage\._\w|\bLocalContext\b|\.fns\b|\._data\b|\bprocess_api\b"
    r"|_is_server_fn|\bserver_fns\b"
)


def missing(name, use):
    return (
        f"Gradio {gr.__version__} has no {name}, which the lab needs for: {use}. Find what replaces it and change "
        "rlhf_lab/ui/gradio_patches.py."
    )


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_gradio_still_has_what_is_patched_or_used(name):
    module, *attributes = name.split(".")
    found = importlib.import_module(module)
    for attribute in attributes:
        try:
            found = getattr(found, attribute, None) or importlib.import_module(f"{found.__name__}.{attribute}")
        except (ImportError, AttributeError):
            pytest.fail(missing(name, ATTRIBUTES[name]))


def test_every_import_from_a_module_of_gradio_is_named_above():
    source = inspect.getsource(gradio_patches)
    imported = {
        f"{module}.{name.strip()}"
        for module, names in re.findall(r"from (gradio\.\w+) import (.*)", source)
        for name in names.split(",")
    }
    assert imported <= {name.removesuffix(".request") for name in ATTRIBUTES}


def test_gradio_still_has_the_events_of_a_page(in_loop):
    def build():
        with gr.Blocks(analytics_enabled=False) as page:
            gr.Button().click(lambda: None, None, None, api_name="press")
        return page, App.create_app(page)

    page, app = in_loop(build)
    use = "checking requests before Gradio reads them (page_events)"
    assert list(getattr(page, "fns", {})) == [0], missing("Blocks.fns", use)
    assert isinstance(page.fns[0], BlockFunction)
    assert hasattr(page._queue, "sleep_when_free"), missing("Blocks._queue.sleep_when_free", "an idle page at rest")
    gradio_patches.check_queue_less_often(page)
    assert page._queue.sleep_when_free == gradio_patches.QUEUE_POLL_S == 0.01
    sessions = page._queue.pending_event_ids_session
    assert sessions == {}, missing("Blocks._queue.pending_event_ids_session", "bounded sessions of the queue")
    sessions |= {f"s{i}": {"event"} for i in range(gradio_patches.MAX_QUEUE_SESSIONS + 2)}
    gradio_patches.forget_old_sessions(app)
    assert len(sessions) == gradio_patches.MAX_QUEUE_SESSIONS
    assert "s1" not in sessions
    assert "s2" in sessions
    for attribute in ("api_name", "inputs", "fn"):
        assert hasattr(page.fns[0], attribute), missing(f"BlockFunction.{attribute}", use)
    assert gradio_patches.page_events(app) is page.fns, missing("App.blocks", use)
    assert gradio_patches.page_events(object()) is None


def test_gradio_still_starts_without_a_request_to_itself():
    parameters = inspect.signature(gr.Blocks.launch).parameters
    for name in gradio_patches.NO_FIRST_REQUEST:
        assert name in parameters, missing(f"Blocks.launch({name})", "a start that does not depend on a request in 3 s")


def test_gradio_skips_stubs_of_classes_without_a_file():
    from gradio.component_meta import create_or_modify_pyi

    assert "inspect.getfile" in inspect.getsource(create_or_modify_pyi), missing(
        "inspect.getfile in create_or_modify_pyi", ATTRIBUTES["gradio.component_meta.create_or_modify_pyi"]
    )


def test_no_other_module_reaches_into_gradio():
    uses = {
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path != Path(gradio_patches.__file__)
        for line in path.read_text(encoding="utf-8").splitlines()
        if PRIVATE_USE.search(line)
    }
    assert uses == set(), "These belong in rlhf_lab/ui/gradio_patches.py, with their reason."

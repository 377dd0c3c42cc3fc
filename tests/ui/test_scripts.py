"""URLs of the page's modules: they contain the version, and browsers cache them permanently."""

import gzip
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from rlhf_lab.ui import scripts
from rlhf_lab.ui.scripts import (
    MODULE_FOLDER,
    MODULES,
    PLOTLY_ADDRESS,
    PLOTLY_JS,
    gradio_assets_route,
    module_address,
    module_route,
    module_tags,
    plotly_route,
)
from rlhf_lab.ui.share.page import resolve
from rlhf_lab.ui.shared.widgets import widget


@pytest.fixture
def client():
    return TestClient(Starlette(routes=[module_route()]))


def test_a_module_is_served_as_it_is_and_kept_for_ever(client):
    reply = client.get(f"/{MODULE_FOLDER}/shared/dom.js")
    assert reply.status_code == 200
    assert reply.content == (scripts.UI / "shared" / "dom.js").read_bytes()
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
    assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path",
    [
        "lab-assets/0123456789abcdef/shared/dom.js",  # of another version
        f"{MODULE_FOLDER}/lib/boot.js",
        f"{MODULE_FOLDER}/before_gradio.js",
        f"{MODULE_FOLDER}/shared/../page.css",
        f"{MODULE_FOLDER}/shared/%2e%2e/page.css",
    ],
)
def test_nothing_else_is_served(client, path):
    assert client.get(f"/{path}").status_code == 404


@pytest.fixture
def gradio_files(tmp_path):
    """A folder like that of Gradio's page, and its client."""
    folder = tmp_path / "assets"
    folder.mkdir()
    (folder / "index-DphvyggB.js").write_text("export const one = 1;\n" * 100)
    (folder / "plain.js").write_text("2")
    (tmp_path / "secret-DphvyggB.js").write_text("3")
    return folder, TestClient(Starlette(routes=[gradio_assets_route(folder)]))


def test_a_file_of_gradio_is_compressed_once_and_kept_for_ever(gradio_files):
    folder, client = gradio_files
    source = (folder / "index-DphvyggB.js").read_text()
    replies = [client.get("/assets/index-DphvyggB.js")]
    (folder / "index-DphvyggB.js").unlink()
    replies += [client.get("/assets/index-DphvyggB.js", headers=headers) for headers in ({}, {"accept-encoding": ""})]
    for reply, encoding in zip(replies, ["gzip", "gzip", None], strict=True):
        assert (reply.text, reply.headers.get("content-encoding")) == (source, encoding)
        assert reply.headers["content-type"].startswith("text/javascript")
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert reply.headers["vary"] == "Accept-Encoding"


def test_plotly_is_compressed_once_and_kept_for_ever(monkeypatch):
    """And not by Gradio, for each request."""
    client, compressed, compress = TestClient(Starlette(routes=[plotly_route(), module_route()])), [], gzip.compress
    monkeypatch.setattr(scripts, "_COMPRESSED_FILES", {})
    monkeypatch.setattr(scripts.gzip, "compress", lambda data: compressed.append(len(data)) or compress(data))
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: client.get(f"/{PLOTLY_ADDRESS}"), range(4)))
    assert compressed == [PLOTLY_JS.stat().st_size]
    for reply in [*replies, client.get(f"/{PLOTLY_ADDRESS}", headers={"accept-encoding": ""})]:
        assert reply.content == PLOTLY_JS.read_bytes()
        assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_a_file_without_a_hash_in_its_name_is_not_kept(gradio_files):
    reply = gradio_files[1].get("/assets/plain.js")
    assert (reply.text, reply.headers.get("cache-control")) == ("2", None)


@pytest.mark.parametrize("path", ["none-DphvyggB.js", "../secret-DphvyggB.js", "%2e%2e/secret-DphvyggB.js", "", "."])
def test_no_other_file_is_served(gradio_files, path):
    assert gradio_files[1].get(f"/assets/{path}").status_code == 404


def test_the_version_depends_on_every_module():
    assert re.fullmatch(r"lab-assets/[0-9a-f]{16}", MODULE_FOLDER)
    changed = scripts.version_of(MODULES | {"shared/diff.js": MODULES["shared/diff.js"] + b"\n"})
    renamed = scripts.version_of({name.replace("diff", "diffs"): source for name, source in MODULES.items()})
    assert len({scripts.version_of(MODULES), changed, renamed}) == 3


def test_a_first_visit_loads_each_module_that_it_needs_once_by_a_relative_address():
    addresses = re.findall(r'(?:src|href)="([^"]+)"', module_tags())
    needed = [name for name in MODULES if not name.startswith(scripts.LOADED_LATER)]
    assert sorted(addresses) == sorted(f"{MODULE_FOLDER}/{name}" for name in needed)
    imports = re.compile(r"from '(\.[^']+)'")
    for name in needed:  # nothing that is loaded now imports what is loaded later
        for address in imports.findall(MODULES[name].decode()):
            assert not resolve(PurePosixPath(name).parent, address).startswith(scripts.LOADED_LATER)
    assert addresses[0] == f"{MODULE_FOLDER}/label/first_pair.js"


def test_a_widget_loads_its_module_and_has_its_events():
    component = widget("runs", "runs/view.js", events=("control", "export"))
    assert module_address("runs/view.js") == f"{MODULE_FOLDER}/runs/view.js"
    assert f"load('{MODULE_FOLDER}/runs/view.js')" in component.js_on_load
    assert callable(component.control)
    assert not hasattr(component, "answer")


def test_dates_and_numbers_are_english_in_every_browser():
    texts = {path: path.read_text(encoding="utf-8") for path in scripts.UI.rglob("*.js")}
    calls = [
        (name, call) for name, text in texts.items() for call in re.findall(r"toLocale\w*\((?:'en(?:-GB)?')?", text)
    ]
    assert calls
    assert [call for call in calls if "'en" not in call[1]] == []
    assert "Intl." not in "".join(texts.values())

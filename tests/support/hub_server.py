"""A local Hub server for tests with the real client: model pages, file listings, and files in parts."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "a" * 40
CHUNK = 20_000


class HubServer:
    """models: Hub id -> folder. The weights stop in the middle until `go_on` is set.

    is_down: every request fails, and so does a transfer in progress. breaks: how many transfers of the weights break in
    the middle. requests: (method, path, Range header) of every request.
    """

    def __init__(self) -> None:
        self.models: dict[str, Path] = {}
        self.go_on = threading.Event()
        self.go_on.set()
        self.is_down, self.breaks = False, 0
        self.requests: list[tuple[str, str, str]] = []
        hub = self

        class Handler(HubRequestHandler):
            server_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @contextmanager
    def running(self) -> Iterator["HubServer"]:
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.go_on.set()
            self.server.shutdown()
            self.server.server_close()
            thread.join()

    def use(self, monkeypatch, cache: Path) -> "HubServer":
        """Let the client in this process talk to this server."""
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", self.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        monkeypatch.setattr("huggingface_hub.constants.HF_XET_CACHE", str(cache / "xet"))
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", self.url)  # of the client's functions
        return self

    def environment(self, cache: Path) -> dict[str, str]:
        """For a process that is to talk to this server."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(cache)}

    def transfers(self, file: str) -> list[str]:
        """The Range headers of the requests for a file's content; "" where there was none."""
        return [part for method, path, part in self.requests if method == "GET" and path.endswith(f"/{file}")]


class HubRequestHandler(BaseHTTPRequestHandler):
    server_hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server_hub, urlsplit(self.path).path.strip("/")
        hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if hub.is_down:
            return self.reply(503, b"{}")
        parts = path.split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        folder = hub.models.get(name)
        if folder is None:
            return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        if parts[0] == "api":
            return self.reply(200, json.dumps(self.description(name, files, is_tree="tree" in parts)).encode())
        file = files.get("/".join(parts[4:]))
        if file is None:
            return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        return self.send_file(file)

    @staticmethod
    def description(name: str, files: dict[str, Path], is_tree: bool) -> object:
        sizes = {file: path.stat().st_size for file, path in files.items()}
        if is_tree:
            return [
                {"type": "file", "path": file, "size": size, "oid": digest(files[file])} for file, size in sizes.items()
            ]
        siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        return {"id": name, "sha": COMMIT, "siblings": siblings}

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (
            {"Content-Length": str(len(body)), "Content-Type": "application/json"} | (headers or {})
        ).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, file: Path) -> None:
        content = file.read_bytes()
        first, last = 0, len(content) - 1
        if byte_range := self.headers.get("Range", "").removeprefix("bytes="):
            start, _, end = byte_range.partition("-")
            first, last = int(start), min(int(end), last) if end else last
        self.send_response(206 if byte_range else 200)
        for key, value in {
            "Content-Length": str(last + 1 - first), "Content-Range": f"bytes {first}-{last}/{len(content)}",
            "ETag": f'"{digest(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes",
        }.items():  # fmt: skip
            if byte_range or key != "Content-Range":
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            reads_header = byte_range.startswith("0-") and byte_range != "0-"
            self.send_parts(content[first : last + 1], file.suffix == ".safetensors" and not reads_header)

    def send_parts(self, content: bytes, is_weights: bool) -> None:
        """Send the first chunk of the weights, and the rest once `go_on` is set."""
        hub = self.server_hub
        self.wfile.write(content[:CHUNK])
        self.wfile.flush()
        if is_weights and hub.breaks:
            hub.breaks -= 1
            self.close_connection = True
            return
        if is_weights:
            while not hub.go_on.wait(0.02):
                if hub.is_down:
                    self.close_connection = True
                    return
        self.wfile.write(content[CHUNK:])


def digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()

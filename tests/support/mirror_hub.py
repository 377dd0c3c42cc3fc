"""A private dataset repository of a Hub, served from a folder on disk to the real Hub client: commits with a parent, uploads,
downloads of one commit, squashing. It can be slow, fail, limit the rate, and drop connections.

As a separate process: python tests/support/mirror_hub.py FOLDER --port 8000 --fault-share 0.1 --slow 0.5
"""

import argparse
import base64
import hashlib
import json
import random
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test_write"
READ_TOKEN = "hf_test_read"
MAX_REGULAR_BYTES = 20_000  # larger files are uploaded as objects first
FAULTS = ("error", "limit", "drop", "drop-after")


class MirrorHub:
    """The repository is stored in the folder, so a new server continues with it.

    faults: of the next requests of a stage, as (stage, fault); a stage is info, create, preupload, batch, object, commit,
    download or squash; faults: error (503), limit (429 with Retry-After), drop (the connection ends without an answer),
    drop-after (the same after the request was carried out), or a status code.
    fault_share: share of all requests that get a random fault. slow_s: seconds before each answer.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        for name in ("objects", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.faults: list[tuple[str, str]] = []
        self.fault_share, self.slow_s, self.rng = 0.0, 0.0, random.Random(0)
        self.is_down = False
        self.stages: list[str] = []  # of every request
        self.fault_counts: Counter[str] = Counter()  # random faults; "": none
        self.lock = threading.RLock()
        hub = self

        class Handler(MirrorHubHandler):
            server_hub = hub

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address) -> None:
                if not isinstance(sys.exception(), ConnectionError):  # the client was killed
                    super().handle_error(request, client_address)

        self.server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @contextmanager
    def running(self) -> Iterator["MirrorHub"]:
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()

    def environment(self, cache: Path, token: str = TOKEN) -> dict[str, str]:
        """For a process that is to talk to this server."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), "HF_TOKEN": token, "HF_HUB_DISABLE_XET": "1"}

    def use(self, monkeypatch, cache: Path, token: str = TOKEN) -> "MirrorHub":
        """Let the client in this process talk to this server."""
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", self.url)
        template = self.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(
            "huggingface_hub.utils._http.time.sleep", lambda seconds: None
        )  # before the client's own retries
        monkeypatch.setenv("HF_TOKEN", token)
        return self

    # ---- the repository

    @property
    def exists(self) -> bool:
        return (self.folder / "repository.json").exists()

    @property
    def is_private(self) -> bool:
        return bool(json.loads((self.folder / "repository.json").read_text())["private"])

    def create(self, *, private: bool = True) -> None:
        self._write(self.folder / "repository.json", json.dumps({"private": private}).encode())
        if not (self.folder / "head").exists():
            self._add_commit({}, None, "initial commit")

    @property
    def head(self) -> str:
        return (self.folder / "head").read_text()

    def commit(self, sha: str | None = None) -> dict:
        """parent, title, and files: path -> SHA-256."""
        return json.loads((self.folder / "commits" / f"{sha or self.head}.json").read_text())

    def content(self, path: str, sha: str | None = None) -> bytes:
        return (self.folder / "objects" / self.commit(sha)["files"][path]).read_bytes()

    def history(self) -> list[str]:
        """The commits from the head to the first one."""
        commits, sha = [], self.head
        while sha:
            commits.append(sha)
            sha = self.commit(sha)["parent"]
        return commits

    def add_commit(self, changes: dict[str, bytes | None]) -> str:
        """Commit as another client; None deletes a file."""
        with self.lock:
            files = dict(self.commit()["files"])
            for path, content in changes.items():
                if content is None:
                    files.pop(path, None)
                else:
                    files[path] = self._add_object(content)
            return self._add_commit(files, self.head, "a commit of somebody else")

    def _add_object(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self._write(self.folder / "objects" / digest, content)
        return digest

    def _add_commit(self, files: dict[str, str], parent: str | None, title: str) -> str:
        sha = secrets.token_hex(20)
        record = json.dumps({"parent": parent, "files": files, "title": title}).encode()
        self._write(self.folder / "commits" / f"{sha}.json", record)
        self._write(self.folder / "head", sha.encode())
        return sha

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        temporary = path.with_name(f".{secrets.token_hex(4)}")
        temporary.write_bytes(content)
        temporary.replace(path)

    def next_fault(self, stage: str) -> str:
        with self.lock:
            self.stages.append(stage)
            if self.is_down:
                return "error"
            for index, (fault_stage, fault) in enumerate(self.faults):
                if fault_stage == stage:
                    del self.faults[index]
                    return fault
            fault = self.rng.choice(FAULTS) if self.rng.random() < self.fault_share else ""
            self.fault_counts[fault] += 1
            return fault


class MirrorHubHandler(BaseHTTPRequestHandler):
    server_hub: MirrorHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def answer(self) -> None:
        hub = self.server_hub
        path = unquote(urlsplit(self.path).path).strip("/")
        body = self.read_body()
        if body is None:
            self.close_connection = True
            return None
        self.body = body
        stage = self.stage(path)
        fault = hub.next_fault(stage)
        time.sleep(hub.slow_s)
        if fault == "drop":
            return self.drop()
        if fault == "error":
            return self.reply(503, b"{}")
        if fault == "limit":
            return self.reply(429, b"{}", {"Retry-After": "1"})
        if fault.isdigit():
            return self.reply(int(fault), b"{}")
        self.is_dropped = fault == "drop-after"
        handler = getattr(self, f"answer_{stage.replace('-', '_')}")
        if stage != "object":  # its address is signed, without a token
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token not in (TOKEN, READ_TOKEN):
                return self.reply(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
            if token == READ_TOKEN and (self.command == "POST" or path.endswith("/auth-check/write")):
                return self.reply(403, b"{}", {"X-Error-Message": "Forbidden: the token has no write access"})
            if stage != "create" and not hub.exists:
                return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        return handler(path)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    @staticmethod
    def stage(path: str) -> str:
        if path == "api/repos/create":
            return "create"
        for part, stage in (
            ("/preupload/", "preupload"), ("/info/lfs/objects/batch", "batch"), ("/commit/", "commit"),
            ("/super-squash/", "squash"), ("/resolve/", "download"),
        ):  # fmt: skip
            if part in path:
                return stage
        return "object" if path.startswith("objects/") else "info"

    def read_body(self) -> bytes | None:
        """None: the client disconnected before it had sent everything."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            return body if len(body) == size else None
        body = b""
        while line := self.rfile.readline():
            size = int(line, 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if size == 0:
                return body
        return None

    def drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def reply(self, status: int, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        if getattr(self, "is_dropped", False):
            return self.drop()
        self.send_response(status)
        fields = {"Content-Length": str(len(body)), "Content-Type": "application/json"} | (headers or {})
        for key, value in fields.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return None

    def reply_json(self, value: object, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode())

    def answer_create(self, path: str) -> None:
        hub, request = self.server_hub, json.loads(self.body)
        name = f"{request['organization']}/{request['name']}"
        if hub.exists:
            return self.reply_json({"url": f"{hub.url}/datasets/{name}"}, 409)
        hub.create(private=request.get("visibility") == "private" or request.get("private", False))
        return self.reply_json({"url": f"{hub.url}/datasets/{name}"})

    def answer_info(self, path: str) -> None:
        hub, parts = self.server_hub, path.split("/")
        sha = parts[5] if "revision" in parts and parts[5] != "main" else hub.head
        files = [{"rfilename": file} for file in hub.commit(sha)["files"]]
        self.reply_json({"id": "/".join(parts[2:4]), "sha": sha, "private": hub.is_private, "siblings": files})

    def answer_preupload(self, path: str) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] > MAX_REGULAR_BYTES else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body)["files"]
        ]
        self.reply_json({"files": files})

    def answer_batch(self, path: str) -> None:
        hub, objects = self.server_hub, []
        for entry in json.loads(self.body)["objects"]:
            is_new = not (hub.folder / "objects" / entry["oid"]).exists()
            upload = {"actions": {"upload": {"href": f"{hub.url}/objects/{entry['oid']}"}}} if is_new else {}
            objects.append({"oid": entry["oid"], "size": entry["size"], **upload})
        self.reply_json({"transfer": "basic", "objects": objects})

    def answer_object(self, path: str) -> None:
        if self.server_hub._add_object(self.body) != path.split("/")[1]:
            return self.reply(400)
        return self.reply(200)

    def answer_commit(self, path: str) -> None:
        hub = self.server_hub
        lines = [json.loads(line) for line in self.body.splitlines()]
        with hub.lock:
            if lines[0]["value"].get("parentCommit", hub.head) != hub.head:
                return self.reply(
                    412, b"{}", {"X-Error-Message": "A commit has happened since. Please refresh and try again."}
                )
            files = dict(hub.commit()["files"])
            for line in lines[1:]:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = hub._add_object(base64.b64decode(value["content"]))
                elif line["key"] == "lfsFile":
                    if not (hub.folder / "objects" / value["oid"]).exists():
                        return self.reply(400, b"{}", {"X-Error-Message": "an object is missing"})
                    files[value["path"]] = value["oid"]
                elif files.pop(value["path"], None) is None:
                    return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            sha = hub._add_commit(files, hub.head, lines[0]["value"]["summary"])
        name = "/".join(path.split("/")[2:4])
        url = f"{hub.url}/datasets/{name}/commit/{sha}"
        return self.reply_json({"commitUrl": url, "commitOid": sha, "success": True})

    def answer_squash(self, path: str) -> None:
        hub = self.server_hub
        with hub.lock:
            hub._add_commit(hub.commit()["files"], None, json.loads(self.body or b"{}").get("message", "squashed"))
        self.reply(200)

    def answer_download(self, path: str) -> None:
        hub, rest = self.server_hub, path.partition("/resolve/")[2]
        sha, _, file = rest.partition("/")
        sha = hub.head if sha == "main" else sha
        if not (hub.folder / "commits" / f"{sha}.json").exists():
            return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        digest = hub.commit(sha)["files"].get(file)
        if digest is None:
            return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        content = (hub.folder / "objects" / digest).read_bytes()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if (part := self.headers.get("Range", "")) and self.command == "GET":
            first = int(part.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self.reply(206, content[first:], headers)
        if self.command == "HEAD":
            headers["Content-Length"] = str(len(content))
        return self.reply(200, content, headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault-share", type=float, default=0.0)
    parser.add_argument("--slow", type=float, default=0.0)
    args = parser.parse_args()
    hub = MirrorHub(args.folder, args.port)
    hub.fault_share, hub.slow_s = args.fault_share, args.slow
    hub.server.serve_forever()


if __name__ == "__main__":
    main()

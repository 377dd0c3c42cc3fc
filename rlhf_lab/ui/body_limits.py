"""Limits on what a request may send: the length of its body, who may upload files, and how much may be stored."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlhf_lab.ui.middleware import UPLOAD_PATH, folder_size
from rlhf_lab.ui.runs.downloads import CACHE_FOLDER

#: Uploaded files that the lab keeps at a time (for an hour, see `page.UPLOAD_CACHE_SECONDS`).
MAX_UPLOADED_BYTES = 1_000_000_000
#: For a request that uploads no files. The page's own requests have a few kB.
MAX_BODY_BYTES = 1_000_000
#: Seconds in which a body that uploads no files has to arrive; 1 MB takes less on any connection.
BODY_S = 60.0
#: For all bodies together that are longer than LONG_BODY_BYTES; votes are shorter.
MAX_WAITING_BYTES, LONG_BODY_BYTES = 100_000_000, 50_000
#: For one request that uploads files (each has at most `max_file_size`, see `page.launch_options`).
MAX_UPLOAD_BYTES = 100_000_000
#: Files in one upload. Parsing takes a millisecond for each part, in the thread that answers everybody.
MAX_PARTS = 20
TOO_LONG_MESSAGE = "This request has more than {megabytes} MB, so nothing was done. Send less at a time.\n"
SLOW_MESSAGE = f"The request did not arrive within {BODY_S:g} seconds, so nothing was done. Send it again.\n"
BUSY_MESSAGE = "The lab is reading too many long requests, so nothing was done. Try again in a minute.\n"
NOT_OPERATOR_MESSAGE = (
    "Only the operator can send files to this lab, to import data or restore a backup. Open the operator's link "
    "first.\n"
)
TOO_MANY_PARTS_MESSAGE = f"An upload has at most {MAX_PARTS} files, so nothing was stored. Send fewer at a time.\n"
STORAGE_FULL_MESSAGE = "The lab stores too many uploaded files. They are deleted after an hour; try again then.\n"
WRONG_PATH_MESSAGE = f"Files are accepted at {UPLOAD_PATH} only. Nothing was stored.\n"


class BodyRefusedError(MultiPartException):
    """Stops the reading of a body. A MultiPartException, because only after this error Gradio deletes its temporary files."""


class UploadRoom:
    """The space for uploads. Counts the bytes that were on the disk at the last measurement, and all that arrived since.
    Downloads on offer, which Gradio keeps in the same folder, do not count."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored_bytes, self._lock = 0, threading.RLock()

    def measure(self) -> None:
        with self._lock:
            self._stored_bytes = folder_size(self.folder) - folder_size(self.folder / CACHE_FOLDER)

    def take(self, count: int) -> bool:
        """Count bytes that arrived. Returns False, without counting them, if there is no room."""
        with self._lock:
            if self._stored_bytes + count > MAX_UPLOADED_BYTES:
                self.measure()  # files may have been deleted in between
            if self._stored_bytes + count > MAX_UPLOADED_BYTES:
                return False
            self._stored_bytes += count
            return True


class BodyLimits:
    """ASGI middleware. A body is counted while it arrives, whatever its Content-Length says.

    upload_folder: where Gradio stores uploads.
    """

    def __init__(self, app: ASGIApp, may_upload: Callable[[Request], bool], upload_folder: Path) -> None:
        self.app, self.may_upload, self.room = app, may_upload, UploadRoom(upload_folder)
        self.waiting = WaitingBytes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        is_upload = request.method == "POST" and scope["path"].rstrip("/").endswith(UPLOAD_PATH)
        may_begin = not is_upload or await run_in_threadpool(self._may_begin_upload, request)
        rejection = self._rejection(request, is_upload) if may_begin else PlainTextResponse(NOT_OPERATOR_MESSAGE, 403)
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        if is_upload:
            _, options = parse_options_header(request.headers.get("content-type", ""))
            body = CountedBody(receive, send, MAX_UPLOAD_BYTES, self.room.take, options.get(b"boundary", b""))
        else:
            body = CountedBody(receive, send, MAX_BODY_BYTES, waiting=self.waiting)
        try:
            with contextlib.suppress(BodyRefusedError):
                await self.app(scope, body.receive, body.send)
        finally:
            body.give_back()
        if body.rejection is not None and not body.has_response_started:
            await body.rejection(scope, receive, send)

    def _may_begin_upload(self, request: Request) -> bool:
        """Whether this visitor may upload; then the room is measured. Reads the database and the disk."""
        if not self.may_upload(request):
            return False
        self.room.measure()
        return True

    def _rejection(self, request: Request, is_upload: bool) -> PlainTextResponse | None:
        """The reply to a request that can be refused by its length and type; None for any other."""
        content_type, content_length = (request.headers.get(name, "") for name in ("content-type", "content-length"))
        if content_type.strip().lower().startswith("multipart/") and not is_upload:
            return PlainTextResponse(WRONG_PATH_MESSAGE, status_code=415)
        max_bytes = MAX_UPLOAD_BYTES if is_upload else MAX_BODY_BYTES
        if content_length.isdecimal() and int(content_length) > max_bytes:
            return too_long(max_bytes)
        return None


class WaitingBytes:
    """The bytes of long bodies that are being read or handled. Used in the thread of the event loop only."""

    def __init__(self) -> None:
        self.count = 0


class CountedBody:
    """`receive` and `send` of one request; `receive` raises BodyRefusedError as soon as the body exceeds a limit, or takes longer
    than BODY_S if it uploads no files.

    take: counts bytes of an upload; False if there is no room for them. boundary: of its parts. waiting: the long bodies of all
    requests that upload no files. rejection: the reply to a refused body. The application's own reply is then dropped, because
    its status may differ (FastAPI's is 400).
    """

    def __init__(
        self,
        receive: Receive,
        send: Send,
        max_bytes: int,
        take: Callable[[int], bool] | None = None,
        boundary: bytes = b"",
        waiting: WaitingBytes | None = None,
    ) -> None:
        self._waiting, self._waiting_count, self._deadline = waiting, 0, time.monotonic() + BODY_S
        self._receive, self._send, self._max_bytes, self._take = receive, send, max_bytes, take
        self._count, self._is_complete = 0, False
        self._boundary, self._boundary_count, self._tail = b"--" + boundary, 0, b""
        self.rejection: PlainTextResponse | None = None
        self.has_response_started = False

    async def receive(self) -> Message:
        message = await self._next_message()
        if message["type"] == "http.request":
            self._is_complete = not message.get("more_body", False)
            count = len(message.get("body", b""))
            self._count += count
            if self._count > self._max_bytes:
                self.rejection = too_long(self._max_bytes)
            elif self._take is not None and self._has_too_many_parts(message.get("body", b"")):
                self.rejection = PlainTextResponse(TOO_MANY_PARTS_MESSAGE, status_code=413)
            elif self._take is not None and not await run_in_threadpool(self._take, count):
                self.rejection = PlainTextResponse(STORAGE_FULL_MESSAGE, status_code=507)
            elif not self._has_room():
                self.rejection = PlainTextResponse(BUSY_MESSAGE, status_code=503, headers={"retry-after": "60"})
            if self.rejection is not None:
                raise BodyRefusedError("The body exceeds a limit.")
        elif self._take is not None and not self._is_complete:
            raise BodyRefusedError("The upload was interrupted.")
        return message

    async def _next_message(self) -> Message:
        """The next part of the body, within BODY_S from the beginning if it uploads no files."""
        if self._take is not None or self._is_complete:
            return await self._receive()
        try:
            return await asyncio.wait_for(self._receive(), max(0.1, self._deadline - time.monotonic()))
        except TimeoutError:
            self.rejection = PlainTextResponse(SLOW_MESSAGE, status_code=408, headers={"connection": "close"})
            raise BodyRefusedError("The body did not arrive in time.") from None

    def _has_room(self) -> bool:
        """Whether a body that uploads no files has room beside the other long ones; then it is counted."""
        if self._waiting is None or self._count <= LONG_BODY_BYTES:
            return True
        new = self._count - self._waiting_count
        if self._waiting.count + new > MAX_WAITING_BYTES:
            return False
        self._waiting.count += new
        self._waiting_count = self._count
        return True

    def give_back(self) -> None:
        """Stop counting the bytes of the body."""
        if self._waiting is not None:
            self._waiting.count -= self._waiting_count
            self._waiting_count = 0

    def _has_too_many_parts(self, chunk: bytes) -> bool:
        """Count the boundaries: one may be divided between two chunks, and the last one ends the body."""
        data = self._tail + chunk
        self._boundary_count += data.count(self._boundary)
        begin = data.rfind(self._boundary)
        unread = data if begin < 0 else data[begin + len(self._boundary) :]
        self._tail = unread[-(len(self._boundary) - 1) :]
        return self._boundary_count > MAX_PARTS + 1

    async def send(self, message: Message) -> None:
        if self.rejection is None:
            self.has_response_started = True
            await self._send(message)


def too_long(max_bytes: int) -> PlainTextResponse:
    return PlainTextResponse(TOO_LONG_MESSAGE.format(megabytes=max_bytes // 1_000_000), status_code=413)

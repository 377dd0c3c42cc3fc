"""Renders chat templates. A template is a program of others: it may compute for hours, or need all memory.

Therefore each is rendered in a process with limits (models/template_worker.py), which ends when one is exceeded, and with this
process. jinja2's sandbox keeps templates there from files and code. No torch.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from io import BufferedReader
from typing import Any

from jinja2 import TemplateError

from rlhf_lab.common.model_folder import CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE
from rlhf_lab.common.process_env import minimal_environment
from rlhf_lab.errors import ModelError, TemplateLimitError

WORKER_MODULE = "rlhf_lab.models.template_worker"
TIME_LIMIT_S = 5.0  # of computing for one conversation, which takes a millisecond
WAIT_LIMIT_S = 60.0  # for a reply, on a machine that is busy
START_LIMIT_S = 120.0


class TemplateRenderer:
    """A process that renders chat templates. It starts with the first conversation. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def __enter__(self) -> "TemplateRenderer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def render(
        self, model: str, template: str, messages: Sequence[Mapping[str, str]], arguments: Mapping[str, Any]
    ) -> str:
        """The text of a conversation, up to where the answer of the assistant begins.

        arguments: other variables of the template. Raises jinja2.TemplateError if the template refuses the conversation or has
        an error, and TemplateLimitError, with the name of the model, if it exceeds a limit.
        """
        request = {
            "template": template,
            "messages": [dict(message) for message in messages],
            "arguments": dict(arguments),
            "time_limit_s": TIME_LIMIT_S,
        }
        with self._lock:
            reply = self._exchange(json.dumps(request))
        if "error" in reply:
            raise TemplateError(reply["error"])
        if "limit" in reply:
            raise TemplateLimitError(
                f"{model}: its chat template cannot be used: {reply['limit']}. Correct it ({CHAT_TEMPLATE_FILE}, or "
                f"{TOKENIZER_CONFIG_FILE}), or choose another model."
            )
        return reply["text"]

    def _exchange(self, request: str) -> dict[str, str]:
        """The reply of the process to a request. It ends unless it replies with a text or an error."""
        if self._worker is None or not self._worker.is_alive:
            self.close()
            self._worker = _Worker()
        reply = {}
        try:
            reply = self._worker.exchange(request)
        finally:
            if not {"text", "error"} & reply.keys():
                self.close()
        return reply

    def close(self) -> None:
        """End the process; the next conversation starts another."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end()

    def forget_worker(self) -> None:
        """In a forked process: the worker and a lock that may be locked belong to the parent."""
        if self._worker is not None:
            self._worker.disconnect()
        self._lock, self._worker = threading.Lock(), None


class _Worker:
    """A running process. Raises ModelError if it does not start."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_LIMIT_S)
        self._replies: BufferedReader = self._socket.makefile("rb")
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", WORKER_MODULE], stdin=theirs.fileno(), stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL, env=minimal_environment(), start_new_session=True,
                )  # fmt: skip
            if not self._replies.readline():
                raise EOFError
        except (OSError, EOFError) as error:
            self.end()
            raise ModelError(
                "The process that renders chat templates did not start. Free memory where the lab runs, or install the "
                "versions in requirements.txt."
            ) from error
        except BaseException:
            self.end()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exchange(self, request: str) -> dict[str, str]:
        """The reply; if there is none, the limit that ended the process."""
        self._socket.settimeout(WAIT_LIMIT_S)
        try:
            self._socket.sendall(request.encode() + b"\n")
            line = self._replies.readline()
        except TimeoutError:
            return {"limit": f"it takes longer than {WAIT_LIMIT_S:g} s for one conversation"}
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            return {"limit": self._cause_of_end()}
        reply: dict[str, str] = json.loads(line)
        return reply

    def _cause_of_end(self) -> str:
        """Why the process ended while it rendered a template."""
        assert self._process is not None
        try:
            status = self._process.wait(WAIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if status == -signal.SIGPROF:
            return f"it takes longer than {TIME_LIMIT_S:g} s for one conversation"
        if status == -signal.SIGKILL:
            return "it needs more memory than the machine has left"
        return f"it ended its process (status {status})"

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, so that the process ends, unless another process has a copy of it."""
        self._replies.close()
        self._socket.close()


def writes_system_role(render: Callable[[Sequence[Mapping[str, str]]], str]) -> bool:
    """Whether a template writes a system message: some leave it out, others refuse it. render: renders it for some messages."""
    try:
        return _PROBE in render([{"role": "system", "content": _PROBE}, {"role": "user", "content": "Hi"}])
    except TemplateError:
        return False


_PROBE = "0f2d"  # a system prompt to test whether a template writes system prompts
#: For the models of this process.
RENDERER = TemplateRenderer()


atexit.register(RENDERER.close)
os.register_at_fork(after_in_child=RENDERER.forget_worker)

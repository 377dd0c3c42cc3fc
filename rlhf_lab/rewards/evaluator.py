"""Evaluates function terms in a separate process, which is killed at the end of the run or when a batch takes too long.

If the parent process was killed before that, the process ends itself, OWN_END_S after the time limit. It gets only a few of the
lab's environment variables (`minimal_environment`), so that it sees no tokens or passwords there. It is not a sandbox: an own
function may read files and use the network.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import rlhf_lab
from rlhf_lab.common.process_env import minimal_environment
from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.errors import RewardTermError
from rlhf_lab.rewards.terms import OWN, RewardTerm, custom_file

REPOSITORY_ROOT = Path(rlhf_lab.__file__).parents[1]
TIME_LIMIT_S = 60.0  # for a batch, including the start of the process
OWN_END_S = 5.0
POLL_S = 0.05
WHAT_TO_DO = "The run stopped, and nothing was lost. Correct the function, then resume the run."


class FunctionTerms:
    """Function terms of a run. Not for several threads."""

    def __init__(self, terms: Sequence[RewardTerm], home: Path, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.time_limit_s = time_limit_s
        self._terms = [
            (term.name, term.options, str(custom_file(term, home)) if term.name == OWN else "") for term in terms
        ]
        self._process: subprocess.Popen[str] | None = None

    def scores(
        self, prompts: Sequence[str], responses: Sequence[str], on_progress: ProgressCallback = no_progress
    ) -> list[list[float]]:
        """A list of values for each term. `on_progress` is called while waiting, and may raise.

        Raises RewardTermError for a function that fails, gives no finite number or exceeds the time limit.
        """
        process = self._process or self._start()
        reply: dict[str, Any] = {}
        request = json.dumps({"prompts": list(prompts), "responses": list(responses)})
        thread = threading.Thread(target=_exchange, args=(process, request, reply), daemon=True)
        thread.start()
        deadline = time.monotonic() + self.time_limit_s
        try:
            while thread.is_alive() and time.monotonic() < deadline:
                thread.join(POLL_S)
                on_progress()
        except BaseException:
            self.close()
            raise
        if "scores" in reply:
            scores: list[list[float]] = reply["scores"]
            return scores
        is_late = thread.is_alive()
        self.close()
        raise RewardTermError(_failure(reply, responses, self.time_limit_s if is_late else None))

    def close(self) -> None:
        """End the process; the next call of `scores` starts another."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including processes that the functions started
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError, ValueError):
                    assert pipe is not None
                    pipe.close()

    def _start(self) -> subprocess.Popen[str]:
        own_limit = str(self.time_limit_s + OWN_END_S)
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "rlhf_lab.rewards", own_limit], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, encoding="utf-8", env=minimal_environment(), cwd=REPOSITORY_ROOT, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._terms) + "\n")
        return process


def _exchange(process: subprocess.Popen[str], request: str, reply: dict[str, Any]) -> None:
    """Send a request and read into `reply`: the current text, then scores or an error; neither if the process ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError, ValueError):
        with suppress(BrokenPipeError):  # the process may have left an error before it ended
            process.stdin.write(request + "\n")
            process.stdin.flush()
        for line in process.stdout:
            reply.update(json.loads(line))
            if "scores" in reply or "error" in reply:
                return


def _failure(reply: dict[str, Any], responses: Sequence[str], time_limit_s: float | None) -> str:
    """The message of an error. reply: what the process sent; time_limit_s: None unless it was exceeded."""
    if "error" in reply:
        return f"A reward term failed: {str(reply['error']).rstrip('.')}. {WHAT_TO_DO}"
    place = ""
    if "term" in reply:
        place = f" in {reply['term']}, at the response {responses[reply['index']][:60]!r}"
    if time_limit_s is None:
        return f"The process of the reward terms ended{place}. {WHAT_TO_DO}"
    return f"The reward terms took longer than {time_limit_s:g} s for {len(responses)} texts{place}. {WHAT_TO_DO}"

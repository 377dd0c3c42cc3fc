"""The process that renders chat templates for models/chat_templates.py, with transformers' own code and limits.

It reads one request a line and answers each with a line of JSON: the text, an error of the template, or the limit that it
exceeded. At the limit of time a signal ends the process, because nothing else interrupts a long operation in C.
"""

import json
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

MEMORY_LIMIT_BYTES = 2**30
MAX_CHARS = 10_000_000  # of the text of one conversation
MAX_ERROR_CHARS = 300


def main() -> None:
    with suppress(ValueError, OSError):  # macOS knows no such limit; a lower one may be set already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request.pop("time_limit_s"))  # of computing: SIGPROF ends the process
        reply = _reply(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, flush=True)


def _reply(request: dict[str, Any]) -> str:
    try:
        return json.dumps(_rendered(**request))
    except MemoryError:
        limit = f"it needs more than {MEMORY_LIMIT_BYTES // 2**20:,} MB of memory"
    except RecursionError:
        limit = "its calls or values are nested without an end"
    return json.dumps({"limit": limit})  # now that the objects of the failed conversation are freed


def _rendered(template: str, messages: list[dict[str, str]], arguments: dict[str, Any]) -> dict[str, str]:
    try:
        rendered: Any = render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True, **arguments
        )  # the texts, and where the assistant speaks in them
    except (MemoryError, RecursionError):
        raise
    except TemplateError as error:
        return {"error": str(error)[:MAX_ERROR_CHARS]}
    except Exception as error:  # a program of others may raise anything
        return {"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]}
    text = rendered[0][0]
    if len(text) > MAX_CHARS:
        return {"limit": f"its text of one conversation has more than {MAX_CHARS:,} characters"}
    return {"text": text}


if __name__ == "__main__":
    main()

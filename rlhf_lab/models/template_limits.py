"""Limits of what a chat template may compute: it is a program of others, and a single operation of it cannot be interrupted.

transformers renders templates in jinja2's sandbox, which keeps them from files and code, but not from `10**10000000`. The
environment below adds up the sizes of the results of all operations that can give large ones, before they are computed, and
refuses the one with which they are too large for a conversation.

`python -m rlhf_lab.models.template_limits` renders the template that it reads with one message, and prints in JSON why it cannot
be used: "" if it can, or if it refuses the message for a reason of its own.
"""

import functools
import json
import re
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jinja2 import Environment, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rlhf_lab.common.time_limit import interrupt_after

TRIAL_TIME_LIMIT_S = 5.0
TRIAL_MEMORY_BYTES = 2 * 2**30
MAX_BITS = 4096  # of a whole number
MAX_TOTAL = 100_000_000  # characters and items of all results of a conversation
#: Methods and filters whose results may be longer than their operands.
ENLARGING = frozenset({
    "batch", "center", "expandtabs", "format", "format_map", "indent", "join", "ljust", "replace", "rjust", "slice", "sum",
    "to_bytes", "tojson", "translate", "urlize", "wordwrap", "xmlattr", "zfill",
})  # fmt: skip
_LONG_NUMBER = re.compile(r"\d{6}")  # in a format: a width


def _size(value: Any) -> int:
    """The length of a value, or the amount of a number."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 1


def _total_size(value: Any) -> int:
    """The length of a value and of its items."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return _size(value) + sum(_size(item) for item in items if not isinstance(item, int))


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802  # jinja2's name
        """The operator ~."""
        self.write("environment.join_texts((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Filters(dict[str, Callable[..., Any]]):
    """The filters of an environment; those in ENLARGING are counted."""

    def __init__(self, environment: "BoundedEnvironment") -> None:
        super().__init__()
        self.environment = environment

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        @functools.wraps(function)  # also the mark of those that take the environment or the context first
        def counted(*args: Any, **kwargs: Any) -> Any:
            first = int(hasattr(function, "jinja_pass_arg"))
            value = args[first]
            if isinstance(value, Iterable) and not hasattr(value, "__len__"):
                value = list(value)
            self.environment.count_call(name, value, [*args[first + 1 :], *kwargs.values()])
            return function(*args[:first], value, *args[first + 1 :], **kwargs)

        super().__setitem__(name, counted if name in ENLARGING else function)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose programs cannot compute anything large. total: of the present conversation (see MAX_TOTAL)."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))
    code_generator_class = _Generator
    total = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        filters, self.filters = self.filters, _Filters(self)
        for name, function in filters.items():
            self.filters[name] = function
        self.globals.pop("lipsum", None)

    def count(self, size: int) -> None:
        """Raises SecurityError if the template has computed too much with a result of this size."""
        BoundedEnvironment.total += size
        if BoundedEnvironment.total > MAX_TOTAL:
            raise SecurityError("it computes a number, a text or a list that is too large for a conversation")

    def count_call(self, name: str, value: Any, arguments: Sequence[Any]) -> None:
        """Count the largest possible result of a method or filter in ENLARGING."""
        if name in ("format", "format_map"):
            self.count_format(value, arguments)
            return
        size = _total_size(value) if not isinstance(value, int) else 1
        for argument in arguments[1:] if name == "replace" else arguments:
            size *= max(1, _total_size(argument))
        self.count(size)

    def count_format(self, text: Any, arguments: Iterable[Any]) -> None:
        if isinstance(text, (str, bytes)) and _LONG_NUMBER.search(
            text if isinstance(text, str) else text.decode("latin-1")
        ):
            self.count(MAX_TOTAL + 1)
        self.count((_size(text) + 1) * max([1, *(_total_size(argument) for argument in arguments)]))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int) and operator != "%":
            bits = left.bit_length() * max(1, right) if operator == "**" else left.bit_length() + right.bit_length()
            self.count(MAX_TOTAL + 1 if bits > MAX_BITS else 1)
        elif operator == "%" and isinstance(left, (str, bytes)):
            self.count_format(left, right if isinstance(right, tuple) else (right,))
        elif operator == "+":
            self.count(_size(left) + _size(right) if not isinstance(left, (int, float)) else 1)
        elif operator == "*" and not isinstance(left, float) and not isinstance(right, float):
            self.count(max(1, _size(left)) * max(1, _size(right)))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, (str, bytes, int)) and name in ENLARGING:
            self.count_call(name, owner, [*args, *kwargs.values()])
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def counted(*args: Any, **kwargs: Any) -> str:
            self.count_format(value.__self__, [*args, *kwargs.values()])
            return wrapped(*args, **kwargs)

        return functools.update_wrapper(counted, wrapped)

    def join_texts(self, parts: Iterable[Any]) -> str:
        """The text of the parts together."""
        texts = []
        for part in parts:
            texts.append(str(part))
            self.count(len(texts[-1]))
        return "".join(texts)

    def concat(self, parts: Iterable[str]) -> str:  # an attribute there
        """The output of a template or a macro."""
        return self.join_texts(parts)


def limit_templates() -> None:
    """Let transformers render chat templates with these limits from now on, each time it compiles one."""
    from transformers.utils import chat_template_utils

    chat_template_utils.ImmutableSandboxedEnvironment = BoundedEnvironment  # type: ignore[attr-defined]


class _Generation(Extension):
    """The block {% generation %} of transformers, which marks what the assistant says."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def trial_message(template: str) -> str:
    """Why a template cannot be used: it computes too much, or does not end. "" otherwise."""
    environment: Environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda _: "28 Nov 2026"}
    try:
        with interrupt_after(TRIAL_TIME_LIMIT_S, TimeoutError):
            environment.from_string(template).render(
                messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True, bos_token="", eos_token=""
            )
    except TimeoutError:
        return f"it takes longer than {TRIAL_TIME_LIMIT_S:g} s for one message"
    except RecursionError:
        return "a macro of it calls itself without an end"
    except MemoryError:
        return "it needs too much memory"
    except SecurityError as error:
        return str(error)
    except Exception:  # such as a rule that the first message must be of the system
        return ""
    return ""


def _raise(message: str) -> None:
    raise ValueError(message)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_MEMORY_BYTES, TRIAL_MEMORY_BYTES))
    print(json.dumps(trial_message(sys.stdin.read())))

"""The reward functions of a run as files of a recipe: their sources, and the same functions with TRL's signature."""

import ast
import hashlib
import keyword
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rlhf_lab.common.paths import regular_file
from rlhf_lab.errors import StoreError
from rlhf_lab.rewards import builtin
from rlhf_lab.rewards.terms import OWN, RewardTerm, custom_file

MODULE = "reward_functions.py"
#: Of the data: the prompt as functions of the lab get it, without system prompt and chat template.
PROMPT_COLUMN = "lab_prompt"
MAX_SOURCE_BYTES = 1_000_000
#: What a recipe's environment has beside the standard library.
INSTALLED = {"torch", "transformers", "peft", "accelerate", "datasets", "trl", "numpy"}


class ExportedFunctions(NamedTuple):
    """files: source by name, with MODULE; none without a function. names: label, weight and source file of each. notes: sentences
    about functions that are missing, and what they need."""

    files: dict[str, str]
    names: list[tuple[str, float, str]]
    notes: list[str]


NO_FUNCTIONS = ExportedFunctions({}, [], [])


def export_functions(terms: Sequence[RewardTerm], home: Path, digests: Mapping[str, str]) -> ExportedFunctions:
    """The functions among a run's terms. digests: of the files that the run trained with, by label."""
    sources: dict[str, str] = {}  # content -> name of its copy
    names, notes, lines = list[tuple[str, float, str]](), list[str](), list[str]()
    for term in terms:
        try:
            source, expression = _source(term, home, digests.get(term.label, ""))
        except StoreError as error:
            notes.append(str(error))
            continue
        module = sources.setdefault(source, f"function_{len(sources) + 1}")
        names.append((term.label, term.weight, f"{module}.py"))
        function = f"with_trls_signature({module}.{expression})"
        lines.append(f"    ({term.label!r}, {term.weight!r}, {function}),")
        notes.extend(_needs(source, term.label))
    files = {f"{module}.py": source for source, module in sources.items()}
    if files:
        files[MODULE] = _module(sorted(sources.values()), lines)
    return ExportedFunctions(files, names, notes)


def _source(term: RewardTerm, home: Path, digest: str) -> tuple[str, str]:
    """The source of a term's function, and the function as an expression below the module. Raises StoreError with what to do."""
    if term.name != OWN:
        return Path(builtin.__file__).read_text(encoding="utf-8"), _shipped_expression(term)
    name, file = str(term.options["function"]), custom_file(term, home)
    missing = f"The reward function `{term.label}` with weight {term.weight:g} is missing"
    remedy = "Add it to `reward` in reward.py by hand"
    try:
        if regular_file(file).stat().st_size > MAX_SOURCE_BYTES:
            raise StoreError(f"{missing}: its file is larger than {MAX_SOURCE_BYTES:,} bytes. {remedy}.")
        content = file.read_bytes()
        source = content.decode()
        roots = _imported(source)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise StoreError(f"{missing}: its file cannot be read ({type(error).__name__}). {remedy}.") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise StoreError(
            f"{missing}: its file is not the one that the run trained with. Put that back and export again, or {_lower(remedy)}."
        )
    if "rlhf_lab" in roots or not name.isidentifier() or keyword.iskeyword(name):
        raise StoreError(f"{missing}: it needs the lab (`rlhf_lab`), which a recipe does not install. {remedy}.")
    return source, name


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _shipped_expression(term: RewardTerm) -> str:
    match term.name:
        case "length":
            return f"length_window({term.options['min_words']}, {term.options['max_words']})"
        case "regex":
            return f"regular_expression({str(term.options['pattern'])!r})"
        case "json":
            return builtin.valid_json.__name__
        case _:
            return term.name


def _imported(source: str) -> set[str]:
    """The packages that a source imports anywhere; "" for one beside it. Raises SyntaxError and ValueError."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add("" if node.level else str(node.module).partition(".")[0])
    return roots


def _needs(source: str, label: str) -> Iterator[str]:
    names = sorted(_imported(source) - INSTALLED - sys.stdlib_module_names)
    if names:
        shown = ", ".join(f"`{name or 'a module beside it'}`" for name in names)
        yield f"The reward function `{label}` imports {shown}: install or copy that too."


def _module(modules: Sequence[str], lines: Sequence[str]) -> str:
    imports, terms = "".join(f"import {module}\n" for module in modules), "\n".join(lines)
    return f'''"""The reward functions of the run, with the signature that TRL's trainers call."""

import inspect

{imports}

def with_trls_signature(function):
    """function: of a response, of a prompt and a response, or of lists called prompts and responses."""
    parameters = inspect.signature(function).parameters
    required = [item for item in parameters.values() if item.default is item.empty and item.kind <= item.POSITIONAL_OR_KEYWORD]

    def reward_function(completions, {PROMPT_COLUMN}, **columns):
        texts = [item if isinstance(item, str) else item[-1]["content"] for item in completions]
        if list(parameters)[:2] == ["prompts", "responses"]:
            return [float(value) for value in function({PROMPT_COLUMN}, texts)]
        if len(required) == 2:
            return [float(function(*row)) for row in zip({PROMPT_COLUMN}, texts, strict=True)]
        return [float(function(text)) for text in texts]

    return reward_function


TERMS = [  # name, weight, function
{terms}
]
'''

"""The path from the Start button to the curve in the browser: the files it passes and the functions in each.

    python benchmarks/start_to_curve.py

Parses every file and checks every link: a function must use the next function by its name. Two links go through the database
(the queued job, the recorded metrics): there the reader must use the function of the previous file. Exits with 1 if a function is
missing or a link is broken. Counts each file once.
"""

import ast
import re
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Step:
    """A part of the path within one file.

    Attributes:
        functions: in order; each uses the next one, or is used by it.
        link: the name by which the file is reached. "" continues a file that the path has left.
        reads: the first function uses `link` of the previous file; otherwise the last function of the previous file uses it.
    """

    file: str
    functions: tuple[str, ...]
    link: str = ""
    reads: bool = False


PATH = (
    Step("rlhf_lab/ui/train/start_run/view.js", ("startRun",)),
    Step("rlhf_lab/ui/train/start_run/api.py", ("start",), "start"),
    Step("rlhf_lab/jobs/run_control.py", ("start_run", "submit_run"), "start_run"),
    Step("rlhf_lab/jobs/queue.py", ("submit_run_once",), "submit_run_once"),
    Step("rlhf_lab/engine/worker.py", ("_claim_next_job", "_run_loop", "run_job", "_dispatch", "_train_policy"), "claim", True),
    Step("rlhf_lab/engine/policy_run.py", ("execute", "_step_with_oom_retry"), "PolicyRun"),
    Step("rlhf_lab/training/policy/trainer.py", ("run_step", "train_on_samples", "train_on_scored", "update"), "run_step"),
    Step(
        "rlhf_lab/training/policy/update.py", ("gradient_update", "minibatch_backward", "micro_batch_backward"),
        "gradient_update",
    ),
    Step("rlhf_lab/core/policy_losses.py", ("total_loss",), "total_loss"),
    Step("rlhf_lab/engine/policy_run.py", ("execute",)),
    Step("rlhf_lab/store/run_metrics.py", ("record_step",), "record_step"),
    Step("rlhf_lab/ui/run_views/run_feed.py", ("refresh", "_refreshed", "_reply", "poll"), "metric_series", True),
    Step("rlhf_lab/ui/train/api.py", ("points",), "poll", True),
    Step("rlhf_lab/ui/train/view.js", ("update", "apply"), "points", True),
    Step("rlhf_lab/ui/train/curves.js", ("draw", "addPoints"), "draw"),
)  # fmt: skip


#: A function, or a method of a class: indentation, name and rest.
JS_FUNCTION = re.compile(
    r"^( *)(?:(?:export )?(?:async )?function (\w+)(\(.*?)|(?:async )?(\w+)(\([^\n]*\) \{\n.*?))^\1\}",
    re.MULTILINE | re.DOTALL,
)


class SourceFile:
    """The identifiers of a file and of each of its functions and Python classes; those of the same name are merged."""

    def __init__(self, file: str) -> None:
        text = (ROOT / file).read_text(encoding="utf-8")
        self.functions: dict[str, set[str]] = {}
        if file.endswith(".py"):
            tree = ast.parse(text)
            self.identifiers = _python_identifiers(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self.functions.setdefault(node.name, set()).update(_python_identifiers(node))
        else:
            self.identifiers = _words(text)
            for match in JS_FUNCTION.finditer(text):
                self.functions.setdefault(match[2] or match[4], set()).update(_words(match[3] or match[5]))

    def defines(self, name: str) -> bool:
        return name in self.functions or name in self.identifiers


def _python_identifiers(tree: ast.AST) -> set[str]:
    """Names, attributes and string constants."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return names | {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def broken_links() -> list[str]:
    problems = []
    sources = {file: SourceFile(file) for file in {step.file for step in PATH}}
    for step in PATH:
        own = sources[step.file].functions
        if missing := [name for name in step.functions if name not in own]:
            return [f"{step.file} has no function {', '.join(missing)}"]
        for name, following in pairwise(step.functions):
            if following not in own[name] and name not in own[following]:
                problems.append(f"{step.file}: {name} and {following} do not use each other")
    for before, step in pairwise(PATH):
        user, target = (step, before) if step.reads else (before, step)
        function = step.functions[0] if step.reads else before.functions[-1]
        if step.link and step.link not in sources[user.file].functions[function]:
            problems.append(f"{user.file}: {function} does not use {step.link}")
        if step.link and not sources[target.file].defines(step.link):
            problems.append(f"{target.file} has no {step.link}")
    return problems


def main() -> int:
    files = list(dict.fromkeys(step.file for step in PATH))
    for step in PATH:
        print(f"{files.index(step.file) + 1:2}  {step.file:42} {' -> '.join(step.functions)}")
    problems = broken_links()
    print("\n".join(["", f"{len(files)} files", *(f"broken: {problem}" for problem in problems)]))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

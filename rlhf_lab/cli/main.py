"""The command line: registers the commands and reports errors."""

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence

from rlhf_lab import __version__
from rlhf_lab.common.program_names import lab_command, page_command
from rlhf_lab.errors import LabError

#: Module of each command, in the order of --help.
COMMAND_MODULES = {
    "demo": "demo",
    **dict.fromkeys(("pairs", "label", "train-reward", "train-policy", "complete", "runs", "stop-engine"), "commands"),
    "control": "control",
    **dict.fromkeys(("import", "imports"), "import_"),
    "import-run": "import_run",
    "export": "export",
    "share": "share",
    "track": "track",
    **dict.fromkeys(("backup", "restore"), "backup"),
    "doctor": "doctor",
    "people": "people",
    "password": "password",
    "pretrain": "pretrain",
    "sft": "sft",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 1 after an error of the lab or of the operating system, 130 after Ctrl-C.
    argparse exits with 2 for invalid usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # texts may hold characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog=lab_command(),
        description="Label pairs of texts, train a reward model on the labels, and run PPO with it. "
        f"`{page_command()}` starts the page.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _modules_for(arguments):
        importlib.import_module(f"rlhf_lab.cli.{module}").add_parser(subparsers)
    args = parser.parse_args(arguments)
    try:
        status = int(args.run(args))
        print(end="", flush=True)  # sys.stdout is None if it is closed
        return status
    except BrokenPipeError:  # the program that reads the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except EOFError:
        print("error: the input ended before it was complete.", file=sys.stderr)
        return 1
    except (LabError, OSError) as error:
        if getattr(args, "json", False):
            print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "stopped", file=sys.stderr)
        return 130


def _modules_for(arguments: Sequence[str]) -> Iterable[str]:
    """Modules to import for a command line. Only the help needs all: some import PyTorch, which takes seconds."""
    if arguments and arguments[0] in COMMAND_MODULES:
        return [COMMAND_MODULES[arguments[0]]]
    return [] if arguments and arguments[0] == "--version" else dict.fromkeys(COMMAND_MODULES.values())

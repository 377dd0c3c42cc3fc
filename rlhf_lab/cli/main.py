"""The command line: registers the commands and reports errors."""

import argparse
import json
import sys

from rlhf_lab import __version__
from rlhf_lab.cli import backup, commands, control, demo, doctor, export, import_, password, people, pretrain, sft
from rlhf_lab.common.program_names import lab_command, page_command
from rlhf_lab.errors import LabError

COMMANDS = (demo, commands, control, import_, export, backup, doctor, people, password, pretrain, sft)


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns its exit status, 1 after a LabError, 130 after Ctrl-C. argparse exits with 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog=lab_command(),
        description="Label pairs of texts, train a reward model on the labels, and PPO on the reward model. "
        f"`{page_command()}` starts the page.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_parser(subparsers)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except LabError as error:
        if getattr(args, "json", False):
            print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130

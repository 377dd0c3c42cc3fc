"""`python -m rlhf_lab password`: hash a password for the file of `python app.py --auth-file`."""

import argparse
import getpass
import sys
from typing import Any

from rlhf_lab.cli.console import add_plain_command
from rlhf_lab.common.passwords import hash_password
from rlhf_lab.common.program_names import page_command
from rlhf_lab.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    add_plain_command(
        subparsers,
        "password",
        f"hash a password, for a line of `{page_command()} --auth-file`",
        "The password is read from the terminal, or from one line of standard input.",
        run=run,
    )


def run(_: argparse.Namespace) -> int:
    """Prompt on a terminal, otherwise read one line of standard input. Raises ConfigError for an empty password."""
    password = getpass.getpass("password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ConfigError("the password is empty. Enter one in the terminal, or pass it as a line of standard input.")
    print(hash_password(password))
    return 0

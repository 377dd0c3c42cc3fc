"""`python -m rlhf_lab people`: list the people a lab knows by name; `--take-out NAME --yes`: erase a person, as the page does."""

import argparse
from typing import Any

from rlhf_lab.cli.console import add_common_arguments, open_existing_database, print_result, resolve_home
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.person_erasure import erase_person_data
from rlhf_lab.store.erasure import count_person_votes, known_names


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("people", help="whom the lab knows by name; take somebody out of it")
    add_common_arguments(parser)
    parser.add_argument(
        "--take-out", metavar="NAME", help="in every project, for good; their votes stay without a name"
    )
    parser.add_argument("--votes", action="store_true", help="with --take-out: take their votes and notes back too")
    parser.add_argument("--yes", action="store_true", help="with --take-out: do it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home, name = resolve_home(args), args.take_out
    if name is None and (args.votes or args.yes):
        raise ConfigError("--votes and --yes belong to --take-out NAME: say whom.")
    with open_existing_database(home) as db:
        if name is None:
            names = known_names(db)
            print_result(args, {"people": names}, "\n".join(names) or "this lab knows nobody by name")
            return 0
        count = erase_person_data(db, home, name, votes=args.votes) if args.yes else count_person_votes(db, name)
    votes_outcome = "taken back" if args.votes else "kept without the name"
    message = f"{name} {'is' if args.yes else 'would be'} out of this lab; {pluralize(count, 'vote')} {votes_outcome}."
    result = {"name": name, "taken_out": args.yes, "votes": count, "votes_taken_back": args.votes}
    print_result(args, result, message + ("" if args.yes else " Nothing was changed: add --yes to do it."))
    return 0

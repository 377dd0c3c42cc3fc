"""`python -m rlhf_lab people`: whom a lab knows by name; `--take-out NAME --yes`: take somebody out of it, as the page does."""

import argparse
from typing import Any

from rlhf_lab.cli.common import add_common, answer, home_of, lab_there
from rlhf_lab.counted import counted
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.forgetting import forget_person
from rlhf_lab.store.forgetting import known, names


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("people", help="whom the lab knows by name; take somebody out of it")
    add_common(parser)
    parser.add_argument(
        "--take-out", metavar="NAME", help="in every project, for good; their votes stay without a name"
    )
    parser.add_argument("--votes", action="store_true", help="with --take-out: take their votes and notes back too")
    parser.add_argument("--yes", action="store_true", help="with --take-out: do it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home, name = home_of(args), args.take_out
    if name is None and (args.votes or args.yes):
        raise ConfigError("--votes and --yes belong to --take-out NAME: say whom.")
    with lab_there(home) as db:
        if name is None:
            found = names(db)
            answer(args, {"people": found}, "\n".join(found) or "this lab knows nobody by name")
            return 0
        count = forget_person(db, home, name, votes=args.votes) if args.yes else known(db, name)
    fate = "taken back" if args.votes else "kept without the name"
    told = f"{name} {'is' if args.yes else 'would be'} out of this lab; {counted(count, 'vote')} {fate}."
    result = {"name": name, "taken_out": args.yes, "votes": count, "votes_taken_back": args.votes}
    answer(args, result, told + ("" if args.yes else " Nothing was changed: add --yes to do it."))
    return 0

"""`python -m rlhf_lab people`: list the people of a lab by name, with their accuracy on gold pairs.

Options make a person an expert, end their pause, or erase them (`--erase NAME --yes`), like the page.
"""

import argparse
from typing import Any

from rlhf_lab.cli.console import (
    LAST_PROJECT,
    add_command,
    open_existing_database,
    print_result,
)
from rlhf_lab.common.program_names import lab_command
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError, LabelError
from rlhf_lab.jobs.person_erasure import erase_person_data
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import count_person_votes, known_names
from rlhf_lab.store.gold_pairs import gold_results
from rlhf_lab.store.project_people import end_pause, experts, set_expert
from rlhf_lab.store.projects import current_project, get_labelling_config


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "people",
        "list the names that the lab knows, or remove a person",
        "The list shows experts and the accuracy on gold pairs. Options make a person an expert or end a pause.",
        run=run,
        project=LAST_PROJECT,
    )
    parser.add_argument("--votes", action="store_true", help="with --erase: also remove their votes and notes")
    decision = parser.add_mutually_exclusive_group()
    decision.add_argument(
        "--erase",
        metavar="NAME",
        help="remove this person from every project, permanently; the votes are kept without the name",
    )
    decision.add_argument(
        "--expert", metavar="NAME", help="an expert of the project: decides disputed pairs, chooses gold pairs"
    )
    decision.add_argument("--no-expert", metavar="NAME", help="no longer an expert")
    decision.add_argument(
        "--end-pause", metavar="NAME", help="let a paused person continue, and reset the count of their gold answers"
    )
    parser.add_argument("--yes", action="store_true", help="with --erase: carry it out")


def run(args: argparse.Namespace) -> int:
    name = args.erase
    if name is None and (args.votes or args.yes):
        raise ConfigError("--votes and --yes need --erase NAME.")
    with open_existing_database(args.home) as db:
        if name is None:
            _decide(db, args)
            _list(db, args)
            return 0
        count = erase_person_data(db, args.home, name, votes=args.votes) if args.yes else count_person_votes(db, name)
    votes_outcome = "deleted" if args.votes else "kept without the name"
    message = (
        f"{name} {'is' if args.yes else 'would be'} removed from this lab; {pluralize(count, 'vote')} {votes_outcome}."
    )
    result = {"name": name, "taken_out": args.yes, "votes": count, "votes_taken_back": args.votes}
    print_result(args, result, message + ("" if args.yes else " Nothing was changed: add --yes to do it."))
    return 0


def _decide(db: Database, args: argparse.Namespace) -> None:
    """Apply --expert, --no-expert or --end-pause. Raises LabelError for an unknown name."""
    name = args.expert or args.no_expert or args.end_pause
    if name is None:
        return
    if name not in known_names(db):
        raise LabelError(f'Nobody in this lab is called "{name}". `{lab_command()} people` lists the names.')
    project_id = pick_project(db, args.project).id
    if args.end_pause:
        end_pause(db, project_id, name)
    else:
        set_expert(db, project_id, name, args.expert is not None)


def _list(db: Database, args: argparse.Namespace) -> None:
    names, gold, expert_names = known_names(db), list[dict[str, Any]](), list[str]()
    if args.project is not None or current_project(db) is not None:
        project_id = pick_project(db, args.project).id
        rules, expert_names = get_labelling_config(db, project_id), experts(db, project_id)
        gold = [
            {
                "name": result.annotator, "right": result.right, "answers": result.answers,
                "low": result.interval[0], "high": result.interval[1], "below_bound": result.is_below_bound(rules),
            }
            for result in gold_results(db, project_id)
        ]  # fmt: skip
    notes = {row["name"]: _gold_text(row) for row in gold}
    lines = [f"{name}{' (expert)' if name in expert_names else ''}{notes.get(name, '')}" for name in names]
    lines += [f"{name}{notes[name]}" for name in notes if name not in names]
    text = "\n".join(lines) or "this lab knows no names"
    print_result(args, {"people": names, "experts": expert_names, "gold": gold}, text)


def _gold_text(row: dict[str, Any]) -> str:
    below = ", below the bound" if row["below_bound"] else ""
    interval = f"95 %: {row['low']:.0%} to {row['high']:.0%}"
    return f": {row['right']} of {pluralize(row['answers'], 'gold pair')} right ({interval}){below}"

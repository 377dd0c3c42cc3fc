"""`python -m rlhf_lab import FILE|OWNER/NAME`: preferences that others collected, into a project. `imports`: what was taken in,
and how it is taken back."""

import argparse
import time
from dataclasses import asdict
from typing import Any

from rlhf_lab.chats import UnreadableError
from rlhf_lab.cli.common import add_common, answer, home_of, lab_there
from rlhf_lab.counted import counted_of
from rlhf_lab.errors import ConfigError
from rlhf_lab.imports import MEANINGS, Asked, Into, Limits, parse_map, read_all, save
from rlhf_lab.imports.found import IMPORTED, Found
from rlhf_lab.imports.report import goes_words, preview, preview_words, saved_dict, saved_words
from rlhf_lab.imports.saving import doubts_of
from rlhf_lab.imports.values import parse_choices
from rlhf_lab.jobs.setup import new_project, pick_project
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.store.database import Database, is_there
from rlhf_lab.store.imports import Import, imports_of, take_back, what_goes
from rlhf_lab.store.projects import current_project


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("import", help="take in preferences from a file or a Hub data set")
    add_common(parser)
    add = parser.add_argument
    add("what", metavar="FILE|OWNER/NAME", help="JSON Lines, JSON, CSV or Parquet (.gz too), or a data set on the Hub")
    add("--project", type=int, default=None, help="project id (default: the one opened last)")
    add("--new-project", metavar="NAME", default=None, help="a new project whose prompts are those of the file")
    add("--model", default="embedded", help="the new project's model: a folder or a Hub id (default: the embedded one)")
    add("--map", action="append", default=[], metavar="MEANING=COLUMN",
        help=f"what a column means; meanings: {', '.join(MEANINGS)}; annotators=A+B: a vote a column")  # fmt: skip
    add("--choices", default="", metavar="WORD=CHOICE,…", help=f"what the votes' words mean: {', '.join(Choice)}")
    add("--split", default="train", help="of a Hub data set (default train; train[:1000] is a part)")
    add("--config", default=None, help="of a Hub data set with several")
    add("--source", choices=[s.value for s in Source], default=Source.HUMAN.value, help="whose votes (default human)")
    add("--annotator", default=IMPORTED, help="who voted, where the file does not say")
    add(
        "--use-prompts",
        action="store_true",
        help="new prompts are also sampled from; else they only carry their labels",
    )
    add(
        "--drop-duplicates",
        action="store_true",
        help="leave out further answers of the same person about the same two texts",
    )
    add("--skip-broken", action="store_true", help="leave out rows with a problem instead of importing nothing")
    add("--preview", action="store_true", help="say what would be imported, and write nothing")
    add("--max-mb", type=int, default=Limits.bytes // 1_000_000, help="the largest file taken, unpacked")
    parser.set_defaults(run=run)
    parser = commands.add_parser("imports", help="what was imported into a project; take one back")
    add_common(parser)
    parser.add_argument("--project", type=int, default=None, help="project id (default: the one opened last)")
    parser.add_argument("--take-back", type=int, default=None, metavar="ID", help="say what would go with an import")
    parser.add_argument("--yes", action="store_true", help="with --take-back: let it go")
    parser.set_defaults(run=run_imports)


def run(args: argparse.Namespace) -> int:
    found = read_all(asked(args))
    if args.preview:
        said = preview(found, _doubts(args, found))
        answer(args, {"imported": 0, "skipped": 0, "errors": said["problems"], "preview": said}, preview_words(said))
        return 1 if found.problems else 0
    said = preview(found)
    with Database.open(home_of(args)) as db:
        if args.new_project is not None:
            prompts = list(dict.fromkeys(item.prompt for item in found.judgements))
            if not prompts or (found.problems and not args.skip_broken):
                save(db, found, Into(0, skip_broken=args.skip_broken))  # raises, and says why
            project = new_project(
                db, model=args.model, prompt_set=found.name[:60], own_prompts=prompts, name=args.new_project
            )
        else:
            project = pick_project(db, args.project)
        saved = save(db, found, _into(args, project.id))
    result = {
        "imported": saved.votes, "skipped": saved.skipped, "errors": said["problems"], "project": project.id,
        "saved": saved_dict(saved), "preview": said,
    }  # fmt: skip
    answer(args, result, f"Project {project.id}: {saved_words(saved, found.name)}")
    return 0


def _into(args: argparse.Namespace, project_id: int) -> Into:
    return Into(
        project_id, Source(args.source), args.annotator, args.drop_duplicates, args.use_prompts, args.skip_broken,
        "command line",
    )  # fmt: skip


def _doubts(args: argparse.Namespace, found: Found) -> dict[str, int]:
    """What the import would meet in its project, which may have to be made for it. Nothing is written."""
    if args.new_project is None and is_there(home_of(args)):
        with Database.open(home_of(args)) as db:
            if args.project is not None or current_project(db) is not None:
                return doubts_of(db, found, _into(args, pick_project(db, args.project).id))
    return doubts_of(None, found, _into(args, 0))


def run_imports(args: argparse.Namespace) -> int:
    with lab_there(home_of(args)) as db:
        project = pick_project(db, args.project).id
        if args.take_back is None:
            found = imports_of(db, project)
            lines = [_line(one) for one in found] or ["nothing was imported into this project"]
            answer(args, {"project": project, "imports": [asdict(one) for one in found]}, "\n".join(lines))
            return 0
        goes = (take_back if args.yes else what_goes)(db, project, args.take_back)
    words = goes_words(goes, done=args.yes) + ("" if args.yes else " Add --yes to take it back.")
    answer(args, {"project": project, "import": args.take_back, "taken_back": args.yes, **asdict(goes)}, words)
    return 0


def _line(one: Import) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created_at))
    there = f"{counted_of(one.votes_left, one.votes, 'vote')}, {counted_of(one.pairs_left, one.pairs, 'new pair')}"
    return f"{one.id}: {when} {one.name} by {one.who}: {there}" + (", taken back" if one.taken_back_at else "")


def asked(args: argparse.Namespace) -> Asked:
    """What the arguments ask to read. ConfigError."""
    try:
        choices = parse_choices(args.choices) if args.choices else {}
    except UnreadableError as error:
        raise ConfigError(f"--choices cannot be read: {error}.") from None
    limits = Limits(bytes=args.max_mb * 1_000_000)
    return Asked(
        args.what, mapping=parse_map(args.map), choices=choices, split=args.split, config=args.config, limits=limits
    )

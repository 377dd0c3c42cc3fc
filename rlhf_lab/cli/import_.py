"""`python -m rlhf_lab import FILE|OWNER/NAME`: import preferences into a project. `imports`: list imports, or undo one."""

import argparse
import time
from dataclasses import asdict
from typing import Any

from rlhf_lab.cli.console import (
    LAST_PROJECT,
    MAX_NEW_TOKENS_HELP,
    add_command,
    add_open_argument,
    name_of_person,
    number_from,
    open_existing_database,
    print_result,
    reject_options,
    show_project,
)
from rlhf_lab.common.chat_format import UnreadableError
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.text import pluralize_of
from rlhf_lab.errors import ConfigError
from rlhf_lab.importers.cell_parsers import parse_choice_words
from rlhf_lab.importers.column_mapping import ANSWERS, MEANINGS, parse_map
from rlhf_lab.importers.parsed_rows import IMPORTED, Limits, ParsedFile
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.project_index import adapt_to_project
from rlhf_lab.importers.summary import build_preview, format_preview, format_result, format_undo
from rlhf_lab.importers.writer import ImportTarget, count_duplicates, save_import
from rlhf_lab.jobs.project_setup import new_project, pick_project
from rlhf_lab.store.database import Database, lab_exists
from rlhf_lab.store.import_batches import ImportRecord, preview_undo, project_imports, undo_import
from rlhf_lab.store.projects import current_project


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "import",
        "import preferences from a file or a Hub data set",
        "Try --preview first. Formats: docs/FORMATS.md.",
        run=run,
        project=LAST_PROJECT,
    )
    add = parser.add_argument
    add("what", metavar="FILE|OWNER/NAME", help="JSON Lines, JSON, CSV or Parquet (.gz too), or a data set on the Hub")
    add("--new-project", metavar="NAME", default=None, help="a new project whose prompts are those of the file")
    add_open_argument(parser)
    add("--model", default=None, help="the new project's model: a folder or a Hub id (default: the embedded one)")
    add("--max-new-tokens", type=int, default=None, help=MAX_NEW_TOKENS_HELP)
    add("--map", action="append", default=[], metavar="MEANING=COLUMN",
        help=f"what a column means; meanings: {', '.join(MEANINGS)}; annotators=A+B: one vote per column; "
             "a part of a column: first=options.0.text")  # fmt: skip
    add("--choices", default="", metavar="WORD=CHOICE,…", help=f"meaning of the votes' values: {', '.join(Choice)}")
    add(
        "--answer",
        action="append",
        default=[],
        choices=list(ANSWERS),
        metavar="KEY=VALUE",
        help=f"answer to a question of the importer: {'; '.join(f'{key}: {text}' for key, text in ANSWERS.items())}",
    )
    add("--split", default="train", help="split of a Hub data set (default train; train[:1000] is a part)")
    add("--config", default=None, help="configuration of a Hub data set, if it has several")
    add("--source", choices=[s.value for s in Source], default=Source.HUMAN.value, help="whose votes (default human)")
    add("--annotator", type=name_of_person, default=IMPORTED, help="the annotator, if the file names none")
    add(
        "--use-prompts",
        action="store_true",
        help="also sample from new prompts; by default they are used only for their labels",
    )
    add(
        "--drop-duplicates",
        action="store_true",
        help="leave out further answers of the same person to the same two texts",
    )
    add("--skip-broken", action="store_true", help="leave out rows with a problem instead of importing nothing")
    add("--preview", action="store_true", help="print what would be imported, and write nothing")
    add(
        "--max-mb",
        type=number_from(1),
        default=Limits.max_bytes // 1_000_000,
        help="maximum size of a file, uncompressed",
    )
    parser = add_command(
        subparsers,
        "imports",
        "list the imports of a project, or undo one",
        "Undoing removes the votes of the import, and its pairs unless somebody else has voted on them.",
        run=run_imports,
        project=LAST_PROJECT,
    )
    parser.add_argument(
        "--undo", type=int, default=None, metavar="ID", help="print what undoing an import would remove"
    )
    parser.add_argument("--yes", action="store_true", default=None, help="with --undo: undo it")


def run(args: argparse.Namespace) -> int:
    if args.new_project is None:
        reject_options(args, ["model", "max_new_tokens"], "only with --new-project NAME.")
    else:
        reject_options(args, ["project"], "not with --new-project, which creates a project. Leave out one of them.")
    parsed = parse_file(_import_request(args))
    if args.preview:
        summary = _preview(args, parsed)
        print_result(
            args,
            {"imported": 0, "skipped": 0, "errors": summary["problems"], "preview": summary},
            format_preview(summary),
        )
        return 1 if summary["broken"] else 0
    with Database.open(args.home) as db:
        if args.new_project is not None:
            prompts = parsed.split_by_prompt
            if not prompts or (parsed.errors and not args.skip_broken):
                save_import(db, parsed, ImportTarget(0, skip_broken=args.skip_broken))  # raises, and says why
            project = new_project(
                db, model=args.model or "embedded", prompt_set=parsed.name[:60], custom_prompts=prompts, name=args.new_project,
                max_new_tokens=args.max_new_tokens, opens=False,
            )  # fmt: skip
        else:
            project = pick_project(db, args.project)
        summary = build_preview(adapt_to_project(db, parsed, project.id))
        saved = save_import(db, parsed, _import_target(args, project.id))
        note = show_project(args, db, project)
    result = {
        "imported": saved.votes, "skipped": saved.skipped, "errors": summary["problems"], "project": project.id,
        "saved": asdict(saved), "preview": summary,
    }  # fmt: skip
    print_result(args, result, f"Project {project.id}: {format_result(saved, parsed)}{note}")
    return 0


def _import_target(args: argparse.Namespace, project_id: int) -> ImportTarget:
    return ImportTarget(
        project_id, Source(args.source), args.annotator, args.drop_duplicates, args.use_prompts, args.skip_broken,
        "command line",
    )  # fmt: skip


def _preview(args: argparse.Namespace, parsed: ParsedFile) -> dict[str, Any]:
    """A preview of an import into a project, which may not exist yet. Writes nothing."""
    if args.new_project is None and lab_exists(args.home):
        with Database.open(args.home) as db:
            if args.project is not None or current_project(db) is not None:
                project_id = pick_project(db, args.project).id
                parsed = adapt_to_project(db, parsed, project_id)
                return build_preview(parsed, count_duplicates(db, parsed, _import_target(args, project_id)))
    return build_preview(parsed, count_duplicates(None, parsed, _import_target(args, 0)))


def run_imports(args: argparse.Namespace) -> int:
    if args.undo is None:
        reject_options(args, ["yes"], "only with --undo ID, the id of an import.")
    with open_existing_database(args.home) as db:
        project_id = pick_project(db, args.project).id
        if args.undo is None:
            batches = project_imports(db, project_id)
            lines = [_format_batch(batch) for batch in batches] or ["nothing was imported into this project"]
            print_result(
                args, {"project": project_id, "imports": [asdict(batch) for batch in batches]}, "\n".join(lines)
            )
            return 0
        undo = (undo_import if args.yes else preview_undo)(db, project_id, args.undo)
    message = format_undo(undo, completed=bool(args.yes)) + ("" if args.yes else " Add --yes to undo it.")
    print_result(
        args, {"project": project_id, "import": args.undo, "taken_back": bool(args.yes), **asdict(undo)}, message
    )
    return 0


def _format_batch(batch: ImportRecord) -> str:
    created = time.strftime("%Y-%m-%d %H:%M", time.localtime(batch.created_at))
    votes = pluralize_of(batch.votes_left, batch.votes, "vote")
    pairs = pluralize_of(batch.pairs_left, batch.pairs, "new pair")
    undone = ", undone" if batch.taken_back_at else ""
    return f"{batch.id}: {created} {batch.name} by {batch.who}: {votes}, {pairs}{undone}"


def _import_request(args: argparse.Namespace) -> ImportRequest:
    """The import request from the arguments. Raises ConfigError."""
    try:
        choices = parse_choice_words(args.choices) if args.choices else {}
    except UnreadableError as error:
        raise ConfigError(f"--choices cannot be read: {error}.") from None
    limits = Limits(max_bytes=args.max_mb * 1_000_000)
    return ImportRequest(
        args.what,
        mapping=parse_map(args.map),
        choices=choices,
        split=args.split,
        config_name=args.config,
        limits=limits,
        answers=frozenset(args.answer),
    )

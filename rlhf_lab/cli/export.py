"""`python -m rlhf_lab export labels|dataset|run|reward-model --out DIR`: what a lab knows, as files that other tools read."""

import argparse
from pathlib import Path
from typing import Any

from rlhf_lab.cli.common import add_common, answer, home_of, lab_there
from rlhf_lab.errors import ConfigError
from rlhf_lab.exports import (
    FORMATS,
    LAYOUTS,
    TIES,
    LabelExport,
    export_adapter,
    export_dataset,
    export_labels,
    export_reward_model,
    export_run,
    push_folder,
)
from rlhf_lab.jobs.setup import pick_project
from rlhf_lab.kinds import Source
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import latest_reward_model, runs

ALL = "all"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("export", help="write labels, a run or a reward model as files that other tools read")
    kinds = parser.add_subparsers(dest="what", required=True, metavar="labels|dataset|run|reward-model")
    labels = _kind(kinds, "labels", "preference data for TRL, one file", run_labels)
    _add_labels(labels, "jsonl")
    dataset = _kind(kinds, "dataset", "the labels as a data set: a folder with card and provenance", run_dataset)
    _add_labels(dataset, "parquet")
    dataset.add_argument(
        "--push", metavar="OWNER/NAME", default=None, help="send it to the Hub too (HF_TOKEN or `hf auth login`)"
    )
    dataset.add_argument("--public", action="store_true", help="the Hub's repository is public, not private")
    run = _kind(kinds, "run", "metrics, samples, manifest, TensorBoard file and the adapter of a run", run_run)
    run.add_argument("run_id", metavar="RUN", nargs="?", type=int, help="id of the run (default: the project's newest)")
    run.add_argument("--step", type=int, default=None, help="only the adapter, of this step's checkpoint")
    reward = _kind(kinds, "reward-model", "adapter, head and report of a reward model", run_reward_model)
    reward.add_argument(
        "reward_model", metavar="ID", nargs="?", type=int, help="its id (default: the project's newest)"
    )


def _add_labels(parser: argparse.ArgumentParser, format_: str) -> None:
    add = parser.add_argument
    add("--source", choices=[*(s.value for s in Source), ALL], default=Source.HUMAN.value,
        help="whose labels (default human); each row says whose it is")  # fmt: skip
    add("--annotator", action="append", default=[], help="only this annotator's; may be given several times")
    add("--no-names", action="store_true", help="people as visitors without a name; what they noted stays")
    add("--ties", choices=TIES, default="keep", help='keep them with "tie": true, or drop them')
    add("--agreement", type=float, default=0.0, metavar="SHARE",
        help="only votes that at least this share of the pair's votes agree with")  # fmt: skip
    add("--layout", choices=LAYOUTS, default="votes",
        help="votes: all that is known; explicit, implicit: exactly TRL's columns, without ties")  # fmt: skip
    add("--messages", action="store_true", help="texts as chats: TRL's conversational format")
    add("--token-ids", action="store_true", help="also the sampled token ids")
    add("--format", choices=FORMATS, default=format_,
        help=f"default {format_}; csv: names and notes get an apostrophe before = + - @, the texts stay exact")  # fmt: skip


def _wanted(args: argparse.Namespace) -> LabelExport:
    return LabelExport(
        source=None if args.source == ALL else Source(args.source), annotators=tuple(args.annotator), ties=args.ties,
        agreement=args.agreement, layout=args.layout, messages=args.messages, token_ids=args.token_ids, format=args.format,
        names=not args.no_names,
    )  # fmt: skip


def _kind(kinds: Any, name: str, about: str, function: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(name, help=about)
    add_common(parser)
    parser.add_argument("--project", type=int, default=None, help="project id (default: the one opened last)")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to; made if missing")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.set_defaults(run=function)
    return parser


def run_labels(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    if args.out.suffix.lstrip(".") in FORMATS and not args.out.is_dir():
        raise ConfigError(
            f"--out is a folder, and the file in it gets its name from what is exported: --out {args.out.parent}"
        )
    with lab_there(home_of(args)) as db:
        path = export_labels(db, pick_project(db, args.project).id, _out(args), wanted, force=args.force)
    return _tell(args, [path])


def run_dataset(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    with lab_there(home_of(args)) as db:
        folder = export_dataset(db, pick_project(db, args.project).id, _out(args), wanted, force=args.force)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if args.push is None:
        return _tell(args, files)
    address = push_folder(folder, args.push, private=not args.public)
    answer(args, {"files": [str(path) for path in files], "address": address}, address)
    return 0


def run_run(args: argparse.Namespace) -> int:
    home = home_of(args)
    with lab_there(home) as db:
        run_id = args.run_id if args.run_id is not None else _newest_run(db, args.project)
        if args.step is not None:
            paths = [export_adapter(db, home, run_id, _out(args), step=args.step, force=args.force)]
        else:
            paths = export_run(db, home, run_id, _out(args), force=args.force)
    return _tell(args, paths)


def run_reward_model(args: argparse.Namespace) -> int:
    home = home_of(args)
    with lab_there(home) as db:
        wanted = args.reward_model
        if wanted is None:
            project = pick_project(db, args.project)
            row = latest_reward_model(db, project.id)
            if row is None:
                raise ConfigError(f"Project {project.id} has no reward model. Train one with `train-reward`.")
            wanted = row.id
        path = export_reward_model(db, home, wanted, _out(args), force=args.force)
    return _tell(args, [path])


def _newest_run(db: Database, project_id: int | None) -> int:
    project = pick_project(db, project_id)
    found = runs(db, project.id)
    if not found:
        raise ConfigError(f"Project {project.id} has no run to export yet. Start one with `train-policy`.")
    return found[0].id


def _out(args: argparse.Namespace) -> Path:
    out: Path = args.out
    return out.expanduser().resolve()


def _tell(args: argparse.Namespace, paths: list[Path]) -> int:
    answer(args, {"files": [str(path) for path in paths]}, "\n".join(map(str, paths)))
    return 0

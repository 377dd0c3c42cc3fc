"""`python -m rlhf_lab export WHAT --out DIR`: write labels, runs and models of a lab to files for other tools."""

import argparse
import contextlib
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.cli.console import (
    LAST_PROJECT,
    add_command,
    add_plain_command,
    open_existing_database,
    print_result,
    progress_reporter,
    reject_options,
)
from rlhf_lab.common.enums import Source
from rlhf_lab.common.progress import FractionCallback, ignore_fraction
from rlhf_lab.common.records import Project
from rlhf_lab.errors import ConfigError
from rlhf_lab.exporters.adapter_zip import BEST, export_adapter, export_reward_model
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.hub_upload import push_folder
from rlhf_lab.exporters.label_export import (
    FORMATS,
    LAYOUTS,
    TIES,
    LabelExportOptions,
    count_left_out,
    export_labels,
)
from rlhf_lab.exporters.merged_model import DTYPES, export_model
from rlhf_lab.exporters.run_export import export_run
from rlhf_lab.exporters.trl_recipe import LABEL_TRAINERS, export_label_recipe, export_run_recipe
from rlhf_lab.exporters.trl_settings import TRL_VERSION
from rlhf_lab.jobs.model_inspection import has_chat_template
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.jobs.system_role import exports_system_role
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.runs import get_run, runs

ALL_SOURCES = "all"


def add_parser(subparsers: Any) -> None:
    parser = add_plain_command(
        subparsers,
        "export",
        "write labels, a run or a reward model as files that other tools read",
        "`export WHAT --help` describes the options of each kind.",
    )
    subparsers = parser.add_subparsers(
        dest="what", required=True, metavar="labels|dataset|run|model|reward-model|recipe"
    )
    labels = _add_export_parser(subparsers, "labels", "preference data for TRL, one file", _export_labels)
    _add_label_arguments(labels, "jsonl")
    dataset = _add_export_parser(
        subparsers, "dataset", "the labels as a data set: a folder with card and provenance", _export_dataset
    )
    _add_label_arguments(dataset, "parquet")
    _add_push_arguments(dataset, "dataset")
    run = _add_export_parser(
        subparsers,
        "run",
        "metrics, samples, token records, manifest and adapter of a run",
        _export_policy_run,
    )
    _add_run_arguments(run, "only the adapter from this step's checkpoint")
    model = _add_export_parser(
        subparsers, "model", "a policy as a whole model folder, the adapter merged into the weights", _export_model
    )
    _add_run_arguments(model, "the checkpoint of this step (default: the newest)")
    model.add_argument(
        "--dtype", choices=DTYPES, default="base",
        help="of the weights that the run changed: that of the base's files (default), or float32, which rounds nothing",
    )  # fmt: skip
    _add_push_arguments(model, "model")
    reward = _add_export_parser(
        subparsers, "reward-model", "adapter, head and report of a reward model", _export_reward_model
    )
    reward.add_argument(
        "reward_model", metavar="ID", nargs="?", type=int, help="its id (default: the project's newest)"
    )
    _add_push_arguments(reward, "model")
    recipe = _add_export_parser(
        subparsers,
        "recipe",
        "a folder for training with TRL from a run or from labels: data, reward and script",
        _export_recipe,
    )
    recipe.add_argument(
        "what_for", metavar="RUN|labels", nargs="?", default=None,
        help='id of the run (default: the project\'s newest), or "labels" for those of the project',
    )  # fmt: skip
    recipe.add_argument(
        "--to", choices=("trl",), default="trl", help=f"target library (default trl, version {TRL_VERSION})"
    )
    recipe.add_argument(
        "--trainer",
        choices=LABEL_TRAINERS,
        default=None,
        help="with labels: train a reward model (default), or by DPO",
    )
    recipe.add_argument(
        "--source", choices=[*(s.value for s in Source), ALL_SOURCES], default=None,
        help="with labels: whose (default human)",
    )  # fmt: skip


def _step(text: str) -> Literal["best"] | int:
    """Raises ArgumentTypeError."""
    if text != BEST and not text.isdecimal():
        raise argparse.ArgumentTypeError(f'"{text}" is neither a step nor the word {BEST}')
    return BEST if text == BEST else int(text)


def _add_run_arguments(parser: argparse.ArgumentParser, step_help: str) -> None:
    parser.add_argument(
        "run_id", metavar="RUN", nargs="?", type=int, help="id of the run (default: the project's newest)"
    )
    parser.add_argument(
        "--step", type=_step, default=None, metavar="STEP",
        help=f'{step_help}; "{BEST}" is the best one within the KL budget',
    )  # fmt: skip


def _add_push_arguments(parser: argparse.ArgumentParser, repo_type: str) -> None:
    parser.add_argument(
        "--push", metavar="OWNER/NAME", default=None, help="send it to the Hub too (HF_TOKEN or `hf auth login`)"
    )
    parser.add_argument(
        "--public", action="store_true", default=None, help="the Hub's repository is public, not private"
    )
    parser.set_defaults(repo_type=repo_type)


def _add_label_arguments(parser: argparse.ArgumentParser, default_format: str) -> None:
    add = parser.add_argument
    add("--source", choices=[*(s.value for s in Source), ALL_SOURCES], default=Source.HUMAN.value,
        help="whose labels (default human); each row says whose it is")  # fmt: skip
    add("--annotator", action="append", default=[], help="only this annotator's; may be given several times")
    add("--no-names", action="store_true", help="replace names by numbered visitors; notes are kept")
    add("--ties", choices=TIES, default=None,
        help='keep them with "tie": true (default of the layout votes), or drop them')  # fmt: skip
    add("--agreement", type=float, default=0.0, metavar="SHARE",
        help="only votes that agree with at least this share of the pair's votes")  # fmt: skip
    add("--layout", choices=LAYOUTS, default=None,
        help="training (default): the labels that a training uses, with all columns, without ties; explicit, implicit: the same "
             "with exactly TRL's columns; votes: every vote, for archives (default with --ties keep)")  # fmt: skip
    add(
        "--messages",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="texts as chats, TRL's conversational format (default for training if the model has a chat template), or as texts",
    )
    add("--gold", action="store_true",
        help="also the votes on gold pairs, which test people (the layout votes always has them)")  # fmt: skip
    add("--token-ids", action="store_true", help="also the sampled token ids")
    add(
        "--format",
        choices=FORMATS,
        default=default_format,
        help=f"default {default_format}; csv: names and notes get an apostrophe before = + - @, texts are unchanged",
    )


def _label_options(args: argparse.Namespace, db: Database, project: Project) -> LabelExportOptions:
    layout = args.layout or ("votes" if args.ties == "keep" else "training")
    if args.ties == "keep" and layout != "votes":
        raise ConfigError(
            f"--ties keep does not go with --layout {layout}: a tie has no better text. Use --layout votes."
        )
    messages = args.messages
    if messages is None:
        messages = layout != "votes" and has_chat_template(project.model)
    return LabelExportOptions(
        source=None if args.source == ALL_SOURCES else Source(args.source), annotators=tuple(args.annotator),
        ties=args.ties or "keep", agreement=args.agreement, layout=layout, messages=messages, token_ids=args.token_ids,
        system_role=not messages or exports_system_role(db, project), format=args.format, names=not args.no_names,
        gold=args.gold,
    )  # fmt: skip


def _add_export_parser(subparsers: Any, name: str, help_text: str, export: Any) -> argparse.ArgumentParser:
    """Add a kind of export. export: function (args, db, home, out) -> list of written paths."""
    parser = add_command(subparsers, name, help_text, run=run, project=LAST_PROJECT)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to; created if missing")
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.set_defaults(export=export, push=None, public=None)
    return parser


def run(args: argparse.Namespace) -> int:
    if args.push is None:
        reject_options(args, ["public"], "only for a repository on the Hub. Give its name with --push.")
    out = args.out.expanduser().resolve()
    with open_existing_database(args.home) as db:
        paths: list[Path] = args.export(args, db, args.home, out)
    files = [str(file) for path in paths for file in (_files_in(path) if path.is_dir() else [path])]
    if args.push is None:
        print_result(args, {"files": files}, "\n".join(files))
    else:
        with _folder_of(paths[0]) as folder:
            address = push_folder(folder, args.push, repo_type=args.repo_type, private=not args.public)
        print_result(args, {"files": files, "address": address}, address)
    return 0


@contextlib.contextmanager
def _folder_of(export: Path) -> Iterator[Path]:
    """An exported folder, or a temporary folder with the content of an exported zip."""
    if export.is_dir():
        yield export
        return
    with tempfile.TemporaryDirectory(prefix="rlhf-lab-push-") as folder, zipfile.ZipFile(export) as archive:
        archive.extractall(folder)
        yield Path(folder)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _export_labels(args: argparse.Namespace, db: Database, _home: Path, out: Path) -> list[Path]:
    if args.out.suffix.lstrip(".") in FORMATS and not args.out.is_dir():
        raise ConfigError(
            f"--out must be a folder; the name of the file is chosen by the export: --out {args.out.parent}"
        )
    project = pick_project(db, args.project)
    options = _label_options(args, db, project)
    with _label_progress(args) as on_progress:
        path = export_labels(db, project.id, out, options, force=args.force, on_progress=on_progress)
    _report_left_out(db, project, options)
    if project.system_prompt and not options.contains_system_prompt:
        print("These columns do not hold the project's system prompt: use --messages.", file=sys.stderr)
    return [path]


def _export_dataset(args: argparse.Namespace, db: Database, _home: Path, out: Path) -> list[Path]:
    project = pick_project(db, args.project)
    options = _label_options(args, db, project)
    with _label_progress(args) as on_progress:
        path = export_dataset(db, project.id, out, options, force=args.force, on_progress=on_progress)
    _report_left_out(db, project, options)
    return [path]


def _report_left_out(db: Database, project: Project, options: LabelExportOptions) -> None:
    """Print how many votes the export leaves out, and why."""
    if note := count_left_out(db, project.id, options).note():
        print(f"{note} --layout votes exports every vote.", file=sys.stderr)


@contextlib.contextmanager
def _label_progress(args: argparse.Namespace) -> Iterator[FractionCallback]:
    """A progress bar on a terminal; no output elsewhere, because labels are written in seconds."""
    if args.json or not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield ignore_fraction
        return
    with progress_reporter("writing the labels") as report:
        yield lambda fraction: report(fraction, None)


def _export_recipe(args: argparse.Namespace, db: Database, home: Path, out: Path) -> list[Path]:
    is_labels = args.what_for == "labels"
    if not is_labels and not (args.what_for or "1").isdecimal():
        raise ConfigError(f'"{args.what_for}" is not a run: give the id of a run, or the word labels.')
    if is_labels:
        project = pick_project(db, args.project)
    else:
        reject_options(args, ["trainer", "source"], "only for recipes of labels. Write labels in place of the run.")
        args.run_id = args.what_for
        project = get_project(db, get_run(db, _run_id(args, db)).project_id)
    messages = has_chat_template(project.model)
    texts = LabelExportOptions(
        source=None if args.source == ALL_SOURCES else Source(args.source or Source.HUMAN), layout="training",
        messages=messages, system_role=not messages or exports_system_role(db, project),
    )  # fmt: skip
    if is_labels:
        return export_label_recipe(db, project.id, out, texts, trainer=args.trainer or "reward", force=args.force)
    return export_run_recipe(db, home, _run_id(args, db), out, texts, force=args.force)


def _run_id(args: argparse.Namespace, db: Database) -> int:
    if args.run_id is not None:
        return int(args.run_id)
    project = pick_project(db, args.project)
    project_runs = runs(db, project.id)
    if not project_runs:
        raise ConfigError(f"Project {project.id} has no run to export yet. Start one with `train-policy`.")
    return project_runs[0].id


def _export_model(args: argparse.Namespace, db: Database, home: Path, out: Path) -> list[Path]:
    run_id = _run_id(args, db)
    return [
        export_model(
            db, home, run_id, out, step=args.step, dtype=args.dtype, force=args.force,
            on_note=lambda note: print(note, file=sys.stderr),
        )
    ]  # fmt: skip


def _export_policy_run(args: argparse.Namespace, db: Database, home: Path, out: Path) -> list[Path]:
    run_id = _run_id(args, db)
    if args.step is None:
        return export_run(db, home, run_id, out, force=args.force)
    return [export_adapter(db, home, run_id, out, step=args.step, force=args.force)]


def _export_reward_model(args: argparse.Namespace, db: Database, home: Path, out: Path) -> list[Path]:
    reward_model_id = args.reward_model
    if reward_model_id is None:
        project = pick_project(db, args.project)
        row = latest_reward_model(db, project.id)
        if row is None:
            raise ConfigError(f"Project {project.id} has no reward model. Train one with `train-reward`.")
        reward_model_id = row.id
    return [export_reward_model(db, home, reward_model_id, out, force=args.force)]

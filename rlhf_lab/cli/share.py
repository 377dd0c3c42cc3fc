"""`python -m rlhf_lab share RUN --out page.html`: a run as one HTML file that needs no lab and no network."""

import argparse
from pathlib import Path
from typing import Any

from rlhf_lab.cli.console import add_command, open_existing_database, print_result
from rlhf_lab.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "share",
        "write a run as one HTML file that opens without a lab and without a network",
        "It shows curves, samples, tokens and settings, holds blind pairs for its readers, and prints as a report.",
        run=run,
    )
    parser.add_argument("run_id", metavar="RUN", type=int, help="id of the run")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write, such as page.html")
    parser.add_argument("--names", action="store_true", help="name the people who labelled (default: nobody)")
    parser.add_argument(
        "--index", action="store_true", help="also write index.html beside it, a list of the folder's pages"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> int:
    """Raises LabError."""
    from rlhf_lab.ui.context import Context  # late: Gradio takes seconds
    from rlhf_lab.ui.share.page import INDEX, write_index, write_page
    from rlhf_lab.ui.share.recording import record

    if args.index and args.out.name == INDEX:
        raise ConfigError(f"--index writes {INDEX} beside the page. Choose another name for the page.")
    with open_existing_database(args.home) as db:
        recording = record(Context(args.home, db), args.run_id, names=args.names)
    try:
        write_page(recording, args.out, force=args.force)
        if args.index:
            write_index(args.out.parent, force=args.force)
    except OSError as error:
        raise ConfigError(
            f"{args.out} cannot be written ({error.strerror or error}). Give --out with the name of a file in a folder that you "
            "may write to."
        ) from error
    size = args.out.stat().st_size
    result = {"file": str(args.out), "bytes": size, "pairs": len(recording["pairs"])}
    print_result(args, result, f"{args.out}: {size / 1e6:.1f} MB, {len(recording['pairs'])} blind pairs")
    return 0

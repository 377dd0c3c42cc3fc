"""`python app.py`: the lab in the browser. Spaces starts this file too."""

import argparse
import contextlib
import os
import shlex
import sys
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from rlhf_lab import runtime
from rlhf_lab.errors import LabError, ModelError
from rlhf_lab.home import default_home
from rlhf_lab.jobs import queue, supervisor
from rlhf_lab.jobs.download import Downloads, DownloadStatus
from rlhf_lab.jobs.estimate import Verdict, estimate, machine
from rlhf_lab.jobs.examine import ModelFacts, examine
from rlhf_lab.jobs.setup import open_model
from rlhf_lab.jobs.steward import Steward
from rlhf_lab.kinds import EngineState, JobKind, JobStatus
from rlhf_lab.labelling import Role
from rlhf_lab.store.database import Database
from rlhf_lab.ui.access import CODE_VARIABLE
from rlhf_lab.ui.address import address_for_others, behind_proxy, is_loopback
from rlhf_lab.ui.auth_file import read_people
from rlhf_lab.ui.context import SECRET_VARIABLE, Context
from rlhf_lab.ui.page import build_page, launch_options

#: Characters of an operator's secret that nobody guesses; wrong ones are not counted, so that nobody keeps the operator out.
LEAST_SECRET = 16


def main(argv: list[str] | None = None) -> int:
    on_space = bool(os.environ.get("SPACE_ID"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--host", default="0.0.0.0" if on_space else "127.0.0.1", help="address to serve on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--url",
        default=None,
        help="the address at which a proxy before the lab serves it, such as https://lab.example.org/",
    )
    parser.add_argument("--port", type=int, default=7860, help="port to serve on (default 7860)")
    parser.add_argument("--home", type=Path, default=None, help=f"the lab's folder (default {default_home()})")
    parser.add_argument(
        "--public-labelling", action="store_true", help="whoever reaches the page may label, without the join code"
    )
    parser.add_argument(
        "--model", default=None, help="open the project on this model, or make one: embedded, a folder, or a Hub id"
    )
    parser.add_argument(
        "--auth-file", type=Path, default=None,
        help="people who enter by name and password at /enter, beside the join code: a file of lines NAME:PASSWORD or "
        "NAME:PASSWORD:operator; `python -m rlhf_lab password` makes a hash to write in a password's place",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        ctx = opened(args, on_space)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while a model is downloaded
        print("stopped", file=sys.stderr)
        return 130
    with ctx.db:
        return serve(ctx, args.host, args.port)


def opened(args: argparse.Namespace, on_space: bool) -> Context:
    """The lab that was asked for, with the project that it opens on. Raises LabError."""
    people = read_people(args.auth_file.expanduser()) if args.auth_file is not None else {}
    front = behind_proxy(args.url) if args.url is not None else ""
    with contextlib.ExitStack() as undone:
        ctx = Context.open((args.home or default_home()).expanduser().resolve())
        undone.enter_context(ctx.db)
        if not on_space:
            ctx = replace(ctx, address=front or address_for_others(args.host, args.port), proxied=bool(front))
        if on_space or args.public_labelling or people or front or not is_loopback(args.host):
            to_all = args.public_labelling or (on_space and not people and not os.environ.get(CODE_VARIABLE))
            ctx = ctx.guarded(open_to_all=to_all, people=people)
        if args.model is not None:
            open_model(ctx.db, brought(args.model))
        ctx.project  # noqa: B018  made now, so that the first visitor finds it
        undone.pop_all()
    return ctx


def brought(model: str) -> ModelFacts:
    """What the model is, all its files here; says so where they come from the Hub. Raises LabError."""
    facts = examine(model)
    if facts.files:
        print(f"Downloading {facts.name}, {facts.download_bytes / 1e6:,.0f} MB …", flush=True)
        downloads = Downloads()
        downloads.start(facts, lambda _: "")
        downloads.wait()
        done = downloads.progress()
        if done is None or done.status is not DownloadStatus.DONE:
            raise ModelError(f"{facts.name}: {done.words if done else 'it was not downloaded.'}")
    found = estimate(facts, machine())
    if found.verdict is Verdict.TOO_LARGE:
        print(f"{facts.name} may be too large for this machine. {found.advice}", file=sys.stderr)
    return facts


def serve(ctx: Context, host: str, port: int) -> int:
    """Serve until Ctrl-C, then say what goes on in the background. Returns the exit status: 1 where it could not be served."""
    runtime.stay_small()
    steward = Steward(ctx.home, ctx.db)
    with runtime.to_stay():
        page = build_page(ctx).queue(default_concurrency_limit=8, max_size=64, api_open=False)
    with contextlib.suppress(KeyboardInterrupt):
        with runtime.to_stay():
            try:
                _, url, _ = page.launch(
                    server_name=host, server_port=port, prevent_thread_lock=True, **launch_options(ctx)
                )
            except OSError as error:  # the port is taken, or the address is not this machine's
                print(f"error: {host}:{port} cannot be served ({error}). Choose another with --port.", file=sys.stderr)
                return 1
        steward.start()
        print(f"RLHF Lab: {url}\nhome: {ctx.home}{doors(ctx, ctx.address or url)}", flush=True)
        print("Ctrl-C ends the page; what the engine does goes on.", flush=True)
        threading.Event().wait()
    steward.stop()
    page.close(verbose=False)
    print(f"\n{farewell(ctx.db, ctx.home)}", flush=True)
    return 0


def farewell(db: Database, home: Path) -> str:
    """What still runs when the page ends, and how to stop it."""
    where = "" if home == default_home().expanduser().resolve() else f" --home {shlex.quote(str(home))}"
    engine = supervisor.engine_state(db)
    if engine.state not in (EngineState.ALIVE, EngineState.STARTING) or engine.row is None:
        return "The page has ended; no engine is running."
    running = queue.jobs(db, statuses=[JobStatus.RUNNING])
    what = "; ".join(
        f"PPO run {job.payload['run_id']}, {job.progress:.0%} done" if job.kind is JobKind.TRAIN_POLICY
        else job.kind.value.replace("_", " ")
        for job in running
    )  # fmt: skip
    doing = f"is still at work ({what})" if what else "rests, and leaves by itself after 10 minutes"
    return (
        f"The page has ended. The engine (pid {engine.row.process.pid}) {doing}.\n"
        f"Start `python app.py{where}` again to watch it; `python -m rlhf_lab stop-engine{where}` ends it (a run resumes later)."
    )


def doors(ctx: Context, url: str) -> str:
    """How the operator and labellers enter, to be printed where only the operator reads it."""
    if not ctx.access.guarded:
        return ""
    if os.environ.get("SPACE_HOST"):
        url = f"https://{os.environ['SPACE_HOST']}/"
    join = "nothing to enter: whoever reaches the page may label"
    if ctx.access.default is Role.VIEWER:
        join = f"{url}join  with the code {ctx.access.join_code}"
    if ctx.access.people:
        join += f"\npeople of the file: {url}enter  with name and password"
    secret, doubt = ctx.access.operator_secret, ""
    if len(secret) < LEAST_SECRET:
        doubt = f"\nThe operator's secret is short and can be guessed: give {SECRET_VARIABLE} {LEAST_SECRET} characters or more."
    return f"\noperator (keep this link to yourself): {url}enter?key={quote(secret)}\nlabellers: {join}{doubt}"


if __name__ == "__main__":
    sys.exit(main())

"""`python app.py` and `rlhf-lab`: serve the page of the lab."""

import argparse
import contextlib
import os
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from rlhf_lab import __version__
from rlhf_lab.backup.restore import apply_confirmed
from rlhf_lab.cli.console import port_number
from rlhf_lab.common import logs, process_env
from rlhf_lab.common.bundled_assets import PROMPT_SETS
from rlhf_lab.common.enums import EngineState, JobKind, JobStatus
from rlhf_lab.common.paths import default_home
from rlhf_lab.common.program_names import lab_command, page_command
from rlhf_lab.common.records import Role
from rlhf_lab.common.storage import storage_note
from rlhf_lab.config.demo import DEMO_MODE_ENV_VAR, DemoConfig, demo_config
from rlhf_lab.errors import ConfigError, LabError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.demo import end_demo
from rlhf_lab.jobs.mirror_control import MirrorControl
from rlhf_lab.jobs.mirror_loop import restore_home, stop_on_sigterm
from rlhf_lab.jobs.project_setup import pick_project
from rlhf_lab.jobs.run_tracking import TRACK_HELP, TRACK_VARIABLE, tracker_entry
from rlhf_lab.jobs.startup_project import VARIABLES, StartupProject, read_settings
from rlhf_lab.store.database import Database
from rlhf_lab.ui.auth.password_file import read_password_file
from rlhf_lab.ui.auth.visitors import JOIN_CODE_ENV_VAR
from rlhf_lab.ui.connections import limited_protocol, limits_of, raise_open_file_limit
from rlhf_lab.ui.context import OPERATOR_SECRET_ENV_VAR, Context
from rlhf_lab.ui.gradio_patches import check_queue_less_often, http_protocol
from rlhf_lab.ui.network import in_container, is_loopback, network_url, parse_proxy_url
from rlhf_lab.ui.page import build_page, launch_options
from rlhf_lab.ui.people.api import needs_address

#: In characters. Login attempts are not limited, so that no one can lock the operator out; a shorter secret could be guessed.
MIN_SECRET_LENGTH = 16


def main(argv: list[str] | None = None) -> int:
    on_space = bool(os.environ.get("SPACE_ID"))
    parser = argparse.ArgumentParser(
        prog=page_command(),
        description="The lab in the browser.",
        epilog="Environment variables replace missing options: "
        f"{', '.join(['RLHF_LAB_HOME', DEMO_MODE_ENV_VAR, TRACK_VARIABLE, *VARIABLES.values()])}.",
    )
    parser.add_argument(
        "--host", default="0.0.0.0" if on_space else "127.0.0.1", help="address to serve on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--url",
        default=None,
        help="the lab's address for its visitors if that is not its own: behind a proxy, such as https://lab.example.org/, or in "
        "a container, such as http://192.168.1.20:7860/",
    )
    parser.add_argument("--port", type=port_number, default=7860, help="port to serve on (default 7860)")
    parser.add_argument("--home", type=Path, default=None, help=f"the lab's folder (default {default_home()})")
    parser.add_argument(
        "--public-labelling",
        action="store_true",
        help="everybody who can open the page may label, without the join code",
    )
    limits = ", ".join(f"{name}={value:g}" for name, value in DemoConfig().to_dict().items())
    parser.add_argument(
        "--demo-mode", nargs="*", default=None, metavar="SETTING=VALUE",
        help="visitors may start short runs; their labels, models and runs are removed regularly (docs/SPACES.md); "
        f"{DEMO_MODE_ENV_VAR}=1 does the same. Settings: {limits}",
    )  # fmt: skip
    parser.add_argument(
        "--model", default=None, help="open the project on this model, or create one: embedded, a folder, or a Hub id"
    )
    parser.add_argument(
        "--prompts", default=None, metavar="SET_OR_FILE",
        help=f"with --model: project on these prompts: {', '.join(PROMPT_SETS)}, or a file with one prompt per line",
    )  # fmt: skip
    parser.add_argument(
        "--system-prompt", default=None, metavar="TEXT",
        help="with --model: open the project with this system prompt, or create one",
    )  # fmt: skip
    parser.add_argument(
        "--template-arguments", default=None, metavar="JSON",
        help='with --model: arguments of its chat template, such as \'{"enable_thinking": true}\' (default: thinking is off)',
    )  # fmt: skip
    parser.add_argument("--temperature", default=None, help="sample new texts of the open project at this temperature")
    parser.add_argument(
        "--max-new-tokens", default=None, help="longest new text of the open project, in tokens (new project: 64)"
    )
    parser.add_argument("--track", metavar="TRACKER", default=None, help=TRACK_HELP)
    parser.add_argument(
        "--auth-file", type=Path, default=None,
        help="people who log in with name and password at /enter, in addition to the join code: a file of lines NAME:PASSWORD or "
        f"NAME:PASSWORD:operator; `{lab_command()} password` creates a hash to use instead of a password",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=__version__)
    args = parser.parse_args(argv)
    try:
        ctx = open_context(args, on_space)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # for example while a model is being downloaded
        print("stopped", file=sys.stderr)
        return 130
    with ctx.db:
        return serve(ctx, args.host, args.port)


def open_context(args: argparse.Namespace, on_space: bool) -> Context:
    """The context of the page for these arguments. Opens a project. Raises LabError."""
    people = read_password_file(args.auth_file.expanduser()) if args.auth_file is not None else {}
    demo, demo_problem = _demo_mode(args.demo_mode, on_space)
    problems = " ".join(filter(None, [demo_problem, _set_tracker(args.track, on_space)]))
    proxy_address = parse_proxy_url(args.url) if args.url is not None else ""
    with contextlib.ExitStack() as cleanup:
        home = (args.home or default_home()).expanduser().resolve()
        if (old := apply_confirmed(home)) is not None:
            print(f"The backup was restored. The data that were here before are kept in {old}", flush=True)
        control = MirrorControl(home, os.environ)
        if control.mirror is not None:
            restore_home(control.mirror, lambda message: print(message, flush=True))
        ctx = Context.open(home)
        cleanup.enter_context(ctx.db)
        ctx = replace(ctx, settings_problem=problems, mirror=control)
        if not on_space:
            ctx = replace(
                ctx, public_url=proxy_address or network_url(args.host, args.port), behind_proxy=bool(proxy_address),
                in_container=in_container() and not is_loopback(args.host),
            )  # fmt: skip
        is_public = on_space or demo is not None  # every visitor may label, unless a join code or login is required
        if is_public or args.public_labelling or people or proxy_address or not is_loopback(args.host):
            open_to_all = args.public_labelling or (is_public and not people and not os.environ.get(JOIN_CODE_ENV_VAR))
            ctx = ctx.as_multi_user(open_to_all=open_to_all, password_entries=people)
        settings = read_settings(vars(args), os.environ)
        startup = StartupProject(ctx.db, settings, ctx.downloads, lambda message: print(message, flush=True))
        if on_space and settings:
            ctx = replace(ctx, startup=startup)  # started by `serve`; the page shows its progress
        elif settings and (notes := startup.open()):
            print(notes, file=sys.stderr)
        pick_project(ctx.db, None)  # creates one before the first visitor arrives
        if demo is not None:
            ctx = ctx.with_demo(demo)
        elif not demo_problem:
            end_demo(ctx.home)
        cleanup.pop_all()
    return ctx


def _demo_mode(option: list[str] | None, on_space: bool) -> tuple[DemoConfig | None, str]:
    """The demo mode, or None if it is off, and a message if the variable of a Space is invalid ("" if not). Raises ConfigError.

    On a Space, a mistake in the variable is shown on the page, because an error would restart the Space repeatedly.
    """
    try:
        return demo_config(option, os.environ.get(DEMO_MODE_ENV_VAR)), ""
    except ConfigError as error:
        if option is not None or not on_space:
            raise
        problem = (
            f"Demo mode is off. {str(error).rstrip('.')}. The operator can correct this in the settings of the Space; "
            f"{DEMO_MODE_ENV_VAR}=1 switches demo mode on with its default limits."
        )
        print(f"error: {problem}", file=sys.stderr)
        return None, problem


def _set_tracker(option: str | None, on_space: bool) -> str:
    """Let new runs be logged to the tracker of the option, which replaces the variable. Returns a message and raises as
    `_demo_mode`."""
    if option is not None:
        os.environ[TRACK_VARIABLE] = option
    try:
        tracker_entry()
    except ConfigError as error:
        if option is not None or not on_space:
            raise
        del os.environ[TRACK_VARIABLE]
        problem = f"Runs are not logged ({TRACK_VARIABLE}). {error} On a Space, add the package to requirements.txt."
        print(f"error: {problem}", file=sys.stderr)
        return problem
    return ""


def serve(ctx: Context, host: str, port: int) -> int:
    """Serve until Ctrl-C, then print what is still running in the background. Returns the exit status, 1 after a failure."""
    process_env.limit_malloc_arenas()
    process_env.hide_environment()
    logs.log_to_stderr()
    # By default, Uvicorn trusts the header X-Forwarded-For of connections from this computer. The lab reads the header itself, if
    # --url states that there is a proxy (Access.client_address).
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    with process_env.freeze_gc():
        page = build_page(ctx).queue(default_concurrency_limit=8, max_size=64, api_open=False)
        check_queue_less_often(page)
    limits = limits_of(raise_open_file_limit(), behind_proxy=ctx.behind_proxy or ctx.on_space)
    with contextlib.suppress(KeyboardInterrupt):
        with process_env.freeze_gc(), http_protocol(limited_protocol(limits)):
            try:
                _, url, _ = page.launch(
                    server_name=host, server_port=port, prevent_thread_lock=True, **launch_options(ctx)
                )
            except OSError:  # its text names settings of Gradio that the lab does not have
                print(
                    f"error: {host}:{port} cannot be served: another program uses the port, or the address is not one of "
                    "this computer. Choose others with --port and --host.",
                    file=sys.stderr,
                )
                return 1
        logs.make_handlers_safe("uvicorn")
        if ctx.startup is not None:
            ctx.startup.start()
        ctx.scheduler.start()
        ctx.instant_reward.start()
        if ctx.mirror is not None:
            ctx.mirror.start()
        stop_on_sigterm()
        if needs_address(ctx):
            url = f"http://localhost:{port}/"
        print(
            f"RLHF Lab: {url}\nhome: {ctx.home}{storage_note(ctx.home)}{access_instructions(ctx, ctx.public_url or url)}",
            flush=True,
        )
        print("Ctrl-C stops the page; the engine continues.", flush=True)
        wait_for_interrupt()
    ctx.scheduler.stop()
    ctx.instant_reward.stop()
    page.close(verbose=False)
    if ctx.mirror is not None and ctx.mirror.loop is not None:
        print("Saving to the Hub …", flush=True)
        ctx.mirror.stop()
    print(f"\n{shutdown_message(ctx.db, ctx.home)}", flush=True)
    return 0


def wait_for_interrupt() -> None:
    """Return only by an exception of a signal's handler. The system may deliver the signal to another thread, which does not
    wake up this one, and only this one runs the handler; so it wakes up once a second."""
    while True:
        time.sleep(1.0)


def shutdown_message(db: Database, home: Path) -> str:
    """A message about what is still running after the page has ended, and how to stop it."""
    home_option = "" if home == default_home().expanduser().resolve() else f" --home {shlex.quote(str(home))}"
    engine = engine_process.engine_state(db)
    if engine.state not in (EngineState.ALIVE, EngineState.STARTING) or engine.row is None:
        return "The page has ended; no engine is running."
    running = queue.jobs(db, statuses=[JobStatus.RUNNING])
    running_text = "; ".join(
        f"PPO run {job.payload['run_id']}, {job.progress:.0%} done" if job.kind is JobKind.TRAIN_POLICY
        else job.kind.value.replace("_", " ")
        for job in running
    )  # fmt: skip
    activity = f"is still working ({running_text})" if running_text else "is idle, and exits after 10 minutes"
    return (
        f"The page has ended. The engine (pid {engine.row.process.pid}) {activity}.\n"
        f"Start `{page_command()}{home_option}` again to watch it; `{lab_command()} stop-engine{home_option}` ends it "
        "(a run resumes later)."
    )


def access_instructions(ctx: Context, url: str) -> str:
    """How the operator and labellers log in; contains the operator's secret."""
    if not ctx.access.is_multi_user:
        return ""
    if os.environ.get("SPACE_HOST"):
        url = f"https://{os.environ['SPACE_HOST']}/"
    join_text = "no login: everybody who can open the page may label"
    if ctx.access.default_role is Role.VIEWER:
        join_text = f"{url}join  with the code {ctx.access.join_code}"
    if ctx.access.password_entries:
        join_text += f"\npeople of the file: {url}enter  with name and password"
    secret, warning = ctx.access.operator_secret, ""
    if len(secret) < MIN_SECRET_LENGTH:
        warning = (
            f"\nThe operator's secret is short and can be guessed: give {OPERATOR_SECRET_ENV_VAR} {MIN_SECRET_LENGTH} "
            "characters or more."
        )
    if needs_address(ctx):
        join_text += (
            "\nThis lab runs in a container and does not know the address of its computer in the network. For other "
            "devices, replace localhost (and the port, if it is mapped to another one) by that address, for "
            "example http://192.168.1.20:7860/, or start the lab with --url and that address."
        )
    return f"\noperator (keep this link secret): {url}enter?key={quote(secret)}\nlabellers: {join_text}{warning}"

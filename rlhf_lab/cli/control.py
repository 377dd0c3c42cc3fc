"""`python -m rlhf_lab control RUN …`: the actions of the Train screen as a command."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from rlhf_lab.cli.console import add_command, open_existing_database, print_result
from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, run_control, run_lock
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.runs import get_run

#: action -> names of its values, and what it does with them: (db, home, run_id, *values)
ACTIONS: dict[str, tuple[tuple[str, ...], Callable[..., object]]] = {
    "pause": ((), lambda db, _home, run_id: run_control.pause(db, run_id)),
    "resume": ((), run_control.resume),
    "stop": ((), lambda db, _home, run_id: run_control.stop(db, run_id)),
    "set": (
        ("NAME", "VALUE"),
        lambda db, _home, run_id, name, value: run_control.set_live_setting(db, run_id, name, value),
    ),
    "switch-reward": (("REWARD_MODEL",), lambda db, _home, run_id, text: _switch_reward_model(db, run_id, text)),
    "rename": (("NAME",), lambda db, _home, run_id, name: run_control.rename(db, run_id, name)),
    "delete": ((), run_control.delete),
}

SET_HELP = (
    'set: beta or lr, to a number that stays until you set another one, or to "automatic": the run adapts it again; '
    "switch-reward: another reward model"
)


def add_parser(subparsers: Any) -> None:
    usage = " | ".join(" ".join([action, *names]) for action, (names, _) in ACTIONS.items())
    parser = add_command(subparsers, "control", "pause, resume, stop or change a run", f"Actions: {usage}.", run=run)
    parser.add_argument("run_id", type=int, metavar="RUN", help="id of the run (see `runs`)")
    parser.add_argument("action", choices=list(ACTIONS), help=SET_HELP)
    parser.add_argument(
        "values",
        nargs="*",
        metavar="VALUE",
        help="for set: NAME and VALUE; for switch-reward: an id; for rename: a name",
    )


def run(args: argparse.Namespace) -> int:
    expected, apply = ACTIONS[args.action]
    if len(args.values) != len(expected):
        expected_text = " ".join(expected) or "no value"
        raise ConfigError(f"{args.action} takes {expected_text}, but got {pluralize(len(args.values), 'value')}.")
    with open_existing_database(args.home) as db:
        run_lock.mark_interrupted_runs(db, args.home)
        apply(db, args.home, args.run_id, *args.values)
        if args.action == "delete":
            print_result(args, {"run": args.run_id, "deleted": True}, f"run {args.run_id} is deleted")
            return 0
        if run_control.open_job(db, args.run_id) is not None:
            engine_process.ensure_engine(db, args.home)  # an engine has to apply the event
        current = get_run(db, args.run_id, made_elsewhere=args.action == "rename")
    request = " ".join([args.action, *args.values])
    result = {"run": current.id, "name": current.name, "asked": request, "status": current.status, "step": current.step}
    delay_note = ", which takes a moment" if current.status in (RunStatus.RUNNING, RunStatus.PAUSED) else ""
    print_result(
        args,
        result,
        f"run {current.id}: {request} requested{delay_note}; it is {current.status} at step {current.step}",
    )
    return 0


def _switch_reward_model(db: Database, run_id: int, text: str) -> None:
    try:
        reward_model_id = int(text)
    except ValueError:
        raise ConfigError(f'the reward model = "{text}" is not a number.') from None
    run_control.switch_reward_model(db, run_id, reward_model_id)
    if warning := run_control.accuracy_warning(get_reward_model(db, reward_model_id).report):
        print(f"reward model {reward_model_id}: {warning}", file=sys.stderr)

"""`python -m rlhf_lab control RUN …`: the actions of the Train screen as a command."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rlhf_lab.cli.console import add_command, add_common_arguments, open_existing_database, print_result, resolve_home
from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import engine_process, run_control, run_lock
from rlhf_lab.store.database import Database
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.store.runs import get_run

#: action -> names of its arguments
ACTIONS: dict[str, tuple[str, ...]] = {
    "pause": (),
    "resume": (),
    "stop": (),
    "set": ("NAME", "VALUE"),
    "switch-reward": ("REWARD_MODEL",),
    "rename": ("NAME",),
    "delete": (),
}

SET_HELP = (
    'set: beta or lr, to a number that stays until you set another one, or to "automatic": the run adapts it again; '
    "switch-reward: another reward model"
)


def add_parser(subparsers: Any) -> None:
    usage = " | ".join(" ".join([action, *values]) for action, values in ACTIONS.items())
    parser = add_command(subparsers, "control", "pause, resume, stop or change a run", f"Actions: {usage}.")
    add_common_arguments(parser)
    parser.add_argument("run_id", type=int, metavar="RUN", help="id of the run (see `runs`)")
    parser.add_argument("action", choices=list(ACTIONS), help=SET_HELP)
    parser.add_argument("values", nargs="*", metavar="VALUE", help=usage)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home, expected = resolve_home(args), ACTIONS[args.action]
    if len(args.values) != len(expected):
        expected_text = " ".join(expected) or "no value"
        raise ConfigError(f"{args.action} takes {expected_text}, but got {pluralize(len(args.values), 'value')}.")
    with open_existing_database(home) as db:
        run_lock.mark_interrupted_runs(db, home)
        _apply_action(db, home, args.run_id, args.action, args.values)
        if args.action == "delete":
            print_result(args, {"run": args.run_id, "deleted": True}, f"run {args.run_id} is deleted")
            return 0
        if run_control.open_job(db, args.run_id) is not None:
            engine_process.ensure_engine(db, home)  # an engine has to apply the event
        current = get_run(db, args.run_id)
    request = " ".join([args.action, *args.values])
    result = {"run": current.id, "name": current.name, "asked": request, "status": current.status, "step": current.step}
    delay_note = ", which takes a moment" if current.status in (RunStatus.RUNNING, RunStatus.PAUSED) else ""
    print_result(
        args,
        result,
        f"run {current.id}: {request} requested{delay_note}; it is {current.status} at step {current.step}",
    )
    return 0


def _apply_action(db: Database, home: Path, run_id: int, action: str, values: list[str]) -> None:
    if action == "pause":
        run_control.pause(db, run_id)
    elif action == "resume":
        run_control.resume(db, home, run_id)
    elif action == "stop":
        run_control.stop(db, run_id)
    elif action == "set":
        run_control.set_live_setting(db, run_id, values[0], values[1])
    elif action == "switch-reward":
        _switch_reward_model(db, run_id, _parse_id("the reward model", values[0]))
    elif action == "rename":
        run_control.rename(db, run_id, values[0])
    else:
        run_control.delete(db, home, run_id)


def _switch_reward_model(db: Database, run_id: int, reward_model_id: int) -> None:
    run_control.switch_reward_model(db, run_id, reward_model_id)
    if warning := run_control.accuracy_warning(get_reward_model(db, reward_model_id).report):
        print(f"reward model {reward_model_id}: {warning}", file=sys.stderr)


def _parse_id(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f'{name} = "{text}" is not a number.') from None

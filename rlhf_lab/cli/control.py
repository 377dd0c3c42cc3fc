"""`python -m rlhf_lab control RUN …`: what the buttons of the Train screen do to a run, from the command line."""

import argparse
from pathlib import Path
from typing import Any

from rlhf_lab.cli.common import add_common, answer, home_of, lab_there
from rlhf_lab.counted import counted
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import claims, control, supervisor
from rlhf_lab.kinds import RunStatus
from rlhf_lab.store.database import Database
from rlhf_lab.store.runs import get_run

#: What may be said, and the values it needs.
ACTIONS: dict[str, tuple[str, ...]] = {
    "pause": (),
    "resume": (),
    "stop": (),
    "set": ("NAME", "VALUE"),
    "switch-reward": ("REWARD_MODEL",),
    "rename": ("NAME",),
    "delete": (),
}


def add_parser(commands: Any) -> None:
    usage = " | ".join(" ".join([action, *values]) for action, values in ACTIONS.items())
    parser = commands.add_parser("control", help="pause, resume, stop or change a run", description=usage)
    add_common(parser)
    parser.add_argument("run_id", type=int, metavar="RUN", help="id of the run (see `runs`)")
    parser.add_argument("action", choices=list(ACTIONS), help="set: beta or lr; switch-reward: another reward model")
    parser.add_argument("values", nargs="*", metavar="VALUE", help=usage)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home, wanted = home_of(args), ACTIONS[args.action]
    if len(args.values) != len(wanted):
        needs = " ".join(wanted) or "no value"
        raise ConfigError(f"{args.action} takes {needs}; it was given {counted(len(args.values), 'value')}.")
    with lab_there(home) as db:
        claims.mark_lost(db, home)
        _obey(db, home, args.run_id, args.action, args.values)
        if args.action == "delete":
            answer(args, {"run": args.run_id, "deleted": True}, f"run {args.run_id} is deleted")
            return 0
        if control.open_job(db, args.run_id) is not None:
            supervisor.ensure_engine(db, home)  # somebody must be there to obey
        now = get_run(db, args.run_id)
    said = " ".join([args.action, *args.values])
    result = {"run": now.id, "name": now.name, "asked": said, "status": now.status, "step": now.step}
    when = ", which follows within a moment" if now.status in (RunStatus.RUNNING, RunStatus.PAUSED) else ""
    answer(args, result, f"told run {now.id} to {said}{when}; it is {now.status} at step {now.step}")
    return 0


def _obey(db: Database, home: Path, run_id: int, action: str, values: list[str]) -> None:
    if action == "pause":
        control.pause(db, run_id)
    elif action == "resume":
        control.resume(db, home, run_id)
    elif action == "stop":
        control.stop(db, run_id)
    elif action == "set":
        control.set_knob(db, run_id, values[0], _number(values[0], values[1], float))
    elif action == "switch-reward":
        control.switch_reward(db, run_id, int(_number("the reward model", values[0], int)))
    elif action == "rename":
        control.rename(db, run_id, values[0])
    else:
        control.delete(db, home, run_id)


def _number(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f'{name} = "{text}" is not a number.') from None

"""The commands that submit jobs to the engine, like the page, and wait for them."""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_lab.cli.console import (
    LAST_PROJECT,
    PROMPT_SET_HELP,
    PROPOSED_TEMPERATURE,
    add_chat_arguments,
    add_command,
    add_open_argument,
    chat_settings,
    number_from,
    open_existing_database,
    print_result,
    progress_reporter,
    reject_options,
    show_project,
)
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, EngineState, EventKind, JobKind, JobStatus, RunStatus, Source
from rlhf_lab.common.records import NO_CHAT_SETTINGS, Job, Project
from rlhf_lab.common.text import pluralize
from rlhf_lab.config.base import add_arguments, fields_of, from_args
from rlhf_lab.config.labelling import SAMPLING_METHODS
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import EngineError
from rlhf_lab.importers.text_corpus import load_texts
from rlhf_lab.jobs import engine_process, queue, run_control, run_lock
from rlhf_lab.jobs.answer_length import INSTRUCTION, measured_rows, propose
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import (
    change_max_new_tokens,
    change_temperature,
    checked_temperature,
    new_project,
    pick_project,
)
from rlhf_lab.jobs.retraining import cancel_training, training_payload
from rlhf_lab.jobs.run_tracking import TRACK_HELP, TRACK_REWARD_MODEL_HELP, log_reward_model, tracker_entry
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.rewards.terms import check_terms, parse_term
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_labelling_config
from rlhf_lab.store.reward_models import get_reward_model, reward_model_of
from rlhf_lab.store.run_metrics import metrics_since
from rlhf_lab.store.runs import events, runs

POLL_S = 0.3
WAITS = "The engine trains; the command waits for it. After Ctrl-C the training continues in the background."
SUMMARY_METRICS = (
    "objective/kl",
    "objective/scores",
    "objective/rlhf_reward",
    "policy/clipfrac_avg",
    "tokens/response_len",
)


def add_parser(subparsers: Any) -> None:
    _add_pairs_parser(subparsers)
    _add_label_parser(subparsers)
    _add_reward_parser(subparsers)
    _add_policy_parser(subparsers)
    _add_complete_parser(subparsers)
    add_command(
        subparsers,
        "runs",
        "list the runs",
        "Each line has the id that `control` and `export run` take.",
        run=run_runs,
        project="all projects",
    )
    add_command(
        subparsers,
        "stop-engine",
        "stop the engine; a run continues when it is started again",
        "The engine is the background process that samples and trains. It survives the page and the command that started it.",
        run=run_stop,
    )


def _add_pairs_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "pairs",
        "sample pairs of texts to label",
        "Two texts per prompt. --model, --prompts, --prompt-set, --system-prompt and --template-arguments create a project "
        "first.",
        run=run_pairs,
        project=LAST_PROJECT,
    )
    parser.add_argument("--count", type=number_from(1), default=40, help="how many pairs (default 40)")
    parser.add_argument(
        "--sampling", choices=SAMPLING_METHODS, default=None,
        help="which pairs (docs/LABELLING.md, \"Which pairs are shown\"); default: the project's rule",
    )  # fmt: skip
    add_open_argument(parser)
    parser.add_argument("--model", default=None, help="create a project on this model: embedded, a folder, or a Hub id")
    parser.add_argument("--prompt-set", default=None, help=PROMPT_SET_HELP)
    parser.add_argument("--prompts", type=Path, default=None, help="prompts of a new project, one per line")
    parser.add_argument("--seed", type=int, default=None, help="seed of a new project (default 0)")
    add_chat_arguments(parser, "create a project with this system prompt")
    parser.add_argument(
        "--temperature", type=float, default=None,
        help=f"sampling temperature of the project for new texts (new project: {PROPOSED_TEMPERATURE})",
    )  # fmt: skip
    parser.add_argument(
        "--max-new-tokens", type=int, default=None,
        help="longest new text of the project, in tokens (new project: 64)",
    )  # fmt: skip
    parser.add_argument(
        "--measure-length", action="store_true",
        help="sample no pairs, but measure which share of the answers ends within 48 to 256 tokens",
    )  # fmt: skip


def _add_label_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "label",
        "let a simulated judge label pairs",
        "Labels of a judge are marked as simulated and kept apart from those of people.",
        run=run_label,
        project=LAST_PROJECT,
    )
    parser.add_argument("--judge", required=True, help="a judge's name, or FILE.py:NAME")
    parser.add_argument("--count", type=number_from(1), default=40, help="how many pairs (default 40)")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        help="standard deviation of the judge's noise, in units of its scores' standard deviation",
    )


def _add_reward_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers, "train-reward", "train a reward model on the labels", WAITS, run=run_reward, project=LAST_PROJECT
    )
    parser.add_argument("--source", choices=[s.value for s in Source], default=Source.HUMAN.value, help="whose labels")
    parser.add_argument(
        "--cancel", action="store_true", help="cancel the training that runs or waits, instead of starting one"
    )
    parser.add_argument("--track", metavar="TRACKER", default=None, help=TRACK_REWARD_MODEL_HELP)
    parser.add_argument(
        "--job", type=int, default=None,
        help="used by the engine with `accelerate launch`: join this job as one of its processes",
    )  # fmt: skip
    add_arguments(parser, RewardConfig)


def _add_policy_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "train-policy",
        "train a policy (PPO by default), or resume a run",
        WAITS,
        run=run_policy,
        project=LAST_PROJECT,
    )
    parser.add_argument(
        "--reward-model",
        type=int,
        default=None,
        help="id of the reward model (default: the newest; 0: none, for dpo and sft, which learn from labels)",
    )
    parser.add_argument(
        "--reward", metavar="[WEIGHT*]TERM[:OPTION]", action="append", default=None,
        help="a term of the reward, may be given several times: reward_model, length:MIN-MAX words, regex:PATTERN, json, "
        "repetition, arithmetic, or FILE.py[:FUNCTION]; without it the reward model alone (docs/REWARDS.md)",
    )  # fmt: skip
    parser.add_argument("--judge", default=None, help="also record this judge's score as objective/gold")
    parser.add_argument("--name", default="", help="a name for the run")
    parser.add_argument("--track", metavar="TRACKER", default=None, help=TRACK_HELP)
    parser.add_argument(
        "--resume",
        type=int,
        default=None,
        help="resume this stopped, failed or interrupted run with its settings; --processes changes the number of processes",
    )
    parser.add_argument(
        "--run", dest="run_here", type=int, default=None,
        help="used by the engine with `accelerate launch`: join this run as one of its processes",
    )  # fmt: skip
    parser.add_argument(
        "--ptx-texts", metavar="FILE[:COLUMN]|OWNER/NAME:COLUMN", default=None,
        help="texts that PPO-ptx mixes in where --ptx-coef is not 0 (default: the embedded model's corpus)",
    )  # fmt: skip
    parser.add_argument(
        "--temperature", type=float, default=None, help="sampling temperature of the run (default: the project's)"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=None, help="longest response, in tokens (default: the project's)"
    )
    add_arguments(parser, PolicyConfig, skip=("temperature", "max_new_tokens"))


def _add_complete_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "complete",
        "continue prompts with the base or a checkpoint",
        "The base is the model before training.",
        run=run_complete,
        project=LAST_PROJECT,
    )
    parser.add_argument("--prompt", action="append", required=True, help="may be given several times")
    parser.add_argument(
        "--checkpoint",
        default="base",
        help="base, run/ID/latest (the newest complete one), run/ID/best or run/ID/STEP",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the samples")
    parser.add_argument("--temperature", type=float, default=None, help="sampling temperature (default: the project's)")
    parser.add_argument("--reward-model", type=int, default=None, help="score the texts with this reward model")


def wait_for_job(db: Database, home: Path, job: Job, title: str) -> dict[str, Any]:
    """Wait for a job and return its result. An engine that dies is restarted; one that was stopped is not.

    Raises EngineError if the job fails (with its error), and if the engine was stopped or does not start; KeyboardInterrupt with
    a message after Ctrl-C.
    """
    engine_ensured = False
    with progress_reporter(title) as report:
        while True:
            if engine_ensured and engine_process.engine_state(db).state is EngineState.ABSENT:
                current = queue.get_job(db, job.id)  # the engine may have finished the job before it stopped
                if current.status in UNFINISHED_JOB_STATUSES:
                    raise EngineError(f"{title}: the engine was stopped; the job continues when an engine is started.")
            status = engine_process.ensure_engine(db, home)
            if status.state is EngineState.DEAD and (failure := engine_process.start_failure(status, home)):
                raise EngineError(f"no longer waiting for {title}: it continues when an engine starts. {failure}")
            current, engine_ensured = queue.get_job(db, job.id), True
            report(current.progress, current.eta_s)
            if current.status is JobStatus.DONE:
                return current.result or {}
            if current.status in (JobStatus.FAILED, JobStatus.CANCELLED):
                raise EngineError(f"{title}: {current.error or 'cancelled'}")
            try:
                time.sleep(POLL_S)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(
                    f"no longer waiting; {title} continues in the background. `stop-engine` stops the engine."
                ) from None


def run_pairs(args: argparse.Namespace) -> int:
    chat = chat_settings(args)
    is_new = bool(args.model or args.prompts or args.prompt_set or chat is not None)
    if is_new:
        reject_options(
            args, ["project"], "not for a new project, which the other options create. Leave out one of them."
        )
        if args.prompts:
            reject_options(args, ["prompt_set"], "no effect with --prompts. Leave out one of them.")
    else:
        reject_options(args, ["seed"], "only for a new project. Add --model or --prompts.")
    with Database.open(args.home) as db:
        if is_new:
            project = new_project(
                db,
                model=args.model or "embedded",
                prompt_set=args.prompts or args.prompt_set,
                temperature=args.temperature,
                max_new_tokens=args.max_new_tokens,
                seed=args.seed or 0,
                chat=chat or NO_CHAT_SETTINGS,
                opens=False,
            )
        else:
            project = pick_project(db, args.project)
            if args.temperature is not None:
                print(change_temperature(db, project.id, args.temperature), file=sys.stderr)
            if args.max_new_tokens is not None:
                print(change_max_new_tokens(db, project.id, args.max_new_tokens), file=sys.stderr)
        note = show_project(args, db, project)
        if args.measure_length:
            return _measure_length(args, db, project, note)
        sampling = args.sampling or get_labelling_config(db, project.id).sampling
        job = queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": args.count, "sampling": sampling})
        result = {"project": project.id} | wait_for_job(db, args.home, job, "sampling pairs")
    text = f"{pluralize(len(result['pair_ids']), 'new pair')} in project {project.id} ({project.name})"
    text = f"{text}; {result['note']}" if result.get("note") else text
    print_result(args, result, f"{text}.{note}" if note else text)
    return 0


def _measure_length(args: argparse.Namespace, db: Database, project: Project, note: str) -> int:
    """Measure how long the project's answers are, and print the table and the proposal."""
    job = queue.submit(db, JobKind.MEASURE_LENGTH, project.id, {})
    result = wait_for_job(db, args.home, job, "measuring the length of answers")
    rows = measured_rows(result)
    proposal = propose(rows)
    lines = [f"{rows[0].texts} answers, measured in {result['seconds']:.0f} s"]
    lines += [
        f"{'with instruction' if row.adds_instruction else 'as it is':<16}  {row.max_new_tokens:>3} tokens  "
        f"{row.share:>4.0%} complete ({row.low:.0%} to {row.high:.0%})  mean {row.mean_tokens:.0f} tokens  "
        f"{row.seconds:.2f} s a pair"
        for row in rows
    ]
    advice = "no setting reaches 90 % complete answers"
    if proposal is not None:
        added = f' and a system prompt that ends with "{INSTRUCTION}"' if proposal.adds_instruction else ""
        advice = f"proposed: at most {proposal.max_new_tokens} tokens{added}; accept it under Project"
    lines.append("; ".join(filter(None, [advice, result["note"]])) + f".{note}")
    values = {"project": project.id} | result | {"proposal": proposal and asdict(proposal)}
    print_result(args, values, "\n".join(lines))
    return 0


def run_label(args: argparse.Namespace) -> int:
    judge = load_judge(args.judge)
    with Database.open(args.home) as db:
        project = pick_project(db, args.project)
        choice_counts = label_with_judge(db, project.id, judge, args.count, noise=args.noise, seed=project.seed)
    count = sum(choice_counts.values())
    result = {"project": project.id, "simulated": True, "judge": judge.name, "labels": count, "choices": choice_counts}
    shortfall = (
        ""
        if count == args.count
        else f" (no more than {pluralize(count, 'pair')} left to label; sample more with `pairs`)"
    )
    print_result(args, result, f"{pluralize(count, 'simulated label')} by the judge {judge.name}{shortfall}")
    return 0


def run_reward(args: argparse.Namespace) -> int:
    if args.job is not None:
        from rlhf_lab.engine.distributed_launch import run_reward_worker  # imports torch

        run_reward_worker(args.home, args.job)
        return 0
    config: RewardConfig = from_args(RewardConfig, args)
    with open_existing_database(args.home) as db:
        project = pick_project(db, args.project)
        if args.cancel:
            reject_options(args, ["track"], "no effect with --cancel. Leave out one of them.")
            cancelled = cancel_training(db, project.id)
            text = "the training of the reward model is cancelled; its labels are kept"
            print_result(args, {"job": cancelled.id, "cancelled": True}, text)
            return 0
        tracker = tracker_entry(args.track)
        payload = training_payload(db, project.id, Source(args.source), config)
        result = wait_for_job(
            db, args.home, queue.submit(db, JobKind.TRAIN_REWARD, project.id, payload), "training the reward model"
        )
        report = get_reward_model(db, result["reward_model_id"]).report
    if tracking := log_reward_model(args.home, result["reward_model_id"], tracker):
        print(f"reward model {result['reward_model_id']}: {tracking}", file=sys.stderr)
    accuracy = "not measured"
    if report["accuracy"] is not None:
        accuracy = f"{report['accuracy']:.0%} (95 %: {report['accuracy_low']:.0%} to {report['accuracy_high']:.0%})"
    text = (
        f"reward model {result['reward_model_id']} from {pluralize(report['labels'], f'{args.source} label')}; "
        f"cross-validated accuracy {accuracy}"
    )
    note = report.get("note")
    print_result(args, result | {"report": report}, f"{text}; {note}" if note else text)
    return 0


def run_policy(args: argparse.Namespace) -> int:
    if args.run_here is not None:
        from rlhf_lab.engine.distributed_launch import run_policy_worker  # imports torch

        status = run_policy_worker(args.home, args.run_here)
        return 0 if status is not RunStatus.FAILED else 1
    with open_existing_database(args.home) as db:
        run_id = _submit_or_resume(args, db)
        job = run_control.last_job(db, run_id)
        assert job is not None
        known = {event.id for event in events(db, run_id)}
        result = wait_for_job(db, args.home, job, f"run {run_id}")
        for event in events(db, run_id):
            if event.kind is EventKind.NOTE and event.id not in known:
                print(f"run {run_id}: {event.payload['words']}", file=sys.stderr)
        steps = metrics_since(db, run_id, 0)
    last_metrics = steps[-1][1] if steps else {}
    lines = ", ".join(f"{name} {last_metrics[name]:.3g}" for name in SUMMARY_METRICS if name in last_metrics)
    print_result(
        args,
        result | {"metrics": last_metrics},
        f"run {run_id} is {result['status']} at step {result['step']}: {lines}",
    )
    return 0


def _submit_or_resume(args: argparse.Namespace, db: Database) -> int:
    """Submit a new run or resume one; returns its id. Raises ConfigError for options that are not allowed with --resume."""
    if args.resume is not None:
        names = [
            *(item.name for item in fields_of(PolicyConfig)),
            "reward_model",
            "reward",
            "judge",
            "name",
            "track",
            "ptx_texts",
        ]
        names.remove("processes")  # does not change the results
        reject_options(
            args, names, "not with --resume, which continues the run with its settings. Change beta, lr and the "
            "reward model with `control`, --processes here, and other settings in a new run.",
        )  # fmt: skip
        run_control.resume(db, args.home, args.resume, args.processes)
        return int(args.resume)
    project = pick_project(db, args.project)
    config: PolicyConfig = from_args(
        PolicyConfig, args, temperature=project.temperature, max_new_tokens=project.max_new_tokens
    )
    ptx_texts = None if args.ptx_texts is None else load_texts(args.ptx_texts)
    terms = check_terms([parse_term(text) for text in args.reward or []])
    run = run_control.start_run(
        db, args.home, project.id, config, args.reward_model, args.judge, args.name, ptx_texts, reward_terms=terms,
        track=args.track,
    )  # fmt: skip
    reward_model = reward_model_of(db, run.reward_model_id)
    if reward_model is not None and (warning := run_control.accuracy_warning(reward_model.report)):
        print(f"reward model {run.reward_model_id}: {warning}", file=sys.stderr)
    return run.id


def run_complete(args: argparse.Namespace) -> int:
    with open_existing_database(args.home) as db:
        project = pick_project(db, args.project)
        payload = {"prompts": args.prompt, "checkpoint": args.checkpoint, "seed": args.seed}
        if args.temperature is not None:
            payload["temperature"] = checked_temperature(args.temperature)
        if args.reward_model is not None:
            payload["reward_model_id"] = args.reward_model
        result = wait_for_job(db, args.home, queue.submit(db, JobKind.COMPLETE, project.id, payload), "writing")
    text = "\n\n".join(f"{p}\n  {t.strip()}" for p, t in zip(args.prompt, result["texts"], strict=True))
    print_result(args, result, f"{result['note']}\n\n{text}" if result["note"] else text)
    return 0


def run_runs(args: argparse.Namespace) -> int:
    with open_existing_database(args.home) as db:
        run_lock.mark_interrupted_runs(db, args.home)
        listed = runs(db, args.project, made_elsewhere=True)
    rows = [
        {"id": r.id, "name": r.name, "status": r.status, "step": r.step, "of": r.total_steps, "message": r.message}
        | ({"made_elsewhere": r.outside_file, "message": f"made elsewhere: {r.outside_file}"} if r.outside_file else {})
        for r in listed
    ]
    text = "\n".join("{id:>4}  {status:<12} step {step} of {of}  {name}  {message}".format(**row) for row in rows)
    print_result(args, {"runs": rows}, text or "no runs yet; start one with `train-policy`")
    return 0


def run_stop(args: argparse.Namespace) -> int:
    with open_existing_database(args.home) as db:
        print("stopping the engine (up to 20 seconds) …", file=sys.stderr, flush=True)
        stopped = engine_process.stop_engine(db, args.home)
    print_result(args, {"stopped": stopped}, "the engine has ended" if stopped else "no engine was running")
    return 0

"""`python -m rlhf_lab demo`: runs the whole loop in this process, without a page.

The steps are: sample pairs, label them with a judge, train a reward model, run PPO, evaluate.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlhf_lab.cli.console import (
    PROMPT_SET_HELP,
    PROPOSED_TEMPERATURE,
    ProgressReporter,
    add_chat_arguments,
    add_command,
    add_open_argument,
    chat_settings,
    engine_lock,
    print_result,
    progress_reporter,
    reject_options,
    show_project,
)
from rlhf_lab.cli.demo_tournament import format_tournament, run_tournament
from rlhf_lab.common.bundled_assets import EVERYDAY
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NO_CHAT_SETTINGS, TRACKER_KEY, Project
from rlhf_lab.common.text import pluralize
from rlhf_lab.common.text_attributes import ATTRIBUTES
from rlhf_lab.config.base import add_arguments, fields_of, from_args
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.job_progress import JobProgress
from rlhf_lab.engine.live_run import JUDGE_KEY
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.engine.text_features import add_missing_features
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.instant_reward import labels_to_learn_from
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.jobs.retraining import IGNORED_KEY
from rlhf_lab.jobs.run_lock import lock_run
from rlhf_lab.jobs.run_tracking import TRACK_HELP, start_tracking, tracker_entry, wait_for_tracking
from rlhf_lab.judges.builtin import Judge, load_judge
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store.database import TRAINING_BUSY_TIMEOUT_S, Database
from rlhf_lab.store.label_snapshots import current_labels
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import create_run
from rlhf_lab.training.evaluation import (
    best_of_n,
    best_of_n_gold,
    best_of_n_kl,
    distinct_2,
    gain_over_base,
    mean,
    paired_difference,
    ranking_accuracy,
    sample_responses,
    sequence_kl,
)
from rlhf_lab.training.policy.rollout import PolicyModel
from rlhf_lab.training.reward.report import length_correlation

T = TypeVar("T")

#: Number of base samples for each evaluation prompt: 16 for best-of-16, 4 for everything else.
SAMPLES_PER_PROMPT = [16] * 128 + [4] * 128
#: The same for a large model on a CPU, whose evaluation would take longer than its training. The standard error of the policy's
#: gain over P prompts is about sd / √P: 0.1 sd instead of 0.06.
SAMPLES_PER_PROMPT_IF_LARGE = [16] * 32 + [4] * 64
LARGE_MODEL_WEIGHTS = 2**25
ACCURACY_PAIRS = 300
TRACKING_END_S = 60.0  # how long the demo waits for its tracker at the end
#: (arm, baseline) pairs whose gold scores are compared prompt by prompt.
COMPARED_ARMS = (
    ("policy", "base"), ("best_of_4", "base"), ("best_of_16", "base"), ("policy", "best_of_4"), ("policy", "best_of_16"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation of base, best-of-n and policy on held-out prompts. Gold scores are in standard deviations of the base's scores.

    The standard errors of gold_gain and best-of-n (best_of_n_se) are those of the difference to the base. paired: differences by
    prompt with 95 % intervals; those with best of 16 use the prompts with 16 samples. complete_…, length_…: see
    `answer_measures`; length_… are response_len_… under the names of the other two.
    """

    reward_accuracy: float
    reward_accuracy_low: float
    reward_accuracy_high: float
    accuracy_pairs: int
    tie_share: float
    gold_base: float
    gold_base_sd: float
    gold_policy: float
    gold_policy_se: float
    gold_gain: float
    gold_gain_se: float
    kl: float
    kl_se: float
    scores_base: float
    scores_policy: float
    response_len_base: float
    response_len_policy: float
    complete_base: float
    complete_policy: float
    length_base: float
    length_policy: float
    length_correlation: float | None
    distinct2_base: float
    distinct2_policy: float
    best_of_4_gold: float
    best_of_4_se: float
    best_of_16_gold: float
    best_of_16_se: float
    best_of_4_kl: float
    best_of_16_kl: float
    paired: dict[str, dict[str, Any]]
    samples: list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class DemoResult(Evaluation):
    """The fields are the keys of `demo --json`."""

    labels: int
    label_ties: int
    judge: str
    seed: int
    algorithm: str
    model: str
    prompt_set: str
    simulated: bool = True
    note: str
    cross_validated_accuracy: float | None
    seconds: dict[str, float]
    tournament: dict[str, Any] | None = None


def add_parser(subparsers: Any) -> None:
    parser = add_command(
        subparsers,
        "demo",
        "the whole loop without a browser, with simulated labels; prints measurements",
        "Without --home it works in a temporary folder that is deleted at the end.",
        run=run,
    )
    add_open_argument(parser)
    parser.add_argument(
        "--labels", type=int, default=60, help="pairs the judge labels before the policy is trained (default 60)"
    )
    parser.add_argument(
        "--label-every", type=int, default=None, metavar="STEPS",
        help="with --live: the judge labels a further pair, of the policy's texts, after so many steps each time (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--sampling", choices=("random", "teaching"), default="random",
        help="which pairs the judge labels (default random): docs/LABELLING.md",
    )  # fmt: skip
    parser.add_argument("--judge", default="cheerful", help="a simulated judge, or FILE.py:NAME (default cheerful)")
    parser.add_argument(
        "--noise",
        type=float,
        default=0.0,
        help="standard deviation of the judge's noise, in units of its scores' standard deviation (default 0)",
    )
    parser.add_argument("--model", default="embedded", help='"embedded", a model folder, or a Hub id')
    parser.add_argument("--prompt-set", default=None, help=PROMPT_SET_HELP)
    parser.add_argument("--prompts", type=Path, default=None, help="a file of your own prompts, one per line")
    parser.add_argument(
        "--pooling",
        choices=("mean", "last"),
        default=None,
        help="which hidden states the reward head reads (default mean)",
    )
    parser.add_argument(
        "--temperature", type=float, default=None, help=f"sampling temperature ({PROPOSED_TEMPERATURE})"
    )
    parser.add_argument(
        "--tournament",
        action="store_true",
        help="then rank base, best of 4 and checkpoints by blind choices of the judge",
    )
    parser.add_argument("--track", metavar="TRACKER", default=None, help=TRACK_HELP)
    add_chat_arguments(parser, "a system prompt before every prompt (default: none)")
    add_arguments(parser, PolicyConfig, skip=("temperature",))
    add_arguments(
        parser, RewardConfig, skip=tuple(item.name for item in fields_of(RewardConfig) if item.name not in ATTRIBUTES)
    )
    parser.set_defaults(home=None, project=None)


def run(args: argparse.Namespace) -> int:
    """Run the demo, in a temporary home unless --home is given. Raises LabError."""
    if args.home is not None:
        result = demo(args, args.home)
    else:
        with tempfile.TemporaryDirectory(prefix="rlhf-lab-demo-") as home:
            result = demo(args, Path(home))
    print_result(args, asdict(result), format_result(result))
    return 0


def demo(args: argparse.Namespace, home: Path) -> DemoResult:
    _check_options(args)
    judge = load_judge(args.judge)
    tracker = _tracker_of(args)
    seed = args.seed or 0
    reward_settings = {name: getattr(args, name) for name in ("pooling", *ATTRIBUTES)} | {"seed": seed}
    reward_config: RewardConfig = from_args(RewardConfig, argparse.Namespace(**reward_settings))
    with (
        engine_lock(home), Database.open(home, busy_timeout_s=TRAINING_BUSY_TIMEOUT_S) as db,
        progress_reporter("demo") as report,
    ):  # fmt: skip
        timer = _PhaseTimer(report)
        model_cache = ModelCache(home, db)
        project = new_project(
            db, model=args.model, prompt_set=args.prompts or args.prompt_set or _prompt_set_of(args.model, judge),
            temperature=args.temperature, max_new_tokens=args.max_new_tokens, seed=seed,
            name=f"demo: {judge.name}, seed {seed}", chat=chat_settings(args) or NO_CHAT_SETTINGS, opens=False,
        )  # fmt: skip
        if note := show_project(args, db, project):
            print(note.strip(), file=sys.stderr)
        policy_config: PolicyConfig = from_args(PolicyConfig, args, seed=seed, temperature=project.temperature)
        report(0.0, None, "sampling pairs", new_phase=True)
        skipped_notes: list[str] = []
        pairs = PairRequest(args.labels, sampling=args.sampling)
        sample_pairs(model_cache, project, pairs, on_note=skipped_notes.append)
        report(0.08, None, f"the judge {judge.name} labels", new_phase=True)
        label_with_judge(db, project.id, judge, args.labels, noise=args.noise, seed=policy_config.seed)
        timer.finish_phase("sample", 0.1, "training the reward model")
        row, manifest = None, {}
        if policy_config.live:
            manifest = {
                "labels": asdict(current_labels(db, project.id)), IGNORED_KEY: list(reward_config.ignored),
                JUDGE_KEY: {"every": args.label_every or 1, "noise": args.noise},
            }  # fmt: skip
            while add_missing_features(model_cache, project.id):
                pass
        else:
            row = train_reward_model(model_cache, project, RewardRequest(reward_config, Source.SIMULATED))
            manifest = {"labels": asdict(row.snapshot)}
        timer.finish_phase("reward", 0.25, "training the policy")
        run_row = create_run(
            db, project.id, row.id if row else None, f"demo {judge.name}", config=policy_config.to_dict(),
            manifest={"judge": args.judge, **manifest, **tracker}, total_steps=policy_config.steps,
        )  # fmt: skip
        steps = policy_config.steps
        start_tracking(db, home, run_row)

        def on_progress(progress: JobProgress) -> None:
            step = round(progress.fraction * steps)
            report(0.25 + 0.5 * progress.fraction, progress.eta_s, f"step {step} of {steps}")

        with lock_run(home, run_row.id):
            run = PolicyRun(model_cache, run_row.id, report_progress=on_progress)
            run.execute()
        timer.finish_phase("policy", 0.75, "evaluating")
        live = run.trainer.state.live
        reward_model = live.model if live else model_cache.reward_model(run_row.reward_model_id or 0, "reward")
        evaluation = evaluate(model_cache, project, run.trainer.state.policy, reward_model, judge, policy_config)
        tournament = None
        if args.tournament:
            timer.finish_phase("evaluate", 0.9, "the judge compares checkpoints")
            tournament = run_tournament(
                model_cache, project, run_row.id, judge, noise=args.noise, max_new_tokens=policy_config.max_new_tokens
            )
        timer.finish_phase("tournament" if args.tournament else "evaluate", 1.0, "done")
        # the tracker takes the last steps before a temporary home is deleted
        for words in wait_for_tracking(db, run_row.id, TRACKING_END_S):
            print(f"demo: {words}", file=sys.stderr)
        labels = labels_to_learn_from(db, project.id)[1]
    return DemoResult(
        labels=len(labels),
        label_ties=sum(label.choice is Choice.TIE for label in labels),
        judge=judge.name,
        seed=policy_config.seed,
        algorithm=policy_config.algorithm,
        model=args.model,
        prompt_set=project.prompt_set,
        note="".join(skipped_notes),
        cross_validated_accuracy=row.report["accuracy"] if row else None,
        seconds=timer.seconds(),
        tournament=tournament,
        **asdict(evaluation),
    )


def _check_options(args: argparse.Namespace) -> None:
    """Raises ConfigError for too few labels, and for options that would have no effect."""
    if args.labels < 2:
        raise ConfigError(
            f"--labels {args.labels}: a reward model needs at least 2 labels, and about 30 to learn something useful."
        )
    if args.prompts is not None:
        reject_options(args, ["prompt_set"], "no effect with --prompts. Leave out one of them.")
    if args.home is None:
        reject_options(args, ["open"], "only for a lab whose page can show the project. Give --home DIR.")
    if not args.live:
        reject_options(args, ["label_every"], "only for a policy that is trained while the judge labels. Add --live.")
    elif args.label_every is not None and args.label_every < 1:
        raise ConfigError(f"--label-every {args.label_every}: give 1 or more steps.")


def _tracker_of(args: argparse.Namespace) -> dict[str, Any]:
    """The entry of the run's manifest. Raises ConfigError for a tracker whose files would be deleted with the temporary home."""
    entry = tracker_entry(args.track)
    if args.home is None and entry and entry[TRACKER_KEY]["name"] != "trackio":
        raise ConfigError(
            f"{entry[TRACKER_KEY]['name']} keeps files in the home, and without --home the demo works in a temporary folder. "
            "Give --home DIR."
        )
    return entry


def _prompt_set_of(model: str, judge: Judge) -> str | None:
    """The prompt set that suits the judge; None (the one of the model) for models with a chat template and judges for them."""
    return None if inspect_model(model).has_chat_template or judge.prompt_set == EVERYDAY else judge.prompt_set


class _PhaseTimer:
    """Measures the seconds of each phase."""

    def __init__(self, report: ProgressReporter) -> None:
        self.report = report
        self.start_time = self.phase_start = time.monotonic()
        self.phase_seconds: dict[str, float] = {}

    def finish_phase(self, phase: str, fraction: float, next_phase: str) -> None:
        now = time.monotonic()
        self.phase_seconds[phase], self.phase_start = now - self.phase_start, now
        self.report(fraction, None, next_phase, new_phase=True)

    def seconds(self) -> dict[str, float]:
        return {k: round(v, 2) for k, v in (self.phase_seconds | {"total": time.monotonic() - self.start_time}).items()}


def evaluate(
    model_cache: ModelCache,
    project: Project,
    policy: PolicyModel,
    reward_model: RewardModel,
    judge: Judge,
    config: PolicyConfig,
) -> Evaluation:
    backbone, adapters = model_cache.load_project(project)
    fitting = filter_prompts(backbone, prompts(model_cache.db, project.id, "eval"), config.max_new_tokens)
    eval_prompts, sample_counts = [prompt.text for prompt in fitting.prompts], _samples_per_prompt(backbone)
    prompt_texts = [eval_prompts[i % len(eval_prompts)] for i in range(len(sample_counts))]
    repeated_prompts = [text for text, count in zip(prompt_texts, sample_counts, strict=True) for _ in range(count)]
    by_prompt = partial(_group_by_prompt, sample_counts)
    sample = partial(
        sample_responses,
        backbone,
        seed=config.seed,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )
    with adapters.using(None):
        base_samples = sample(repeated_prompts, purpose="evaluate base")
    with adapters.using(policy.adapter, merged=True):
        policy_samples = sample(prompt_texts, purpose="evaluate policy")
    base_scores = by_prompt(reward_model.scores(base_samples.prompts, base_samples.tokens).tolist())
    policy_scores = reward_model.scores(policy_samples.prompts, policy_samples.tokens).tolist()
    raw_base_gold = list(map(judge.score, repeated_prompts, base_samples.texts))
    gold_sd = _sample_sd(raw_base_gold)
    base_gold = by_prompt([score / gold_sd for score in raw_base_gold])
    policy_gold = [score / gold_sd for score in map(judge.score, prompt_texts, policy_samples.texts)]
    kl = sequence_kl(policy, policy_samples, config.temperature)
    best_of_4, best_of_16 = (best_of_n(n, base_scores, base_gold) for n in (4, 16))
    accuracy = ranking_accuracy(_disjoint_pairs(base_gold), _disjoint_pairs(base_scores), ACCURACY_PAIRS)
    gold, gain = mean(policy_gold), gain_over_base(policy_gold, base_gold)
    base_texts = [texts[0] for texts in by_prompt(base_samples.texts)]
    answers = answer_measures(by_prompt(base_samples.tokens), policy_samples.tokens, base_scores, backbone.eos_ids)
    arms = {
        "policy": [[score] for score in policy_gold],
        "base": base_gold,
        "best_of_4": best_of_n_gold(4, base_scores, base_gold),
        "best_of_16": best_of_n_gold(16, base_scores, base_gold),
    }
    return Evaluation(
        reward_accuracy=accuracy.value,
        reward_accuracy_low=accuracy.low,
        reward_accuracy_high=accuracy.high,
        accuracy_pairs=accuracy.pairs,
        tie_share=accuracy.tie_share,
        gold_base=_mean_over_prompts(base_gold),
        gold_base_sd=gold_sd,
        gold_policy=gold.value,
        gold_policy_se=gold.standard_error,
        gold_gain=gain.value,
        gold_gain_se=gain.standard_error,
        kl=kl.value,
        kl_se=kl.standard_error,
        scores_base=_mean_over_prompts(base_scores),
        scores_policy=mean(policy_scores).value,
        response_len_base=answers["length_base"],
        response_len_policy=answers["length_policy"],
        **answers,
        distinct2_base=distinct_2(base_texts),
        distinct2_policy=distinct_2(policy_samples.texts),
        best_of_4_gold=best_of_4.value,
        best_of_4_se=best_of_4.standard_error,
        best_of_16_gold=best_of_16.value,
        best_of_16_se=best_of_16.standard_error,
        best_of_4_kl=best_of_n_kl(4),
        best_of_16_kl=best_of_n_kl(16),
        paired={
            f"{arm}_over_{baseline}": paired_difference(prompt_texts, arms[arm], arms[baseline])._asdict()
            for arm, baseline in COMPARED_ARMS
        },
        samples=[
            {"prompt": prompt_texts[i], "base": base_texts[i], "policy": policy_samples.texts[i]}
            for i in range(min(3, len(prompt_texts)))
        ],
    )


def answer_measures(
    base: Sequence[Sequence[Sequence[int]]],
    policy: Sequence[Sequence[int]],
    base_scores: Sequence[Sequence[float]],
    stop_ids: Collection[int],
) -> dict[str, Any]:
    """Shares of complete answers, which end with a stop token, and mean lengths in tokens; length_correlation: Pearson, of the
    reward model's scores of all base samples with their lengths, None if either is constant.

    base: token ids of the samples of each prompt, each prompt weighted equally; policy: one sample for each prompt. base_scores:
    as base.
    """

    def means(rows: Sequence[Sequence[Sequence[int]]]) -> tuple[float, float]:
        complete = [[float(ids[-1] in stop_ids) for ids in samples] for samples in rows]
        return _mean_over_prompts(complete), _mean_over_prompts([[float(len(ids)) for ids in row] for row in rows])

    (complete_base, length_base), (complete_policy, length_policy) = means(base), means([[ids] for ids in policy])
    scores = torch.tensor([score for row in base_scores for score in row], dtype=torch.float64)
    return {
        "complete_base": complete_base, "complete_policy": complete_policy, "length_base": length_base,
        "length_policy": length_policy, "length_correlation": length_correlation(scores, [ids for row in base for ids in row]),
    }  # fmt: skip


def _samples_per_prompt(backbone: Backbone) -> list[int]:
    weights = sum(parameter.numel() for parameter in backbone.model.parameters() if not parameter.requires_grad)
    is_slow = backbone.device.type == "cpu" and weights >= LARGE_MODEL_WEIGHTS
    return SAMPLES_PER_PROMPT_IF_LARGE if is_slow else SAMPLES_PER_PROMPT


def _sample_sd(values: list[float]) -> float:
    """Sample standard deviation, or 1 if it is 0, so that it can be divided by."""
    average = sum(values) / len(values)
    variance = sum((x - average) ** 2 for x in values) / max(1, len(values) - 1)
    return variance**0.5 or 1.0


def _group_by_prompt(counts: Sequence[int], flat: Sequence[T]) -> list[list[T]]:
    """Split a flat list of all base samples into one list per prompt, with the lengths in `counts`."""
    ends = itertools.accumulate(counts)
    return [list(flat[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _mean_over_prompts(rows: list[list[float]]) -> float:
    """Mean over prompts of the mean of each prompt."""
    return mean([sum(row) / len(row) for row in rows]).value


def _disjoint_pairs(rows: list[list[float]]) -> list[tuple[float, float]]:
    """Disjoint pairs of samples of the same prompt: first (0, 1) of all prompts, then (2, 3), and so on."""
    return [(row[i], row[i + 1]) for i in range(0, max(map(len, rows)), 2) for row in rows if i < len(row)]


def _format_difference(name: str, comparison: dict[str, Any]) -> str:
    """For example "policy over best of 4 +0.12 (-0.03 to +0.27)"; without an interval if there are too few prompts."""
    interval = "" if comparison["low"] is None else f" ({comparison['low']:+.2f} to {comparison['high']:+.2f})"
    return f"{name.replace('_', ' ')} {comparison['difference']:+.2f}{interval}"


def format_result(r: DemoResult) -> str:
    """The result as text."""
    lines = [
        f'{pluralize(r.labels, "simulated label")} by the judge "{r.judge}" '
        f"({pluralize(r.label_ties, 'tie')}), seed {r.seed}" + (f"; {r.note}" if r.note else ""),
        f"reward model: {r.reward_accuracy:.0%} of {pluralize(r.accuracy_pairs, 'unseen pair')} ranked as the judge "
        f"does (95 %: {r.reward_accuracy_low:.0%} to {r.reward_accuracy_high:.0%}; {r.tie_share:.0%} of pairs were "
        "ties)",
        f"gold above the base, in sd of the base: policy {r.gold_gain:+.2f} ± {r.gold_gain_se:.2f} at KL {r.kl:.1f}; "
        f"best of 4 {r.best_of_4_gold - r.gold_base:+.2f} ± {r.best_of_4_se:.2f} at {r.best_of_4_kl:.1f}; "
        f"best of 16 {r.best_of_16_gold - r.gold_base:+.2f} ± {r.best_of_16_se:.2f} at {r.best_of_16_kl:.1f}",
        "prompt by prompt (95 %): "
        + "; ".join(_format_difference(name, comparison) for name, comparison in r.paired.items()),
        f"length {r.length_base:.1f} → {r.length_policy:.1f} tokens, complete {r.complete_base:.0%} → {r.complete_policy:.0%}, "
        f"distinct-2 {r.distinct2_base:.2f} → {r.distinct2_policy:.2f}",
        f"{r.seconds['total']:.0f} s: " + ", ".join(f"{k} {v:.0f}" for k, v in r.seconds.items() if k != "total"),
    ]
    if r.tournament is not None:
        lines += format_tournament(r.tournament)
    for sample in r.samples:
        lines += [
            "",
            f"  {sample['prompt']}",
            f"    base:   {sample['base'].strip()}",
            f"    policy: {sample['policy'].strip()}",
        ]
    return "\n".join(lines)

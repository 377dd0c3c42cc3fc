"""Can a model learn content from a few labels? Runs of several settings ("arms") on the same labels, and why answers shorten.

    python benchmarks/meaning.py --model FOLDER --arm "today:" --arm "no penalty:missing_eos_penalty=0" --out meaning.json
    python benchmarks/meaning.py --model FOLDER --judge polite --arm "a:missing_eos_penalty=0,lam=1" --home HOME
    python benchmarks/meaning.py --model FOLDER --algorithms ppo,grpo,rejection,dpo          the methods, each as recommended
    python benchmarks/meaning.py --model FOLDER --arm "mechanics:reward=random"           scores without any content or length
    python benchmarks/meaning.py --model FOLDER --advantages       what one step teaches about ending, by penalty and lam; no run
    python benchmarks/meaning.py --report meaning.json                                          the tables of earlier runs

The judges score a window of fixed size at the beginning of a text, as the mean over its groups of nine words, so that a longer
text does not score more (the second table gives the judge's correlation with the length on the base's texts). A judge labels
pairs, a reward model is trained, and each arm runs with the recommended settings of its algorithm and its own changes. A further
setting is `reward`: `judge` or `random` replace the reward model, `ignore` is one that ignores the length (its setting
`length`), `neutral` subtracts its regression on the length, `cautious-K` K posterior standard deviations of the score (needs
--epochs 0). Labels, reward model and base samples are shared by all arms, and kept with --home; --out adds to the rows of
earlier calls. --fresh N: "base, new" and "policy, new" are the correlations of the score and the attribute "length" on N new
responses to the training prompts.

Gold is the judge's score in standard deviations of the base's samples, as the difference to the base for the same prompts. Along
a run it is measured on the run's own responses, in windows of five steps, between which gold, length and seconds at a KL are
interpolated; at the end on 64 new responses to 32 prompts that nothing was trained on. "end" and "go on" are the mean advantages,
as the loss uses them, of the stop token and of the other first tokens after a sentence: where they differ, answers change their
length. Explained variance is that of rewards-to-go. Seconds include other work on the machine: compare them within a table only.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import numpy as np
import torch
from algorithms import log, parse_changes
from torch import Tensor

from rlhf_lab.common.algorithms import spec_of
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.progress import ProgressCallback, no_progress
from rlhf_lab.common.records import ChatSettings, Comparison, Pair, Project, RewardModelRow
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.advantages import is_last_token, masked_mean, rewards_to_go
from rlhf_lab.core.policy_losses import explained_variance
from rlhf_lab.core.preference_fit import PreferenceTargets, fit_dual, score_variance
from rlhf_lab.engine.completions import reference_samples
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.label_preparation import prepare_labels
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.jobs.judge_labelling import judge_vote, label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import Judge, load_judge
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.attribute_correction import token_attributes
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store.database import Database
from rlhf_lab.store.edited_answers import add_edited_answer
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.projects import projects, prompts
from rlhf_lab.store.reward_models import reward_models
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.training.evaluation import paired_difference, sample_responses, sequence_kl
from rlhf_lab.training.offline.trainer import OfflineTrainer
from rlhf_lab.training.policy.batching import prompt_indices
from rlhf_lab.training.policy.kl_control import ScoreUnit
from rlhf_lab.training.policy.rewards_and_advantages import build_rollout
from rlhf_lab.training.policy.rollout import EvaluatedBatch, Rollout, Scorer
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer
from rlhf_lab.training.reward.report import length_correlation
from rlhf_lab.training.reward.task import RewardTask

#: A judge reads the first WINDOW words, in groups of GROUP, which is the length below which built-in judges do not normalise.
WINDOW, GROUP = 27, 9
EVAL_PROMPTS, EVAL_SAMPLES = 32, 2  # prompts that nothing was trained on, and responses to each
STEPS_PER_POINT = 5
COMPARED_KLS = (2.0, 3.0)
LENGTH_KLS = (3.0, 4.0)
EDITED_FROM = 8  # samples of which --edits writes the best
LAG = 0.5  # sd by which scores have risen above the values, for --advantages
SENTENCE_ENDS = (".", "!", "?", '."', '!"', '?"')


def windowed_judge(name: str) -> Judge:
    """The built-in judge as the mean over the complete groups of nine words among the first 27; a shorter text is one group."""
    judge = load_judge(name)

    def score(prompt: str, text: str) -> float:
        words = text.split()[:WINDOW]
        groups = [words[i : i + GROUP] for i in range(0, len(words) - GROUP + 1, GROUP)] or [words]
        return statistics.fmean(judge.score(prompt, " ".join(group)) for group in groups)

    return dataclasses.replace(judge, name=f"{name}, first {WINDOW} words", score=score)


class FunctionScorer:
    """Scores responses by a function of their text."""

    def __init__(self, backbone: Backbone, function: Callable[[str], float]) -> None:
        self.backbone, self.function = backbone, function

    def scores(self, prompts: Any, responses: Any, on_progress: Any = None) -> Tensor:  # noqa: ARG002
        rows = zip(prompts, responses, strict=True)
        return torch.tensor([self.function(self.backbone.decode(ids, after=prompt)) for prompt, ids in rows])


class NeutralScorer:
    """A reward model less the regression of its scores on the length, which is fitted to the base's samples."""

    def __init__(self, reward_model: RewardModel, scores: Tensor, tokens: Sequence[Sequence[int]]) -> None:
        lengths = torch.tensor([float(len(ids)) for ids in tokens], dtype=torch.float64)
        centred = lengths - lengths.mean()
        self.reward_model, self.per_token = reward_model, float((centred * scores).sum() / centred.square().sum())

    def scores(self, prompts: Any, responses: Any, on_progress: ProgressCallback = no_progress) -> Tensor:
        lengths = torch.tensor([float(len(ids)) for ids in responses])
        return self.reward_model.scores(prompts, responses, on_progress) - self.per_token * lengths


class CautiousScorer:
    """A reward model without an adapter less `caution` posterior standard deviations of its score, in its unit."""

    def __init__(self, experiment: "Experiment", caution: float) -> None:
        self.reward_model, self.caution = experiment.reward_model, caution
        config = RewardConfig(seed=experiment.seed, epochs=0)
        reference = reference_samples(experiment.model_cache, experiment.project)
        self.task = RewardTask(experiment.adapters, experiment.labels, reference, config)
        assert self.task.frozen is not None
        self.fitter, indices = self.task.frozen.fitter, self.task.distinguishable
        self.differences = self.fitter.differences[indices].double().numpy()
        self.gram = self.differences @ self.differences.T
        head, targets = self.task.fit_heads(indices)[0], PreferenceTargets(self.fitter.targets.ties[indices])
        self.fit = fit_dual(self.gram, targets, head.ridge)
        raw = self.fitter.scaler(self.task.frozen.reference.numpy()) @ head.scaled_weights.numpy()
        self.unit = float(raw.std())

    def scores(self, prompts: Any, responses: Any, on_progress: ProgressCallback = no_progress) -> Tensor:
        features = self.fitter.scaler(self.task.features(prompts, responses).numpy()).astype(np.float64)
        variance = score_variance(self.gram, self.fit, self.differences @ features.T, (features**2).sum(1))
        uncertainty = torch.from_numpy(np.sqrt(variance) / self.unit).float()
        return self.reward_model.scores(prompts, responses, on_progress) - self.caution * uncertainty


def random_score(text: str) -> float:
    """A normal number that depends on the whole text, but not on what it says."""
    generator = torch.Generator().manual_seed(derive_seed(0, "random reward", text))
    return float(torch.randn((), generator=generator))


class Responses(NamedTuple):
    """Samples of the base: prompts, token ids, whether they ended, and the judge's scores."""

    prompts: list[str]
    tokens: list[list[int]]
    ended: list[bool]
    gold: list[float]

    @property
    def complete(self) -> float:
        return statistics.fmean(self.ended)

    @property
    def length(self) -> float:
        return statistics.fmean(map(len, self.tokens))


class Experiment(NamedTuple):
    """Shared by all arms. train: one base sample for each training prompt; held_out: EVAL_SAMPLES for each of EVAL_PROMPTS."""

    model_cache: ModelCache
    project: Project
    seed: int
    judge: Judge
    backbone: Backbone
    adapters: Adapters
    temperature: float
    labels: list[Comparison]
    reward_model: RewardModel
    accuracy: float | None
    train: Responses
    held_out: Responses

    @property
    def gold_sd(self) -> float:
        return statistics.stdev(self.train.gold)


def prepare_experiment(args: argparse.Namespace, home: Path, db: Database) -> Experiment:
    """Labels, reward model and base samples; what the home already contains is not computed again."""
    judge, model_cache, seed = windowed_judge(args.judge), ModelCache(home, db), args.seed
    name = f"{args.judge} {args.labels}{' edits' if args.edits else ''} {args.length} {args.system_prompt[:10]} {seed}"
    found: list[Project] = [project for project in projects(db) if (project.name, project.model) == (name, args.model)]
    project = found[0] if found else new_project(
        db, model=args.model, max_new_tokens=args.length, seed=seed, name=name, chat=ChatSettings(args.system_prompt, {})
    )  # fmt: skip
    if not found:
        pairs = sample_pairs(model_cache, project, PairRequest(args.labels))
        if args.edits:
            edit_as_judge(model_cache, project, judge, pairs)
        else:
            label_with_judge(db, project.id, judge, args.labels, noise=0.0, seed=seed)
    backbone, adapters = model_cache.load_project(project)
    row = trained_reward_model(model_cache, project, RewardConfig(seed=seed, epochs=args.epochs))
    train, held_out = (
        [prompt.text for prompt in filter_prompts(backbone, prompts(db, project.id, split), args.length).prompts]
        for split in ("train", "eval")
    )
    held_out = [text for text in held_out[:EVAL_PROMPTS] for _ in range(EVAL_SAMPLES)]
    cache = home / f"base {args.length} {args.system_prompt[:10]} {seed}.json"
    known = json.loads(cache.read_text(encoding="utf-8")) if cache.exists() else {}
    parts = []
    for part, texts in (("train", train), ("held out", held_out)):
        if part not in known:
            with adapters.using(None):
                known[part] = sample_responses(
                    backbone, texts, seed=seed, purpose=f"base {part}", max_new_tokens=args.length,
                    temperature=project.temperature,
                )._asdict()  # fmt: skip
        tokens, gold = known[part]["tokens"], list(map(judge.score, texts, known[part]["texts"]))
        parts.append(Responses(texts, tokens, [ids[-1] in backbone.eos_ids for ids in tokens], gold))
    cache.write_text(json.dumps(known), encoding="utf-8")
    labels, reward_model = (
        prepare_labels(db, row.snapshot, backbone, {}).labels,
        model_cache.reward_model(row.id, "reward"),
    )
    return Experiment(
        model_cache, project, seed, judge, backbone, adapters, project.temperature, labels, reward_model,
        row.report["accuracy"], *parts,
    )  # fmt: skip


def trained_reward_model(model_cache: ModelCache, project: Project, config: RewardConfig) -> RewardModelRow:
    """The project's reward model that ignores what the config ignores; it is trained if there is none."""
    for row in reward_models(model_cache.db, project.id):
        if RewardConfig.from_dict(row.config).ignored == config.ignored:
            return row
    has_people = bool(snapshot_labels(model_cache.db, project.id, Source.HUMAN).vote_ids)
    return train_reward_model(
        model_cache, project, RewardRequest(config, Source.HUMAN if has_people else Source.SIMULATED)
    )


def edit_as_judge(model_cache: ModelCache, project: Project, judge: Judge, pairs: Sequence[Pair]) -> None:
    """Label the pairs like a person with the judge's taste who also edits the better text: the edit is the best of EDITED_FROM
    further samples of the base, or nothing where none is better. A pair with equal scores is a tie without an edit."""
    backbone, adapters = model_cache.load_project(project)
    prompts = [pair.prompt.text for pair in pairs for _ in range(EDITED_FROM)]
    with adapters.using(None):
        texts = sample_responses(
            backbone, prompts, seed=project.seed, purpose="edits", max_new_tokens=project.max_new_tokens,
            temperature=project.temperature,
        ).texts  # fmt: skip
    for i, pair in enumerate(pairs):
        vote = dataclasses.replace(judge_vote(judge, pair), source=Source.HUMAN, annotator="editor")
        vote = cast_vote(model_cache.db, vote)
        chosen = {Choice.FIRST: pair.first, Choice.SECOND: pair.second}.get(vote.choice)
        score = functools.partial(judge.score, pair.prompt.text)
        best = max(texts[i * EDITED_FROM : (i + 1) * EDITED_FROM], key=score)
        if chosen is not None and score(best) > score(chosen.text):
            add_edited_answer(model_cache.db, vote, best)


def scorer_of(experiment: Experiment, kind: str) -> Scorer:
    """The scorer of an arm's `reward`: model, ignore, neutral, cautious-K, judge or random."""
    if kind == "ignore":
        config = RewardConfig(seed=experiment.seed, length="ignore")
        row = trained_reward_model(experiment.model_cache, experiment.project, config)
        return experiment.model_cache.reward_model(row.id, "reward without length")
    if kind == "neutral":
        scores = scores_of(experiment, experiment.reward_model, experiment.train)
        return NeutralScorer(experiment.reward_model, scores, experiment.train.tokens)
    if kind.startswith("cautious-"):
        return CautiousScorer(experiment, float(kind.removeprefix("cautious-")))
    functions = {"judge": lambda text: experiment.judge.score("", text), "random": random_score}
    return FunctionScorer(experiment.backbone, functions[kind]) if kind in functions else experiment.reward_model


def scores_of(experiment: Experiment, scorer: Scorer, responses: Responses) -> Tensor:
    prompt_ids = [experiment.backbone.encode_prompt(text) for text in responses.prompts]
    return scorer.scores(prompt_ids, responses.tokens).double()


class MeasuringTrainer(PolicyTrainer):
    """A PolicyTrainer that also measures the tokens of every rollout."""

    rollout_measures: dict[str, float]
    sentence_end: Tensor

    def prepare_rollout(self, *args: Any, **kwargs: Any) -> Rollout:
        rollout = super().prepare_rollout(*args, **kwargs)
        beta = self.state.current_value("beta")
        measures = measure_tokens(rollout, self.sentence_end, beta)
        of_values = () if self.state.config.uses_value_function else ("stop_error", "explained_variance")
        self.rollout_measures = {name: value for name, value in measures.items() if name not in of_values}
        return rollout


def measure_tokens(rollout: Rollout, sentence_end: Tensor, beta: float) -> dict[str, float]:
    """What the advantages say about ending. sentence_end: (vocabulary,) bool, tokens after which a response may end."""
    batch, mask, advantages = rollout.batch, rollout.batch.mask, rollout.advantages
    is_last = is_last_token(mask)
    is_stop = is_last & batch.ended[:, None]
    after_sentence = torch.zeros_like(mask)
    after_sentence[:, 1:] = sentence_end[batch.responses[:, :-1]]
    lengths, kl = mask.sum(1).double(), rollout.kl.sum(1).double()
    groups = {
        "stop": is_stop, "go_on": after_sentence & mask & ~is_stop, "cut": is_last & ~is_stop,
        "first_half": mask & (torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True) / 2),
    }  # fmt: skip
    means = {
        f"advantage_{name}": float(masked_mean(advantages, group)) for name, group in groups.items() if group.any()
    }
    returns = rewards_to_go(rollout.rewards, mask, gamma=1.0)
    return means | {
        "stop_error": float(masked_mean(rollout.shaped_scores[:, None] - rollout.values, is_stop)),
        "explained_variance": float(explained_variance(rollout.values, returns, mask)),
        "kl_cost_per_token": float(beta * kl.sum() / lengths.sum()),
        "length_score": pearson(lengths, rollout.scores), "length_kl": pearson(lengths, kl),
        "length_reward": pearson(lengths, rollout.shaped_scores.double() - beta * kl),
    }  # fmt: skip


def first_advantages(experiment: Experiment) -> str:
    """What one step teaches about ending, as a table, if its responses are the base's own and nothing was learned before.

    "stop / go on" are the mean advantages of the stop token and of the first token of a further sentence, with values that equal
    the mean of the rewarded scores everywhere, and with values below it by LAG.
    """
    backbone, base = experiment.backbone, experiment.train
    batch = make_batch(backbone, [backbone.encode_prompt(text) for text in base.prompts], base.tokens)
    zero, sentence_end = torch.zeros(batch.mask.shape), sentence_end_tokens(backbone)
    lines = [f"| scores | penalty | lam | stop / go on | the same, values {LAG} sd behind |", "|---|---|---|---|---|"]
    for kind in ("model", "neutral", "judge"):
        scores = scores_of(experiment, scorer_of(experiment, kind), base)
        scores = ((scores - scores.mean()) / scores.std()).float()
        for penalty, lam in itertools.product((1.0, 0.3, 0.0) if kind == "model" else (0.0,), (0.95, 1.0)):
            config, cells = PolicyConfig(missing_eos_penalty=penalty, lam=lam, score_clip=1.5), []
            for lag in (0.0, LAG):
                values = torch.full_like(zero, -penalty * (1 - base.complete) - lag).masked_fill(~batch.mask, 0.0)
                evaluated = EvaluatedBatch(batch, scores, zero, zero, zero, values)
                measures = measure_tokens(build_rollout(evaluated, 0.0, config), sentence_end, 0.0)
                cells.append(f"{measures['advantage_stop']:+.2f} / {measures['advantage_go_on']:+.2f}")
            lines.append(f"| {kind} | {penalty:g} | {lam:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pearson(x: Tensor, y: Tensor) -> float:
    """0 if either is constant."""
    value = float(torch.corrcoef(torch.stack([x.double(), y.double()]))[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0
    return value if math.isfinite(value) else 0.0


def sentence_end_tokens(backbone: Backbone) -> Tensor:
    tokens = backbone.tokenizer.convert_ids_to_tokens(list(range(backbone.vocabulary_head.size)))
    return torch.tensor([str(token).endswith(SENTENCE_ENDS) for token in tokens])


def run_arm(args: argparse.Namespace, experiment: Experiment, name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """One run with its measurements: "steps", a record for each step with responses, and "points", means of five steps."""
    changes = {"algorithm": "ppo"} | changes
    scorer = scorer_of(experiment, changes.pop("reward", "model"))
    algorithm, is_offline = changes["algorithm"], spec_of(changes["algorithm"]).is_offline
    shared: dict[str, Any] = {
        "steps": args.steps, "max_new_tokens": args.length, "temperature": experiment.temperature, "seed": experiment.seed,
        "batch_size": args.batch_size,
    } | ({} if is_offline else {"token_rows": 0, "sample_every": 10_000})  # fmt: skip
    config = PolicyConfig.for_algorithm(**(shared | changes))
    task = PolicyTask(experiment.train.prompts, scorer, gold=experiment.judge.score, labels=experiment.labels)
    trainer_class = OfflineTrainer if is_offline else MeasuringTrainer
    trainer = trainer_class(experiment.backbone, experiment.adapters, task, config)
    base_scores = scores_of(experiment, scorer, experiment.train)
    if config.kl_budget is not None:  # measured once for all arms
        trainer.state.kl_control.score_unit = ScoreUnit(float(base_scores.mean()), float(base_scores.std()))
    if isinstance(trainer, MeasuringTrainer):
        trainer.sentence_end = sentence_end_tokens(experiment.backbone)
    steps, seconds = [], 0.0
    while trainer.steps_done < args.steps:
        indices = prompt_indices(trainer.steps_done, len(experiment.train.prompts), config)
        start_time = time.monotonic()
        metrics = trainer.run_step().metrics
        seconds += time.monotonic() - start_time
        record = step_record(experiment, metrics, indices) if "objective/gold" in metrics else {}
        if isinstance(trainer, MeasuringTrainer):
            record |= trainer.rollout_measures
        if record:
            steps.append({"step": float(trainer.steps_done), "seconds": seconds} | record)
        if trainer.steps_done % STEPS_PER_POINT == 0:
            log(f"{name}, step {trainer.steps_done}: {seconds:.0f} s")
    points = points_of(steps)
    fresh = dict[str, float]()
    if args.fresh:
        adapter = trainer.state.policy.adapter
        fresh["fresh_base"] = fresh_correlation(experiment, scorer, None, args.fresh)
        fresh["fresh_policy"] = fresh_correlation(experiment, trainer.scorer, adapter, args.fresh)
    row = {
        "arm": name, "judge": args.judge, "seed": experiment.seed, "length limit": args.length,
        "system": args.system_prompt, "accuracy": experiment.accuracy, "algorithm": algorithm, "config": config.to_dict(),
        "seconds": seconds, "score_length": length_correlation(base_scores, experiment.train.tokens),
        "gold_length": length_correlation(torch.tensor(experiment.train.gold), experiment.train.tokens),
        "score_gold": pearson(base_scores, torch.tensor(experiment.train.gold)),
        "base_complete": experiment.train.complete, "base_length": experiment.train.length,
        "points": points, "steps": steps, **fresh, **evaluate(experiment, trainer),
    }  # fmt: skip
    log(f"{args.judge} seed {experiment.seed} {name}: " + "  ".join(
        f"{key} {row[key]:.2f}" for key in ("kl", "gold", "length", "complete", "seconds")))  # fmt: skip
    return row


def step_record(experiment: Experiment, metrics: dict[str, float], indices: Sequence[int]) -> dict[str, float]:
    """The measurements of a step's responses to the training prompts of these indices."""
    base_gold = statistics.fmean(experiment.train.gold[i] for i in indices)
    names = {
        "kl": "objective/kl", "score": "objective/scores", "length": "tokens/response_len", "complete": "val/stop_token_rate",
        "clipfrac": "policy/clipfrac_avg", "clipped": "objective/score_clipfrac", "beta": "objective/kl_coef", "lr": "lr",
        "entropy": "policy/entropy_avg",
    }  # fmt: skip
    record = {name: metrics[key] for name, key in names.items() if key in metrics}
    return record | {"gold": (metrics["objective/gold"] - base_gold) / experiment.gold_sd}


def points_of(steps: list[dict[str, float]]) -> list[dict[str, float]]:
    """The means of the measurements of five adjacent steps at a time; the first point is the base."""
    points = [{"seconds": 0.0, "kl": 0.0, "gold": 0.0}]
    last_step = int(steps[-1]["step"]) if steps else 0
    for end in range(STEPS_PER_POINT, last_step + STEPS_PER_POINT, STEPS_PER_POINT):
        window = [record for record in steps if end - STEPS_PER_POINT < record["step"] <= end]
        names = dict.fromkeys(name for record in window for name in record)
        points.append({name: statistics.fmean(r[name] for r in window if name in r) for name in names})
    return points


def evaluate(experiment: Experiment, trainer: PolicyTrainer) -> dict[str, Any]:
    """The policy on prompts that nothing was trained on."""
    config, base = trainer.state.config, experiment.held_out
    with experiment.adapters.using(trainer.state.policy.adapter, merged=True):
        samples = sample_responses(
            experiment.backbone, base.prompts, seed=experiment.seed, purpose="policy", max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
        )  # fmt: skip
    gold = list(map(experiment.judge.score, base.prompts, samples.texts))
    gain = paired_difference(base.prompts, [[value] for value in gold], [[value] for value in base.gold])
    ended = [ids[-1] in experiment.backbone.eos_ids for ids in samples.tokens]
    sd = experiment.gold_sd
    return {
        "kl": sequence_kl(trainer.state.policy, samples, config.temperature).value, "gold": gain.difference / sd,
        "gold_half": ((gain.high or 0.0) - gain.difference) / sd, "length": statistics.fmean(map(len, samples.tokens)),
        "complete": statistics.fmean(ended), "held_out_base_length": base.length, "held_out_base_complete": base.complete,
        "samples": list(zip(base.prompts, samples.texts, strict=True))[:: EVAL_SAMPLES * 4],
    }  # fmt: skip


def fresh_correlation(experiment: Experiment, scorer: Scorer, adapter: str | None, count: int) -> float:
    """The correlation of the score and the attribute "length" on `count` new responses of the base (None) or of a policy to the
    training prompts."""
    texts = list(itertools.islice(itertools.cycle(experiment.train.prompts), count))
    with experiment.adapters.using(adapter, merged=adapter is not None):
        samples = sample_responses(
            experiment.backbone, texts, seed=experiment.seed, purpose="fresh", max_new_tokens=experiment.project.max_new_tokens,
            temperature=experiment.temperature,
        )  # fmt: skip
    lengths = token_attributes(experiment.backbone, samples.prompts, samples.tokens, ("length",))[:, 0]
    return pearson(scorer.scores(samples.prompts, samples.tokens), lengths)


def value_at(points: list[dict[str, float]], axis: str, position: float, name: str) -> float | None:
    """A measurement where a run first reaches a position on an axis, linear between two points; None where it does not."""
    known = [point for point in points if name in point]
    for before, after in itertools.pairwise(known):
        if before[axis] < position <= after[axis]:
            share = (position - before[axis]) / (after[axis] - before[axis])
            return before[name] + (after[name] - before[name]) * share
    return None


def columns_of(row: dict[str, Any], least_seconds: float) -> dict[str, str]:
    """The cells of a row of the first table."""
    points, steps = row["points"], row["steps"]
    at_kl = [r for r in points if LENGTH_KLS[0] <= r["kl"] <= LENGTH_KLS[1] and "length" in r]
    late = steps[-STEPS_PER_POINT:]
    cells = {
        "complete": f"{row['base_complete']:.2f} → {row['complete']:.2f}",
        "length": f"{row['base_length']:.0f} → {row['length']:.0f}",
        "at KL 3–4": number(statistics.fmean(r["length"] for r in at_kl) if at_kl else None, 0),
        **{f"gold at KL {kl:g}": number(value_at(points, "kl", kl, "gold")) for kl in COMPARED_KLS},
        "gold at equal time": number(value_at(points, "seconds", least_seconds, "gold")),
        "gold, new prompts": f"{row['gold']:+.2f} ± {row['gold_half']:.2f}",
        "KL": f"{row['kl']:.1f}",
    }
    for name, key, digits in (("clip fraction", "clipfrac", 3), ("explained variance", "explained_variance", 2)):
        values = [record[key] for record in (late if key == "explained_variance" else steps) if key in record]
        cells[name] = number(statistics.fmean(values) if values else None, digits)
    return cells | {"seconds a step": f"{row['seconds'] / row['config']['steps']:.1f}"}


def causes_of(row: dict[str, Any]) -> dict[str, str]:
    """The cells of a row of the second table: means over the steps."""

    def mean(key: str) -> float | None:
        values = [record[key] for record in row["steps"] if key in record]
        return statistics.fmean(values) if values else None

    cells = {
        "end": "advantage_stop", "go on": "advantage_go_on", "cut": "advantage_cut", "score − value at the end": "stop_error",
        "length and score": "length_score", "length and KL": "length_kl", "length and reward": "length_reward",
        "KL cost a token": "kl_cost_per_token",
    }  # fmt: skip
    numbers = {title: number(mean(key), 4 if key == "kl_cost_per_token" else 2) for title, key in cells.items()}
    base = {"score, base": number(row["score_length"]), "judge, base": number(row["gold_length"])}
    base |= {f"{who}, new": number(row.get(f"fresh_{who}")) for who in ("base", "policy")}
    return {"length": f"{row['base_length']:.0f} → {row['length']:.0f}"} | numbers | base


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def table(rows: list[dict[str, Any]], cells_of: Callable[[dict[str, Any]], dict[str, str]]) -> str:
    cells = [cells_of(row) for row in rows]
    names = [f"{row['arm']} ({row['judge']}, {row['length limit']}, seed {row['seed']})" for row in rows]
    lines = ["| arm | " + " | ".join(cells[0]) + " |", "|---" * (len(cells[0]) + 1) + "|"]
    return "\n".join(
        [*lines, *(f"| {name} | " + " | ".join(row.values()) + " |" for name, row in zip(names, cells, strict=True))]
    )


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    """ "NAME:setting=value,…" as (NAME, settings)."""
    name, _, settings = text.partition(":")
    assignments = [part for part in settings.split(",") if part]
    words = {key: value for key, _, value in (part.partition("=") for part in assignments) if key == "reward"}
    return name, parse_changes([part for part in assignments if not part.startswith("reward=")]) | words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="a model folder; SmolLM2-135M-Instruct in docs/LEARNING.md")
    parser.add_argument(
        "--judge", default="concrete", help="a built-in judge that reads words: concrete, polite, vivid …"
    )
    parser.add_argument("--arm", action="append", type=parse_arm, default=[], metavar="NAME:SETTING=VALUE,…")
    parser.add_argument("--algorithms", default="", help="an arm for each of these, with its recommended settings")
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument(
        "--edits", action="store_true", help="the judge also edits the better text of each labelled pair"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16, help="responses a step")
    parser.add_argument("--length", type=int, default=64, help="longest response, in tokens")
    parser.add_argument("--system-prompt", default="Answer in one or two sentences.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=RewardConfig().epochs, help="of the reward model; 0: no adapter")
    parser.add_argument("--fresh", type=int, default=0, help="new responses on which score and length are correlated")
    parser.add_argument("--home", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument(
        "--report", type=Path, nargs="+", default=[], help="files of --out: print their tables, run nothing"
    )
    parser.add_argument(
        "--advantages", action="store_true", help="no run: advantages of the base's texts, by penalty and lam"
    )
    args = parser.parse_args()
    rows = [row for file in args.report for row in json.loads(file.read_text(encoding="utf-8"))]
    if not args.report:
        arms = [*args.arm, *((name, {"algorithm": name}) for name in args.algorithms.split(",") if name)]
        with tempfile.TemporaryDirectory(prefix="meaning-") as folder:
            home = args.home or Path(folder)
            with Database.open(home) as db:
                experiment = prepare_experiment(args, home, db)
                if args.advantages:
                    print(first_advantages(experiment))
                    return
                for name, changes in arms:
                    rows.append(run_arm(args, experiment, name, dict(changes)))
                    if args.out is not None:
                        earlier = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
                        args.out.write_text(json.dumps([*earlier, rows[-1]]), encoding="utf-8")
    least_seconds = min(row["seconds"] for row in rows)
    print(table(rows, lambda row: columns_of(row, least_seconds)), table(rows, causes_of), sep="\n\n")


if __name__ == "__main__":
    main()

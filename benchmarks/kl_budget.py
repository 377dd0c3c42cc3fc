"""Does one preset keep the KL within its budget on any model? KL, gold and best checkpoint of runs on several models.

    python benchmarks/kl_budget.py --seeds 3                                                           the embedded model
    python benchmarks/kl_budget.py --seeds 3 --model FOLDER --prompts benchmarks/story_prompts.txt     a model of a folder
    python benchmarks/kl_budget.py --model FOLDER --judge concise --set batch_size=16   an instruct model, with its own prompts
    python benchmarks/kl_budget.py --random qwen2                        random weights and a synthetic reward: stability only
    python benchmarks/kl_budget.py --steps 200 --set kl_budget=2 --home HOME --out FILE.json

A simulated judge labels pairs, a reward model is trained, and PPO runs with the preset and the changes of --set. Gold is the
judge's score in standard deviations of the base's samples, as the difference between policy and base, prompt by prompt, on
prompts that nothing was trained on; the interval is a 95 % one over prompts. With --home labels and reward models are kept for
the next call. The last line of each run is the policy at its end, and the best checkpoint by the trainer's own evaluation.
--out also contains the CPU seconds and the peak memory of each stage, and
--samples responses of base and policy to prompts drawn by the seed.
"""

import argparse
import contextlib
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.common.process_env import set_training_env

set_training_env()

import torch
from algorithms import log, parse_changes, table
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import Project
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.engine.prompt_filter import filter_prompts
from rlhf_lab.jobs.judge_labelling import label_with_judge
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.judges.builtin import load_judge
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import Backbone, load_backbone
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import projects, prompts
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.training.evaluation import paired_difference, sample_responses, sequence_kl
from rlhf_lab.training.policy.rollout import Scorer
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

BASE_SAMPLES, POLICY_SAMPLES = 4, 2  # per evaluation prompt
RANDOM_VOCABULARY = 2000
RANDOM_MODELS: dict[str, tuple[PretrainedConfig, Callable[[Any], Any]]] = {
    "gpt2": (
        GPT2Config(vocab_size=RANDOM_VOCABULARY, n_embd=128, n_layer=4, n_head=4, n_positions=256, initializer_range=0.1),
        GPT2LMHeadModel,
    ),
    "qwen2": (
        Qwen2Config(
            vocab_size=RANDOM_VOCABULARY, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=256, max_position_embeddings=256, initializer_range=0.1, tie_word_embeddings=True,
        ),
        Qwen2ForCausalLM,
    ),
}  # fmt: skip
COLUMNS = ("kl", "max_kl", "proxy", "gold", "best_step", "best_kl", "best_gold", "seconds")


class Experiment(NamedTuple):
    """What a run of one seed needs. gold: the judge's score; of random models the synthetic reward."""

    backbone: Backbone
    adapters: Adapters
    scorer: Scorer
    gold: Callable[[str, str], float]
    train_prompts: Sequence[str]
    eval_prompts: Sequence[str]
    accuracy: dict[str, float]
    stages: dict[str, dict[str, float]]
    temperature: float = 1.0


@contextlib.contextmanager
def measured_stage(stages: dict[str, dict[str, float]], name: str) -> Iterator[None]:
    """Adds the CPU seconds of the block and the highest resident memory of the process within it (Linux), in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
    start = time.process_time()
    yield
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    stages[name] = {"cpu_s": time.process_time() - start, "peak_mib": int(peak[1]) / 1024 if peak else float("nan")}


class SyntheticScorer:
    """Scores a response by the share of its tokens that have an even id."""

    def scores(self, prompts: Any, responses: Any, on_progress: Any = None) -> torch.Tensor:  # noqa: ARG002
        return torch.tensor([sum(token % 2 == 0 for token in ids) / len(ids) for ids in responses])


def random_experiment(family: str, folder: Path, seed: int) -> Experiment:
    """A model with random weights, random prompts and the synthetic reward."""
    words = {f"w{i}": i for i in range(RANDOM_VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config, model_class = RANDOM_MODELS[family]
    config.eos_token_id = config.bos_token_id = config.pad_token_id = 1
    torch.manual_seed(seed)
    model_class(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w1", unk_token="w0").save_pretrained(
        folder
    )
    backbone = load_backbone(str(folder))
    texts = [" ".join(f"w{2 + (7 * i + j) % (RANDOM_VOCABULARY - 2)}" for j in range(8)) for i in range(256)]

    def gold(prompt: str, text: str) -> float:
        ids = [int(word[1:]) for word in text.split() if word[1:].isdigit()]
        return sum(token % 2 == 0 for token in ids) / max(1, len(ids))

    return Experiment(backbone, Adapters(backbone), SyntheticScorer(), gold, texts[:128], texts[128:], {}, {})


def judge_experiment(args: argparse.Namespace, home: Path, db: Database, seed: int) -> Experiment:
    """Labels and a reward model of a seed; read from the home if it contains them."""
    judge, model_cache = load_judge(args.judge), ModelCache(home, db)
    name = f"{args.judge} {args.labels} {args.length} seed {seed}"
    default_prompts = judge.prompt_set if args.model == EMBEDDED_MODEL else None  # None: those that suit the model
    found: list[Project] = [project for project in projects(db) if project.name == name and project.model == args.model]
    project = found[0] if found else new_project(
        db, model=args.model, prompt_set=args.prompts or default_prompts, seed=seed, name=name
    )  # fmt: skip
    row = latest_reward_model(db, project.id, Source.SIMULATED) if found else None
    stages: dict[str, dict[str, float]] = {}
    if row is None:
        with measured_stage(stages, "pairs"):
            sample_pairs(model_cache, project, PairRequest(args.labels))
        label_with_judge(db, project.id, judge, args.labels, noise=0.0, seed=seed)
        with measured_stage(stages, "reward model"):
            row = train_reward_model(model_cache, project, RewardRequest(RewardConfig(seed=seed), Source.SIMULATED))
    accuracy = {name: row.report[name] for name in ("accuracy", "accuracy_low", "accuracy_high")}
    log(f"seed {seed}: reward model's cross-validated accuracy {row.report['accuracy']:.2f}")
    backbone, adapters = model_cache.load_project(project)
    train_prompts, eval_prompts = (
        [prompt.text for prompt in filter_prompts(backbone, prompts(db, project.id, split), args.length).prompts]
        for split in ("train", "eval")
    )
    return Experiment(
        backbone, adapters, model_cache.reward_model(row.id, "reward"), judge.score, train_prompts, eval_prompts,
        accuracy, stages, project.temperature,
    )  # fmt: skip


def evaluate(
    experiment: Experiment, trainer: PolicyTrainer, texts: list[str], base_gold: list[list[float]]
) -> dict[str, Any]:
    """KL, score and gold gain of the current policy on fresh samples of the prompts, and the first response to each."""
    config = trainer.state.config
    with experiment.adapters.using(trainer.state.policy.adapter, merged=True):
        samples = sample(experiment, config, repeated(texts, POLICY_SAMPLES), "benchmark policy")
    gold = list(map(experiment.gold, repeated(texts, POLICY_SAMPLES), samples.texts))
    gain = paired_difference(texts, chunks(gold, POLICY_SAMPLES), base_gold)
    sd = statistics.stdev([score for row in base_gold for score in row]) or 1.0
    return {
        "kl": sequence_kl(trainer.state.policy, samples, config.temperature).value,
        "gold": gain.difference / sd,
        "gold_low": (gain.low or 0.0) / sd,
        "gold_high": (gain.high or 0.0) / sd,
        "length": statistics.fmean(map(len, samples.tokens)),
        "responses": samples.texts[::POLICY_SAMPLES],
    }


def repeated(texts: Sequence[str], times: int) -> list[str]:
    """Each text so many times in a row."""
    return [text for text in texts for _ in range(times)]


def chunks(values: list[float], size: int) -> list[list[float]]:
    return [values[i : i + size] for i in range(0, len(values), size)]


def sample(experiment: Experiment, config: PolicyConfig, texts: list[str], purpose: str) -> Any:
    return sample_responses(
        experiment.backbone, texts, seed=config.seed, purpose=purpose, max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )  # fmt: skip


def run(args: argparse.Namespace, experiment: Experiment, seed: int) -> dict[str, Any]:
    """One run and its evaluation, at its end and at its best checkpoint."""
    shared: dict[str, Any] = {"steps": args.steps, "max_new_tokens": args.length, "seed": seed, "token_rows": 0}
    shared["temperature"] = experiment.temperature
    config = PolicyConfig.for_algorithm(args.algorithm, **(shared | args.changes))
    task = PolicyTask(
        experiment.train_prompts, experiment.scorer, gold=experiment.gold, eval_prompts=experiment.eval_prompts
    )
    trainer = PolicyTrainer(experiment.backbone, experiment.adapters, task, config)
    texts = [experiment.eval_prompts[i % len(experiment.eval_prompts)] for i in range(args.eval_prompts)]
    base_prompts = repeated(texts, BASE_SAMPLES)
    with experiment.adapters.using(None):
        base = sample(experiment, config, base_prompts, "benchmark base")
    base_gold = chunks(list(map(experiment.gold, base_prompts, base.texts)), BASE_SAMPLES)
    steps, best_state, stages = [], None, experiment.stages
    with measured_stage(stages, "policy"):
        for _ in range(args.steps):
            steps.append(trainer.run_step().metrics)
            if trainer.state.kl_control.best is not None and trainer.state.kl_control.best.step == trainer.steps_done:
                best_state = trainer.state.state_dict()
            if args.verbose:
                log(step_line(trainer.steps_done, steps[-1]))
    with measured_stage(stages, "evaluation"):
        result = evaluate(experiment, trainer, texts, base_gold)
    responses, seconds = result.pop("responses"), stages["policy"]["cpu_s"]
    row = {"seed": seed, "seconds": seconds, "stages": stages, **experiment.accuracy, **result}
    row["samples"] = [
        {"prompt": texts[i], "base": base.texts[i * BASE_SAMPLES], "policy": responses[i]}
        for i in random.Random(seed).sample(range(len(texts)), min(args.samples, len(texts)))
    ]
    row |= {"max_kl": max(step["objective/kl"] for step in steps), "proxy": steps[-1]["objective/scores"]}
    row |= {"kl_curve": [round(step["objective/kl"], 3) for step in steps]}
    if best_state is not None:
        trainer.state.load_state_dict(*best_state)
        best = evaluate(experiment, trainer, texts, base_gold)
        row |= {"best_step": trainer.steps_done, "best_kl": best["kl"], "best_gold": best["gold"]}
        row |= {"best_gold_low": best["gold_low"]}
    log(
        f"seed {seed}: KL {row['kl']:.2f} (highest in a step {row['max_kl']:.1f}), gold {row['gold']:+.2f} "
        f"({row['gold_low']:+.2f} to {row['gold_high']:+.2f}), length {row['length']:.0f}; best: step "
        f"{row.get('best_step')}, KL {row.get('best_kl', 0):.2f}, gold {row.get('best_gold', 0):+.2f}; {seconds:.0f} s of CPU"
    )
    return row


def step_line(step: int, metrics: dict[str, float]) -> str:
    names = {
        "KL": "objective/kl", "score": "objective/scores", "gold": "objective/gold", "clipped": "objective/score_clipfrac",
        "beta": "objective/kl_coef", "lr": "lr", "update": "policy/update_kl", "kept": "policy/update_fraction",
        "held-out": "eval/scores", "its KL": "eval/kl",
    }  # fmt: skip
    return f"{step:>4}  " + "  ".join(f"{name} {metrics[key]:.3g}" for name, key in names.items() if key in metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help='"embedded" or a model folder')
    parser.add_argument("--prompts", type=Path, default=None, help="a file of prompts, for a model folder")
    parser.add_argument("--random", choices=tuple(RANDOM_MODELS), default=None, help="a model with random weights")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=PolicyConfig().steps)
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--judge", default="cheerful")
    parser.add_argument("--length", type=int, default=PolicyConfig().max_new_tokens, help="longest response, in tokens")
    parser.add_argument("--eval-prompts", type=int, default=128, help="prompts of the evaluation")
    parser.add_argument("--samples", type=int, default=10, help="pairs of responses that --out holds")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--home", type=Path, default=None, help="keeps labels and reward models for the next call")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--verbose", action="store_true", help="a line for each step")
    args = parser.parse_args()
    args.changes = parse_changes(args.changes)
    rows = []
    with tempfile.TemporaryDirectory(prefix="kl-budget-") as temporary:
        home = args.home or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        with Database.open(home) as db:
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                if args.random:
                    experiment = random_experiment(args.random, Path(temporary) / f"random-{seed}", seed)
                else:
                    experiment = judge_experiment(args, home, db, seed)
                rows.append({"model": args.random or Path(args.model).name} | run(args, experiment, seed))
    text = table(rows, "model", [column for column in COLUMNS if all(column in row for row in rows)])
    if args.out is not None:
        args.out.write_text(json.dumps({"rows": rows, "table": text}, indent=1), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

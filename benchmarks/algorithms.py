"""The seven algorithms on the same labels; ppo beside best-of-n; and what happens without a KL penalty.

    python benchmarks/algorithms.py --seeds 5                         gold, KL and seconds of each, with its recommended settings
    python benchmarks/algorithms.py --frontier --seeds 5              gold over sqrt(KL): ppo along its run, best-of-n of the base
    python benchmarks/algorithms.py --overoptimise --steps 400        proxy and gold with KL (and clip) off, beside the preset
    python benchmarks/algorithms.py --algorithms ppo --dtype bfloat16 --seeds 5     the same labels in half precision
    python benchmarks/algorithms.py --algorithms trpo --set max_kl=0.02 --set cg_iters=5

Each writes a JSON file (--out) and prints a table. The labels are simulated by a judge whose own score is the gold; gold is in
the base's standard deviations above the base. Samples for the evaluation are fresh, on prompts that nothing was trained on.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rlhf_lab.runtime import prepare

prepare()

import algorithm_figures  # noqa: E402
import torch  # noqa: E402

from rlhf_lab.config import ALGORITHMS, PolicyConfig, RewardConfig, fields_of  # noqa: E402
from rlhf_lab.engine.lab import Lab  # noqa: E402
from rlhf_lab.engine.work import sample_pairs, train_reward_model  # noqa: E402
from rlhf_lab.jobs.labelling import label_with_judge  # noqa: E402
from rlhf_lab.jobs.setup import new_project  # noqa: E402
from rlhf_lab.judges import Judge, load_judge  # noqa: E402
from rlhf_lab.kinds import Source  # noqa: E402
from rlhf_lab.models.adapters import Adapters  # noqa: E402
from rlhf_lab.models.backbone import Backbone  # noqa: E402
from rlhf_lab.models.reward_model import RewardModel  # noqa: E402
from rlhf_lab.pretrain.reading import documents  # noqa: E402
from rlhf_lab.store.database import Database  # noqa: E402
from rlhf_lab.store.projects import prompts  # noqa: E402
from rlhf_lab.trainers.evaluation import Mean, best_of, best_of_kl, mean, sequence_kl, write  # noqa: E402
from rlhf_lab.trainers.policy import PolicyTrainer, Task  # noqa: E402

HELD = 128  # prompts of the evaluation
SAMPLES = 16  # base samples of each


class Setting(NamedTuple):
    """What all algorithms of a seed share: labels, reward model, and what the base is worth."""

    seed: int
    backbone: Backbone
    adapters: Adapters
    scorer: RewardModel
    judge: Judge
    train: list[str]
    held: list[str]
    scores: list[list[float]]  # of the base's samples, a row a prompt
    gold: list[list[float]]
    unit: float  # sd of the base's gold

    def above(self, gold: float) -> float:
        """A gold score in the base's sd above the base."""
        return (gold - statistics.fmean(map(statistics.fmean, self.gold))) / self.unit


def prepared(args: argparse.Namespace, lab: Lab, db: Database, seed: int) -> Setting:
    """Label pairs, train the reward model, sample the base."""
    judge = load_judge(args.judge)
    project = new_project(
        db, model=args.model, prompt_set=judge.prompt_set, prompts_file=None, seed=seed, name=f"seed {seed}"
    )
    sample_pairs(lab, project, args.labels)
    label_with_judge(db, project.id, judge, args.labels, noise=0.0, seed=seed)
    row = train_reward_model(lab, project, RewardConfig(seed=seed, last_weight=args.last_weight), Source.SIMULATED)
    backbone, adapters = lab.open(project)
    scorer = lab.reward_model(row.id, "reward")
    known = [prompt.text for prompt in prompts(db, project.id, "eval")]
    held = [known[i % len(known)] for i in range(HELD)]
    many = [text for text in held for _ in range(SAMPLES)]
    with adapters.using(None):
        base = write(backbone, many, seed=seed, purpose="benchmark base", max_new_tokens=args.length)
    scores = scorer.scores(base.prompts, base.tokens).tolist()
    gold = [judge.score(text) for text in base.texts]
    rows = [slice(i, i + SAMPLES) for i in range(0, len(many), SAMPLES)]
    train = [prompt.text for prompt in prompts(db, project.id, "train")]
    return Setting(
        seed, backbone, adapters, scorer, judge, train, held, [scores[i] for i in rows], [gold[i] for i in rows],
        statistics.stdev(gold),
    )  # fmt: skip


def config_of(args: argparse.Namespace, setting: Setting, algorithm: str, **changes: Any) -> PolicyConfig:
    """What is recommended for the algorithm, with these changes and those of the command line over them."""
    shared: dict[str, Any] = {
        "steps": args.steps, "max_new_tokens": args.length, "seed": setting.seed, "token_rows": 0, "sample_every": 10_000,
    }  # fmt: skip
    return PolicyConfig.of(algorithm, **(shared | changes | args.changes))


def trainer_of(setting: Setting, config: PolicyConfig) -> PolicyTrainer:
    texts = documents(setting.seed, 512, 0) if config.ptx_coef > 0 else []
    task = Task(setting.train, setting.scorer, gold=setting.judge.score, ptx_texts=texts)
    return PolicyTrainer(setting.backbone, setting.adapters, task, config)


def worth(setting: Setting, trainer: PolicyTrainer) -> tuple[Mean, Mean]:
    """Gold above the base (in its sd) and KL of the policy as it is, on fresh samples for the held-out prompts."""
    config = trainer.config
    with setting.adapters.using(trainer.policy.adapter, merged=True):
        now = write(
            setting.backbone, setting.held * 2, seed=setting.seed, purpose="benchmark policy",
            max_new_tokens=config.max_new_tokens, temperature=config.temperature,
        )  # fmt: skip
    gold = mean([setting.above(setting.judge.score(text)) for text in now.texts])
    return gold, sequence_kl(trainer.policy, now, config.temperature)


def every_algorithm(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    """One run of each, with what is recommended for it and the changes of the command line."""
    rows = []
    for name in args.algorithms:
        trainer, begun = trainer_of(setting, config_of(args, setting, name)), time.monotonic()
        steps = [trainer.run_step().metrics for _ in range(args.steps)]
        seconds = time.monotonic() - begun
        gold, kl = worth(setting, trainer)
        row = {
            "algorithm": name, "seed": setting.seed, "gold": gold.value, "gold_se": gold.standard_error, "kl": kl.value,
            "proxy": steps[-1]["objective/scores"], "seconds": seconds, "seconds_a_step": seconds / args.steps,
            "gold_curve": [round(step["objective/gold"], 4) for step in steps],
            "kl_curve": [round(step["objective/kl"], 4) for step in steps],
        }  # fmt: skip
        rows.append(row)
        say(f"seed {setting.seed} {name:<12} gold {gold.value:+.2f} ± {gold.standard_error:.2f}  KL {kl.value:6.2f}  "
            f"{seconds:6.1f} s")  # fmt: skip
    return rows


def frontier(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    """ppo at several points of its run, and best-of-n of the base."""
    rows = []
    for n in (1, 2, 4, 8, 16):
        best = best_of(n, setting.scores, setting.gold)
        rows.append(
            {"what": f"best of {n}", "seed": setting.seed, "kl": best_of_kl(n), "gold": setting.above(best.value)}
        )
    trainer = trainer_of(setting, config_of(args, setting, "ppo"))
    for _ in range(args.steps):
        step = trainer.run_step().step
        if step % args.every == 0 or step == args.steps:
            gold, kl = worth(setting, trainer)
            rows.append({"what": f"ppo step {step}", "seed": setting.seed, "kl": kl.value, "gold": gold.value})
            say(f"seed {setting.seed} ppo step {step:>3}  gold {gold.value:+.2f}  KL {kl.value:6.2f}")
    return rows


def overoptimise(args: argparse.Namespace, setting: Setting) -> list[dict[str, Any]]:
    """The same long run without KL penalty and clip, without the penalty, and with the preset."""
    rows = []
    arms: dict[str, dict[str, Any]] = {
        "KL and clip off": {"beta": 0.0, "score_clip": None},
        "KL off": {"beta": 0.0},
        "preset": {},
    }
    for what, changes in arms.items():
        config = config_of(args, setting, "ppo", lr_schedule="constant", **changes)
        trainer, window = trainer_of(setting, config), max(1, args.every)
        steps = [trainer.run_step().metrics for _ in range(args.steps)]
        for end in range(window, args.steps + 1, window):
            some = steps[end - window : end]
            proxy, kl = (statistics.fmean(step[key] for step in some) for key in ("objective/scores", "objective/kl"))
            gold = setting.above(statistics.fmean(step["objective/gold"] for step in some))
            rows.append(
                {
                    "what": f"{what}, to step {end}",
                    "run": what,
                    "step": end,
                    "seed": setting.seed,
                    "kl": kl,
                    "gold": gold,
                    "proxy": proxy,
                }
            )
            say(f"seed {setting.seed} {what:<7} to step {end:>4}  proxy {proxy:+.2f}  gold {gold:+.2f}  KL {kl:6.1f}")
    return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def table(rows: list[dict[str, Any]], key: str, columns: list[str]) -> str:
    """Mean ± sd over the seeds, a Markdown row for every value of `key`."""
    lines = [f"| {key} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(row[key] for row in rows):
        cells = []
        for column in columns:
            values = [float(row[column]) for row in rows if row[key] == name]
            sd = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.fmean(values):.2f}{sd}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


MODES: dict[str, tuple[Callable[[argparse.Namespace, Setting], list[dict[str, Any]]], str, list[str]]] = {
    "algorithms": (every_algorithm, "algorithm", ["gold", "kl", "proxy", "seconds"]),
    "frontier": (frontier, "what", ["sqrt_kl", "kl", "gold"]),
    "overoptimise": (overoptimise, "what", ["proxy", "gold", "kl"]),
}


def changed(words: list[str]) -> dict[str, Any]:
    """name=value pairs as settings of their type."""
    kinds = {item.name: item for item in fields_of(PolicyConfig)}
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        kind = kinds[name].type
        found[name] = None if value == "none" else value == "true" if kind is bool else kind(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    for name in ("frontier", "overoptimise"):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, default="algorithms")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=PolicyConfig().steps)
    parser.add_argument("--every", type=int, default=5, help="steps between points of a curve")
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--last-weight", type=float, default=RewardConfig().last_weight, help="of the reward head")
    parser.add_argument("--judge", default="cheerful")
    parser.add_argument("--model", default="embedded")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default=None, help="of the frozen weights (default: as usual)"
    )
    parser.add_argument("--length", type=int, default=PolicyConfig().max_new_tokens, help="longest response, in tokens")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None, help="FILE.html for the curves of the two other modes")
    args = parser.parse_args()
    args.changes = changed(args.changes)
    function, key, columns = MODES[args.mode]
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        with tempfile.TemporaryDirectory(prefix="algorithms-") as home, Database.open(Path(home)) as db:
            lab = Lab(Path(home), db, dtype=getattr(torch, args.dtype) if args.dtype else None)
            rows += function(args, prepared(args, lab, db, seed))
    for row in rows:
        row["sqrt_kl"] = math.sqrt(max(0.0, row["kl"]))
    text = table(rows, key, columns)
    if args.out is not None:
        args.out.write_text(json.dumps({"mode": args.mode, "rows": rows, "table": text}, indent=1), encoding="utf-8")
    if args.plot is not None and args.mode != "algorithms":
        algorithm_figures.write(args.mode, rows, args.plot)
    print(text)


if __name__ == "__main__":
    main()

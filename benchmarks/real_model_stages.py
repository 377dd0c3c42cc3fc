"""Seconds of each stage of a project on a real model, beside the least that its operations and bytes would take.

    python benchmarks/real_model_stages.py --model FOLDER
    python benchmarks/real_model_stages.py --model FOLDER --other CHECKOUT --stages step --rounds 3

Stages: "pair", from `python app.py` to the first pair; "reward", the reward model of --labels labels with its samples of the
base model; "step", a PPO step of 16 responses of at most 64 tokens; "evaluate", the evaluation of `demo`. Each is measured in
a process of its own. --other: another checkout of this repository, whose turns alternate with this one's. --scale: the share
of the evaluation's samples that is sampled; its seconds are divided by it.

The floor is the time of the matrix products alone at the rate of one large product, measured in the dtype of the model, or of
reading the weights once per sampled token if that takes longer. It counts every token of every text, so that what is computed
once for several texts can go below it.
"""

import argparse
import importlib
import inspect
import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
STAGES = ("pair", "reward", "step", "evaluate")
PROMPTS = [
    f"{request} {subject}."
    for request in ("Explain in one sentence", "Write a short note about", "Give three tips for", "Say politely what to do about")
    for subject in ("a late parcel", "bad weather", "learning to cook", "a noisy neighbour", "sleeping well", "a lost key",
                    "planning a picnic", "keeping a plant alive")
]  # fmt: skip
RESPONSES, TOKENS = 16, 64
FIRST_PAIR_TIMEOUT_S = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model folder")
    parser.add_argument("--other", type=Path, default=None, help="another checkout to measure in turns")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument(
        "--reward-head-only", action="store_true", help="step: a reward head on the frozen base, without an adapter"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the evaluation's samples (default 1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        sys.path.insert(0, str(args.tree))
        print(json.dumps(MEASUREMENTS[args.worker](args)))
        return 0
    trees = {"this": REPOSITORY} | ({"other": args.other.resolve()} if args.other else {})
    results = {
        stage: {name: [_run_worker(args, stage, tree) for _ in range(1)] for name, tree in trees.items()}
        for stage in args.stages.split(",")
    }
    for _ in range(args.rounds - 1):
        for stage, by_tree in results.items():
            for name, tree in trees.items():
                by_tree[name].append(_run_worker(args, stage, tree))
    print(json.dumps(results) if args.json else table(results))
    return 0


def _run_worker(args: argparse.Namespace, stage: str, tree: Path) -> dict[str, Any]:
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--worker",
        stage,
        "--tree",
        str(tree),
        "--model",
        args.model,
    ]
    command += ["--labels", str(args.labels), "--scale", str(args.scale), "--threads", str(args.threads)]
    command += ["--reward-head-only"] * args.reward_head_only
    env = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TQDM_DISABLE": "1"}
    completed = subprocess.run(command, cwd=tree, env=env, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return result


def table(results: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Medians in Markdown."""
    lines = [
        "| stage | checkout | dtype | wall, s | CPU, s | floor, CPU s | what was done |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for stage, by_tree in results.items():
        for name, rounds in by_tree.items():
            wall, cpu = (statistics.median(one[key] for one in rounds) for key in ("wall_s", "cpu_s"))
            last = rounds[-1]
            floor = f"{last['floor_s']:.1f}" if last["floor_s"] is not None else "–"
            lines.append(f"| {stage} | {name} | {last['dtype']} | {wall:.1f} | {cpu:.1f} | {floor} | {last['work']} |")
    return "\n".join(lines)


def measure_pair(args: argparse.Namespace) -> dict[str, Any]:
    """From the start of `app.py` to the first pair in the store. CPU seconds of the page and the engine."""
    import psutil

    with tempfile.TemporaryDirectory(prefix="stages-") as folder:
        home = Path(folder) / "home"
        start = time.monotonic()
        page = subprocess.Popen(
            [sys.executable, "app.py", "--home", str(home), "--model", args.model, "--port", str(_free_port())], cwd=args.tree,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while not _has_pair(home / "lab.db"):
                if page.poll() is not None or time.monotonic() - start > FIRST_PAIR_TIMEOUT_S:
                    raise SystemExit(f"no pair after {time.monotonic() - start:.0f} s, page status {page.poll()}")
                time.sleep(0.1)
            wall = time.monotonic() - start
            mine = [
                process
                for process in psutil.process_iter(["cmdline"])
                if str(home) in " ".join(process.info["cmdline"] or [])
            ]
            cpu = sum(sum(process.cpu_times()[:2]) for process in mine)
        finally:
            page.terminate()
            page.wait()
            stop = [sys.executable, "-m", "rlhf_lab", "stop-engine", "--home", str(home)]
            subprocess.run(stop, cwd=args.tree, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return {"wall_s": wall, "cpu_s": cpu, "floor_s": None, "dtype": "–", "work": "process start to first pair"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _has_pair(database: Path) -> bool:
    if not database.exists():
        return False
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            return bool(connection.execute("select count(*) from pairs").fetchone()[0])
    except sqlite3.Error:  # the tables are being made
        return False


class Machine:
    """A loaded model, and what its operations cost here."""

    def __init__(self, args: argparse.Namespace) -> None:
        from rlhf_lab.common.process_env import set_training_env

        set_training_env(standalone=True)
        import torch

        torch.set_num_threads(args.threads)
        from rlhf_lab.engine.model_cache import ModelCache
        from rlhf_lab.jobs.project_setup import new_project
        from rlhf_lab.store.database import Database

        self.folder = tempfile.TemporaryDirectory(prefix="stages-")
        home, prompts_file = Path(self.folder.name), Path(self.folder.name) / "prompts.txt"
        prompts_file.write_text("\n".join(PROMPTS), encoding="utf-8")
        self.db = Database.open(home)
        self.cache = ModelCache(home, self.db)
        options: dict[str, Any] = {"temperature": 0.7, "prompts_file": prompts_file, "prompt_set": prompts_file}
        known = inspect.signature(new_project).parameters  # checkouts differ
        if "prompts_file" in known:
            options["prompt_set"] = "tales"
        options = {name: value for name, value in options.items() if name in known}
        self.project = new_project(self.db, model=args.model, seed=0, name="stages", **options)
        self.backbone, self.adapters = self.cache.load_project(self.project)
        self.dtype = str(self.backbone.model.dtype).removeprefix("torch.")
        head = self.backbone.model.get_output_embeddings().weight
        self.head_weights: int = head.numel()
        self.layer_weights = (
            sum(p.numel() for p in self.backbone.trunk.parameters() if p.dim() == 2) - self.head_weights
        )
        self.itemsize: int = head.element_size()
        self.layers: Any = self.backbone.trunk.layers

    def rates(self) -> tuple[float, float]:
        """Per CPU second: multiplications and additions of this model's largest layer product, and bytes read."""
        import torch

        from rlhf_lab.kernels.matmul import linear

        weight = max((p for p in self.layers.parameters() if p.dim() == 2), key=lambda p: p.numel())
        x = torch.ones(512, weight.shape[1], dtype=weight.dtype)
        memory = torch.ones(2**26)
        with torch.no_grad():
            product_s = _least_seconds(lambda: linear(x, weight))
        return 2 * len(x) * weight.numel() / product_s, memory.nbytes / _least_seconds(memory.sum)

    def sampling_floor(self, prompt_tokens: int, response_tokens: int, steps: int) -> float:
        """Seconds of sampling: the products of all tokens, or reading the weights once per step if that takes longer."""
        rate, bandwidth = self.rates()
        operations = (
            2 * self.layer_weights * (prompt_tokens + response_tokens) + 2 * self.head_weights * response_tokens
        )
        reading = steps * (self.layer_weights + self.head_weights) * self.itemsize / bandwidth
        return float(max(operations / rate, reading))

    def pass_floor(self, tokens: float, head_rows: float = 0.0) -> float:
        """Seconds of forward passes over whole texts. head_rows: tokens whose logits are computed. A backward pass counts
        as much again: frozen weights need no gradient.
        """
        rate, _ = self.rates()
        return float(2 * (self.layer_weights * tokens + self.head_weights * head_rows) / rate)

    def random_texts(self, count: int) -> list[tuple[str, list[int], list[int]]]:
        """(prompt, its tokens, at most TOKENS random tokens that end with a stop token); two in a row for each prompt."""
        import torch

        prompts = [PROMPTS[i // 2 % len(PROMPTS)] for i in range(count)]
        shape = (count, TOKENS - 1)
        vocab = self.head_weights // self.backbone.hidden_size
        ids = torch.randint(vocab // 10, vocab // 2, shape, generator=torch.Generator().manual_seed(0)).tolist()
        stop = self.backbone.eos_ids[0]
        rows = [[*row[i % 7 :], stop] for i, row in enumerate(ids)]
        return [(text, self.backbone.encode_prompt(text), row) for text, row in zip(prompts, rows, strict=True)]

    def reward_model(self, has_adapter: bool = True) -> Any:
        """An untrained one, by default with an adapter; without one the head reads all layers where the checkout can."""
        from rlhf_lab.models.heads import RewardHead
        from rlhf_lab.models.reward_model import RewardModel

        if has_adapter:
            self.adapters.add("reward", r=8, alpha=16, seed=1, trainable=False)
        try:
            from rlhf_lab.models.features import FeatureSpec
        except ImportError:  # an older checkout
            head = RewardHead(self.backbone.hidden_size, "mean", 0)  # type: ignore[arg-type]
        else:
            features = FeatureSpec("mean", layers="last" if has_adapter else "all")
            head = RewardHead(features.size(self.backbone), features, 0)
        return RewardModel(self.backbone, self.adapters, "reward" if has_adapter else None, head.requires_grad_(False))

    def trainer(self, reward_model: Any) -> Any:
        from rlhf_lab.config.policy import PolicyConfig
        from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

        config = PolicyConfig(
            batch_size=RESPONSES, max_new_tokens=TOKENS, lr=1e-4, temperature=0.7, token_rows=0, sample_count=0,
        )  # fmt: skip
        return PolicyTrainer(self.backbone, self.adapters, PolicyTask(PROMPTS, reward_model), config)

    def result(self, clock: "_Clock", floor_s: float | None, work: str) -> dict[str, Any]:
        return {"wall_s": clock.wall_s, "cpu_s": clock.cpu_s, "floor_s": floor_s, "dtype": self.dtype, "work": work}


class _Clock:
    def __enter__(self) -> "_Clock":
        self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s, self.cpu_s = time.perf_counter() - self._start[0], time.process_time() - self._start[1]


def _least_seconds(run: Callable[[], object], rounds: int = 8) -> float:
    """Of the CPU, all threads together: other load on the machine hardly changes them."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def measure_step(args: argparse.Namespace) -> dict[str, Any]:
    """The second step: the first one also merges and packs weights for the first time."""
    machine = Machine(args)
    trainer, batches = machine.trainer(machine.reward_model(not args.reward_head_only)), []
    prepare = trainer.prepare_rollout

    def record(batch: Any, *rest: Any) -> Any:
        batches.append(batch)
        return prepare(batch, *rest)

    trainer.prepare_rollout = record
    trainer.run_step()
    with _Clock() as clock:
        trainer.run_step()
    lengths, config = batches[-1].lengths, trainer.state.config
    prompt_tokens, response_tokens = (int(total) for total in lengths.sum(0))
    tokens = prompt_tokens + response_tokens - len(lengths)
    floor = machine.sampling_floor(prompt_tokens, response_tokens, int(lengths[:, 1].max()))
    passes = 2 if args.reward_head_only else 3  # policy; reference and reward model, which may share one
    floor += machine.pass_floor(passes * tokens, 2 * response_tokens)
    floor += config.epochs * machine.pass_floor(2 * tokens, 2 * response_tokens)
    work = f"{len(lengths)} responses, {prompt_tokens} + {response_tokens} tokens, {config.epochs} epochs"
    return machine.result(clock, floor, work)


def measure_reward(args: argparse.Namespace) -> dict[str, Any]:
    """Labels of the judge "concise" on random texts, and 128 samples of the base model."""
    from rlhf_lab.common.enums import Source
    from rlhf_lab.common.records import NewCompletion
    from rlhf_lab.config.reward import RewardConfig
    from rlhf_lab.engine.job_handlers import RewardRequest, train_reward_model
    from rlhf_lab.jobs.judge_labelling import label_with_judge
    from rlhf_lab.judges.builtin import load_judge
    from rlhf_lab.store.projects import add_completions, add_pairs, prompts
    from rlhf_lab.training.reward.task import RewardTask

    machine = Machine(args)
    ids_by_text = {prompt.text: prompt.id for prompt in prompts(machine.db, machine.project.id, "train")}
    texts = [text for text in machine.random_texts(4 * args.labels) if text[0] in ids_by_text][: 2 * args.labels]
    completions = [
        NewCompletion(ids_by_text[prompt], machine.backbone.decode(ids, after=prompt_ids), tuple(ids), "base", i)
        for i, (prompt, prompt_ids, ids) in enumerate(texts)
    ]  # fmt: skip
    stored = add_completions(machine.db, completions)
    pairs = [(a.id, b.id, "random") for a, b in zip(stored[::2], stored[1::2], strict=True)]
    add_pairs(machine.db, machine.project.id, pairs)
    labelled = sum(
        label_with_judge(machine.db, machine.project.id, load_judge("concise"), args.labels, seed=0).values()
    )
    passes: list[float] = []  # over all labels, of the adapter's fits
    train_lora = RewardTask.train_lora

    def record(self: Any, model: Any, spec: Any, *rest: Any) -> Any:
        passes.append(spec.epochs * len(spec.subset) / args.labels)
        return train_lora(self, model, spec, *rest)

    setattr(RewardTask, "train_lora", record)  # noqa: B010
    with _Clock() as clock:
        train_reward_model(machine.cache, machine.project, RewardRequest(RewardConfig(), Source.SIMULATED))
    tokens = sum(len(prompt_ids) + len(ids) for _, prompt_ids, ids in texts)
    reference = 128 * tokens / len(texts)
    floor = machine.sampling_floor(int(reference) - 128 * TOKENS, 128 * TOKENS, TOKENS)
    floor += machine.pass_floor(tokens + reference)  # frozen features
    floor += sum(passes) * machine.pass_floor(2 * tokens)
    work = f"{labelled} labels, {len(passes)} fits of an adapter, {sum(passes):.1f} passes over the labels, 128 base samples"
    return machine.result(clock, floor, work)


def measure_evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """`evaluate` of `demo` with an untrained policy."""
    demo: Any = importlib.import_module("rlhf_lab.cli.demo")
    from rlhf_lab.judges.builtin import load_judge

    for name in ("SAMPLES_PER_PROMPT", "SAMPLES_PER_PROMPT_IF_LARGE"):
        counts = getattr(demo, name, None)
        if counts is not None:
            few = [counts[0]] * max(1, round(counts.count(counts[0]) * args.scale))
            setattr(demo, name, few + [counts[-1]] * max(1, round(counts.count(counts[-1]) * args.scale)))
    machine = Machine(args)
    trainer, sampled = machine.trainer(machine.reward_model()), []
    sample = demo.sample_responses

    def record(*arguments: Any, **options: Any) -> Any:
        sampled.append(sample(*arguments, **options))
        return sampled[-1]

    demo.sample_responses = record
    policy, model = trainer.state.policy, trainer.task.scorer
    with _Clock() as clock:
        demo.evaluate(machine.cache, machine.project, policy, model, load_judge("concise"), trainer.state.config)
    floor, counts = 0.0, []
    for responses in sampled:
        unique = {tuple(prompt) for prompt in responses.prompts}
        tokens = sum(map(len, responses.prompts)) + sum(map(len, responses.tokens))
        response_tokens = sum(map(len, responses.tokens))
        counts.append(len(responses.tokens))
        floor += machine.sampling_floor(sum(map(len, unique)), response_tokens, TOKENS) + machine.pass_floor(tokens)
    floor += machine.pass_floor(2 * tokens, 2 * response_tokens)  # the policy's KL
    result = machine.result(
        clock, floor, f"{counts[0]} base samples, {counts[1]} of the policy, times {1 / args.scale:g}"
    )
    return result | {key: result[key] / args.scale for key in ("wall_s", "cpu_s", "floor_s")}


MEASUREMENTS = {
    "pair": measure_pair, "reward": measure_reward, "step": measure_step, "evaluate": measure_evaluate,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

"""One PPO step of this lab beside one of TRL 1.12.0 (the last release with PPO): same shape, batch, lengths, epochs and LoRA.

    python benchmarks/ppo_vs_trl.py --shape 192,6,6,4096 --batch 32 --query 16 --response 40 --epochs 4 --minibatches 2 \
        --peer-python peer/bin/python --json

Every run is a process of its own. The systems take turns, so that another program on the machine slows all of them: look at
the ratios, each a median over rounds of one round's ratio. speed_ratio: seconds a step of theirs over ours, both in the
first of --precisions (on a GPU give bfloat16); best_speed_ratio: their faster precision against our faster one.
memory_ratio: our peak memory over theirs, in that first precision; of the whole process on a CPU, what torch reserves on a GPU.

floor: what the matrix products of our step would take at the rate that one large product of its shapes reaches here, and the
rest as nothing; a step cannot be faster without fewer products. See docs/PERFORMANCE.md for what stands in between.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PEER = Path(__file__).resolve().parent / "peer"
FORWARDED = ("shape", "batch", "query", "response", "epochs", "minibatches", "steps", "threads")
PRECISIONS = ("float32", "bfloat16")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="192,6,6,4096", help="hidden,layers,heads,vocabulary of a random Llama")
    for name, default in (("batch", 32), ("query", 16), ("response", 40), ("epochs", 4), ("minibatches", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=4, help="steps a process; the first is warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="turns each system takes")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--micro-batch", type=int, default=0, help="rows of ours a forward pass; 0: the whole minibatch"
    )
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument(
        "--peer-python", required=True, help="Python of an environment with trl==1.12.0; see peer/trl_ppo.py"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    precisions = args.precisions.split(",")
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(args.rounds):
        results = {}
        for precision in precisions:
            results[f"ours {precision}"] = once(sys.executable, "our_ppo.py", precision, args)
            results[f"trl {precision}"] = once(args.peer_python, "trl_ppo.py", precision, args)
        rounds.append(results)
        print(f"round {number + 1} of {args.rounds}: " + said(results), file=sys.stderr)
    result = summary(rounds, precisions, args)
    print(json.dumps(result) if args.json else table(result))
    return 0


def once(python: str, script: str, precision: str, args: argparse.Namespace) -> dict[str, Any]:
    """One process: what it printed last, with the median of its steps."""
    command = [python, str(PEER / script), "--dtype", precision]
    for name in FORWARDED:
        command += [f"--{name}", str(getattr(args, name))]
    if script == "our_ppo.py" and args.micro_batch:
        command += ["--micro-batch", str(args.micro_batch)]
    # Each waits for its threads as it does for its users: TRL as OpenMP does by itself, ours as runtime.prepare says.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    environment["OMP_NUM_THREADS"] = str(args.threads)
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    result["step"] = statistics.median(result["seconds"])
    return result


def summary(rounds: list[dict[str, dict[str, Any]]], precisions: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds; ratios within a round first."""

    def middle(system: str, key: str) -> float:
        return float(statistics.median(one[system][key] for one in rounds))

    def ratio(ours: str, theirs: str, key: str = "step") -> float:
        return float(statistics.median(one[theirs][key] / one[ours][key] for one in rounds))

    plain = precisions[0]
    ours = min((f"ours {p}" for p in precisions), key=lambda name: middle(name, "step"))
    theirs = min((f"trl {p}" for p in precisions), key=lambda name: middle(name, "step"))
    parts = [part for one in rounds for part in one[f"ours {plain}"]["parts"]]
    rate = product_rate(args, plain)
    needed = products(args)
    return {
        "shape": args.shape, "batch": args.batch, "query": args.query, "response": args.response,
        "epochs": args.epochs, "minibatches": args.minibatches, "threads": args.threads, "rounds": len(rounds),
        "speed_ratio": ratio(f"ours {plain}", f"trl {plain}"), "best_speed_ratio": ratio(ours, theirs),
        "best_ours": ours.split()[1], "best_trl": theirs.split()[1],
        "memory_ratio": 1 / ratio(f"ours {plain}", f"trl {plain}", "peak_bytes"),
        "best_memory_ratio": 1 / ratio(ours, theirs, "peak_bytes"),
        "seconds": {name: middle(name, "step") for name in rounds[0]},
        "peak_mib": {name: middle(name, "peak_bytes") / 2**20 for name in rounds[0]},
        "parts": {name: statistics.median(part[name] for part in parts) for name in ("rollout", "score", "update")},
        "gflop_per_step": needed / 1e9, "gflops_measured": rate / 1e9, "floor_seconds": needed / rate,
    }  # fmt: skip


def products(args: argparse.Namespace) -> float:
    """Floating-point operations of a step's matrix products, the rank-8 ones and attention left out.

    A pass reads every token through the trunk and every response token through the vocabulary head, 2 operations a weight.
    Rollout, old policy and reference are one pass each, the reward model one without the head; an epoch is a pass forward
    and one backward (to the inputs only: the weights are frozen).
    """
    hidden, layers, _, vocabulary = map(int, args.shape.split(","))
    middle = int(hidden * 8 / 3) // 32 * 32
    trunk = 2 * args.batch * (args.query + args.response) * layers * (4 * hidden**2 + 3 * hidden * middle)
    head = 2 * args.batch * args.response * hidden * vocabulary
    passes = 3 + 2 * args.epochs
    return float(trunk * (passes + 1) + head * passes)


def product_rate(args: argparse.Namespace, precision: str) -> float:
    """Operations a second of a trunk product with all rows of a minibatch; the best of several tries."""
    import torch

    torch.set_num_threads(args.threads)
    hidden = int(args.shape.split(",")[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = args.batch // args.minibatches * (args.query + args.response)
    x = torch.randn(rows, hidden, dtype=getattr(torch, precision), device=device)
    weight = torch.randn(int(hidden * 8 / 3) // 32 * 32, hidden, dtype=x.dtype, device=device)
    best = float("inf")
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(20):
            torch.nn.functional.linear(x, weight)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begun) / 20)
    return float(2 * rows * weight.numel() / best)


def said(results: dict[str, dict[str, Any]]) -> str:
    return ", ".join(f"{name} {one['step']:.2f} s {one['peak_bytes'] / 2**20:.0f} MiB" for name, one in results.items())


def table(result: dict[str, Any]) -> str:
    seconds, memory = result["seconds"], result["peak_mib"]
    lines = [f"{'':16}{'s a step':>10}{'peak MiB':>10}"]
    lines += [f"{name:16}{seconds[name]:10.2f}{memory[name]:10.0f}" for name in seconds]
    parts = ", ".join(f"{name} {value:.2f} s" for name, value in result["parts"].items())
    return "\n".join([
        *lines,
        f"speed: {result['speed_ratio']:.2f} times TRL's in the same precision; best against best "
        f"({result['best_ours']} / {result['best_trl']}) {result['best_speed_ratio']:.2f} times",
        f"memory: {result['memory_ratio']:.2f} of TRL's; best against best {result['best_memory_ratio']:.2f}",
        f"ours: {parts}; floor {result['floor_seconds']:.2f} s ({result['gflop_per_step']:.0f} GFLOP at "
        f"{result['gflops_measured']:.0f} GFLOP/s)",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

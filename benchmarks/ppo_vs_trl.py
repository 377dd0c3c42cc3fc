"""One PPO step of this lab and of TRL 1.12.0 (the last release with PPO): same shape, batch, lengths, epochs and LoRA.

    python benchmarks/ppo_vs_trl.py --shape 192,6,6,4096 --batch 32 --query 16 --response 40 --epochs 4 --minibatches 2 \
        --peer-python peer/bin/python --json

Every run is a process of its own. The systems alternate, so that other load slows both: compare the ratios, each the median over
the rounds of the ratio within a round. speed_ratio: TRL's seconds per step over ours, both in the first of --precisions (on a GPU
give bfloat16); best_speed_ratio: the same for the faster precision of each. memory_ratio: our peak memory over TRL's in the first
precision; of the whole process on a CPU, as reserved by torch on a GPU.

floor: a lower bound of the step time. For rollout, scores and update each: the time of the matmuls at the rate of one large
matmul on this machine, or the time of the memory traffic at the bandwidth of copying the weights, whichever is longer; everything
else counts as 0. See docs/PERFORMANCE.md for the rest.
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
PHASES = ("rollout", "score", "update")


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
            results[f"ours {precision}"] = run_once(sys.executable, "our_ppo.py", precision, args)
            results[f"trl {precision}"] = run_once(args.peer_python, "trl_ppo.py", precision, args)
        rounds.append(results)
        print(f"round {number + 1} of {args.rounds}: " + format_round(results), file=sys.stderr)
    result = summary(rounds, precisions, args)
    print(json.dumps(result) if args.json else table(result))
    return 0


def run_once(
    python: str, script: str, precision: str, args: argparse.Namespace, timeout: float | None = None
) -> dict[str, Any]:
    """Run one process; its JSON result with the median step time. Raises subprocess.TimeoutExpired after timeout seconds."""
    command = [python, str(PEER / script), "--dtype", precision]
    for name in FORWARDED:
        command += [f"--{name}", str(getattr(args, name))]
    if script == "our_ppo.py" and args.micro_batch:
        command += ["--micro-batch", str(args.micro_batch)]
    # Each with its usual thread settings: OpenMP's defaults for TRL, process_env.set_training_env for ours.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    environment["OMP_NUM_THREADS"] = str(args.threads)
    completed = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=timeout)
    if completed.returncode:
        sys.exit(f"{script} failed:\n{completed.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(completed.stdout.strip().splitlines()[-1])
    result["step"] = statistics.median(result["seconds"])
    return result


def summary(rounds: list[dict[str, dict[str, Any]]], precisions: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Medians over the rounds, of ratios within a round."""

    def median_of(system: str, key: str) -> float:
        return float(statistics.median(results[system][key] for results in rounds))

    def ratio(ours: str, theirs: str, key: str = "step") -> float:
        return float(statistics.median(results[theirs][key] / results[ours][key] for results in rounds))

    reference_precision = precisions[0]
    ours = min((f"ours {p}" for p in precisions), key=lambda name: median_of(name, "step"))
    theirs = min((f"trl {p}" for p in precisions), key=lambda name: median_of(name, "step"))
    floors = {precision: floor(args, precision) for precision in precisions}
    return {
        "shape": args.shape,
        "batch": args.batch,
        "query": args.query,
        "response": args.response,
        "epochs": args.epochs,
        "minibatches": args.minibatches,
        "threads": args.threads,
        "rounds": len(rounds),
        "speed_ratio": ratio(f"ours {reference_precision}", f"trl {reference_precision}"),
        "best_speed_ratio": ratio(ours, theirs),
        "best_ours": ours.split()[1],
        "best_trl": theirs.split()[1],
        "memory_ratio": 1 / ratio(f"ours {reference_precision}", f"trl {reference_precision}", "peak_bytes"),
        "best_memory_ratio": 1 / ratio(ours, theirs, "peak_bytes"),
        "seconds": {name: median_of(name, "step") for name in rounds[0]},
        "peak_mib": {name: median_of(name, "peak_bytes") / 2**20 for name in rounds[0]},
        "parts": {precision: phase_seconds(rounds, precision) for precision in precisions},
        "floors": floors,
        "gflop_per_step": floors[reference_precision]["gflop"],
        "gflops_measured": floors[reference_precision]["gflops_measured"],
        "floor_seconds": floors[reference_precision]["seconds"],
    }


def phase_seconds(rounds: list[dict[str, dict[str, Any]]], precision: str) -> dict[str, float]:
    """Median seconds of each phase of our step."""
    step_phases = [phases for results in rounds for phases in results[f"ours {precision}"]["parts"]]
    return {name: statistics.median(phases[name] for phases in step_phases) for name in PHASES}


def floor(args: argparse.Namespace, precision: str) -> dict[str, float]:
    """Lower bound of the seconds per step, from its operations, its memory traffic and the measured rates."""
    flops, transferred = matmul_flops(args), bytes_transferred(args, element_size=4 if precision == "float32" else 2)
    flop_rate, bandwidth = measure_flop_rate(args, precision), measure_bandwidth(args, precision)
    return {
        "gflop": sum(flops) / 1e9,
        "gflops_measured": flop_rate / 1e9,
        "gbyte": sum(transferred) / 1e9,
        "gbytes_a_second_measured": bandwidth / 1e9,
        "seconds": sum(
            max(flop_count / flop_rate, byte_count / bandwidth)
            for flop_count, byte_count in zip(flops, transferred, strict=True)
        ),
    }


def matmul_flops(args: argparse.Namespace) -> list[float]:
    """Floating-point operations of the matmuls in rollout, scores and update, without LoRA and attention.

    A pass runs every token through the trunk and every response token through the vocabulary head, 2 operations per weight.
    Rollout, old policy and reference are one pass each, the reward model one without the head; an epoch is a forward pass
    and a backward pass (to the inputs only: the weights are frozen).
    """
    trunk, head = (2.0 * args.batch * weights for weights in weight_counts(args))
    trunk, head = trunk * (args.query + args.response), head * args.response
    return [trunk + head, 3 * trunk + 2 * head, 2 * args.epochs * (trunk + head)]


def bytes_transferred(args: argparse.Namespace, element_size: int) -> list[float]:
    """Bytes read and written in rollout, scores and update, with `element_size` bytes per number.

    The weights once per pass and minibatch, in the rollout once per token; a token's states once out of each layer and into
    the next; in the rollout the keys and values of all previous tokens.
    """
    trunk, head = weight_counts(args)
    hidden, layers, *_ = map(int, args.shape.split(","))
    states = 2.0 * args.batch * (args.query + args.response) * hidden * layers
    attended_tokens = sum(args.query + token for token in range(args.response))
    cache = 2.0 * args.batch * attended_tokens * hidden * layers
    passes = 2 * args.epochs
    elements = [
        args.response * (trunk + head) + states + cache,
        3 * trunk + 2 * head + 3 * states,
        passes * (args.minibatches * (trunk + head) + states),
    ]
    return [element_size * element_count for element_count in elements]


def weight_counts(args: argparse.Namespace) -> tuple[float, float]:
    """Weights of all layers, and of the vocabulary head."""
    hidden, layers, _, vocabulary = map(int, args.shape.split(","))
    intermediate = int(hidden * 8 / 3) // 32 * 32
    return float(layers * (4 * hidden**2 + 3 * hidden * intermediate)), float(hidden * vocabulary)


def measure_flop_rate(args: argparse.Namespace, precision: str) -> float:
    """Operations per second of a trunk matmul with all rows of a minibatch; the best of several tries."""
    import torch

    torch.set_num_threads(args.threads)
    hidden = int(args.shape.split(",")[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = args.batch // args.minibatches * (args.query + args.response)
    x = torch.randn(rows, hidden, dtype=getattr(torch, precision), device=device)
    weight = torch.randn(int(hidden * 8 / 3) // 32 * 32, hidden, dtype=x.dtype, device=device)
    best = float("inf")
    for _ in range(10):
        start_time = time.perf_counter()
        for _ in range(20):
            torch.nn.functional.linear(x, weight)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start_time) / 20)
    return float(2 * rows * weight.numel() / best)


def measure_bandwidth(args: argparse.Namespace, precision: str) -> float:
    """Bytes read and written per second when copying as many bytes as the weights have; the best of several tries."""
    import torch

    torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.zeros(int(sum(weight_counts(args))), dtype=getattr(torch, precision), device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        start_time = time.perf_counter()
        for _ in range(5):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start_time) / 5)
    return 2 * source.nbytes / best


def format_round(results: dict[str, dict[str, Any]]) -> str:
    return ", ".join(
        f"{name} {result['step']:.2f} s {result['peak_bytes'] / 2**20:.0f} MiB" for name, result in results.items()
    )


def table(result: dict[str, Any]) -> str:
    seconds, memory = result["seconds"], result["peak_mib"]
    lines = [f"{'':16}{'s a step':>10}{'peak MiB':>10}"]
    lines += [f"{name:16}{seconds[name]:10.2f}{memory[name]:10.0f}" for name in seconds]
    return "\n".join([
        *lines,
        f"speed: {result['speed_ratio']:.2f} times TRL's in the same precision; best against best "
        f"({result['best_ours']} / {result['best_trl']}) {result['best_speed_ratio']:.2f} times",
        f"memory: {result['memory_ratio']:.2f} of TRL's; best against best {result['best_memory_ratio']:.2f}",
        *(format_ours(precision, phases, result["floors"][precision]) for precision, phases in result["parts"].items()),
    ])  # fmt: skip


def format_ours(precision: str, phases: dict[str, float], lower_bound: dict[str, float]) -> str:
    phases_text = ", ".join(f"{name} {value:.2f} s" for name, value in phases.items())
    return (
        f"ours {precision}: {phases_text}; floor {lower_bound['seconds']:.2f} s ({lower_bound['gflop']:.0f} GFLOP at "
        f"{lower_bound['gflops_measured']:.0f} GFLOP/s, {lower_bound['gbyte']:.1f} GB at "
        f"{lower_bound['gbytes_a_second_measured']:.0f} GB/s)"
    )


if __name__ == "__main__":
    sys.exit(main())

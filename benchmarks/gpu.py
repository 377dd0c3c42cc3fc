"""Everything that needs a GPU, in one command of at most ten minutes: the tests marked `cuda`, then the benchmarks.

    python benchmarks/gpu.py --out gpu-results
    python benchmarks/gpu.py --out /tmp/dry --dry        # the same on a CPU with tiny sizes, to try the script itself

Writes OUT/gpu.json and OUT/gpu.md after every part, so that what was measured is kept if a later part fails or time runs out.

Parts: the tests; a PPO step in bfloat16 of a random Llama of Qwen2 0.5B's sizes (but for a narrower feed-forward layer, 366
million weights) beside its lower bound ("floor", see ppo_vs_trl.py);
sampling with CUDA graphs and without, in tokens a second and peak memory.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks" / "peer")]

import ppo_vs_trl

TESTS_LIMIT_S = 240.0
#: Sizes of the benchmarks by name of the setting; --dry takes the second.
SIZES: dict[str, tuple[Any, Any]] = {
    "shape": ("896,24,14,151936", "64,2,2,512"), "batch": (64, 4), "query": (64, 8), "response": (128, 12), "epochs": (4, 2),
    "minibatches": (1, 1), "steps": (4, 2), "precision": ("bfloat16", "float32"),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.json and gpu.md")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on whatever device there is")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for everything (default 600)")
    parser.add_argument("--sampling", choices=("0", "1"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name, values in SIZES.items():
        setattr(args, name, values[args.dry])
    args.threads, args.micro_batch = os.cpu_count() or 1, 0
    if args.sampling is not None:
        print(json.dumps(measure_sampling(args)))
        return 0
    import torch

    if not torch.cuda.is_available() and not args.dry:
        print("no CUDA device: run this on a machine with an NVIDIA GPU, or try the script with --dry", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.limit
    results: dict[str, Any] = {
        "device": describe_device(),
        "dry": args.dry,
        "sizes": {n: getattr(args, n) for n in SIZES},
    }
    for name, part in (("tests", run_tests), ("ppo", measure_ppo), ("sampling", compare_sampling)):
        start = time.monotonic()
        try:
            results[name] = part(args, deadline - start)
        except (Exception, SystemExit) as error:  # the other parts still give results
            results[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        results[name]["wall_s"] = round(time.monotonic() - start, 1)
        (args.out / "gpu.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        (args.out / "gpu.md").write_text(table(results), encoding="utf-8")
    print(table(results))
    return int(any("error" in results[name] for name in ("tests", "ppo", "sampling")))


def describe_device() -> str:
    import torch

    has_gpu = torch.cuda.is_available()
    return f"{torch.cuda.get_device_name() if has_gpu else platform.processor() or 'CPU'}, torch {torch.__version__}"


def run_tests(args: argparse.Namespace, seconds_left: float) -> dict[str, Any]:
    """`pytest -m cuda`, and the tests of quantised weights where bitsandbytes is installed.

    Raises RuntimeError if a test fails.
    """
    suites = [["-m", "cuda", "tests/models"]]
    if importlib.util.find_spec("bitsandbytes") is not None:
        suites.append(["tests/models/test_quantization.py"])
    deadline, summaries = time.monotonic() + min(TESTS_LIMIT_S, seconds_left), []
    for suite in suites:
        completed = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *suite], cwd=REPOSITORY,
            env=os.environ | {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}, capture_output=True, text=True,
            timeout=deadline - time.monotonic(), check=False,
        )  # fmt: skip
        if completed.returncode:
            reason = failure_reason(completed.stdout) or completed.stderr[-500:]
            raise RuntimeError(f"pytest {' '.join(suite)} ended with status {completed.returncode}: {reason}")
        summaries.append(completed.stdout.strip().splitlines()[-1])
    return {"summary": "; ".join(summaries)}


def failure_reason(output: str) -> str:
    """The lines of pytest's output that name the tests that failed, and its last line."""
    lines = output.strip().splitlines()
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return "; ".join(dict.fromkeys([*named, *lines[-1:]]))


def measure_ppo(args: argparse.Namespace, seconds_left: float) -> dict[str, Any]:
    """Seconds of a PPO step and its phases, peak memory, and the floor."""
    result = ppo_vs_trl.run_once(sys.executable, "our_ppo.py", args.precision, args, timeout=seconds_left)
    phases = {name: min(part[name] for part in result["parts"]) for name in ppo_vs_trl.PHASES}
    floor = ppo_vs_trl.floor(args, args.precision)
    return {"step_s": result["step"], "phases_s": phases, "peak_mib": result["peak_bytes"] / 2**20, "floor": floor}


def compare_sampling(args: argparse.Namespace, seconds_left: float) -> dict[str, Any]:
    """`measure_sampling` with CUDA graphs and without, in a process of its own each."""
    results = {}
    for name, value in (("graphs", "1"), ("no graphs", "0")):
        command = [
            sys.executable,
            __file__,
            "--out",
            str(args.out),
            "--sampling",
            value,
            *(["--dry"] if args.dry else []),
        ]
        completed = subprocess.run(
            command, env=os.environ | {"RLHF_LAB_GRAPHS": value}, capture_output=True, text=True, check=False,
            timeout=seconds_left / 2,
        )  # fmt: skip
        if completed.returncode:
            raise RuntimeError(f"sampling with RLHF_LAB_GRAPHS={value} failed:\n{completed.stderr[-1500:]}")
        results[name] = json.loads(completed.stdout.splitlines()[-1])
    return results


def measure_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of the second sampling (the first one records the graphs), and peak memory."""
    import torch
    from our_ppo import save_random_llama

    from rlhf_lab.models.backbone import load_backbone
    from rlhf_lab.models.sampling.sampler import sample, uniforms

    dtype = getattr(torch, args.precision)
    with tempfile.TemporaryDirectory() as folder:
        save_random_llama(Path(folder), args.shape, dtype)
        backbone = load_backbone(folder, dtype=dtype)
    vocab = backbone.model.config.vocab_size
    prompts = torch.randint(4, vocab, (args.batch, args.query), generator=torch.Generator().manual_seed(0)).tolist()
    for _ in range(2):
        start = time.perf_counter()
        tokens = sample(backbone, prompts, uniforms(range(args.batch), args.response)).tokens  # waits for the GPU
        seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_reserved() / 2**20 if backbone.device.type == "cuda" else None
    return {"tokens_per_s": sum(map(len, tokens)) / seconds, "seconds": seconds, "peak_mib": peak}


def table(results: dict[str, Any]) -> str:
    """The results so far in Markdown."""
    sizes = ", ".join(f"{name} {value}" for name, value in results["sizes"].items())
    lines = [
        f"{results['device']}{' (dry run)' if results['dry'] else ''}; {sizes}",
        "",
        "| what | result |",
        "|---|---|",
    ]
    for name in ("tests", "ppo", "sampling"):
        part = results.get(name)
        if part is None:
            continue
        if "error" in part:
            lines.append(f"| {name} | failed: {' '.join(part['error'].split())[:600]} |")
        elif name == "tests":
            lines.append(f"| `pytest -m cuda` | {part['summary']} |")
        elif name == "ppo":
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in part["phases_s"].items())
            floor = part["floor"]
            lines.append(f"| PPO step | {part['step_s']:.2f} s ({phases}), peak {part['peak_mib']:,.0f} MiB |")
            products = f"{floor['gflop']:,.0f} GFLOP at {floor['gflops_measured']:,.0f} GFLOP/s"
            traffic = f"{floor['gbyte']:.1f} GB at {floor['gbytes_a_second_measured']:,.0f} GB/s"
            lines.append(f"| its floor | {floor['seconds']:.2f} s: {products}, {traffic} |")
        else:
            for way in ("graphs", "no graphs"):
                peak = part[way]["peak_mib"]
                memory = "" if peak is None else f", peak {peak:,.0f} MiB"
                lines.append(f"| sampling, {way} | {part[way]['tokens_per_s']:,.0f} tokens/s{memory} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

"""Costs that must not grow: time per response token with the response length, time per step with the size of the store.

    python benchmarks/constant_cost.py --json

Tokens: 32 rows sampled by a random Llama with 3 million weights, alternating 32 and 256 tokens; the ratio of seconds per token.
Steps: the store's part of a step (read events, write 40 metrics) and a poll of the page, after 10, 1,000 and 10,000 stored steps.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "peer")]

import torch
from our_ppo import save_random_llama  # sets the environment before torch is imported

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import LabelSnapshot, StepResult
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.sampling.sampler import sample, uniforms
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import create_project
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import metric_series, record_step
from rlhf_lab.store.runs import create_run, pending_events

SHAPE = "192,6,6,4096"
SHORT_LENGTH, LONG_LENGTH, ROWS = 32, 256, 32
STORED_STEPS = (10, 1_000, 10_000)
METRICS = {f"metric/{i}": float(i) for i in range(40)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure_tokens(Path(folder) / "model", args.rounds) | measure_steps(Path(folder))
    print(json.dumps(result) if args.json else "\n".join(f"{key:40} {value}" for key, value in result.items()))
    return 0


def measure_tokens(folder: Path, rounds: int) -> dict[str, Any]:
    save_random_llama(folder, SHAPE, torch.float32)
    backbone = load_backbone(str(folder), device="cpu", dtype=torch.float32)
    backbone.eos_ids = (-1,)  # no row ends early
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(4, 4096, (ROWS, 16), generator=generator).tolist()
    seconds: dict[int, list[float]] = {SHORT_LENGTH: [], LONG_LENGTH: []}
    for round_ in range(rounds + 1):
        for length in (SHORT_LENGTH, LONG_LENGTH):
            start_time = time.perf_counter()
            sample(backbone, prompts, uniforms(range(ROWS), length))
            if round_:
                seconds[length].append((time.perf_counter() - start_time) / length)
    ratios = [long / short for long, short in zip(seconds[LONG_LENGTH], seconds[SHORT_LENGTH], strict=True)]
    return {
        **{f"ms_a_token_at_{n}": round(statistics.median(times) * 1000, 2) for n, times in seconds.items()},
        "ratio_long_to_short": round(statistics.median(ratios), 3),
    }


def measure_steps(folder: Path) -> dict[str, Any]:
    """The store's part of a step: read events, write rows; and a poll of the page."""
    result: dict[str, Any] = {}
    for stored in STORED_STEPS:
        with Database.open(folder / f"home{stored}") as db:
            project = create_project(db, "p", "none", "", "tales", 0, [("Once", "train")])
            snapshot = LabelSnapshot((), "", Source.HUMAN)
            row = add_reward_model(db, project.id, "none", config={}, report={}, snapshot=snapshot)
            run = create_run(db, project.id, row.id, "r", config={}, manifest={}, total_steps=10 * STORED_STEPS[-1])
            for step in range(1, stored + 1):
                record_step(db, run.id, StepResult(step, METRICS))
            write_times, read_times = [], []
            for step in range(stored + 1, stored + 41):
                start_time = time.perf_counter()
                pending_events(db, run.id)
                record_step(db, run.id, StepResult(step, METRICS))
                write_end = time.perf_counter()
                metric_series(db, run.id, list(METRICS)[:10], step - 1)
                write_times.append(write_end - start_time)
                read_times.append(time.perf_counter() - write_end)
        result |= {
            f"store_ms_a_step_after_{stored}": round(statistics.median(write_times) * 1000, 2),
            f"page_ms_a_question_after_{stored}": round(statistics.median(read_times) * 1000, 2),
        }
    return result


if __name__ == "__main__":
    sys.exit(main())

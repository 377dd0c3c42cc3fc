"""benchmarks/gpu.py, which nobody can run without a GPU, in its dry mode; and that every test of a GPU is among its tests."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GPU_CONDITION = re.compile(r"skipif\(\s*not torch\.cuda\.is_available\(\)")


def test_every_test_that_needs_a_gpu_has_the_marker():
    unmarked = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if GPU_CONDITION.search(text := path.read_text(encoding="utf-8")) and "mark.cuda" not in text
    ]
    assert unmarked == []


def test_without_a_gpu_the_script_says_what_it_needs(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    completed = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert completed.returncode == 1
    assert completed.stderr.startswith("no CUDA device: run this on a machine with an NVIDIA GPU")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_dry_run_measures_every_part(tmp_path):
    completed = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--out", str(tmp_path), "--dry"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["dry"] is True
    assert "skipped" in results["tests"]["summary"] or "passed" in results["tests"]["summary"]
    assert results["ppo"]["step_s"] > 0
    assert results["ppo"]["floor"]["seconds"] > 0
    assert set(results["ppo"]["phases_s"]) == {"rollout", "score", "update"}
    assert min(results["sampling"][way]["tokens_per_s"] for way in ("graphs", "no graphs")) > 0
    lines = (tmp_path / "gpu.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in lines[4:]] == [
        "`pytest -m cuda`", "PPO step", "its floor", "sampling, graphs", "sampling, no graphs",
    ]  # fmt: skip

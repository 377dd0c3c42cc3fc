"""benchmarks/gpu.py in its dry mode, which needs no GPU; and that it runs every test that needs a GPU."""

import importlib.util
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


@pytest.fixture
def gpu_script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("gpu_script", ROOT / "benchmarks" / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OUTPUT = """F.
Loading weights: 100%|##########| 20/20 [00:00<00:00, 4321.00it/s]
FAILED tests/models/test_a.py::test_b - AssertionError: 1
ERROR tests/models/test_c.py
1 failed, 1 passed, 1 error in 3.21s
"""


def test_a_failed_test_run_names_the_tests(gpu_script, monkeypatch):
    commands = []

    def run(command, *, env, **_):
        commands.append((command[command.index("no:cacheprovider") + 1 :], env["TQDM_DISABLE"]))
        return subprocess.CompletedProcess(command, len(commands) - 1, OUTPUT, "")

    monkeypatch.setattr(gpu_script.subprocess, "run", run)
    monkeypatch.setattr(gpu_script.importlib.util, "find_spec", lambda name: name == "bitsandbytes")
    with pytest.raises(RuntimeError) as caught:
        gpu_script.run_tests(None, 60.0)
    assert str(caught.value) == (
        "pytest tests/models/test_quantization.py ended with status 1: "
        "FAILED tests/models/test_a.py::test_b - AssertionError: 1; ERROR tests/models/test_c.py; "
        "1 failed, 1 passed, 1 error in 3.21s"
    )
    assert commands == [(["-m", "cuda", "tests/models"], "1"), (["tests/models/test_quantization.py"], "1")]
    results = {"device": "d", "dry": True, "sizes": {}, "tests": {"error": str(caught.value)}}
    assert "FAILED tests/models/test_a.py::test_b" in gpu_script.table(results)
    monkeypatch.setattr(gpu_script.importlib.util, "find_spec", lambda name: None)
    commands.clear()
    assert gpu_script.run_tests(None, 60.0) == {"summary": "1 failed, 1 passed, 1 error in 3.21s"}


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

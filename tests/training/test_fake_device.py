"""Runs the package on the fake device (tests/fake_device) in separate processes, because the device stays registered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FAKE_DEVICE = TESTS / "fake_device"
ENGINE = ["worker", "algorithms_run"]  # the whole folder takes ten minutes


def run(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(FAKE_DEVICE)}
    actual = subprocess.run(command, check=False, capture_output=True, text=True, cwd=TESTS.parent, env=environment)
    assert actual.returncode == 0, actual.stdout[-6000:] + actual.stderr[-2000:]


def test_fake_device_checks():
    run(FAKE_DEVICE / "checks.py")


@pytest.mark.slow
def test_fake_device_checks_with_every_algorithm_and_family():
    run("-m", "", FAKE_DEVICE / "checks.py")


@pytest.mark.slow
def test_engine_tests_on_the_fake_device():
    run("-p", "plugin", *(TESTS / "engine" / f"test_{name}.py" for name in ENGINE))

"""The package on a device that is not the CPU, where no GPU is at hand (tests/fake_device). In processes of their own: a device
stays registered, and other libraries would find it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FAKE_DEVICE = TESTS / "fake_device"
ENGINE = ["worker", "algorithms_run"]  # the whole folder takes ten minutes


def run(*what):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, what)]
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

"""The package on a device that is not the CPU, where no GPU is at hand (tests/elsewhere)."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_the_package_elsewhere():
    """In a process of its own: a device stays registered, and other libraries would find it."""
    checks = str(TESTS / "elsewhere" / "checks.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", checks]
    found = subprocess.run(command, check=False, capture_output=True, text=True, cwd=TESTS.parent)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]

"""Linter, types, format and unit tests of the page's JavaScript, by Node; skipped where it is not installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
REQUIRED = os.environ.get("RLHF_LAB_REQUIRE_NODE") == "1"


@pytest.mark.parametrize("check", ["lint", "types", "format:check", "test"])
def test_javascript(check):
    if not REQUIRED and not (shutil.which("npm") and (FOLDER / "node_modules").is_dir()):
        pytest.skip("no Node packages: install Node 20, then run npm ci in tests/javascript")
    done = subprocess.run(["npm", "run", "--silent", check], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

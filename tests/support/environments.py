"""Environments of their own for slow tests against other packages."""

import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest


def python_with(folder: Path, name: str, *requirements: str) -> Path:
    """The Python of a new environment in `folder` with these arguments of pip installed on top of the packages of this one.

    name: of what is installed. Where it cannot be installed, the test is skipped; with RLHF_LAB_REQUIRE_REGISTRY=1 it fails.
    """
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    (Path(site) / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = [python, "-m", "pip", "install", "-q", "--retries", "1", *requirements]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        reason = f"{name} cannot be installed: {done.stderr[-300:]}"
        (pytest.fail if os.environ.get("RLHF_LAB_REQUIRE_REGISTRY") == "1" else pytest.skip)(reason)
    return python

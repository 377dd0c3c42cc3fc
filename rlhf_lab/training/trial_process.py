"""Starts the process that tries a configuration (training/model_trial.py), for page and engine. No torch.

A config.json comes from others. A number in it may demand all memory or a year of computing, so the process has limits. It
takes seconds: accepted configurations are remembered on this machine.
"""

import functools
import hashlib
import importlib.metadata
import json
import logging
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_lab.common.model_folder import CONFIG_FILE
from rlhf_lab.common.paths import user_cache_folder
from rlhf_lab.common.process_env import module_environment
from rlhf_lab.errors import ModelError

TRIAL_MODULE = "rlhf_lab.training.model_trial"
TIME_LIMIT_S, MEMORY_LIMIT_BYTES = 60, 4 * 2**30  # of computing, and beyond the memory of the imported modules
WAIT_LIMIT_S = 600.0  # on a machine that is busy
LIMIT_MESSAGE = "{}: its config.json describes a model that {}. Copy the file again, or choose another model."
MEMORY_PROBLEM = f"cannot be tried in {MEMORY_LIMIT_BYTES // 2**30} GB of memory"
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "RLHF_LAB_KERNELS": "0"}

log = logging.getLogger("rlhf_lab.models")


def try_configuration(name: str, config: Mapping[str, Any], parameters: int) -> bool:
    """Try a model with this config.json and as many parameters, once for each configuration.

    Returns False if no small model of it can be made, or the process does not start: then the loaded model must be tried. Raises
    ModelError if models with this configuration do not work in the lab.
    """
    outcome = _outcome(name, json.dumps(config, sort_keys=True), parameters)
    if isinstance(outcome, str):
        raise ModelError(outcome)
    return outcome


@functools.lru_cache(maxsize=64)
def _outcome(name: str, config: str, parameters: int) -> bool | str:
    """Whether the configuration was tried and accepted, or the message of the refusal."""
    accepted = _accepted_file(config, parameters)
    if accepted is not None and accepted.exists():
        return True
    with tempfile.TemporaryDirectory(prefix="rlhf-lab-trial-") as folder:
        (Path(folder) / CONFIG_FILE).write_text(config, encoding="utf-8")
        command = [sys.executable, "-m", TRIAL_MODULE, folder, name, str(parameters), str(TIME_LIMIT_S)]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, errors="replace", timeout=WAIT_LIMIT_S,
                env=module_environment() | _ENVIRONMENT,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("%s could not be tried: %s", name, error)
            return False
    if done.returncode < 0:  # ended by a signal
        problems: dict[int, str] = {
            signal.SIGKILL: MEMORY_PROBLEM,
            signal.SIGPROF: f"cannot be tried in {TIME_LIMIT_S} s of computing",
        }
        return LIMIT_MESSAGE.format(name, problems.get(-done.returncode, "ended the process of its trial"))
    try:
        outcome: bool | str = json.loads(done.stdout.strip().rpartition("\n")[2])["outcome"]
    except (ValueError, LookupError, TypeError):
        log.warning("%s could not be tried:\n%s", name, done.stderr)
        return False
    if outcome is True and accepted is not None:
        accepted.touch()
    if isinstance(outcome, str):
        log.warning("%s was tried and is refused: %s\n%s", name, outcome, done.stderr)
    return outcome


def _accepted_file(config: str, parameters: int) -> Path | None:
    """The file that exists once this configuration was accepted by these versions; None if there is no cache."""
    versions = [importlib.metadata.version(package) for package in ("torch", "transformers", "peft")]
    key = hashlib.sha256(repr((config, parameters, versions)).encode())
    for source in (
        Path(__file__).with_name("model_trial.py"),
        Path(__file__).parents[1] / "models" / "small_config.py",
    ):
        key.update(source.read_bytes())
    try:
        folder = user_cache_folder() / "accepted_configurations"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder / key.hexdigest()
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None

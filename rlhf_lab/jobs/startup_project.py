"""The project that the page opens when it starts: from options of app.py, or from variables of the environment.

In a terminal the page starts after the project was opened. On a Space the page starts at once and a thread opens the project, so
that an unreachable Hub or a mistake in the settings is shown on the page instead of restarting the Space repeatedly. No torch.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from rlhf_lab.common.bundled_assets import PROMPT_SETS
from rlhf_lab.common.paths import existing_path
from rlhf_lab.common.records import DEFAULT_MAX_NEW_TOKENS, ChatSettings
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError, LabError, ModelError
from rlhf_lab.jobs.hub_download import DownloadStatus, ModelDownloader
from rlhf_lab.jobs.memory_estimate import DeviceMemory, FitVerdict, detect_device, estimate_memory
from rlhf_lab.jobs.model_inspection import ModelFacts, inspect_model
from rlhf_lab.jobs.project_setup import (
    change_max_new_tokens,
    change_temperature,
    checked_max_new_tokens,
    checked_temperature,
    completed_chat_settings,
    open_project_on_model,
    parse_template_arguments,
    pick_project,
    projects_on_model,
)
from rlhf_lab.jobs.prompt_files import read_prompt_file
from rlhf_lab.store.database import Database

T = TypeVar("T")
log = logging.getLogger("rlhf_lab.startup")
#: Settings, with the environment variable that replaces a missing option.
VARIABLES = {
    "model": "RLHF_LAB_MODEL",
    "prompts": "RLHF_LAB_PROMPTS",
    "system_prompt": "RLHF_LAB_SYSTEM_PROMPT",
    "template_arguments": "RLHF_LAB_TEMPLATE_ARGUMENTS",
    "temperature": "RLHF_LAB_TEMPERATURE",
    "max_new_tokens": "RLHF_LAB_MAX_NEW_TOKENS",
}
SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Setting:
    """The text of a setting, and the option or variable that it comes from."""

    text: str
    source: str


def read_settings(options: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, Setting]:
    """The settings that were given, by the names of VARIABLES. An option takes precedence over its variable; an empty variable
    counts as unset.

    options: by the same names; None for an option that was not given.
    """
    settings = {}
    for name, variable in VARIABLES.items():
        if (value := options.get(name)) is not None:
            settings[name] = Setting(str(value), f"--{name.replace('_', '-')}")
        elif environment.get(variable, "").strip():
            settings[name] = Setting(environment[variable].strip(), variable)
    return settings


@dataclass(frozen=True)
class ProjectPlan:
    """Validated settings, before any download. facts: None if only settings of the open project change."""

    facts: ModelFacts | None
    chat: ChatSettings | None
    prompt_set: str | Path | None
    temperature: float | None
    max_new_tokens: int | None
    warning: str

    def open(self, db: Database) -> str:
        """Open or create the project; returns a message for the person. Raises LabError."""
        if self.facts is None:
            project = pick_project(db, None)
        else:
            project = open_project_on_model(db, self.facts, self.chat, self.prompt_set)
        messages = []
        if self.temperature is not None:
            messages.append(change_temperature(db, project.id, self.temperature))
        if self.max_new_tokens is not None:
            messages.append(change_max_new_tokens(db, project.id, self.max_new_tokens))
        return " ".join(filter(None, [*messages, self.warning]))


def plan_project(db: Database, settings: Mapping[str, Setting], device: DeviceMemory) -> ProjectPlan:
    """Check all settings and the memory. Raises LabError, whose message begins with the option or variable concerned."""
    temperature = _parsed(settings, "temperature", _parse_temperature)
    max_new_tokens = _parsed(settings, "max_new_tokens", _parse_max_new_tokens)
    facts = _parsed(settings, "model", inspect_model)
    if facts is None:
        for name in ("prompts", "system_prompt", "template_arguments"):
            if name in settings:
                raise ConfigError(
                    f"{settings[name].source} applies to a new project. Also give its model, in --model or "
                    f"{VARIABLES['model']}: embedded, a folder, or a Hub id."
                )
        return ProjectPlan(None, None, None, temperature, max_new_tokens, "")
    prompt_set = _parsed(settings, "prompts", _parse_prompt_set)
    system_prompt = _parsed(settings, "system_prompt", str)
    arguments = _parsed(settings, "template_arguments", lambda text: _parse_arguments(text, facts))
    has_chat = system_prompt is not None or arguments is not None
    chat = ChatSettings(system_prompt or "", arguments or {}) if has_chat else None
    is_new, tokens = not projects_on_model(db, facts, chat, prompt_set), max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    warning = _parsed(settings, "model", lambda _: check_memory(facts, device, tokens, refuse=is_new))
    return ProjectPlan(facts, chat, prompt_set, temperature, max_new_tokens, warning or "")


def _parsed(settings: Mapping[str, Setting], name: str, parse: Callable[[str], T]) -> T | None:
    """What `parse` makes of a setting; None if it was not given. An error begins with where the setting comes from."""
    if name not in settings:
        return None
    try:
        return parse(settings[name].text)
    except LabError as error:
        raise type(error)(f"{settings[name].source}: {error}") from error


def _parse_temperature(text: str) -> float:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f'"{text}" is not a temperature. Give a number such as 0.7.')
    return checked_temperature(value)


def _parse_max_new_tokens(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise ConfigError(f'"{text}" is not a number of tokens. Give a whole number such as 96.')
    return checked_max_new_tokens(int(text))


def _parse_prompt_set(text: str) -> str | Path:
    if text in PROMPT_SETS:
        return text
    path = existing_path(text)
    if path is None:
        raise ConfigError(
            f'"{text}" is neither a bundled prompt set nor a file. Give one of {", ".join(PROMPT_SETS)}, or the path of a file '
            "with a prompt a line."
        )
    read_prompt_file(path)
    return path


def _parse_arguments(text: str, facts: ModelFacts) -> dict[str, Any]:
    """Raises ConfigError for arguments that the chat template does not read."""
    arguments = parse_template_arguments(text)
    completed_chat_settings(facts, ChatSettings("", arguments))
    return arguments


def check_memory(facts: ModelFacts, device: DeviceMemory, max_new_tokens: int, *, refuse: bool) -> str:
    """A warning if the model may be too large for the memory, otherwise "".

    refuse: raise ModelError for a model that does not fit. Without it, that is only a warning: if the project already exists, the
    engine may have loaded the model, which reduces the free memory.
    """
    memory = estimate_memory(facts, device, PolicyConfig(max_new_tokens=max_new_tokens))
    if memory.verdict is FitVerdict.FITS:
        return ""
    need = f"about {memory.required_bytes / 1e9:.1f} GB of memory"
    if memory.least_bytes < memory.required_bytes:
        need = f"{memory.least_bytes / 1e9:.1f} GB (in bfloat16) to {memory.required_bytes / 1e9:.1f} GB (in float32) of memory"
    numbers = f"a run with it needs {need}, and {device.free_bytes / 1e9:.1f} GB are free here ({device.name})"
    if memory.verdict is FitVerdict.TIGHT:
        return f"{facts.name} may be too large: {numbers}. Close other programs."
    advice = f"Choose a smaller model, such as {SMALL_MODEL}, or a machine with more memory"
    if not refuse:
        return f"{facts.name} is too large: {numbers}. {advice}."
    raise ModelError(
        f"{facts.name} does not fit: {numbers}. {advice}. To try it anyway, create a project on it under Project."
    )


class StartupPhase(StrEnum):
    CHECKING = "checking"
    DOWNLOADING = "downloading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class StartupState:
    """message: what was opened, or the error and what to do; "" until then."""

    phase: StartupPhase
    model: str
    message: str = ""


class StartupProject:
    """Opens the project that the settings describe: `open` blocks, `start` uses a thread and may be repeated after a failure.

    report: called with each message for the log.
    """

    def __init__(
        self, db: Database, settings: Mapping[str, Setting], downloads: ModelDownloader, report: Callable[[str], None]
    ) -> None:
        self._db, self._settings, self._downloads, self._report = db, settings, downloads, report
        self._lock = threading.Lock()
        self._state: StartupState | None = None

    def open(self) -> str:
        """Check the settings, download the model and open the project; returns a message. Raises LabError."""
        plan = plan_project(self._db, self._settings, detect_device())
        facts = plan.facts
        if facts is None or not facts.files_to_download:
            return plan.open(self._db)
        self._set_state(StartupPhase.DOWNLOADING)
        self._report(f"Downloading {facts.name}, {facts.download_bytes / 1e6:,.0f} MB …")
        self._downloads.start(facts, lambda _: plan.open(self._db))
        self._downloads.wait()
        progress = self._downloads.progress()
        if progress is None or progress.status is not DownloadStatus.DONE:
            raise ModelError(f"{facts.name}: {progress.message if progress else 'it was not downloaded.'}")
        return progress.message

    def start(self) -> bool:
        """Start the thread. Returns False if it is already running."""
        with self._lock:
            if self._state is not None and self._state.phase in (StartupPhase.CHECKING, StartupPhase.DOWNLOADING):
                return False
            self._state = StartupState(StartupPhase.CHECKING, self._model)
        threading.Thread(target=self._run, daemon=True, name="startup-project").start()
        return True

    def state(self) -> StartupState | None:
        """The state of the thread; None if it was not started, or if a person has chosen another project since."""
        with self._lock:
            return self._state

    def dismiss(self) -> None:
        """Stop showing a failure, because a person has chosen a project."""
        with self._lock:
            if self._state is not None and self._state.phase is StartupPhase.FAILED:
                self._state = None

    @property
    def _model(self) -> str:
        return self._settings["model"].text if "model" in self._settings else ""

    def _set_state(self, phase: StartupPhase, message: str = "") -> None:
        with self._lock:
            self._state = StartupState(phase, self._model, message)

    def _run(self) -> None:
        try:
            notes = self.open()
            phase, message = (
                StartupPhase.READY,
                f'The project "{pick_project(self._db, None).name}" is open. {notes}'.strip(),
            )
        except LabError as error:
            phase, message = StartupPhase.FAILED, str(error)
        except Exception as error:  # the page must stay open and show the error
            log.warning("the project of the settings could not be opened", exc_info=True)
            phase, message = StartupPhase.FAILED, f"{type(error).__name__}: see the log of the lab."
        self._report(f"error: {message}" if phase is StartupPhase.FAILED else message)
        self._set_state(phase, message)

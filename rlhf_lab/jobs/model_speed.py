"""The speed of a model on this machine, measured while the engine works and stored in HOME/speed.json. No torch.

There are no separate benchmark runs: the engine times its ordinary work, and time_estimate.py derives from this how long a stage
will take. The file has an entry for each machine and model. It can be deleted: the speed is then measured again.
"""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rlhf_lab.common.atomic import write_file_atomically
from rlhf_lab.common.paths import SPEED_FILE
from rlhf_lab.common.private_files import PRIVATE_FILE

MAX_MEASUREMENTS = 5  # of a rate; their median is used, because the first ones include loading and compiling
MAX_LENGTHS = 128  # lengths of the newest responses
MAX_ROW_COUNTS = 12


@dataclass
class ModelSpeed:
    """Measurements of one model on one machine. In each list the newest measurement is last.

    environment: the model's weights, device, dtype and threads; if it changes, everything is measured again.
    head_cost: operations of the vocabulary head over those of all layers, per token.
    forward: seconds per token of a forward pass through all layers.
    sampling: batch size -> seconds to sample the batch, over the mean number of tokens of its responses.
    prompt_tokens: mean of the newest batch. response_tokens: lengths of the newest responses; None for a response
    that was truncated at the limit. load: seconds from starting the engine until the model could be used.
    stages: stage -> measured seconds over the seconds estimated from the rates.
    """

    environment: str
    head_cost: float = 0.0
    forward: list[float] = field(default_factory=list)
    sampling: dict[str, list[float]] = field(default_factory=dict)
    prompt_tokens: float = 0.0
    response_tokens: list[int | None] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether there are enough measurements to estimate a stage."""
        return bool(self.forward and self.sampling and self.response_tokens)

    def record_load(self, seconds: float) -> None:
        """Record the seconds from starting the engine until the model could be used."""
        _append(self.load, seconds)

    def record_forward(self, seconds: float, tokens: int) -> None:
        """Record a forward pass over a batch of texts."""
        if tokens:
            _append(self.forward, seconds / tokens)

    def record_sampling(self, seconds: float, responses: Sequence[Sequence[int]]) -> None:
        """Record a batch of responses that were sampled together."""
        tokens = sum(map(len, responses))
        if tokens:
            measurements = self.sampling.pop(str(len(responses)), [])
            self.sampling[str(len(responses))] = measurements  # the newest row count is last
            _append(measurements, seconds * len(responses) / tokens)
            for oldest in list(self.sampling)[:-MAX_ROW_COUNTS]:
                del self.sampling[oldest]

    def record_texts(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], max_new_tokens: int
    ) -> None:
        """Record the lengths of prompts and of responses of the base model with the usual token limit."""
        self.prompt_tokens = fmean(map(len, prompts))
        lengths = [len(response) if len(response) < max_new_tokens else None for response in responses]
        self.response_tokens = [*self.response_tokens, *lengths][-MAX_LENGTHS:]

    def record_stage(self, stage: str, seconds: float, estimated: float | None) -> None:
        """Record a finished stage. estimated: seconds according to the rates alone; None if they are not measured."""
        if estimated:
            _append(self.stages.setdefault(stage, []), seconds / estimated)

    def mean_response_tokens(self, max_new_tokens: int) -> float:
        """The mean length of responses with this token limit. Responses that were truncated count as max_new_tokens long."""
        return fmean(
            max_new_tokens if length is None else min(length, max_new_tokens) for length in self.response_tokens
        )

    def sampling_seconds(self, rows: int, max_new_tokens: int) -> float:
        """Seconds to sample a batch of `rows` responses.

        The seconds per token are interpolated linearly between the two neighbouring batch sizes that were measured. Above the
        largest, they grow in proportion to the rows. Below the smallest, they are extrapolated linearly, but decrease at most in
        proportion to the rows. If only one batch size was measured, they decrease with the square root of the rows, a compromise
        between proportional and constant.
        """
        points = sorted((int(count), median(seconds)) for count, seconds in self.sampling.items())
        (least, least_s), (greatest, greatest_s) = points[0], points[-1]
        if rows >= greatest:
            per_token = greatest_s * rows / greatest
        elif len(points) == 1:
            per_token = least_s * math.sqrt(rows / least)
        else:
            (low, low_s), (high, high_s) = next(pair for pair in pairwise(points) if rows <= pair[1][0])
            per_token = low_s + (high_s - low_s) * (rows - low) / (high - low)
            if rows < least:
                per_token = min(max(per_token, least_s * rows / least), least_s)
        return per_token * self.mean_response_tokens(max_new_tokens)

    @property
    def load_seconds(self) -> float:
        """Seconds from starting the engine until the model can be used; 0 if not measured yet."""
        return median(self.load) if self.load else 0.0

    def correction(self, stage: str) -> float | None:
        """The median of measured over estimated seconds of the stage; None if it was not measured."""
        return median(self.stages[stage]) if self.stages.get(stage) else None


def _append(measurements: list[float], value: float) -> None:
    measurements.append(float(f"{value:.4g}"))
    del measurements[:-MAX_MEASUREMENTS]


def load_speed(home: Path, host: str, model: str) -> ModelSpeed | None:
    """The measurements of a model on a machine; None if there are none yet or the file is damaged."""
    with contextlib.suppress(KeyError, TypeError):
        return ModelSpeed(**_read(home)[host][model])
    return None


def speed_changed_at(home: Path) -> float:
    """When something was last measured, in seconds since 1970; 0.0 if never."""
    with contextlib.suppress(OSError):
        return (home / SPEED_FILE).stat().st_mtime
    return 0.0


def save_speed(home: Path, host: str, model: str, speed: ModelSpeed) -> None:
    """Replace the stored measurements of a model on a machine. A file that cannot be written is ignored."""
    stored, entries = load_speed(home, host, model), _read(home)
    if stored is not None and stored.environment == speed.environment:  # keep stages that other processes have stored
        speed.stages = stored.stages | speed.stages
    machine = entries.get(host)
    entries[host] = (machine if isinstance(machine, dict) else {}) | {model: asdict(speed)}
    with contextlib.suppress(OSError):
        write_file_atomically(home / SPEED_FILE, json.dumps(entries, indent=1), mode=PRIVATE_FILE)


def _read(home: Path) -> dict[str, Any]:
    """The content of the file; empty if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        entries = json.loads((home / SPEED_FILE).read_text(encoding="utf-8"))
        if isinstance(entries, dict):
            return entries
    return {}

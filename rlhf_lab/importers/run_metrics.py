"""The metrics of a run that was made elsewhere: trainer_state.json of TRL, or a table with a row for each step."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.common.text import pluralize
from rlhf_lab.errors import DataError
from rlhf_lab.importers.column_mapping import ColumnMappingError
from rlhf_lab.importers.memory_limit import limited_memory
from rlhf_lab.importers.parsed_rows import Limits, RowError
from rlhf_lab.importers.readers import RowStream, read_rows
from rlhf_lab.store.database import Database
from rlhf_lab.store.run_metrics import add_outside_run

STATE_FILE = "trainer_state.json"
STEP_COLUMNS = ("step", "global_step", "train/global_step", "_step", "Step")  # _step of W&B counts calls
#: TRL's names of metrics that are the same here under another name; TRL's other names are kept.
OUR_NAMES = {"learning_rate": "lr", "completions/mean_length": "tokens/response_len"}
MAX_STEP, MAX_VALUES, MAX_NAME_CHARS = 2**31 - 1, 1_000_000, 80
MAX_SHOWN_NAMES = 20
LIMITS = Limits(max_bytes=100_000_000, max_rows=MAX_VALUES)


@dataclass(frozen=True)
class OutsideMetrics:
    """What a file says of a run.

    Attributes:
        file: its name, without folders. digest: its SHA-256.
        updates_per_step: how many of its steps are one here.
        steps: the metrics of each step, in order.
        ignored: names of columns without a number.
        text_count: other cells that are not empty and no number.
        replaced_count: values that a later row of the same step replaced.
    """

    file: str
    digest: str
    updates_per_step: int
    steps: dict[int, dict[str, float]]
    ignored: tuple[str, ...]
    text_count: int
    replaced_count: int

    @property
    def names(self) -> list[str]:
        return sorted({name for values in self.steps.values() for name in values})

    def add_run(self, db: Database, project_id: int, name: str) -> int:
        """Store them as a run of the project; returns its id."""
        source = {"file": self.file, "sha256": self.digest, "updates_per_step": self.updates_per_step}
        return add_outside_run(db, project_id, name, source, self.steps)

    def summary(self) -> str:
        """What is in the run, and a line for each kind of cell that was left out."""
        lines = [f"{pluralize(len(self.steps), 'step')}, {pluralize(len(self.names), 'metric')}"]
        if self.ignored:
            lines.append(f"left out, because they have no numbers: {_names_text(self.ignored)}")
        if self.text_count:
            lines.append(f"{pluralize(self.text_count, 'cell')} left out, because they hold no number")
        if self.replaced_count:
            lines.append(f"{pluralize(self.replaced_count, 'value')} replaced by a later row of the same step")
        return "\n".join(lines)


def read_metrics(path: Path, updates_per_step: int = 1) -> OutsideMetrics:
    """Read a file, or that of a folder of TRL.

    Rows may be in any order. Those of the same step are joined. NaN is kept, as the store has it; other cells without a number
    are left out. updates_per_step: so many of the file's steps become one, whose values are the means of the finite ones.
    Raises DataError if the file cannot be read, a row has no step, or a limit is exceeded.
    """
    if updates_per_step < 1:
        raise DataError(f"{updates_per_step} updates per step: give 1 or more.")
    path = _state_file(path) if path.is_dir() else path
    with limited_memory(path.name, LIMITS):
        return _collect(path, *_open_rows(path), updates_per_step)


def _open_rows(path: Path) -> tuple[str, RowStream]:
    """Of an object whose values are lists, these are columns."""
    try:
        return read_rows(path, LIMITS, ["file=columns"])
    except ColumnMappingError as error:
        raise DataError(
            f"{error.message} A run's metrics are one table: save it as CSV or JSON Lines, with a row for each step."
        ) from error


def _collect(path: Path, digest: str, rows: RowStream, updates_per_step: int) -> OutsideMetrics:
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    texts, measured, count, replaced = Counter[str](), set[str](), 0, 0
    for row in rows:
        if isinstance(row, RowError):
            raise DataError(f"{path.name}: {row}.")
        step = _step(row.cells, f"{path.name}, {row.location}")
        for name, cell in row.cells.items():
            value = None if name in STEP_COLUMNS else _number(cell)
            if value is None:
                texts[name] += name not in STEP_COLUMNS and cell not in (None, "")
                continue
            _check_name(name, path.name)
            replaced += name in steps[step]
            count += name not in steps[step]
            steps[step][name] = value
            measured.add(name)
        if count > MAX_VALUES:
            raise DataError(
                f"{path.name} has more than {MAX_VALUES:,} numbers. Leave out columns, or every second step."
            )
    if not measured:
        raise DataError(f"{path.name} has no numbers beside the steps, so there is nothing to show.")
    ours = Counter(map(_our_name, measured))
    names = {name: our for name in measured if (our := _our_name(name)) not in measured and ours[our] == 1}
    named = {step: {names.get(name, name): value for name, value in steps[step].items()} for step in sorted(steps)}
    ignored = tuple(sorted(name for name, number in texts.items() if number and name not in measured))
    text_count = sum(texts[name] for name in measured)
    joined = _joined(named, updates_per_step)
    return OutsideMetrics(visible(path.name), digest, updates_per_step, joined, ignored, text_count, replaced)


def _our_name(name: str) -> str:
    """Trackers have transformers' prefix before the names of a training."""
    short = name.removeprefix("train/")
    return OUR_NAMES.get(short, short)


def visible(name: str) -> str:
    """A name in a file, or that of one, that can be shown: other characters become question marks."""
    return "".join(char if char.isprintable() else "?" for char in name)


def _names_text(names: Sequence[str]) -> str:
    """The first names of a file's columns, without control characters, and how many more there are."""
    shown = ", ".join(visible(name[:MAX_NAME_CHARS]) for name in names[:MAX_SHOWN_NAMES])
    return shown + (f" and {len(names) - MAX_SHOWN_NAMES} more" if len(names) > MAX_SHOWN_NAMES else "")


def _state_file(folder: Path) -> Path:
    """trainer_state.json in a folder or in its newest checkpoint."""
    if (folder / STATE_FILE).is_file():
        return folder / STATE_FILE
    checkpoints = [path for path in folder.glob(f"checkpoint-*/{STATE_FILE}") if path.parent.name[11:].isdecimal()]
    if not checkpoints:
        raise DataError(f"{folder.name} has no {STATE_FILE}, and no checkpoint with one. Give the name of a file.")
    return max(checkpoints, key=lambda path: int(path.parent.name[11:]))


def _step(cells: dict[str, Any], location: str) -> int:
    column = next((name for name in STEP_COLUMNS if name in cells), None)
    if column is None:
        raise DataError(
            f"{location}: there is no step. Each row needs one, in a column named {' or '.join(STEP_COLUMNS)}."
        )
    step = _number(cells[column])
    if step is None or not 0 <= step <= MAX_STEP or step != int(step):
        raise DataError(
            f"{location}: the step {str(cells[column])[:40]!r} is not a whole number from 0 to {MAX_STEP:,}."
        )
    return int(step)


def _number(cell: Any) -> float | None:
    """The number of a cell, as JSON or as text; None for anything else."""
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        return float(cell)
    except OverflowError:  # a whole number beyond floating point
        return math.inf if isinstance(cell, int) and cell > 0 else -math.inf
    except ValueError:
        return None


def _check_name(name: str, file: str) -> None:
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise DataError(
            f"{file}: the column {name[:40]!r} cannot be the name of a metric. Use 1 to {MAX_NAME_CHARS} visible characters."
        )


def _joined(steps: dict[int, dict[str, float]], updates_per_step: int) -> dict[int, dict[str, float]]:
    """The means over so many steps each: steps 1 to N become step 1. Step 0 stays."""
    if updates_per_step == 1:
        return steps
    groups: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for step, values in steps.items():
        for name, value in values.items():
            groups[-(-step // updates_per_step)][name].append(value)
    return {step: {name: _mean(values) for name, values in group.items()} for step, group in groups.items()}


def _mean(values: list[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else values[-1]

"""A project's labels as a data set folder for `datasets.load_dataset`, with card and provenance."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.common.hashing import file_sha256
from rlhf_lab.common.progress import FractionCallback, ignore_fraction
from rlhf_lab.errors import LabelError
from rlhf_lab.exporters.dataset_card import DatasetFacts, dataset_card
from rlhf_lab.exporters.json_io import portable_name, write_json
from rlhf_lab.exporters.label_export import (
    LabelExportOptions,
    count_left_out,
    label_batches,
    nothing_to_export_message,
)
from rlhf_lab.exporters.output_folder import atomic_output
from rlhf_lab.exporters.tabular import write_rows
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project

DATASET_OPTIONS = LabelExportOptions(format="parquet")
COUNTED_COLUMNS = ("source", "annotator", "choice")


def export_dataset(
    db: Database, project_id: int, out_dir: Path, options: LabelExportOptions = DATASET_OPTIONS, *, force: bool = False,
    on_progress: FractionCallback = ignore_fraction,
) -> Path:  # fmt: skip
    """Write OUT/labels-project-ID/ with data/train.FORMAT, README.md (the card) and provenance.json; returns that folder.

    on_progress: as in `export_labels`. Raises LabelError if there is nothing to write, StoreError for an unknown project or a
    failed write.
    """
    project = get_project(db, project_id)
    folder_name, data_file = f"labels-project-{project_id}", f"data/train.{options.format}"
    counts = _RowCounts()
    with atomic_output(out_dir, force=force) as output:
        data_path = output.add(f"{folder_name}/{data_file}")
        batches = label_batches(db, project, options, on_progress)
        row_count = write_rows(data_path, counts.counted(batches), options.format)
        if not row_count:
            raise LabelError(nothing_to_export_message(db, project_id, options))
        facts = DatasetFacts(
            project, options, data_file, row_count, counts.columns, file_sha256(data_path),
            count_left_out(db, project_id, options),
            *(dict(counts.values[column].most_common()) for column in COUNTED_COLUMNS),
        )  # fmt: skip
        output.add(f"{folder_name}/README.md").write_text(dataset_card(facts), encoding="utf-8")
        write_json(output.add(f"{folder_name}/provenance.json"), _provenance(facts))
    return out_dir / folder_name


class _RowCounts:
    """What the card says of the rows, counted while they are written."""

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        self.values: dict[str, Counter[str]] = {column: Counter() for column in COUNTED_COLUMNS}

    def counted(self, batches: Iterable[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
        for rows in batches:
            self.columns = tuple(rows[0])
            for column in COUNTED_COLUMNS:
                self.values[column].update(row[column] for row in rows if column in row)
            yield rows


def _provenance(facts: DatasetFacts) -> dict[str, Any]:
    project = facts.project
    return {
        "made_with": f"RLHF Lab {__version__}",
        "exported_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "file": facts.data_file,
        "sha256": facts.digest,
        "ties_left_out": facts.left_out.ties,
        "gold_left_out": facts.left_out.gold,
        "rows": facts.row_count,
        "columns": list(facts.columns),
        "chosen_with": facts.options.to_dict(),
        "project": {
            "id": project.id,
            "name": project.name,
            "model": portable_name(project.model),
            "model_sha256": project.model_hash,
            "prompt_set": portable_name(project.prompt_set),
            "seed": project.seed,
            "system_prompt": project.system_prompt,
            "template_arguments": dict(project.template_arguments),
        },
        "votes": {
            "by_source": facts.votes_by_source,
            "by_annotator": facts.votes_by_annotator,
            "by_choice": facts.votes_by_choice,
        },
    }

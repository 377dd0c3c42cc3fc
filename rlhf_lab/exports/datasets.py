"""A project's labels as a data set: a folder that `datasets.load_dataset` opens, with its card and where it came from."""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_lab import __version__
from rlhf_lab.errors import LabelError
from rlhf_lab.exports.dataset_card import DatasetFacts, card
from rlhf_lab.exports.labels import _nothing, label_rows
from rlhf_lab.exports.staging import staging
from rlhf_lab.exports.table_files import write_rows
from rlhf_lab.exports.wanted import LabelExport
from rlhf_lab.exports.words import portable, write_json
from rlhf_lab.records import Project
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project

AS_DATASET = LabelExport(format="parquet")


def export_dataset(
    db: Database, project_id: int, out: Path, wanted: LabelExport = AS_DATASET, *, force: bool = False
) -> Path:
    """Write OUT/labels-project-ID/ with data/train.FORMAT, README.md (the card) and provenance.json; returns that folder.

    Raises LabelError when there is nothing to write, StoreError for an unknown project or a failed write.
    """
    project = get_project(db, project_id)
    name = f"labels-project-{project_id}"
    rows = list(label_rows(db, project, wanted))
    if not rows:
        raise LabelError(_nothing(db, project_id, wanted))
    facts = _facts(project, wanted, rows)
    with staging(out, force=force) as stage:
        data = stage.add(f"{name}/{facts.file}")
        write_rows(data, rows, wanted.format)
        digest = hashlib.sha256(data.read_bytes()).hexdigest()
        stage.add(f"{name}/README.md").write_text(card(facts), encoding="utf-8")
        write_json(stage.add(f"{name}/provenance.json"), _provenance(facts, digest))
    return out / name


def _facts(project: Project, wanted: LabelExport, rows: Sequence[dict[str, Any]]) -> DatasetFacts:
    def counted(column: str) -> dict[str, int]:
        return dict(Counter(row[column] for row in rows).most_common()) if column in rows[0] else {}

    return DatasetFacts(
        project, wanted, f"data/train.{wanted.format}", len(rows), tuple(rows[0]),
        counted("source"), counted("annotator"), counted("choice"),
    )  # fmt: skip


def _provenance(facts: DatasetFacts, digest: str) -> dict[str, Any]:
    project = facts.project
    return {
        "made_with": f"RLHF Lab {__version__}", "exported_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "file": facts.file, "sha256": digest, "rows": facts.rows, "columns": list(facts.columns),
        "chosen_with": facts.wanted.to_dict(),
        "project": {
            "id": project.id, "name": project.name, "model": portable(project.model), "model_sha256": project.model_hash,
            "prompt_set": portable(project.prompt_set), "seed": project.seed,
        },
        "votes": {"by_source": facts.sources, "by_annotator": facts.annotators, "by_choice": facts.choices},
    }  # fmt: skip

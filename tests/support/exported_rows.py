"""The rows of an export without a file."""

from itertools import chain
from typing import Any

from rlhf_lab.common.records import Project
from rlhf_lab.exporters.label_export import LabelExportOptions, label_batches
from rlhf_lab.store.database import Database


def label_rows(db: Database, project: Project, options: LabelExportOptions) -> list[dict[str, Any]]:
    return list(chain.from_iterable(label_batches(db, project, options)))

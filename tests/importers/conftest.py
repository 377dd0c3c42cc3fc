"""Preference files written by the tests, and a lab to import them."""

import csv
import gzip
import io
import json
import shutil
from pathlib import Path

import pytest

from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database


@pytest.fixture
def db(tmp_path, empty_home):
    with Database.open(shutil.copytree(empty_home, tmp_path / "home")) as opened:
        yield opened


@pytest.fixture
def project(db):
    return projects.create_project(db, "tales", "embedded", "abc", "tales", 7, [("Once", "train"), ("Far", "eval")])


class Files:
    """Writes files and parses them as an import does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def raw(self, name, content) -> Path:
        path = self.folder / name
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    def rows(self, name, rows) -> Path:
        """Write rows (dicts) in the format of the file name."""
        kind = name.removesuffix(".gz").rsplit(".", 1)[1]
        if kind == "parquet":
            import pyarrow
            from pyarrow import parquet

            buffer = io.BytesIO()
            parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
            return self.raw(name, buffer.getvalue())
        if kind == "json":
            return self.raw(name, json.dumps(rows, indent=1))
        if kind in ("csv", "tsv"):
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
            return self.raw(name, text.getvalue())
        return self.raw(name, "".join(json.dumps(row) + "\n" for row in rows))

    def read(self, path, **more):
        return parse_file(ImportRequest(str(path), **more))

    def parse(self, name, content, **more):
        write = self.rows if isinstance(content, list) else self.raw
        return self.read(write(name, content), **more)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    return Files(folder)


def decided_texts(vote):
    """(prompt, better, worse) of a vote for one text."""
    sides = (vote.first.text, vote.second.text)
    better, worse = sides if vote.choice == "first" else sides[::-1]
    return vote.prompt, better, worse


@pytest.fixture(name="decided_texts")
def _decided_texts():
    return decided_texts

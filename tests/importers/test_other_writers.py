"""Files that Argilla and Label Studio write themselves, in an environment of their own: imported by the command, exported in
every form, opened by the card's own code, and read again."""

import json
import os
import subprocess
import uuid
import venv
from pathlib import Path

import pytest
from support.exported_rows import label_rows
from test_published_round_trips import preferences_of_every_export

from rlhf_lab.cli.main import main
from rlhf_lab.exporters.label_export import LabelExportOptions
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database

WRITERS = Path(__file__).parent / "writers"
#: pandas writes it without quotes, and every reader of CSV ends a row at it.
LONE_RETURN = "return\rreturn"
TEXTS = [
    'Name "a", b;\tc | fruit?\r\n\u2028\u202eשלום\u202c {"x": [1]} \\n', "null", "A 'brick'\n}\n {\u0085 =1+1, NaN",
    "👩\u200d👧 e\u0301 --- <b>plum</b>", "=cmd|' /C calc'!A0", '["a", "b"]', "\ufeffBOM", LONE_RETURN, 'one " quote', "'",
    "a\u2029b\x0bc\x0c\x1cd", " lead and trail ", "long " * 9000, "-1", '{"selected": "left"}', "a\\/b\\u0041", "&lt;&amp;",
    "response_1", "tie", "[]", '[{"value": "x", "user_id": "y"}]', "\n\nlines\n\n",
]  # fmt: skip
ROWS = [
    {"prompt": prompt if number % 2 else f"{number}. {prompt}", "better": prompt, "worse": worse}
    for number, (prompt, worse) in enumerate(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Folder of the files of both tools. Without a package registry the tests are skipped; with RLHF_LAB_REQUIRE_REGISTRY=1 they
    fail."""
    folder = tmp_path_factory.mktemp("writers")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [python, "-m", "pip", "install", "-q", "--retries", "1", "-r", WRITERS / "requirements.txt"]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        reason = f"argilla and label-studio-sdk cannot be installed: {done.stderr[-300:]}"
        (pytest.fail if os.environ.get("RLHF_LAB_REQUIRE_REGISTRY") == "1" else pytest.skip)(reason)
    rows = folder / "rows.json"
    rows.write_text(json.dumps(ROWS), encoding="utf-8")
    for tool in ("argilla", "label_studio"):
        (folder / tool).mkdir()
        script = WRITERS / f"write_{tool}.py"
        done = subprocess.run(
            [python, "-W", "ignore", script, folder / tool, rows], capture_output=True, text=True, check=False,
            env={"HOME": str(folder), "HF_HUB_OFFLINE": "1"}, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    return folder


def expected_rows(tool):
    """(prompt, better, worse, annotator) of each row."""
    people = [f"person{i}@lab.test" if tool == "label_studio" else str(uuid.UUID(int=i + 1)) for i in (0, 1)]
    return [(row["prompt"], row["better"], row["worse"], people[number % 2]) for number, row in enumerate(ROWS)]


def imported(home, path):
    """(database, project) after `import` of a file into a new project."""
    vote = "best" if path.name.startswith("choices-") and "-JSON." not in path.name else ""
    vote = "preference" if path.name.startswith("chat-") else vote
    answers = ["--answer", "texts=plain", "--skip-broken", *(["--map", f"choice={vote}"] if vote else [])]
    assert main(["import", str(path), "--home", str(home), "--new-project", path.name, *answers]) == 0, path.name
    db = Database.open(home)
    return db, projects.projects(db)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["argilla", "label_studio"])
def test_what_the_tools_write_comes_back_from_every_export(written, tmp_path, tool):
    paths = sorted((written / tool).iterdir())
    assert len(paths) == {"argilla": 30, "label_studio": 12}[tool]
    for path in paths:
        db, project = imported(tmp_path / "home", path)
        rows = label_rows(db, project, LabelExportOptions(source=None))
        found = [(row["prompt"], row["chosen"], row["rejected"], row["annotator"]) for row in rows]
        is_broken = path.name.endswith("to_datasets.csv")
        assert found == [row for row in expected_rows(tool) if not (is_broken and LONE_RETURN in row)], path.name
    found = preferences_of_every_export(db, project, tmp_path)
    assert found == [row[:3] for row in expected_rows(tool)]


def test_the_documents_name_the_versions():
    pins = [line.split("==") for line in (WRITERS / "requirements.txt").read_text().splitlines() if "==" in line]
    document = (WRITERS.parents[2] / "docs" / "FORMATS.md").read_text(encoding="utf-8")
    assert [name for name, version in pins if f"{name} {version}" not in document] == []

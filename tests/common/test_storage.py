"""Storage at /data is used if it is mounted and writable, unless another home was chosen or already exists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.page_requests import requests_of

from rlhf_lab.cli import doctor
from rlhf_lab.common import paths, storage
from rlhf_lab.common.paths import default_home
from rlhf_lab.store.database import Database
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.header import api as header
from rlhf_lab.ui.project import api as project


@pytest.fixture
def mounted(monkeypatch, tmp_path):
    """A folder that is treated as mounted storage, and a user's data folder without a lab."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr(storage, "STORAGE", data)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == data)
    monkeypatch.setattr(paths, "user_data_path", lambda _: tmp_path / "user")
    for name in ("RLHF_LAB_HOME", "HF_HOME", "SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    return data


def test_the_home_is_on_mounted_storage(mounted, monkeypatch, tmp_path):
    assert default_home() == mounted / "rlhf-lab"
    assert str(mounted) in storage.storage_note(default_home())
    assert storage.storage_note(tmp_path / "elsewhere") == ""
    monkeypatch.setenv("RLHF_LAB_HOME", str(tmp_path / "own"))
    assert default_home() == tmp_path / "own"


def test_a_lab_that_is_there_stays_the_default(mounted, tmp_path):
    with Database.open(tmp_path / "user"):
        pass
    assert default_home() == tmp_path / "user"


def test_a_folder_that_is_not_mounted_or_not_writable_is_not_used(mounted, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert default_home() == tmp_path / "user"
    monkeypatch.undo()
    assert storage.mounted_storage() is None or os.path.ismount("/data")


def test_a_space_keeps_models_there_too(mounted, monkeypatch):
    storage.keep_models_on_storage()
    assert "HF_HOME" not in os.environ
    monkeypatch.setenv("SPACE_ID", "me/lab")
    storage.keep_models_on_storage()
    assert os.environ["HF_HOME"] == str(mounted / "huggingface")
    monkeypatch.setenv("HF_HOME", "/chosen")
    storage.keep_models_on_storage()
    assert os.environ["HF_HOME"] == "/chosen"


def test_the_hub_client_reads_it(tmp_path):
    """The variable is set before any module of the lab imports huggingface_hub."""
    script = (
        "import os; os.path.ismount = lambda path: str(path) == '/data'; os.access = lambda *a, **k: True\n"
        "import rlhf_lab.ui.page; from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env=environment | {"SPACE_ID": "me/lab"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "/data/huggingface/hub"


def test_a_space_with_storage_does_not_warn_that_its_disk_is_wiped(mounted):
    with Database.open(mounted / "rlhf-lab") as db:
        context = Context(mounted / "rlhf-lab", db, "secret", on_space=True)
        assert header.state(context)["warning"] == ""


def home_note(home: Path, db: Database) -> str:
    return requests_of(Context(home, db), project.api).home_summary({})["note"]


def test_doctor_page_and_log_name_the_journal(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RLHF_LAB_JOURNAL", "truncate")
    with Database.open(tmp_path) as db:
        assert "rollback journal instead" in doctor.check_store(db, tmp_path)
        assert "RLHF_LAB_JOURNAL=truncate is set" in home_note(tmp_path, db)
        assert "rollback journal" in caplog.text
    monkeypatch.delenv("RLHF_LAB_JOURNAL")
    with Database.open(tmp_path) as db:
        assert "journal" not in doctor.check_store(db, tmp_path)
        assert home_note(tmp_path, db) == ""

"""Only the owner may read the files of a lab."""

import os
import stat
from pathlib import Path

import pytest

from rlhf_lab.common.private_files import make_private_folder, restrict_folder
from rlhf_lab.store.database import Database

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permission bits")


@pytest.fixture(autouse=True)
def open_umask():
    """As on most computers: new files are readable by everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes_of_files(home: Path) -> dict[str, int]:
    return {path.name: mode(path) for path in home.iterdir()}


def test_a_new_home_and_its_database_are_its_owners_alone(tmp_path):
    home = tmp_path / "deep" / "home"
    with Database.open(home) as db, db.write():
        assert mode(home) == 0o700
        assert modes_of_files(home) == dict.fromkeys(
            ("lab.db", "lab.db-wal", "lab.db-shm", "lab.db.lock", "lab.db.users"), 0o600
        )


def test_an_older_home_is_closed_to_other_users_when_it_is_opened(tmp_path):
    home = tmp_path / "home"
    with Database.open(home):
        pass
    home.chmod(0o755)
    for file in home.iterdir():
        file.chmod(0o644)
    with Database.open(home):
        assert mode(home) == 0o700
        assert set(modes_of_files(home).values()) == {0o600}


def test_an_empty_folder_becomes_a_private_home(tmp_path):
    (tmp_path / "home").mkdir(mode=0o755)
    with Database.open(tmp_path / "home"):
        assert mode(tmp_path / "home") == 0o700


def test_a_folder_with_other_things_in_it_becomes_a_private_home(tmp_path):
    """At the first start, as at every later one. The other things keep their mode."""
    (tmp_path / "h").mkdir(mode=0o755)
    (tmp_path / "h" / "notes.txt").write_text("x")
    with Database.open(tmp_path / "h"):
        assert (mode(tmp_path / "h"), mode(tmp_path / "h" / "lab.db")) == (0o700, 0o600)
    assert mode(tmp_path / "h" / "notes.txt") == 0o644


def test_the_engines_files_are_private(tmp_path):
    """The engine opens the database after it has created its log, its output and its lock."""
    names = ("engine.lock", "engine.log", "engine.log.1", "engine.out")
    for name in names:
        (tmp_path / name).touch()
    with Database.open(tmp_path):
        assert {name: mode(tmp_path / name) for name in names} == dict.fromkeys(names, 0o600)


def test_a_home_with_its_database_elsewhere_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_LAB_STORE", f"sqlite:///{tmp_path}/data/other.db")
    with Database.open(tmp_path / "home"):
        assert (mode(tmp_path / "home"), mode(tmp_path / "data" / "other.db")) == (0o700, 0o600)


def test_folders_that_all_share_are_left_alone(tmp_path, monkeypatch):
    for name, bits in (("tmp", 0o1777), ("me", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(bits)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("tmp", "me"):
        restrict_folder(tmp_path / name)
    assert (stat.S_IMODE((tmp_path / "tmp").stat().st_mode), mode(tmp_path / "me")) == (0o1777, 0o755)


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "home").write_text("x")
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "home")

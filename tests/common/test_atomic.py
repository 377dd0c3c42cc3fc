"""Files and folders are written completely or not at all."""

import os
import stat

import pytest

from rlhf_lab.common.atomic import atomic_folder, recover_interrupted_writes, write_file_atomically


class Killed(BaseException):
    """Stands for the end of the process at this point."""


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write_half(folder, error):
    (folder / "b.txt").write_text("half")
    raise error


def test_a_file_replaces_the_old_one(tmp_path):
    write_file_atomically(tmp_path / "a.txt", "old")
    write_file_atomically(tmp_path / "a.txt", "é".encode())
    assert contents(tmp_path) == {"a.txt": "é"}


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_a_file_has_the_mode_it_is_given(tmp_path):
    write_file_atomically(tmp_path / "secret", "x", mode=0o600)
    write_file_atomically(tmp_path / "plain", "x")
    (tmp_path / "reference").write_text("x")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["secret"] == 0o600
    assert modes["plain"] == modes["reference"]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    write_file_atomically(tmp_path / "a.txt", "old")

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(step, fail)
    with pytest.raises(OSError, match="No space"):
        write_file_atomically(tmp_path / "a.txt", "new")
    assert contents(tmp_path) == {"a.txt": "old"}


def test_a_folder_replaces_the_old_one_and_an_error_leaves_it(tmp_path):
    target = tmp_path / "runs" / "one"
    for text in ("old", "new"):
        with atomic_folder(target) as folder:
            (folder / "a.txt").write_text(text)
            assert not target.exists() or contents(target) == {"a.txt": "old"}
    with pytest.raises(ValueError, match="wrong"), atomic_folder(target) as folder:
        write_half(folder, ValueError("wrong"))
    assert contents(tmp_path) == {"runs/one/a.txt": "new"}
    assert [path.name for path in target.parent.iterdir()] == ["one"]


def test_what_an_interrupted_process_leaves_is_cleared_away_by_the_next_write(tmp_path):
    with pytest.raises(Killed), atomic_folder(tmp_path / "one") as folder:
        write_half(folder, Killed())
    assert folder.exists()
    with atomic_folder(tmp_path / "two"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_a_replaced_folder_is_restored_if_its_replacement_never_came(tmp_path, monkeypatch):
    with atomic_folder(tmp_path / "one") as folder:
        (folder / "a.txt").write_text("old")
    rename, calls = type(tmp_path).rename, []

    def killed_between(path, target):
        calls.append(path.name)
        if len(calls) == 2:
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", killed_between)
        with pytest.raises(Killed), atomic_folder(tmp_path / "one"):
            pass
    assert not (tmp_path / "one").exists()
    recover_interrupted_writes(tmp_path)
    assert contents(tmp_path) == {"one/a.txt": "old"}

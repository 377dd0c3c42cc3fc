"""Files that a person names are regular files: reading a pipe or a device may have no end."""

import os
import re
import socket
from pathlib import Path

import pytest

from rlhf_lab.backup.archive import read_manifest
from rlhf_lab.common.paths import regular_file
from rlhf_lab.errors import ConfigError, DataError
from rlhf_lab.importers.readers import read_lines, read_rows
from rlhf_lab.jobs.prompt_files import read_prompt_file
from rlhf_lab.jobs.startup_project import _parse_prompt_set
from rlhf_lab.judges.custom import load_function
from rlhf_lab.ui.auth.password_file import read_password_file

READERS = (
    read_manifest,
    read_rows,
    read_lines,
    read_prompt_file,
    read_password_file,
    lambda path: _parse_prompt_set(str(path)),
    lambda path: load_function(str(path), "score", "judge"),
)


@pytest.fixture(params=["pipe", "link to a pipe", "link to a device", "device", "socket"])
def endless(request, tmp_path, monkeypatch):
    """A path that is no regular file, and what it is."""
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 100 characters
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link to a pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "link to a device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    path = tmp_path / request.param if request.param != "device" else Path("/dev/zero")
    return path, request.param.removeprefix("link to a ")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such files")
@pytest.mark.parametrize("read", READERS)
def test_what_is_no_file_is_refused_before_it_is_opened(endless, read):
    path, kind = endless
    with pytest.raises((ConfigError, DataError), match=re.escape(f"it is a {kind}, not a file")):
        read(path)


def test_files_missing_ones_and_folders_are_left_to_the_reader(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path, tmp_path / "file", tmp_path / "link", tmp_path / "missing"):
        assert regular_file(path) == path

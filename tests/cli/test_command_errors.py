"""What ends a command besides errors of the lab: the operating system, and the programs at both ends of a pipe."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from rlhf_lab.cli import serve
from rlhf_lab.cli.main import main
from rlhf_lab.store.database import Database


@pytest.mark.parametrize("port", ["99999", "-1", "http", "²"])
def test_a_port_that_does_not_exist_is_refused(capsys, port):
    for command in (lambda: main(["doctor", "--port", port]), lambda: serve.main(["--port", port])):
        with pytest.raises(SystemExit):
            command()
        assert f"{port} is not a number from 0 to 65535" in capsys.readouterr().err


def test_an_error_of_the_operating_system_is_one_line(capsys, tmp_path):
    assert main(["runs", "--home", str(tmp_path / ("x" * 300))]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def run_command(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "rlhf_lab", *words], stderr=subprocess.PIPE, text=True, check=False, **options
    )


def test_ctrl_d_instead_of_a_password(monkeypatch, capsys):
    def end(_):
        raise EOFError

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", end)
    assert main(["password"]) == 1
    assert capsys.readouterr().err == "error: the input ended before it was complete.\n"


def test_the_reader_of_the_output_has_ended(tmp_path):
    Database.open(tmp_path).close()
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = run_command("runs", "--home", str(tmp_path), stdout=reader.stdin)
    assert (done.returncode, done.stderr) == (1, "")

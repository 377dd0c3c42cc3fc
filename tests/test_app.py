"""`python app.py` serves a page that opens on a shipped pair."""

import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from app import check_host
from rlhf_lab.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_served(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "app.py", "--port", str(port), "--home", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            page = fetch(f"http://127.0.0.1:{port}/", server)
        finally:
            server.terminate()
    assert "RLHF Lab" in page
    assert (tmp_path / "lab.db").is_file()


def fetch(url: str, server: subprocess.Popen) -> str:
    for _ in range(600):
        assert server.poll() is None, "app.py ended"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the page was not served within a minute")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_permission(host):
    check_host(host, public=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "example.org"])
def test_other_addresses_do(host):
    with pytest.raises(ConfigError, match=re.escape("--public-labelling")):
        check_host(host, public=False)
    check_host(host, public=True)

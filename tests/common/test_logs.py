"""Log lines cannot be forged, and the log cannot be flooded."""

import io
import logging
import subprocess
import sys

import pytest

from rlhf_lab.common import logs

HOSTILE = "Ann\n2026-01-01 ERROR disk full\r\x1b[2J\x00\u2028\u202e\ud800"
ESCAPED = r"Ann\n2026-01-01 ERROR disk full\r\x1b[2J\x00\u2028\u202e\ud800"


@pytest.fixture
def log():
    """A logger, and what it has written."""
    output, logger = io.StringIO(), logging.Logger("test")
    handler = logging.StreamHandler(output)
    handler.setFormatter(logs.OneLineFormatter("%(levelname)s %(message)s"))
    handler.addFilter(logs.RepeatFilter())
    logger.addHandler(handler)
    return logger, output


def test_a_message_is_one_line_without_control_characters(log):
    logger, output = log
    logger.warning("%s joined\n", HOSTILE)
    assert output.getvalue() == f"WARNING {ESCAPED} joined\n"


def test_a_message_is_one_line_when_no_file_can_be_opened():
    """As with very many connections: the page says so in its log."""
    pytest.importorskip("resource")
    program = (
        "import logging, os, resource; from rlhf_lab.common import logs; logs.log_to_stderr();"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0));"
        r"logging.getLogger('rlhf_lab').warning('too many open files\nsocket 47')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.rstrip("\n").endswith(r"too many open files\nsocket 47")
    assert done.stderr.count("\n") == 1


def test_text_of_any_language_stays_as_it_is(log):
    logger, output = log
    logger.warning("Zoë, Łukasz, 李 and %s", "👩 wrote “hello”")
    assert output.getvalue() == "WARNING Zoë, Łukasz, 李 and 👩 wrote “hello”\n"


def test_the_lines_of_a_traceback_are_indented(log):
    logger, output = log
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("failed")
    first, *others = output.getvalue().rstrip("\n").split("\n")
    assert first == "ERROR failed"
    assert len(others) > 2
    assert all(line.startswith("    ") and line.isprintable() for line in others)
    assert not any(line.startswith("2026") for line in output.getvalue().split("\n"))


def test_a_message_that_repeats_is_logged_once_a_minute(log, monkeypatch):
    logger, output = log
    for second in range(125):
        monkeypatch.setattr(logs.time, "monotonic", lambda second=second: 1000.0 + second)
        logger.warning("the disk is %s", "full")
        if second == 30:
            logger.warning("another")
    assert (
        output.getvalue()
        == "WARNING the disk is full\nWARNING another\nWARNING the disk is full\nWARNING the disk is full\n"
    )


def test_remembered_messages_are_bounded(log):
    logger, output = log
    for number in range(3 * logs.MAX_REMEMBERED_MESSAGES):
        logger.warning("message %d", number)
    (logged_at,) = (item._logged_at for item in logger.handlers[0].filters)
    assert len(logged_at) == logs.MAX_REMEMBERED_MESSAGES
    assert output.getvalue().count("\n") == 3 * logs.MAX_REMEMBERED_MESSAGES


def test_long_messages_are_cut_in_the_log_and_in_memory(log):
    logger, output = log
    try:
        raise ValueError("y" * 1_000_000)
    except ValueError:
        logger.exception("failed: %s, see the manual", "\x1b" * 1_000_000)
    lines = output.getvalue().splitlines()
    assert max(map(len, lines)) < 10_000
    assert lines[0].endswith("see the manual")
    ((_, remembered),) = logger.handlers[0].filters[0]._logged_at
    assert len(remembered) == logs.MAX_LINE_CHARS

"""Errors of the Hub client as readable lines."""

from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.utils import _http

from rlhf_lab.common.hub_errors import HubBusyError, first_line, limit_waits

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("start", [0, 285, 299, 300])
def test_no_part_of_the_token_is_in_the_line(start):
    line = first_line(ValueError("x" * start + TOKEN + " refused\nmore"), TOKEN)
    assert "hf_" not in line
    assert line == ("x" * start + "… refused")[:300]


def test_an_error_without_a_message_is_named_by_its_class():
    assert first_line(ValueError(" "), None) == "ValueError"


def test_a_client_that_is_made_anew_still_refuses_long_waits(monkeypatch):
    """The client makes its session anew after a connection error, also within one call."""
    monkeypatch.setattr(_http, "_GLOBAL_CLIENT_FACTORY", _http._GLOBAL_CLIENT_FACTORY)
    monkeypatch.setattr(_http, "_GLOBAL_CLIENT", None)
    for timeout in (7.0, 7.0, None, 9.0):
        limit_waits(timeout)
        for _ in range(2):
            session = huggingface_hub.get_session()
            hooks = session.event_hooks["response"]
            assert len(hooks) == 1
            with pytest.raises(HubBusyError, match="3,600 seconds"):
                hooks[0](SimpleNamespace(status_code=429, headers={"Retry-After": "3600"}))
            assert session.timeout.read == timeout
            huggingface_hub.close_session()

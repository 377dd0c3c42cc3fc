"""People who are present: those with a request in the last seconds, each once."""

import time

from rlhf_lab.ui.shared import presence
from rlhf_lab.ui.shared.presence import PRESENCE_TIMEOUT_S, Presence


def test_people_are_here_until_they_are_silent_for_a_while(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    here = Presence()
    here.touch("bob")
    here.touch("ann")
    here.touch("bob")
    assert here.names() == ["ann", "bob"]
    now[0] += PRESENCE_TIMEOUT_S - 1
    here.touch("ann")
    assert here.names() == ["ann", "bob"]
    now[0] += 1
    assert (here.names(), here.count()) == (["ann"], 1)


def test_only_so_many_names_are_kept(monkeypatch):
    monkeypatch.setattr(presence, "MAX_NAMES", 2)
    here = Presence()
    for name in ("ann", "bob", "cid", "ann"):
        here.touch(name)
    assert here.names() == ["ann", "bob"]

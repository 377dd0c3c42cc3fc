"""Who is here: those heard of in the last seconds, each once."""

import time

from rlhf_lab.ui.presence import HERE_S, Presence


def test_people_are_here_until_they_are_silent_for_a_while(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    here = Presence()
    here.touch("bob")
    here.touch("ann")
    here.touch("bob")
    assert here.names() == ["ann", "bob"]
    now[0] += HERE_S - 1
    here.touch("ann")
    now[0] += 2
    assert (here.names(), here.count()) == (["ann"], 1)

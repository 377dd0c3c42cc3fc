"""Values that are reused for some seconds."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlhf_lab.common import timed_cache
from rlhf_lab.common.timed_cache import MAX_ENTRIES, TimedCache


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(timed_cache.time, "monotonic", lambda: now[0])
    return now


def test_a_value_is_computed_again_when_it_is_old(clock):
    cache, numbers = TimedCache(), iter(range(9))
    assert [cache.get("a", 2.0, lambda: next(numbers)) for _ in range(3)] == [0, 0, 0]
    assert cache.get("b", 2.0, lambda: next(numbers)) == 1
    clock[0] += 2.0
    assert cache.get("a", 2.0, lambda: next(numbers)) == 0
    clock[0] += 0.1
    assert cache.get("a", 2.0, lambda: next(numbers)) == 2


def test_an_exception_is_not_stored(clock):
    cache = TimedCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("a", 9.0, lambda: 1 // 0)
    assert cache.get("a", 9.0, lambda: 5) == 5


def test_threads_that_ask_at_once_compute_once_and_other_keys_do_not_wait():
    cache, release, computed = TimedCache(), threading.Event(), []

    def slow():
        computed.append(1)
        assert release.wait(60)
        return 7

    with ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(cache.get, "slow", 60.0, slow) for _ in range(3)]
        assert cache.get("other", 60.0, lambda: 1) == 1
        release.set()
        assert [reply.result(60) for reply in replies] == [7, 7, 7]
    assert computed == [1]


def test_only_the_newest_values_are_stored(clock):
    cache = TimedCache()
    for key in range(MAX_ENTRIES + 1):
        cache.get(key, 9.0, lambda: "old")
    assert cache.get(1, 9.0, lambda: "new") == "old"
    assert cache.get(0, 9.0, lambda: "new") == "new"


def test_failures_leave_nothing_and_what_never_expires_stays():
    cache = TimedCache()
    shared = cache.get("feed", math.inf, object)

    def fails():
        raise ValueError("broken")

    for key in range(3 * MAX_ENTRIES):
        with pytest.raises(ValueError, match="broken"):
            cache.get(("failed", key), 60.0, fails)
    kept = cache.get("other", 60.0, object)
    assert cache.get("other", 60.0, object) is kept
    for key in range(3 * MAX_ENTRIES):
        cache.get(("worked", key), 60.0, object)
    assert cache.get("feed", math.inf, object) is shared
    assert cache.get("other", 60.0, object) is not kept

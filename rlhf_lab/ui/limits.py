"""How often a visitor who is not the operator may do something: one table, which `RequestChecks` applies to every request.

A visitor is counted by the name in their cookie. Whoever has none, or deletes it, is counted by address alone. Thirty phones of a
class share the address of their router, and on a Space all visitors may share that of a proxy, so an address may do what about
thirty visitors may.
"""

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

MINUTE = 60.0
API_FOLDER = "/lab-api"  # of the page's requests
MAX_COUNTERS = 50_000


class Limit(NamedTuple):
    """How often one visitor, and all visitors of one address together, may do each of the acts in `seconds`."""

    visitor: int
    address: int
    seconds: float


#: Reading: an open page asks up to five times in a second.
READ = Limit(600, 20_000, MINUTE)
#: Answers of people and programs.
ANSWER = Limit(120, 4_000, MINUTE)
#: What the engine has to work for. Unfinished ones are limited by `generation_requests.MAX_JOBS_OF_VISITOR`, too.
ENGINE = Limit(30, 400, MINUTE)
#: Secrets and codes; wrong ones are limited further (`auth.failed_attempts`).
ENTER = Limit(60, 600, MINUTE)

#: Pairs that pages and programs of one address hold at a time: thirty phones of a class have two each.
MAX_LEASES_OF_ADDRESS = 80

#: Events by the name of their handler, other requests by method and path (`act_of_path`).
LIMITS: Mapping[str, Limit] = {
    "status": READ,
    **dict.fromkeys(("next_pair", "submit_vote", "POST /first", "POST /closed"), ANSWER),
    **dict.fromkeys(
        (
            "wrong_secret",
            "POST /join",
            "POST /enter",
            "POST /leave",
            "GET /join",
            "GET /enter",
            "GET /leave",
            "GET /login",
        ),
        ENTER,
    ),
    #: 50 ms of a core each.
    **dict.fromkeys(("GET /", "GET /config"), Limit(60, 600, MINUTE)),
    **dict.fromkeys(("GET /assets", "GET /lab-assets"), Limit(3_000, 100_000, MINUTE)),
    #: Gradio's other routes, and what only the operator may do.
    "other": READ,
}


def act_of_path(method: str, path: str) -> str:
    """The act of a request that is not an event: "GET /join", "chat/ask" for a request of the page, or "other"
    for paths without a row. The functions for programs have one row, however they are called."""
    if path.startswith("/api/") and (name := path.removeprefix("/api/")) in LIMITS:
        return name
    if method == "POST" and path.startswith(f"{API_FOLDER}/"):
        return path.removeprefix(f"{API_FOLDER}/")
    act = f"{'GET' if method == 'HEAD' else method} /{path[1:].split('/', maxsplit=1)[0]}"
    return act if act in LIMITS else "other"


class LeaseLimiter:
    """How many pairs the pages and programs of each address hold. Otherwise pages without a cookie, each of which is another
    visitor, could hold all pairs. The numbers bound what the table of leases has: whatever leases a pair to a person asks first,
    and ends their other leases (`pair_leases`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, int, float]] = {}  # name -> (address, pairs, until)

    def may_hold(self, name: str, address: str, pairs: int, seconds: float) -> bool:
        """Whether somebody may hold so many pairs for `seconds`; then these are counted. Visitors who already hold that many
        may."""
        now = time.monotonic()
        with self._lock:
            self._held = {who: held for who, held in self._held.items() if held[2] > now}
            others = sum(held[1] for who, held in self._held.items() if held[0] == address and who != name)
            own_address, own_pairs, _ = self._held.get(name, ("", 0, 0.0))
            if others + pairs > MAX_LEASES_OF_ADDRESS and (own_address != address or own_pairs < pairs):
                return False
            self._held[name] = address, pairs, now + seconds
            return True

    def give_back(self, name: str) -> None:
        with self._lock:
            self._held.pop(name, None)


class RequestLimiter:
    """Counts the acts of visitors and addresses in fixed periods."""

    def __init__(self, limits: Mapping[str, Limit] = LIMITS) -> None:
        self._limits, self._lock = limits, threading.Lock()
        self._counts: dict[
            tuple[str, str, str], tuple[float, int]
        ] = {}  # (act, kind, who) -> (begin of the period, count)

    def wait_s(self, act: str, visitor: str, address: str) -> float:
        """Count an act and return 0.0; after too many return the seconds until it is allowed. It does not count then, so that one
        visitor cannot use up what their address may do. Acts without a row share that of "other", because some are named by paths
        that anybody may invent. visitor: "" for one without a name."""
        act = act if act in self._limits else "other"
        limit, now = self._limits[act], time.monotonic()
        wait, counts = 0.0, dict[tuple[str, str, str], tuple[float, int]]()
        with self._lock:
            if len(self._counts) >= MAX_COUNTERS:
                self._forget_old(now)
            for kind, who, most in (("address", address, limit.address), ("visitor", visitor, limit.visitor)):
                begin, count = self._counts.get((act, kind, who), (now, 0))
                if now - begin >= limit.seconds:
                    begin, count = now, 0
                if who and count >= most:
                    wait = max(wait, begin + limit.seconds - now)
                elif who:
                    counts[act, kind, who] = begin, count + 1
            if not wait:
                self._counts |= counts
        return wait

    def _forget_old(self, now: float) -> None:
        """Drop the periods that are over; if there are none, the oldest half."""
        running = {key: value for key, value in self._counts.items() if now - value[0] < self._limits[key[0]].seconds}
        oldest_first = sorted(running.items(), key=lambda item: item[1][0])
        self._counts = dict(oldest_first[-(MAX_COUNTERS // 2) :])

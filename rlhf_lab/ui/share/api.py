"""Recorded runs, for the page to play again: one of this lab, or the one that every lab has."""

import threading

from rlhf_lab.ui.context import Context
from rlhf_lab.ui.limits import MINUTE, Limit
from rlhf_lab.ui.share.recording import Replay, record_replay, shipped_replay
from rlhf_lab.ui.shared.api import Api, Payload

api = Api("share")
CACHED_S = 60.0
#: A long run takes seconds of a core to record, so few are asked for, and one is recorded at a time.
RECORDINGS = Limit(20, 300, MINUTE)
_one_at_a_time = threading.Lock()


class ReplayQuery(Payload):
    """run: the id of a run of the open project; None for the shipped recording."""

    run: int | None = None


@api.read(ReplayQuery, limit=RECORDINGS)
def replay(ctx: Context, query: ReplayQuery) -> Replay:
    """Raises StoreError for a run of another project."""
    if query.run is None:
        return shipped_replay()
    run_id = ctx.run(query.run).id
    with _one_at_a_time:
        return ctx.cache.get(f"share/replay/{run_id}", CACHED_S, lambda: record_replay(ctx, run_id))

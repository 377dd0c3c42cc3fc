"""Recorded runs, for the page to play again: one of this lab, or the one that every lab has."""

from rlhf_lab.ui.context import Context
from rlhf_lab.ui.share.recording import Replay, record_replay, shipped_replay
from rlhf_lab.ui.shared.api import Api, Payload

api = Api("share")
CACHED_S = 60.0


class ReplayQuery(Payload):
    """run: the id of a run, of any project; None for the shipped recording."""

    run: int | None = None


@api.read(ReplayQuery, cached_s=CACHED_S)
def replay(ctx: Context, query: ReplayQuery) -> Replay:
    return shipped_replay() if query.run is None else record_replay(ctx, query.run)

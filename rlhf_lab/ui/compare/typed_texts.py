"""Who may have texts of their own scored, and when.

Texts of policies, and the best of n texts, score high by every reward model of the project. So the scores of both texts of a
blind pair mostly reveal which model wrote which.
"""

from collections.abc import Iterable

from rlhf_lab.common.enums import JobStatus
from rlhf_lab.common.records import Tournament
from rlhf_lab.errors import NotAllowedError
from rlhf_lab.jobs import queue
from rlhf_lab.quality.tournament import contestants_of, unseen_pairs
from rlhf_lab.store.blind_tests import has_open_test
from rlhf_lab.store.chat_pairs import CHAT_REASON
from rlhf_lab.store.edited_answers import EDIT_REASON
from rlhf_lab.store.live_runs import pairs_of_active_runs
from rlhf_lab.store.projects import get_pair
from rlhf_lab.store.tournaments import tournament_answers, tournaments
from rlhf_lab.store.votes import votes_on_pairs_of
from rlhf_lab.ui.compare.tournament.api import ranked_answers
from rlhf_lab.ui.context import Context

#: Of pairs of which somebody wrote a part.
TYPED_REASONS = (EDIT_REASON, CHAT_REASON)
OPEN_TEST = "a blind test is open. Wait until the operator has ended it"
OPEN_TOURNAMENT = "a tournament is open. Wait until all its texts have been judged, or the operator has deleted it"
LIVE_PAIRS = "texts of a run are judged under Label. Wait until the run has ended"


def why_not_scored(ctx: Context) -> str:
    """Why nobody but the operator can have texts of their own scored now; "" if everybody can."""
    project_id = ctx.project.id
    if has_open_test(ctx.db, project_id):
        reason = OPEN_TEST
    elif any(_can_be_judged(ctx, tournament) for tournament in tournaments(ctx.db, project_id)):
        reason = OPEN_TOURNAMENT
    else:
        with ctx.db.read() as conn:
            reason = LIVE_PAIRS if pairs_of_active_runs(conn, project_id) else ""
    return reason and f"Scores would tell which model wrote a text, and {reason}."


def check_may_score(ctx: Context) -> None:
    """Raises NotAllowedError if this visitor cannot have texts of their own scored now."""
    if not ctx.is_operator() and (reason := why_not_scored(ctx)):
        raise NotAllowedError(reason)


def hides_scores(ctx: Context, pair_id: int) -> bool:
    """Whether this visitor may not see the scores of a pair now, because somebody wrote a part of it: an edited text, or the
    conversation of a chat."""
    if ctx.is_operator() or get_pair(ctx.db, pair_id).reason not in TYPED_REASONS:
        return False
    return bool(why_not_scored(ctx))


def votes_with_scores(ctx: Context, vote_ids: Iterable[int]) -> list[int]:
    """Those of these votes of which reports may tell this visitor how likely a reward model finds them, as `hides_scores`."""
    ids = list(vote_ids)
    hidden = set() if ctx.is_operator() or not why_not_scored(ctx) else votes_on_pairs_of(ctx.db, ids, TYPED_REASONS)
    return [vote_id for vote_id in ids if vote_id not in hidden]


def _can_be_judged(ctx: Context, tournament: Tournament) -> bool:
    """Whether its texts are still to be written, or some of them are in no answer of the ranking."""
    job = queue.get_job(ctx.db, tournament.job_id)
    if job.status in (JobStatus.FAILED, JobStatus.CANCELLED):
        return False
    if job.status is not JobStatus.DONE or not job.result:
        return True
    contestants, answers = contestants_of(job.result), tournament_answers(ctx.db, tournament.id)
    return bool(unseen_pairs(contestants, ranked_answers(contestants, answers, is_shared=True)))

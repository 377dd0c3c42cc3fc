"""A simulated judge labels pairs. Its votes are marked simulated and carry the judge's name as annotator."""

import random
import uuid
from collections import Counter
from contextlib import suppress

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Pair, Vote
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.judges.builtin import Judge, prefer
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair


def annotator_name_of(judge: Judge) -> str:
    return f"judge:{judge.name}"


def judge_name_of(annotator: str) -> str:
    """The inverse of `annotator_name_of`."""
    return annotator.removeprefix("judge:")


def label_with_judge(
    db: Database, project_id: int, judge: Judge, count: int, *, noise: float = 0.0, seed: int = 0
) -> dict[Choice, int]:
    """Let a judge vote on up to `count` pairs on which it has no vote yet; returns how often it made each choice.

    Each vote is a `judge_vote`.
    """
    counts = Counter[Choice]()
    while counts.total() < count:
        pair = next_unvoted_pair(db, project_id, annotator_name_of(judge), Source.SIMULATED)
        if pair is None:
            break
        vote = judge_vote(judge, pair, noise=noise, seed=seed)
        with suppress(StaleVoteError):  # another request to the judge has labelled it, or the pair was withdrawn
            cast_vote(db, vote)
            counts[vote.choice] += 1
    return dict(counts)


def judge_vote(judge: Judge, pair: Pair, *, noise: float = 0.0, seed: int = 0) -> Vote:
    """The vote of a judge: a function of the pair, the judge, the noise and the seed, apart from its uuid."""
    rng = random.Random(derive_seed(seed, "judge", judge.name, pair.id))
    return Vote(
        uuid=str(uuid.uuid4()),
        pair_id=pair.id,
        annotator=annotator_name_of(judge),
        source=Source.SIMULATED,
        choice=prefer(judge, pair.prompt.text, pair.first.text, pair.second.text, noise=noise, rng=rng),
        first_on_left=rng.random() < 0.5,
    )

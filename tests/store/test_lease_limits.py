"""Limits of the pair queue, each tested on both sides.

Duration of a lease, pairs left for others, and the interval before a hidden repeat.
"""

import pytest

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import ConfigError, StaleVoteError
from rlhf_lab.store import pair_leases

MINUTE = LabellingConfig(hold_s=60)
DAY_S = 86_400.0


def lease_id(db, project, annotator, now, rules=MINUTE):
    result = pair_leases.lease_pair(db, project.id, annotator, rules, now=now)
    return result and result.pair.id


def vote(db, pair_id, annotator, now, uuid=""):
    one = Vote(uuid or f"{annotator}-{pair_id}", pair_id, annotator, Source.HUMAN, Choice.FIRST, True)
    return pair_leases.vote_on_lease(db, one, MINUTE, now=now)


@pytest.mark.parametrize(("seconds", "remaining"), [(59.999, True), (60.0, False)])
def test_a_lease_lasts_until_its_last_second(db, project, make_pairs, seconds, remaining):
    one, two = (pair.id for pair in make_pairs(2))
    assert lease_id(db, project, "ann", 0.0) == one
    assert pair_leases.count_active_annotators(db, project.id, seconds) == remaining
    assert lease_id(db, project, "bob", seconds) == (two if remaining else one)


@pytest.mark.parametrize(("seconds", "counts"), [(59.999, True), (60.0, False)])
def test_a_vote_in_time_counts_although_others_have_judged_the_pair(db, project, make_pairs, seconds, counts):
    """bob gets it too, because there is no other pair."""
    (one,) = make_pairs(1)
    assert [lease_id(db, project, annotator, 0.0) for annotator in ("ann", "bob")] == [one.id, one.id]
    vote(db, one.id, "bob", 1.0)
    if counts:
        assert vote(db, one.id, "ann", seconds).id > 0
    else:
        with pytest.raises(StaleVoteError, match="others have judged it"):
            vote(db, one.id, "ann", seconds)


@pytest.mark.parametrize(("seconds", "is_stored"), [(60.0 + DAY_S, True), (60.5 + DAY_S, False)])
def test_an_expired_lease_is_deleted_after_a_day(db, project, make_pairs, seconds, is_stored):
    one, two = make_pairs(2)
    assert lease_id(db, project, "ann", 0.0) == one.id
    assert lease_id(db, project, "bob", 61.0) == one.id
    vote(db, one.id, "bob", 62.0)
    assert lease_id(db, project, "ann", seconds) == two.id  # and leases that expired more than a day ago are deleted
    with db.read() as conn:
        leased = sorted(conn.exec_driver_sql("SELECT pair_id FROM leases WHERE annotator = 'ann'").scalars())
    assert leased == ([one.id, two.id] if is_stored else [two.id])
    with pytest.raises(StaleVoteError, match="others have judged it" if is_stored else "not given to you"):
        vote(db, one.id, "ann", seconds)


def test_only_own_expired_leases_are_deleted(db, project, make_pairs):
    make_pairs(2)
    for annotator in ("ann", "bob"):
        lease_id(db, project, annotator, 0.0)
    lease_id(db, project, "bob", 10 * DAY_S)
    with db.read() as conn:
        rows = conn.exec_driver_sql("SELECT annotator, expires_at FROM leases ORDER BY annotator").all()
    assert [tuple(row) for row in rows] == [("ann", 60.0), ("bob", 60.0 + 10 * DAY_S)]


@pytest.mark.parametrize(("pairs", "prefetched"), [(5, 0), (6, 1)])
def test_a_pair_is_prefetched_only_if_four_stay_free(db, project, make_pairs, pairs, prefetched):
    make_pairs(pairs)
    assert len(pair_leases.lease_pairs(db, project.id, "ann", MINUTE, now=0.0)) == 1 + prefetched


@pytest.mark.parametrize(("pairs", "requests", "actual"), [(7, 2, 3), (6, 2, 2), (7, 0, 1)])
def test_no_more_pairs_are_leased_than_requested(db, project, make_pairs, pairs, requests, actual):
    make_pairs(pairs)
    assert len(pair_leases.lease_pairs(db, project.id, "ann", MINUTE, prefetch=requests, now=0.0)) == actual


@pytest.mark.parametrize(("votes", "is_possible"), [(8, False), (9, True)])
def test_a_hidden_repeat_comes_after_eight_other_votes_at_the_earliest(db, project, make_pairs, votes, is_possible):
    """A repeat comes at random, here with probability 1/2 per person: some of twelve people get one."""
    pairs = make_pairs(10)
    rules, repeated = LabellingConfig(overlap=20, repeats=0.5), []
    for annotator in (f"w{n}" for n in range(12)):
        for pair in pairs[:votes]:
            with db.write() as conn:
                conn.exec_driver_sql(
                    "INSERT INTO votes (uuid, pair_id, annotator, source, choice, first_on_left, created_at, repeat) "
                    f"VALUES ('{annotator}-{pair.id}', {pair.id}, '{annotator}', 'human', 'first', TRUE, 0, FALSE)"
                )
        result = pair_leases.lease_pair(db, project.id, annotator, rules, now=0.0)
        repeated += [result.pair.id] if result.repeat else []
    assert set(repeated) == ({pairs[0].id} if is_possible else set())


@pytest.mark.parametrize("seconds", [5, 3600])
def test_the_shortest_and_the_longest_lease(db, project, make_pairs, seconds):
    (one,) = make_pairs(1)
    result = pair_leases.lease_pair(db, project.id, "ann", LabellingConfig(hold_s=seconds), now=100.0)
    assert (result.pair.id, result.expires_at) == (one.id, 100.0 + seconds)


@pytest.mark.parametrize("seconds", [4, 3601])
def test_lease_durations_out_of_range_are_refused(seconds):
    with pytest.raises(ConfigError, match="hold_s"):
        LabellingConfig(hold_s=seconds)

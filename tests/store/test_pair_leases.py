"""The pair queue of people: expiring leases, overlap, hidden repeats, undo and redo, changed answers."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import Project, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.quality.queries import request_new_vote, restore_votes
from rlhf_lab.store import annotators, label_snapshots, pair_leases, projects, votes
from rlhf_lab.store.database import Database
from rlhf_lab.store.pair_selection import PAIRS_LEFT_FOR_OTHERS, REPEAT_AFTER_VOTES

RULES = LabellingConfig(hold_s=60)
CLICK = itertools.count()


def vote(pair_id: int, annotator: str = "ann", choice: Choice = Choice.FIRST, uuid: str = "") -> Vote:
    return Vote(uuid or f"{annotator}-{pair_id}-{choice}", pair_id, annotator, Source.HUMAN, choice, True)


def lease(
    db: Database, project: Project, annotator: str, rules: LabellingConfig = RULES, now: float = 0.0
) -> int | None:
    result = pair_leases.lease_pair(db, project.id, annotator, rules, now=now)
    return result and result.pair.id


def judge(
    db: Database, project: Project, annotator: str, choice: Choice = Choice.FIRST, rules: LabellingConfig = RULES
) -> Vote:
    pair = lease(db, project, annotator, rules)
    assert pair is not None
    return pair_leases.vote_on_lease(db, vote(pair, annotator, choice, f"{next(CLICK)}"), rules, now=0.0)


def test_a_pair_is_leased_to_one_person_until_the_lease_expires(db, project, make_pairs):
    one, two = (pair.id for pair in make_pairs(2))
    assert lease(db, project, "ann") == one
    assert lease(db, project, "ann", now=59.0) == one  # the same after a reload, and its time begins again
    assert lease(db, project, "bob", now=118.0) == two
    assert lease(db, project, "cid", now=119.0) == one  # ann's lease has expired
    assert pair_leases.vote_on_lease(db, vote(one, "cid"), RULES, now=119.5).annotator == "cid"
    with pytest.raises(StaleVoteError, match="others have judged it"):
        pair_leases.vote_on_lease(db, vote(one), RULES, now=120.0)
    assert votes.vote_counts(db, project.id)[Source.HUMAN][Choice.FIRST] == 1


def test_a_late_vote_counts_while_the_pair_needs_votes(db, project, make_pairs):
    (one,) = make_pairs(1)
    lease(db, project, "ann")
    assert pair_leases.vote_on_lease(db, vote(one.id), RULES, now=500.0).id > 0


def test_an_expired_lease_is_not_renewed_while_another_person_has_the_pair(db, project, make_pairs):
    one, two = (pair.id for pair in make_pairs(2))
    assert lease(db, project, "ann") == one
    assert lease(db, project, "bob", now=61.0) == one
    assert lease(db, project, "ann", now=62.0) == two


def test_votes_on_pairs_that_were_not_leased_are_refused(db, project, make_pairs):
    one, _two = make_pairs(2)
    with pytest.raises(StaleVoteError, match="not given to you"):
        pair_leases.vote_on_lease(db, vote(one.id))
    lease(db, project, "ann")
    with pytest.raises(StaleVoteError, match="not given to you"):
        pair_leases.vote_on_lease(db, vote(one.id, "bob"), RULES, now=1.0)
    first = pair_leases.vote_on_lease(db, vote(one.id), RULES, now=1.0)
    assert pair_leases.vote_on_lease(db, vote(one.id), RULES, now=2.0) == first  # the same click
    with pytest.raises(StaleVoteError, match="already voted"):
        pair_leases.vote_on_lease(db, vote(one.id, choice=Choice.SECOND), RULES, now=2.0)
    with pytest.raises(LabelError, match="uuid and the annotator"):
        pair_leases.vote_on_lease(db, vote(one.id, ""), RULES)
    assert sum(votes.vote_counts(db, project.id)[Source.HUMAN].values()) == 1


def test_overlap_is_the_number_of_people_who_get_a_pair(db, project, make_pairs):
    one, two, three = (pair.id for pair in make_pairs(3))
    rules = RULES.replace(overlap=2)
    recorded = [lease(db, project, annotator, rules) for annotator in "abcde"]
    assert recorded == [one, one, two, two, three]
    assert pair_leases.count_free_pairs(db, project.id, "f", rules, now=0.0) == 1
    assert pair_leases.count_free_pairs(db, project.id, "f", rules, now=60.0) == 3
    assert [lease(db, project, annotator, rules) for annotator in "fg"] == [
        three,
        one,
    ]  # more than wanted when nothing else is left


def test_the_fewest_free_pairs_of_several_people(db, project, make_pairs):
    """ann has voted on one pair and has the next on screen, which is free for her alone."""
    make_pairs(3)
    judge(db, project, "ann")
    lease(db, project, "ann")
    assert pair_leases.count_free_pairs(db, project.id, "ann", RULES, now=0.0) == 2
    assert pair_leases.count_free_pairs(db, project.id, "bob", RULES, now=0.0) == 1
    assert pair_leases.fewest_free_pairs(db, project.id, ["ann", "bob"], RULES, now=0.0) == 1


def test_skipped_pairs_come_after_those_that_nobody_skipped(db, project, make_pairs):
    one, two = (pair.id for pair in make_pairs(2))
    judge(db, project, "ann", Choice.SKIP)
    assert pair_leases.count_free_pairs(db, project.id, "bob", RULES, now=0.0) == 2
    assert judge(db, project, "bob").pair_id == two
    assert judge(db, project, "cid").pair_id == one


def test_no_pair_is_left_after_votes_on_all(db, project, make_pairs):
    make_pairs(2)
    judge(db, project, "ann")
    judge(db, project, "ann")
    assert lease(db, project, "ann") is None


def test_votes_of_judges_and_other_projects_do_not_count(db, project, make_pairs):
    one, two = (pair.id for pair in make_pairs(2))
    votes.cast_vote(db, Vote("j", one, "judge:x", Source.SIMULATED, Choice.FIRST, True))
    assert lease(db, project, "ann") == one
    assert pair_leases.count_free_pairs(db, project.id, "bob", RULES, now=0.0) == 1
    assert lease(db, project, "bob") == two


def test_undo_leases_the_pair_again(db, project, make_pairs):
    make_pairs(3)
    first, second = judge(db, project, "ann"), judge(db, project, "ann")
    following = lease(db, project, "ann")
    undone = pair_leases.undo_last_vote(db, project.id, "ann", RULES, now=1.0)
    assert undone is not None
    assert (undone.pair.id, undone.expires_at) == (second.pair_id, 61.0)
    assert lease(db, project, "ann", now=2.0) == second.pair_id
    pair_leases.vote_on_lease(db, vote(second.pair_id, choice=Choice.TIE), RULES, now=3.0)
    assert lease(db, project, "ann", now=4.0) == following
    assert pair_leases.undo_last_vote(db, project.id, "stranger", RULES) is None
    assert first.pair_id != second.pair_id


def leased_ids(
    db: Database, project: Project, annotator: str, rules: LabellingConfig = RULES, now: float = 0.0
) -> list[int]:
    return [one.pair.id for one in pair_leases.lease_pairs(db, project.id, annotator, rules, now=now)]


def test_the_prefetched_pair_is_leased_too(db, project, make_pairs):
    one, two, three, four, *_ = (pair.id for pair in make_pairs(4 + PAIRS_LEFT_FOR_OTHERS))
    assert [leased_ids(db, project, "ann", now=now) for now in (0.0, 1.0)] == [[one, two]] * 2  # and after a reload
    assert leased_ids(db, project, "bob", now=2.0) == [three, four]
    pair_leases.vote_on_lease(db, vote(one), RULES, now=3.0)
    assert leased_ids(db, project, "ann", now=3.0) == [two]
    with pytest.raises(StaleVoteError, match="not given to you"):
        pair_leases.vote_on_lease(db, vote(four, "dan"), RULES, now=4.0)
    assert leased_ids(db, project, "cid", now=62.5)[0] == three  # only ann's second lease is valid


def test_nothing_is_prefetched_from_a_small_pool(db, project, make_pairs):
    one, two = (pair.id for pair in make_pairs(2))
    assert leased_ids(db, project, "ann") == [one]
    assert leased_ids(db, project, "bob") == [two]
    pair_leases.vote_on_lease(db, vote(one), RULES, now=1.0)
    assert leased_ids(db, project, "ann", now=2.0) == [two]  # more than wanted when nothing else is left


def test_an_undone_pair_comes_before_the_one_on_screen(db, project, make_pairs):
    one, two, three, four, *_ = (pair.id for pair in make_pairs(4 + PAIRS_LEFT_FOR_OTHERS))
    for now, pair in ((11.0, one), (12.0, two)):
        assert leased_ids(db, project, "ann", now=now)[0] == pair
        pair_leases.vote_on_lease(db, vote(pair), RULES, now=now)
    assert leased_ids(db, project, "ann", now=13.0) == [three, four]
    pair_leases.undo_last_vote(db, project.id, "ann", RULES, now=4.0)  # the clock was set back in between
    assert leased_ids(db, project, "ann", now=5.0) == [two, three]
    pair_leases.undo_last_vote(db, project.id, "ann", RULES, now=6.0)
    assert leased_ids(db, project, "ann", now=7.0) == [one, two]
    pair_leases.redo_last_vote(db, project.id, "ann")
    assert leased_ids(db, project, "ann", now=8.0) == [two, three]


def test_prefetched_pairs_are_shown_next_including_hidden_repeats(db, project, make_pairs):
    make_pairs(40)
    rules, announced, repeats = LabellingConfig(repeats=0.5), None, 0
    for turn in range(34):
        now, after = pair_leases.lease_pairs(db, project.id, "ann", rules, now=float(turn))
        assert now.pair.id != after.pair.id
        assert announced in (None, (now.pair.id, now.repeat))
        pair_leases.vote_on_lease(db, vote(now.pair.id, uuid=f"{turn}"), rules, now=float(turn))
        announced, repeats = (after.pair.id, after.repeat), repeats + after.repeat
    assert repeats >= 8


def test_redo_brings_votes_back_in_order_until_another_is_cast(db, project, make_pairs):
    make_pairs(4)
    cast = [judge(db, project, "ann", choice) for choice in (Choice.FIRST, Choice.TIE, Choice.SECOND)]
    for _ in range(3):
        pair_leases.undo_last_vote(db, project.id, "ann", RULES)
    redone = [pair_leases.redo_last_vote(db, project.id, "ann") for _ in range(2)]
    assert [one and one.id for one in redone] == [cast[0].id, cast[1].id]
    counts = votes.vote_counts(db, project.id)[Source.HUMAN]
    assert (counts[Choice.FIRST], counts[Choice.TIE], counts[Choice.SECOND]) == (1, 1, 0)
    assert pair_leases.redo_last_vote(db, project.id, "bob") is None
    result = pair_leases.lease_pair(db, project.id, "ann", RULES)
    assert result is not None
    pair_leases.vote_on_lease(db, vote(result.pair.id, choice=Choice.BOTH_BAD, uuid="new"), RULES)
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None


def test_votes_undone_before_the_newest_vote_are_not_redone(db, project, make_pairs):
    make_pairs(3)
    cast = [judge(db, project, "ann") for _ in range(2)]
    for _ in range(2):
        pair_leases.undo_last_vote(db, project.id, "ann", RULES)
    assert judge(db, project, "ann", Choice.TIE).pair_id == cast[0].pair_id
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None


def test_a_vote_that_the_operator_took_out_is_not_redone(db, project, make_pairs):
    make_pairs(4)
    first, second, third = (judge(db, project, "ann") for _ in range(3))
    request_new_vote(db, project.id, third.id)
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None
    assert lease(db, project, "ann") == third.pair_id  # they are asked again, which makes it no undone vote of theirs
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None
    restore_votes(db, project.id, [third.id])
    assert pair_leases.undo_last_vote(db, project.id, "ann", RULES).pair.id == third.pair_id
    assert pair_leases.redo_last_vote(db, project.id, "ann").id == third.id
    for taken in (second, third, first):
        request_new_vote(db, project.id, taken.id)
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None


def test_no_earlier_answer_takes_the_place_of_one_that_the_operator_took_out(db, project, make_pairs):
    make_pairs(4)
    earlier = judge(db, project, "ann")
    later = pair_leases.change_vote(
        db, project.id, earlier.id, vote(earlier.pair_id, choice=Choice.TIE, uuid="changed")
    )
    request_new_vote(db, project.id, later.id)
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None
    assert votes.vote_counts(db, project.id)[Source.HUMAN][Choice.FIRST] == 0


def test_own_leases_do_not_make_a_pair_unavailable(db, project, make_pairs):
    make_pairs(2)
    lease(db, project, "ann")
    free = [pair_leases.count_free_pairs(db, project.id, annotator, RULES, now=1.0) for annotator in ("ann", "bob")]
    assert (
        free,
        pair_leases.count_active_annotators(db, project.id, 1.0),
        pair_leases.count_active_annotators(db, project.id, 61.0),
    ) == ([2, 1], 1, 0)


def test_a_changed_answer_replaces_the_earlier_one_once(db, project, make_pairs):
    make_pairs(3)
    old = judge(db, project, "ann")
    new = Vote("n", 0, "ann", Source.HUMAN, Choice.SECOND, False, strength=Strength.MUCH, note="sure now")
    changed = pair_leases.change_vote(db, project.id, old.id, new)
    assert (changed.pair_id, changed.first_on_left, changed.choice) == (old.pair_id, old.first_on_left, Choice.SECOND)
    assert (changed.strength, changed.note) == (Strength.MUCH, "sure now")
    assert pair_leases.change_vote(db, project.id, old.id, new) == changed
    for annotator, uuid in (("ann", "other"), ("bob", "foreign")):
        with pytest.raises(StaleVoteError, match="nothing was changed"):
            pair_leases.change_vote(db, project.id, old.id, vote(0, annotator, uuid=uuid))
    with pytest.raises(StaleVoteError):
        pair_leases.change_vote(db, project.id, changed.id, vote(0, "bob", uuid="foreign"))
    assert [(v.id, pair.id) for v, pair in votes.vote_history(db, project.id, "ann")] == [(changed.id, old.pair_id)]
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None  # a change is no undo


def test_a_change_with_the_uuid_of_another_vote_is_refused(db, project, make_pairs):
    make_pairs(4)
    first, second = judge(db, project, "ann"), judge(db, project, "ann")
    foreign = judge(db, project, "bob")
    again = votes.cast_vote(db, replace(vote(first.pair_id, uuid="again"), repeat=True))
    for vote_id, annotator, uuid in (
        (first.id, "bob", first.uuid),  # somebody else's vote, with its own uuid
        (first.id, "bob", foreign.uuid),
        (foreign.id, "bob", first.uuid),
        (first.id, "ann", first.uuid),
        (first.id, "ann", second.uuid),
        (first.id, "ann", again.uuid),
    ):
        with pytest.raises(StaleVoteError, match="nothing was changed"):
            pair_leases.change_vote(db, project.id, vote_id, vote(0, annotator, Choice.SECOND, uuid))
    assert votes.vote_counts(db, project.id)[Source.HUMAN][Choice.FIRST] == 3


def test_repeats_come_later_are_hidden_and_are_no_labels(db, project, make_pairs):
    make_pairs(60)
    rules = RULES.replace(repeats=0.5)
    cast = [judge(db, project, "ann", rules=rules) for _ in range(60)]
    repeats = [one for one in cast if one.repeat]
    assert 15 <= len(repeats) <= 30  # about half, the first ones excepted
    place = {one.pair_id: n for n, one in enumerate(cast) if not one.repeat}
    for n, one in enumerate(cast):
        if one.repeat:
            assert n - place[one.pair_id] >= REPEAT_AFTER_VOTES
    assert len({one.pair_id for one in repeats}) == len(repeats)
    assert votes.vote_counts(db, project.id)[Source.HUMAN][Choice.FIRST] == 60 - len(repeats)
    assert len(label_snapshots.snapshot_labels(db, project.id, Source.HUMAN).vote_ids) == 60 - len(repeats)
    assert not any(one.repeat for one, _ in votes.vote_history(db, project.id, "ann", 100))
    assert pair_leases.count_free_pairs(db, project.id, "bob", rules, now=0.0) == len(repeats)


def test_without_repeats_nobody_sees_a_pair_twice(db, project, make_pairs):
    make_pairs(30)
    assert len({judge(db, project, "ann").pair_id for _ in range(30)}) == 30


def test_strength_reaches_the_trainer_as_levels(db: Database, project: Project, make_pairs: Callable) -> None:
    pairs = make_pairs(4)
    for pair, strength in zip(pairs, (None, *Strength), strict=True):
        one = Vote(f"{pair.id}", pair.id, "ann", Source.HUMAN, Choice.FIRST, True, strength=strength, note="why")
        assert votes.cast_vote(db, one).strength is strength
    pinned = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    assert [c.strength for c in label_snapshots.load_comparisons(db, pinned)] == [0.0, 0.0, 1.0, 2.0]
    with db.write() as conn:
        conn.exec_driver_sql("UPDATE votes SET strength = 'much' WHERE strength = 'slightly'")
    assert label_snapshots.snapshot_labels(db, project.id, Source.HUMAN).digest != pinned.digest


def test_settings_are_kept_for_each_project(db, project):
    assert projects.get_labelling_config(db, project.id) == LabellingConfig()
    for rules in (RULES.replace(guideline="kind words"), RULES.replace(overlap=3)):
        projects.set_labelling_config(db, project.id, rules)
        assert projects.get_labelling_config(db, project.id) == rules


def test_annotator_stats_by_hand(db, project, make_pairs):
    ids = [pair.id for pair in make_pairs(4)]
    outputs = {"ann": "FFS.", "bob": "FST.", "cid": "..TB"}
    choice_by_letter = {"F": Choice.FIRST, "S": Choice.SECOND, "T": Choice.TIE, "B": Choice.BOTH_BAD}
    for annotator, letters in outputs.items():
        for pair, letter in zip(ids, letters, strict=True):
            if letter != ".":
                votes.cast_vote(db, vote(pair, annotator, choice_by_letter[letter]))
    for pair, choice in ((ids[0], Choice.FIRST), (ids[1], Choice.TIE)):
        repeated = Vote(f"r{pair}", pair, "ann", Source.HUMAN, choice, False, repeat=True)
        votes.cast_vote(db, repeated)
    votes.cast_vote(db, vote(ids[3], "ann", Choice.SKIP))
    result = [
        (s.annotator, s.labels, s.repeated, s.same, s.shared, s.agreed)
        for s in annotators.annotator_stats(db, project.id)
    ]
    # ann with bob: pairs 0 (alike), 1, 2; ann with cid: pair 2; bob with cid: pair 2 (alike)
    assert result == [("ann", 3, 2, 1, 4, 1), ("bob", 3, 0, 0, 4, 2), ("cid", 2, 0, 0, 2, 1)]

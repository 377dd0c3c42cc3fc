"""Gold pairs: who gets them and when, the accuracy of people on them, and the consequences."""

import itertools
import random
import time
from collections.abc import Callable

import pytest
from sqlalchemy import update

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import LabelSnapshot, NewCompletion, Pair, Project, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import LabelError, StaleVoteError
from rlhf_lab.jobs import retraining
from rlhf_lab.store import gold_pairs, pair_leases, pair_selection, project_people, projects, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.gold_pairs import GoldResult
from rlhf_lab.store.label_snapshots import load_comparisons, snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model, get_reward_model

CLICK = itertools.count()
HALF_GOLD = LabellingConfig(gold_rate=0.5)
NEVER = 9_999  # as a random number: no gold pair is drawn
PAUSE = LabellingConfig(gold_rate=0.5, gold_rule="pause", gold_answers=5, gold_bound=0.7)


def cast(db: Database, pair: Pair, annotator: str, choice: Choice = Choice.FIRST) -> Vote:
    return votes.cast_vote(db, Vote(f"{annotator}-{next(CLICK)}", pair.id, annotator, Source.HUMAN, choice, True))


def make_gold(db: Database, project: Project, pairs: list[Pair]) -> None:
    """The first text is the known answer."""
    for pair in pairs:
        gold_pairs.mark_gold(db, project.id, "eve", cast(db, pair, "eve").id, True)


def answer_pairs(db: Database, project: Project, annotator: str, count: int, rules: LabellingConfig) -> list[int]:
    """Let a person answer up to `count` pairs; returns their ids in order."""
    ids = []
    for _ in range(count):
        lease = pair_leases.lease_pair(db, project.id, annotator, rules)
        if lease is None:
            break
        ids.append(lease.pair.id)
        vote = Vote(f"{annotator}-{next(CLICK)}", lease.pair.id, annotator, Source.HUMAN, Choice.FIRST, True)
        pair_leases.vote_on_lease(db, vote, rules)
    return ids


def draws(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Fix the random numbers from 0 to 9,999 that decide whether a gold pair comes; they are repeated."""
    cycle = itertools.cycle(numbers)
    monkeypatch.setattr(pair_selection.secrets, "randbelow", lambda _: next(cycle))


def test_gold_pairs_come_at_the_rate_and_never_twice(db, project, make_pairs, monkeypatch):
    pairs = make_pairs(8)
    gold, ordinary = {pair.id for pair in pairs[:2]}, [pair.id for pair in pairs[2:]]
    make_gold(db, project, pairs[:2])
    draws(monkeypatch, 4999, 5000)  # below half of 10,000: gold
    ids = answer_pairs(db, project, "ann", 20, HALF_GOLD)
    assert {ids[0], ids[2]} == gold
    assert sorted(ids) == sorted([*gold, *ordinary])


def test_no_gold_pair_comes_by_default(db, project, make_pairs, monkeypatch):
    pairs = make_pairs(3)
    make_gold(db, project, pairs[:1])
    draws(monkeypatch, 0)
    assert answer_pairs(db, project, "ann", 5, LabellingConfig()) == [pairs[1].id, pairs[2].id]


def test_a_gold_pair_on_screen_stays_there_for_a_day(db, project, make_pairs, monkeypatch):
    pairs = make_pairs(4)
    make_gold(db, project, pairs[:1])
    cast(db, pairs[0], "bob")
    draws(monkeypatch, 0)
    now = time.time()
    assert leased(db, project, "ann", HALF_GOLD, now) == pairs[0].id
    draws(monkeypatch, NEVER)
    assert leased(db, project, "ann", HALF_GOLD, now + 86_000.0) == pairs[0].id
    vote = Vote("late", pairs[0].id, "ann", Source.HUMAN, Choice.FIRST, True)
    assert pair_leases.vote_on_lease(db, vote, HALF_GOLD, now=now + 2 * 86_000.0).id > 0
    assert gold_pairs.gold_results(db, project.id) == [GoldResult("ann", 1, 1), GoldResult("bob", 1, 1)]


# ---- gold pairs and ordinary ones are served alike


def leased(db: Database, project: Project, annotator: str, rules: LabellingConfig, now: float) -> int | None:
    lease = pair_leases.lease_pair(db, project.id, annotator, rules, now=now)
    return lease and lease.pair.id


def test_pairs_of_a_project_with_gold_pairs_come_in_a_random_order(db, project, make_pairs, monkeypatch):
    make_pairs(30)
    draws(monkeypatch, NEVER)
    now = time.time()
    first = set()
    for n in range(30):
        first.add(leased(db, project, f"{n}", HALF_GOLD, now))
        pair_leases.end_leases(db, f"{n}", now=now)
    assert len(first) > 10  # 19 on average; in the order of ids 1
    assert answer_pairs(db, project, "ann", 30, HALF_GOLD) != sorted(answer_pairs(db, project, "bob", 30, HALF_GOLD))


def seen_of_a_pair(
    db: Database, project: Project, pair: Pair, rules: LabellingConfig, first_choice: str
) -> list[object]:
    """What somebody with the names a, b and c sees of a pair that was on the screen of a, and what happened to it then."""
    now, seen = time.time(), list[object]()

    def offered(name: str) -> bool:
        """Whether the pair is among those from which the next one is chosen; there are at most three."""
        for position in (0, 1, -1):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    pair_selection.secrets, "choice", lambda pairs, position=position: pairs[position % len(pairs)]
                )
                shown = leased(db, project, name, rules, now)
            with db.write() as conn:
                conn.execute(t.leases.delete().where(t.leases.c.annotator == name))
            if shown == pair.id:
                return True
        return False

    def answer(name: str, choice: Choice) -> bool:
        try:
            vote = Vote(f"{name}{pair.id}{next(CLICK)}", pair.id, name, Source.HUMAN, choice, True)
            pair_leases.vote_on_lease(db, vote, rules, now=now)
        except StaleVoteError:
            return False
        return True

    pair_leases.lease_next(db, pair.id, "a", rules, now=now)
    seen.append(offered("b"))
    if first_choice == "given back":
        pair_leases.end_leases(db, "a", now=now)
    else:
        assert answer("a", Choice(first_choice))
    now = time.time() + 1
    seen += [offered("b"), offered("c")]
    pair_leases.lease_next(db, pair.id, "b", rules, now=now)
    seen += [leased(db, project, "a", rules, now) == pair.id, offered("c"), answer("b", Choice.SECOND)]
    now = time.time() + 2
    return [*seen, leased(db, project, "a", rules, now) == pair.id, answer("a", Choice.FIRST), offered("c")]


#: By what a does. Whether b is offered the pair while a has it; then b; then c; whether a has it back, and c is offered it, while
#: b has it; whether b's answer counts; whether a has it then; whether a's answer counts; whether c is offered it.
SEEN = {
    (1, "given back"): [False, True, True, False, False, True, False, False, False],
    (1, "first"): [False, False, False, False, False, True, False, False, False],
    (1, "skip"): [False, False, False, False, False, True, False, False, False],
    (2, "given back"): [True, True, True, True, False, True, True, True, False],
    (2, "first"): [True, True, True, False, False, True, False, False, False],
}


@pytest.mark.parametrize("is_gold", [False, True])
@pytest.mark.parametrize(("overlap", "first_choice"), SEEN)
def test_two_names_do_not_tell_a_gold_pair(db, project, make_pairs, monkeypatch, overlap, first_choice, is_gold):
    rules = LabellingConfig(gold_rate=0.5, overlap=overlap)
    pair, *_ = make_pairs(3)
    draws(monkeypatch, NEVER)
    if is_gold:
        make_gold(db, project, [pair])
        for name in ("dan", "fay", "gil")[: 2 * overlap - 1]:
            cast(db, pair, name)
    seen = seen_of_a_pair(db, project, pair, rules, first_choice)
    assert seen == SEEN[overlap, first_choice]


def test_a_gold_pair_that_somebody_has_is_not_drawn_for_others(db, project, make_pairs, monkeypatch):
    pairs = make_pairs(5)
    make_gold(db, project, pairs[:1])
    draws(monkeypatch, 0)
    now = time.time()
    assert leased(db, project, "ann", HALF_GOLD, now) == pairs[0].id
    assert leased(db, project, "bob", HALF_GOLD, now) != pairs[0].id
    assert leased(db, project, "cid", HALF_GOLD, now + 200) == pairs[0].id


def test_gold_pairs_are_among_those_that_have_enough_votes(db, project, make_pairs, monkeypatch):
    pairs = make_pairs(4)
    make_gold(db, project, pairs[:2])
    draws(monkeypatch, NEVER)
    assert set(answer_pairs(db, project, "ann", 9, HALF_GOLD)) == {pairs[2].id, pairs[3].id}
    for name, position, numbers in (("bob", 0, [0, 1, 2, 3]), ("cid", -1, [3, 2])):  # none where nothing else is left
        monkeypatch.setattr(pair_selection.secrets, "choice", lambda pairs, position=position: pairs[position])
        assert answer_pairs(db, project, name, 9, HALF_GOLD) == [pairs[n].id for n in numbers]


def add_pairs_of(db: Database, project: Project, checkpoint: str, reason: str, count: int) -> list[Pair]:
    """Pairs of texts of a checkpoint; their ids are the larger, the later they are added."""
    prompt = projects.prompts(db, project.id, "train")[0]
    texts = [f"{checkpoint} {reason} {n}" for n in range(2 * count)]
    new = [NewCompletion(prompt.id, text, (n, 1), checkpoint, n) for n, text in enumerate(texts)]
    added = [completion.id for completion in projects.add_completions(db, new)]
    return projects.add_pairs(db, project.id, [(*ids, reason) for ids in zip(added[::2], added[1::2], strict=True)])


def simulate_labellers(db: Database, project: Project, rules: LabellingConfig, people: int) -> list[list[int]]:
    """Let people label in turn until the ordinary pairs have their votes; returns the ids that each was shown, in order."""
    seen: list[list[int]] = [[] for _ in range(people)]
    while True:
        for n in range(people):
            if not pair_leases.count_free_pairs(db, project.id, "nobody", rules):
                return seen
            seen[n] += answer_pairs(db, project, f"p{n}", 1, rules)


@pytest.mark.parametrize("overlap", [1, 2])
@pytest.mark.parametrize("secret", [0, 1, 2, 3])
def test_one_of_eight_labellers_who_knows_where_each_text_comes_from_cannot_tell_a_gold_pair(
    db, project, monkeypatch, secret, overlap
):
    """Whichever origin has the gold pairs: after the last ordinary pair of an origin, nothing of that origin comes."""
    rules = LabellingConfig(gold_rate=0.5, overlap=overlap)
    sizes = (
        ("shipped", "shipped", 6),
        ("base", "random", 10),
        ("base", "teaching: better", 7),
        ("run/1/40", "random", 9),
    )
    pairs = [add_pairs_of(db, project, *size) for size in sizes]
    origin = {pair.id: n for n, group in enumerate(pairs) for pair in group}
    gold = [pair.id for pair in pairs[secret][:3]]
    make_gold(db, project, pairs[secret][:3])
    draw = random.Random(secret)
    monkeypatch.setattr(pair_selection.secrets, "randbelow", draw.randrange)
    monkeypatch.setattr(pair_selection.secrets, "choice", lambda pairs: draw.choice(list(pairs)))
    views = simulate_labellers(db, project, rules, 8)
    order = [pair_id for turn in itertools.zip_longest(*views) for pair_id in turn if pair_id is not None]
    last_ordinary = max(i for i, pair_id in enumerate(order) if origin[pair_id] == secret and pair_id not in gold)
    shown_gold = [i for i, pair_id in enumerate(order) if pair_id in gold]
    assert shown_gold
    assert shown_gold[-1] < last_ordinary + 8 * (overlap - 1) + 1  # the round of one that was drawn before is completed


def test_a_gold_pair_takes_the_place_of_one_of_the_same_origin_only(db, project, monkeypatch):
    shipped = add_pairs_of(db, project, "shipped", "shipped", 2)
    add_pairs_of(db, project, "base", "random", 9)
    make_gold(db, project, shipped[:1])
    draws(monkeypatch, 0)
    cast(db, shipped[1], "bob")  # the last ordinary one
    assert shipped[0].id not in answer_pairs(db, project, "ann", 9, HALF_GOLD)
    add_pairs_of(db, project, "shipped", "shipped", 3)  # not equal to a stored pair: new texts of the same origin
    assert shipped[0].id in answer_pairs(db, project, "ann", 9, HALF_GOLD)


def test_an_undone_answer_does_not_bring_the_gold_pair_to_the_person_again(db, project, make_pairs, monkeypatch):
    pairs = make_pairs(4)
    make_gold(db, project, pairs[:1])
    draws(monkeypatch, 0)
    assert answer_pairs(db, project, "ann", 1, HALF_GOLD) == [pairs[0].id]
    with db.write() as conn:  # as the operator's "Ask again" does
        conn.execute(update(t.votes).where(t.votes.c.annotator == "ann").values(undone_at=1.0))
    assert sorted(answer_pairs(db, project, "ann", 9, HALF_GOLD)) == [pair.id for pair in pairs[1:]]


@pytest.mark.parametrize("marked", [0, 3, 10])
def test_hidden_repeats_come_in_the_same_order_whichever_pairs_are_gold(db, project, make_pairs, marked):
    """A pair that is left out would be noticed."""
    make_pairs(20)
    rules = LabellingConfig(repeats=0.5)
    first = answer_pairs(db, project, "ann", 10, LabellingConfig())
    own = {vote.pair_id: vote for vote, _ in votes.vote_history(db, project.id, "ann")}
    for pair_id in first[:marked]:
        gold_pairs.mark_gold(db, project.id, "ann", own[pair_id].id, True)
    repeated = [pair_id for pair_id in answer_pairs(db, project, "ann", 10, rules) if pair_id in first]
    assert repeated == first[: len(repeated)]
    assert len(repeated) > 2


def test_only_the_persons_own_vote_for_one_text_becomes_a_known_answer(db, project, make_pairs):
    one, two = make_pairs(2)
    vote, tie = cast(db, one, "ann", Choice.SECOND), cast(db, two, "ann", Choice.TIE)
    with pytest.raises(StaleVoteError, match="changed or undone"):
        gold_pairs.mark_gold(db, project.id, "bob", vote.id, True)
    with pytest.raises(LabelError, match="must prefer one of the two texts"):
        gold_pairs.mark_gold(db, project.id, "ann", tie.id, True)
    gold_pairs.mark_gold(db, project.id, "ann", vote.id, True)
    assert gold_pairs.known_answers(db, [one.id, two.id]) == {one.id: Choice.SECOND}
    assert gold_pairs.count_gold_pairs(db, project.id) == 1
    gold_pairs.mark_gold(db, project.id, "ann", vote.id, False)
    assert gold_pairs.known_answers(db, [one.id, two.id]) == {}


def test_answers_count_from_when_the_pair_became_gold(db, project, make_pairs):
    one, two, three = make_pairs(3)
    cast(db, one, "ann", Choice.SECOND)  # before it is gold
    make_gold(db, project, [one, two, three])
    cast(db, two, "ann", Choice.FIRST)
    cast(db, three, "ann", Choice.BOTH_BAD)  # neither text: not the known answer
    cast(db, one, "bob", Choice.SKIP)
    assert gold_pairs.gold_results(db, project.id) == [GoldResult("ann", 1, 2)]


@pytest.mark.parametrize(
    ("right", "answers", "bound", "is_below"),
    [
        (4, 10, 0.70, True),  # upper end by hand: (0.4 + 0.19208 + 1.96 * sqrt(0.024 + 0.009604)) / 1.38416 = 0.6873
        (4, 10, 0.68, False),
        (5, 10, 0.70, False),  # 0.7634
        (0, 9, 0.70, False),  # too few answers
        (10, 10, 1.0, False),
    ],
)
def test_the_rule_compares_the_upper_end_of_the_interval_with_the_bound(right, answers, bound, is_below):
    rules = LabellingConfig(gold_bound=bound, gold_answers=10)
    assert GoldResult("ann", right, answers).is_below_bound(rules) is is_below


def test_the_interval_is_wilsons():
    low, high = GoldResult("ann", 4, 10).interval
    assert (low, high) == pytest.approx((0.1682, 0.6873), abs=5e-5)


def test_the_rule_looks_after_each_tenth_answer_only(db, project, make_pairs):
    pairs = make_pairs(11)
    make_gold(db, project, pairs[:5])
    for pair in pairs[:5]:
        cast(db, pair, "ann", Choice.SECOND)  # 0 of 5: upper end 3.8416 / 8.8416 = 0.4345
    for pair in pairs[5:9]:
        cast(db, pair, "ann")
    assert gold_pairs.result_at_last_look(db, project.id, "ann", PAUSE) is None  # nine answers
    cast(db, pairs[9], "ann")
    assert gold_pairs.result_at_last_look(db, project.id, "ann", PAUSE) == GoldResult("ann", 0, 5)
    cast(db, pairs[10], "ann")
    assert gold_pairs.result_at_last_look(db, project.id, "ann", PAUSE) == GoldResult("ann", 0, 5)
    assert gold_pairs.result_at_last_look(db, project.id, "bob", PAUSE) is None
    project_people.end_pause(db, project.id, "ann")
    assert gold_pairs.result_at_last_look(db, project.id, "ann", PAUSE) is None
    assert gold_pairs.gold_results(db, project.id) == []


def test_votes_on_gold_pairs_teach_nothing_unless_the_settings_say_so(db, project, make_pairs):
    one, two = make_pairs(2)
    make_gold(db, project, [one])
    cast(db, one, "ann")
    label = cast(db, two, "ann")
    assert snapshot_labels(db, project.id, Source.HUMAN).vote_ids == (label.id,)
    projects.set_labelling_config(db, project.id, LabellingConfig(gold_training=True))
    assert len(snapshot_labels(db, project.id, Source.HUMAN).vote_ids) == 3


def _bad_and_good(db: Database, project: Project, make_pairs: Callable) -> None:
    """ann is right on no gold pair, bob on all; both label one further pair."""
    pairs = make_pairs(7)
    make_gold(db, project, pairs[:5])
    for pair in pairs[:5]:
        cast(db, pair, "ann", Choice.SECOND)
        cast(db, pair, "bob")
    cast(db, pairs[5], "ann")
    cast(db, pairs[6], "bob")


def test_the_weight_of_a_person_below_the_bound_is_part_of_the_snapshot(db, project, make_pairs):
    _bad_and_good(db, project, make_pairs)
    plain = snapshot_labels(db, project.id, Source.HUMAN)
    assert plain.weights == ()
    rules = LabellingConfig(gold_rule="down_weight", gold_answers=5, gold_weight=0.25)
    projects.set_labelling_config(db, project.id, rules)
    reduced = snapshot_labels(db, project.id, Source.HUMAN)
    assert reduced.vote_ids == plain.vote_ids
    assert reduced.weights == (0.25, 1.0)
    assert reduced.digest != plain.digest
    stored = add_reward_model(db, project.id, "x", config={}, report={}, snapshot=reduced)
    projects.set_labelling_config(db, project.id, LabellingConfig())  # later settings change nothing that is pinned
    assert get_reward_model(db, stored.id).snapshot == reduced
    assert [label.weight for label in load_comparisons(db, reduced)] == [0.25, 1.0]
    assert [label.weight for label in load_comparisons(db, plain)] == [1.0, 1.0]


def test_a_snapshot_of_an_older_record_has_no_weights():
    record = {"vote_ids": [3], "digest": "d", "source": "human"}
    assert LabelSnapshot.from_record(record) == LabelSnapshot((3,), "d", Source.HUMAN, ())


def test_votes_that_teach_nothing_do_not_bring_the_next_training_nearer(db, project, make_pairs):
    _bad_and_good(db, project, make_pairs)  # 17 votes, 15 of them on gold pairs
    snapshot = snapshot_labels(db, project.id, Source.HUMAN)
    add_reward_model(db, project.id, "x", config={}, report={}, snapshot=snapshot)
    progress = retraining.get_label_progress(db, project.id)
    assert (progress.human, progress.goal, progress.remaining) == (17, 37, 20)
    assert not retraining.is_retraining_due(db, project.id, Source.HUMAN)

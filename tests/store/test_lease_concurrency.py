"""Many people at once: no pair twice for one person, none lost, no more votes than the overlap while other pairs need votes."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Project, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.store import pair_leases, projects
from rlhf_lab.store.database import Database


@pytest.mark.parametrize("overlap", [1, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_simulated_people_never_get_a_pair_twice_or_a_leased_one(
    db: Database, project: Project, make_pairs: Callable, overlap: int, seed: int
) -> None:
    """A simulation: people get a pair, vote in time or late, or leave; an independent count gives the valid pairs."""
    make_pairs(25)
    rng, rules, now = random.Random(seed), LabellingConfig(overlap=overlap, hold_s=30), 0.0
    people = [f"p{n}" for n in range(8)]
    screen: dict[str, tuple[int, float]] = {}
    done: dict[str, set[int]] = {annotator: set() for annotator in people}
    votes: Counter[int] = Counter()
    for step in range(300):
        now += rng.choice([0.1, 1.0, 5.0])
        annotator = rng.choice(people)
        if annotator not in screen:
            free = pair_leases.count_free_pairs(db, project.id, annotator, rules, now=now)
            lease = pair_leases.lease_pair(db, project.id, annotator, rules, now=now)
            if lease is None:
                assert len(done[annotator]) == 25
                continue
            assert lease.pair.id not in done[annotator]
            if free:  # some pair needed votes: then one of these is given, and not one leased by others
                remaining = sum(
                    pair == lease.pair.id and until > now
                    for other, (pair, until) in screen.items()
                    if other != annotator
                )
                assert votes[lease.pair.id] + remaining < overlap
            screen[annotator] = (lease.pair.id, now + 30)
        elif rng.random() < 0.8:
            pair, _ = screen.pop(annotator)
            try:
                pair_leases.vote_on_lease(
                    db, Vote(f"{step}", pair, annotator, Source.HUMAN, Choice.TIE, True), rules, now=now
                )
            except StaleVoteError:
                continue
            done[annotator].add(pair)
            votes[pair] += 1
        else:
            now += 31.0  # nobody votes: all leases expire
    with db.read() as conn:
        rows = conn.exec_driver_sql("SELECT annotator, pair_id FROM votes").all()
    assert len(rows) == len(set(rows)) == sum(votes.values())
    assert {(annotator, pair) for annotator, pairs in done.items() for pair in pairs} == {tuple(row) for row in rows}
    assert sum(votes.values()) > 50


WORKER = """
import sys, time
from pathlib import Path
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.store import pair_leases
from rlhf_lab.store.database import Database
home, who, overlap = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rules = LabellingConfig(overlap=overlap)
with Database.open(home) as db:
    print("ready", flush=True)
    while not (home / "go").exists():
        time.sleep(0.002)
    for n in range(int(sys.argv[4])):
        lease = pair_leases.lease_pair(db, 1, who, rules)
        if lease is None:
            break
        pair_leases.vote_on_lease(db, Vote(f"{who}-{n}", lease.pair.id, who, Source.HUMAN, Choice.FIRST, True), rules)
        print(lease.pair.id)
"""


@pytest.mark.parametrize(("overlap", "each"), [(1, 20), (2, 40)])
def test_two_processes_share_the_queue_without_a_collision(
    db: Database, home: Path, make_pairs: Callable, script: Callable, overlap: int, each: int
) -> None:
    ids = [pair.id for pair in make_pairs(40)]
    processes = [script(WORKER, annotator, str(overlap), str(each)) for annotator in ("ann", "bob")]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (home / "go").touch()
    recorded = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        recorded.append([int(line) for line in out.split()])
    assert all(len(pair_ids) == len(set(pair_ids)) == each for pair_ids in recorded)
    assert Counter(recorded[0] + recorded[1]) == dict.fromkeys(ids, overlap)  # every pair as often as the overlap


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("vote"), st.sampled_from("ab")),
        st.tuples(st.just("undo"), st.sampled_from("ab")),
        st.tuples(st.just("redo"), st.sampled_from("ab")),
    ),
    max_size=25,
)


@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_any_order_of_voting_undoing_and_redoing(db: Database, actions: list[tuple[str, str]]) -> None:
    """Against a list of done and a list of undone votes for each person, as an editor keeps them."""
    project = projects.create_project(db, "p", "m", "h", "s", 0, [("x", "train")])
    prompt = projects.prompts(db, project.id, "train")[0]
    texts = projects.add_completions(db, [NewCompletion(prompt.id, f"{i}", (i,), "base", i) for i in range(9)])
    projects.add_pairs(db, project.id, [(texts[i].id, texts[i + 1].id, "r") for i in range(8)])
    rules = LabellingConfig(overlap=2)
    done: dict[str, list[int]] = {"a": [], "b": []}
    undone: dict[str, list[int]] = {"a": [], "b": []}
    for n, (action, annotator) in enumerate(actions):
        if action == "vote":
            lease = pair_leases.lease_pair(db, project.id, annotator, rules)
            if lease is None:
                assert len(done[annotator]) == 8
                continue
            uuid = f"{project.id}-{n}"
            done[annotator].append(
                pair_leases.vote_on_lease(
                    db, Vote(uuid, lease.pair.id, annotator, Source.HUMAN, Choice.FIRST, True), rules
                ).id
            )
            undone[annotator].clear()
        elif action == "undo":
            lease, last = (
                pair_leases.undo_last_vote(db, project.id, annotator, rules),
                done[annotator].pop() if done[annotator] else None,
            )
            assert (lease is None) == (last is None)
            undone[annotator] += [] if last is None else [last]
        else:
            vote, last = (
                pair_leases.redo_last_vote(db, project.id, annotator),
                undone[annotator].pop() if undone[annotator] else None,
            )
            assert (vote and vote.id) == last
            done[annotator] += [] if last is None else [last]
    with db.read() as conn:
        live = conn.exec_driver_sql(
            "SELECT votes.id FROM votes JOIN pairs ON pairs.id = pair_id "
            f"WHERE undone_at IS NULL AND project_id = {project.id}"
        ).scalars()
        assert sorted(live) == sorted(done["a"] + done["b"])

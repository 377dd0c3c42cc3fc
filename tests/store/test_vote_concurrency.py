"""Concurrent votes of several threads and processes, a killed writer, and any order of casting and undoing."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.databases import undo_vote

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Project, Vote
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.store import label_snapshots, projects, votes
from rlhf_lab.store.database import Database


def all_votes(db: Database) -> list[tuple[str, int, str]]:
    with db.read() as conn:
        return [tuple(row) for row in conn.exec_driver_sql("SELECT uuid, pair_id, annotator FROM votes ORDER BY id")]


def test_threads_repeat_one_click_and_it_counts_once(db: Database, make_pairs: Callable) -> None:
    pairs = make_pairs(20)
    results: list[list[Vote]] = [[] for _ in range(6)]
    start = threading.Barrier(6)

    def click(result: list[Vote]) -> None:
        start.wait()
        for pair in pairs:
            result.append(votes.cast_vote(db, Vote(f"u{pair.id}", pair.id, "ann", Source.HUMAN, Choice.FIRST, True)))

    threads = [threading.Thread(target=click, args=(result,)) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(all_votes(db)) == 20
    assert all(result == results[0] for result in results)
    assert len(results[0]) == 20


def test_threads_with_two_answers_to_one_pair_and_one_of_them_counts(db: Database, make_pairs: Callable) -> None:
    pairs = make_pairs(20)
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def click(name: str) -> None:
        start.wait()
        for pair in pairs:
            try:
                votes.cast_vote(db, Vote(f"{name}{pair.id}", pair.id, "ann", Source.HUMAN, Choice.FIRST, True))
                outcomes.append("counted")
            except StaleVoteError:
                outcomes.append("stale")

    threads = [threading.Thread(target=click, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outcomes.count("counted"), outcomes.count("stale")) == (20, 60)
    assert sorted(pair_id for _, pair_id, _ in all_votes(db)) == [pair.id for pair in pairs]


VOTER = """
import sys, time
from pathlib import Path
from rlhf_lab.errors import StaleVoteError
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Vote
from rlhf_lab.store import votes
from rlhf_lab.store.database import Database
home, name, annotator = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with Database.open(home) as db:
    print("ready", flush=True)
    while not (home / "go").exists():
        time.sleep(0.002)
    for pair_id in range(1, 101):
        for uuid in (f"same-{annotator}-{pair_id}", f"{name}-{annotator}-{pair_id}"):
            try:
                vote = votes.cast_vote(db, Vote(uuid, pair_id, annotator, Source.HUMAN, Choice.FIRST, True))
                print(uuid, vote.id)
            except StaleVoteError:
                pass
"""


def test_two_processes_vote_and_none_is_lost_or_doubled(
    db: Database, home: Path, make_pairs: Callable, script: Callable
) -> None:
    make_pairs(100)
    processes = [script(VOTER, "p", "ann"), script(VOTER, "q", "ann"), script(VOTER, "r", "bob")]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    (home / "go").touch()
    outputs = []
    for process in processes:
        out, err = process.communicate(timeout=50)
        assert (process.returncode, err) == (0, "")
        outputs.append(out.split("\n")[:-1])
    expected = [f"same-{who}-{pair_id}" for pair_id in range(1, 101) for who in ("ann", "bob")]
    assert sorted(uuid for uuid, _, _ in all_votes(db)) == sorted(expected)
    assert (
        outputs[0] == outputs[1]
    )  # the same row for the same click, whichever process was first; the second answer is stale in both
    assert len(outputs[0]) == len(outputs[2]) == 100


WRITER = """
import itertools, sys
from pathlib import Path
from rlhf_lab.common.records import NewCompletion
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
with Database.open(Path(sys.argv[1])) as db:
    for n in itertools.count():
        project = projects.create_project(db, f"p{n}", "m", "h", "s", n, [(f"{i}", "train") for i in range(20)])
        print(project.id, flush=True)
"""


@pytest.mark.parametrize("after", [3, 17])
def test_kill_9_loses_nothing_that_was_committed(db: Database, script: Callable, after: int) -> None:
    process = script(WRITER)
    outputs = [int(process.stdout.readline()) for _ in range(after)]
    os.kill(process.pid, signal.SIGKILL)
    outputs += [
        int(line) for line in process.stdout.read().split()
    ]  # communicate() would lose what readline read ahead
    assert process.wait() == -signal.SIGKILL
    with db.read() as conn:
        ids = [row[0] for row in conn.exec_driver_sql("SELECT id FROM projects ORDER BY id")]
        counts = conn.exec_driver_sql("SELECT count(*) FROM prompts GROUP BY project_id").scalars().all()
        if conn.dialect.name == "sqlite":
            assert conn.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    assert len(outputs) >= after
    assert ids[: len(outputs)] == outputs
    assert len(ids) <= len(outputs) + 1  # one may have been committed but not printed
    assert counts == [20] * len(ids)  # and none partially
    assert projects.create_project(db, "next", "m", "h", "s", 0, []).id > ids[-1]


# ---- a plain model: annotator -> {pair: uuid}, in the order of casting


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("cast"), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 5)),
        st.tuples(st.just("undo"), st.sampled_from("ab")),
    ),
    max_size=25,
)


def apply_to_model(live: dict[str, dict[int, str]], pairs_by_uuid: dict[str, int], action: tuple) -> object:
    """The expected result: the pair of the vote concerned, "stale", or None."""
    votes_by_pair = live[action[1]]
    if action[0] == "undo":
        return votes_by_pair.popitem()[0] if votes_by_pair else None
    _, annotator, pair, n = action
    uuid = f"{annotator}{n}"
    if uuid in pairs_by_uuid:
        return pairs_by_uuid[uuid]
    if pair in votes_by_pair:
        return "stale"
    votes_by_pair[pair] = pairs_by_uuid[uuid] = pair
    return pair


def apply_to_store(db: Database, project: Project, ids: list[int], action: tuple) -> object:
    if action[0] == "undo":
        undone = undo_vote(db, project.id, action[1])
        return undone and ids.index(undone.pair_id)
    _, annotator, pair, n = action
    try:
        vote = Vote(f"{project.id}{annotator}{n}", ids[pair], annotator, Source.HUMAN, Choice.SECOND, True)
        return ids.index(votes.cast_vote(db, vote).pair_id)
    except StaleVoteError:
        return "stale"


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_any_order_of_casting_and_undoing(db: Database, actions: list[tuple]) -> None:
    project = projects.create_project(db, "p", "m", "h", "s", 0, [("x", "train")])
    prompt = projects.prompts(db, project.id, "train")[0]
    texts = projects.add_completions(db, [NewCompletion(prompt.id, f"{i}", (i,), "base", i) for i in range(5)])
    pairs = projects.add_pairs(db, project.id, [(texts[i].id, texts[i + 1].id, "r") for i in range(4)])
    ids = [pair.id for pair in pairs]
    live: dict[str, dict[int, str]] = {"a": {}, "b": {}}
    names: dict[str, int] = {}
    for action in actions:
        assert apply_to_store(db, project, ids, action) == apply_to_model(live, names, action)
        for annotator, votes_by_pair in live.items():
            assert votes.count_unvoted_pairs(db, project.id, annotator) == 4 - len(votes_by_pair)
            others = [pair for pair in range(4) if pair not in votes_by_pair]
            following = min(
                others, key=lambda pair: (sum(pair in voted for voted in live.values()), pair), default=None
            )
            result = votes.next_unvoted_pair(db, project.id, annotator)
            assert (result and ids.index(result.id)) == following
    total = sum(len(votes_by_pair) for votes_by_pair in live.values())
    assert votes.vote_counts(db, project.id)[Source.HUMAN][Choice.SECOND] == total
    assert len(label_snapshots.snapshot_labels(db, project.id, Source.HUMAN).vote_ids) == total

"""Imports with concurrent writers: chunks are atomic; interrupted, repeated or concurrent imports store each vote once."""

import re
import threading

import pytest
from sqlalchemy import event, select
from support.databases import *  # noqa: F403
from support.databases import undo_vote

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.errors import BusyStoreError, DataError
from rlhf_lab.importers import writer
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.store import pair_leases, projects
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import delete_project
from rlhf_lab.store.votes import cast_vote


def row(prompt, winner="first", annotator="ann", **more):
    return {
        "prompt": prompt,
        "first": f"a {prompt}",
        "second": f"b {prompt}",
        "winner": winner,
        "annotator": annotator,
    } | more


ROWS = [row(f"p{i // 2}", who, annotator=f"{i % 2}") for i, who in enumerate(["first", "second", "tie"] * 4)]


def live_votes(db, project):
    """(prompt, annotator, choice, strength) of every live vote, sorted; None for a pair without votes."""
    v = t.votes.c
    query = (
        select(t.prompts.c.text, v.annotator, v.choice, v.strength)
        .select_from(t.pairs)
        .join(projects.FIRST_COMPLETION, projects.FIRST_COMPLETION.c.id == t.pairs.c.first_id)
        .join(t.prompts, t.prompts.c.id == projects.FIRST_COMPLETION.c.prompt_id)
        .outerjoin(t.votes, (v.pair_id == t.pairs.c.id) & v.undone_at.is_(None))
        .where(t.pairs.c.project_id == project.id)
    )
    with db.read() as conn:
        return sorted((tuple(vote) for vote in conn.execute(query)), key=str)


def votes_of_rows(rows):
    return sorted(
        ((one["prompt"], one["annotator"], Choice(one["winner"]), one.get("strength")) for one in rows), key=str
    )


class Gaps:
    """Actions to run in the pauses between the chunks of an import, one per pause, and the number of pauses."""

    def __init__(self):
        self.todo, self.count = [], 0

    def sleep(self, seconds):
        assert seconds == 0.1
        self.count += 1
        action = self.todo.pop(0) if self.todo else None
        if action:
            action()


@pytest.fixture
def gaps(monkeypatch):
    """Chunks of two rows."""
    gaps = Gaps()
    monkeypatch.setattr(writer, "CHUNK_SIZE", 2)
    monkeypatch.setattr(writer.time, "sleep", gaps.sleep)
    return gaps


def test_others_can_vote_between_chunks(db, store, project, files, gaps):
    """With a short lock timeout: the lock is free in the pauses."""
    with Database.open(store, busy_timeout_s=0.2) as page:
        prompt = projects.prompts(db, project.id, "train")[0]
        texts = projects.add_completions(db, [NewCompletion(prompt.id, f"{i}", (1,), "base", 1) for i in range(12)])
        pairs = projects.add_pairs(db, project.id, [(texts[2 * i].id, texts[2 * i + 1].id, "r") for i in range(6)])
        gaps.todo += [
            lambda pair=pair: cast_vote(page, Vote(f"u{pair.id}", pair.id, "me", Source.HUMAN, Choice.FIRST, True))
            for pair in pairs[:5]
        ]
        result = save_import(db, files.parse("v.jsonl", ROWS), ImportTarget(project.id))
    assert (gaps.count, gaps.todo) == (5, [])  # 12 rows, two at a time
    assert (result.votes, result.pairs, result.prompts, result.held) == (12, 6, 6, 0)
    assert [one for one in live_votes(db, project) if one[0] != "Once"] == votes_of_rows(ROWS)
    assert sum(one[1] == "me" for one in live_votes(db, project)) == 5


def test_an_interrupted_import_leaves_complete_chunks_and_can_be_repeated(db, project, files, gaps):
    parsed = files.parse("v.jsonl", ROWS)
    gaps.todo += [None, lambda: 1 / 0]
    with pytest.raises(ZeroDivisionError):
        save_import(db, parsed, ImportTarget(project.id))
    assert live_votes(db, project) == votes_of_rows(ROWS[:4])
    assert [p.text for p in prompts(db, project)] == ["p0", "p1"]
    result = save_import(db, parsed, ImportTarget(project.id))
    assert (result.votes, result.held) == (8, 4)
    assert live_votes(db, project) == votes_of_rows(ROWS)
    assert [p.text for p in prompts(db, project)] == [f"p{i}" for i in range(6)]


def prompts(db, project):
    p = t.prompts.c
    with db.read() as conn:
        return conn.execute(
            select(p.text).where(p.project_id == project.id, p.labels_only.is_(True)).order_by(p.id)
        ).all()


def test_a_failed_import_reports_what_was_stored(db, project, files, gaps, monkeypatch):
    real = writer._ImportWriter._insert_votes

    def full(self, conn, chosen):
        if gaps.count >= 2:
            raise BusyStoreError("The disk is full.")
        real(self, conn, chosen)

    monkeypatch.setattr(writer._ImportWriter, "_insert_votes", full)
    with pytest.raises(BusyStoreError, match=r"disk is full\. Already imported and kept: 4 votes from v\.jsonl\."):
        save_import(db, files.parse("v.jsonl", ROWS), ImportTarget(project.id))
    with pytest.raises(BusyStoreError, match=r"^The disk is full\.$"):
        save_import(db, files.parse("w.jsonl", [row("new")]), ImportTarget(project.id))
    assert live_votes(db, project) == votes_of_rows(ROWS[:4])


def test_concurrent_imports_of_the_same_file_count_once(db, store, project, files, gaps):
    parsed, counts = files.parse("v.jsonl", ROWS), []
    other_project = projects.create_project(db, "another", "embedded", "abc", "tales", 7, [("Once", "train")])
    with Database.open(store) as other:
        gaps.todo += [
            lambda: save_import(other, parsed, ImportTarget(other_project.id)),
            *[None] * 5,
        ]  # its five gaps
        gaps.todo += [lambda: counts.append(save_import(other, parsed, ImportTarget(project.id)))]
        result = save_import(db, parsed, ImportTarget(project.id))
    assert (counts[0].votes, counts[0].held) == (8, 4)
    assert (result.votes, result.held, result.prompts) == (4, 8, 2)
    assert live_votes(db, project) == votes_of_rows(ROWS)
    assert [p.text for p in prompts(db, project)] == [f"p{i}" for i in range(6)]


def test_concurrent_imports_in_opposite_order(db, store, project, files, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_SIZE", 3)
    monkeypatch.setattr(writer, "CHUNK_PAUSE_S", 0.001)
    rows = [row(f"p{i // 4}", annotator=f"{i % 4}") for i in range(60)]
    orders = [rows, rows[::-1]]
    opened = [Database.open(store) for _ in orders]
    threads = [
        threading.Thread(target=save_import, args=(one, files.parse(f"{i}.jsonl", order), ImportTarget(project.id)))
        for i, (one, order) in enumerate(zip(opened, orders, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in opened:
        one.close()
    assert live_votes(db, project) == votes_of_rows(rows)
    assert projects.count_pairs(db, project.id) == 15


def test_concurrent_votes_and_pairs_are_found(db, project, files, gaps):
    """ann votes during the import, once as in the file and once differently."""
    rows = [row("p0"), row("Once"), row("Once", annotator="bob"), row("Far"), row("Far", annotator="bob"), row("p1")]

    def vote(prompt, choice):
        texts = projects.add_completions(
            db, [NewCompletion(prompt.id, f"{side} {prompt.text}", (1,), "base", 1) for side in "ab"]
        )
        (pair,) = projects.add_pairs(db, project.id, [(texts[0].id, texts[1].id, "r")])
        cast_vote(db, Vote(prompt.text, pair.id, "ann", Source.HUMAN, choice, True))

    once, far = (projects.prompts(db, project.id, part)[0] for part in ("train", "eval"))
    gaps.todo += [lambda: vote(far, Choice.SECOND)]
    vote(once, Choice.FIRST)
    result = save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id))
    assert (result.held, result.duplicates, result.votes, result.pairs) == (1, 1, 5, 3)
    assert live_votes(db, project) == votes_of_rows([*rows, row("Far", "second")])


def test_a_concurrent_redo_wins_over_the_import(db, project, files, gaps):
    parsed = files.parse("v.jsonl", [row("Once")])
    save_import(db, parsed, ImportTarget(project.id))
    undo_vote(db, project.id, "ann")
    gaps.todo += [lambda: pair_leases.redo_last_vote(db, project.id, "ann")]
    result = save_import(
        db,
        files.parse("w.jsonl", [row("p0", annotator="bob"), row("p1", annotator="bob"), row("Once", "tie")]),
        ImportTarget(project.id),
    )
    assert (result.votes, result.held) == (2, 1)
    assert live_votes(db, project) == votes_of_rows(
        [row("Once"), row("p0", annotator="bob"), row("p1", annotator="bob")]
    )


def test_an_undone_vote_is_imported_again(db, project, files):
    parsed = files.parse("v.jsonl", [row("Once")])
    save_import(db, parsed, ImportTarget(project.id))
    undo_vote(db, project.id, "ann")
    result = save_import(db, parsed, ImportTarget(project.id))
    assert (result.votes, result.held, result.pairs) == (1, 0, 0)


def test_deleting_the_project_stops_the_import(db, project, files, gaps):
    other = ("embedded", "abc", "tales", 7, [("Once", "train")])
    short = projects.create_project(db, "short-lived", *other)
    projects.open_project(db, project.id)

    def delete():
        delete_project(db, short.id)
        assert projects.create_project(db, "the next one", *other).id > short.id

    gaps.todo += [delete]
    with pytest.raises(DataError, match=r'"short-lived" was deleted during the import.*import the file there'):
        save_import(db, files.parse("v.jsonl", ROWS), ImportTarget(short.id))
    with db.read() as conn:
        assert conn.execute(select(t.votes)).all() == conn.execute(select(t.pairs)).all() == []


def test_fields_that_identify_a_vote(db, project, files):
    """Annotator, source, choice, strength and repeat; not sides, notes and times."""
    fields = {
        "source": "human",
        "first_on_left": True,
        "chosen": "",
        "strength": "much",
        "repeat": False,
        "note": "why",
    }
    rows = [row("Once", **fields)]
    save_import(db, files.parse("v.jsonl", rows), ImportTarget(project.id))
    same = [row("Once", **fields | {"note": "", "first_on_left": False}, created_at=5, response_ms=7)]
    assert save_import(db, files.parse("same.jsonl", same), ImportTarget(project.id)).held == 1
    for other in (
        {"strength": "clearly"},
        {"source": "simulated"},
        {"repeat": True},
        {"winner": "tie"},
        {"annotator": "bob"},
    ):
        assert (
            save_import(db, files.parse("other.jsonl", [row("Once", **fields) | other]), ImportTarget(project.id)).votes
            == 1
        )


def test_repeated_rows_are_duplicates_and_not_imported_twice(db, project, files):
    repeated = files.parse("v.jsonl", [row("Once")] * 3)
    result = save_import(db, repeated, ImportTarget(project.id, drop_duplicates=True))
    assert (result.votes, result.held, result.duplicates, result.dropped) == (1, 0, 2, 2)
    result = save_import(db, repeated, ImportTarget(project.id))
    assert (result.votes, result.held, result.duplicates, result.dropped) == (2, 1, 2, 0)
    assert (save_import(db, repeated, ImportTarget(project.id)).held, len(repeated.votes)) == (3, 3)
    result = save_import(
        db, files.parse("names.jsonl", [row("Far", pair_id=i // 2) for i in range(4)]), ImportTarget(project.id)
    )
    assert (result.votes, result.duplicates, result.pairs) == (4, 2, 4)
    contradicting = [row("q", pair_id=1), row("q", "tie", pair_id=1), row("q", "tie", pair_id=2)]
    result = save_import(db, files.parse("otherwise.jsonl", contradicting), ImportTarget(project.id))
    assert (result.votes, result.duplicates, result.pairs) == (3, 1, 3)
    anonymous = files.parse("nobody.jsonl", [row("p", annotator="")] * 3)
    result = save_import(db, anonymous, ImportTarget(project.id))  # possibly three people
    assert (result.votes, result.duplicates, result.pairs) == (3, 2, 3)
    assert save_import(db, anonymous, ImportTarget(project.id)).held == 3


@pytest.mark.sqlite
def test_query_count_is_linear_in_chunks_without_table_scans(db, project, files, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_PAUSE_S", 0)
    monkeypatch.setattr(writer, "CHUNK_SIZE", 200)
    statements = []
    event.listen(
        db._reader, "before_cursor_execute", lambda _c, _k, sql, parameters, *_: statements.append((sql, parameters))
    )

    def query_count(name, count):
        """Number of queries for a file of new prompts; none scans a table, except for max(id)."""
        statements.clear()
        rows = [row(f"{name} {i // 2}", annotator=f"{i % 2}") for i in range(count)]
        save_import(db, files.parse(name, rows), ImportTarget(project.id))
        queries = [one for one in statements if one[0].startswith(("SELECT", "UPDATE"))]
        with db.read() as conn:
            for sql, parameters in queries:
                plan = [line[3] for line in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", parameters).all()]
                assert [line for line in plan if re.match(r"SCAN (?!CONSTANT)\w", line) and "max(" not in sql] == []
        return len(queries)

    one, two, five = (query_count(f"{count}.jsonl", count) for count in (200, 400, 1_000))
    assert five - one == 4 * (two - one)
    assert two - one < 12

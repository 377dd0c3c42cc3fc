"""Imports while others write: pieces with gaps between them, each whole; cut off, doubled or overtaken they add up."""

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
        "first": f"{prompt} a",
        "second": f"{prompt} b",
        "winner": winner,
        "annotator": annotator,
    } | more


ROWS = [row(f"p{i // 2}", who, annotator=f"{i % 2}") for i, who in enumerate(["first", "second", "tie"] * 4)]


def said(db, project):
    """(prompt, annotator, choice, strength) of every live vote, sorted; a pair without a vote is told by None."""
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
        return sorted((tuple(found) for found in conn.execute(query)), key=str)


def of_rows(rows):
    return sorted(
        ((one["prompt"], one["annotator"], Choice(one["winner"]), one.get("strength")) for one in rows), key=str
    )


class Gaps:
    """What happens while an import rests, one thing a gap, and how many gaps there were."""

    def __init__(self):
        self.todo, self.count = [], 0

    def rest(self, seconds):
        assert seconds == 0.1
        self.count += 1
        happens = self.todo.pop(0) if self.todo else None
        if happens:
            happens()


@pytest.fixture
def gaps(monkeypatch):
    """Pieces of two rows."""
    found = Gaps()
    monkeypatch.setattr(writer, "CHUNK_SIZE", 2)
    monkeypatch.setattr(writer.time, "sleep", found.rest)
    return found


def test_a_vote_is_taken_in_every_gap(db, store, project, files, gaps):
    """By somebody whose patience is short: the lock is free there."""
    with Database.open(store, busy_timeout_s=0.2) as page:
        prompt = projects.prompts(db, project.id, "train")[0]
        texts = projects.add_completions(db, [NewCompletion(prompt.id, f"{i}", (1,), "base", 1) for i in range(12)])
        pairs = projects.add_pairs(db, project.id, [(texts[2 * i].id, texts[2 * i + 1].id, "r") for i in range(6)])
        gaps.todo += [
            lambda pair=pair: cast_vote(page, Vote(f"u{pair.id}", pair.id, "me", Source.HUMAN, Choice.FIRST, True))
            for pair in pairs[:5]
        ]
        done = save_import(db, files.found("v.jsonl", ROWS), ImportTarget(project.id))
    assert (gaps.count, gaps.todo) == (5, [])  # 12 rows, two at a time
    assert (done.votes, done.pairs, done.prompts, done.held) == (12, 6, 6, 0)
    assert [one for one in said(db, project) if one[0] != "Once"] == of_rows(ROWS)
    assert sum(one[1] == "me" for one in said(db, project)) == 5


def test_an_import_that_is_cut_off_leaves_whole_pieces_and_the_same_file_brings_the_rest(db, project, files, gaps):
    found = files.found("v.jsonl", ROWS)
    gaps.todo += [None, lambda: 1 / 0]
    with pytest.raises(ZeroDivisionError):
        save_import(db, found, ImportTarget(project.id))
    assert said(db, project) == of_rows(ROWS[:4])
    assert [p.text for p in prompts(db, project)] == ["p0", "p1"]
    done = save_import(db, found, ImportTarget(project.id))
    assert (done.votes, done.held) == (8, 4)
    assert said(db, project) == of_rows(ROWS)
    assert [p.text for p in prompts(db, project)] == [f"p{i}" for i in range(6)]


def prompts(db, project):
    p = t.prompts.c
    with db.read() as conn:
        return conn.execute(
            select(p.text).where(p.project_id == project.id, p.labels_only.is_(True)).order_by(p.id)
        ).all()


def test_what_is_in_is_said_when_the_database_refuses_the_rest(db, project, files, gaps, monkeypatch):
    real = writer._ImportWriter._insert_votes

    def full(self, conn, chosen):
        if gaps.count >= 2:
            raise BusyStoreError("The disk is full.")
        real(self, conn, chosen)

    monkeypatch.setattr(writer._ImportWriter, "_insert_votes", full)
    with pytest.raises(BusyStoreError, match=r"disk is full\. What is in stays: 4 votes of v\.jsonl\. Import it again"):
        save_import(db, files.found("v.jsonl", ROWS), ImportTarget(project.id))
    with pytest.raises(BusyStoreError, match=r"^The disk is full\.$"):
        save_import(db, files.found("w.jsonl", [row("new")]), ImportTarget(project.id))
    assert said(db, project) == of_rows(ROWS[:4])


def test_the_same_file_twice_at_once_counts_once(db, store, project, files, gaps):
    found, counts = files.found("v.jsonl", ROWS), []
    apart = projects.create_project(db, "another", "embedded", "abc", "tales", 7, [("Once", "train")])
    with Database.open(store) as other:
        gaps.todo += [lambda: save_import(other, found, ImportTarget(apart.id)), *[None] * 5]  # five gaps of its own
        gaps.todo += [lambda: counts.append(save_import(other, found, ImportTarget(project.id)))]
        done = save_import(db, found, ImportTarget(project.id))
    assert (counts[0].votes, counts[0].held) == (8, 4)
    assert (done.votes, done.held, done.prompts) == (4, 8, 2)
    assert said(db, project) == of_rows(ROWS)
    assert [p.text for p in prompts(db, project)] == [f"p{i}" for i in range(6)]


def test_two_imports_that_go_opposite_ways_at_once(db, store, project, files, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_SIZE", 3)
    monkeypatch.setattr(writer, "CHUNK_PAUSE_S", 0.001)
    rows = [row(f"p{i // 4}", annotator=f"{i % 4}") for i in range(60)]
    orders = [rows, rows[::-1]]
    opened = [Database.open(store) for _ in orders]
    threads = [
        threading.Thread(target=save_import, args=(one, files.found(f"{i}.jsonl", order), ImportTarget(project.id)))
        for i, (one, order) in enumerate(zip(opened, orders, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in opened:
        one.close()
    assert said(db, project) == of_rows(rows)
    assert projects.count_pairs(db, project.id) == 15


def test_votes_and_pairs_of_others_meanwhile_are_met(db, project, files, gaps):
    """ann votes herself on what the file says she said, and otherwise than it says."""
    rows = [row("p0"), row("Once"), row("Once", annotator="bob"), row("Far"), row("Far", annotator="bob"), row("p1")]

    def vote(prompt, choice):
        texts = projects.add_completions(
            db, [NewCompletion(prompt.id, f"{prompt.text} {side}", (1,), "base", 1) for side in "ab"]
        )
        (pair,) = projects.add_pairs(db, project.id, [(texts[0].id, texts[1].id, "r")])
        cast_vote(db, Vote(prompt.text, pair.id, "ann", Source.HUMAN, choice, True))

    once, far = (projects.prompts(db, project.id, part)[0] for part in ("train", "eval"))
    gaps.todo += [lambda: vote(far, Choice.SECOND)]
    vote(once, Choice.FIRST)
    done = save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id))
    assert (done.held, done.duplicates, done.votes, done.pairs) == (1, 1, 5, 3)
    assert said(db, project) == of_rows([*rows, row("Far", "second")])


def test_a_vote_that_is_brought_back_meanwhile_is_the_one_that_counts(db, project, files, gaps):
    found = files.found("v.jsonl", [row("Once")])
    save_import(db, found, ImportTarget(project.id))
    undo_vote(db, project.id, "ann")
    gaps.todo += [lambda: pair_leases.redo_last_vote(db, project.id, "ann")]
    done = save_import(
        db,
        files.found("w.jsonl", [row("p0", annotator="bob"), row("p1", annotator="bob"), row("Once", "tie")]),
        ImportTarget(project.id),
    )
    assert (done.votes, done.held) == (2, 1)
    assert said(db, project) == of_rows([row("Once"), row("p0", annotator="bob"), row("p1", annotator="bob")])


def test_a_vote_that_was_taken_back_is_not_there(db, project, files):
    found = files.found("v.jsonl", [row("Once")])
    save_import(db, found, ImportTarget(project.id))
    undo_vote(db, project.id, "ann")
    done = save_import(db, found, ImportTarget(project.id))
    assert (done.votes, done.held, done.pairs) == (1, 0, 0)


def test_a_project_that_is_deleted_meanwhile_takes_all_with_it(db, project, files, gaps):
    other = ("embedded", "abc", "tales", 7, [("Once", "train")])
    short = projects.create_project(db, "short-lived", *other)
    projects.open_project(db, project.id)

    def gone():
        delete_project(db, short.id)
        assert projects.create_project(db, "the next one", *other).id > short.id

    gaps.todo += [gone]
    with pytest.raises(DataError, match=r'"short-lived" was deleted during the import.*import the file there'):
        save_import(db, files.found("v.jsonl", ROWS), ImportTarget(short.id))
    with db.read() as conn:
        assert conn.execute(select(t.votes)).all() == conn.execute(select(t.pairs)).all() == []


def test_what_is_the_same_answer(db, project, files):
    """Person, source, choice, strength and whether it was a repeat; where the texts stood, notes and times are beside it."""
    ours = {"source": "human", "first_on_left": True, "chosen": "", "strength": "much", "repeat": False, "note": "why"}
    rows = [row("Once", **ours)]
    save_import(db, files.found("v.jsonl", rows), ImportTarget(project.id))
    same = [row("Once", **ours | {"note": "", "first_on_left": False}, created_at=5, response_ms=7)]
    assert save_import(db, files.found("same.jsonl", same), ImportTarget(project.id)).held == 1
    for other in (
        {"strength": "clearly"},
        {"source": "simulated"},
        {"repeat": True},
        {"winner": "tie"},
        {"annotator": "bob"},
    ):
        assert (
            save_import(db, files.found("other.jsonl", [row("Once", **ours) | other]), ImportTarget(project.id)).votes
            == 1
        )


def test_a_row_that_the_file_repeats_is_a_duplicate_and_not_taken_in_with_the_file_once_more(db, project, files):
    thrice = files.found("v.jsonl", [row("Once")] * 3)
    done = save_import(db, thrice, ImportTarget(project.id, drop_duplicates=True))
    assert (done.votes, done.held, done.duplicates, done.dropped) == (1, 0, 2, 2)
    done = save_import(db, thrice, ImportTarget(project.id))
    assert (done.votes, done.held, done.duplicates, done.dropped) == (2, 1, 2, 0)
    assert (save_import(db, thrice, ImportTarget(project.id)).held, len(thrice.votes)) == (3, 3)
    done = save_import(
        db, files.found("names.jsonl", [row("Far", pair_id=i // 2) for i in range(4)]), ImportTarget(project.id)
    )
    assert (done.votes, done.duplicates, done.pairs) == (4, 2, 4)
    otherwise = [row("q", pair_id=1), row("q", "tie", pair_id=1), row("q", "tie", pair_id=2)]
    done = save_import(db, files.found("otherwise.jsonl", otherwise), ImportTarget(project.id))
    assert (done.votes, done.duplicates, done.pairs) == (3, 1, 3)
    nobody = files.found("nobody.jsonl", [row("p", annotator="")] * 3)
    done = save_import(db, nobody, ImportTarget(project.id))  # three people perhaps
    assert (done.votes, done.duplicates, done.pairs) == (3, 2, 3)
    assert save_import(db, nobody, ImportTarget(project.id)).held == 3


@pytest.mark.sqlite
def test_the_queries_of_an_import_are_of_its_pieces_and_read_no_table_whole(db, project, files, monkeypatch):
    monkeypatch.setattr(writer, "CHUNK_PAUSE_S", 0)
    monkeypatch.setattr(writer, "CHUNK_SIZE", 200)
    seen = []
    event.listen(db._reader, "before_cursor_execute", lambda _c, _k, sql, given, *_: seen.append((sql, given)))

    def asked(name, count):
        """How many queries a file of new prompts takes; none scans a table, but for the ends of its ids."""
        seen.clear()
        rows = [row(f"{name} {i // 2}", annotator=f"{i % 2}") for i in range(count)]
        save_import(db, files.found(name, rows), ImportTarget(project.id))
        queries = [one for one in seen if one[0].startswith(("SELECT", "UPDATE"))]
        with db.read() as conn:
            for sql, given in queries:
                plan = [line[3] for line in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given).all()]
                assert [line for line in plan if re.match(r"SCAN (?!CONSTANT)\w", line) and "max(" not in sql] == []
        return len(queries)

    one, two, five = (asked(f"{count}.jsonl", count) for count in (200, 400, 1_000))
    assert five - one == 4 * (two - one)
    assert two - one < 12

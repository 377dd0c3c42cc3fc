"""Undo of an import removes only what the import added, whatever annotators, imports and reward models do during it."""

import json
import re

import numpy as np
import pytest
from sqlalchemy import select
from support.databases import *  # noqa: F403

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.errors import DataError, StaleVoteError, StoreError
from rlhf_lab.importers import writer
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.store import import_batches, label_snapshots, pair_leases, projects, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.features import TextFeatures, add_features, load_features, texts_without_features
from rlhf_lab.store.import_batches import ImportUndo, preview_undo, project_imports, undo_import
from rlhf_lab.store.reward_model_list import newest_listed
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.reward_scores import unjudged_pairs
from rlhf_lab.store.votes import vote_history


def row(prompt, winner="first", annotator="ann", **more):
    texts = {"first": f"a {prompt}", "second": f"b {prompt}"}
    return {"prompt": prompt, **texts, "winner": winner, "annotator": annotator} | more


ROWS = [row(f"p{i // 2}", annotator="ab"[i % 2]) for i in range(10)]  # a and b on five pairs


@pytest.fixture
def gaps(monkeypatch):
    """Actions to run in the pauses of an import or an undo, one per pause; chunks of three."""
    todo = []
    monkeypatch.setattr(writer, "CHUNK_SIZE", 3)
    monkeypatch.setattr(import_batches, "CHUNK_SIZE", 3)
    monkeypatch.setattr(import_batches.time, "sleep", lambda _: todo and (todo.pop(0) or (lambda: None))())
    return todo


@pytest.fixture
def import_rows(db, project, files, gaps):
    def run_import(rows=ROWS, name="v.jsonl", **into):
        return save_import(db, files.parse(name, rows), ImportTarget(project.id, **into))

    return run_import


def live(db, project):
    """(prompt, annotator) of the live votes."""
    query = (
        select(t.prompts.c.text, t.votes.c.annotator)
        .join(projects.FIRST_COMPLETION, projects.FIRST_COMPLETION.c.prompt_id == t.prompts.c.id)
        .join(t.pairs, t.pairs.c.first_id == projects.FIRST_COMPLETION.c.id)
        .join(t.votes, t.votes.c.pair_id == t.pairs.c.id)
        .where(t.votes.c.undone_at.is_(None), t.pairs.c.project_id == project.id)
    )
    with db.read() as conn:
        return sorted(tuple(result) for result in conn.execute(query))


def vote(db, project, prompt, annotator="me", choice=Choice.FIRST):
    """Lease and vote on pairs until the pair of this prompt comes; returns the vote on it."""
    while True:
        result = pair_leases.lease_pair(db, project.id, annotator)
        assert result is not None
        is_requested = result.pair.prompt.text == prompt
        new_vote = Vote(f"{annotator} {result.pair.id}", result.pair.id, annotator, Source.HUMAN, choice, True)
        cast = pair_leases.vote_on_lease(db, new_vote)
        if is_requested:
            return cast


def test_an_import_is_listed_and_undone_completely(db, project, import_rows):
    other_project = projects.create_project(db, "another", "embedded", "abc", "tales", 7, [("Once", "train")])
    import_rows(who="ann")
    (result,) = project_imports(db, project.id)
    assert (result.name, result.who, result.taken_back_at) == ("v.jsonl", "ann", None)
    assert (result.votes, result.votes_left, result.pairs, result.pairs_left) == (10, 10, 5, 5)
    assert project_imports(db, other_project.id) == []
    with pytest.raises(StoreError, match="has no import"):
        undo_import(db, other_project.id, result.id)
    expected = ImportUndo(votes=10, pairs=5, staying=0, prompts=0, models=0)
    assert preview_undo(db, project.id, result.id) == expected
    assert len(live(db, project)) == 10  # the preview removes nothing
    assert undo_import(db, project.id, result.id) == expected
    assert live(db, project) == []
    assert projects.count_pairs(db, project.id) == votes.count_unvoted_pairs(db, project.id, "me") == 0
    assert projects.newest_pairs(db, project.id, 9) == unjudged_pairs(db, project.id, 9) == []
    assert pair_leases.lease_pair(db, project.id, "me") is votes.next_unvoted_pair(db, project.id, "me") is None
    (result,) = project_imports(db, project.id)
    assert (result.votes, result.votes_left, result.pairs, result.pairs_left) == (10, 0, 5, 0)
    assert result.taken_back_at is not None
    for function in (undo_import, preview_undo):
        with pytest.raises(StoreError, match=r"v\.jsonl has already been undone"):
            function(db, project.id, result.id)


def test_the_command(tmp_path, files, capsys):
    home, path = str(tmp_path / "home"), str(files.rows("v.jsonl", ROWS))
    assert main(["imports", "--home", home]) == 1
    assert "There is no lab" in capsys.readouterr().err
    assert main(["import", path, "--home", home]) == 0
    capsys.readouterr()
    assert main(["imports", "--home", home]) == 0
    assert re.fullmatch(
        r"1: \d{4}-\d\d-\d\d \d\d:\d\d v\.jsonl by command line: 10 votes, 5 new pairs\n",
        capsys.readouterr().out,
    )
    assert main(["imports", "--home", home, "--undo", "1"]) == 0
    assert capsys.readouterr().out == "10 votes and 5 pairs will be removed. Add --yes to undo it.\n"
    assert main(["imports", "--home", home, "--undo", "1", "--yes", "--json"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert (reply["taken_back"], reply["votes"], reply["pairs"]) == (True, 10, 5)
    assert main(["imports", "--home", home, "--undo", "1", "--yes"]) == 1
    assert "has already been undone" in capsys.readouterr().err
    assert main(["imports", "--home", home, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["imports"]
    assert (one["votes"], one["votes_left"], one["pairs_left"]) == (10, 0, 0)


def test_pairs_with_later_votes_stay_after_undo(db, project, import_rows, gaps):
    """Votes before the undo and during it; a changed vote is the person's own."""
    import_rows()
    vote(db, project, "p0")
    (imported_vote, _), *_ = vote_history(db, project.id, "a")  # the newest: p4
    pair_leases.change_vote(
        db, project.id, imported_vote.id, Vote("changed", imported_vote.pair_id, "a", Source.HUMAN, Choice.TIE, True)
    )
    result = project_imports(db, project.id)[0]
    assert preview_undo(db, project.id, result.id) == ImportUndo(votes=9, pairs=3, staying=2, prompts=0, models=0)
    gaps += [None, lambda: vote(db, project, "p1")]  # after the first chunk, whose end separates p1's votes
    undone = undo_import(db, project.id, result.id)
    assert undone == ImportUndo(votes=9, pairs=2, staying=3, prompts=0, models=0)
    assert live(db, project) == [("p0", "me"), ("p1", "me"), ("p4", "a")]
    assert projects.count_pairs(db, project.id) == 3


def test_features_of_undone_pairs_are_deleted(db, project, import_rows):
    import_rows()
    vote(db, project, "p0")
    texts = [completion for _, completion in texts_without_features(db, project.id, 99)]
    add_features(db, {text.id: TextFeatures(1, np.ones(1, np.float16)) for text in texts})
    undo_import(db, project.id, 1)
    left = load_features(db, [text.id for text in texts])
    assert sorted(text.text for text in texts if text.id in left) == ["a p0", "b p0"]


def test_existing_pairs_stay_without_votes_after_undo(db, project, import_rows):
    """Texts of the project's own model, and an earlier import whose votes a person has undone."""
    prompt = projects.prompts(db, project.id, "train")[0]
    texts = [NewCompletion(prompt.id, f"{side} {prompt.text}", (1,), "base", 1) for side in "ab"]
    one, two = projects.add_completions(db, texts)
    projects.add_pairs(db, project.id, [(one.id, two.id, "r")])
    import_rows([row("p0")])
    pair_leases.undo_last_vote(db, project.id, "ann")
    import_rows([row("Once"), row("p0", annotator="b")], name="w.jsonl")
    newest = project_imports(db, project.id)[0]
    expected = ImportUndo(votes=2, pairs=0, staying=0, prompts=0, models=0)
    assert preview_undo(db, project.id, newest.id) == undo_import(db, project.id, newest.id) == expected
    assert {pair.prompt.text for pair in projects.newest_pairs(db, project.id, 9)} == {"Once", "p0"}


def test_no_vote_or_redo_on_an_undone_pair(db, project, import_rows):
    import_rows([row("p0"), row("p1")])
    lease = pair_leases.lease_pair(db, project.id, "me")
    pair = votes.next_unvoted_pair(db, project.id, "judge:x", Source.SIMULATED)
    undo_import(db, project.id, project_imports(db, project.id)[0].id)
    with pytest.raises(StaleVoteError, match="not given to you"):
        pair_leases.vote_on_lease(db, Vote("u", lease.pair.id, "me", Source.HUMAN, Choice.FIRST, True))
    with pytest.raises(StaleVoteError, match="does not exist"):
        votes.cast_vote(db, Vote("u", pair.id, "judge:x", Source.SIMULATED, Choice.FIRST, True))
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None
    assert live(db, project) == []


def test_redo_does_not_restore_a_vote_on_an_undone_pair(db, project, import_rows):
    import_rows([row("p0")])
    vote(db, project, "p0")
    pair_leases.undo_last_vote(db, project.id, "me")
    undo_import(db, project.id, project_imports(db, project.id)[0].id)
    assert pair_leases.redo_last_vote(db, project.id, "me") is None
    assert projects.count_pairs(db, project.id) == 0


def test_redo_does_not_restore_an_imported_vote_after_undo(db, project, import_rows):
    import_rows([row("p0")])
    vote(db, project, "p0")
    undo_import(db, project.id, project_imports(db, project.id)[0].id)
    assert pair_leases.redo_last_vote(db, project.id, "ann") is None
    assert live(db, project) == [("p0", "me")]


def test_two_imports_of_the_same_pairs(db, project, import_rows):
    """What the first import added stays for the second one's votes, and is removed with these."""
    import_rows()
    import_rows([row("p0", annotator="c"), row("p1", annotator="c")], name="w.jsonl")
    second, first = project_imports(db, project.id)
    assert (second.votes, second.pairs) == (2, 0)
    assert preview_undo(db, project.id, first.id) == ImportUndo(votes=10, pairs=3, staying=2, prompts=0, models=0)
    undo_import(db, project.id, first.id)
    assert live(db, project) == [("p0", "c"), ("p1", "c")]
    expected = ImportUndo(votes=2, pairs=2, staying=0, prompts=0, models=0)
    assert preview_undo(db, project.id, second.id) == expected
    assert undo_import(db, project.id, second.id) == expected
    assert projects.count_pairs(db, project.id) == 0


def test_undoing_the_second_import_leaves_the_first(db, project, import_rows):
    import_rows()
    import_rows([row("p0", annotator="c"), row("q", annotator="c")], name="w.jsonl")
    second, _ = project_imports(db, project.id)
    assert undo_import(db, project.id, second.id) == ImportUndo(votes=2, pairs=1, staying=0, prompts=0, models=0)
    assert len(live(db, project)) == 10
    assert projects.count_pairs(db, project.id) == 5


def test_reimporting_after_undo_restores_everything_as_a_new_import(db, project, import_rows):
    import_rows()
    undo_import(db, project.id, project_imports(db, project.id)[0].id)
    done = import_rows()
    assert (done.votes, done.pairs, done.held) == (10, 0, 0)
    new, old = project_imports(db, project.id)
    assert ((new.votes_left, new.pairs_left), (old.votes_left, old.pairs)) == ((10, 5), (0, 0))
    assert projects.count_pairs(db, project.id) == 5
    undo_import(db, project.id, new.id)
    assert live(db, project) == []
    assert projects.count_pairs(db, project.id) == 0


def test_an_import_that_is_undone_while_running_stops(db, project, import_rows, gaps):
    gaps += [None, lambda: undo_import(db, project.id, project_imports(db, project.id)[0].id)]
    with pytest.raises(DataError, match="undone in the meantime"):
        import_rows()
    assert live(db, project) == []
    assert projects.count_pairs(db, project.id) == 0


def test_undoing_an_import_stops_another_running_one_which_can_be_repeated(db, project, import_rows, gaps):
    """It had skipped votes as already stored, and these were then removed."""
    import_rows()
    rows = [*ROWS[:4], row("q"), row("r"), *ROWS[4:]]
    gaps += [None, lambda: undo_import(db, project.id, project_imports(db, project.id)[-1].id)]
    with pytest.raises(DataError, match="undone in the meantime, so this one ended"):
        import_rows(rows, name="w.jsonl")
    gaps.clear()
    import_rows(rows, name="w.jsonl")
    assert live(db, project) == sorted((one["prompt"], one["annotator"]) for one in rows)
    assert projects.count_pairs(db, project.id) == 7


def test_no_import_starts_during_an_undo(db, project, import_rows, gaps):
    import_rows()
    refused = []

    def begin():
        with pytest.raises(DataError, match="is being undone"):
            import_rows(name="w.jsonl")
        refused.append(True)

    gaps += [begin, begin]
    undo_import(db, project.id, project_imports(db, project.id)[0].id)
    assert refused == [True, True]
    assert len(project_imports(db, project.id)) == 1
    assert import_rows(name="w.jsonl").votes == 10


def test_an_interrupted_undo_can_be_repeated_and_concurrent_undos_add_up(db, project, import_rows, gaps):
    import_rows()
    one = project_imports(db, project.id)[0].id
    gaps += [None, lambda: 1 / 0]
    with pytest.raises(ZeroDivisionError):
        undo_import(db, project.id, one)
    left = project_imports(db, project.id)[0]
    assert (left.votes_left, left.pairs_left) == (7, 4)
    rest = []
    gaps += [None, lambda: rest.append(undo_import(db, project.id, one))]
    first = undo_import(db, project.id, one)
    assert (first.votes + rest[0].votes, first.pairs + rest[0].pairs) == (7, 4)
    assert live(db, project) == []


def test_undo_does_not_change_reward_models(db, project, import_rows):
    import_rows()
    one = project_imports(db, project.id)[0].id
    pinned = label_snapshots.snapshot_labels(db, project.id, Source.HUMAN)
    add_reward_model(db, project.id, "rm/1", config={}, report={}, snapshot=pinned)
    labels, people = label_snapshots.load_comparisons(db, pinned), label_snapshots.annotator_per_vote(db, pinned)
    assert preview_undo(db, project.id, one).models == undo_import(db, project.id, one).models == 1
    assert label_snapshots.load_comparisons(db, pinned) == labels
    assert label_snapshots.annotator_per_vote(db, pinned) == people
    assert label_snapshots.snapshot_labels(db, project.id, Source.HUMAN).vote_ids == ()
    assert label_snapshots.count_live_labels(db, project.id, newest_listed(db, project.id)) == 0


def test_undo_disables_imported_prompts_unless_another_import_uses_them(db, project, import_rows):
    import_rows([row("p0"), row("Once")], use_prompts=True)  # "Once" is the project's own
    import_rows([row("p1"), row("p0", annotator="b")], use_prompts=True)
    import_rows([row("p1", annotator="c")], name="labels.jsonl")
    _, second, first = project_imports(db, project.id)

    def sampled():
        return {p.text for part in ("train", "eval") for p in projects.prompts(db, project.id, part)}

    assert sampled() == {"Once", "Far", "p0", "p1"}
    assert preview_undo(db, project.id, first.id).prompts == undo_import(db, project.id, first.id).prompts == 0
    assert sampled() == {"Once", "Far", "p0", "p1"}  # the second wants p0 too
    assert preview_undo(db, project.id, second.id).prompts == undo_import(db, project.id, second.id).prompts == 2
    assert sampled() == {"Once", "Far"}
    import_rows([row("p1", annotator="d")], use_prompts=True)
    assert sampled() == {"Once", "Far", "p1"}

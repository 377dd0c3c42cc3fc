"""An import is taken back: only what it brought goes, whatever people, other imports and reward models do meanwhile."""

import json
import re

import pytest
from sqlalchemy import select
from stores import *  # noqa: F403

from rlhf_lab.cli.main import main
from rlhf_lab.errors import DataError, StaleVoteError, StoreError
from rlhf_lab.imports import Into, save, saving
from rlhf_lab.kinds import Choice, Source
from rlhf_lab.records import NewCompletion, Vote
from rlhf_lab.store import comparisons, imports, leases, projects
from rlhf_lab.store import tables as t
from rlhf_lab.store.imports import TakenBack, imports_of, take_back, what_goes
from rlhf_lab.store.labelling import history
from rlhf_lab.store.runs import add_reward_model
from rlhf_lab.store.scores import unjudged_pairs


def row(prompt, winner="first", annotator="ann", **more):
    texts = {"first": f"{prompt} a", "second": f"{prompt} b"}
    return {"prompt": prompt, **texts, "winner": winner, "annotator": annotator} | more


ROWS = [row(f"p{i // 2}", annotator="ab"[i % 2]) for i in range(10)]  # a and b on five pairs


@pytest.fixture
def gaps(monkeypatch):
    """What happens while an import or its taking back rests, one thing a gap; pieces of three."""
    todo = []
    monkeypatch.setattr(saving, "PIECE", 3)
    monkeypatch.setattr(imports, "PIECE", 3)
    monkeypatch.setattr(imports.time, "sleep", lambda _: todo and (todo.pop(0) or (lambda: None))())
    return todo


@pytest.fixture
def bring(db, project, files, gaps):
    def bring_(rows=ROWS, name="v.jsonl", **into):
        return save(db, files.found(name, rows), Into(project.id, **into))

    return bring_


def live(db, project):
    """(prompt, annotator) of the live votes."""
    query = (
        select(t.prompts.c.text, t.votes.c.annotator)
        .join(projects.FIRST, projects.FIRST.c.prompt_id == t.prompts.c.id)
        .join(t.pairs, t.pairs.c.first_id == projects.FIRST.c.id)
        .join(t.votes, t.votes.c.pair_id == t.pairs.c.id)
        .where(t.votes.c.undone_at.is_(None), t.pairs.c.project_id == project.id)
    )
    with db.read() as conn:
        return sorted(tuple(found) for found in conn.execute(query))


def vote(db, project, prompt, annotator="me", choice=Choice.FIRST):
    """Somebody gets pairs until it is this one, and votes on it."""
    while True:
        found = leases.lease_pair(db, project.id, annotator)
        assert found is not None
        mine = found.pair.prompt.text == prompt
        given = Vote(f"{annotator} {found.pair.id}", found.pair.id, annotator, Source.HUMAN, choice, True)
        cast = leases.cast_leased(db, given)
        if mine:
            return cast


def test_an_import_is_listed_and_goes_whole(db, project, bring):
    apart = projects.create_project(db, "another", "embedded", "abc", "tales", 7, [("Once", "train")])
    bring(who="ann")
    (found,) = imports_of(db, project.id)
    assert (found.name, found.who, found.taken_back_at) == ("v.jsonl", "ann", None)
    assert (found.votes, found.votes_left, found.pairs, found.pairs_left) == (10, 10, 5, 5)
    assert imports_of(db, apart.id) == []
    with pytest.raises(StoreError, match="has no import"):
        take_back(db, apart.id, found.id)
    expected = TakenBack(votes=10, pairs=5, staying=0, prompts=0, models=0)
    assert what_goes(db, project.id, found.id) == expected
    assert len(live(db, project)) == 10  # asking takes nothing
    assert take_back(db, project.id, found.id) == expected
    assert live(db, project) == []
    assert projects.count_pairs(db, project.id) == comparisons.pool_size(db, project.id, "me") == 0
    assert projects.newest_pairs(db, project.id, 9) == unjudged_pairs(db, project.id, 9) == []
    assert leases.lease_pair(db, project.id, "me") is comparisons.next_pair(db, project.id, "me") is None
    (found,) = imports_of(db, project.id)
    assert (found.votes, found.votes_left, found.pairs, found.pairs_left) == (10, 0, 5, 0)
    assert found.taken_back_at is not None
    for again in (take_back, what_goes):
        with pytest.raises(StoreError, match=r"v\.jsonl was taken back already"):
            again(db, project.id, found.id)


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
    assert main(["imports", "--home", home, "--take-back", "1"]) == 0
    assert capsys.readouterr().out == "10 votes and 5 pairs go. Add --yes to take it back.\n"
    assert main(["imports", "--home", home, "--take-back", "1", "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["taken_back"], said["votes"], said["pairs"]) == (True, 10, 5)
    assert main(["imports", "--home", home, "--take-back", "1", "--yes"]) == 1
    assert "was taken back already" in capsys.readouterr().err
    assert main(["imports", "--home", home, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["imports"]
    assert (one["votes"], one["votes_left"], one["pairs_left"]) == (10, 0, 0)


def test_votes_given_since_stay_with_their_pairs(db, project, bring, gaps):
    """Before it and while it goes on; a changed vote is the person's own."""
    bring()
    vote(db, project, "p0")
    (mine, _), *_ = history(db, project.id, "a")  # the newest: p4
    leases.change_vote(db, project.id, mine.id, Vote("changed", mine.pair_id, "a", Source.HUMAN, Choice.TIE, True))
    found = imports_of(db, project.id)[0]
    assert what_goes(db, project.id, found.id) == TakenBack(votes=9, pairs=3, staying=2, prompts=0, models=0)
    gaps += [None, lambda: vote(db, project, "p1")]  # after the first piece, which p1's votes are divided by
    gone = take_back(db, project.id, found.id)
    assert gone == TakenBack(votes=9, pairs=2, staying=3, prompts=0, models=0)
    assert live(db, project) == [("p0", "me"), ("p1", "me"), ("p4", "a")]
    assert projects.count_pairs(db, project.id) == 3


def test_pairs_that_were_there_before_stay_without_any_vote(db, project, bring):
    """Texts of the project's own model, and an earlier import whose votes a person has undone."""
    prompt = projects.prompts(db, project.id, "train")[0]
    texts = [NewCompletion(prompt.id, f"{prompt.text} {side}", (1,), "base", 1) for side in "ab"]
    one, two = projects.add_completions(db, texts)
    projects.add_pairs(db, project.id, [(one.id, two.id, "r")])
    bring([row("p0")])
    leases.take_back(db, project.id, "ann")
    bring([row("Once"), row("p0", annotator="b")], name="w.jsonl")
    newest = imports_of(db, project.id)[0]
    expected = TakenBack(votes=2, pairs=0, staying=0, prompts=0, models=0)
    assert what_goes(db, project.id, newest.id) == take_back(db, project.id, newest.id) == expected
    assert {pair.prompt.text for pair in projects.newest_pairs(db, project.id, 9)} == {"Once", "p0"}


def test_nobody_votes_on_a_pair_that_went_or_redoes_what_went(db, project, bring):
    bring([row("p0"), row("p1")])
    held = leases.lease_pair(db, project.id, "me")
    seen = comparisons.next_pair(db, project.id, "judge:x", Source.SIMULATED)
    take_back(db, project.id, imports_of(db, project.id)[0].id)
    with pytest.raises(StaleVoteError, match="not given to you"):
        leases.cast_leased(db, Vote("u", held.pair.id, "me", Source.HUMAN, Choice.FIRST, True))
    with pytest.raises(StaleVoteError, match="does not exist"):
        comparisons.cast_vote(db, Vote("u", seen.id, "judge:x", Source.SIMULATED, Choice.FIRST, True))
    assert leases.put_back(db, project.id, "ann") is None
    assert live(db, project) == []


def test_a_vote_that_its_person_undid_does_not_come_back_on_a_pair_that_went(db, project, bring):
    bring([row("p0")])
    vote(db, project, "p0")
    leases.take_back(db, project.id, "me")
    take_back(db, project.id, imports_of(db, project.id)[0].id)
    assert leases.put_back(db, project.id, "me") is None
    assert projects.count_pairs(db, project.id) == 0


def test_an_imported_vote_is_not_redone_on_a_pair_that_stays(db, project, bring):
    bring([row("p0")])
    vote(db, project, "p0")
    take_back(db, project.id, imports_of(db, project.id)[0].id)
    assert leases.put_back(db, project.id, "ann") is None
    assert live(db, project) == [("p0", "me")]


def test_two_imports_of_the_same_pairs(db, project, bring):
    """What the first brought stays for the second's votes; with these it goes."""
    bring()
    bring([row("p0", annotator="c"), row("p1", annotator="c")], name="w.jsonl")
    second, first = imports_of(db, project.id)
    assert (second.votes, second.pairs) == (2, 0)
    assert what_goes(db, project.id, first.id) == TakenBack(votes=10, pairs=3, staying=2, prompts=0, models=0)
    take_back(db, project.id, first.id)
    assert live(db, project) == [("p0", "c"), ("p1", "c")]
    expected = TakenBack(votes=2, pairs=2, staying=0, prompts=0, models=0)
    assert what_goes(db, project.id, second.id) == expected
    assert take_back(db, project.id, second.id) == expected
    assert projects.count_pairs(db, project.id) == 0


def test_the_second_of_two_imports_leaves_the_first_alone(db, project, bring):
    bring()
    bring([row("p0", annotator="c"), row("q", annotator="c")], name="w.jsonl")
    second, _ = imports_of(db, project.id)
    assert take_back(db, project.id, second.id) == TakenBack(votes=2, pairs=1, staying=0, prompts=0, models=0)
    assert len(live(db, project)) == 10
    assert projects.count_pairs(db, project.id) == 5


def test_the_same_file_again_brings_all_back_as_another_import(db, project, bring):
    bring()
    take_back(db, project.id, imports_of(db, project.id)[0].id)
    done = bring()
    assert (done.votes, done.pairs, done.held) == (10, 0, 0)
    new, old = imports_of(db, project.id)
    assert ((new.votes_left, new.pairs_left), (old.votes_left, old.pairs)) == ((10, 5), (0, 0))
    assert projects.count_pairs(db, project.id) == 5
    take_back(db, project.id, new.id)
    assert live(db, project) == []
    assert projects.count_pairs(db, project.id) == 0


def test_an_import_that_is_taken_back_while_it_goes_on_ends(db, project, bring, gaps):
    gaps += [None, lambda: take_back(db, project.id, imports_of(db, project.id)[0].id)]
    with pytest.raises(DataError, match="taken back meanwhile"):
        bring()
    assert live(db, project) == []
    assert projects.count_pairs(db, project.id) == 0


def test_another_import_that_goes_on_ends_and_the_same_file_brings_the_rest(db, project, bring, gaps):
    """It had left votes out as held that then went."""
    bring()
    rows = [*ROWS[:4], row("q"), row("r"), *ROWS[4:]]
    gaps += [None, lambda: take_back(db, project.id, imports_of(db, project.id)[-1].id)]
    with pytest.raises(DataError, match="taken back meanwhile, and this one ended"):
        bring(rows, name="w.jsonl")
    gaps.clear()
    bring(rows, name="w.jsonl")
    assert live(db, project) == sorted((one["prompt"], one["annotator"]) for one in rows)
    assert projects.count_pairs(db, project.id) == 7


def test_no_import_begins_while_one_is_being_taken_back(db, project, bring, gaps):
    bring()
    refused = []

    def begin():
        with pytest.raises(DataError, match="is being taken back"):
            bring(name="w.jsonl")
        refused.append(True)

    gaps += [begin, begin]
    take_back(db, project.id, imports_of(db, project.id)[0].id)
    assert refused == [True, True]
    assert len(imports_of(db, project.id)) == 1
    assert bring(name="w.jsonl").votes == 10


def test_one_that_is_cut_off_is_done_again_for_the_rest_and_two_at_once_add_up(db, project, bring, gaps):
    bring()
    one = imports_of(db, project.id)[0].id
    gaps += [None, lambda: 1 / 0]
    with pytest.raises(ZeroDivisionError):
        take_back(db, project.id, one)
    left = imports_of(db, project.id)[0]
    assert (left.votes_left, left.pairs_left) == (7, 4)
    rest = []
    gaps += [None, lambda: rest.append(take_back(db, project.id, one))]
    first = take_back(db, project.id, one)
    assert (first.votes + rest[0].votes, first.pairs + rest[0].pairs) == (7, 4)
    assert live(db, project) == []


def test_reward_models_keep_what_they_learnt(db, project, bring):
    bring()
    one = imports_of(db, project.id)[0].id
    pinned = comparisons.snapshot(db, project.id, Source.HUMAN)
    add_reward_model(db, project.id, "rm/1", config={}, report={}, snapshot=pinned)
    labels, people = comparisons.comparisons(db, pinned), comparisons.annotator_of_each(db, pinned)
    assert what_goes(db, project.id, one).models == take_back(db, project.id, one).models == 1
    assert comparisons.comparisons(db, pinned) == labels
    assert comparisons.annotator_of_each(db, pinned) == people
    assert comparisons.snapshot(db, project.id, Source.HUMAN).vote_ids == ()
    assert comparisons.still_live(db, project.id, pinned) == 0


def test_prompts_that_it_brought_are_no_longer_sampled_from_unless_another_wants_them(db, project, bring):
    bring([row("p0"), row("Once")], use_prompts=True)  # "Once" is the project's own
    bring([row("p1"), row("p0", annotator="b")], use_prompts=True)
    bring([row("p1", annotator="c")], name="labels.jsonl")
    _, second, first = imports_of(db, project.id)

    def sampled():
        return {p.text for part in ("train", "eval") for p in projects.prompts(db, project.id, part)}

    assert sampled() == {"Once", "Far", "p0", "p1"}
    assert what_goes(db, project.id, first.id).prompts == take_back(db, project.id, first.id).prompts == 0
    assert sampled() == {"Once", "Far", "p0", "p1"}  # the second wants p0 too
    assert what_goes(db, project.id, second.id).prompts == take_back(db, project.id, second.id).prompts == 2
    assert sampled() == {"Once", "Far"}
    bring([row("p1", annotator="d")], use_prompts=True)
    assert sampled() == {"Once", "Far", "p1"}

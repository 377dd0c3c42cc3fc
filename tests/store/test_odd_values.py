"""Values that visitors and models may bring: ids that no row has, and texts with a NUL character. Both databases treat them
alike."""

import pytest

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Project, Vote
from rlhf_lab.errors import StaleVoteError, StoreError
from rlhf_lab.jobs import queue
from rlhf_lab.store import blind_tests, gold_pairs, pair_leases, projects, runs, tournaments, votes
from rlhf_lab.store import tables as t
from rlhf_lab.store.database import Database
from rlhf_lab.store.erasure import erase_person_rows


@pytest.mark.parametrize("number", [2**31 - 1, 2**31, -(2**31) - 1, 2**53, 2**63 - 1, -(2**63)])
def test_an_id_of_63_bits_is_that_of_no_row(db: Database, project: Project, make_pairs, number: int) -> None:
    make_pairs(2)
    assert gold_pairs.known_answers(db, [1, number, 2]) == {}
    assert projects.prompts(db, number, "train") == []
    assert blind_tests.answers(db, number) == {}
    assert votes.find_vote(db, str(number)) is None
    for call in (projects.get_pair, runs.get_run, queue.get_job):
        with pytest.raises(StoreError, match="There is no"):
            call(db, number)
    with pytest.raises(StaleVoteError, match="was not given to you"):
        pair_leases.vote_on_lease(db, Vote("u", number, "ann", Source.HUMAN, Choice.FIRST, True))
    for call in (projects.open_project, blind_tests.delete_test, tournaments.delete_tournament):
        with pytest.raises(StoreError, match="There is no"):
            call(db, number)
    queue.cancel(db, number)


def test_a_nul_character_is_replaced_in_every_text(db: Database, project: Project) -> None:
    """A tokenizer of bytes can write one, and a library can report one."""
    prompt = projects.prompts(db, project.id, "train")[0]
    new = [NewCompletion(prompt.id, text, (1,), "base", n) for n, text in enumerate(("\0a\0", "b"))]
    first, second = projects.add_completions(db, new)
    [pair] = projects.add_pairs(db, project.id, [(first.id, second.id, "random")])
    vote = Vote("u", pair.id, "ann", Source.HUMAN, Choice.FIRST, True, note="x\0y")
    votes.cast_vote(db, vote)
    projects.rename_project(db, project.id, "n\0")
    assert projects.get_pair(db, pair.id).first.text == "\ufffda\ufffd"
    assert votes.find_vote(db, "u").note == "x\ufffdy"
    assert projects.get_project(db, project.id).name == "n\ufffd"
    with db.read() as conn:
        assert conn.execute(t.votes.select().where(t.votes.c.annotator == "ann\0")).all() == []
    assert erase_person_rows(db, "ann", votes=True) == 1

"""A judge labels pairs while others work on the same project."""

from pathlib import Path

import pytest

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import NewCompletion, Pair
from rlhf_lab.jobs import judge_labelling
from rlhf_lab.judges.builtin import Judge
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.votes import cast_vote, next_unvoted_pair, vote_counts

JUDGE = Judge("length", "", "tales", lambda prompt, text: float(len(text)))


def test_two_requests_to_a_judge_share_the_pairs(db: Database, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pair that this request takes gets its label from the other one in the meantime."""
    project = projects.create_project(db, "tales", "assets/model", "abc", "tales", 7, [("Once", "train")])
    (prompt,) = projects.prompts(db, project.id, "train")
    texts = [NewCompletion(prompt.id, "a" * n, (), "base", n) for n in range(1, 9)]
    ids = [completion.id for completion in projects.add_completions(db, texts)]
    projects.add_pairs(db, project.id, [(a, b, "random") for a, b in zip(ids[::2], ids[1::2], strict=True)])
    taken: list[Pair] = []

    def take(*args: object) -> Pair | None:
        pair = next_unvoted_pair(*args)
        if pair is not None and not taken:
            cast_vote(db, judge_labelling.judge_vote(JUDGE, pair))
            taken.append(pair)
        return pair

    monkeypatch.setattr(judge_labelling, "next_unvoted_pair", take)
    assert judge_labelling.label_with_judge(db, project.id, JUDGE, 2) == {Choice.SECOND: 2}
    assert vote_counts(db, project.id)[Source.SIMULATED][Choice.SECOND] == 3
    assert judge_labelling.label_with_judge(db, project.id, JUDGE, 5) == {Choice.SECOND: 1}

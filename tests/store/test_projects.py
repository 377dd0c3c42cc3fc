from collections.abc import Callable

import pytest

from rlhf_lab.common.records import Completion, NewCompletion, Project, Prompt
from rlhf_lab.errors import LabelError, StoreError
from rlhf_lab.store import projects
from rlhf_lab.store.database import Database


def test_a_project_with_its_prompts(db: Database, project: Project) -> None:
    assert (project.name, project.model, project.model_hash) == ("tales", "assets/model", "abc")
    assert (project.prompt_set, project.seed) == ("tiny tales", 7)
    assert project.created_at > 1.7e9
    assert projects.get_project(db, project.id) == project
    other = projects.create_project(db, "replies", "m", "h", "support", 1, [("Hello", "train")])
    assert projects.projects(db) == [project, other]
    train = projects.prompts(db, project.id, "train")
    assert train == [Prompt(1, project.id, "Once", "train"), Prompt(2, project.id, "There", "train")]
    assert [prompt.text for prompt in projects.prompts(db, project.id, "eval")] == ["Far"]
    assert [prompt.text for prompt in projects.prompts(db, other.id, "train")] == ["Hello"]


def test_a_prompt_given_twice_stays_in_its_first_split(db: Database) -> None:
    recorded = [("a", "eval"), ("b", "train"), ("a", "train"), ("b", "train")]
    project = projects.create_project(db, "p", "m", "h", "s", 0, recorded)
    assert [prompt.text for prompt in projects.prompts(db, project.id, "train")] == ["b"]
    assert [prompt.text for prompt in projects.prompts(db, project.id, "eval")] == ["a"]


def test_an_unknown_split_leaves_no_half_a_project(db: Database) -> None:
    with pytest.raises(StoreError):
        projects.create_project(db, "p", "m", "h", "s", 0, [("a", "train"), ("b", "test")])
    assert projects.projects(db) == []


def test_the_current_project_is_the_one_opened_or_made_last(db: Database) -> None:
    assert projects.current_project(db) is None
    one, two = (projects.create_project(db, name, "m", "h", "s", 0, [("a", "train")]) for name in ("one", "two"))
    assert projects.current_project(db) == two
    projects.open_project(db, one.id)
    result = projects.current_project(db)
    assert result is not None
    assert result.id == one.id
    assert result.opened_at is not None
    assert result.opened_at >= two.created_at
    three = projects.create_project(db, "three", "m", "h", "s", 0, [("a", "train")])
    assert projects.current_project(db) == three


def test_a_temperature_belongs_to_one_project(db: Database, project: Project) -> None:
    other = projects.create_project(db, "other", "m", "h", "s", 0, [("a", "train")])
    assert (project.temperature, other.temperature) == (1.0, 1.0)
    projects.set_temperature(db, other.id, 0.7)
    assert [one.temperature for one in projects.projects(db)] == [1.0, 0.7]
    with pytest.raises(StoreError, match="no project 5"):
        projects.set_temperature(db, 5, 0.7)


def test_opening_counts_where_the_clock_was_set_back(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    one = projects.create_project(db, "one", "m", "h", "s", 0, [("a", "train")])
    projects.create_project(db, "two", "m", "h", "s", 0, [("a", "train")])
    monkeypatch.setattr(projects.time, "time", lambda: 5.0)
    projects.open_project(db, one.id)
    result = projects.current_project(db)
    assert result is not None
    assert result.id == one.id


def test_unknown_ids(db: Database) -> None:
    with pytest.raises(StoreError, match="no project 5"):
        projects.get_project(db, 5)
    with pytest.raises(StoreError, match="no project 5"):
        projects.open_project(db, 5)
    with pytest.raises(StoreError, match="no pair 5"):
        projects.get_pair(db, 5)
    with pytest.raises(StoreError):
        projects.add_completions(db, [NewCompletion(5, "x", (1,), "base", 0)])


def test_completions_and_pairs_come_back_whole(db: Database, project: Project) -> None:
    prompt = projects.prompts(db, project.id, "train")[1]
    text = "It's “odd”\n\u2028 ${x} <b>\U0001f600 'quoted'"
    one, two = projects.add_completions(
        db,
        [NewCompletion(prompt.id, text, (5, 0, 70_000), "run/3/40", 11), NewCompletion(prompt.id, "", (), "base", -1)],
    )
    assert one == Completion(prompt.id, text, (5, 0, 70_000), "run/3/40", 11, id=1)
    (pair,) = projects.add_pairs(db, project.id, [(two.id, one.id, "uncertainty")])
    assert (pair.first, pair.second, pair.prompt, pair.reason) == (two, one, prompt, "uncertainty")
    assert pair.project_id == project.id
    assert projects.get_pair(db, pair.id) == pair


def test_two_completions_make_one_pair_in_either_order(db: Database, make_pairs: Callable) -> None:
    old, other = make_pairs(2)
    a, b = old.first.id, old.second.id
    repeated = projects.add_pairs(db, old.project_id, [(b, a, "new"), (a, b, "new"), (a, other.first.id, "new")])
    assert repeated[0] == repeated[1] == old
    assert repeated[2].id not in (old.id, other.id)
    assert repeated[2].reason == "new"
    c, d = other.first.id, other.second.id
    extra = projects.add_completions(db, [NewCompletion(old.prompt.id, text, (1,), "base", 0) for text in "xy"])
    x, y = (one.id for one in extra)
    added = projects.add_pairs(db, old.project_id, [(x, y, "one"), (c, d, "old"), (y, x, "two"), (a, x, "three")])
    assert [(pair.first.id, pair.second.id, pair.reason) for pair in added] == [
        (x, y, "one"), (c, d, other.reason), (x, y, "one"), (a, x, "three"),
    ]  # fmt: skip


def test_invalid_pairs_are_refused(db: Database, project: Project, make_pairs: Callable) -> None:
    (pair,) = make_pairs(1)
    other_prompt = projects.prompts(db, project.id, "train")[1]
    (other,) = projects.add_completions(db, [NewCompletion(other_prompt.id, "x", (1,), "base", 0)])
    other_project = projects.create_project(db, "p", "m", "h", "s", 0, [])
    a, b = pair.first.id, other.id
    (third,) = projects.add_completions(db, [NewCompletion(pair.prompt.id, "y", (1,), "base", 0)])
    for project_id, first, second in [
        (project.id, a, a),
        (project.id, a, b),
        (project.id, a, 999),
        (other_project.id, a, third.id),
    ]:
        with pytest.raises(LabelError, match="two different completions of one prompt"):
            projects.add_pairs(
                db, project_id, [(a, third.id, "fine"), (first, second, "wrong")][project_id == other_project.id :]
            )
    with db.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM pairs").scalar() == 1


def test_answer_settings_and_features_change_together(
    db: Database, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(projects, "delete", fail)
    with pytest.raises(ZeroDivisionError):
        projects.set_answer_settings(db, project.id, 128, "Be brief.")
    assert projects.get_project(db, project.id) == project

"""New projects: their prompts, and invalid settings, which are refused before a row is stored."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from support.fake_hub import model

from rlhf_lab.config.labelling import NEW_PROJECT_LABELLING, LabellingConfig
from rlhf_lab.errors import BusyStoreError, ConfigError, ModelError
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.jobs.project_setup import (
    change_temperature,
    copy_project,
    new_project,
    open_project_on_model,
    pick_project,
)
from rlhf_lab.store.projects import (
    count_pairs,
    current_project,
    get_labelling_config,
    open_project,
    projects,
    prompts,
    set_labelling_config,
)

OWN = [f"prompt {i}" for i in range(9)]


def texts(db, project):
    return [[prompt.text for prompt in prompts(db, project.id, part)] for part in ("train", "eval")]


def test_a_project_on_own_prompts_and_a_folder(db, tmp_path):
    folder = model(tmp_path / "m")
    project = new_project(db, model=str(folder), prompt_set="mine.csv", custom_prompts=OWN, seed=3)
    assert get_labelling_config(db, project.id).sampling == "teaching"
    assert (project.name, project.prompt_set, project.seed) == ("m: mine.csv", "mine.csv", 3)
    assert len(project.model_hash) == 64
    assert texts(db, project) == [OWN[:7], OWN[7:]]


def test_own_prompts_on_the_embedded_model_have_no_shipped_pairs(db):
    assert count_pairs(db, new_project(db).id) > 0
    assert count_pairs(db, new_project(db, prompt_set="tales", custom_prompts=OWN).id) == 0


@pytest.mark.parametrize(("own", "name"), [((), "reviews"), (OWN, "mine"), (OWN, "tales")])
def test_a_copied_project_has_the_same_prompts_in_the_same_splits(db, own, name):
    project = new_project(db, prompt_set=name, custom_prompts=own, seed=5, name="x")
    copy = copy_project(db, project)
    assert copy.id != project.id
    assert texts(db, copy) == texts(db, project)
    assert (copy.name, copy.seed, copy.prompt_set) == ("x 2", 5, project.prompt_set)
    assert (count_pairs(db, copy.id) > 0) == (own == ())


def test_a_copied_project_keeps_its_labelling_rules_and_the_first_one_its_own(db):
    project = new_project(db)
    rules = LabellingConfig(sampling="diversity", overlap=3, gold_rate=0.2, markdown=True, guideline="Be kind.")
    set_labelling_config(db, project.id, rules)
    copy = copy_project(db, project)
    assert get_labelling_config(db, copy.id) == rules
    set_labelling_config(db, copy.id, LabellingConfig())
    assert get_labelling_config(db, project.id) == rules
    assert get_labelling_config(db, new_project(db).id) == NEW_PROJECT_LABELLING


def test_prompts_from_a_file(db, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(f'{{"prompt": "{text}"}}' for text in OWN))
    project = new_project(db, prompt_set=path)
    assert project.prompt_set == "mine.jsonl"
    assert texts(db, project)[0] == OWN[:7]


def test_a_name_is_one_line_of_80_characters(db):
    assert new_project(db, name="  a\n b ").name == "a b"
    assert len(new_project(db, name="x" * 200).name) == 80
    assert new_project(db, name=" ").name == "Tales"


def test_projects_that_are_made_at_the_same_time_get_different_names(db):
    """As when two operators begin the next class."""
    begin = threading.Barrier(4)

    def copy(project):
        begin.wait()
        return copy_project(db, project).name

    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(copy, [new_project(db, name="Class")] * 4))
    assert names == {"Class 2", "Class 3", "Class 4", "Class 5"}


def test_projects_of_the_same_name_get_a_number(db):
    created = [
        new_project(db, custom_prompts=OWN, name=name).name
        for name in ("a", "a", "a 2", "b 7", "b 7", "x" * 80, "x" * 80)
    ]
    assert created == ["a", "a 2", "a 3", "b 7", "b 2", "x" * 80, "x" * 75 + " 2"]


def chat_model(folder, **files):
    """A model with a chat template, and the content of other files by name."""
    model(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content)
    return folder


def test_prompts_and_temperature_suit_the_model(db, tmp_path):
    chat = str(chat_model(tmp_path / "chat"))
    embedded, base, instruct = (
        new_project(db),
        new_project(db, model=str(model(tmp_path / "m"))),
        new_project(db, model=chat),
    )
    assert [(one.prompt_set, one.temperature) for one in (embedded, base, instruct)] == [
        ("tales", 1.0),
        ("tales", 1.0),
        ("everyday", 0.7),
    ]
    assert projects(db) == [embedded, base, instruct]
    chosen = new_project(db, model=chat, prompt_set="support", temperature=1.3)
    assert (chosen.prompt_set, chosen.temperature) == ("support", 1.3)
    assert copy_project(db, chosen).temperature == 1.3


def test_shipped_pairs_belong_to_their_temperature_alone(db):
    assert count_pairs(db, new_project(db, temperature=1.0).id) > 0
    assert count_pairs(db, new_project(db, temperature=0.9).id) == 0


def test_a_changed_temperature_is_for_new_texts(db):
    with_pairs, without = new_project(db), new_project(db, custom_prompts=OWN)
    assert "stay" not in change_temperature(db, without.id, 0.5)
    message = change_temperature(db, with_pairs.id, 0.7)
    assert f"at temperature 0.7. {count_pairs(db, with_pairs.id)} pairs written at 1 are kept" in message
    assert "stay" not in change_temperature(db, with_pairs.id, 0.7)
    assert [one.temperature for one in projects(db)] == [0.7, 0.5]
    with pytest.raises(ConfigError, match="temperature = 9"):
        change_temperature(db, with_pairs.id, 9.0)
    assert projects(db)[0].temperature == 0.7


def test_a_refused_project_is_not_created(db, tmp_path):
    folder = model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    for recorded, error in (
        ({"model": str(folder)}, ModelError),
        ({"prompt_set": "poems"}, ConfigError),
        ({"temperature": 0.0}, ConfigError),
        ({"prompt_set": tmp_path / "none.txt"}, ConfigError),
    ):
        with pytest.raises(error):
            new_project(db, **recorded)
    assert projects(db) == []


def test_a_project_is_stored_together_with_its_settings(db, monkeypatch):
    """The second one fails, for example because the database is busy."""
    write, count = db.write, []

    def once(**options):
        count.append(1)
        if len(count) == 2:
            raise BusyStoreError("The database failed: another process kept it locked for too long.")
        return write(**options)

    monkeypatch.setattr(db, "write", once)
    rules = LabellingConfig(overlap=3)
    with suppress(BusyStoreError):
        new_project(db, temperature=0.7, max_new_tokens=32, labelling=rules)
    project = current_project(db)
    assert (project.temperature, project.max_new_tokens) == (0.7, 32)
    assert get_labelling_config(db, project.id) == rules


def test_the_project_opened_last_is_picked(db):
    first = pick_project(db, None)
    second = new_project(db, prompt_set="reviews")
    assert pick_project(db, None).id == second.id
    open_project(db, first.id)
    assert pick_project(db, None).id == first.id
    assert pick_project(db, second.id).id == second.id
    with pytest.raises(ConfigError, match="no project 9"):
        pick_project(db, 9)


def test_concurrent_first_visits_create_one_project(db, monkeypatch):
    barrier = threading.Barrier(2, timeout=0.5)

    def make(db, **options):
        with suppress(threading.BrokenBarrierError):
            barrier.wait()  # the other is making one as well
        return new_project(db)

    monkeypatch.setattr("rlhf_lab.jobs.project_setup.new_project", make)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: pick_project(db, None), range(2))
    assert one == other
    assert len(projects(db)) == 1


def test_a_model_opens_its_latest_project_or_a_new_one(db, tmp_path):
    embedded, other = inspect_model("embedded"), inspect_model(str(model(tmp_path / "m")))
    first = open_project_on_model(db, embedded)
    assert (first.model, count_pairs(db, first.id) > 0) == ("embedded", True)
    second = new_project(db, prompt_set="reviews")
    open_project(db, first.id)
    assert open_project_on_model(db, embedded).id == first.id  # not the newest
    created = open_project_on_model(db, other)
    assert (created.model, created.name) == (str(tmp_path / "m"), "m: tales")
    assert pick_project(db, None).id == created.id
    assert open_project_on_model(db, embedded).id == first.id
    assert pick_project(db, None).id == first.id
    open_project(db, second.id)
    assert open_project_on_model(db, other).id == created.id
    assert open_project_on_model(db, embedded).id == second.id
    assert len(projects(db)) == 3


def test_the_texts_of_the_first_project_cannot_be_computed(db, tmp_path):
    """It may be labelled by several people later; whoever knows the seed knows all texts and their age."""
    first = pick_project(db, None)
    other = open_project_on_model(db, inspect_model(str(model(tmp_path / "m"))))
    assert len({0, first.seed, other.seed}) == 3
    assert max(first.seed, other.seed) > 2**40
    assert max(first.seed, other.seed) < 2**53

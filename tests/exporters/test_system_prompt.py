"""A project's system prompt in its exports, and in an import of them."""

import json
import shutil
from pathlib import Path

import pytest
from support.exported_rows import label_rows

from rlhf_lab.cli.main import main
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import ChatSettings, NewCompletion, Vote
from rlhf_lab.exporters.dataset_folder import export_dataset
from rlhf_lab.exporters.label_export import LAYOUTS, LabelExportOptions, export_labels
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.project_index import adapt_to_project
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.jobs import system_role
from rlhf_lab.store import projects
from rlhf_lab.store.votes import cast_vote

SYSTEM = "=Answer | like a “pirate”.\n\nHuman: no"
OWN = "\n\nSystem: Be brief.\n\nHuman: Hi\n\nAssistant:"  # a prompt that begins with a message of the system itself
TURNS = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
PROMPTS = ("Once", OWN, TURNS, "Assistant: Human:")


def make_project(db, system=SYSTEM, prompts=PROMPTS, name="p", model="embedded"):
    """A project with a vote on each prompt."""
    texts = [(text, "train") for text in prompts] + [("Far", "eval")]
    chat = ChatSettings(system, {"enable_thinking": False} if system else {})
    project = projects.create_project(db, name, model, "abc", "mine", 0, texts, chat=chat)
    for number, prompt in enumerate(projects.prompts(db, project.id, "train")):
        new = [NewCompletion(prompt.id, text, (1,), "base", 3) for text in (f" a{number}", f" b{number}")]
        first, second = projects.add_completions(db, new)
        (pair,) = projects.add_pairs(db, project.id, [(first.id, second.id, "random")])
        cast_vote(db, Vote(f"{name}{number}", pair.id, "ann", Source.HUMAN, Choice.FIRST, True, created_at=1.0))
    return project


def message(role, content):
    return {"role": role, "content": content}


#: What the model reads before each answer.
READ = [
    [message("system", SYSTEM), message("user", "Once")],
    [message("system", "Be brief."), message("user", "Hi")],
    [message("system", SYSTEM), message("user", "a"), message("assistant", "b"), message("user", "c")],
    [message("system", SYSTEM), message("user", "Assistant: Human:")],
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_begin_with_the_system_prompt(db, layout):
    project = make_project(db)
    rows = label_rows(db, project, LabelExportOptions(messages=True, layout=layout))
    begin = [row["chosen"][:-1] if layout == "implicit" else row["prompt"] for row in rows]
    assert begin == READ
    assert "system" not in rows[0]


#: The same for a model whose chat template has no messages of the system.
READ_WITHOUT_ROLE = [
    [message("user", f"{SYSTEM}\n\nOnce")],
    [message("user", "Be brief.\n\nHi")],
    [message("user", f"{SYSTEM}\n\na"), message("assistant", "b"), message("user", "c")],
    [message("user", f"{SYSTEM}\n\nAssistant: Human:")],
]
WITHOUT_ROLE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }}"
    "{% endfor %}"
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_are_those_of_a_template_without_a_system_role(db, layout):
    options = LabelExportOptions(messages=True, layout=layout, system_role=False)
    rows = label_rows(db, make_project(db), options)
    assert [row["chosen"][:-1] if layout == "implicit" else row["prompt"] for row in rows] == READ_WITHOUT_ROLE


def test_an_import_of_such_messages_does_not_double_it(db, tmp_path):
    options = LabelExportOptions(messages=True, system_role=False)
    path = export_labels(db, make_project(db).id, tmp_path / "out", options)
    other = make_project(db, prompts=("Else",), name="q")
    adapted = adapt_to_project(db, parse_file(ImportRequest(str(path))), other.id)
    assert [vote.prompt for vote in adapted.votes] == ["Once", "Be brief.\n\nHi", TURNS, "Assistant: Human:"]


@pytest.mark.parametrize(
    ("system", "prompt", "is_tried"), [(SYSTEM, "Once", True), ("", OWN, True), ("", "Once", False)]
)
def test_the_command_asks_the_template(db, home, tmp_path, llama_folder, capsys, monkeypatch, system, prompt, is_tried):
    model = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    (model / "chat_template.jinja").write_text(WITHOUT_ROLE)
    tried = []
    monkeypatch.setattr(system_role, "has_system_role", lambda *command: tried.append(command) or False)
    project = make_project(db, system, (prompt,), model=str(model))
    assert main(["export", "labels", "--home", str(home), "--out", str(tmp_path / "out"), "--messages"]) == 0
    (row,) = map(json.loads, Path(capsys.readouterr().out.strip()).read_text(encoding="utf-8").splitlines())
    assert [turn["role"] for turn in row["prompt"]] == ["user"]
    assert tried == [(str(model), json.dumps(dict(project.template_arguments)))] * is_tried


def test_a_template_is_rendered_to_see_whether_it_has_a_system_role(tmp_path, llama_folder):
    model = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    (model / "chat_template.jinja").write_text(WITHOUT_ROLE)
    assert not system_role.has_system_role(str(model), '{"enable_thinking": false}')
    assert system_role.has_system_role(str(llama_folder), "{}")  # no template
    assert system_role.has_system_role(str(tmp_path / "none"), "{}")


def test_a_column_holds_it_for_plain_texts(db):
    project = make_project(db)
    rows = label_rows(db, project, LabelExportOptions())
    assert [row["prompt"] for row in rows] == list(PROMPTS)
    assert [row["system"] for row in rows] == [SYSTEM, "", SYSTEM, SYSTEM]
    assert list(label_rows(db, project, LabelExportOptions(layout="explicit"))[0]) == ["prompt", "chosen", "rejected"]
    assert "system" not in label_rows(db, make_project(db, "", name="q"), LabelExportOptions())[0]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"messages": True}, "Each row begins with it, as the message of the system."),
        ({"messages": True, "system_role": False}, "Each row begins with it, in the first message of the user"),
        ({}, "It is in the column `system`."),
        ({"layout": "explicit"}, "These columns cannot hold it"),
    ],
)
def test_card_and_provenance_name_it(db, tmp_path, options, place):
    project = make_project(db)
    folder = export_dataset(db, project.id, tmp_path / "out", LabelExportOptions(**options))
    facts = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["project"]
    assert (facts["system_prompt"], facts["template_arguments"]) == (SYSTEM, {"enable_thinking": False})
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert r'the system prompt `"=Answer | like a “pirate”.\n\nHuman: no"` before each prompt' in card
    assert place in card
    assert 'Arguments of the chat template: `{"enable_thinking": false}`.' in card


@pytest.mark.parametrize(("words", "is_lost"), [(["--layout", "explicit"], True), (["--messages"], False), ([], False)])
def test_the_command_says_where_it_is_lost(db, home, tmp_path, capsys, words, is_lost):
    make_project(db)
    assert main(["export", "labels", "--home", str(home), "--out", str(tmp_path / "out"), *words]) == 0
    assert ("do not hold the project's system prompt: use --messages" in capsys.readouterr().err) is is_lost


FORMS = [{"format": "csv"}, {"format": "parquet"}, {"messages": True}, {"messages": True, "format": "csv"}]


@pytest.mark.parametrize("form", FORMS)
def test_an_import_into_the_same_kind_of_project_does_not_double_it(db, tmp_path, form):
    """Not in the project itself, whose votes are known, nor in another one with the same system prompt."""
    project = make_project(db)
    path = export_labels(db, project.id, tmp_path / "out", LabelExportOptions(**form))
    parsed = parse_file(ImportRequest(str(path)))
    assert parsed.errors == []
    again = save_import(db, parsed, ImportTarget(project.id))
    assert (again.votes, again.held, again.prompts) == (0, 4, 0)
    other = make_project(db, prompts=("Else",), name="q")
    adapted = adapt_to_project(db, parsed, other.id)
    assert [vote.prompt for vote in adapted.votes] == list(PROMPTS)
    assert adapt_to_project(db, adapted, other.id) == adapted
    assert save_import(db, parsed, ImportTarget(other.id)).prompts == 4
    rows = label_rows(db, other, LabelExportOptions(messages=True))
    assert [row["prompt"] for row in rows][1:] == READ


@pytest.mark.parametrize("system", ["", "Be kind."])
def test_an_import_into_another_project_keeps_it(db, tmp_path, system):
    """There the prompts have it as a message of their own, which replaces the project's."""
    path = export_labels(db, make_project(db).id, tmp_path / "out", LabelExportOptions(messages=True))
    other = make_project(db, system, prompts=("Else",), name="q")
    save_import(db, parse_file(ImportRequest(str(path))), ImportTarget(other.id))
    rows = label_rows(db, other, LabelExportOptions(messages=True))
    assert [row["prompt"] for row in rows][1:] == READ


def test_a_prompt_of_the_project_that_begins_with_it_is_recognised(db, tmp_path):
    """It had the same system prompt as the project when it came in, and keeps it."""
    project = make_project(db, "Be brief.", prompts=(OWN,))
    path = export_labels(db, project.id, tmp_path / "out", LabelExportOptions(messages=True))
    assert save_import(db, parse_file(ImportRequest(str(path))), ImportTarget(project.id)).held == 1

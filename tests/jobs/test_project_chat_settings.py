"""A project's system prompt and chat template arguments: defaults for the model, and invalid values."""

import pytest
from support.fake_hub import model

from rlhf_lab.common.records import ChatSettings
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.jobs.project_setup import copy_project, new_project, open_project_on_model, parse_template_arguments
from rlhf_lab.store.projects import count_pairs, get_project, projects

THINKING = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{{ tone }}"


@pytest.fixture
def chat_model(tmp_path):
    folder = model(tmp_path / "chat")
    (folder / "chat_template.jinja").write_text(THINKING)
    return str(folder)


def test_thinking_is_off_where_the_template_can_turn_it_off(db, chat_model, tmp_path):
    project = new_project(db, model=chat_model, chat=ChatSettings("  Be kind. "))
    assert get_project(db, project.id).chat_settings == ChatSettings("Be kind.", {"enable_thinking": False})
    project = new_project(db, model=chat_model, chat=ChatSettings("", {"enable_thinking": True, "tone": "dry"}))
    assert get_project(db, project.id).template_arguments == {"enable_thinking": True, "tone": "dry"}
    assert copy_project(db, project).chat_settings == project.chat_settings
    assert new_project(db, model=str(model(tmp_path / "plain"))).chat_settings == ChatSettings()


def test_the_template_in_the_settings_of_the_tokenizer_is_read_too(tmp_path):
    folder = model(tmp_path / "chat")
    (folder / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "default", "template": "{{ enable_thinking }}"}]}'
    )
    assert inspect_model(str(folder)).template_arguments == {"enable_thinking": False}


def test_an_argument_that_the_template_does_not_read_is_refused(db, chat_model):
    with pytest.raises(ConfigError, match="does not mention thinkng"):
        new_project(db, model=chat_model, chat=ChatSettings("", {"thinkng": False}))
    with pytest.raises(ConfigError, match="template of embedded is missing"):
        new_project(db, chat=ChatSettings("", {"enable_thinking": False}))
    assert projects(db) == []


def test_pairs_that_were_written_without_a_system_prompt_do_not_come_with_one(db):
    assert count_pairs(db, new_project(db).id) > 0
    assert count_pairs(db, new_project(db, chat=ChatSettings("Be kind.")).id) == 0


def test_the_project_on_a_model_with_this_system_prompt_is_opened(db, chat_model):
    facts = inspect_model(chat_model)
    plain, kind = (open_project_on_model(db, facts, ChatSettings(prompt)) for prompt in ("", "Be kind."))
    assert plain.id != kind.id
    assert open_project_on_model(db, facts, ChatSettings("")).id == plain.id
    assert open_project_on_model(db, facts, ChatSettings("Be kind.")).id == kind.id
    assert open_project_on_model(db, facts).id == kind.id  # the one that was opened last
    assert len(projects(db)) == 2


def test_template_arguments_are_a_json_object():
    assert parse_template_arguments("") == {}
    assert parse_template_arguments('{"enable_thinking": true}') == {"enable_thinking": True}
    for text in ("enable_thinking=true", "[1]", "{"):
        with pytest.raises(ConfigError, match="not a JSON object"):
            parse_template_arguments(text)


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000])
def test_template_arguments_that_python_cannot_read_are_refused(value):
    with pytest.raises(ConfigError, match="are not a JSON object"):
        parse_template_arguments(f'{{"a": {value}')


@pytest.mark.parametrize("value", ["NaN", "[-Infinity]", "1e999"])
def test_template_arguments_have_finite_numbers(value):
    with pytest.raises(ConfigError, match="are not a JSON object"):
        parse_template_arguments(f'{{"a": {value}}}')

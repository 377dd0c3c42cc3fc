"""The Modelfile of an exported model: prompts, system prompt and sampling of the run."""

import subprocess

import pytest
from support import tiny_models
from support.modelfile import read_modelfile, render
from transformers import AutoTokenizer

from rlhf_lab.common.enums import RunStatus
from rlhf_lab.common.records import NO_CHAT_SETTINGS, ChatSettings, Run
from rlhf_lab.exporters import modelfile as module
from rlhf_lab.exporters.modelfile import modelfile
from rlhf_lab.store import projects

SYSTEM = "very happy king"
TEMPLATE = "{% for m in messages %}<{{ m.role }}> {{ m.content }} <stop> {% endfor %}{% if loud %}!{% endif %}"


@pytest.fixture
def base(tmp_path):
    return tiny_models.save_llama(tmp_path / "base")


def add_chat_template(folder, template=TEMPLATE):
    (folder / "chat_template.jinja").write_text(template)


def made(db, base, chat=NO_CHAT_SETTINGS, **config):
    """The instructions of the Modelfile ({} if there is none), and why there is none."""
    project = projects.create_project(db, "p", str(base), "", "mine", 0, [("the cat", "train")], chat=chat)
    config = {"algorithm": "ppo", **config}
    run = Run(1, project.id, None, "r", RunStatus.DONE, config, {}, 2, 9, "", 0.0, 0.0)
    text, problem = modelfile(base, project, run)
    return read_modelfile(text) if text else {}, problem


def lab_prompt(base, prompt, chat):
    backbone = tiny_models.load(base)
    backbone.chat_settings = chat
    return backbone.encode_prompt(prompt)


def served_prompt(base, instructions, *turns):
    """The ids that a server computes: BOS if the tokenizer adds it, and the rendered text."""
    roles = ["user", "assistant"] * len(turns)
    chat = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)]
    if system := instructions.get("SYSTEM"):
        chat.insert(0, {"role": "system", "content": system})
    tokenizer = AutoTokenizer.from_pretrained(base)
    ids = tokenizer(render(instructions["TEMPLATE"], chat), add_special_tokens=False).input_ids
    return [tokenizer.bos_token_id, *ids] if tokenizer("the").input_ids[0] == tokenizer.bos_token_id else ids


def test_a_chat_model_reads_the_prompts_of_the_lab(db, base):
    add_chat_template(base)
    chat = ChatSettings(SYSTEM, {"loud": True})
    instructions, problem = made(db, base, chat)
    assert (problem, instructions["FROM"], instructions["SYSTEM"]) == ("", "./model.gguf", SYSTEM)
    assert served_prompt(base, instructions, "the cat sat") == lab_prompt(base, "the cat sat", chat)
    transcript = "\n\nHuman: the cat\n\nAssistant: a dog\n\nHuman: moon\n\nAssistant:"
    assert served_prompt(base, instructions, "the cat", "a dog", "moon") == lab_prompt(base, transcript, chat)


@pytest.mark.parametrize("system", ["", SYSTEM])
def test_a_model_without_a_chat_template_reads_plain_text(db, base, system, monkeypatch):
    """No process is started for it."""
    monkeypatch.setattr(subprocess, "run", None)
    instructions, problem = made(db, base, ChatSettings(system))
    assert problem == ""
    assert served_prompt(base, instructions, "the cat sat") == lab_prompt(base, "the cat sat", ChatSettings(system))
    chat = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": "the cat sat"}]
    assert render(instructions["TEMPLATE"], chat) == (f"{system}\n\nthe cat sat" if system else "the cat sat")


def test_it_samples_as_the_run_did(db, base):
    """At its temperature from the whole vocabulary, as long as its responses, and to any of the end tokens."""
    tiny_models.set_generation_config(base, eos_token_id=[tiny_models.EOS, tiny_models.PAD], top_k=5, temperature=3.0)
    instructions, _ = made(db, base, temperature=0.7, max_new_tokens=12)
    parameters = instructions["parameters"]
    assert {name: float(value) for name, value in parameters.items()} == {
        "temperature": 0.7, "num_predict": 12, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1,
    }  # fmt: skip
    names = AutoTokenizer.from_pretrained(base).convert_ids_to_tokens([tiny_models.EOS, tiny_models.PAD])
    assert instructions["stop"] == names


def test_known_differences_are_comments(db, base, monkeypatch):
    add_chat_template(base)
    derived = {"text": "{{ .Prompt }}", "problem": "", "differences": ["It trims."]}
    monkeypatch.setattr(module, "_derive_template", lambda *_: derived)
    project = projects.create_project(db, "p", str(base), "", "mine", 0, [("the cat", "train")])
    run = Run(1, project.id, None, "r", RunStatus.DONE, {"algorithm": "ppo"}, {}, 2, 9, "", 0.0, 0.0)
    assert "\n# It trims.\n" in modelfile(base, project, run)[0]


@pytest.mark.parametrize("system", ['say """hi"""', "a\u00a0b", "zero\u200bwidth"])
def test_a_system_prompt_that_a_modelfile_cannot_hold(db, base, system):
    instructions, problem = made(db, base, ChatSettings(system))
    assert (instructions, "the system prompt contains" in problem) == ({}, True)


def test_a_template_that_cannot_be_tried(db, base, monkeypatch):
    add_chat_template(base)
    monkeypatch.setattr(module, "TEMPLATE_MODULE", "rlhf_lab.no_such_module")
    instructions, problem = made(db, base)
    assert (instructions, problem) == ({}, "the model's chat template could not be tried (the log says why)")

"""Ollama's template gives the prompt tokens of the chat template, or there is none.

The templates are written in the manner of published ones. Expected prompts come from the chat template itself.
"""

import json
import shutil
import subprocess
import sys

import pytest
from support.chat_tokenizer import CHATML, byte_tokenizer
from support.modelfile import render
from tokenizers.processors import TemplateProcessing

from rlhf_lab.common.chat_format import prompt_of_chat
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.models.chat_prompts import encode_chat_prompt
from rlhf_lab.models.ollama_template import DIFFERENCES, ollama_template
from rlhf_lab.models.text_tokenizer import TextTokenizer

WHITE_SPACE, THOUGHTS = DIFFERENCES
GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
DERIVABLE = {
    "plain": (CHATML, ()),
    "default system prompt": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are \"it\" {{ '{{' }}.<|im_end|>\n{% endif %}" + CHATML,
        (),
    ),
    "BOS, no white space": (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n\n{{ m.content | trim }}<|im_end|>{% endfor %}[assistant]\n\n",
        (WHITE_SPACE,),
    ),
    "no system role": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
        "<turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}</turn>\n{% endfor %}<turn>model\n",
        (WHITE_SPACE,),
    ),
    "brackets, BOS before each question": (
        "{% if messages[0].role == 'system' %}{% set s = '<<' + messages[0].content + '>>\n\n' %}{% set ms = messages[1:] %}"
        "{% else %}{% set s = '' %}{% set ms = messages %}{% endif %}{% for m in ms %}{% if m.role == 'user' %}"
        "{{ bos_token }}[Q] {{ s if loop.first else '' }}{{ m.content }} [/Q]{% else %} {{ m.content }} <|im_end|>{% endif %}"
        "{% endfor %}",
        (),
    ),
    "thoughts are off": (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
        "{{ m.content.split('</think>')[-1].strip() }}<|im_end|>\n{% else %}"
        + TURN + "{% endif %}{% endfor %}" + GENERATION + "<think>\n\n</think>\n\n",
        (THOUGHTS,),
    ),
    "braces around messages": ("{% for m in messages %}{{ '{' }}{{ m.content }}}\n{% endfor %}", ()),
    "characters that a Modelfile leaves out": ("{% for m in messages %}\u00a0{{ m.content }}\"\"\"{ {% endfor %}\u2060", ()),
}  # fmt: skip
UNDERIVABLE = {
    "numbers the turns": "{% for m in messages %}{{ loop.index }}. {{ m.content }}\n{% endfor %}",
    "system prompt before the last question": (
        "{% for m in messages if m.role != 'system' %}{% if loop.last and messages[0].role == 'system' %}"
        "{{ messages[0].content }}\n\n{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ),
    "capitals": "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "short messages are marked": (
        "{% for m in messages %}{{ 'Short: ' if m.content | length < 8 }}{{ m.content }}\n{% endfor %}"
    ),
    "the newest message first": "{% for m in messages | reverse %}{{ m.content }}\n{% endfor %}",
    "one question only": (
        "{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}Q: {{ messages[0].content }}\nA:"
    ),
}
CHATS = (
    [("user", "Tell me\n\nabout `cats`.")],
    [("user", "One"), ("assistant", "Two {{ .Content }}"), ("user", "Three")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"), ("assistant", "f"), ("user", "g")],
)  # fmt: skip
SYSTEMS = ("", "Answer in rhymes.\n\nAlways.")


def text_tokenizer(template, *, adds_bos=False):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    if adds_bos:
        bos = (tokenizer.bos_token, tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos[0]} $A", pair="$A $B", special_tokens=[bos]
        )
    return TextTokenizer(tokenizer, (tokenizer.eos_token_id,))


def messages(chat, system):
    turns = [{"role": role, "content": content} for role, content in chat]
    return [{"role": "system", "content": system}, *turns] if system else turns


def conversations():
    return [messages(chat, system) for chat in CHATS for system in SYSTEMS]


@pytest.mark.parametrize("name", DERIVABLE)
def test_the_prompts_have_the_tokens_of_the_chat_template(name):
    template, differences = DERIVABLE[name]
    tokenizer = text_tokenizer(template)
    found = ollama_template(tokenizer, ChatSettings(SYSTEMS[1]))
    assert (found.problem, found.differences) == ("", differences)
    for chat in conversations():
        served = tokenizer.tokenizer(render(found.text, chat), add_special_tokens=False)["input_ids"]
        assert served == encode_chat_prompt(tokenizer, prompt_of_chat(chat), ChatSettings())


@pytest.mark.parametrize("name", UNDERIVABLE)
def test_there_is_none_if_texts_depend_on_the_conversation(name):
    found = ollama_template(text_tokenizer(UNDERIVABLE[name]), ChatSettings())
    assert found.text == ""
    assert "chat template" in found.problem


def test_template_arguments_count():
    found = ollama_template(text_tokenizer(CHATML), ChatSettings(template_arguments={"think": True}))
    assert render(found.text, messages([("user", "Hi")], "")).endswith("<|im_start|>assistant\n<think>")


def test_bos_is_left_to_ollama_if_the_tokenizer_adds_it():
    """Ollama begins a prompt with BOS where the tokenizer does, so a second one in the template would be doubled."""
    template = "{{ bos_token }}" + CHATML
    found = ollama_template(text_tokenizer(template, adds_bos=True), ChatSettings())
    chat = messages([("user", "Hi")], "Be kind.")
    expected = text_tokenizer(template)
    assert "<|im_start|>" + render(found.text, chat) == expected.render_chat(chat)
    plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    without = ollama_template(text_tokenizer(plain, adds_bos=True), ChatSettings())
    assert (without.text, "begins a prompt with <|im_start|>" in without.problem) == ("", True)


def test_a_date_is_that_of_the_export():
    found = ollama_template(text_tokenizer("{{ strftime_now('%Y') }}\n" + CHATML), ChatSettings())
    assert found.differences == (
        "The chat template writes the date of the day; Ollama always writes that of the export.",
    )


def test_as_a_program(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    command = [sys.executable, "-m", "rlhf_lab.models.ollama_template", str(tmp_path), "Be kind.", '{"think": true}']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = ollama_template(text_tokenizer(CHATML), ChatSettings("Be kind.", {"think": True}))
    assert json.loads(done.stdout) == {"text": expected.text, "problem": "", "differences": []}


GO_PROGRAM = """
package main

import ("encoding/json"; "os"; "strings"; "text/template")

type Message struct{ Role, Content string }
type Case struct { Template, System string; Messages []*Message }

func main() {
    var cases []Case
    if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil { panic(err) }
    var texts []string
    for _, c := range cases {
        var text strings.Builder
        parsed := template.Must(template.New("").Option("missingkey=zero").Parse(c.Template))
        values := map[string]any{"System": c.System, "Messages": c.Messages, "Response": ""}
        if err := parsed.Execute(&text, values); err != nil { panic(err) }
        texts = append(texts, text.String())
    }
    json.NewEncoder(os.Stdout).Encode(texts)
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_go_renders_the_same(tmp_path):
    """Every template with every conversation, by Go's own text/template, which Ollama uses."""
    cases, expected = [], []
    for template, _ in DERIVABLE.values():
        source = ollama_template(text_tokenizer(template), ChatSettings()).text
        for chat in conversations():
            system = "".join(message["content"] for message in chat if message["role"] == "system")
            cases.append({"Template": source, "System": system, "Messages": chat})
            expected.append(render(source, chat))
    (tmp_path / "main.go").write_text(GO_PROGRAM)
    done = subprocess.run(
        ["go", "run", "main.go"], cwd=tmp_path, input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected

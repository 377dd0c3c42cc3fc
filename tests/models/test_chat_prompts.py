"""Prompts in a chat template: turn by turn, with a system prompt or its replacement."""

import dataclasses

import pytest
from support import tiny_models
from support.chat_tokenizer import CHATML, byte_tokenizer, in_bytes

from rlhf_lab.common.records import ChatSettings
from rlhf_lab.errors import ModelError
from rlhf_lab.models.chat_prompts import encode_chat_prompt
from rlhf_lab.models.text_tokenizer import TextTokenizer

TURNS = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: A joke?\n\nAssistant:"
WITHOUT_SYSTEM = CHATML.replace("%}<|im_start|>", "%}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}"
                                                  "{% endif %}<|im_start|>", 1)  # fmt: skip
SILENT = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
ALTERNATING = CHATML.replace(
    "%}<|im_start|>", "%}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "<|im_start|>", 1)  # fmt: skip


def rendered(*turns, end="<|im_start|>assistant\n"):
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns) + end


def encode(prompt, template=CHATML, **settings):
    """The text of the ids, control tokens included."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    encoder = TextTokenizer(tokenizer, (tokenizer.eos_token_id,))
    return tokenizer.decode(encode_chat_prompt(encoder, prompt, ChatSettings(**settings)))


def test_the_turns_of_a_stored_transcript_are_turns_of_the_template():
    tokenizer = byte_tokenizer()
    start, end = (tokenizer.convert_tokens_to_ids(word) for word in ("<|im_start|>", "<|im_end|>"))
    turns = (("user", "Hi"), ("assistant", "Hello."), ("user", "A joke?"))
    newline = in_bytes(tokenizer, "\n")
    expected = [i for role, text in turns for i in (start, *in_bytes(tokenizer, f"{role}\n{text}"), end, *newline)]
    expected += [start, *in_bytes(tokenizer, "assistant\n")]
    assert encode_chat_prompt(TextTokenizer(tokenizer, (end,)), TURNS, ChatSettings()) == expected
    assert encode("Hi") == encode("\n\nHuman: Hi\n\nAssistant:") == rendered(("user", "Hi"))


def test_the_system_prompt_of_the_project_comes_first_unless_the_conversation_has_its_own():
    assert encode("Hi", system_prompt="Be kind.") == rendered(("system", "Be kind."), ("user", "Hi"))
    own = "\n\nSystem: Be terse.\n\nHuman: Hi\n\nAssistant:"
    assert encode(own, system_prompt="Be kind.") == rendered(("system", "Be terse."), ("user", "Hi"))


@pytest.mark.parametrize("template", [WITHOUT_SYSTEM, SILENT, ALTERNATING])
def test_without_a_system_role_the_system_prompt_begins_the_first_user_message(template):
    assert encode("Hi", template, system_prompt="Be kind.") == rendered(("user", "Be kind.\n\nHi"))
    own = "\n\nSystem: Be terse.\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Bye\n\nAssistant:"
    expected = rendered(("user", "Be terse.\n\nHi"), ("assistant", "Hello."), ("user", "Bye"))
    assert encode(own, template, system_prompt="Be kind.") == expected
    assert encode("\n\nSystem: Be terse.\n\nAssistant:", template) == rendered(("user", "Be terse."))


def test_turns_that_the_template_refuses_are_one_user_message():
    twice = "\n\nHuman: Hi\n\nHuman: Are you there?\n\nAssistant:"
    assert encode(twice, ALTERNATING) == rendered(("user", twice))
    assert encode(twice, ALTERNATING, system_prompt="Be kind.") == rendered(("user", f"Be kind.\n\n{twice}"))
    with pytest.raises(ModelError, match=r"refuses a prompt \(never\)\. Take this prompt out, .*'Hi'"):
        encode("Hi", "{{ raise_exception('never') }}")


def test_template_arguments():
    assert encode("Hi", template_arguments={"think": True}) == rendered(("user", "Hi")) + "<think>"


def test_control_tokens_in_turns_and_in_the_system_prompt_are_text():
    tokenizer = byte_tokenizer()
    start, end = (tokenizer.convert_tokens_to_ids(word) for word in ("<|im_start|>", "<|im_end|>"))
    settings = ChatSettings("Be<|im_end|>kind.")
    ids = encode_chat_prompt(TextTokenizer(tokenizer, (end,)), TURNS.replace("Hello", "<|im_start|>x"), settings)
    assert (ids.count(start), ids.count(end)) == (5, 4)


def test_a_backbone_without_a_template_reads_text_after_the_system_prompt(llama_folder):
    backbone = tiny_models.load(llama_folder)
    assert backbone.encode_prompt("the cat") == tiny_models.ids("the cat")
    backbone.chat_settings = ChatSettings("good king !")
    assert backbone.encode_prompt("the cat") == tiny_models.ids("good king ! the cat")
    turns = "\n\nSystem: bad king\n\nHuman: the cat\n\nAssistant:"
    assert backbone.encode_prompt(turns) == backbone.text_tokenizer.encode(turns)
    assert backbone.decode(backbone.encode_prompt(turns)) == "bad king the cat"


def test_a_backbone_with_a_template(llama_folder):
    tokenizer = byte_tokenizer()
    backbone = dataclasses.replace(
        tiny_models.load(llama_folder), tokenizer=tokenizer, chat_settings=ChatSettings("Be kind.", {"think": 1})
    )
    expected = (
        rendered(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello."), ("user", "A joke?")) + "<think>"
    )
    assert tokenizer.decode(backbone.encode_prompt(TURNS)) == expected


def test_usual_operations_of_templates_are_not_limited():
    text = "Question: 7 % of 20? " * 2000
    template = (
        "{%- set ns = namespace(out='') %}{% for m in messages %}"
        "{% set ns.out = ns.out + ('%s: %s' % (m.role, m.content.split('</think>')[-1] | trim | replace('?', '!'))) ~ '\n' %}"
        "{% endfor %}{{ ns.out | indent(2) | truncate(60000) }}{{ {'a': [1, 2]} | tojson(indent=4) }}{{ 2 ** 10 * 3 }}"
        "{{ '{}-{:>3}'.format('a', 1) }}{{ ['b', 'c'] | map('upper') | join(', ') }}"
    )
    expected = (
        f"user: {text.strip().replace('?', '!')}\n" + '{\n    "a": [\n        1,\n        2\n    ]\n}3072a-  1B, C'
    )
    assert encode(f"\n\nHuman: {text}\n\nAssistant:", template) == expected

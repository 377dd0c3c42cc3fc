"""Chat templates are rendered in a process with limits: the text of transformers, and nothing that a template does lasts."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from jinja2 import TemplateError
from support import tiny_models
from support.chat_tokenizer import CHATML, byte_tokenizer

from rlhf_lab.common.records import ChatSettings
from rlhf_lab.errors import ModelError, TemplateLimitError
from rlhf_lab.models import chat_templates
from rlhf_lab.models.chat_prompts import encode_chat_prompt
from rlhf_lab.models.chat_templates import RENDERER, TemplateRenderer
from rlhf_lab.models.text_tokenizer import TextTokenizer

CHAT = [
    {"role": "system", "content": "Be <kind> & brief.\n"},
    {"role": "user", "content": " Grüße, 😀 \ud800\u2028 “Hi” "},
    {"role": "assistant", "content": "{{ 7 * 7 }} {% raw %}"},
    {"role": "user", "content": "Bye"},
]
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def renderer():
    with TemplateRenderer() as started:
        yield started


def text_tokenizer(template, model="someone/model"):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return TextTokenizer(tokenizer, (tokenizer.eos_token_id,), model)


@pytest.mark.parametrize(
    ("template", "arguments"),
    [
        (CHATML, {}), (CHATML, {"think": True}), (PLAIN, {}),
        ("{% for m in messages %}\n  {% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}", {}),
        ("{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.content }}"
         "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}", {}),
        ("{{ strftime_now('%Y') }}{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token is defined }}", {}),
        ("{{ messages | tojson }}{{ {'b': '<é>', 'a': 1} | tojson(indent=2, sort_keys=true) }}", {}),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ date }}", {"date": None}),
        ("{{ tools | tojson }}{{ documents[0].text }}{{ n }}", {
            "tools": [{"type": "function", "function": {"name": "f"}}], "documents": [{"title": "a", "text": "b"}],
            "n": [1, 2.5, True, {"a": None}]}),
        ("{% set ns = namespace(out='') %}{% for m in messages %}{% set ns.out = ns.out ~ m['content'] | trim %}{% endfor %}"
         "{{ ns.out | replace('<', '&lt;') }}{{ dict(a=1) }}{{ '%s-%3d' % ('a', 7) }}{{ '{:>4}'.format(1) }}", {}),
        ("{%- macro say(m) -%}<{{ m.role | upper }}>{{ m.content[:3] }}{%- endmacro -%}"
         "{{ messages | map(attribute='role') | join(', ') }}{% for m in messages[1:] %}{{ say(m) }}{% endfor %}", {}),
        ({"default": PLAIN, "tool_use": "tools: {{ tools }}"}, {}),
        ({"default": PLAIN, "tool_use": "tools: {{ tools }}"}, {"tools": [{"name": "f"}]}),
    ],
)  # fmt: skip
def test_the_text_is_that_of_transformers(template, arguments):
    encoder, before = text_tokenizer(template), [dict(message) for message in CHAT]
    expected = encoder.tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False, **arguments)
    assert encoder.render_chat(CHAT, **arguments) == expected
    assert before == CHAT


@pytest.mark.real
@pytest.mark.skipif("RLHF_LAB_SMOLLM2" not in os.environ, reason="RLHF_LAB_SMOLLM2 is not set")
@pytest.mark.parametrize("first", [0, 1])
def test_the_text_of_a_real_model(first):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(os.environ["RLHF_LAB_SMOLLM2"])
    expected = tokenizer.apply_chat_template(CHAT[first:], add_generation_prompt=True, tokenize=False)
    assert TextTokenizer(tokenizer, (0,)).render_chat(CHAT[first:]) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('Only users may speak.') }}", "Only users may speak."),
        ("{{ raise_exception('x' * 1000) }}", "x" * 300),
        ("{{ messages[7].content }}", "list object has no element 7"),
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 // 0 }}", "ZeroDivisionError: "),
        ("{{ none + 1 }}", "TypeError: unsupported operand"),
    ],
)
def test_a_template_may_refuse_a_conversation(renderer, template, message):
    with pytest.raises(TemplateError) as refusal:
        renderer.render("someone/model", template, CHAT, {})
    assert message in str(refusal.value)
    assert len(str(refusal.value)) <= 300
    assert renderer._worker.is_alive


#: A list in which every level holds the one below it several times: to compare, hash or print it takes hours.
DEEP = "{% set ns = namespace(a=0, b=0) %}{% for i in range(40) %}{% set ns.a = OPEN ns.a, ns.a CLOSE %}" \
       "{% set ns.b = OPEN ns.b, ns.b CLOSE %}{% endfor %}"  # fmt: skip
LISTS, TUPLES = DEEP.replace("OPEN", "[").replace("CLOSE", "]"), DEEP.replace("OPEN", "(").replace("CLOSE", ")")
GROWN = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = GROW %}{% endfor %}{{ ns.x | length }}"
LONG, MEMORY, NESTED = (
    "it takes longer than 0.3 s",
    "it needs more than 1,024 MB of memory",
    "its calls or values are nested without an end",
)
MUCH_TEXT = "its text of one conversation has more than 10,000,000 characters"
HOSTILE = {
    "loops": (
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        LONG,
    ),
    "comparison": (LISTS + "{{ ns.a == ns.b }}", LONG),
    "hash": (TUPLES + "{{ {ns.a: 1} }}", LONG),
    "power": ("{{ (messages | length + 9) ** (10**9) }}", LONG),
    "branching recursion": (
        "{% macro f(n) %}{% for i in range(9) %}{{ f(n + 1) if n < 40 }}{% endfor %}{% endmacro %}{{ f(0) }}", LONG,
    ),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NESTED),
    "list": ("{{ [1] * 10**10 }}", MEMORY),
    "format": ("{{ '{:{}{}}'.format(messages[0].role[0], 9999, 99999) }}", MEMORY),
    "encoding": (GROWN.replace("GROW", "(ns.x ~ 'é').encode('unicode_escape').decode('latin-1') * 2"), MEMORY),
    "many objects": (
        "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x, range(99999) | list] %}{% endfor %}",
        MEMORY,
    ),
    "output": ("{{ 'é' * 99999 }}" * 101, MUCH_TEXT),
}  # fmt: skip


@pytest.fixture
def short_time(monkeypatch):
    monkeypatch.setattr(chat_templates, "TIME_LIMIT_S", 0.3)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_template_that_exceeds_a_limit_is_refused_with_the_reason(renderer, monkeypatch, case):
    template, reason = HOSTILE[case]
    if reason == LONG:
        monkeypatch.setattr(chat_templates, "TIME_LIMIT_S", 0.3)
    template = "{% if messages[0]['content'] != 'Hi' %}" + template + "{% endif %}ok"
    with pytest.raises(TemplateLimitError, match=r"Correct it .*, or choose another model") as refusal:
        renderer.render("someone/model", template, CHAT, {})
    assert f"someone/model: its chat template cannot be used: {reason}" in str(refusal.value)
    assert renderer.render("someone/model", template, [{"role": "user", "content": "Hi"}], {}) == "ok"


@pytest.mark.parametrize(
    "template", ["{{ 10 ** (10**9) }}", f"{{{{ {'(' * 5000}1{')' * 5000} }}}}"], ids=["power", "nesting"]
)
def test_a_template_is_compiled_within_the_limits(renderer, short_time, template):
    """jinja2 computes what is constant then."""
    with pytest.raises(TemplateLimitError):
        renderer.render("someone/model", template, CHAT, {})


def test_a_prompt_ends_at_the_limit_without_another_attempt(short_time):
    """Turns become one message if a template refuses them, but not if it does not end."""
    encoder = text_tokenizer("{% if 'System' not in messages[0].content %}" + HOSTILE["comparison"][0] + "{% endif %}")
    with pytest.raises(TemplateLimitError, match=r"^someone/model: .*longer than 0\.3 s"):
        encode_chat_prompt(encoder, "\n\nSystem: a\n\nHuman: b\n\nAssistant:", ChatSettings())
    with pytest.raises(TemplateLimitError):
        encode_chat_prompt(encoder, "Hi", ChatSettings("Be kind."))


def test_a_process_is_reused_and_replaced_when_it_has_ended(renderer):
    def pid():
        assert renderer.render("m", PLAIN, CHAT[3:], {}) == "[user] Bye\n"
        return renderer._worker._process.pid

    first = pid()
    assert pid() == first
    with pytest.raises(TemplateLimitError):
        renderer.render("m", HOSTILE["list"][0], CHAT, {})
    with pytest.raises(ProcessLookupError):  # not even a zombie is left
        os.kill(first, 0)
    second = pid()
    os.kill(second, signal.SIGKILL)
    os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
    assert pid() not in (first, second)


@pytest.mark.parametrize("size", [1, 3_000_000], ids=["reading", "writing"])
def test_a_process_that_hangs_is_ended(monkeypatch, size):
    with TemplateRenderer() as renderer:
        renderer.render("m", PLAIN, CHAT, {})
        pid = renderer._worker._process.pid
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(chat_templates, "WAIT_LIMIT_S", 0.2)
        with pytest.raises(TemplateLimitError, match=r"it takes longer than 0\.2 s"):
            renderer.render("m", PLAIN, [{"role": "user", "content": "a" * size}], {})
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_conversation_that_is_interrupted_does_not_answer_the_next(monkeypatch):
    with TemplateRenderer() as renderer:
        renderer.render("m", PLAIN, CHAT, {})
        with monkeypatch.context() as patch:
            patch.setattr(chat_templates._Worker, "exchange", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                renderer.render("m", "first", CHAT, {})
        assert renderer._worker is None
        assert renderer.render("m", "second", CHAT, {}) == "second"


def test_a_process_that_does_not_start(monkeypatch):
    monkeypatch.setattr(chat_templates, "WORKER_MODULE", "rlhf_lab.no_such_module")
    with pytest.raises(ModelError, match="chat templates did not start") as error:
        TemplateRenderer().render("m", PLAIN, CHAT, {})
    assert not isinstance(error.value, TemplateLimitError)


def test_threads_get_their_own_texts(renderer):
    results = []

    def work(number):
        for i in range(50):
            content = f"{number}-{i}"
            text = renderer.render("m", PLAIN, [{"role": "user", "content": content}], {})
            results.append(text == f"[user] {content}\n")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 200


def test_a_model_without_a_template_starts_no_process(monkeypatch, llama_folder):
    monkeypatch.setattr(chat_templates, "_Worker", None)
    monkeypatch.setattr(RENDERER, "_worker", None)
    assert tiny_models.load(llama_folder).encode_prompt("the cat") == tiny_models.ids("the cat")


def run(script, **options):
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, **options)


START = (
    "import os, sys; from rlhf_lab.models.chat_templates import RENDERER as r\n"
    "chat = [{'role': 'user', 'content': 'Hi'}]\n"
    "print(r.render('m', 'ok', chat, {}), r._worker._process.pid, flush=True)\n"
)


def wait_for_end(pid):
    """A process that is no child of ours. One that goes on is ended, so that it does not outlive the tests."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the process goes on")


@pytest.mark.parametrize("template", ["{{ messages }}", HOSTILE["comparison"][0]], ids=["idle", "busy"])
def test_the_process_ends_with_its_parent(template):
    """Also while it computes, when it does not notice that the connection is closed."""
    parent = run(START + f"from rlhf_lab.models import chat_templates; chat_templates.TIME_LIMIT_S = 1.0\n"
                         f"r.render('m', {template!r}, chat, {{}}); sys.stdin.read()", stdin=subprocess.PIPE)  # fmt: skip
    with parent:
        pid = int(parent.stdout.readline().split()[1])
        parent.kill()
    wait_for_end(pid)


def test_a_forked_process_starts_its_own():
    script = START + (
        "pid = os.fork()\n"
        "if pid == 0: print(r.render('m', 'forked', chat, {}), r._worker._process.pid, flush=True); r.close(); os._exit(0)\n"
        "os.waitpid(pid, 0); print(r.render('m', 'ok', chat, {}), r._worker._process.pid)"
    )
    with run(script) as process:
        (ok, first), (forked, second), (again, third) = (line.split() for line in process.stdout)
    assert (ok, forked, again) == ("ok", "forked", "ok")
    assert first == third != second


def test_the_process_has_neither_torch_nor_secrets(monkeypatch):
    script = (
        "import os, sys, rlhf_lab.models.template_worker;"
        "print('torch' in sys.modules, [name for name in os.environ if 'SECRET' in name])"
    )
    monkeypatch.setenv("LAB_SECRET", "x")
    environment = chat_templates.minimal_environment()
    assert run(script, env=environment).communicate()[0] == "False []\n"

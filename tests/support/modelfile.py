"""Reads a Modelfile and renders its TEMPLATE as Ollama does, without Ollama and without Go.

The template is translated to jinja, action by action. A slow test of tests/models/test_ollama_template.py compares this with Go's
own text/template, if Go is installed.
"""

import ast
import re

from jinja2 import Environment

#: Each action of Go that the lab writes, in jinja.
ACTIONS = {
    "if .System": "{% if System %}",
    ".System": "{{ System }}",
    ".Prompt": "{{ Prompt }}",
    "range $i, $_ := .Messages": "{% for message in Messages %}",
    "$last := eq (len (slice $.Messages $i)) 1": "",
    "if $last": "{% if loop.last %}",
    "if not $last": "{% if not loop.last %}",
    'if eq .Role "user"': "{% if message.role == 'user' %}",
    'else if eq .Role "assistant"': "{% elif message.role == 'assistant' %}",
    ".Content": "{{ message.content }}",
    "else": "{% else %}",
}


def read_modelfile(text):
    """The instructions: FROM, TEMPLATE, SYSTEM as texts, parameters as a dict of texts, and the list of stop texts."""
    found = {"parameters": {}, "stop": []}
    for name, quoted, plain in re.findall(r'^([A-Z]+(?: \w+)?) (?:"""(.*?)"""|([^\n"]*))$', text, re.M | re.S):
        instruction, _, parameter = name.partition(" ")
        value = quoted or plain
        if parameter == "stop":
            found["stop"].append(value)
        elif instruction == "PARAMETER":
            found["parameters"][parameter] = value
        else:
            assert instruction not in found
            found[instruction] = value
    return found


def render(template, chat):
    """What Ollama sends to the model for a chat. Only these messages may be in it: at most one of the system, the first."""
    system = [message["content"] for message in chat if message["role"] == "system"]
    pieces, ends, jinja = [], [], ""
    for i, part in enumerate(re.split(r'\{\{( "(?:[^"\\]|\\.)*" |.*?)\}\}', template, flags=re.S)):
        assert i % 2 == 0 or part == f" {part.strip()} "  # as in Go, an action begins at the first two braces
        piece = part.strip() if i % 2 else part
        if i % 2 == 0 or piece.startswith('"'):
            pieces.append(ast.literal_eval(piece) if i % 2 else piece)
            jinja += f"{{{{ pieces[{len(pieces) - 1}] }}}}"
        elif piece == "end":
            jinja += f"{{% end{ends.pop()} %}}"
        else:
            jinja += ACTIONS[piece]
            if piece.startswith(("if ", "range ")):
                ends.append("if" if piece.startswith("if ") else "for")
    values = {"System": "".join(system), "Messages": chat, "Prompt": chat[-1]["content"], "pieces": pieces}
    return Environment(keep_trailing_newline=True).from_string(jinja).render(values)

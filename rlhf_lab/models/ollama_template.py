"""The template of Ollama that gives a model the same prompt tokens as its chat template does in the lab.

Ollama's templates are those of Go's text/template and hardly compute. Most chat templates only write fixed texts around the
messages: these are read off renderings of sentinel words. Conversations are then encoded both ways, and the template counts
only if all tokens are equal: a chat template whose text depends on the content or the place of a message has none.

`python -m rlhf_lab.models.ollama_template FOLDER SYSTEM_PROMPT ARGUMENTS` prints the `OllamaTemplate` of a model's folder, for
processes that do not import transformers. ARGUMENTS: of the chat template; both are JSON.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_lab.common.chat_format import Chat, prompt_of_chat
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.common.text import fits_modelfile
from rlhf_lab.errors import ModelError
from rlhf_lab.models.chat_prompts import encode_chat_prompt, render_chat_prompt
from rlhf_lab.models.text_tokenizer import TextTokenizer

_SYSTEM, _USER, _ANSWER, _NEXT = "s7d1q", "u2k9w", "a5x3v", "n8b4z"  # sentinels, which no template changes


def _chat(*contents: str) -> Chat:
    """A conversation that the user begins."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


#: Conversations whose tokens must be equal, without and with a message of the system.
CONVERSATIONS = (
    _chat("What is 2 + 2?"),
    _chat("Hi", "Hello.", 'What is a "set", and why {{braces}}?\n\nIn two lines, please.'),
    _chat("Eins", "Zwei", "Drei", "Vier", "Fünf 🙂"),
)
#: What Ollama writes otherwise than many chat templates, and a conversation that shows it.
DIFFERENCES = {
    "The chat template removes white space around a message; Ollama keeps it.": _chat("  Hi\n\n"),
    "The chat template leaves thoughts (<think>) out of earlier answers; Ollama keeps them.": _chat(
        "Hi", "<think>\nA greeting.\n</think>\n\nHello.", "And now?"
    ),
}
_DATE_FUNCTION = "strftime_now"
_DATE_DIFFERENCE = "The chat template writes the date of the day; Ollama always writes that of the export."


@dataclass(frozen=True)
class OllamaTemplate:
    """text: "" if there is none, and then `problem` says why. differences: known ones for other messages, as sentences."""

    text: str = ""
    problem: str = ""
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pieces:
    """The texts around the messages of a conversation.

    head: before the first message, without a system prompt; with one, before_system and after_system stand around it instead.
    after_user: between a message of the user and its answer, the last one excepted. after_answer: up to the user's next message.
    answer_start: after the last message, up to where the answer begins.
    """

    head: str
    before_system: str
    after_system: str
    after_user: str
    after_answer: str
    answer_start: str

    def render(self, chat: Chat) -> str:
        """The text that Ollama writes with `source`."""
        is_led = chat[0]["role"] == "system"
        parts = [f"{self.before_system}{chat[0]['content']}{self.after_system}" if is_led else self.head]
        turns = chat[is_led:]
        for message in turns[:-1]:
            parts += [message["content"], self.after_user if message["role"] == "user" else self.after_answer]
        return "".join([*parts, turns[-1]["content"], self.answer_start])

    def source(self) -> str:
        """The template. `$last`: whether a message is the last one; an answer there is continued."""
        after_user = _literal(self.answer_start)
        if self.after_user != self.answer_start:
            after_user = f"{{{{ if $last }}}}{after_user}{{{{ else }}}}{_literal(self.after_user)}{{{{ end }}}}"
        return (
            f"{{{{ if .System }}}}{_literal(self.before_system)}{{{{ .System }}}}{_literal(self.after_system)}"
            f"{{{{ else }}}}{_literal(self.head)}{{{{ end }}}}"
            "{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}"
            f'{{{{ if eq .Role "user" }}}}{{{{ .Content }}}}{after_user}'
            '{{ else if eq .Role "assistant" }}{{ .Content }}'
            f"{{{{ if not $last }}}}{_literal(self.after_answer)}{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
        )


def _literal(text: str) -> str:
    """A text within a template: as it is, or as a string of Go."""
    if fits_modelfile(text) and "{{" not in text and not text.endswith("{"):
        return text
    return f'{{{{ "{"".join(map(_escape, text))}" }}}}'


def _escape(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def ollama_template(tokenizer: TextTokenizer, settings: ChatSettings) -> OllamaTemplate:
    """The template for a tokenizer with a chat template, and the settings of a project.

    The lab's prompts (`encode_chat_prompt`) are compared with those of Ollama: BOS, if the tokenizer begins texts with it, and
    the tokens of the rendered text.
    """
    pieces = _read_pieces(tokenizer, settings)
    if pieces is None:
        return OllamaTemplate(problem="the model's chat template changes messages, or their order")
    bos = _bos_of_texts(tokenizer)
    if bos:
        if not (pieces.head.startswith(bos) and pieces.before_system.startswith(bos)):
            return OllamaTemplate(problem=f"Ollama begins a prompt with {bos}, and the model's chat template does not")
        pieces = dataclasses.replace(
            pieces, head=pieces.head.removeprefix(bos), before_system=pieces.before_system.removeprefix(bos)
        )
    systems = [[{"role": "system", "content": text}] for text in ("Be kind.", settings.system_prompt) if text]
    for conversation in CONVERSATIONS:
        for chat in (conversation, *(system + conversation for system in systems)):
            if not _is_same(tokenizer, pieces, chat, settings):
                return OllamaTemplate(problem="the model's chat template writes other texts for other messages")
    differences = [text for text, chat in DIFFERENCES.items() if not _is_same(tokenizer, pieces, chat, settings)]
    if _DATE_FUNCTION in str(tokenizer.tokenizer.chat_template):
        differences.append(_DATE_DIFFERENCE)
    return OllamaTemplate(pieces.source(), differences=tuple(differences))


def _read_pieces(tokenizer: TextTokenizer, settings: ChatSettings) -> Pieces | None:
    """The texts around sentinels; None if a sentinel is missing, doubled or at another place."""
    bare = _around(tokenizer, settings, _chat(_USER))
    led = _around(tokenizer, settings, [{"role": "system", "content": _SYSTEM}, *_chat(_USER)])
    long = _around(tokenizer, settings, _chat(_USER, _ANSWER, _NEXT))
    return Pieces(bare[0], led[0], led[1], long[1], long[2], bare[1]) if bare and led and long else None


def _around(tokenizer: TextTokenizer, settings: ChatSettings, chat: Chat) -> Sequence[str]:
    """The texts before, between and after the messages; empty if they are not all there once, in their order."""
    rest, texts = render_chat_prompt(tokenizer, prompt_of_chat(chat), _without_system(settings)), []
    for message in chat:
        before, found, rest = rest.partition(message["content"])
        if not found or message["content"] in rest:
            return []
        texts.append(before)
    return [*texts, rest]


def _without_system(settings: ChatSettings) -> ChatSettings:
    return dataclasses.replace(settings, system_prompt="")


def _bos_of_texts(tokenizer: TextTokenizer) -> str:
    """The text of BOS if the tokenizer begins every text with it, as servers then do with a prompt; otherwise ""."""
    bos, bos_id = tokenizer.tokenizer.bos_token, tokenizer.tokenizer.bos_token_id
    return str(bos) if bos and tokenizer.encode("a")[:1] == [bos_id] else ""


def _is_same(tokenizer: TextTokenizer, pieces: Pieces, chat: Chat, settings: ChatSettings) -> bool:
    served = [int(i) for i in tokenizer.tokenizer(pieces.render(chat), add_special_tokens=False)["input_ids"]]
    if _bos_of_texts(tokenizer):
        served.insert(0, tokenizer.tokenizer.bos_token_id)
    try:
        return served == encode_chat_prompt(tokenizer, prompt_of_chat(chat), _without_system(settings))
    except ModelError:
        return False


def main(folder: str, system_prompt: str, arguments: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = TextTokenizer(AutoTokenizer.from_pretrained(folder, trust_remote_code=False), ())
    try:
        template = ollama_template(tokenizer, ChatSettings(system_prompt, json.loads(arguments)))
    except ModelError as error:
        template = OllamaTemplate(problem=str(error))
    print(json.dumps(dataclasses.asdict(template)))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Conversion between chats and texts.

A chat is a list of {"role", "content"}. A prompt is a chat that the assistant answers. The lab stores it as a text, in the
first of these forms from which `chat_of_prompt` restores the same chat:

    the content                                      of a single user message
    "\\n\\nHuman: …\\n\\nAssistant: …\\n\\nAssistant:"      a transcript in the format of Anthropic's HH data
    [{"role": "user", "content": "…"}, …]            JSON, of messages that themselves look like transcripts
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

SPEAKER_BY_ROLE = {"user": "Human", "assistant": "Assistant", "system": "System"}
ROLE_BY_SPEAKER = {name: role for role, name in SPEAKER_BY_ROLE.items()}
#: Other names of roles, as in ShareGPT ({"from": "human", "value": …}) and OpenAssistant ({"role": "prompter", "text": …}).
ROLE_ALIASES = {"human": "user", "prompter": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
                "ai": "assistant"}  # fmt: skip
ROLE_KEYS, CONTENT_KEYS = ("role", "from"), ("content", "value", "text")
#: Keys of a message whose answer is not its content.
CALL_KEYS = ("tool_calls", "function_call")
TURN_SEPARATOR = "\n\n"
ASSISTANT_PREFIX = "\n\nAssistant:"

_TRANSCRIPT_START = re.compile(rf"\s*(?:{'|'.join(ROLE_BY_SPEAKER)}):")
_TURN_AFTER_CR = re.compile(rf"(\r\n?)\1(?=(?:{'|'.join(ROLE_BY_SPEAKER)}):)")
#: Names of speakers in transcripts of other forms: of the user and of the assistant.
_SPEAKERS = (
    ("human|user|prompter|usuario|utilisateur|benutzer|用户|用戶|人类|ユーザー|사용자",
     "assistant|ai|bot|chatbot|chatgpt|model|gpt|asistente|assistent|助手|机器人|アシスタント|어시스턴트"),
    ("q|question|问|問|質問", "a|answer|答|回答"),
)  # fmt: skip


def _turn_start(names: str) -> re.Pattern[str]:
    """A speaker's name at the beginning of a line, also "**User**:" and "<human>:", or with a capital letter within one."""
    capitalised = "|".join(f"{name.capitalize()}|{name.upper()}" for name in names.split("|"))
    return re.compile(
        rf"(?im:^[^\w\n]{{0,5}}(?:{names})[^\w\n:：]{{0,4}})[:：]|(?<=[\s>.!?。！？])(?:{capitalised})[:：](?!//)"
    )


_TURN_STARTS = [
    *((_turn_start(user), _turn_start(assistant)) for user, assistant in _SPEAKERS),
    tuple(re.compile(rf"(?i:[<\[](?:{names})[>\]])") for names in _SPEAKERS[0]),  # <user>, [ASSISTANT]
    (  # in lower case within a line, too, in a text that begins with the user's name
        re.compile(rf"(?i)\A[^\w\n]{{0,5}}(?:{_SPEAKERS[0][0]})[^\w\n:：]{{0,4}}[:：]"),
        re.compile(rf"(?i)(?<=[\s>.!?。！？])(?:{_SPEAKERS[0][1]})[:：](?!//)"),
    ),
]
#: Names that an answer hardly begins with otherwise, unlike "Answer:" or "Model:".
_SPEAKER_START = re.compile(r"\s*[*#>-]{0,3}\s{0,3}(?:human|user|assistant)[*\s]{0,3}[:：]", re.IGNORECASE)

Chat = list[dict[str, str]]


class UnreadableError(ValueError):
    """A value is neither a text nor a chat. The message, which is shown to people, says why."""


def require_text(value: Any) -> str:
    """The value, if it is a text. Raises UnreadableError otherwise."""
    if isinstance(value, str):
        return value
    if value is None:
        raise UnreadableError("is missing. Write it, or take the row out")
    raise UnreadableError(f"is {type_name(value)}, not a text. Put it in quotes, or take the row out")


def validate_chat(value: Sequence[Any]) -> Chat:
    """The value as a chat; keys and roles of ShareGPT and OpenAssistant are converted. Raises UnreadableError."""
    if not value:
        raise UnreadableError("is a chat without messages")
    chat = []
    for number, message in enumerate(value, 1):
        if not is_message(message):
            raise UnreadableError(f'has a message {number} that is not {{"role", "content"}}')
        role, content = (next(message[key] for key in keys if key in message) for keys in (ROLE_KEYS, CONTENT_KEYS))
        role = role_of(role) or role
        if any(message.get(key) for key in CALL_KEYS):
            raise UnreadableError(f"has a message {number} that calls a tool, which is not a text that can be compared")
        if not isinstance(role, str) or role not in SPEAKER_BY_ROLE:
            raise UnreadableError(
                f"has a message {number} of role {str(role)[:40]!r}; roles are {', '.join(SPEAKER_BY_ROLE)}"
            )
        content = join_parts(content)
        if not isinstance(content, str):
            raise UnreadableError(f"has a message {number} whose content is {type_name(content)}, not a text")
        chat.append({"role": role, "content": content})
    return chat


def role_of(name: Any) -> str:
    """The role that a speaker's name means, in any case, or ""."""
    name = name.strip().lower() if isinstance(name, str) else ""
    return ROLE_ALIASES.get(name, name if name in SPEAKER_BY_ROLE else "")


def join_parts(content: Any) -> Any:
    """The text of a content [{"type": "text", "text": …}, …] whose parts are all text. Other content is returned unchanged."""
    is_text = isinstance(content, list) and all(
        isinstance(part, dict)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text") or "", str)
        and ("type" in part or set(part) == {"text"})  # without a type: a part {"text": …}, not {"toolUse": …}
        for part in content
    )
    return join_texts(part.get("text") or "" for part in content) if is_text and content else content


def is_message(value: Any) -> bool:
    """Whether a value has the keys of a message."""
    return isinstance(value, dict) and all(any(key in value for key in keys) for keys in (ROLE_KEYS, CONTENT_KEYS))


def prompt_of_chat(chat: Chat) -> str:
    """The text that is stored for a chat. `chat_of_prompt` is the inverse."""
    texts = [to_transcript(chat)]
    if len(chat) == 1 and chat[0]["role"] == "user":
        texts.insert(0, chat[0]["content"])
    return next((text for text in texts if chat_of_prompt(text) == chat), json.dumps(chat, ensure_ascii=False))


def chat_of_prompt(text: str) -> Chat:
    """A stored prompt as a chat: the inverse of `prompt_of_chat`; any other text is one user message."""
    return _parse_json_chat(text) or _parse_transcript(text) or [{"role": "user", "content": text}]


def with_system_prompt(chat: Chat, system_prompt: str) -> Chat:
    """The chat preceded by a system message, unless the prompt is "" or the chat already begins with a system message."""
    if not system_prompt or chat[0]["role"] == "system":
        return chat
    return [{"role": "system", "content": system_prompt}, *chat]


def without_system_prompt(text: str, system_prompt: str) -> str:
    """A stored prompt without this system prompt: the inverse of `with_system_prompt`, also after `without_system_role`."""
    chat = chat_of_prompt(text)
    if len(chat) > 1 and chat[0] == {"role": "system", "content": system_prompt} and chat[1]["role"] != "system":
        return prompt_of_chat(chat[1:])
    beginning = f"{system_prompt}{TURN_SEPARATOR}"
    if chat[0]["role"] == "user" and chat[0]["content"].startswith(beginning):
        return prompt_of_chat([chat[0] | {"content": chat[0]["content"].removeprefix(beginning)}, *chat[1:]])
    return text


def without_system_role(chat: Chat) -> Chat:
    """The chat for a template without a system role: its system message at the beginning of the user message after it, before an
    empty line."""
    system, *turns = chat
    if system["role"] != "system":
        return chat
    if not turns or turns[0]["role"] != "user":
        return [{"role": "user", "content": system["content"]}, *turns]
    return [{"role": "user", "content": f"{system['content']}{TURN_SEPARATOR}{turns[0]['content']}"}, *turns[1:]]


def turns_of_prompt(text: str, system_prompt: str = "") -> Chat:
    """The messages of a stored prompt that the model reads, including the system prompt."""
    return with_system_prompt(chat_of_prompt(text), system_prompt)


def plain_prompt(text: str) -> str:
    """A stored prompt as plain text: a chat in JSON as a transcript, any other prompt unchanged."""
    chat = _parse_json_chat(text)
    return to_transcript(chat) if chat else text


def plain_prompt_with_system(prompt: str, system_prompt: str) -> str:
    """A stored prompt for a model without a chat template: its text, after the system prompt and an empty line."""
    text = plain_prompt(prompt)
    return f"{system_prompt}\n\n{text}" if system_prompt and chat_of_prompt(prompt)[0]["role"] != "system" else text


def to_transcript(chat: Chat) -> str:
    turns = [f"{TURN_SEPARATOR}{SPEAKER_BY_ROLE[message['role']]}: {message['content']}" for message in chat]
    return "".join(turns) + ASSISTANT_PREFIX


def continued_text(chat: Chat) -> str:
    """The messages joined into one text, for a model without a chat template. A space is inserted where two words would merge."""
    text = ""
    for message in chat:
        text = join_texts((text, message["content"])) if message["role"] == "user" else text + message["content"]
    return text


def join_texts(texts: Iterable[str]) -> str:
    """The texts one after the other, with a space where two words would merge."""
    joined = ""
    for text in texts:
        would_merge = joined and text and not (joined[-1].isspace() or text[0].isspace())
        joined += f" {text}" if would_merge else text
    return joined


def is_transcript(text: str) -> bool:
    return text.startswith(tuple(f"{TURN_SEPARATOR}{name}:" for name in ROLE_BY_SPEAKER))


def normalize_transcript(text: str, *, is_prompt: bool) -> str:
    """A transcript as HH writes it, however its lines end and it begins; any other text unchanged.

    A prompt ends with "Assistant:", without white space after it. Elsewhere that belongs to the answer.
    """
    unified = _TURN_AFTER_CR.sub(TURN_SEPARATOR, text)  # line ends within messages stay
    if not _TRANSCRIPT_START.match(unified) or "\nAssistant:" not in unified:
        return text
    unified = TURN_SEPARATOR + unified.lstrip()
    is_open = is_prompt and unified.rstrip().endswith(ASSISTANT_PREFIX)
    return unified.rstrip() if is_open else unified


def looks_like_transcript(text: str) -> bool:
    """Whether a prompt has turns of two speakers, each in a line of its own or not, and is read as one message of the user."""
    lines = re.sub(r"\r\n?", "\n", text)
    has_turns = any(all(start.search(lines) for start in starts) for starts in _TURN_STARTS)
    return has_turns and chat_of_prompt(text) == [{"role": "user", "content": text}]


def without_prompt(text: str, prompt: str) -> str:
    """The text after the turns of a stored prompt, or after a transcript of another form that is the prompt; a text that begins
    otherwise unchanged."""
    transcript, chat = normalize_transcript(text, is_prompt=False), chat_of_prompt(prompt)
    if is_transcript(transcript):
        ends = (match.end() for match in re.finditer(ASSISTANT_PREFIX, transcript))
        if end := next((end for end in ends if chat_of_prompt(transcript[:end]) == chat), 0):
            answer = transcript[end:]
            return answer if is_transcript(prompt) else answer.removeprefix(" ")
    beginning = prompt.rstrip()
    is_repeated = text.startswith(beginning) and looks_like_transcript(prompt)
    return text[len(beginning) :] if is_repeated else text


def begins_with_turn(text: str) -> bool:
    """Whether an answer begins with the name of a speaker, as a transcript does. Questions and answers are common in answers."""
    if is_transcript(normalize_transcript(text, is_prompt=False)) or _SPEAKER_START.match(text):
        return True
    lines = text.lstrip()
    return looks_like_transcript(lines) and any(start.match(lines) for start in (*_TURN_STARTS[0], *_TURN_STARTS[2]))


def _parse_transcript(text: str) -> Chat | None:
    """The chat of a transcript that ends with an empty turn of the assistant; None for any other text."""
    if not is_transcript(text) or not text.endswith(ASSISTANT_PREFIX):
        return None
    messages: Chat = []
    for segment in text.removesuffix(ASSISTANT_PREFIX).split(TURN_SEPARATOR):
        name, separator, content = segment.partition(": ")
        if separator and name in ROLE_BY_SPEAKER:
            messages.append({"role": ROLE_BY_SPEAKER[name], "content": content})
        elif messages:
            messages[-1]["content"] += TURN_SEPARATOR + segment
    return messages if to_transcript(messages) == text else None


def _parse_json_chat(text: str) -> Chat | None:
    """The chat of a text that `prompt_of_chat` wrote as JSON; None for any other text."""
    if not text.startswith('[{"role": "'):
        return None
    try:
        chat = validate_chat(json.loads(text))
    except (ValueError, RecursionError):
        return None
    return chat if prompt_of_chat(chat) == text else None


def require_conversation(value: Any) -> Chat | str:
    """The value, if it is a chat or a text. Raises UnreadableError otherwise."""
    return validate_chat(value) if isinstance(value, list) else require_text(value)


def split_shared_prefix(chosen: Any, rejected: Any) -> tuple[str, str, str]:
    """Split two conversations into (prompt, chosen, rejected), where the prompt is their common beginning.

    Raises UnreadableError, whose message refers to both conversations.
    """
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _split_chats(validate_chat(chosen), validate_chat(rejected))
    return _split_texts(require_text(chosen), require_text(rejected))


def _split_chats(chosen: Chat, rejected: Chat) -> tuple[str, str, str]:
    shared_count = common_prefix_length(chosen, rejected)
    shared_count = min(shared_count, len(chosen) - 1, len(rejected) - 1)
    if shared_count < 1:
        raise UnreadableError("share no message that could be the prompt")
    return (
        prompt_of_chat(chosen[:shared_count]),
        _continuation_text(chosen[shared_count:]),
        _continuation_text(rejected[shared_count:]),
    )


def _continuation_text(turns: Chat) -> str:
    """The continuation of a prompt as text: an answer, or as a transcript several turns that begin and end with an answer."""
    roles = [message["role"] for message in turns]
    if len(turns) % 2 == 1 and roles == (["assistant", "user"] * len(turns))[: len(turns)]:
        return to_transcript(turns).removeprefix(f"{ASSISTANT_PREFIX} ").removesuffix(ASSISTANT_PREFIX)
    return parse_response(turns)


def _split_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    if is_transcript(chosen) and is_transcript(rejected):
        prefix_start = chosen.rfind(ASSISTANT_PREFIX, 0, common_prefix_length(chosen, rejected))
        if prefix_start >= 0:
            end = prefix_start + len(ASSISTANT_PREFIX)
            return chosen[:end], chosen[end:], rejected[end:]
        raise UnreadableError('share no beginning up to an "Assistant:" that could be the prompt')
    end = common_prefix_length(chosen, rejected)
    end = _word_boundary(chosen, rejected, end)
    if not chosen[:end].strip():
        raise UnreadableError("share no beginning that could be the prompt. Give the prompt a column of its own")
    return chosen[:end], chosen[end:], rejected[end:]


def _word_boundary(a: str, b: str, end: int) -> int:
    """The end of the prefix, moved back to a word boundary. White space after it belongs to the responses, as in samples."""
    if end < len(a) and end < len(b):
        while end and not a[end - 1].isspace():
            end -= 1
    return len(a[:end].rstrip())


def parse_response(value: Any, prompt: str | None = None) -> str:
    """The response in a text, an assistant message, or a chat that has only this message, possibly after the prompt.

    Raises UnreadableError.
    """
    if isinstance(value, dict) and is_message(value):
        value = [value]
    if not isinstance(value, list):
        return require_text(value)
    *turns, last = validate_chat(value)
    if last["role"] != "assistant" or (turns and prompt is None):
        raise UnreadableError("must be one message of the assistant")
    if turns and prompt is not None and turns != chat_of_prompt(prompt):
        raise UnreadableError("must be one message of the assistant, after nothing or after the messages of the prompt")
    return last["content"]


def parse_prompt(value: Any) -> str:
    """A prompt from a text or a chat. Raises UnreadableError."""
    return prompt_of_chat(validate_chat(value)) if isinstance(value, list) else require_text(value)


def common_prefix_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)


def type_name(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        type(None): "null",
    }
    return names.get(type(value), type(value).__name__)

"""Texts out of conversations and transcripts, and back.

A chat is a list of {"role", "content"}. The lab stores texts: one message of a user is its content; a longer chat is a
transcript in the form of Anthropic's HH data, "\\n\\nHuman: …\\n\\nAssistant: …", which `chat` takes apart again.
"""

from collections.abc import Sequence
from typing import Any

NAMES = {"user": "Human", "assistant": "Assistant", "system": "System"}
ROLES = {name: role for role, name in NAMES.items()}
TURN = "\n\n"
ANSWER = "\n\nAssistant:"

Chat = list[dict[str, str]]


class UnreadableError(ValueError):
    """Why a value is neither a text nor a chat; in words for a person."""


def text_of(value: Any) -> str:
    """A text as it is. Raises UnreadableError for anything else."""
    if isinstance(value, str):
        return value
    if value is None:
        raise UnreadableError("is missing. Write it, or take the row out")
    raise UnreadableError(f"is {_kind(value)}, not a text. Put it in quotes, or take the row out")


def chat_of(value: Sequence[Any]) -> Chat:
    """A checked chat."""
    if not value:
        raise UnreadableError("is a chat without messages")
    chat = []
    for number, message in enumerate(value, 1):
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            raise UnreadableError(f'has a message {number} that is not {{"role", "content"}}')
        role, content = message["role"], message["content"]
        if not isinstance(role, str) or role not in NAMES:
            raise UnreadableError(f"has a message {number} of role {str(role)[:40]!r}; roles are {', '.join(NAMES)}")
        if not isinstance(content, str):
            raise UnreadableError(f"has a message {number} whose content is {_kind(content)}, not a text")
        chat.append({"role": role, "content": content})
    return chat


def transcript(chat: Chat) -> str:
    """The chat as one text."""
    if len(chat) == 1 and chat[0]["role"] == "user" and not is_transcript(chat[0]["content"]):
        return chat[0]["content"]
    return "".join(f"{TURN}{NAMES[message['role']]}: {message['content']}" for message in chat) + ANSWER


def is_transcript(text: str) -> bool:
    return text.startswith(tuple(f"{TURN}{name}:" for name in ROLES))


def chat(text: str) -> Chat:
    """A prompt as a chat: what `transcript` wrote, or one message of a user. transcript(chat(text)) == text, always."""
    if is_transcript(text) and text.endswith(ANSWER):
        parts: Chat = []
        for piece in text.removesuffix(ANSWER).split(TURN):
            name, sign, content = piece.partition(": ")
            if sign and name in ROLES:
                parts.append({"role": ROLES[name], "content": content})
            elif parts:
                parts[-1]["content"] += TURN + piece
        if parts and transcript(parts) == text:
            return parts
    return [{"role": "user", "content": text}]


def apart(chosen: Any, rejected: Any) -> tuple[str, str, str]:
    """(prompt, chosen, rejected) of two whole conversations with a shared beginning. Raises UnreadableError."""
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _chats_apart(chat_of(chosen), chat_of(rejected))
    return _texts_apart(text_of(chosen), text_of(rejected))


def _chats_apart(chosen: Chat, rejected: Chat) -> tuple[str, str, str]:
    shared = _common(chosen, rejected)
    shared = min(shared, len(chosen) - 1, len(rejected) - 1)
    if shared < 1:
        raise UnreadableError("and rejected share no message that could be the prompt")
    return transcript(chosen[:shared]), answer_of(chosen[shared:]), answer_of(rejected[shared:])


def _texts_apart(chosen: str, rejected: str) -> tuple[str, str, str]:
    if is_transcript(chosen) and is_transcript(rejected):
        at = chosen.rfind(ANSWER, 0, _common(chosen, rejected))
        if at >= 0:
            end = at + len(ANSWER)
            return chosen[:end], chosen[end:], rejected[end:]
        raise UnreadableError('and rejected share no beginning up to an "Assistant:" that could be the prompt')
    end = _common(chosen, rejected)
    end = _word_start(chosen, rejected, end)
    if not chosen[:end].strip():
        raise UnreadableError(
            "and rejected share no beginning that could be the prompt. Give the prompt a column of its own"
        )
    return chosen[:end], chosen[end:], rejected[end:]


def _word_start(a: str, b: str, end: int) -> int:
    """A beginning that does not end within a word; white space in between belongs to the answers, as models write it."""
    if end < len(a) and end < len(b):
        while end and not a[end - 1].isspace():
            end -= 1
    return len(a[:end].rstrip())


def answer_of(value: Any) -> str:
    """The answer in a text, or in a chat of one message of the assistant. Raises UnreadableError."""
    if not isinstance(value, list):
        return text_of(value)
    messages = chat_of(value)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise UnreadableError("must be one message of the assistant")
    return messages[0]["content"]


def prompt_of(value: Any) -> str:
    """A prompt in a text or a chat. Raises UnreadableError."""
    return transcript(chat_of(value)) if isinstance(value, list) else text_of(value)


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)


def _kind(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)

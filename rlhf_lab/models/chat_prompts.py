"""Prompts in the form of a chat template: turn by turn, with the system prompt of the project."""

from collections.abc import Callable
from typing import TypeVar

from jinja2 import TemplateError

from rlhf_lab.common.chat_format import chat_of_prompt, plain_prompt, with_system_prompt, without_system_role
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.errors import ModelError
from rlhf_lab.models.chat_templates import writes_system_role
from rlhf_lab.models.text_tokenizer import TextTokenizer

T = TypeVar("T")


def encode_chat_prompt(tokenizer: TextTokenizer, prompt: str, settings: ChatSettings) -> list[int]:
    """Token ids of a stored prompt in the chat template, up to where the answer begins.

    If a template has no place for a system prompt, the first user message begins with it. If a template rejects the order of
    the turns, they become one user message, a transcript. Raises ModelError if the template rejects that too.
    """
    return _write_prompt(tokenizer.encode_chat, tokenizer, prompt, settings)


def render_chat_prompt(tokenizer: TextTokenizer, prompt: str, settings: ChatSettings) -> str:
    """The text of `encode_chat_prompt`, if no message contains a control token. Raises ModelError as it does."""
    return _write_prompt(tokenizer.render_chat, tokenizer, prompt, settings)


def _write_prompt(write: Callable[..., T], tokenizer: TextTokenizer, prompt: str, settings: ChatSettings) -> T:
    """What `write`, a method of the tokenizer, makes of the turns that the template accepts."""
    transcript = [{"role": "user", "content": plain_prompt(prompt)}]
    error: TemplateError | None = None
    for turns in (chat_of_prompt(prompt), transcript):
        chat = with_system_prompt(turns, settings.system_prompt)
        has_refused_role = chat[0]["role"] == "system" and not has_system_role(tokenizer, settings)
        try:
            return write(without_system_role(chat) if has_refused_role else chat, **settings.template_arguments)
        except TemplateError as template_error:
            error = template_error
    raise ModelError(
        f"the model's chat template refuses a prompt ({error}). Take this prompt out, or change the template "
        f"arguments: {prompt[:80]!r}."
    ) from error


def has_system_role(tokenizer: TextTokenizer, settings: ChatSettings) -> bool:
    return writes_system_role(lambda chat: tokenizer.render_chat(chat, **settings.template_arguments))

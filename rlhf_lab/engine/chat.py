"""CHAT jobs: an answer to a conversation, sampled in slices so that a training can continue in between."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rlhf_lab.common.chat_format import Chat, continued_text, prompt_of_chat, validate_chat
from rlhf_lab.common.records import Project
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import REPLACEMENT_CHARACTER, Backbone
from rlhf_lab.models.sampling.sampler import TokenStream, uniforms

CHAT_SLOT = "chat"  # an adapter name of its own, because other jobs load adapters between the slices of an answer


class TruncatedConversation(NamedTuple):
    """The newest turns of a conversation that leave room for an answer.

    prompt: in the form that the lab stores. tokens: its ids. turns_left_out: number of older turns that were dropped.
    """

    prompt: str
    tokens: list[int]
    turns_left_out: int


def truncate_conversation(backbone: Backbone, chat: Chat, max_new_tokens: int) -> TruncatedConversation:
    """The conversation from the oldest user message on from which it fits the model's context.

    A model without a chat template continues the text. Raises ModelError if even the newest message is too long.
    """
    tokens: list[int] = []
    for start, message in enumerate(chat):
        if message["role"] != "user":
            continue
        turns = chat[start:]
        if not backbone.tokenizer.chat_template:
            turns = [{"role": "user", "content": continued_text(turns)}]
        prompt = prompt_of_chat(turns)
        tokens = backbone.encode_prompt(prompt)
        if len(tokens) + max_new_tokens <= backbone.context_length:
            return TruncatedConversation(prompt, tokens, start)
    raise ModelError(
        f"your message takes {len(tokens)} tokens and the longest response {max_new_tokens}, but the model reads "
        f"{backbone.context_length} in all. Shorten the message, or lower the longest response."
    )


class ChatAnswer:
    """The answer of one CHAT job.

    payload: chat (a list of messages, the last by the user), checkpoint, seed, temperature, top_p, max_new_tokens. The random
    numbers are those of a COMPLETE job with the same seed. Raises ModelError.
    """

    def __init__(self, model_cache: ModelCache, project: Project, payload: dict[str, Any]) -> None:
        self._backbone, self._adapters = model_cache.load_project(project)
        self._length = int(payload["max_new_tokens"])
        self._conversation = truncate_conversation(self._backbone, validate_chat(payload["chat"]), self._length)
        self._checkpoint, self._note = model_cache.resolve_checkpoint(str(payload["checkpoint"]))
        self._slot = model_cache.load_checkpoint(self._checkpoint, CHAT_SLOT)
        self._seed, self._temperature = int(payload["seed"]), float(payload["temperature"])
        self._top_p = float(payload["top_p"])
        self._stream: TokenStream | None = None
        self._seconds = 0.0

    def advance(self, should_pause: Callable[[], bool]) -> bool:
        """Sample until the answer is complete, or until `should_pause` returns true. Returns whether it is complete."""
        start_time = time.monotonic()
        try:
            with self._adapters.using(self._slot, merged=self._slot is not None):
                if self._stream is None:
                    self._stream = TokenStream(
                        self._backbone,
                        self._conversation.tokens,
                        uniforms([derive_seed(self._seed, "complete", 0)], self._length),
                        temperature=self._temperature,
                        top_p=self._top_p,
                    )
                return self._stream.advance(should_pause)
        finally:
            self._seconds += time.monotonic() - start_time

    @property
    def progress(self) -> float:
        """Tokens so far as a fraction of max_new_tokens."""
        return len(self._tokens) / self._length

    @property
    def _tokens(self) -> list[int]:
        return self._stream.tokens if self._stream is not None else []

    def result(self, *, is_complete: bool) -> dict[str, Any]:
        """The result of the job.

        Keys: text, tokens (ids), prompt (as the model read it), turns_left_out, checkpoint (with its step), note (if newer
        checkpoints are damaged, otherwise ""), seconds (spent on sampling). If an incomplete answer ends within a character, that
        character is left out.
        """
        conversation, tokens = self._conversation, self._tokens
        text = self._backbone.decode(tokens, after=conversation.tokens)
        return {
            "text": text if is_complete else text.rstrip(REPLACEMENT_CHARACTER), "tokens": tokens,
            "prompt": conversation.prompt, "turns_left_out": conversation.turns_left_out,
            "checkpoint": self._checkpoint, "note": self._note, "seconds": round(self._seconds, 3),
        }  # fmt: skip

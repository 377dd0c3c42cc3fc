"""Encodes texts that people wrote: a typed control token such as `<|im_end|>` is encoded as ordinary text.

Tokenizers recognise their control tokens anywhere in a text. Therefore texts that contain one are encoded by a copy of the
tokenizer in which each control token has a secret name. The secret name is used only where a control token is meant: in what
the chat template writes, and at the ends of a text that was saved with its BOS and stop tokens.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from rlhf_lab.errors import ModelError
from rlhf_lab.models.chat_templates import RENDERER

#: Characters of the private use area, which no tokenizer changes.
_NAME_START, _NAME_END = "\ue000", "\ue001"


class TextTokenizer:
    """Encodes texts with a transformers tokenizer. eos_ids: the tokens that end a response. model: its name, for messages.

    Raises ModelError if a text contains a control token and the tokenizer is written in Python, which cannot be copied.
    """

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int], model: str = "The model") -> None:
        self.tokenizer, self.eos_ids, self.model = tokenizer, eos_ids, model
        self._nonce = secrets.token_hex(8)  # makes secret names that nobody can guess

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. BOS at its start and stop tokens at its end are control tokens; all others are text."""
        if self._control_pattern.search(text):
            text = self._mark_ends(text)
            return list(self._renamed_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
        return [int(i) for i in self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]]

    def encode_chat(self, messages: Sequence[Mapping[str, str]], **template_arguments: Any) -> list[int]:
        """Token ids of messages in the chat template, up to where the answer of the assistant begins."""
        hidden = [{**message, "content": self._hide(message["role"], message["content"])} for message in messages]
        text = self.render_chat(hidden, **template_arguments)
        if hidden == [dict(message) for message in messages]:
            return [int(i) for i in self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        text = self._control_pattern.sub(lambda match: self._secret_name(match[0]), text)
        for word in self._control_words:
            text = text.replace(self._placeholder(word), word)
        return list(self._renamed_tokenizer.encode(text, add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Mapping[str, str]], **template_arguments: Any) -> str:
        """Messages rendered by the chat template (see `TemplateRenderer.render`)."""
        template = self.tokenizer.get_chat_template(tools=template_arguments.get("tools"))
        arguments = self.tokenizer.special_tokens_map | template_arguments
        return RENDERER.render(self.model, template, messages, arguments)

    @cached_property
    def _special_words(self) -> frozenset[str]:
        """The texts of the special tokens and of the stop tokens."""
        added = self.tokenizer.added_tokens_decoder
        stop_words = (str(self.tokenizer.convert_ids_to_tokens(i)) for i in self.eos_ids if i not in added)
        special_words = {str(token.content) for token in added.values() if token.special}
        return frozenset(special_words.union(w for w in stop_words if len(w) > 1 and w not in self._merged_words))

    @cached_property
    def _control_words(self) -> tuple[str, ...]:
        """The special words and the added tokens that the chat template writes, such as `<think>`; longest first."""
        template = str(self.tokenizer.chat_template or "")
        written = {token.content for token in self.tokenizer.added_tokens_decoder.values() if token.content in template}
        return tuple(sorted(self._special_words | written, key=len, reverse=True))

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        return _any_of(self._control_words)

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        return _any_of(sorted(self._special_words, key=len, reverse=True))

    def _hide(self, role: str, content: str) -> str:
        """A message with a placeholder for each control token. In answers of the assistant only special tokens are replaced,
        because templates read `<think>` there."""
        pattern = self._special_pattern if role == "assistant" else self._control_pattern
        return pattern.sub(lambda match: self._placeholder(match[0]), content)

    def _mark_ends(self, text: str) -> str:
        """A text with secret names for BOS at its start and stop tokens at its end; white space around them is allowed."""
        stop_words = [str(self.tokenizer.convert_ids_to_tokens(i)) for i in self.eos_ids]
        end = re.search(rf"(?:{_any_of(stop_words).pattern}\s*)*\Z", text)
        body, stops = (text[: end.start()], end[0]) if end else (text, "")
        bos = self.tokenizer.bos_token
        if bos and body.lstrip().startswith(bos):
            body = self._secret_name(bos) + body.lstrip().removeprefix(bos)
        return body + self._control_pattern.sub(lambda match: self._secret_name(match[0]), stops)

    def _secret_name(self, word: str) -> str:
        return f"{_NAME_START}{self._nonce}:{self._control_words.index(word)}{_NAME_END}"

    def _placeholder(self, word: str) -> str:
        return f"{_NAME_START}{self._nonce}/{self._control_words.index(word)}{_NAME_END}"

    @cached_property
    def _merged_words(self) -> frozenset[str]:
        """The tokens that byte-pair encoding builds from others."""
        if not hasattr(self.tokenizer, "backend_tokenizer"):
            return frozenset()
        merges = json.loads(self.tokenizer.backend_tokenizer.to_str())["model"].get("merges") or []
        return frozenset(first + second for first, second in merges)

    @cached_property
    def _renamed_tokenizer(self) -> Tokenizer:
        """The copy of the tokenizer that knows control tokens by their secret names only."""
        if not hasattr(self.tokenizer, "backend_tokenizer"):
            raise ModelError(
                f"a text holds a control token, and {type(self.tokenizer).__name__}, a tokenizer in Python, cannot "
                "encode it as text. Take the text out, or save a fast tokenizer (tokenizer.json) into the model's folder."
            )
        state = json.loads(self.tokenizer.backend_tokenizer.to_str())
        names = {word: self._secret_name(word) for word in self._control_words}
        for token in state["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        model = state["model"]
        if isinstance(model["vocab"], dict):
            model["vocab"] = {names.get(word, word): i for word, i in model["vocab"].items()}
        else:  # Unigram: [word, score]
            model["vocab"] = [[names.get(word, word), score] for word, score in model["vocab"]]
        if model.get("unk_token"):
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        if model.get("merges"):
            model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & names.keys()]
        return Tokenizer.from_str(json.dumps(state))


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the words; without words, nothing."""
    return re.compile(f"(?:{'|'.join(map(re.escape, words)) or '(?!)'})")

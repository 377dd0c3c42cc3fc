"""Masks of the tokens that the grammar allows at each position of a generated text, and training rows with these masks."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.embedded_model.batching import EOS_ID, TokenizedText
from rlhf_lab.embedded_model.corpus import TEXT_GENERATORS, generate_texts, join_document
from rlhf_lab.embedded_model.grammar_parser import (
    NUMBER_SLOT,
    GrammarParser,
    ParseResult,
    normalize,
    normalized_offsets,
)
from rlhf_lab.embedded_model.grammar_parser_rules import response_parser

TokenMask = NDArray[np.bool_]


class AllowedTokens:
    """Token masks of grammar phrases for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._vocab_size = len(tokenizer)
        self._tokens_by_text: dict[str, list[int]] = defaultdict(list)
        self._tokens_by_prefix: dict[str, list[int]] = defaultdict(list)
        for token in range(EOS_ID + 1, self._vocab_size):
            text = str(tokenizer.decode([token]))
            for form in {normalize(text), text.lower()}:  # "an" is an article or the start of a word
                self._tokens_by_text[form].append(token)
                for end in range(1, len(form)):
                    if not form[end].isalnum():  # punctuation may follow the end of a phrase
                        self._tokens_by_prefix[form[:end]].append(token)
        self._literal_masks: dict[str, TokenMask] = {}
        self._slot_masks: dict[tuple[GrammarParser, str], TokenMask] = {}

    @cached_property
    def _digit_mask(self) -> TokenMask:
        return self._make_mask(
            t for form, tokens in self._tokens_by_text.items() if form.strip()[:1].isdigit() for t in tokens
        )

    def _make_mask(self, tokens: Iterable[int]) -> TokenMask:
        mask = np.zeros(self._vocab_size, dtype=np.bool_)
        mask[list(tokens)] = True
        return mask

    def _literal_mask(self, phrase: str) -> TokenMask:
        """Tokens that are a prefix of the phrase, or the phrase followed by punctuation (the next phrase is unknown).

        A comma before another punctuation mark is optional.
        """
        if phrase not in self._literal_masks:
            tokens = [t for end in range(1, len(phrase) + 1) for t in self._tokens_by_text.get(phrase[:end], ())]
            mask = self._make_mask(tokens + self._tokens_by_prefix.get(phrase, []))
            if phrase[0] == ",":
                for mark in ".!?":
                    if phrase[1:2] in ("", mark):
                        mask = mask | self._literal_mask(mark)
            self._literal_masks[phrase] = mask
        return self._literal_masks[phrase]

    def _slot_mask(self, parser: GrammarParser, slot: str) -> TokenMask:
        """Tokens that start a rule of the slot which starts with a literal."""
        if slot.strip() == NUMBER_SLOT:
            return self._digit_mask
        if (parser, slot) not in self._slot_masks:
            mask = self._make_mask([])
            for alternatives in parser.rules_for(slot).by_first_char.values():
                for rule in alternatives:
                    mask |= self._literal_mask(rule[0])
            self._slot_masks[parser, slot] = mask
        return self._slot_masks[parser, slot]

    def response_mask(self, prompt_set: str, response: str, token_starts: list[int]) -> TokenMask:
        """(len(token_starts) + 1, vocabulary) bool: allowed tokens at each token of a generated response and at its end.

        token_starts: start of each token, in characters of the response with a leading space.
        """
        parser = response_parser(prompt_set)
        parse, offsets = parser.parse(response), normalized_offsets(f" {response}")
        return np.stack([self._mask_at(parser, parse, offsets[start]) for start in [*token_starts, len(response) + 1]])

    def _mask_at(self, parser: GrammarParser, parse: ParseResult, pos: int) -> TokenMask:
        mask = self._make_mask([])
        for slot in parse.slots_at[pos]:
            mask |= self._slot_mask(parser, slot)
        for phrase in parse.literals_at[pos]:
            mask |= self._literal_mask(phrase)
        if pos in parse.sentence_ends:
            mask[EOS_ID] = True
        return mask


@dataclass(frozen=True)
class MaskedRowGenerator:
    """Generates rows of the corpus of `seed` with the allowed tokens of each response position; all tokens in prompts."""

    allowed_tokens: AllowedTokens
    seed: int

    def __call__(self, count: int, start: int) -> list[TokenizedText]:
        prompt_sets = list(TEXT_GENERATORS)
        return [
            self._make_row(prompt_sets[(start + i) % len(prompt_sets)], text.prompt, text.response)
            for i, text in enumerate(generate_texts(self.seed, count, start))
        ]

    def _make_row(self, prompt_set: str, prompt: str, response: str) -> TokenizedText:
        text = join_document(prompt, response)
        tokenizer = self.allowed_tokens.tokenizer
        ids = tokenizer(text)["input_ids"]
        token_ends = list(itertools.accumulate(len(token) for token in tokenizer.convert_ids_to_tokens(ids[1:])))
        assert token_ends[-1] == len(text), "a text of the grammar that is not ASCII"
        response_start = len(prompt)
        token_starts = [end - response_start for end in [0, *token_ends[:-1]] if end >= response_start]
        response_mask = self.allowed_tokens.response_mask(prompt_set, response, token_starts)
        prompt_mask = np.ones((len(ids) - len(token_starts) - 1, response_mask.shape[1]), dtype=np.bool_)
        return TokenizedText(
            text, response, [*ids, EOS_ID], np.packbits(np.concatenate([prompt_mask, response_mask]), axis=1)
        )

"""Which tokens the grammar could write next, at every place of one of its texts, and the corpus with that beside it."""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.pretrain.corpus import WRITERS, texts
from rlhf_lab.pretrain.reading import EOS_ID, Row, document
from rlhf_lab.pretrain.recogniser import NUMBER, Reading, Recogniser, places, plain
from rlhf_lab.pretrain.response_rules import recogniser

Mask = NDArray[np.bool_]


class NextTokens:
    """For one tokenizer: the vocabulary as plain texts, and what of it fits a phrase."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._size = len(tokenizer)
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._longer: dict[str, list[int]] = defaultdict(list)
        for token in range(EOS_ID + 1, self._size):
            text = str(tokenizer.decode([token]))
            for form in {plain(text), text.lower()}:  # "an" is an article or how a word begins
                self._exact[form].append(token)
                for end in range(1, len(form)):
                    if not form[end].isalnum():  # marks may follow on a phrase's end
                        self._longer[form[:end]].append(token)
        self._literals: dict[str, Mask] = {}
        self._slots: dict[tuple[Recogniser, str], Mask] = {}

    @cached_property
    def _digits(self) -> Mask:
        return self._mask(t for form, tokens in self._exact.items() if form.strip()[:1].isdigit() for t in tokens)

    def _mask(self, tokens: Iterable[int]) -> Mask:
        mask = np.zeros(self._size, dtype=np.bool_)
        mask[list(tokens)] = True
        return mask

    def _literal(self, phrase: str) -> Mask:
        """Tokens that the phrase begins with, or that begin with the phrase and go on with marks (what comes is not known).

        A comma before another mark is left out.
        """
        if phrase not in self._literals:
            found = [t for end in range(1, len(phrase) + 1) for t in self._exact.get(phrase[:end], ())]
            mask = self._mask(found + self._longer.get(phrase, []))
            if phrase[0] == ",":
                for mark in ".!?":
                    if phrase[1:2] in ("", mark):
                        mask = mask | self._literal(mark)
            self._literals[phrase] = mask
        return self._literals[phrase]

    def _slot(self, rules: Recogniser, slot: str) -> Mask:
        """Tokens that a literal at a slot's beginning begins with."""
        if slot.strip() == NUMBER:
            return self._digits
        if (rules, slot) not in self._slots:
            mask = self._mask([])
            for alternatives in rules.rules(slot).by_letter.values():
                for rule in alternatives:
                    mask |= self._literal(rule[0])
            self._slots[rules, slot] = mask
        return self._slots[rules, slot]

    def after(self, prompt_set: str, response: str, starts: list[int]) -> Mask:
        """(len(starts) + 1, vocabulary): for each token of a response by the grammar, and for its end, what might stand there.

        starts: where each token begins, in characters of the response with a space before it.
        """
        rules = recogniser(prompt_set)
        reading, place = rules.read(response), places(f" {response}")
        return np.stack([self._at(rules, reading, place[start]) for start in [*starts, len(response) + 1]])

    def _at(self, rules: Recogniser, reading: Reading, place: int) -> Mask:
        mask = self._mask([])
        for slot in reading.asked[place]:
            mask |= self._slot(rules, slot)
        for phrase in reading.begun[place]:
            mask |= self._literal(phrase)
        if place in reading.stops:
            mask[EOS_ID] = True
        return mask


@dataclass(frozen=True)
class Marked:
    """Writes the corpus of `seed` as rows that say what else might stand at each place of a response (all, in a prompt)."""

    next_tokens: NextTokens
    seed: int

    def __call__(self, count: int, start: int) -> list[Row]:
        sets = list(WRITERS)
        return [
            self._row(sets[(start + i) % len(sets)], text.prompt, text.response)
            for i, text in enumerate(texts(self.seed, count, start))
        ]

    def _row(self, prompt_set: str, prompt: str, response: str) -> Row:
        line = document(prompt, response)
        tokenizer = self.next_tokens.tokenizer
        ids = tokenizer(line)["input_ids"]
        ends = list(itertools.accumulate(len(token) for token in tokenizer.convert_ids_to_tokens(ids[1:])))
        assert ends[-1] == len(line), "a text of the grammar that is not ASCII"
        begins = len(prompt)
        starts = [end - begins for end in [0, *ends[:-1]] if end >= begins]
        after = self.next_tokens.after(prompt_set, response, starts)
        anything = np.ones((len(ids) - len(starts) - 1, after.shape[1]), dtype=np.bool_)
        return Row(line, response, [*ids, EOS_ID], np.packbits(np.concatenate([anything, after]), axis=1))

"""The corpus as batches of token ids, written ahead by other processes."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.pretrain.corpus import texts

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2


@dataclass(frozen=True)
class Row:
    """A text ready to be read.

    line: prompt and response. ids: its tokens, EOS at the end. possible: (len(ids) - 1, vocabulary / 8) uint8, packed bits: for
    each token after the first, which tokens might stand there; None where nobody asked.
    """

    line: str
    response: str
    ids: list[int]
    possible: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class Batch:
    """ids, mask (B, L) int64; possible (targets, vocabulary) bool, or None."""

    ids: Tensor
    mask: Tensor
    possible: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """(B, L-1) bool: whether ids[:, 1:] is a token of the text."""
        return self.mask[:, 1:].bool()

    @property
    def targets(self) -> Tensor:
        """(targets,) int64: the tokens to be foretold."""
        return self.ids[:, 1:][self.real]


#: rows of the texts start … start+count of the corpus: write(count, start)
Write = Callable[[int, int], list[Row]]


@dataclass(frozen=True)
class Plain:
    """Writes the corpus of `seed` as rows of at most `context` tokens."""

    tokenizer: Tokenizer
    seed: int
    context: int

    def __call__(self, count: int, start: int) -> list[Row]:
        written = list(texts(self.seed, count, start))
        lines = [document(text.prompt, text.response) for text in written]
        rows = zip(lines, written, encode(self.tokenizer, lines, self.context), strict=True)
        return [Row(line, text.response, ids) for line, text, ids in rows]


@dataclass(frozen=True)
class Stretch:
    """A part of the corpus, and how it is read.

    order: seed of the shuffling; writers: processes that write ahead; again: whether a response that was read before is read once
    more (without, batches hold fewer texts).
    """

    span: range
    write: Write
    order: int
    writers: int = 1
    again: bool = True


def batches(stretch: Stretch, read: set[str], corpus: Path, *, batch: int, vocab: int) -> Iterator[Batch]:
    """The texts of a stretch; texts of similar length together, batches shuffled in blocks.

    read: the responses read so far; those of this stretch are added. Every text read is appended to `corpus`, a line each.
    """
    generator = torch.Generator().manual_seed(stretch.order)
    with corpus.open("a", encoding="utf-8") as file:
        for rows in written_ahead(stretch.write, stretch.span, batch * 32, stretch.writers):
            count = -(-len(rows) // batch)
            kept: list[Row] = []
            for row in rows:
                if stretch.again or row.response not in read:
                    kept.append(row)
                read.add(row.response)
            file.writelines(row.line.replace("\n", " ") + "\n" for row in kept)
            kept.sort(key=lambda row: len(row.ids))
            size = max(1, -(-len(kept) // count))
            groups = [kept[i : i + size] for i in range(0, len(kept), size)]
            for index in torch.randperm(len(groups), generator=generator).tolist():
                packed = [row.possible for row in groups[index] if row.possible is not None]
                bits = np.unpackbits(np.concatenate(packed), axis=1, count=vocab).view(np.bool_) if packed else None
                yield Batch(*pad([row.ids for row in groups[index]]), None if bits is None else torch.from_numpy(bits))


def written_ahead(write: Write, span: range, block: int, writers: int = 1) -> Iterator[list[Row]]:
    """The rows of the texts of `span` in blocks; the next blocks are written by other processes meanwhile."""
    starts = span[::block]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(writers, context, initializer=_begin, initargs=(write,)) as pool:
        waiting = [pool.submit(_write, min(block, span.stop - start), start) for start in starts[: writers + 1]]
        for i in range(len(starts)):
            yield waiting.pop(0).result()
            if i + writers + 1 < len(starts):
                start = starts[i + writers + 1]
                waiting.append(pool.submit(_write, min(block, span.stop - start), start))


_writer: dict[str, Any] = {}


def _begin(write: Write) -> None:
    """What a writing process begins with: it keeps what it writes with from block to block, and ends with its parent."""
    _writer["write"] = write
    end_with_parent()


def _write(count: int, start: int) -> list[Row]:
    rows: list[Row] = _writer["write"](count, start)
    return rows


def end_with_parent() -> None:
    """This process ends when the one that started it has ended, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def document(prompt: str, response: str) -> str:
    """How prompt and response stand in one line of training text."""
    return f"{prompt} {response}"


def documents(seed: int, count: int, start: int) -> list[str]:
    """Prompt and response in one string, for texts start … start+count of the corpus."""
    return [document(t.prompt, t.response) for t in texts(seed, count, start)]


def encode(tokenizer: Tokenizer, lines: list[str], context: int) -> list[list[int]]:
    """Token rows of at most `context` ids, EOS at the end."""
    encoded: list[list[int]] = tokenizer(lines)["input_ids"]
    return [[*row[: context - 1], EOS_ID] for row in encoded]


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(ids, mask), each (rows, L), with L a multiple of 8: torch keeps memory for every shape of product it has met."""
    width = -(-max(len(row) for row in rows) // 8) * 8
    ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask

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

from rlhf_lab.embedded_model.corpus import generate_texts

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2


@dataclass(frozen=True)
class TokenizedText:
    """A text ready to be read.

    line: prompt and response. ids: its tokens, EOS at the end. possible: (len(ids) - 1, vocabulary / 8) uint8, packed bits: for
    each token after the first, which tokens might stand there; None where nobody asked.
    """

    text: str
    response: str
    ids: list[int]
    allowed_bits: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class PretrainBatch:
    """ids, mask (B, L) int64; possible (targets, vocabulary) bool, or None."""

    ids: Tensor
    mask: Tensor
    allowed: Tensor | None = None

    @property
    def target_mask(self) -> Tensor:
        """(B, L-1) bool: whether ids[:, 1:] is a token of the text."""
        return self.mask[:, 1:].bool()

    @property
    def targets(self) -> Tensor:
        """(targets,) int64: the tokens to be foretold."""
        return self.ids[:, 1:][self.target_mask]


#: rows of the texts start … start+count of the corpus: write(count, start)
RowGenerator = Callable[[int, int], list[TokenizedText]]


@dataclass(frozen=True)
class PlainRowGenerator:
    """Writes the corpus of `seed` as rows of at most `context` tokens."""

    tokenizer: Tokenizer
    seed: int
    context: int

    def __call__(self, count: int, start: int) -> list[TokenizedText]:
        corpus_texts = list(generate_texts(self.seed, count, start))
        documents = [join_document(text.prompt, text.response) for text in corpus_texts]
        rows = zip(documents, corpus_texts, encode_texts(self.tokenizer, documents, self.context), strict=True)
        return [TokenizedText(line, text.response, ids) for line, text, ids in rows]


@dataclass(frozen=True)
class CorpusSlice:
    """A part of the corpus, and how it is read.

    order: seed of the shuffling; writers: processes that write ahead; again: whether a response that was read before is read once
    more (without, batches hold fewer texts).
    """

    indices: range
    generate_rows: RowGenerator
    shuffle_seed: int
    num_workers: int = 1
    keep_repeats: bool = True


def iter_batches(
    corpus_slice: CorpusSlice, seen_responses: set[str], corpus_path: Path, *, batch_size: int, vocab_size: int
) -> Iterator[PretrainBatch]:
    """The texts of a stretch; texts of similar length together, batches shuffled in blocks.

    read: the responses read so far; those of this stretch are added. Every text read is appended to `corpus`, a line each.
    """
    generator = torch.Generator().manual_seed(corpus_slice.shuffle_seed)
    with corpus_path.open("a", encoding="utf-8") as file:
        for rows in prefetch_rows(
            corpus_slice.generate_rows, corpus_slice.indices, batch_size * 32, corpus_slice.num_workers
        ):
            batch_count = -(-len(rows) // batch_size)
            selected: list[TokenizedText] = []
            for row in rows:
                if corpus_slice.keep_repeats or row.response not in seen_responses:
                    selected.append(row)
                seen_responses.add(row.response)
            file.writelines(row.text.replace("\n", " ") + "\n" for row in selected)
            selected.sort(key=lambda row: len(row.ids))
            rows_per_batch = max(1, -(-len(selected) // batch_count))
            row_groups = [selected[i : i + rows_per_batch] for i in range(0, len(selected), rows_per_batch)]
            for index in torch.randperm(len(row_groups), generator=generator).tolist():
                packed_masks = [row.allowed_bits for row in row_groups[index] if row.allowed_bits is not None]
                allowed = (
                    np.unpackbits(np.concatenate(packed_masks), axis=1, count=vocab_size).view(np.bool_)
                    if packed_masks
                    else None
                )
                yield PretrainBatch(
                    *pad_rows([row.ids for row in row_groups[index]]),
                    None if allowed is None else torch.from_numpy(allowed),
                )


def prefetch_rows(
    generate_rows: RowGenerator, indices: range, block_size: int, num_workers: int = 1
) -> Iterator[list[TokenizedText]]:
    """The rows of the texts of `indices` in blocks; the next blocks are written by other processes meanwhile."""
    starts = indices[::block_size]
    mp_context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context, initializer=_init_worker, initargs=(generate_rows,)) as pool:
        pending = [
            pool.submit(_run_generator, min(block_size, indices.stop - start), start)
            for start in starts[: num_workers + 1]
        ]
        for i in range(len(starts)):
            yield pending.pop(0).result()
            if i + num_workers + 1 < len(starts):
                start = starts[i + num_workers + 1]
                pending.append(pool.submit(_run_generator, min(block_size, indices.stop - start), start))


_worker_state: dict[str, Any] = {}


def _init_worker(generate_rows: RowGenerator) -> None:
    """What a writing process begins with: it keeps what it writes with from block to block, and ends with its parent."""
    _worker_state["write"] = generate_rows
    exit_with_parent()


def _run_generator(count: int, start: int) -> list[TokenizedText]:
    rows: list[TokenizedText] = _worker_state["write"](count, start)
    return rows


def exit_with_parent() -> None:
    """This process ends when the one that started it has ended, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


def join_document(prompt: str, response: str) -> str:
    """How prompt and response stand in one line of training text."""
    return f"{prompt} {response}"


def generate_documents(seed: int, count: int, start: int) -> list[str]:
    """Prompt and response in one string, for texts start … start+count of the corpus."""
    return [join_document(t.prompt, t.response) for t in generate_texts(seed, count, start)]


def encode_texts(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[list[int]]:
    """Token rows of at most `context` ids, EOS at the end."""
    encoded: list[list[int]] = tokenizer(texts)["input_ids"]
    return [[*row[: max_length - 1], EOS_ID] for row in encoded]


def pad_rows(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(ids, mask), each (rows, L), with L a multiple of 8: torch keeps memory for every shape of product it has met."""
    width = -(-max(len(row) for row in rows) // 8) * 8
    ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask

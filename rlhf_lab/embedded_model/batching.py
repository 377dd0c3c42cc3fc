"""Batches of token ids of the corpus, generated in advance by other processes."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.embedded_model.corpus import generate_texts, join_document

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2


@dataclass(frozen=True)
class TokenizedText:
    """A tokenized training text.

    Attributes:
        text: prompt and response.
        ids: its tokens, with EOS at the end.
        allowed_bits: (len(ids) - 1, vocabulary / 8) uint8, packed bits: the allowed tokens at each position after the first.
    """

    text: str
    response: str
    ids: list[int]
    allowed_bits: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class PretrainBatch:
    """ids, mask: (B, L) int64; allowed: (targets, vocabulary) bool, or None."""

    ids: Tensor
    mask: Tensor
    allowed: Tensor | None = None

    @property
    def target_mask(self) -> Tensor:
        """(B, L-1) bool: whether ids[:, 1:] is a token of the text."""
        return self.mask[:, 1:].bool()

    @property
    def targets(self) -> Tensor:
        """(targets,) int64: the tokens to predict."""
        return self.ids[:, 1:][self.target_mask]


#: generate_rows(count, start): rows of the texts start … start+count-1
RowGenerator = Callable[[int, int], list[TokenizedText]]


@dataclass(frozen=True)
class PlainRowGenerator:
    """Generates rows of the corpus of `seed` with at most `context` tokens."""

    tokenizer: Tokenizer
    seed: int
    context: int

    def __call__(self, count: int, start: int) -> list[TokenizedText]:
        corpus_texts = list(generate_texts(self.seed, count, start))
        documents = [join_document(text.prompt, text.response) for text in corpus_texts]
        rows = zip(documents, corpus_texts, encode_texts(self.tokenizer, documents, self.context), strict=True)
        return [TokenizedText(document, text.response, ids) for document, text, ids in rows]


@dataclass(frozen=True)
class CorpusSlice:
    """A range of the corpus, and how it is read.

    Attributes:
        num_workers: processes that generate rows in advance.
        keep_repeats: False drops texts whose response was read before; batches are then smaller.
    """

    indices: range
    generate_rows: RowGenerator
    shuffle_seed: int
    num_workers: int = 1
    keep_repeats: bool = True


def iter_batches(
    corpus_slice: CorpusSlice, seen_responses: set[str], corpus_path: Path, *, batch_size: int, vocab_size: int
) -> Iterator[PretrainBatch]:
    """Batches of texts of similar length, shuffled in blocks of 32 batches.

    Args:
        seen_responses: the responses read so far; those of this slice are added.
        corpus_path: every text read is appended to this file, one per line.
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
                yield _make_batch(row_groups[index], vocab_size)


def _make_batch(rows: list[TokenizedText], vocab_size: int) -> PretrainBatch:
    ids, mask = pad_rows([row.ids for row in rows])
    packed_masks = [row.allowed_bits for row in rows if row.allowed_bits is not None]
    if not packed_masks:
        return PretrainBatch(ids, mask)
    allowed = np.unpackbits(np.concatenate(packed_masks), axis=1, count=vocab_size).view(np.bool_)
    return PretrainBatch(ids, mask, torch.from_numpy(allowed))


def prefetch_rows(
    generate_rows: RowGenerator, indices: range, block_size: int, num_workers: int = 1
) -> Iterator[list[TokenizedText]]:
    """The rows of the texts of `indices` in blocks. If there are several, other processes generate the next ones in advance."""
    blocks = [(min(block_size, indices.stop - start), start) for start in indices[::block_size]]
    if len(blocks) == 1:
        yield generate_rows(*blocks[0])
        return
    mp_context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context, initializer=_init_worker, initargs=(generate_rows,)) as pool:
        pending = deque(pool.submit(_run_generator, *block) for block in blocks[: num_workers + 1])
        for i in range(len(blocks)):
            yield pending.popleft().result()
            if i + num_workers + 1 < len(blocks):
                pending.append(pool.submit(_run_generator, *blocks[i + num_workers + 1]))


_worker_state: dict[str, RowGenerator] = {}  # of a worker process


def _init_worker(generate_rows: RowGenerator) -> None:
    """Runs once in each worker process, so that the generator is pickled once and its caches are kept."""
    _worker_state["generate_rows"] = generate_rows
    _exit_with_parent()


def _run_generator(count: int, start: int) -> list[TokenizedText]:
    return _worker_state["generate_rows"](count, start)


def _exit_with_parent() -> None:
    """End this process when its parent has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_after_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_after_parent, daemon=True).start()


def encode_texts(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[list[int]]:
    """Rows of at most `max_length` token ids, with EOS at the end."""
    encoded: list[list[int]] = tokenizer(texts)["input_ids"]
    return [[*row[: max_length - 1], EOS_ID] for row in encoded]


def pad_rows(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(ids, mask), each (rows, L) int64. L is a multiple of 8, because torch caches memory for every matmul shape."""
    width = -(-max(len(row) for row in rows) // 8) * 8
    ids = torch.tensor([row + [PAD_ID] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask

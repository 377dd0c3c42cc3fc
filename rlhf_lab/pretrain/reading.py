"""The corpus as batches of token ids: written ahead by another process, and each text seen once."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast as Tokenizer

from rlhf_lab.pretrain.corpus import texts

PAD_ID, BOS_ID, EOS_ID = 0, 1, 2


def document(prompt: str, response: str) -> str:
    """How prompt and response stand in one line of training text."""
    return f"{prompt} {response}"


def batches(
    tokenizer: Tokenizer, corpus: Path, span: range, *, seed: int, order: int, batch: int, context: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, mask), each (batch, L) int64, of the texts of `span`; texts of similar length together, batches shuffled in blocks.

    seed: of the corpus; order: of the shuffling. Another process writes the texts ahead. Every text read is appended to the
    file `corpus`, a line each.
    """
    generator = torch.Generator().manual_seed(order)
    with corpus.open("a", encoding="utf-8") as file:
        for lines in written_ahead(seed, span, batch * 32):
            file.writelines(line.replace("\n", " ") + "\n" for line in lines)
            rows = encode(tokenizer, lines, context)
            rows.sort(key=len)
            groups = [rows[i : i + batch] for i in range(0, len(rows), batch)]
            for index in torch.randperm(len(groups), generator=generator).tolist():
                yield pad(groups[index])


def written_ahead(seed: int, span: range, block: int) -> Iterator[list[str]]:
    """The documents of the texts of `span` in blocks; the next two blocks are written by another process meanwhile."""
    starts = span[::block]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        waiting = [pool.submit(documents, seed, min(block, span.stop - start), start) for start in starts[:2]]
        for i in range(len(starts)):
            yield waiting.pop(0).result()
            if i + 2 < len(starts):
                start = starts[i + 2]
                waiting.append(pool.submit(documents, seed, min(block, span.stop - start), start))


def end_with_parent() -> None:
    """This process ends when the one that started it has ended, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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

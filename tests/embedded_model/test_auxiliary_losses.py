"""The later passes of pretraining, and counts of the mistakes that they reduce."""

import math

import pytest
import torch

from rlhf_lab.embedded_model import auxiliary_losses
from rlhf_lab.embedded_model.auxiliary_losses import WrongTokenLoss
from rlhf_lab.embedded_model.batching import PretrainBatch
from rlhf_lab.embedded_model.corpus import generate_documents
from rlhf_lab.embedded_model.sample_checks import has_unseen_bigram, names_not_in_prompt
from rlhf_lab.embedded_model.tales import hero_names
from rlhf_lab.embedded_model.train import PretrainConfig, train

IDS = {"": 1, " Ada": 4, " Ben": 5, " Cleo": 6, " sat": 7, " Dora": 8}


class Tokenizer:
    """Nine ids; the name Emil takes two of them."""

    def __len__(self):
        return 9

    def __call__(self, text):
        return {"input_ids": [1, 3, 7] if text == " Emil" else [1, IDS[text]]}


@pytest.fixture
def terms(monkeypatch):
    monkeypatch.setattr(auxiliary_losses, "hero_names", lambda: ("Ben", "Ada", "Cleo", "Emil"))
    terms = WrongTokenLoss(Tokenizer(), name_weight=3.0, tail_weight=2.0)
    terms.observe(
        None, PretrainBatch(torch.tensor([[1, 4, 7, 4, 2], [1, 8, 7, 2, 0]]), torch.tensor([[1] * 5, [1, 1, 1, 1, 0]]))
    )
    return terms


def test_observe_records_bigrams(terms):
    found = {tuple(pair) for pair in terms.seen_bigrams.nonzero().tolist()}
    assert found == {(1, 4), (4, 7), (7, 4), (4, 2), (1, 8), (8, 7), (7, 2)}


def test_repeated_names(terms):
    ids = torch.tensor([[1, 4, 7, 4, 5, 8, 8], [1, 7, 5, 7, 6, 5, 0]])
    assert terms.repeated_names(ids).tolist() == [
        [False, False, True, False, False, False],
        [False, False, False, False, True, False],
    ]


def test_both_losses_equal_a_loop(terms):
    """Text 1: Ada sat Ada(again) sat; text 2: Ben Ben(again), two tokens of padding. Loop in float64."""
    ids = torch.tensor([[1, 4, 7, 4, 7], [1, 5, 5, 0, 0]])
    batch = PretrainBatch(ids, torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    steps = [(1, 4, False), (4, 7, False), (7, 4, True), (4, 7, False), (1, 5, False), (5, 5, True)]
    allowed = {1: {4, 8}, 4: {7, 2}, 7: {4, 2}, 5: set()}
    total = 0.0
    for row, (before, target, repeated) in zip(logits.tolist(), steps, strict=True):
        weights = [math.exp(value) for value in row]
        if repeated:
            total += -3.0 * math.log(weights[target] / sum(weights[i] for i in (4, 5, 6)))
        total += -2.0 * math.log(sum(weights[i] for i in allowed[before] | {target}) / sum(weights))
    torch.testing.assert_close(terms.loss(logits, batch), torch.tensor(total / 6, dtype=torch.float64))


def test_batch_masks_override_seen_bigrams(terms):
    """Ada sat: after Ada the batch allows 5 and 6 (7 is the token itself), after sat only the end."""
    batch = PretrainBatch(
        torch.tensor([[4, 7, 2]]), torch.ones(1, 3, dtype=torch.long), torch.zeros(2, 9, dtype=torch.bool)
    )
    batch.allowed[0, [5, 6]] = True
    logits = torch.arange(18, dtype=torch.float64).reshape(2, 9) / 10
    first, second = ([math.exp(value) for value in row] for row in logits.tolist())
    total = -2.0 * (math.log((first[5] + first[6] + first[7]) / sum(first)) + math.log(second[2] / sum(second)))
    torch.testing.assert_close(terms.loss(logits, batch), torch.tensor(total / 2, dtype=torch.float64))


def test_no_names_and_sure_logits_give_zero_loss(terms):
    batch = PretrainBatch(torch.tensor([[1, 8, 7]]), torch.ones(1, 3, dtype=torch.long))
    certain = torch.full((2, 9), -100.0).scatter(1, torch.tensor([[8], [7]]), 100.0).requires_grad_()
    loss = terms.loss(certain, batch)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    assert certain.grad.isfinite().all()


def test_later_passes_read_fresh_texts_after_the_held_out_ones(tmp_path):
    shape = {
        "vocab": 400,
        "hidden": 16,
        "layers": 1,
        "heads": 2,
        "intermediate": 32,
        "context": 192,
        "batch": 100,
        "warmup": 2,
    }
    config = PretrainConfig(texts=400, held_out=40, second_texts=200, third_texts=100, seed=3, **shape)
    progress = []
    train(config, tmp_path / "out", tmp_path / "corpus.txt", lambda *arguments: progress.append(arguments[:2]))
    lines = (tmp_path / "corpus.txt").read_text().splitlines()
    assert lines == [
        line.replace("\n", " ") for line in (*generate_documents(3, 400, 0), *generate_documents(3, 300, 440))
    ]
    assert progress == [(i, 7) for i in range(1, 8)]
    assert tmp_path.joinpath("out", "model.safetensors").exists()


def test_names_not_in_prompt():
    assert {"Tilda", "Mabel"} <= set(hero_names())
    prompts = ["A tall sailor named Tilda went out."] * 3
    assert names_not_in_prompt(prompts, ["Mabel went to bed.", "Tilda sat down.", "Tildas are rare."]) == [
        True,
        False,
        False,
    ]


def test_has_unseen_bigram(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("An average day. A mole sat.\nThe mole ran.\n")
    lines = ["A mole ran.", "A average day.", "The mole sat. An", "sat. The", "day. A mole, sat"]
    assert has_unseen_bigram(lines, corpus) == [False, True, False, False, True]

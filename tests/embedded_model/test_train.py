"""The recipe of the embedded model, on a very small scale, and the shipped folder."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_lab.cli.main import main
from rlhf_lab.common.bundled_assets import EMBEDDED_PROMPT_SETS, weights_digest
from rlhf_lab.embedded_model import batching
from rlhf_lab.embedded_model import train as pretraining
from rlhf_lab.embedded_model.batching import (
    CorpusSlice,
    PretrainBatch,
    TokenizedText,
    iter_batches,
)
from rlhf_lab.embedded_model.corpus import generate_documents, generate_texts
from rlhf_lab.embedded_model.sample_checks import longest_overlaps
from rlhf_lab.embedded_model.train import (
    PretrainConfig,
    build_model,
    held_out_perplexity,
    lr_scale_at_step,
    plan_passes,
    sharpen,
    token_loss,
    train,
    train_pass,
)

SMALL = {
    "texts": 400,
    "held_out": 40,
    "vocab": 400,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "intermediate": 64,
    "context": 192,
    "batch": 5,  # several blocks of 160 texts, so other processes generate them
    "warmup": 1,
    "second_texts": 100,
    "third_texts": 200,
    "precision": "float32",
    "seed": 3,
}
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "assets"


def pretrain(out: Path, *more: str) -> int:
    words = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLHF_LAB_DTYPE", "half")  # the figures of the card do not depend on this setting
        return main(["pretrain", "--out", str(out), "--threads", "1", "--json", *words, *more])


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    assert pretrain(folder / "model", "--ship", str(folder)) == 0
    return folder


def test_pretrain_writes_model_card_prompts_and_pairs(pretrained):
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(pretrained / "model"),
        AutoTokenizer.from_pretrained(pretrained / "model"),
    )
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (32, 1)
    assert tokenizer.decode(tokenizer("a small mole").input_ids, skip_special_tokens=True) == "a small mole"
    card = " ".join((pretrained / "model" / "README.md").read_text().split())
    for text in (
        '"texts": 400',
        '"precision": "float32"',
        "the rest; float32 on the CPU",
        "held-out perplexity",
        "A third pass over 200",
        "longest run of words",
        weights_digest(pretrained / "model"),
    ):
        assert text in card
    shipped = json.loads((pretrained / "pairs.json").read_text())
    assert shipped["model_sha256"] == weights_digest(pretrained / "model")
    assert {pair["prompt_set"] for pair in shipped["pairs"]} == set(EMBEDDED_PROMPT_SETS)
    for name in EMBEDDED_PROMPT_SETS:
        lines = (pretrained / "prompts" / f"{name}.jsonl").read_text().splitlines()
        assert len({json.loads(line)["prompt"] for line in lines}) == 1024


@pytest.mark.parametrize(("took", "faster"), [((0.008, 0.016), "float32"), ((0.008, 0.004), "bfloat16")])
def test_auto_precision_is_the_faster_one(monkeypatch, took, faster):
    monkeypatch.setattr(
        pretraining, "benchmark_precisions", lambda *_: dict(zip(("float32", "bfloat16"), took, strict=True))
    )
    message = f"{faster}: a product of the model's size takes 8.0 ms in float32 and {1000 * took[1]:.1f} ms in bfloat16"
    assert pretraining.choose_precision("auto", 256, 640) == (faster, message)
    for precision in ("float32", "bfloat16"):
        assert pretraining.choose_precision(precision, 256, 640) == (precision, f"{precision}, as requested")


def test_both_precisions_are_measured():
    took = pretraining.benchmark_precisions(64, 128)
    assert list(took) == ["float32", "bfloat16"]
    assert all(0 < seconds < math.inf for seconds in took.values())


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_matmuls_use_the_chosen_precision(monkeypatch, name):
    dtypes = set()
    config = PretrainConfig(**SMALL | {"precision": name})
    model = build_model(config, 400)
    model.model.layers[0].mlp.up_proj.register_forward_hook(lambda _, __, out: dtypes.add(out.dtype))
    ids = torch.tensor([[1, 5, 9, 2]])
    batch = PretrainBatch(ids, torch.ones_like(ids), ids[0, 1:])
    train_pass(model, config, iter([batch]), [1.0], lambda *_: 0.0, lambda *_: None)
    assert dtypes == {getattr(torch, name)}


@pytest.mark.slow
def test_same_seed_same_weights(pretrained, tmp_path):
    torch.set_num_threads(1)
    train(PretrainConfig(**SMALL), tmp_path / "again", tmp_path / "corpus.txt", lambda *_: None)
    assert weights_digest(tmp_path / "again") == weights_digest(pretrained / "model")


def test_sharpening_divides_the_logits_and_perplexity_is_of_the_sharpened_model(pretrained):
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(pretrained / "model"),
        AutoTokenizer.from_pretrained(pretrained / "model"),
    )
    model = model.float()
    ids = tokenizer("There was once a miller", return_tensors="pt").input_ids
    with torch.no_grad():
        before = model(ids).logits
        sharpen(model, 0.5)
        torch.testing.assert_close(model(ids).logits, 2 * before)
        sharpen(model, 2.0)
    config = PretrainConfig(**SMALL)
    nats, count = 0.0, 0
    for line in generate_documents(config.seed, config.held_out, config.texts):
        row = torch.tensor([[*tokenizer(line).input_ids[:191], 2]])
        with torch.no_grad():
            chosen = model(row).logits.double().log_softmax(-1)
        nats -= sum(float(chosen[0, i, row[0, i + 1]]) for i in range(row.shape[1] - 1))
        count += row.shape[1] - 1
    assert held_out_perplexity(model, config, tokenizer) == pytest.approx(math.exp(nats / count), rel=1e-5)


def test_padding_adds_nothing_to_the_loss(pretrained):
    model = AutoModelForCausalLM.from_pretrained(pretrained / "model").float()
    row = [5, 9, 33, 2]
    with torch.no_grad():
        alone = token_loss(model, torch.tensor([row]), torch.ones(1, 4, dtype=torch.long))
        padded = token_loss(model, torch.tensor([[*row, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]]))
    assert alone[1] == padded[1] == 3
    torch.testing.assert_close(alone[0], padded[0])


def test_lr_schedule():
    assert [lr_scale_at_step(step, 100, 10) for step in (0, 4, 9, 50, 60, 80, 99)] == [
        0.1,
        0.5,
        1.0,
        1.0,
        1.0,
        0.5,
        0.025,
    ]


def test_held_out_texts_are_not_trained_on():
    read = list(generate_texts(0, 30))
    assert [t.response for t in generate_texts(0, 10, 20)] == [
        t.response for t in read[20:]
    ]  # text i depends on seed and i alone
    held_out = generate_documents(0, 30, 600)
    assert not set(held_out) & set(generate_documents(0, 600, 0))


def test_no_text_is_too_short():
    """Single sentences of reviews and tales with fewer than 16 words repeated most often, and models memorised them."""
    written = [text.response for text in generate_texts(5, 900)]
    assert min(len(response.split()) for response in written[::3]) >= 16
    assert all(len(re.findall(r"[.!?]", response)) >= 2 for response in written[2::3])
    assert len(set(written)) == 900


def test_longest_overlaps(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Once a mole sang. The sun shone.\nA heron slept.\n")
    found = longest_overlaps(["The sun shone.", "a mole sang loudly today", "nothing here"], corpus)
    assert found == [{"words": 3, "whole": 1}, {"words": 3, "whole": 0}, {"words": 0, "whole": 0}]


def test_the_shipped_card_is_of_the_shipped_weights():
    digest = weights_digest(SHIPPED / "model")
    assert digest in (SHIPPED / "model" / "README.md").read_text()
    assert json.loads((SHIPPED / "pairs.json").read_text())["model_sha256"] == digest


def test_passes_read_disjoint_slices_and_only_the_third_drops_repeats(pretrained):
    config = PretrainConfig(**SMALL)
    passes = list(plan_passes(config, AutoTokenizer.from_pretrained(pretrained / "model")))
    assert [one.corpus_slice.keep_repeats for one in passes] == [True, True, False]
    assert [one.corpus_slice.indices for one in passes] == [range(400), range(440, 540), range(540, 740)]
    assert len({one.corpus_slice.shuffle_seed for one in passes}) == 3
    assert len(list(plan_passes(config.replace(third_texts=0), passes[0].corpus_slice.generate_rows.tokenizer))) == 2


def written(count, start):
    """Texts whose every third response is the same; text i has i + 1 tokens."""
    return [
        TokenizedText(f"Prompt {i}: said {i % 3}", f"said {i % 3}", [1] * (i + 1)) for i in range(start, start + count)
    ]


def in_blocks(write, span, block, writers=1):
    yield from (write(min(block, span.stop - start), start) for start in span[::block])


@pytest.mark.parametrize(
    ("repeats", "widths", "dropped"),
    [(True, [[1, 2], [3, 4], [5]], []), (False, [[1], [3]], [1, 3, 4])],
)
def test_a_slice_can_drop_repeated_responses(monkeypatch, tmp_path, repeats, widths, dropped):
    monkeypatch.setattr(batching, "prefetch_rows", in_blocks)
    read, corpus = {"said 1"}, tmp_path / "corpus.txt"
    found = list(
        iter_batches(
            CorpusSlice(range(5), written, shuffle_seed=0, keep_repeats=repeats),
            read,
            corpus,
            batch_size=2,
            vocab_size=8,
        )
    )
    assert sorted(batch.mask.sum(1).tolist() for batch in found) == widths
    kept = [i for i in range(5) if i not in dropped]
    assert corpus.read_text().splitlines() == [f"Prompt {i}: said {i % 3}" for i in kept]
    assert read == {"said 0", "said 1", "said 2"}


READER = """
import time
from rlhf_lab.embedded_model.batching import prefetch_rows
from rlhf_lab.embedded_model.corpus import generate_documents

def write(count, start):
    return generate_documents(0, count, start)

if __name__ == "__main__":
    for _ in prefetch_rows(write, range(10_000_000), 64):
        print("read", flush=True)
        time.sleep(1000)  # so that the writer soon waits for more to do
"""


def test_workers_exit_when_their_parent_is_killed(tmp_path):
    (tmp_path / "reader.py").write_text(READER)
    reader = psutil.Popen(
        [sys.executable, str(tmp_path / "reader.py")],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert reader.stdout.readline() == b"read\n"
    writers = reader.children(recursive=True)
    assert writers
    while any(writer.cpu_percent(0.5) for writer in writers):
        pass
    reader.kill()
    reader.wait()
    reader.stdout.close()
    assert psutil.wait_procs(writers, timeout=60)[1] == []

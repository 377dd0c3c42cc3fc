"""Train the embedded model from the generated corpus: tokenizer, then a small Llama, on a CPU.

Every text is written fresh by the grammar and seen once, so the model learns the language of the corpus and has no text to
learn by heart. Matrices are trained with Muon (Jordan et al. 2024, torch.optim.Muon), the rest with AdamW.
"""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_lab.config import Config, setting
from rlhf_lab.pretrain.corpus import texts
from rlhf_lab.seeds import derive

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
#: progress(done, total, loss, seconds left)
Progress = Callable[[int, int, float, float], None]


@dataclass(frozen=True)
class PretrainConfig(Config):
    """The recipe of the embedded model."""

    texts: int = setting(280_000, "texts the model reads, each once", 1_000, 100_000_000)
    held_out: int = setting(2_000, "texts kept aside for the perplexity", 100, 100_000)
    vocab: int = setting(3584, "entries of the byte-level BPE vocabulary", 300, 65_536)
    hidden: int = setting(256, "hidden size", 16, 4096)
    layers: int = setting(4, "transformer layers", 1, 64)
    heads: int = setting(8, "attention heads", 1, 64)
    intermediate: int = setting(640, "width of the feed-forward layers", 16, 16_384)
    context: int = setting(256, "longest sequence, in tokens; a prompt and 64 tokens must fit", 192, 8192)
    batch: int = setting(64, "texts per update", 1, 4096)
    lr: float = setting(3e-3, "peak AdamW learning rate of embeddings and norms", 1e-6, 1.0)
    muon_lr: float = setting(2e-2, "peak Muon learning rate of the matrices", 1e-6, 1.0)
    warmup: int = setting(100, "updates until the peak", 1, 100_000)
    sharpen: float = setting(
        0.75,
        "temperature that is built into the finished model; below 1 it takes the tail of wrong words away",
        0.3,
        1.0,
    )
    seed: int = setting(0, "seed of corpus, weights and order", 0, 2**31 - 1)


def document(prompt: str, response: str) -> str:
    """How prompt and response stand in one line of training text."""
    return f"{prompt} {response}"


def train_tokenizer(config: PretrainConfig) -> PreTrainedTokenizerFast:
    """A byte-level BPE learned on 12,000 texts of the corpus (fewer if the corpus is smaller)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(config.seed, min(12_000, config.texts), 0), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=config.context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(config: PretrainConfig, vocab: int) -> LlamaForCausalLM:
    """The untrained model, its weights drawn from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "weights"))
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab,
                hidden_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                intermediate_size=config.intermediate,
                max_position_embeddings=config.context,
                tie_word_embeddings=True,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
        )


def batches(
    config: PretrainConfig, tokenizer: PreTrainedTokenizerFast, corpus: Path
) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, mask), each (batch, L) int64; texts of similar length together, the order of batches shuffled in blocks.

    Another process writes the texts ahead. Every text read is appended to the file `corpus`, a line each.
    """
    generator = torch.Generator().manual_seed(derive(config.seed, "order"))
    block = config.batch * 32
    with corpus.open("w", encoding="utf-8") as file:
        for lines in written_ahead(config.seed, config.texts, block):
            file.writelines(line.replace("\n", " ") + "\n" for line in lines)
            rows = encode(config, tokenizer, lines)
            rows.sort(key=len)
            groups = [rows[i : i + config.batch] for i in range(0, len(rows), config.batch)]
            for index in torch.randperm(len(groups), generator=generator).tolist():
                yield pad(groups[index])


def written_ahead(seed: int, total: int, block: int) -> Iterator[list[str]]:
    """The documents of texts 0 … total in blocks; the next two blocks are written by another process meanwhile."""
    starts = list(range(0, total, block))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(documents, seed, min(block, total - start), start) for start in starts[:2]]
        for i in range(len(starts)):
            yield waiting.pop(0).result()
            if i + 2 < len(starts):
                start = starts[i + 2]
                waiting.append(pool.submit(documents, seed, min(block, total - start), start))


def documents(seed: int, count: int, start: int) -> list[str]:
    """Prompt and response in one string, for texts start … start+count of the corpus."""
    return [document(t.prompt, t.response) for t in texts(seed, count, start)]


def encode(config: PretrainConfig, tokenizer: PreTrainedTokenizerFast, lines: list[str]) -> list[list[int]]:
    """Token rows, EOS at the end."""
    encoded: list[list[int]] = tokenizer(lines)["input_ids"]
    return [[*row[: config.context - 1], 2] for row in encoded]


def pad(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def token_loss(model: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    """Summed next-token cross-entropy (nats) over real tokens, and their number."""
    hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]  # type: ignore[operator]
    real = mask[:, 1:].bool()
    logits = model.lm_head(hidden[real])  # type: ignore[operator]
    return nn.functional.cross_entropy(logits.float(), ids[:, 1:][real], reduction="sum"), int(real.sum())


def optimisers(model: nn.Module, config: PretrainConfig) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    known = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in known]
    return [
        torch.optim.Muon(matrices, lr=config.muon_lr, momentum=0.95, weight_decay=0.01, ns_steps=5),
        torch.optim.AdamW(rest, lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, total: int, warmup: int) -> float:
    """Share of the peak learning rate: linear warm-up, constant, linear decay to zero over the last 40 %."""
    return min(1.0, (step + 1) / warmup, (total - step) / (0.4 * total))


def train(config: PretrainConfig, out: Path, corpus: Path, progress: Progress) -> dict[str, float]:
    """Train tokenizer and model, write a plain transformers folder to `out` and every text read to the file `corpus`.

    Figures: loss (last 100 updates, nats a token), held_out_perplexity of the finished model and before it was sharpened,
    parameters, seconds.
    """
    begun = time.monotonic()
    tokenizer = train_tokenizer(config)
    model = build_model(config, len(tokenizer))
    total = math.ceil(config.texts / config.batch)
    optims = optimisers(model, config)
    peaks = [optim.param_groups[0]["lr"] for optim in optims]
    recent: list[float] = []
    model.set_attn_implementation("eager")  # on short texts faster than the fused kernel's backward pass
    model.train()
    training = time.monotonic()
    for step, (ids, mask) in enumerate(batches(config, tokenizer, corpus)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, tokens = token_loss(model, ids, mask)
        (loss / tokens).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim, peak in zip(optims, peaks, strict=True):
            optim.param_groups[0]["lr"] = peak * rate(step, total, config.warmup)
            optim.step()
            optim.zero_grad()
        recent = [*recent[-99:], float(loss.detach()) / tokens]
        left = (time.monotonic() - training) / (step + 1) * (total - step - 1)
        progress(step + 1, total, sum(recent) / len(recent), left)
    model.set_attn_implementation("sdpa")
    model.eval()  # type: ignore[no-untyped-call]
    plain = held_out_perplexity(model, config, tokenizer)
    sharpen(model, config.sharpen)
    perplexity = held_out_perplexity(model, config, tokenizer)
    save(model, tokenizer, out)
    return {
        "loss": sum(recent) / len(recent),
        "held_out_perplexity": perplexity,
        "held_out_perplexity_unsharpened": plain,
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "seconds": time.monotonic() - begun,
    }


@torch.no_grad()
def sharpen(model: LlamaForCausalLM, temperature: float) -> None:
    """Divide all logits by the temperature, by way of the last norm's weight.

    The corpus chooses among phrases evenly and never writes a wrong word, so what a small model adds is a thin tail of wrong
    tokens. A lower temperature takes the tail away and leaves the even choices even.
    """
    model.model.norm.weight /= temperature


@torch.no_grad()
def held_out_perplexity(model: nn.Module, config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> float:
    """exp(mean loss a token) on texts of the corpus that training never drew."""
    rows = encode(config, tokenizer, documents(config.seed, config.held_out, config.texts))
    rows.sort(key=len)
    nats, count = 0.0, 0
    for i in range(0, len(rows), 128):
        loss, tokens = token_loss(model, *pad(rows[i : i + 128]))
        nats, count = nats + float(loss), count + tokens
    return math.exp(nats / count)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """A plain transformers folder: config, float16 safetensors, tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    model.to(dtype=torch.float16).save_pretrained(out)  # type: ignore[call-arg]
    tokenizer.save_pretrained(out)

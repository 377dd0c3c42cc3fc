"""Trains the embedded model on the generated corpus: tokenizer, then a small Llama, on a CPU.

Every text is generated once and read once, so there is little to memorise. Matrices are trained with Muon (Jordan et al. 2024,
torch.optim.Muon), the rest with AdamW.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.base import Config, setting
from rlhf_lab.embedded_model.allowed_tokens import AllowedTokens, MaskedRowGenerator
from rlhf_lab.embedded_model.auxiliary_losses import WrongTokenLoss
from rlhf_lab.embedded_model.batching import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    CorpusSlice,
    PlainRowGenerator,
    PretrainBatch,
    encode_texts,
    iter_batches,
    pad_rows,
)
from rlhf_lab.embedded_model.corpus import generate_documents

Precision = Literal["auto", "float32", "bfloat16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BENCHMARK_FLOPS = 10**9  # of one matrix product: about 10 ms
BENCHMARK_REPEATS = 5
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
#: on_progress(done, total, loss, seconds left)
PretrainProgressCallback = Callable[[int, int, float, float], None]
#: auxiliary_loss(logits (targets, vocabulary), batch): a further term of the loss
AuxiliaryLoss = Callable[[Tensor, PretrainBatch], Tensor | float]


@dataclass(frozen=True)
class PretrainConfig(Config):
    """The recipe of the embedded model."""

    texts: int = setting(280_000, "texts the model reads, each once", 100, 100_000_000)
    held_out: int = setting(2_000, "texts kept aside for the perplexity", 10, 100_000)
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
        "temperature that is built into the finished model; below 1 it makes wrong words rarer",
        0.3,
        1.0,
    )
    second_texts: int = setting(40_960, "fresh texts of the second pass, against wrong words", 64, 10_000_000)
    second_rate: float = setting(0.4, "learning rates of the second pass, as a share of the first's", 1e-3, 1.0)
    third_texts: int = setting(
        40_960, "fresh texts of a third pass, against broken phrases; 0: no such pass", 0, 10_000_000
    )
    third_rate: float = setting(0.3, "learning rates of the third pass, as a share of the first's", 1e-3, 1.0)
    name_weight: float = setting(5.0, "weight of picking the right name where a text repeats one", 0.0, 100.0)
    tail_weight: float = setting(10.0, "weight of the penalty on words that never follow in the corpus", 0.0, 100.0)
    phrase_weight: float = setting(
        60.0, "weight of the penalty on what the grammar cannot write, third pass", 0.0, 1000.0
    )
    precision: Precision = setting("auto", "precision of matrix products; auto: the faster one on this machine")
    seed: int = setting(0, "seed of corpus, weights and order", 0, 2**31 - 1)


@dataclass(frozen=True)
class TrainingPass:
    """One pass over a slice of the corpus. lr_scale: factor of the peak learning rates."""

    corpus_slice: CorpusSlice
    auxiliary_loss: AuxiliaryLoss
    lr_scale: float

    def update_count(self, batch_size: int) -> int:
        return math.ceil(len(self.corpus_slice.indices) / batch_size)


def choose_precision(requested: Precision, hidden: int, intermediate: int) -> tuple[Precision, str]:
    """The precision to train in, and why. "auto": the faster one on this machine for a matmul of the model's size."""
    if requested != "auto":
        return requested, f"{requested}, as requested"
    durations = benchmark_precisions(hidden, intermediate)
    fastest: Precision = "float32" if durations["float32"] < durations["bfloat16"] else "bfloat16"
    timings = " and ".join(f"{1000 * seconds:.1f} ms in {name}" for name, seconds in durations.items())
    return fastest, f"{fastest}: a product of the model's size takes {timings}"


def benchmark_precisions(hidden: int, intermediate: int) -> dict[str, float]:
    """Seconds of a feed-forward matmul in each precision, the best of five. Takes less than a second."""
    row_count = max(16, min(4096, BENCHMARK_FLOPS // (2 * hidden * intermediate)))
    best = dict.fromkeys(DTYPES, float("inf"))
    operands = {
        name: (torch.ones(row_count, hidden, dtype=dtype), torch.ones(intermediate, hidden, dtype=dtype))
        for name, dtype in DTYPES.items()
    }
    for _ in range(BENCHMARK_REPEATS):
        for name, (x, weight) in operands.items():
            start_time = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            best[name] = min(best[name], time.perf_counter() - start_time)
    return best


def train_tokenizer(config: PretrainConfig) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the first 12,000 texts of the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(generate_documents(config.seed, min(12_000, config.texts), 0), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=config.context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build_model(config: PretrainConfig, vocab_size: int) -> LlamaForCausalLM:
    """The untrained model, initialised from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "weights"))
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocab_size,
                hidden_size=config.hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                intermediate_size=config.intermediate,
                max_position_embeddings=config.context,
                tie_word_embeddings=True,
                pad_token_id=PAD_ID,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
            )
        )


def token_logits(model: LlamaForCausalLM, ids: Tensor, mask: Tensor) -> Tensor:
    """(targets, vocab) float32: next-token logits for all tokens but the first of each row, without padding."""
    hidden: Tensor = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden[:, :-1][mask[:, 1:].bool()])
    return logits.float()


def token_loss(model: LlamaForCausalLM, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    """(summed next-token cross-entropy in nats, number of targets), without padding."""
    targets = ids[:, 1:][mask[:, 1:].bool()]
    return nn.functional.cross_entropy(token_logits(model, ids, mask), targets, reduction="sum"), len(targets)


def make_optimizers(model: LlamaForCausalLM, config: PretrainConfig) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    matrix_ids = {id(p) for p in matrices}
    other_parameters = [p for p in model.parameters() if id(p) not in matrix_ids]
    return [
        torch.optim.Muon(matrices, lr=config.muon_lr, momentum=0.95, weight_decay=0.01, ns_steps=5),
        torch.optim.AdamW(other_parameters, lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def lr_scale_at_step(step: int, total_steps: int, warmup_steps: int, decay_share: float = 0.4) -> float:
    """Factor of the peak learning rate: linear warm-up, constant, linear decay to zero over the last `decay_share`."""
    return min(1.0, (step + 1) / warmup_steps, (total_steps - step) / (decay_share * total_steps))


def train_pass(
    model: LlamaForCausalLM,
    config: PretrainConfig,
    batches: Iterator[PretrainBatch],
    lr_scales: Sequence[float],
    auxiliary_loss: AuxiliaryLoss,
    on_update: Callable[[int, float], None],
) -> float:
    """One update per batch; returns the mean next-token loss of the last 100 updates, nats per token.

    Args:
        lr_scales: factor of the peak learning rates at each update.
        on_update: on_update(updates done, mean loss as above).
    """
    optimizers = make_optimizers(model, config)
    peak_lrs = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    recent_losses: list[float] = []
    for step, batch in enumerate(batches):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.precision == "bfloat16"):
            logits = token_logits(model, batch.ids, batch.mask)
        loss = nn.functional.cross_entropy(logits, batch.targets)
        (loss + auxiliary_loss(logits, batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak_lr in zip(optimizers, peak_lrs, strict=True):
            optimizer.param_groups[0]["lr"] = peak_lr * lr_scales[step]
            optimizer.step()
            optimizer.zero_grad()
        recent_losses = [*recent_losses[-99:], float(loss.detach())]
        on_update(step + 1, sum(recent_losses) / len(recent_losses))
    return sum(recent_losses) / len(recent_losses)


def train_passes(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    config: PretrainConfig,
    corpus_path: Path,
    on_progress: PretrainProgressCallback,
) -> float:
    """The first pass teaches the language, the second names and known bigrams, the third whole phrases.

    The third pass drops repeated responses, because short ones recur and would be memorised. Returns the loss of the last
    pass.
    """
    training_passes = [*plan_passes(config, tokenizer)]
    total_updates = sum(training_pass.update_count(config.batch) for training_pass in training_passes)
    start_time, updates_done, loss, seen_responses = time.monotonic(), 0, 0.0, set[str]()

    def on_update(pass_updates_done: int, loss: float) -> None:
        done = updates_done + pass_updates_done
        eta_s = (time.monotonic() - start_time) / done * (total_updates - done)
        on_progress(done, total_updates, loss, eta_s)

    for training_pass in training_passes:
        pass_updates = training_pass.update_count(config.batch)
        warmup, decay = (config.warmup, 0.4) if training_pass is training_passes[0] else (config.warmup // 2 + 1, 0.8)
        batch_stream = iter_batches(
            training_pass.corpus_slice, seen_responses, corpus_path, batch_size=config.batch, vocab_size=len(tokenizer)
        )
        lr_scales = [
            training_pass.lr_scale * lr_scale_at_step(step, pass_updates, warmup, decay) for step in range(pass_updates)
        ]
        loss = train_pass(model, config, batch_stream, lr_scales, training_pass.auxiliary_loss, on_update)
        updates_done += pass_updates
    return loss


def plan_passes(config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> Iterator[TrainingPass]:
    """The passes, each over its own slice of the corpus; the held-out texts lie between the first two slices."""
    word_loss = WrongTokenLoss(tokenizer, config.name_weight, config.tail_weight)
    plain_rows = PlainRowGenerator(tokenizer, config.seed, config.context)
    yield TrainingPass(
        CorpusSlice(range(config.texts), plain_rows, derive_seed(config.seed, "order")), word_loss.observe, 1.0
    )
    start = config.texts + config.held_out
    second_slice = CorpusSlice(
        range(start, start + config.second_texts), plain_rows, derive_seed(config.seed, "second order")
    )
    yield TrainingPass(second_slice, word_loss.loss, config.second_rate)
    if config.third_texts:
        start += config.second_texts
        masked_rows = MaskedRowGenerator(AllowedTokens(tokenizer), config.seed)
        indices, shuffle_seed = range(start, start + config.third_texts), derive_seed(config.seed, "third order")
        phrase_loss = WrongTokenLoss(tokenizer, config.name_weight, config.phrase_weight)
        yield TrainingPass(
            CorpusSlice(indices, masked_rows, shuffle_seed, num_workers=2, keep_repeats=False),
            phrase_loss.loss,
            config.third_rate,
        )


def train(
    config: PretrainConfig, out_dir: Path, corpus_path: Path, on_progress: PretrainProgressCallback
) -> dict[str, float]:
    """Train tokenizer and model; write a transformers folder to `out_dir` and every text read to the file `corpus_path`.

    Returns loss (last 100 updates, nats per token), held_out_perplexity after and before sharpening, parameters, seconds.
    """
    start_time = time.monotonic()
    config = config.replace(precision=choose_precision(config.precision, config.hidden, config.intermediate)[0])
    corpus_path.unlink(missing_ok=True)
    tokenizer = train_tokenizer(config)
    model = build_model(config, len(tokenizer))
    model.set_attn_implementation("eager")  # on short texts faster than the backward pass of sdpa
    model.train()
    loss = train_passes(model, tokenizer, config, corpus_path, on_progress)
    model.set_attn_implementation("sdpa")
    model.eval()
    unsharpened_perplexity = held_out_perplexity(model, config, tokenizer)
    sharpen(model, config.sharpen)
    perplexity = held_out_perplexity(model, config, tokenizer)
    save_model(model, tokenizer, out_dir)
    return {
        "loss": loss,
        "held_out_perplexity": perplexity,
        "held_out_perplexity_unsharpened": unsharpened_perplexity,
        "parameters": float(sum(p.numel() for p in model.parameters())),
        "seconds": time.monotonic() - start_time,
    }


@torch.no_grad()
def sharpen(model: LlamaForCausalLM, temperature: float) -> None:
    """Divide all logits by the temperature, by scaling the last norm's weight.

    The corpus chooses uniformly among phrases and has no wrong words; a small model gives wrong tokens a small probability.
    A lower temperature reduces it and keeps uniform choices uniform.
    """
    model.model.norm.weight /= temperature


def held_out_texts(config: PretrainConfig) -> list[str]:
    """The texts of the corpus that no pass reads."""
    return generate_documents(config.seed, config.held_out, config.texts)


@torch.no_grad()
def held_out_perplexity(model: LlamaForCausalLM, config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> float:
    """exp(mean loss per token) on the held-out texts."""
    rows = encode_texts(tokenizer, held_out_texts(config), config.context)
    rows.sort(key=len)
    total_loss, token_count = 0.0, 0
    for i in range(0, len(rows), 128):
        loss, batch_tokens = token_loss(model, *pad_rows(rows[i : i + 128]))
        total_loss, token_count = total_loss + float(loss), token_count + batch_tokens
    return math.exp(total_loss / token_count)


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out_dir: Path) -> None:
    """Write a transformers folder: config, float16 safetensors, tokenizer."""
    out_dir.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)

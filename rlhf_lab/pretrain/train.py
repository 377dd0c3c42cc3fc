"""Train the embedded model from the generated corpus: tokenizer, then a small Llama, on a CPU.

Every text is written fresh by the grammar and read once, so the model learns the language of the corpus and has hardly a text to
learn by heart. Matrices are trained with Muon (Jordan et al. 2024, torch.optim.Muon), the rest with AdamW.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_lab.pretrain.next_tokens import Marked, NextTokens
from rlhf_lab.pretrain.precision import Precision, chosen
from rlhf_lab.pretrain.reading import BOS_ID, EOS_ID, PAD_ID, Batch, Plain, Stretch, batches, documents, encode, pad
from rlhf_lab.pretrain.wrong_words import WrongWords
from rlhf_lab.seeds import derive
from rlhf_lab.settings import Config, setting

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
#: progress(done, total, loss, seconds left)
Progress = Callable[[int, int, float, float], None]
#: a further term of the loss: further(logits, batch), logits (targets, vocabulary)
Further = Callable[[Tensor, Batch], Tensor | float]


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
    second_texts: int = setting(40_960, "fresh texts of the second pass, which is about wrong words", 64, 10_000_000)
    second_rate: float = setting(0.4, "learning rates of the second pass, as a share of the first's", 1e-3, 1.0)
    third_texts: int = setting(
        40_960, "fresh texts of a third pass, which is about broken phrases; 0: no such pass", 0, 10_000_000
    )
    third_rate: float = setting(0.3, "learning rates of the third pass, as a share of the first's", 1e-3, 1.0)
    name_weight: float = setting(5.0, "weight of picking the right name where a text repeats one", 0.0, 100.0)
    tail_weight: float = setting(10.0, "weight of giving nothing to words that never follow in the corpus", 0.0, 100.0)
    phrase_weight: float = setting(
        60.0, "the same for what the grammar cannot write there, in the third pass", 0.0, 1000.0
    )
    precision: Precision = setting("auto", "precision of the products; auto: the quicker one on this machine")
    seed: int = setting(0, "seed of corpus, weights and order", 0, 2**31 - 1)


@dataclass(frozen=True)
class Pass:
    """share: of the peak learning rates."""

    stretch: Stretch
    further: Further
    share: float

    def updates(self, batch: int) -> int:
        return math.ceil(len(self.stretch.span) / batch)


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
                pad_token_id=PAD_ID,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
            )
        )


def token_logits(model: LlamaForCausalLM, ids: Tensor, mask: Tensor) -> Tensor:
    """(tokens, vocab) float32: what the model says of each real token but the first, from those before it."""
    hidden: Tensor = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden[:, :-1][mask[:, 1:].bool()])
    return logits.float()


def token_loss(model: LlamaForCausalLM, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    """Summed next-token cross-entropy (nats) over real tokens, and their number."""
    targets = ids[:, 1:][mask[:, 1:].bool()]
    return nn.functional.cross_entropy(token_logits(model, ids, mask), targets, reduction="sum"), len(targets)


def optimisers(model: LlamaForCausalLM, config: PretrainConfig) -> list[torch.optim.Optimizer]:
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    known = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in known]
    return [
        torch.optim.Muon(matrices, lr=config.muon_lr, momentum=0.95, weight_decay=0.01, ns_steps=5),
        torch.optim.AdamW(rest, lr=config.lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, total: int, warmup: int, decay: float = 0.4) -> float:
    """Share of the peak learning rate: linear warm-up, constant, linear decay to zero over the last share `decay`."""
    return min(1.0, (step + 1) / warmup, (total - step) / (decay * total))


def one_pass(
    model: LlamaForCausalLM, config: PretrainConfig, stream: Iterator[Batch], rates: Sequence[float], further: Further,
    tell: Callable[[int, float], None],
) -> float:  # fmt: skip
    """An update a batch. rates: each one's share of the peak rates.

    tell(updates done, loss) hears the mean loss of the last 100 updates, nats a token, of the next-token part alone; the last
    one is returned.
    """
    optims = optimisers(model, config)
    peaks = [optim.param_groups[0]["lr"] for optim in optims]
    recent: list[float] = []
    for step, batch in enumerate(stream):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.precision == "bfloat16"):
            logits = token_logits(model, batch.ids, batch.mask)
        loss = nn.functional.cross_entropy(logits, batch.targets)
        (loss + further(logits, batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optim, peak in zip(optims, peaks, strict=True):
            optim.param_groups[0]["lr"] = peak * rates[step]
            optim.step()
            optim.zero_grad()
        recent = [*recent[-99:], float(loss.detach())]
        tell(step + 1, sum(recent) / len(recent))
    return sum(recent) / len(recent)


def passes(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    config: PretrainConfig,
    corpus: Path,
    progress: Progress,
) -> float:
    """The first pass learns the language, the second right names and known neighbours, the third whole phrases.

    The third reads no response a second time: short ones come again among so many, and what comes often is learnt by heart.

    Returns the last one's loss.
    """
    plan = [*planned(config, tokenizer)]
    total = sum(one.updates(config.batch) for one in plan)
    begun, done, loss, read = time.monotonic(), 0, 0.0, set[str]()

    def tell(here: int, loss: float) -> None:
        progress(done + here, total, loss, (time.monotonic() - begun) / (done + here) * (total - done - here))

    for one in plan:
        updates = one.updates(config.batch)
        warmup, decay = (config.warmup, 0.4) if one is plan[0] else (config.warmup // 2 + 1, 0.8)
        stream = batches(one.stretch, read, corpus, batch=config.batch, vocab=len(tokenizer))
        rates = [one.share * rate(step, updates, warmup, decay) for step in range(updates)]
        loss = one_pass(model, config, stream, rates, one.further, tell)
        done += updates
    return loss


def planned(config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> Iterator[Pass]:
    """The passes, each over texts of its own; those kept aside lie between the first's and the second's."""
    words = WrongWords(tokenizer, config.name_weight, config.tail_weight)
    plain = Plain(tokenizer, config.seed, config.context)
    yield Pass(Stretch(range(config.texts), plain, derive(config.seed, "order")), words.see, 1.0)
    start = config.texts + config.held_out
    second = Stretch(range(start, start + config.second_texts), plain, derive(config.seed, "second order"))
    yield Pass(second, words.loss, config.second_rate)
    if config.third_texts:
        start += config.second_texts
        marked = Marked(NextTokens(tokenizer), config.seed)
        span, order = range(start, start + config.third_texts), derive(config.seed, "third order")
        phrases = WrongWords(tokenizer, config.name_weight, config.phrase_weight)
        yield Pass(Stretch(span, marked, order, writers=2, again=False), phrases.loss, config.third_rate)


def train(config: PretrainConfig, out: Path, corpus: Path, progress: Progress) -> dict[str, float]:
    """Train tokenizer and model, write a plain transformers folder to `out` and every text read to the file `corpus`.

    Figures: loss (last 100 updates, nats a token), held_out_perplexity of the finished model and before it was sharpened,
    parameters, seconds.
    """
    begun = time.monotonic()
    config = config.replace(precision=chosen(config.precision, config.hidden, config.intermediate)[0])
    corpus.unlink(missing_ok=True)
    tokenizer = train_tokenizer(config)
    model = build_model(config, len(tokenizer))
    model.set_attn_implementation("eager")  # on short texts faster than the fused kernel's backward pass
    model.train()
    loss = passes(model, tokenizer, config, corpus, progress)
    model.set_attn_implementation("sdpa")
    model.eval()
    plain = held_out_perplexity(model, config, tokenizer)
    sharpen(model, config.sharpen)
    perplexity = held_out_perplexity(model, config, tokenizer)
    save(model, tokenizer, out)
    return {
        "loss": loss,
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


def held_out(config: PretrainConfig) -> list[str]:
    """The texts of the corpus between those of the two passes, which neither reads."""
    return documents(config.seed, config.held_out, config.texts)


@torch.no_grad()
def held_out_perplexity(model: LlamaForCausalLM, config: PretrainConfig, tokenizer: PreTrainedTokenizerFast) -> float:
    """exp(mean loss a token) on the texts kept aside."""
    rows = encode(tokenizer, held_out(config), config.context)
    rows.sort(key=len)
    nats, count = 0.0, 0
    for i in range(0, len(rows), 128):
        loss, tokens = token_loss(model, *pad(rows[i : i + 128]))
        nats, count = nats + float(loss), count + tokens
    return math.exp(nats / count)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """A plain transformers folder: config, float16 safetensors, tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)

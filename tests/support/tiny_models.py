"""Tiny random models on disk, and independent computations for one row of what the package computes in batches.

The fixtures of conftest.py return folders only; tests load them through the package, so that mutants of the loading
code are tested too (tests/mutation/mutation_runner.py imports this module again for each mutant).
"""

import functools
import hashlib
import json

import torch
from support.algorithm_names import GROUP_ALGORITHMS, OFFLINE_ALGORITHMS, SINGLE_PASS_ALGORITHMS
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf_lab.common.records import Comparison
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.kernels import compile
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.batch import make_batch
from rlhf_lab.models.fused_llama.layer import SequenceLayout, fused_layer
from rlhf_lab.models.sampling.sampler import uniforms
from rlhf_lab.training.offline.trainer import OfflineTrainer
from rlhf_lab.training.policy.trainer import PolicyTask, PolicyTrainer

torch.set_num_threads(1)

EOS, BOS, PAD, UNK, STOP = 0, 1, 2, 3, 4
# fmt: off
NOUNS = ["cat", "dog", "sun", "moon", "tree", "bird", "fish", "stone", "river", "house", "girl", "boy", "king", "frog",
         "ship", "star"]
VERBS = ["sat", "ran", "saw", "ate", "loved", "found", "made", "took", "gave", "lost", "kept", "broke", "sang", "slept"]
OTHERS = ["the", "a", "and", "good", "bad", "big", "small", "red", "blue", "happy", "sad", "old", "new", "not", "very",
          "so", ".", "!"]
# fmt: on
#: "not good" is one token: text that holds it is encoded as two others, so decoding and encoding again changes ids.
WORDS = ["<eos>", "<bos>", "<pad>", "<unk>", "<stop>", *NOUNS, *VERBS, *OTHERS, "not good", "very happy"]
ID = {word: i for i, word in enumerate(WORDS)}
PROMPTS = ("the cat", "a small dog saw the", "moon", "the king and the frog", "so the old ship")

SIZES = {"hidden": 32, "layers": 2, "heads": 2, "context": 48}


def tokenizer(pad=True, bos=False):
    words = Tokenizer(models.WordLevel(dict(ID), unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        from tokenizers.processors import TemplateProcessing

        words.post_processor = TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
        )
    named = {"eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"} | ({"pad_token": "<pad>"} if pad else {})
    return PreTrainedTokenizerFast(tokenizer_object=words, **named)


def save_llama(folder, seed=0, **changes):
    sizes = {"intermediate_size": 48, "num_key_value_heads": 1} | changes
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=SIZES["hidden"], num_hidden_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"], max_position_embeddings=SIZES["context"],
        initializer_range=0.3, attention_dropout=0.5, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, **sizes,
    )  # fmt: skip
    return _save(folder, LlamaForCausalLM, config, tokenizer(), seed)


def save_gpt2(folder, seed=0, **changes):
    config = GPT2Config(
        vocab_size=len(WORDS), n_embd=SIZES["hidden"], n_layer=SIZES["layers"], n_head=SIZES["heads"],
        n_positions=SIZES["context"], initializer_range=0.3, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5,
        bos_token_id=BOS, eos_token_id=EOS, **changes,
    )  # fmt: skip
    return _save(folder, GPT2LMHeadModel, config, tokenizer(pad=False), seed)


def _save(folder, model_class, config, words, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_class(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def set_generation_config(folder, **values):
    """Settings a careless sampler would pick up."""
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def load(folder, dtype=torch.float32):
    return load_backbone(str(folder), device="cpu", dtype=dtype)


def adapters_of(backbone, *names, seed=5):
    """Adapters with an effect: B is random, not 0."""
    adapters = Adapters(backbone)
    for i, name in enumerate(names):
        adapters.add(name, r=4, alpha=8, seed=i, trainable=True)
        disturb(adapters, name, seed + i)
    return adapters


def disturb(adapters, name, seed=0, scale=0.2):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapters.parameters(name):
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))


def ids(text):
    """The ids of a text, word by word; `_` joins the words of one token."""
    return [ID[word.replace("_", " ")] for word in text.split()]


def ragged(seed=0, rows=5, longest=7):
    """(prompts, responses) of different lengths; some responses end with EOS, one is EOS alone, one is cut."""
    generator = torch.Generator().manual_seed(seed)

    def random_ids(count):
        return torch.randint(5, len(WORDS), (count,), generator=generator).tolist()

    prompts = [random_ids(1 + i % 4 * 2) for i in range(rows)]
    responses = [random_ids(1 + (3 * i) % longest) + [EOS] * (i % 2) for i in range(rows)]
    return prompts, [[EOS], *responses[1:]]


def all_logits(backbone, prompt, response):
    """(R, V) float64 logits that predict each response token: one row, no padding, no cache, the model's own head.

    Without the padding rows of the embedding matrix, which have no token.
    """
    with torch.no_grad():
        logits = backbone.model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0].double()
    logits = logits[:, : len(backbone.tokenizer)]
    return torch.stack([logits[len(prompt) + i - 1] for i in range(len(response))])


def teacher_forced(backbone, prompt, response, temperature=1.0):
    """(R,) float64 log-probability of each response token with the active adapter."""
    logprobs = torch.log_softmax(all_logits(backbone, prompt, response) / temperature, dim=-1)
    return torch.stack([logprobs[i, token] for i, token in enumerate(response)])


def seeded(rows, length, first=0):
    return uniforms(range(first, first + rows), length)


def weights_hash(backbone):
    """SHA-256 of the backbone's tensors without adapters."""
    digest = hashlib.sha256()
    for name, value in sorted(backbone.model.state_dict().items()):
        if "lora_" not in name:
            digest.update(name.replace(".base_layer", "").removeprefix("base_model.model.").encode())
            digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class CountToken:
    """Score = count of `token` in the response; records the responses."""

    def __init__(self, token, scale=1.0):
        self.token, self.scale, self.seen = token, scale, []

    def scores(self, prompts, responses, tick=lambda: None):
        self.seen.append([list(row) for row in responses])
        return torch.tensor([self.scale * row.count(self.token) for row in responses], dtype=torch.float32)


SMALL = {
    "steps": 4, "batch_size": 6, "epochs": 2, "minibatches": 2, "micro_batch": 4, "max_new_tokens": 6, "lr": 3e-3,
    "lora_r": 4, "lora_alpha": 8, "sample_every": 2, "sample_count": 2, "token_rows": 2,
}  # fmt: skip


def trainer(folder, dtype=torch.float32, scorer=None, prompts=PROMPTS, gold=None, backbone=None, **changes):
    """A policy trainer on a fresh backbone; `changes` over SMALL."""
    backbone = backbone or load(folder, dtype)
    task = PolicyTask(prompts, scorer or CountToken(ID["cat"]), sample_prompts=prompts[:2], gold=gold)
    return PolicyTrainer(backbone, Adapters(backbone), task, PolicyConfig(**(SMALL | changes)))


def numbers(metrics):
    """The reproducible metrics: all but times, speed and memory."""
    return {k: v for k, v in metrics.items() if not k.startswith(("time/", "memory/")) and k != "eps"}


def same(a, b):
    """Whether two dicts of tensors are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# --- layers in C (kernels/amx_layer.py) ---


def layer_backends():
    """How this machine can multiply bfloat16 in C: "tiles", "vectors"."""
    is_usable = compile._vector_flags() == compile.VECTOR_FLAGS["AVX512"] and compile._openmp() is not None
    compiles = bool(compile.find_compiler()) and is_usable
    capabilities = torch.cpu.get_capabilities() if compiles else {}
    names = {
        "tiles": capabilities.get("amx_bf16") and compile._request_amx_permission(),
        "vectors": capabilities.get("avx512_bf16"),
    }
    return [name for name, is_available in names.items() if is_available]


def use_layer_backend(name, monkeypatch):
    """Select the backend until the test ends and reload the kernels."""
    if name == "vectors":
        monkeypatch.setenv(compile.KERNELS_ENV, compile.USE_VECTORS)
    else:
        monkeypatch.delenv(compile.KERNELS_ENV, raising=False)
    monkeypatch.setattr(compile, "_load_or_explain", functools.cache(compile._load_or_explain.__wrapped__))


# --- trainers by algorithm ---


def _label(prompt, chosen, rejected, **rest):
    return Comparison(prompt, chosen, rejected, (*ids(chosen), EOS), (*ids(rejected), EOS), **rest)


#: Labels of a person who likes cats.
LABELS = (
    _label("the cat", "cat sat cat", "ran"), _label("moon", "cat cat", "dog ate dog"), _label("moon", "cat ran .", "so"),
    _label("the king and the frog", "cat cat cat sang", "slept bird ."), _label("moon", "sun", "tree", tie=True),
    _label("so the old ship", "cat gave cat", "made the river", count=2),
)  # fmt: skip


def learner(folder, algorithm, dtype=torch.float32, scorer=None, **changes):
    """A small trainer with the recommended settings of the algorithm, without a score clip; `changes` override them."""
    shared = {k: v for k, v in SMALL.items() if k not in ("epochs", "minibatches")} | {"seed": 0, "score_clip": None}
    several = {} if algorithm in SINGLE_PASS_ALGORITHMS else {"epochs": 2, "minibatches": 2}
    specific = {"group_size": 2} if algorithm in GROUP_ALGORITHMS else {"cg_iters": 3} if algorithm == "trpo" else {}
    if algorithm in OFFLINE_ALGORITHMS:
        shared, several = {k: v for k, v in shared.items() if k not in ("token_rows", "score_clip")}, {}
        specific = {"label_batch": 4} | ({"rounds": 2, "candidates": 3} if algorithm == "rejection" else {})
    config = PolicyConfig.for_algorithm(algorithm, **(shared | several | specific | changes))
    backbone = load(folder, dtype)
    texts = ("the cat sat .", "a small dog saw the moon . <eos>", "the king")
    task = PolicyTask(PROMPTS, scorer or CountToken(ID["cat"]), PROMPTS[:2], ptx_texts=texts, labels=LABELS)
    made = (OfflineTrainer if config.is_offline else PolicyTrainer)(backbone, Adapters(backbone), task, config)
    if dtype is torch.float64:
        made.state.policy.value_head.double()
    return made


def midway(folder, algorithm, dtype=torch.float32, **changes):
    """A trainer as after some steps: the policy differs from the reference, the values are not 0."""
    trainer = learner(folder, algorithm, dtype, **changes)
    disturb(trainer.adapters, "policy", scale=0.05)
    with torch.no_grad():
        trainer.state.policy.value_head.linear.weight.copy_(torch.linspace(-0.2, 0.3, 32)[None])
    trainer.state.steps_done = 1
    return trainer


def rollout(trainer, rows=6):
    """A rollout of ragged rows; groups of two share a prompt."""
    prompts, responses = ragged(rows=rows)
    prompts = [prompts[i // 2 * 2] for i in range(rows)]
    return trainer.prepare_rollout(
        make_batch(trainer.backbone, prompts, responses),
        torch.linspace(-2, 2, rows),
        [[0.0] * len(r) for r in responses],
    )


def weights(trainer):
    """The trained tensors."""
    return {k: v for k, v in trainer.state.state_dict()[0].items() if k.startswith(("adapter.", "value.", "critic."))}


def run(trainer, steps):
    return [trainer.run_step() for _ in range(steps)]


def whole_layer(x, weights, shape, rope, update, lora_tensors, start_pos=0):
    """`fused_layer` on whole sequences: (B, T, H) -> (B, T - start_pos, H)."""
    layout = SequenceLayout(*x.shape[:2], start_pos)
    out = fused_layer(x.flatten(0, 1), weights, shape, rope, update, lora_tensors, layout)
    return out.view(len(x), -1, x.shape[2])

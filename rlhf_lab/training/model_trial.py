"""Tries a model before it is used: one small pass of each kind that the lab needs, on a small model of the same family.

The small model has random weights and the configuration of the real one, reduced (models/small_config.py). The passes are
those of the lab itself: sampler, features, reward model, policy, adapters. Their numbers are compared with those of
transformers' plain pass over one text at a time. So a family whose padded or cached passes compute something else is
found too, not only one whose passes fail.

    python -m rlhf_lab.training.model_trial FOLDER NAME [PARAMETERS [SECONDS]]    # prints the outcome: trial_process.py

Before that, the classes of transformers check the configuration itself: a model of its full size is made without memory for
its weights.
"""

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.hub_errors import first_line
from rlhf_lab.common.model_folder import TESTED_MODEL_TYPES, check_model_folder
from rlhf_lab.errors import ModelError
from rlhf_lab.kernels.ops import HALF_DTYPES
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import (
    CONTEXT_FIELDS,
    Backbone,
    attention_implementation,
    configuration,
    configuration_problem,
    disable_packed_sequence_check,
    load_backbone,
    make_backbone,
    resolve_model_folder,
)
from rlhf_lab.models.batch import Batch, make_batch
from rlhf_lab.models.features import FeatureSpec, text_features
from rlhf_lab.models.fused_llama import MIN_SHARED_PREFIX
from rlhf_lab.models.heads import RewardHead, ValueHead
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.models.sampling.sampler import TokenStream, sample, uniforms
from rlhf_lab.models.small_config import TOKEN_COUNT, small_configs
from rlhf_lab.training.policy.rollout import PolicyModel
from rlhf_lab.training.trial_process import (
    LIMIT_MESSAGE,
    MEMORY_LIMIT_BYTES,
    MEMORY_PROBLEM,
    TIME_LIMIT_S,
    try_configuration,
)

#: Largest difference of log-probabilities in nats, or of scores and states, that counts as rounding in float32: measured are
#: differences up to 0.01 (Gemma 3n; elsewhere 2e-5), and from 0.2 where a family mistakes padding or its cache.
TOLERANCE = 0.02
RESPONSE_LENGTH, PREFIX_LENGTH = 10, MIN_SHARED_PREFIX + 1
ADAPTER_RANK, DISTURBANCE = 2, 0.02
#: Tokens that end a response of the small model: several, so that some rows of a batch end early.
END_TOKENS = list(range(8))
#: Parameters that a model may have while it is made, per parameter in its files: tied ones are made twice, then shared.
MAX_UNSHARED = 3

OTHER_NUMBERS, OTHER_SHAPES = (
    "gave other numbers than plain passes over each text alone",
    "gave tensors of other shapes",
)

log = logging.getLogger("rlhf_lab.models")


class _WrongResultError(Exception):
    """A pass gave a wrong result. Arguments: the result, in words that complete "the pass …", and a detail for the log."""


@dataclass
class _Trial:
    """A backbone, its adapters, and texts of different lengths as token ids; some prompts occur twice."""

    backbone: Backbone
    adapters: Adapters
    prompts: list[list[int]]
    responses: list[list[int]]

    @property
    def batch(self) -> Batch:
        return make_batch(self.backbone, self.prompts, self.responses)

    def random_ids(self, count: int, seed: int) -> list[int]:
        """Tokens that do not end a response."""
        known = sorted(set(self.backbone.tokenizer.get_vocab().values()) - set(self.backbone.eos_ids))
        known = [i for i in known if i < self.backbone.vocabulary_head.size]
        picks = torch.randint(len(known), (count,), generator=torch.Generator().manual_seed(seed))
        return [known[i] for i in picks.tolist()]

    @torch.no_grad()
    def expected_logprobs(self, prompt: Sequence[int], response: Sequence[int]) -> Tensor:
        """(R,) log-probabilities by the model's own pass over this text alone, with the adapter in use."""
        head = self.backbone.vocabulary_head
        ids = torch.tensor([[*prompt, *response]], device=self.backbone.device)
        logits = self.backbone.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1, : head.size]
        if head.missing_ids is not None:
            logits = logits.index_fill(-1, head.missing_ids, -torch.inf)
        chosen = torch.tensor(response, device=logits.device)[:, None]
        logprobs: Tensor = logits.float().log_softmax(-1).gather(-1, chosen).squeeze(-1)
        return logprobs

    def check(self, actual: Tensor, expected: Tensor) -> None:
        """Raises _WrongResultError unless both are finite and equal, up to rounding."""
        if actual.shape != expected.shape:
            raise _WrongResultError(OTHER_SHAPES, f"{tuple(actual.shape)} instead of {tuple(expected.shape)}")
        difference = float((actual.float() - expected.float()).abs().max())
        is_half = self.backbone.model.dtype in HALF_DTYPES  # whose rounding depends on the shapes of the products
        if not bool(actual.isfinite().all()) or not (is_half or difference <= TOLERANCE):
            raise _WrongResultError(OTHER_NUMBERS, f"a difference of {difference:.2g}")

    def check_samples(self, prompts: list[list[int]]) -> None:
        uniform = uniforms(range(len(prompts)), RESPONSE_LENGTH)
        sampled = sample(self.backbone, prompts, uniform, temperature=1.0)
        for prompt, tokens, logprobs in zip(prompts, sampled.tokens, sampled.logprobs, strict=True):
            self.check(torch.tensor(logprobs), self.expected_logprobs(prompt, tokens).cpu())

    def add_adapter(self, name: str) -> None:
        """An adapter with an effect: B is random instead of 0."""
        self.adapters.add(name, r=ADAPTER_RANK, alpha=2 * ADAPTER_RANK, seed=0, trainable=True)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in self.adapters.parameters(name):
                weight.add_(DISTURBANCE * torch.randn(weight.shape, generator=generator).to(weight))

    def check_gradient(self, loss: Tensor, adapter: str, head: nn.Module) -> None:
        loss.backward()
        for parameters in (self.adapters.parameters(adapter), list(head.parameters())):
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if not any(bool(gradient.any()) for gradient in gradients):
                raise _WrongResultError("gave no gradient")
            if not all(bool(gradient.isfinite().all()) for gradient in gradients):
                raise _WrongResultError("gave gradients that are not finite")


def _read(trial: _Trial) -> None:
    for prompt, response in zip(trial.prompts, trial.responses, strict=True):
        trial.check(logprobs := trial.expected_logprobs(prompt, response), logprobs)


def _read_several(trial: _Trial) -> None:
    policy = PolicyModel(trial.backbone, trial.adapters, "none", ValueHead(trial.backbone.hidden_size))
    _check_rows(trial, policy.reference_logprobs(trial.batch, 1.0))


def _check_rows(trial: _Trial, logprobs: Tensor) -> None:
    for row, prompt, response in zip(logprobs, trial.prompts, trial.responses, strict=True):
        trial.check(row[: len(response)], trial.expected_logprobs(prompt, response))


@torch.no_grad()
def _read_layers(trial: _Trial) -> None:
    backbone, spec = trial.backbone, FeatureSpec("mean", 0.5, "all")
    ids = torch.tensor([trial.prompts[-1]], device=backbone.device)
    states = list(backbone.layer_states(ids))
    size = (1, ids.shape[1], backbone.hidden_size)
    if [tuple(state.shape) for state in states] != [size] * backbone.state_count:
        shapes = ", ".join(str(tuple(state.shape)) for state in states)
        raise _WrongResultError(OTHER_SHAPES, f"{shapes} instead of {backbone.state_count} times {size}")
    trial.check(states[-1], backbone.hidden(ids))
    together = text_features(backbone, trial.batch, spec)
    for features, prompt, response in zip(together, trial.prompts, trial.responses, strict=True):
        alone = text_features(backbone, make_batch(backbone, [prompt], [response]), spec)[0]
        scale = alone.norm().clamp_min(1e-6)
        trial.check(features / scale, alone / scale)


def _write(trial: _Trial) -> None:
    trial.check_samples([trial.random_ids(4, seed) for seed in range(4)])


def _write_several(trial: _Trial) -> None:
    trial.check_samples(trial.prompts)


def _write_after_prefix(trial: _Trial) -> None:
    if trial.backbone.context_length < 2 * PREFIX_LENGTH + RESPONSE_LENGTH:
        return
    prefix = trial.random_ids(PREFIX_LENGTH, 7)
    trial.check_samples([prefix + prompt for prompt in trial.prompts[:4]])


def _write_in_parts(trial: _Trial) -> None:
    stream = TokenStream(trial.backbone, trial.prompts[2], uniforms([3], RESPONSE_LENGTH), temperature=1.0)
    while not stream.advance(lambda: False):
        pass
    sampled = sample(trial.backbone, [trial.prompts[2]], uniforms([3], RESPONSE_LENGTH), temperature=1.0).tokens[0]
    if stream.tokens != sampled:
        raise _WrongResultError(OTHER_NUMBERS)


def _train_reward(trial: _Trial) -> None:
    trial.add_adapter("trial reward")
    size = FeatureSpec("mean", 0.5, "all").size(trial.backbone)
    head = RewardHead(size, FeatureSpec("mean", 0.5, "all"), seed=0).to(trial.backbone.device)
    model = RewardModel(trial.backbone, trial.adapters, "trial reward", head)
    scores = model.score_batch(trial.batch)
    for score, prompt, response in zip(scores.detach(), trial.prompts, trial.responses, strict=True):
        trial.check(score.cpu(), model.scores([prompt], [response])[0])
    trial.check_gradient(-nn.functional.logsigmoid(scores[0] - scores[1]), "trial reward", head)


def _train_policy(trial: _Trial) -> None:
    trial.add_adapter("trial policy")
    head = ValueHead(trial.backbone.hidden_size).to(trial.backbone.device)
    policy = PolicyModel(trial.backbone, trial.adapters, "trial policy", head)
    output = policy.evaluate(trial.batch, 1.0)
    with trial.adapters.using("trial policy"):
        _check_rows(trial, output.logprobs.detach())
    trial.check_gradient(output.logprobs.sum() + (output.values - 1).square().sum(), "trial policy", head)


def _write_merged(trial: _Trial) -> None:
    with trial.adapters.using("trial policy", merged=True):
        uniform = uniforms(range(len(trial.prompts)), RESPONSE_LENGTH)
        sampled = sample(trial.backbone, trial.prompts, uniform, temperature=1.0)
    sampled_rows = list(zip(trial.prompts, sampled.tokens, sampled.logprobs, strict=True))
    with trial.adapters.using("trial policy"):
        for prompt, tokens, logprobs in sampled_rows:
            trial.check(torch.tensor(logprobs), trial.expected_logprobs(prompt, tokens).cpu())


def _copy_adapter(trial: _Trial) -> None:
    trial.adapters.copy("trial policy", "trial copy", trainable=False)
    prompt, response = trial.prompts[0], trial.responses[0]
    with trial.adapters.using("trial policy"):
        expected = trial.expected_logprobs(prompt, response)
    with trial.adapters.using("trial copy"):
        trial.check(trial.expected_logprobs(prompt, response), expected)


#: Each kind of pass, in words that complete "… failed".
PASSES: dict[str, Callable[[_Trial], None]] = {
    "reading a text": _read,
    "reading several texts of different lengths at once": _read_several,
    "reading the states of every layer": _read_layers,
    "writing texts token by token with a cache": _write,
    "writing after prompts of different lengths at once": _write_several,
    "writing after prompts with the same beginning": _write_after_prefix,
    "writing a text in parts": _write_in_parts,
    "training an adapter and the head of a reward model": _train_reward,
    "training an adapter and a value head": _train_policy,
    "writing with a merged adapter": _write_merged,
    "copying an adapter": _copy_adapter,
}


def try_backbone(backbone: Backbone, passes: Iterable[str] = tuple(PASSES)) -> None:
    """Make passes with a backbone. Raises ModelError for the first that fails or gives wrong numbers."""
    adapters, model_type = Adapters(backbone), backbone.model.config.model_type
    trial = _Trial(backbone, adapters, [], [])
    trial.prompts = [
        trial.random_ids(length, seed) for length, seed in ((3, 0), (1, 1), (9, 2), (3, 0), (6, 3), (14, 4))
    ]
    trial.responses = [trial.random_ids(length, 9 + length) for length in (4, 1, 7, 5, 2, 6)]
    trial.responses[0].append(backbone.eos_ids[0])
    try:
        for description in passes:
            try:
                PASSES[description](trial)
            except _WrongResultError as error:
                raise ModelError(_refusal(backbone.name, model_type, description, str(error.args[0]), error)) from error
            except Exception as error:
                raise ModelError(_refusal(backbone.name, model_type, description, "failed", error)) from error
    finally:
        for name in adapters.names:
            adapters.remove(name)


def _refusal(name: str, model_type: str, description: str, outcome: str, error: Exception) -> str:
    log.warning("%s (%s): %s %s", name, model_type, description, outcome, exc_info=error)
    return (
        f"{name}: models of the type {model_type} with its config.json do not work in the lab. The lab tried the steps of "
        f"the loop before use, and {description} {outcome}. Copy the file again, or choose a model of another type "
        "(docs/MODEL_FAMILIES.md). The log has the error."
    )


def try_model(name: str, config: PreTrainedConfig) -> bool:
    """Try small models of a configuration. Those of families that the lab's own tests cover only read a text.

    Returns False if no small model of it can be made, so that it could not be tried. Raises ModelError if a pass fails on
    every small model.
    """
    passes = tuple(PASSES)[:1] if config.model_type in TESTED_MODEL_TYPES else tuple(PASSES)
    torch.manual_seed(0)
    message = ""
    for small in small_configs(config):
        try:
            try_backbone(_small_backbone(name, small), passes)
            return True
        except ModelError as error:
            message = str(error)
        except Exception as error:  # of the first pass, while the model is loaded
            message = _refusal(name, config.model_type, passes[0], "failed", error)
    if message:
        raise ModelError(message)
    log.warning("%s: no small model of the type %s can be made, so it is not tried", name, config.model_type)
    return False


def check_configuration(name: str, config: PreTrainedConfig, parameters: int | None) -> None:
    """Raises ModelError unless a model of its full size can be made of a configuration, with at most so many parameters (None:
    any number). It is made without memory for its weights, and given up once it has far too many of them."""
    made = 0

    def count(module: nn.Module, _: str, parameter: nn.Parameter) -> None:
        nonlocal made
        made += 0 if parameter is None else parameter.numel()
        if parameters is not None and made > MAX_UNSHARED * parameters:
            raise ModelError(too_large.format(f"more than {MAX_UNSHARED * parameters:,}"))

    too_large = (
        f"{name}: its config.json describes a model of {{}} parameters, and its weight files hold {parameters or 0:,}. Copy the "
        "files again."
    )
    for field in ("num_hidden_layers", *CONTEXT_FIELDS):  # read by the lab, and not by every class
        if (value := getattr(config.get_text_config(), field, None)) is not None and value < 1:
            raise ModelError(
                f"{name}: its config.json states {field} = {value}, which is less than 1. Copy the file again."
            )
    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (ModelError, ImportError, MemoryError):
        raise
    except Exception as error:
        if " meta" in str(error):  # such as a model that computes with its weights while it is made
            return
        raise ModelError(
            f"{name}: no model can be made of its config.json ({configuration_problem(error)}). Copy the file again, or choose "
            "another model."
        ) from error
    finally:
        hook.remove()
    total = sum(parameter.numel() for parameter in model.parameters())
    if parameters is not None and total > parameters:
        raise ModelError(too_large.format(f"{total:,}"))


def _small_backbone(name: str, config: PreTrainedConfig) -> Backbone:
    """A random model in float32 on the CPU, loaded as the real one would be. Raises ModelError as `load_backbone` does."""
    disable_packed_sequence_check()
    device = torch.device("cpu")
    text = config.get_text_config()
    text.initializer_range = text.hidden_size**-0.5  # so that every layer matters, in any width
    implementation = attention_implementation(config, device, torch.float32)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=implementation)
    model.generation_config.eos_token_id = END_TOKENS
    word_level = Tokenizer(models.WordLevel({f"w{i}": i for i in range(TOKEN_COUNT)}, unk_token="w0"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_level, eos_token="w0", unk_token="w0", pad_token="w0")
    return make_backbone(name, "", model, tokenizer, device)


def load_tried_backbone(
    name: str, *, device: str | None = None, dtype: torch.dtype | None = None, sharded: bool = False
) -> Backbone:
    """`load_backbone`, after a trial of the model's configuration, or of the loaded model if no small one can be made."""
    is_tried = name == EMBEDDED_MODEL
    if not is_tried:
        checked = check_model_folder(name, resolve_model_folder(name))
        is_tried = try_configuration(name, checked.config, checked.parameters)
    backbone = load_backbone(name, device=device, dtype=dtype, sharded=sharded)
    if not is_tried and backbone.shards is None and not backbone.is_quantized:
        try_backbone(backbone)
    return backbone


def main(arguments: Sequence[str]) -> None:
    """Try the model whose config.json is in a folder, within limits. Prints {"outcome": …}: whether it could be tried, or why it
    is refused."""
    folder, name, *limits = arguments
    outcome: bool | str
    try:
        _limit_process(float(limits[1]) if limits[1:] else TIME_LIMIT_S)
        config = configuration(name, Path(folder))
        check_configuration(name, config, int(limits[0]) if limits else None)
        outcome = try_model(name, config)
    except ModelError as error:
        outcome = str(error)
    except ImportError as error:
        outcome = (
            f"{name}: transformers needs another package for this model ({first_line(error, None)}). Choose a model of another "
            "type, or install the package where the lab runs."
        )
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        outcome = LIMIT_MESSAGE.format(name, MEMORY_PROBLEM)
    print(json.dumps({"outcome": outcome}))


def _limit_process(seconds: float) -> None:
    """At the limit of time a signal ends the process, because nothing else interrupts a long operation in C."""
    import resource  # Windows has neither, and the engine imports this module

    signal.setitimer(signal.ITIMER_PROF, seconds)
    with suppress(ValueError, OSError):  # macOS has no /proc and knows no such limit
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT_BYTES, used + MEMORY_LIMIT_BYTES))


if __name__ == "__main__":
    main(sys.argv[1:])

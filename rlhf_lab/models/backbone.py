"""One frozen causal language model with its tokenizer, and the two forward passes that everything else builds on.

The backbone's weights never change. Adapters (models/adapters.py) are added to it and switched; the reference policy is
the backbone without an adapter.
"""

import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Cache,
    masking_utils,
)

from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL, embedded_model_folder, weights_digest
from rlhf_lab.common.chat_format import plain_prompt_with_system
from rlhf_lab.common.model_folder import CARD_FILE, check_model_folder, no_end_token_message
from rlhf_lab.common.paths import existing_path
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.config.dtype import QUANTIZE_VARIABLE
from rlhf_lab.errors import ModelError
from rlhf_lab.kernels.matmul import register_weight
from rlhf_lab.kernels.ops import HALF_DTYPES
from rlhf_lab.models.chat_prompts import encode_chat_prompt
from rlhf_lab.models.dtype_choice import DtypeChoice, choose_dtype
from rlhf_lab.models.fsdp import FsdpShards
from rlhf_lab.models.fused_llama import FusedLayers, patch_model, register_attention
from rlhf_lab.models.memory_errors import is_out_of_memory
from rlhf_lab.models.quantization import loading_options, requested_quantization
from rlhf_lab.models.text_tokenizer import TextTokenizer
from rlhf_lab.models.vocabulary_head import VocabularyHead, make_vocabulary_head

REPLACEMENT_CHARACTER = "\ufffd"  # decoding of a character of which a token is missing
#: input_ids (B, 1), positions (B, 1), mask (B, L) of all tokens so far, the cache of the earlier ones -> hidden states
#: (B, H).
DecodeFunction = Callable[[Tensor, Tensor, Tensor, Cache], Tensor]
#: Names that configurations have for the length of the context, in tokens.
CONTEXT_FIELDS = ("max_position_embeddings", "max_seq_len")
#: Types with windows of attention over columns, whose layers nevertheless cache every token.
COLUMN_WINDOW_TYPES = ("gpt_neo",)
MAX_PROMPT_TEXTS = 200_000  # remembered prompts; older ones are decoded from their tokens
#: Larger relative errors of the logits mean that a model changes them after its head in an unsupported way.
HEAD_TOLERANCE, HALF_HEAD_TOLERANCE = 2e-3, 5e-3


@dataclass(frozen=True)
class WeightVersion:
    """Identifies the tensors that a forward pass reads. They are the same tensors (values may differ) while `generation`
    is the same object and `key` is equal. `refresh` updates merged copies among them, as the pass itself would.
    """

    generation: object = field(default_factory=object)
    key: Hashable = None
    refresh: Callable[[], None] = lambda: None


@dataclass
class Backbone:
    """A loaded model. `name` is the requested name, `digest` the SHA-256 of its weights, `dtype_reason` why it has its dtype.

    weight_version: set by the adapters. fused_layers: the layers computed as one function each. cuda_graphs: what
    models/sampling/cuda_graphs.py keeps between samplings. shards: the processes that share the weights; None: this
    process holds all of them. batch_splits: into how many parts a batch is split, more than 1 after memory ran out
    (models/oom.py). chat_settings: those of the project whose prompts are encoded.
    """

    name: str
    digest: str
    model: Any
    tokenizer: Any
    device: torch.device
    eos_ids: tuple[int, ...]
    pad_id: int
    vocabulary_head: VocabularyHead
    weight_version: WeightVersion = field(default_factory=WeightVersion)
    fused_layers: FusedLayers = field(default_factory=FusedLayers)
    cuda_graphs: Any = None
    shards: FsdpShards | None = None
    batch_splits: int = 1
    dtype_reason: str = ""
    chat_settings: ChatSettings = field(default_factory=ChatSettings)
    _prompt_texts: dict[tuple[int, ...], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def state_count(self) -> int:
        """How many tensors `layer_states` gives: the embeddings and one for each layer."""
        return int(self.model.config.get_text_config().num_hidden_layers) + 1

    @property
    def context_length(self) -> int:
        """The longest sequence that the model can read, in tokens."""
        config = self.model.config.get_text_config()
        return int(next((length for name in CONTEXT_FIELDS if (length := getattr(config, name, None))), 2**20))

    @property
    def is_quantized(self) -> bool:
        return bool(getattr(self.model, "is_quantized", False))

    @property
    def trunk(self) -> nn.Module:
        """The transformer without its language-model head."""
        trunk: nn.Module = self.model.base_model
        return trunk

    @cached_property
    def allows_inner_padding(self) -> bool:
        """False for models that count columns between two tokens instead of positions: padding must then be at the start."""
        reads_positions = "position_ids" in inspect.signature(self.trunk.forward).parameters  # MPT and BLOOM do not
        return reads_positions and self.model.config.model_type not in COLUMN_WINDOW_TYPES

    @cached_property
    def text_tokenizer(self) -> TextTokenizer:
        return TextTokenizer(self.tokenizer, self.eos_ids, self.name)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a stored prompt for the policy: its turns in the chat template, or plain text with the tokenizer's BOS."""
        ids = self._encode_prompt(text)
        self._prompt_texts[tuple(ids)] = text
        if len(self._prompt_texts) > MAX_PROMPT_TEXTS:
            del self._prompt_texts[next(iter(self._prompt_texts))]
        return ids

    def prompt_text(self, ids: Sequence[int]) -> str:
        """The text that `encode_prompt` encoded, without chat template and system prompt; other prompts are decoded."""
        text = self._prompt_texts.get(tuple(ids))
        return self.decode(ids) if text is None else text

    def _encode_prompt(self, text: str) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None):
            return encode_chat_prompt(self.text_tokenizer, text, self.chat_settings)
        text = plain_prompt_with_system(text, self.chat_settings.system_prompt)
        bos = self.tokenizer.bos_token_id
        ids, _ = self._split_stop(self.encode_document(text), begins_with_bos=True)
        return ids or ([int(bos)] if bos is not None else [self.eos_ids[0]])

    def encode_response(self, text: str) -> list[int]:
        """Token ids of a response that was not sampled (imported text), EOS appended unless it ends with a stop token."""
        ids, stop_ids = self._split_stop(self.text_tokenizer.encode(text, add_special_tokens=False))
        return [*ids, stop_ids[0] if stop_ids else self.eos_ids[0]]

    def encode_document(self, text: str) -> list[int]:
        """Token ids of a text with the special tokens that the tokenizer adds; one BOS and one EOS if the text has its own."""
        ids, stop_ids = self._split_stop(self.text_tokenizer.encode(text), begins_with_bos=True)
        ids += stop_ids[:1]
        while len(ids) > 1 and ids[0] == ids[1] == self.tokenizer.bos_token_id:
            ids.pop(0)
        return ids

    def _split_stop(self, ids: list[int], *, begins_with_bos: bool = False) -> tuple[list[int], list[int]]:
        """The ids without the stop tokens at their end, and these stop tokens with the white space after each (chat
        templates write line breaks there).

        begins_with_bos: a BOS at the start is not a stop token, although some tokenizers use the same token as EOS.
        """
        first = int(begins_with_bos and ids[:1] == [self.tokenizer.bos_token_id])
        start = end = len(ids)
        while start > first and (ids[start - 1] in self.eos_ids or not self.tokenizer.decode(ids[start - 1]).strip()):
            start -= 1
            if ids[start] in self.eos_ids:
                end = start
        return ids[:end], ids[end:]

    def decode(self, ids: Sequence[int], after: Sequence[int] = ()) -> str:
        """The text of token ids, without special tokens. after: the ids that precede them.

        decode(after) + decode(ids, after) == decode(after + ids), although SentencePiece tokenizers drop the first space of a
        decoded text.
        """
        text = str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
        if not after:
            return text
        before, whole = (
            str(self.tokenizer.decode(part, skip_special_tokens=True)) for part in (list(after), [*after, *ids])
        )
        return whole[len(before) :] if whole.startswith(before) else text

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds to the previous ones. Joined, they are the whole text, including special tokens.

        A character that consists of several tokens is assigned to the last of them; the others are empty.
        """
        strings: list[str] = []
        window_start = decoded_end = 0  # start of the last complete token's context, and end of the decoded text
        for end in range(1, len(ids) + 1):
            decoded, text = (str(self.tokenizer.decode(list(ids[window_start:stop]))) for stop in (decoded_end, end))
            if text.endswith(REPLACEMENT_CHARACTER) and end < len(ids):
                strings.append("")
                continue
            strings.append(text[len(decoded) :])
            window_start, decoded_end = decoded_end, end
        return strings

    @property
    def token_budget(self) -> int:
        """Tokens (padding included) per forward pass without gradients: enough to keep the device busy."""
        return 2**16 if self.device.type == "cuda" else 2**10

    def sync_pass_count(self, count: int) -> int:
        """The largest `count` of all processes that share the weights: each must make as many passes."""
        return self.shards.max_over_ranks(count) if self.shards is not None else count

    def hidden(self, input_ids: Tensor, start_pos: int = 0) -> Tensor:
        """Last hidden states (B, L - start_pos, H) of the trunk, from position start_pos on, with the adapter in use.

        input_ids: (B, L) int64. Rows begin at column 0 and attention is causal: padding is allowed at the end only.
        """
        hidden = self.fused_layers.hidden_states(self.trunk, input_ids, start_pos)
        if hidden is None:
            hidden = self.trunk(input_ids=input_ids, use_cache=False).last_hidden_state[:, start_pos:]
        return hidden

    def layer_states(self, input_ids: Tensor, start_pos: int = 0) -> Iterator[Tensor]:
        """Hidden states as from `hidden`, of the embeddings and of every layer; the last are those of `hidden`.

        Fused layers yield one at a time, so that a caller who pools them without a gradient holds only one in memory.
        """
        layers = self.fused_layers.layer_states(self.trunk, input_ids, start_pos)
        if layers is not None:
            return layers
        output = self.trunk(input_ids=input_ids, use_cache=False, output_hidden_states=True)
        # Gemma 3n's layers have several streams, (streams, B, L, H). The last state is normalised only in some families.
        stream = getattr(self.model.config.get_text_config(), "altup_active_idx", 0)
        inner = (states[stream] if states.dim() == 4 else states for states in output.hidden_states[:-1])
        return (states[:, start_pos:] for states in (*inner, output.last_hidden_state))

    def decode_step(self, has_padding: bool) -> DecodeFunction:
        """The trunk's next-token pass under the adapter in use; valid until the weights or the adapter change.

        has_padding: whether some prompts are shorter than others.
        """
        return self.fused_layers.decode_step(self.trunk, has_padding) or self._trunk_decode_step

    def _trunk_decode_step(self, input_ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        output = self.trunk(
            input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        states: Tensor = output.last_hidden_state[:, -1]
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits (..., V) of hidden states (..., H), for the tokens of the tokenizer only."""
        return self.vocabulary_head.logits(hidden)


def load_backbone(
    name: str, *, device: str | None = None, dtype: torch.dtype | None = None, sharded: bool = False
) -> Backbone:
    """Load a model by name: "embedded", a local folder, or a Hub id (downloaded once, safetensors only, no remote
    code).

    dtype: None chooses as models/dtype_choice.py does. sharded: over all processes of the process group, which load it at the
    same time. Raises ModelError with the remedy.
    """
    folder = resolve_model_folder(name)
    target_device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    check_model_folder(name, folder)
    config = configuration(name, folder)
    choice = choose_dtype(config, target_device) if dtype is None else DtypeChoice(dtype, "requested by the caller")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        remedy = _memory_remedy(error) or "Save it into the folder with tokenizer.save_pretrained(folder)."
        raise ModelError(f"{name}: its tokenizer cannot be read ({error}). {remedy}") from error

    bits = requested_quantization(target_device)
    load_full = partial(_load_full_model, name, folder, config, target_device, choice.dtype, bits)
    if sharded and bits:
        raise ModelError(f"quantised weights cannot be sharded. Unset {QUANTIZE_VARIABLE} or shard_backbone.")
    shards = FsdpShards(target_device) if sharded else None
    model = shards.load(load_full) if shards is not None else load_full()
    if shards is None and bits is None:
        model = model.to(device=target_device)
    backbone = make_backbone(name, weights_digest(folder), model, tokenizer, target_device, shards)
    backbone.dtype_reason = choice.reason + (f", quantised to {bits} ({QUANTIZE_VARIABLE})" if bits else "")
    return backbone


def make_backbone(
    name: str, digest: str, model: Any, tokenizer: Any, device: torch.device, shards: FsdpShards | None = None
) -> Backbone:
    """A backbone of a model on its device, whose weights are frozen from now on. Raises ModelError with the remedy."""
    model.eval()
    model.requires_grad_(False)
    eos = _eos_ids(name, model, tokenizer)
    head = make_vocabulary_head(model, tokenizer.get_vocab().values(), sharded=shards is not None)
    backbone = Backbone(name, digest, model, tokenizer, device, eos, 0, head, shards=shards)
    if shards is None:
        backbone.fused_layers = patch_model(model)
        if head.weight is not None:
            register_weight(head.weight)
    pad = tokenizer.pad_token_id
    embeddings: Any = model.get_input_embeddings()  # has no row for a pad token added to the tokenizer only
    backbone.pad_id = int(pad if pad is not None and pad < len(embeddings.weight) else backbone.eos_ids[0])
    _check_head_logits(backbone)
    return backbone


def _load_full_model(
    name: str, folder: Path, config: Any, device: torch.device, dtype: torch.dtype, bits: str | None
) -> Any:
    """The unsharded model: on the CPU, or on its device if it is quantised to `bits`."""
    disable_packed_sequence_check()
    options = loading_options(bits, device, dtype) if bits else {}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True,
            attn_implementation=attention_implementation(config, device, dtype), **options,
        )  # fmt: skip
    except Exception as error:
        remedy = _memory_remedy(error) or "Check that the folder is a complete transformers checkpoint."
        raise ModelError(f"{name}: its weights cannot be loaded ({_first_line(error)}). {remedy}") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelError(
            f"{name}: its files lack {len(missing)} of its weights, such as {missing[0]}, which would be random. "
            "Save the complete model with model.save_pretrained(folder)."
        )
    return model


def _memory_remedy(error: Exception) -> str:
    """What to do if memory ran out; else ""."""
    if not is_out_of_memory(error):
        return ""
    return (
        "The machine's memory is too small for this model. Close other programs, raise the memory limit of the lab, or "
        "choose a smaller model."
    )


def attention_implementation(config: Any, device: torch.device, dtype: torch.dtype) -> str:
    """Which of transformers' implementations of attention a model is loaded with."""
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if not getattr(model_class, "_supports_sdpa", True):
        return "eager"  # such as Gemma 2, which bounds the scores of its attention
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # builds a plan for every shape, and micro-batches have many
    return register_attention() if device.type == "cpu" and dtype == torch.bfloat16 else "sdpa"


def resolve_model_folder(name: str) -> Path:
    """The local folder of a model name. The only place that downloads Hub ids."""
    if name == EMBEDDED_MODEL:
        return embedded_model_folder()
    path = existing_path(name)
    if path is not None and path.is_dir():
        return path
    if path is not None or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"{name} is not a folder. Give a folder with config.json, a tokenizer and *.safetensors, "
            f'a Hub id such as "HuggingFaceTB/SmolLM2-135M-Instruct", or "{EMBEDDED_MODEL}".'
        )
    return _download(name)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [CARD_FILE, "*.json", "*.safetensors", "tokenizer*", "*.model", "merges.txt", "vocab*", "*.jinja"]
    try:
        return Path(
            snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"])
        )  # no files in subfolders, like the page's download
    except Exception as error:
        raise ModelError(
            f'"{name}" is neither a local folder nor a model that could be fetched from the Hub ({_first_line(error)}). '
            "Check the spelling and the network (or HF_TOKEN for a gated model); without a network give a local folder "
            f'or "{EMBEDDED_MODEL}".'
        ) from error


def configuration(name: str, folder: Path) -> Any:
    """The configuration in a model folder, of transformers' class for it. Raises ModelError."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except ImportError:
        raise
    except Exception as error:
        raise ModelError(
            f"{name}: its config.json cannot be read ({configuration_problem(error)}). Copy the file again; a model that needs "
            "remote code is not supported."
        ) from error


def configuration_problem(error: Exception) -> str:
    """What transformers says about a configuration, in one line: the cause of an error of validation names the field."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    line = _first_line(cause)
    line = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", line.partition(". Errors:")[0]).replace("NoneType", "null")
    return line if isinstance(error, ValueError) or cause is not error else f"{type(error).__name__}: {line}"


def _eos_ids(name: str, model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response: the tokenizer's EOS and those of the generation config."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = declared if isinstance(declared, list) else [declared]
    rows = len(model.get_input_embeddings().weight)
    unique_ids = dict.fromkeys(int(i) for i in [tokenizer.eos_token_id, *ids] if i is not None and 0 <= i < rows)
    if not unique_ids:
        raise ModelError(no_end_token_message(name))
    return tuple(unique_ids)


def _check_head_logits(backbone: Backbone) -> None:
    """Trunk and head must reproduce the model's own logits; some architectures change them in other ways."""
    ids = torch.tensor([[backbone.eos_ids[0], backbone.eos_ids[0]]], device=backbone.device)
    mask = torch.ones_like(ids)
    with torch.no_grad():
        ours = backbone.logits(backbone.hidden(ids))
        theirs = backbone.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[..., : ours.shape[-1]]
        if backbone.vocabulary_head.missing_ids is not None:
            ours, theirs = (x.index_fill(-1, backbone.vocabulary_head.missing_ids, 0.0) for x in (ours, theirs))
    if not bool(theirs.isfinite().all()):
        raise ModelError(
            f"{backbone.name}: it computes numbers that are not finite, so a number in its config.json or its weights is wrong. "
            "Copy its files again, or choose another model."
        )
    # In half precision the two may be products of different kernels, each with its own rounding.
    tolerance = HALF_HEAD_TOLERANCE if ours.dtype in HALF_DTYPES else HEAD_TOLERANCE
    if not bool((ours.double() - theirs.double()).norm() <= tolerance * theirs.double().norm()):
        raise ModelError(
            f"{backbone.name}: {type(backbone.model).__name__} changes its logits after the head in a way that is not "
            "supported. Choose a model of another architecture (docs/MODEL_FAMILIES.md)."
        )


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__


def disable_packed_sequence_check() -> None:
    """Make transformers skip the check for packed sequences, which are never used here, in this process."""
    masking_utils.find_packed_sequence_indices = _no_packed_sequences


def _no_packed_sequences(position_ids: Tensor) -> Tensor | None:
    return None

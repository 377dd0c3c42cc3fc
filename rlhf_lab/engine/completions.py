"""Short jobs on texts: continue prompts, score texts, and compute what each token contributes to the score."""

import base64
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from rlhf_lab.common.chat_format import common_prefix_length
from rlhf_lab.common.progress import FractionCallback, ProgressCallback, ignore_fraction, no_progress
from rlhf_lab.common.records import Project
from rlhf_lab.config.reward import REFERENCE_SAMPLES
from rlhf_lab.engine.job_progress import counting_tokens
from rlhf_lab.engine.model_cache import ModelCache
from rlhf_lab.engine.prompt_filter import filter_prompts, indices_that_fit
from rlhf_lab.engine.text_features import feature_vectors, token_share
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store.projects import prompts
from rlhf_lab.training.evaluation import SampledResponses, sample_responses
from rlhf_lab.training.reward.task import ReferenceSamples

JOB_POLICY_SLOT, JOB_REWARD_SLOT = "job", "job reward"  # adapter names, other than those of a run


def shortened_to_context(backbone: Backbone, prompts: Sequence[str], max_new_tokens: int) -> int:
    """As many new tokens as fit after the longest prompt, at most max_new_tokens.

    Raises ModelError if a prompt fills the model's context.
    """
    longest = max(len(backbone.encode_prompt(prompt)) for prompt in dict.fromkeys(prompts))
    remaining = backbone.context_length - longest
    if remaining < 1:
        raise ModelError(
            f"a prompt of {longest} tokens leaves no room for a response: the model reads {backbone.context_length} tokens "
            "in all. Shorten or remove that prompt, or choose a model with a longer context."
        )
    return min(max_new_tokens, remaining)


def reference_samples(
    model_cache: ModelCache,
    project: Project,
    on_progress: ProgressCallback = no_progress,
    on_tokens: Callable[[int, int], None] = lambda *_: None,
    count: int = REFERENCE_SAMPLES,
) -> ReferenceSamples:
    """Samples of the base model for train prompts, at the project's temperature and length. Scores are normalised on them.

    They do not depend on the reward model, so they are sampled once for each `count` while the model is loaded. on_tokens: called
    with the number of tokens that each text has so far and the maximum number.
    """
    backbone, adapters = model_cache.load_project(project)
    train_prompts = prompts(model_cache.db, project.id, "train")
    filtered_prompts = filter_prompts(backbone, train_prompts, project.max_new_tokens, shortens=True)
    texts = [filtered_prompts.prompts[i % len(filtered_prompts.prompts)].text for i in range(count)]
    max_new_tokens, start_time = filtered_prompts.response_length, model_cache.working_time()
    prompt_ids = tuple(tuple(backbone.encode_prompt(text)) for text in texts)
    key = prompt_ids, project.seed, max_new_tokens, project.temperature
    if key in model_cache.references:
        return model_cache.references[key]
    on_tokens(0, max_new_tokens)
    with adapters.using(None):
        samples = sample_responses(
            backbone,
            texts,
            seed=project.seed,
            purpose="reference",
            max_new_tokens=max_new_tokens,
            temperature=project.temperature,
            on_progress=counting_tokens(on_progress, on_tokens, max_new_tokens),
        )
    model_cache.speed.record_sampling(model_cache.working_time() - start_time, samples.tokens)
    model_cache.speed.record_texts(samples.prompts, samples.tokens, max_new_tokens)
    model_cache.references[key] = ReferenceSamples(samples.prompts, samples.tokens)
    return model_cache.references[key]


def complete(
    model_cache: ModelCache, project: Project, payload: dict[str, Any], *,
    on_progress: ProgressCallback = no_progress, on_fraction: FractionCallback = ignore_fraction,
) -> dict[str, Any]:  # fmt: skip
    """Continue prompts with the base or a checkpoint, and score the texts if the payload names a reward model.

    payload: prompts (list of texts), checkpoint, seed, and optionally temperature, max_new_tokens (default: the project's,
    shortened to the context), reward_model_id, words (true: also token contributions to the score), leave_out (true: skip prompts
    that are too long), best_of (each prompt occurs so many times; the random numbers differ from those without it).
    Result: texts, tokens (ids), checkpoint (with its step for "latest"), note (if newer checkpoints are damaged, otherwise "");
    with a reward model also scores; with words also `words` and `token_scores` as in `explain`; with leave_out also left_out, the
    indices of the skipped prompts.
    Raises ModelError if a prompt is too long, or with leave_out if all prompts are.
    """
    backbone, adapters = model_cache.load_project(project)
    prompt_texts, shortens = [str(prompt) for prompt in payload["prompts"]], payload.get("max_new_tokens") is None
    max_new_tokens = int(project.max_new_tokens if shortens else payload["max_new_tokens"])
    left_out: list[int] = []
    if payload.get("leave_out"):
        fitting_indices, max_new_tokens = indices_that_fit(backbone, prompt_texts, max_new_tokens, shortens=shortens)
        left_out = [i for i in range(len(prompt_texts)) if i not in fitting_indices]
        prompt_texts = [prompt_texts[i] for i in fitting_indices]
    elif shortens:
        max_new_tokens = shortened_to_context(backbone, prompt_texts, max_new_tokens)
    checkpoint, note = model_cache.resolve_checkpoint(payload.get("checkpoint", "base"))
    slot, start_time = model_cache.load_checkpoint(checkpoint, JOB_POLICY_SLOT), time.monotonic()
    best_of = payload.get("best_of")
    with adapters.using(slot, merged=slot is not None):
        samples: SampledResponses = sample_responses(
            backbone, prompt_texts, seed=int(payload.get("seed", 0)),
            purpose=f"best of {best_of}" if best_of else "complete",
            max_new_tokens=max_new_tokens,
            temperature=float(payload.get("temperature", project.temperature)),
            on_progress=counting_tokens(on_progress, lambda done, longest: on_fraction(done / longest), max_new_tokens),
        )  # fmt: skip
    model_cache.speed.record_sampling(time.monotonic() - start_time, samples.tokens)
    result: dict[str, Any] = {"texts": samples.texts, "tokens": samples.tokens, "checkpoint": checkpoint, "note": note}
    if payload.get("leave_out"):
        result["left_out"] = left_out
    if payload.get("reward_model_id") is not None:
        scorer = model_cache.reward_model(int(payload["reward_model_id"]), JOB_REWARD_SLOT)
        result["scores"] = scorer.scores(samples.prompts, samples.tokens, on_progress).tolist()
        if payload.get("words"):
            rows = list(zip(samples.prompts, samples.tokens, samples.texts, strict=True))
            result["words"] = [token_pieces(backbone, tokens, text) for _, tokens, text in rows]
            result["token_scores"] = [
                token_contributions(scorer, prompt, tokens, on_progress) for prompt, tokens, _ in rows
            ]
    return result


def explain(
    model_cache: ModelCache, project: Project, payload: dict[str, Any], *, on_progress: ProgressCallback = no_progress
) -> dict[str, Any]:
    """Score given texts, and compute what each token contributes to the score.

    payload: reward_model_id, items (list of {"prompt", "text"}, and optionally "first" and "end" of some of its tokens).
    Result: items, each with score, tokens (pieces of the text; the last, empty one stands for EOS), token_scores, whose mean is
    the score (null if the head reads the last token only), and features, which the instant reward model reads (half precision,
    base64): those of the text, or what the tokens contribute to them, with their weight `share` (`token_share`). has_adapter:
    whether the reward model has a trained adapter, which the instant one does not.
    Raises ModelError if prompt and text do not fit the model's context.
    """
    backbone, adapters = model_cache.load_project(project)
    scorer = model_cache.reward_model(int(payload["reward_model_id"]), JOB_REWARD_SLOT)
    texts = [str(item["text"]) for item in payload["items"]]
    prompts = [backbone.encode_prompt(str(item["prompt"])) for item in payload["items"]]
    responses = [backbone.encode_response(text) for text in texts]
    for prompt, response in zip(prompts, responses, strict=True):
        if len(prompt) + len(response) > backbone.context_length:
            raise ModelError(
                f"a prompt of {len(prompt)} tokens and a text of {len(response)} do not fit the model's context of "
                f"{backbone.context_length}. Shorten the text."
            )
    if not texts:
        return {"items": []}
    scores = scorer.scores(prompts, responses, on_progress).tolist()
    rows = list(zip(prompts, responses, strict=True))
    features = [(vector, 1.0) for vector in feature_vectors(adapters, rows)]
    for i, item in enumerate(payload["items"]):
        if "end" in item:
            features[i] = token_share(adapters, rows[i], slice(int(item["first"]), int(item["end"])))
    return {
        "has_adapter": scorer.adapter is not None,
        "items": [
            {
                "score": score,
                "tokens": token_pieces(backbone, ids, text),
                "token_scores": token_contributions(scorer, prompt, ids, on_progress),
                "features": base64.b64encode(vector.astype("<f2").tobytes()).decode(),
                "share": share,
            }
            for (prompt, ids), text, score, (vector, share) in zip(rows, texts, scores, features, strict=True)
        ],
    }


def token_contributions(
    scorer: RewardModel, prompt: list[int], response: list[int], on_progress: ProgressCallback = no_progress
) -> list[float] | None:
    """What each token of the response contributes to the score; None if the head does not read every token."""
    on_progress()
    return scorer.token_scores(prompt, response) if scorer.head.features.pooling == "mean" else None


def token_pieces(backbone: Backbone, ids: Sequence[int], text: str) -> list[str]:
    """The text split at its token boundaries, one piece per token.

    A token that ends within a character (for example in the bytes of an emoji) gets an empty piece; the token that completes the
    character gets the whole character.
    """
    boundaries = [0]
    # SentencePiece models drop the first space of a text that is decoded without its prompt; see Backbone.decode.
    dropped = int(text.startswith(" ") and not backbone.decode(ids).startswith(" "))
    for i in range(1, len(ids)):
        boundaries.append(max(boundaries[-1], dropped + common_prefix_length(backbone.decode(ids[:i]), text[dropped:])))
    ends_with_eos = len(ids) > 1 and ids[-1] in backbone.eos_ids
    if ends_with_eos:
        boundaries[-1] = len(text)  # EOS adds no character; the token before it gets the rest
    boundaries.append(len(text))
    return [text[a:b] for a, b in pairwise(boundaries)]

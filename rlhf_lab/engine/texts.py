"""Short jobs about texts: continue prompts, score texts, and say which of their words made the score."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rlhf_lab.engine.fitting import MAX_NEW_TOKENS, fitting, places
from rlhf_lab.engine.lab import Lab
from rlhf_lab.errors import ModelError
from rlhf_lab.models.backbone import Backbone
from rlhf_lab.models.generation import Tick, no_tick
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.records import Project
from rlhf_lab.store.projects import prompts
from rlhf_lab.trainers.evaluation import Written, write
from rlhf_lab.trainers.reward import Reference

REFERENCE_SAMPLES = 128
JOB, JOB_REWARD = "job", "job reward"  # slots for adapters of jobs: a run's own stay where they are


def room(backbone: Backbone, prompts: Sequence[str], wanted: int | None = None) -> int:
    """How many new tokens to write: `wanted`, or by default as many as fit behind the longest prompt, at most 64.

    Raises ModelError where a prompt alone fills the model's context.
    """
    if wanted is not None:
        return wanted
    longest = max(len(backbone.encode_prompt(prompt)) for prompt in dict.fromkeys(prompts))
    left = backbone.context - longest
    if left < 1:
        raise ModelError(
            f"a prompt of {longest} tokens leaves no room for a response: the model reads {backbone.context} tokens in all. "
            "Shorten or remove that prompt, or choose a model with a longer context."
        )
    return min(MAX_NEW_TOKENS, left)


def reference_samples(lab: Lab, project: Project, tick: Tick = no_tick) -> Reference:
    """Base samples on train prompts: the scale of the scores. The same for every reward model of a project."""
    backbone, adapters = lab.open(project)
    fit = fitting(backbone, prompts(lab.db, project.id, "train"))
    texts = [fit.prompts[i % len(fit.prompts)].text for i in range(REFERENCE_SAMPLES)]
    with adapters.using(None):
        written = write(backbone, texts, seed=project.seed, purpose="reference", max_new_tokens=fit.length, tick=tick)
    return Reference(written.prompts, written.tokens)


def complete(lab: Lab, project: Project, payload: dict[str, Any], *, tick: Tick = no_tick) -> dict[str, Any]:
    """Continue prompts with the base or a checkpoint, and score the texts where a reward model is named.

    payload: prompts (list of texts), checkpoint, seed, and optionally temperature, max_new_tokens, reward_model_id, words
    (true: also say what each token adds to the score), leave_out (true: write to the prompts that fit alone). Result: texts,
    tokens (ids), checkpoint (the one that wrote; for "latest" its step), note (that newer ones are damaged, or ""); with a
    reward model also scores, with words also `words` and `token_scores` as `explain` gives them, and with leave_out also
    left_out: the places in `prompts` of those that were too long, of which there is no text. Raises ModelError where a prompt
    is too long, with leave_out where all are.
    """
    backbone, adapters = lab.open(project)
    asked, length = [str(prompt) for prompt in payload["prompts"]], payload.get("max_new_tokens")
    left_out: list[int] = []
    if payload.get("leave_out"):
        kept, length = places(backbone, asked, length)
        left_out = [i for i in range(len(asked)) if i not in kept]
        asked = [asked[i] for i in kept]
    writer, note = lab.resolved(payload.get("checkpoint", "base"))
    slot = lab.checkpoint(writer, JOB)
    with adapters.using(slot, merged=slot is not None):
        written: Written = write(
            backbone, asked, seed=int(payload.get("seed", 0)), purpose="complete",
            max_new_tokens=room(backbone, asked, length),
            temperature=float(payload.get("temperature", 1.0)), tick=tick,
        )  # fmt: skip
    result: dict[str, Any] = {"texts": written.texts, "tokens": written.tokens, "checkpoint": writer, "note": note}
    if payload.get("leave_out"):
        result["left_out"] = left_out
    if payload.get("reward_model_id") is not None:
        scorer = lab.reward_model(int(payload["reward_model_id"]), JOB_REWARD)
        result["scores"] = scorer.scores(written.prompts, written.tokens, tick).tolist()
        if payload.get("words"):
            rows = list(zip(written.prompts, written.tokens, written.texts, strict=True))
            result["words"] = [pieces(backbone, tokens, text) for _, tokens, text in rows]
            result["token_scores"] = [shares(scorer, prompt, tokens, tick) for prompt, tokens, _ in rows]
    return result


def explain(lab: Lab, project: Project, payload: dict[str, Any], *, tick: Tick = no_tick) -> dict[str, Any]:
    """Score texts that anybody wrote, and say what each token adds to the score.

    payload: reward_model_id, items (list of {"prompt", "text"}). Result: items, each with score, tokens (pieces of the text;
    the last, empty one is its end) and token_scores, whose mean is the score (null where the head reads the last token only).
    Raises ModelError where prompt and text do not fit the model's context.
    """
    backbone, _ = lab.open(project)
    scorer = lab.reward_model(int(payload["reward_model_id"]), JOB_REWARD)
    texts = [str(item["text"]) for item in payload["items"]]
    prompts = [backbone.encode_prompt(str(item["prompt"])) for item in payload["items"]]
    responses = [backbone.encode_response(text) for text in texts]
    for prompt, response in zip(prompts, responses, strict=True):
        if len(prompt) + len(response) > backbone.context:
            raise ModelError(
                f"a prompt of {len(prompt)} tokens and a text of {len(response)} do not fit the model's context of "
                f"{backbone.context}. Shorten the text."
            )
    scores = scorer.scores(prompts, responses, tick).tolist() if texts else []
    return {
        "items": [
            {"score": score, "tokens": pieces(backbone, ids, text), "token_scores": shares(scorer, prompt, ids, tick)}
            for prompt, ids, text, score in zip(prompts, responses, texts, scores, strict=True)
        ]
    }


def shares(scorer: RewardModel, prompt: list[int], response: list[int], tick: Tick = no_tick) -> list[float] | None:
    """What each token of the response adds to the score; None where the head does not read every token."""
    tick()
    return scorer.token_scores(prompt, response) if scorer.head.pooling == "mean" else None


def pieces(backbone: Backbone, ids: Sequence[int], text: str) -> list[str]:
    """The text cut where its tokens end: one piece a token, joined they are the text.

    A token that ends within a character (bytes of an emoji) gets an empty piece, the one that completes it the character.
    """
    cut = [0]
    for i in range(1, len(ids)):
        cut.append(max(cut[-1], _common(backbone.decode(ids[:i]), text)))
    ends_itself = len(ids) > 1 and ids[-1] in backbone.eos_ids
    if ends_itself:
        cut[-1] = len(text)  # the end of the text adds no character; the token before it takes what is left
    cut.append(len(text))
    return [text[a:b] for a, b in pairwise(cut)]


def _common(a: str, b: str) -> int:
    """The length of the beginning that two texts share."""
    limit = min(len(a), len(b))
    return next((i for i in range(limit) if a[i] != b[i]), limit)

"""The score of a text: what its words add to it, and which labels raise and lower it."""

import base64
from typing import Any, Required

import numpy as np
from typing_extensions import TypedDict

from rlhf_lab.common.chat_format import turns_of_prompt
from rlhf_lab.common.enums import UNFINISHED_JOB_STATUSES, JobKind, JobStatus
from rlhf_lab.common.person_names import is_blank
from rlhf_lab.common.records import REQUESTER_KEY, Job
from rlhf_lab.common.text_attributes import attribute_labels
from rlhf_lab.errors import LabError
from rlhf_lab.quality.queries import labels_of_same_pair
from rlhf_lab.store.features import StoredText
from rlhf_lab.store.label_snapshots import comparisons_by_vote
from rlhf_lab.store.reward_models import get_reward_model
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.shared.api import LongText, Payload
from rlhf_lab.ui.shared.generation_requests import submit_short_jobs

MAX_TEXT_CHARS = 4000  # of a text to explain, including its prompt
MIN_INFLUENCE = 0.005  # of a label that is shown, in sd
MAX_LABELS_SHOWN = 3  # that raise a score, and that lower it


class ExplainText(Payload):
    """tokens: the first of some tokens of the text and the end, to explain what they add to the score; None for the whole
    text."""

    model: int
    prompt: LongText = ""
    text: LongText = ""
    tokens: tuple[int, int] | None = None


class LabelBehindScore(TypedDict):
    """A label and by how much it raises the score of a text, in sd of the base's texts. votes: the number of labels of its pair,
    which are taken out together."""

    vote: int
    votes: int
    turns: list[dict[str, str]]
    chosen: str
    rejected: str
    is_tie: bool
    influence: float


class InstantExplanation(TypedDict):
    """A text's score by the head that is fitted after every vote, with its 95 % interval, and the labels that raise and lower it
    most; for some tokens of a text, what they add to the score. ignores: the attributes of texts that scores ignore."""

    score: float
    low: float
    high: float
    labels: list[LabelBehindScore]
    ignores: str


class Explanation(TypedDict, total=False):
    """Waiting (with `running`), failed (with `failure`), or the score of a text and of its tokens, if single ones have one.
    has_adapter: whether the reward model has a trained adapter, which `instant` does not explain. instant: None for others than
    the operator, since it shows how labels were given, and before the head has learned anything."""

    is_waiting: Required[bool]
    running: bool
    failure: str
    score: float
    tokens: list[str]
    token_scores: list[float] | None
    has_adapter: bool
    instant: InstantExplanation | None


def submit_explanation(ctx: Context, request: ExplainText, annotator: str) -> Job:
    """Have the engine score each word of a text for this annotator. Raises LabError for an empty or very long text."""
    if is_blank(request.text[: MAX_TEXT_CHARS + 1]) or len(request.prompt) + len(request.text) > MAX_TEXT_CHARS:
        raise LabError(f"Enter a text of 1 to {MAX_TEXT_CHARS} characters, including the prompt.")
    get_reward_model(ctx.db, request.model)
    items: list[dict[str, Any]] = [{"prompt": request.prompt, "text": request.text}]
    if request.tokens is not None:
        first, end = request.tokens
        if not 0 <= first < end:
            raise LabError("There are no such words in the text. Press Show words, and choose a word.")
        items[0] |= {"first": first, "end": end}
    job_payload = {"reward_model_id": request.model, "items": items, REQUESTER_KEY: annotator}
    return submit_short_jobs(ctx, JobKind.EXPLAIN, annotator, [job_payload])[0]


def explanation_view(ctx: Context, job: Job) -> Explanation:
    """An EXPLAIN job for the page: waiting, failed, or its one result."""
    if job.status in UNFINISHED_JOB_STATUSES:
        return {"is_waiting": True, "running": job.status is JobStatus.RUNNING}
    if job.status is not JobStatus.DONE or not job.result:
        return {"is_waiting": False, "failure": job.error or "It was cancelled."}
    item, asked = job.result["items"][0], job.payload["items"][0]
    text = StoredText(asked["prompt"], asked["text"])
    return {
        "is_waiting": False, "score": item["score"], "tokens": item["tokens"], "token_scores": item["token_scores"],
        "has_adapter": bool(job.result.get("has_adapter")),
        "instant": instant_explanation(ctx, item.get("features", ""), text, item.get("share", 1.0))
        if ctx.is_operator() else None,
    }  # fmt: skip


def instant_explanation(ctx: Context, features: str, text: StoredText, share: float) -> InstantExplanation | None:
    """The labels behind the score of a text. features, share: as in the result of an EXPLAIN job."""
    vector = np.frombuffer(base64.b64decode(features), "<f2").astype(np.float32)
    if not len(vector) or not np.isfinite(vector).all():
        return None
    explained = ctx.instant_reward.explain(ctx.project.id, vector, text, share)
    if explained is None:
        return None
    ordered = sorted(explained.influences.items(), key=lambda item: item[1])
    extreme = [(vote, x) for vote, x in ordered[: -MAX_LABELS_SHOWN - 1 : -1] if x >= MIN_INFLUENCE]
    extreme += [(vote, x) for vote, x in ordered[:MAX_LABELS_SHOWN] if x <= -MIN_INFLUENCE]
    shown = [vote for vote, _ in extreme]
    labels, of_pair = comparisons_by_vote(ctx.db, shown), labels_of_same_pair(ctx.db, ctx.project.id, shown)
    return {
        "score": explained.score,
        "low": explained.score - explained.half_width, "high": explained.score + explained.half_width,
        "ignores": attribute_labels(ctx.instant_reward.figures(ctx.project.id).ignored),
        "labels": [
            {
                "vote": vote, "votes": len(of_pair.get(vote, [vote])), "turns": turns_of_prompt(labels[vote].prompt),
                "chosen": labels[vote].chosen.strip(), "rejected": labels[vote].rejected.strip(),
                "is_tie": labels[vote].tie, "influence": influence,
            }
            for vote, influence in extreme
            if vote in labels
        ],
    }  # fmt: skip

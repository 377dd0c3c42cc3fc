"""A blind test whose texts and answers a test writes; no engine starts."""

from fake_runs import run_with_checkpoint, write_checkpoint

from rlhf_lab.common.enums import JobKind
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.store.runs import runs
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.shared.api import parse_payload

REQUEST = {
    "models": ["base", "run/1/40", ""], "pairs": "4", "seed": "7", "temperature": "0.8", "max_new_tokens": "40",
    "reward_model_id": "1",
}  # fmt: skip
BASE, RUN = ["a", "b", "same", "d"], ["A", "B", "same", "D"]


def start(ctx, **changes):
    run_with_checkpoint(ctx, 40) if not runs(ctx.db, ctx.project.id) else write_checkpoint(ctx, 1, 40)
    return blind_test.start_test(ctx, parse_payload(blind_test.StartTestPayload, REQUEST | changes))


def answer(ctx, annotator, *, position=0, **payload):
    payload.setdefault("token", blind_test._token(ctx, payload.get("test_id", 0), position, annotator))
    return blind_test.record_answer(ctx, parse_payload(blind_test.TestAnswerPayload, payload), annotator)


def finish_jobs(ctx, test, texts=(BASE, RUN), scores=((1.0, 1.0, 1.0, 0.5), (2.0, 0.0, 1.0, 0.5)), left_out=None):
    """Finish both jobs as the engine does; left_out: positions of prompts that were too long, None as in earlier versions."""
    more = {} if left_out is None else {"left_out": list(left_out)}
    for job, model_texts, model_scores in zip(blind_test.test_jobs(ctx, test), texts, scores, strict=True):
        queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
        queue.finish(ctx.db, job.id, {"texts": model_texts, "scores": list(model_scores)} | more)

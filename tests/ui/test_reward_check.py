"""The check before PPO on Reward model: its size, its blind test, and what the guide says of it."""

import pytest
from fake_blind_tests import answer

from rlhf_lab.common.enums import JobKind, RunStatus, Source
from rlhf_lab.common.records import LabelSnapshot, Role
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.time_estimate import Estimate
from rlhf_lab.store.blind_tests import add_test, blind_tests, delete_test
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run, update_run
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.header.guide import guide_view, progress_of
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.reward import check as check_module

GOOD = {"accuracy": 0.9, "accuracy_low": 0.7, "accuracy_high": 0.97}


@pytest.fixture
def model(ctx):
    """Its report says that it ranks better than chance."""
    snapshot = LabelSnapshot((), "", Source.HUMAN)
    return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=GOOD, snapshot=snapshot)


def finish(ctx, test_id):
    """The third of four texts has the best score."""
    best, base = blind_test.test_jobs(ctx, blind_test.find_test(ctx, test_id))
    pairs = len(base.payload["prompts"])
    texts = [f"{'best' if i % 4 == 2 else 'other'} {i // 4}" for i in range(4 * pairs)]
    scores = [float(i % 4 == 2) for i in range(4 * pairs)]
    results = ((best, texts, scores), (base, [f"base {i}" for i in range(pairs)], [0.0] * pairs))
    for job, of_job, of_texts in results:
        queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
        queue.finish(ctx.db, job.id, {"texts": of_job, "scores": of_texts})


def judge(ctx, test_id, prefers, count):
    """Choose the text that begins with `prefers` in so many pairs."""
    for _ in range(count):
        pair = blind_test.state(ctx, test_id, "ann")["pair"]
        side = "left" if pair["left"].startswith(prefers) else "right"
        answer(ctx, "ann", test_id=test_id, position=pair["position"], choice=side)


def guide(ctx):
    view = guide_view(progress_of(ctx), Role.OPERATOR, "ann")
    return view["present"], view["note"], view["hint"]


def test_one_button_leads_from_the_size_to_the_meaning(ctx, calls, model):
    screen, query = calls(reward, ctx), {"model": model.id, "annotator": "ann"}
    view = screen.check(query)
    assert (view["pairs"], view["test"], view["text"]) == (12, None, "")
    assert (
        view["note"]
        == "12 pairs without ties usually show a preference if one model is chosen in 87 % of them or more; a weaker preference "
        "needs more pairs."
    )
    assert guide(ctx)[:2] == ("Train", "no run yet")
    assert "a one-minute check under Reward model" in guide(ctx)[2]
    started = screen.begin_check(query)
    assert (started["is_open"], started["text"]) == (True, "The engine is writing the texts …")
    test_id = started["test"]
    jobs = blind_test.test_jobs(ctx, blind_test.find_test(ctx, test_id))
    assert [(job.payload["checkpoint"], job.payload.get("best_of")) for job in jobs] == [("base", 4), ("base", None)]
    assert [job.payload["reward_model_id"] for job in jobs] == [model.id] * 2
    finish(ctx, test_id)
    assert screen.check(query)["can_judge"]
    assert guide(ctx)[:2] == ("Compare", "12 more pairs to judge")
    judge(ctx, test_id, "best", 11)
    assert screen.check(query)["text"] == "You have judged 11 of 12 pairs."
    judge(ctx, test_id, "base", 1)
    view = screen.check(query)
    assert not view["can_judge"]
    assert view["text"] == (
        "You like the best of 4 texts of the base more often: 11 of 12 decided pairs (92 %, 95 % interval 62 to 100 %). "
        "You prefer what this reward model prefers, so PPO can follow it."
    )
    assert blind_test.state(ctx, test_id, "ann")["sentences"][-1].startswith("You prefer what")
    assert guide(ctx) == ("Train", "no run yet", "Press Start.")
    assert "Compare" not in guide_view(progress_of(ctx), Role.OPERATOR, "ann")["done"]


def test_another_check_has_other_texts_and_another_model_none(ctx, calls, model):
    screen, query = calls(reward, ctx), {"model": model.id, "annotator": "ann"}
    first, second = (screen.begin_check(query)["test"] for _ in range(2))
    seeds = {queue.get_job(ctx.db, test.first_job).payload["seed"] for test in blind_tests(ctx.db, ctx.project.id)}
    assert (first != second, len(seeds)) == (True, 2)
    assert screen.check(query)["test"] == second
    other = add_reward_model(
        ctx.db, ctx.project.id, "y", config={}, report=GOOD, snapshot=LabelSnapshot((), "", Source.HUMAN)
    )
    assert screen.check(query | {"model": other.id})["test"] is None
    with pytest.raises(StoreError):
        check_module.start_check(ctx, 99)


@pytest.mark.parametrize(("seconds_per_text", "pairs"), [(1.0, 12), (1.4, 10), (9.0, 8)])
def test_a_slow_model_gets_fewer_pairs(ctx, monkeypatch, model, seconds_per_text, pairs):
    """Five texts a pair, and 75 s: 60 texts of 1.4 s take 84 s, 50 take 70 s."""

    def estimate(speed, counts, length, *, scored):
        return Estimate(seconds_per_text * sum(counts), seconds_per_text * sum(counts))

    monkeypatch.setattr(check_module, "estimate_completions", estimate)
    view = check_module.check_view(ctx, model.id, "ann")
    assert view["pairs"] == pairs
    assert "Writing the texts takes about" in view["note"]


def test_a_check_has_as_many_pairs_as_the_page_announced(ctx, calls, monkeypatch, model):
    """Although the model has become slower since, for which there would be 8."""
    monkeypatch.setattr(check_module, "estimate_completions", lambda *_, **__: Estimate(999.0, 999.0))
    started = calls(reward, ctx).begin_check({"model": model.id, "annotator": "ann", "pairs": 12})
    best, base = blind_test.test_jobs(ctx, blind_test.find_test(ctx, started["test"]))
    assert (len(best.payload["prompts"]), len(base.payload["prompts"])) == (48, 12)


def test_a_check_is_no_blind_test_of_a_run(ctx, calls, model):
    config = PolicyConfig(steps=40).to_dict()
    run = create_run(ctx.db, ctx.project.id, model.id, "r", config=config, manifest={}, total_steps=40)
    with ctx.db.write() as conn:
        update_run(conn, run.id, status=RunStatus.DONE, step=40)
    finish(ctx, calls(reward, ctx).begin_check({"model": model.id, "annotator": "ann"})["test"])
    assert guide(ctx)[:2] == ("Compare", f"run {run.id} has no blind test yet")


def test_a_check_does_not_hide_an_earlier_blind_test_of_the_run(ctx, calls, model):
    run = create_run(ctx.db, ctx.project.id, model.id, "r", config=PolicyConfig().to_dict(), manifest={}, total_steps=1)
    with ctx.db.write() as conn:
        update_run(conn, run.id, status=RunStatus.DONE, step=1)
    payload = {"prompts": ["Once"], "temperature": 1.0, "max_new_tokens": 8, "seed": 0}
    jobs = [
        queue.submit(ctx.db, JobKind.COMPLETE, ctx.project.id, payload | {"checkpoint": name})
        for name in (f"run/{run.id}/1", "base")
    ]
    test = add_test(ctx.db, ctx.project.id, *(job.id for job in jobs))
    calls(reward, ctx).begin_check({"model": model.id, "annotator": "ann"})
    progress = progress_of(ctx)
    assert (progress.test.created_at, progress.test.is_check) == (test.created_at, False)


def test_checks_after_a_deleted_test_have_other_seeds(ctx, calls, model):
    seeds = []
    for _ in range(3):
        begun = calls(reward, ctx).begin_check({"model": model.id, "annotator": "ann"})["test"]
        seeds.append(blind_test.test_jobs(ctx, blind_test.find_test(ctx, begun))[0].payload["seed"])
        if len(seeds) == 2:
            delete_test(ctx.db, blind_tests(ctx.db, ctx.project.id)[-1].id)
    assert len(set(seeds)) == 3

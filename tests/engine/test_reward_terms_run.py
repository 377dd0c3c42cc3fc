"""Runs whose reward is a sum of terms: with and without a reward model, after a failing function and a resume."""

import pytest

from rlhf_lab.common.enums import JobStatus, RunStatus
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import run_control
from rlhf_lab.rewards.terms import RewardTerm, parse_term
from rlhf_lab.store.run_metrics import samples_at
from rlhf_lab.store.runs import events, get_run

SMALL = {
    "steps": 2, "batch_size": 4, "group_size": 2, "micro_batch": 2, "max_new_tokens": 5, "lora_r": 2, "sample_count": 1,
    "kl_budget": None, "score_clip": None, "checkpoint_every": 2,
}  # fmt: skip
OWN = RewardTerm("own", 2.0, {"file": "mine.py", "function": "reward"})
GOOD = "def reward(prompt, response): return len(response.split())\n"
#: Fails at the third batch: the base's sample, step 1, then step 2.
FAILING = """
calls = [0]
def reward(prompts, responses):
    calls[0] += 1
    assert calls[0] < 3, "a mistake"
    return [len(response.split()) for response in responses]
"""


@pytest.fixture
def start(lab, monkeypatch):
    monkeypatch.setattr(run_control, "submit_run", lambda *_, **__: None)  # `lab.train` runs it here

    def begin(*terms, **changes):
        config = PolicyConfig.for_algorithm("grpo", **SMALL | changes)
        return run_control.start_run(lab.db, lab.folder, lab.project.id, config, reward_terms=terms).id

    (lab.folder / "rewards").mkdir()
    return begin


def test_a_run_without_a_reward_model_goes_on_after_its_function_was_mended(lab, start):
    file = lab.folder / "rewards" / "mine.py"
    file.write_text(GOOD)
    whole, failing = start(OWN), start(OWN)
    assert lab.train(whole).status is JobStatus.DONE
    file.write_text(FAILING)
    assert lab.train(failing).status is JobStatus.FAILED
    run = get_run(lab.db, failing)
    assert (run.status, run.step, run.reward_model_id) == (RunStatus.FAILED, 1, None)
    assert "mine failed on a batch of 4 texts: AssertionError('a mistake')" in run.message
    assert "nothing was lost. Correct the function, then resume" in run.message
    with pytest.raises(ConfigError, match="no reward model that could be replaced"):
        run_control.switch_reward_model(lab.db, failing, 1)
    file.write_text(GOOD)
    lab.next_engine()
    assert lab.train(failing).status is JobStatus.DONE
    notes = [
        [(event.payload["words"], event.applied_step) for event in events(lab.db, run)] for run in (whole, failing)
    ]
    assert notes == [[], [("another version of the reward function mine from here on", 1)]]
    curve = lab.curve(whole)
    assert lab.curve(failing) == curve
    assert [step for step, _ in curve] == [1, 2]
    for _, metrics in curve:
        assert metrics["objective/scores"] == pytest.approx(2 * metrics["objective/reward/mine"])
    (sample,) = samples_at(lab.db, whole, 0)
    assert sample.score == 2 * len(sample.text.split())
    assert run_control.default_run_name(lab.db, lab.project.id, PolicyConfig(), None, [OWN]).startswith("ppo on 2 mine")


def test_a_function_that_fails_after_an_update_leaves_the_state_before_it(lab, start):
    """With samples of every step, the fifth batch is scored after the second update."""
    file = lab.folder / "rewards" / "mine.py"
    file.write_text(GOOD)
    whole, failing = (start(OWN, sample_every=1) for _ in range(2))
    assert lab.train(whole).status is JobStatus.DONE
    file.write_text(FAILING.replace("< 3", "< 5"))
    assert lab.train(failing).status is JobStatus.FAILED
    assert get_run(lab.db, failing).step == 1
    file.write_text(GOOD)
    lab.next_engine()
    assert lab.train(failing).status is JobStatus.DONE
    assert lab.curve(failing) == lab.curve(whole)


def test_a_reward_model_and_a_function(lab, start):
    run_id = start(RewardTerm("length", -3.0, {"min_words": 2, "max_words": 4}), RewardTerm("reward_model", 0.5))
    alone = start()
    assert lab.train(run_id).status is JobStatus.DONE
    assert lab.train(alone).status is JobStatus.DONE
    (_, first), _ = lab.curve(run_id)
    model, length = first["objective/reward/reward_model"], first["objective/reward/length"]
    assert first["objective/scores"] == pytest.approx(0.5 * model - 3 * length, abs=1e-5)
    assert 0 <= length <= 1
    (_, alone_first), _ = lab.curve(alone)
    assert model == pytest.approx(alone_first["objective/scores"], abs=1e-5)  # the same responses
    assert not any(name.startswith("objective/reward/") for name in alone_first)


def test_with_a_kl_budget_the_whole_sum_is_in_sd_of_the_base(lab, start):
    (lab.folder / "rewards" / "mine.py").write_text("def reward(response): return 7.0\n")
    run_id = start(OWN, kl_budget=4.0, steps=1)
    assert lab.train(run_id).status is JobStatus.DONE
    ((_, metrics),) = lab.curve(run_id)
    assert metrics["objective/reward/mine"] == 7.0
    assert metrics["objective/scores"] == 0.0  # every text of the base scores alike
    assert metrics["eval/scores"] == 0.0


@pytest.mark.parametrize(
    ("term", "changes", "message"),
    [
        (parse_term("arithmetic"), {}, "prompt set arithmetic"),
        (RewardTerm("own", 1.0, {"file": "absent.py", "function": "reward"}), {}, "there is no file"),
        (RewardTerm("json", 0.0), {}, "weight"),
    ],
)
def test_terms_that_a_run_cannot_use(start, term, changes, message):
    with pytest.raises(ConfigError, match=message):
        start(term, **changes)

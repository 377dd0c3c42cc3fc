"""The Python API: training by a reward function and by own scores, start adapters and their reference, files, errors."""

import json
import math
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from support import tiny_models
from transformers import AutoModelForCausalLM

from rlhf_lab.api import Trainer
from rlhf_lab.errors import ConfigError, LabError, ModelError, NotFiniteError, TrainingError

PROMPTS = list(tiny_models.PROMPTS)
SMALL = {k: v for k, v in tiny_models.SMALL.items() if k != "sample_count"} | {"kl_budget": None}
pytestmark = pytest.mark.usefixtures("small_score_unit")


def nouns(prompts, responses):
    return [sum(word in tiny_models.NOUNS for word in response.split()) for response in responses]


def text_of(ids):
    """Each word with the space that joins it to the text before."""
    return "".join(f" {tiny_models.WORDS[i]}" for i in ids if i >= tiny_models.STOP)


def numbers(results):
    return [tiny_models.numbers(result.metrics) for result in results]


def logprobs(trainer, adapter, prompt, response):
    """(R,) float64, by the model's own forward pass with an adapter."""
    with trainer.adapters.using(adapter):
        return tiny_models.teacher_forced(trainer.backbone, prompt, response)


def save_start(folder, target):
    backbone = tiny_models.load(folder)
    tiny_models.adapters_of(backbone, "other").save("other", target)
    return target


def test_it_learns_a_reward_function(llama_folder):
    trainer = Trainer(
        llama_folder, PROMPTS, nouns, **SMALL | {"steps": 30, "batch_size": 16, "missing_eos_penalty": 0.0}
    )
    results = list(trainer)
    rewards = [result.metrics["objective/reward/function"] for result in results]
    assert [result.step for result in results] == list(range(1, 31))
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.5
    assert list(trainer) == []


def test_the_function_gets_the_texts_of_a_step(llama_folder):
    calls = []

    def record(prompts, responses):
        calls.append((prompts, responses))
        return nouns(prompts, responses)

    trainer = Trainer(llama_folder, PROMPTS, record, **SMALL)
    result = trainer.run_step()
    ((prompts, responses),) = calls
    rows = trainer.rollout_rows
    assert prompts == [PROMPTS[i] for i, _ in rows]
    assert responses == [text_of(ids) for _, ids in rows]
    mean = sum(nouns(prompts, responses)) / len(rows)
    assert result.metrics["objective/scores"] == pytest.approx(mean)
    assert result.metrics["objective/reward/function"] == pytest.approx(mean)


def test_with_a_kl_budget_the_unit_of_the_reward_does_not_matter(llama_folder):
    def scaled(prompts, responses):
        return torch.tensor(nouns(prompts, responses)) * 256.0 + 1024.0

    plain, other = (
        numbers(Trainer(llama_folder, PROMPTS, reward, **SMALL | {"kl_budget": 4.0})) for reward in (nouns, scaled)
    )
    for ours, theirs in zip(plain, other, strict=True):
        assert theirs.pop("objective/reward/function") == pytest.approx(
            256 * ours.pop("objective/reward/function") + 1024
        )
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")
def test_the_reference_is_the_start_adapter(folders, kind, tmp_path):
    """The first KL is 0, and later ones are to the model with the start adapter, not to the bare model."""
    start = save_start(folders[kind], tmp_path / "start")
    trainer = Trainer(folders[kind], PROMPTS, nouns, start_adapter=start, **SMALL | {"steps": 2})
    before = trainer.adapters.tensors("start")
    assert tiny_models.same(trainer.adapters.tensors("policy"), before)
    assert trainer.run_step().metrics["objective/kl"] == pytest.approx(0.0, abs=1e-6)
    tiny_models.disturb(trainer.adapters, "policy", scale=0.05)
    responses = trainer.generate(PROMPTS).responses
    prompts = [trainer.backbone.encode_prompt(prompt) for prompt in PROMPTS]
    kls = {
        reference: sum(
            float((logprobs(trainer, "policy", p, r) - logprobs(trainer, reference, p, r)).sum())
            for p, r in zip(prompts, responses, strict=True)
        )
        / len(prompts)
        for reference in ("start", None)
    }
    kl = trainer.step(prompts, responses, [0.0] * len(prompts)).metrics["objective/kl"]
    assert kl == pytest.approx(kls["start"], rel=1e-3, abs=1e-4)
    assert abs(kls["start"] - kls[None]) > 0.1
    assert tiny_models.same(trainer.adapters.tensors("start"), before)


def test_without_a_start_adapter_the_reference_is_the_model(llama_folder):
    trainer = Trainer(llama_folder, PROMPTS, nouns, **SMALL)
    assert trainer.run_step().metrics["objective/kl"] == pytest.approx(0.0, abs=1e-6)
    prompt, (response,) = trainer.backbone.encode_prompt("moon"), trainer.generate(["moon"]).responses
    expected = (logprobs(trainer, "policy", prompt, response) - logprobs(trainer, None, prompt, response)).sum()
    kl = trainer.step([prompt] * 2, [response] * 2, [0.0, 1.0]).metrics["objective/kl"]
    assert kl == pytest.approx(float(expected), rel=1e-3, abs=1e-5)
    assert abs(kl) > 1e-4


def test_the_unit_of_the_scores_is_that_of_the_start_adapter(llama_folder, tmp_path):
    """Its responses, not those of the bare model, have mean 0 and standard deviation 1."""
    start = save_start(llama_folder, tmp_path / "start")
    seen = []

    def record(prompts, responses):
        seen.append(responses)
        return nouns(prompts, responses)

    trainer = Trainer(llama_folder, PROMPTS, record, start_adapter=start, **SMALL | {"kl_budget": 4.0})
    trainer.measure_score_unit()
    bare = Trainer(llama_folder, PROMPTS, record, **SMALL | {"kl_budget": 4.0})
    bare.measure_score_unit()
    assert seen[0] != seen[1]
    assert trainer.state.kl_control.score_unit.mean == pytest.approx(sum(nouns([], seen[0])) / len(seen[0]))


def test_own_scores(llama_folder):
    trainer = Trainer(llama_folder, **SMALL)
    generated = trainer.generate(PROMPTS)
    result = trainer.step(PROMPTS, generated.responses, nouns(PROMPTS, generated.texts))
    assert (result.step, trainer.steps_done) == (1, 1)
    assert result.metrics["objective/scores"] == pytest.approx(sum(nouns(PROMPTS, generated.texts)) / len(PROMPTS))
    with pytest.raises(TrainingError, match="no prompts"):
        trainer.run_step()


def test_generated_responses(llama_folder):
    trainer = Trainer(llama_folder, PROMPTS, nouns, **SMALL)
    first = trainer.generate(PROMPTS)
    assert trainer.generate(PROMPTS) == first
    assert trainer.generate([trainer.backbone.encode_prompt(prompt) for prompt in PROMPTS]) == first
    seeded = trainer.generate(PROMPTS, seed=7)
    assert seeded != first
    assert first.texts == [text_of(row) for row in first.responses]
    assert all(len(row) == SMALL["max_new_tokens"] or row[-1] == tiny_models.EOS for row in first.responses)
    trainer.state.steps_done = 1  # the weights are the same
    assert trainer.generate(PROMPTS) != first
    assert trainer.generate(PROMPTS, seed=7) == seeded


def test_the_saved_adapter_is_loaded_by_peft_and_as_a_start(llama_folder, tmp_path):
    trainer = Trainer(llama_folder, PROMPTS, nouns, **SMALL | {"lr": 0.05})
    trainer.run_step()
    trainer.save(tmp_path / "new" / "adapter")
    ids = tiny_models.ids("the cat sat .")
    expected = logprobs(trainer, "policy", ids, ids)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama_folder), tmp_path / "new" / "adapter")
    with torch.no_grad():
        rows = torch.log_softmax(
            model.eval()(torch.tensor([ids * 2])).logits[0, 3:-1, : len(tiny_models.WORDS)].double(), -1
        )
    torch.testing.assert_close(rows.gather(1, torch.tensor(ids)[:, None])[:, 0], expected, rtol=1e-4, atol=1e-4)
    assert float((expected - logprobs(trainer, None, ids, ids)).abs().max()) > 0.01
    again = Trainer(llama_folder, start_adapter=tmp_path / "new" / "adapter", **SMALL)
    torch.testing.assert_close(logprobs(again, "policy", ids, ids), expected)


@pytest.mark.parametrize("has_start", [False, True])
def test_resuming_is_exact(llama_folder, tmp_path, has_start):
    options = SMALL | ({"start_adapter": save_start(llama_folder, tmp_path / "start")} if has_start else {})
    whole = numbers(Trainer(llama_folder, PROMPTS, nouns, **options))
    first = Trainer(llama_folder, PROMPTS, nouns, **options)
    results = [first.run_step() for _ in range(2)]
    assert first.save_checkpoint(tmp_path / "run").name == "step-000002"
    second = Trainer(llama_folder, PROMPTS, nouns, **options)
    assert second.resume(tmp_path / "nothing") == 0
    assert second.resume(tmp_path / "run") == 2
    assert numbers([*results, *second]) == whole


def test_samples_and_held_out_prompts(llama_folder):
    options = SMALL | {"kl_budget": 4.0, "checkpoint_every": 2}
    trainer = Trainer(llama_folder, PROMPTS, nouns, sample_prompts=PROMPTS[:3], eval_prompts=["moon"], **options)
    results = list(trainer)
    assert [len(result.samples) for result in results] == [0, 3, 0, 3]
    assert ["eval/scores" in result.metrics for result in results] == [False, True, False, True]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 7.0}, "lr = 7.0 is above"),
        ({"learning_rate": 1e-5}, "unknown setting.* learning_rate; known: .*lr,"),
        ({"algorithm": "dpo"}, "dpo learns from texts that exist"),
        ({"processes": 2}, "processes: only for runs that the lab starts"),
        ({"prompts": "the cat"}, "not single texts"),
        ({"eval_prompts": "the cat"}, "not single texts"),
    ],
)
def test_settings_that_cannot_be_used(llama_folder, settings, message):
    with pytest.raises(ConfigError, match=message):
        Trainer(llama_folder, **{"prompts": PROMPTS, "reward": nouns} | settings)


def test_other_algorithms(llama_folder):
    options = {k: v for k, v in SMALL.items() if k not in ("epochs", "minibatches", "kl_budget")}
    trainer = Trainer(llama_folder, PROMPTS, nouns, algorithm="grpo", group_size=3, **options)
    assert trainer.config.spec.is_grouped
    assert math.isfinite(trainer.run_step().metrics["objective/kl"])


@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (lambda prompts, responses: [1.0], ConfigError, "returned 1 numbers for 6 responses"),
        (lambda prompts, responses: ["good"] * len(responses), ConfigError, "not all numbers"),
        (lambda prompts, responses: torch.zeros(len(responses), 1), ConfigError, "shape"),
        (lambda prompts, responses: [math.nan] * len(responses), NotFiniteError, "6 of 6 scores"),
    ],
)
def test_rewards_that_cannot_be_used(llama_folder, reward, error, message):
    trainer = Trainer(llama_folder, PROMPTS, reward, **SMALL)
    before = trainer.adapters.tensors("policy")
    with pytest.raises(error, match=message):
        trainer.run_step()
    assert tiny_models.same(trainer.adapters.tensors("policy"), before)
    assert issubclass(error, LabError)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_reward_of_held_out_responses_that_is_not_finite_is_an_error(llama_folder, value):
    """Otherwise no later checkpoint could be the best, nor could a state with it be loaded."""

    def reward(prompts, responses):
        return [value] * len(prompts) if prompts[0] == "moon" else [1.0] * len(prompts)

    options = SMALL | {"kl_budget": 4.0, "checkpoint_every": 1}
    trainer = Trainer(llama_folder, ["the cat"], reward, eval_prompts=["moon"], **options)
    with pytest.raises(NotFiniteError, match="32 of 32 scores are not finite numbers"):
        trainer.run_step()


def test_no_prompts_have_no_responses(llama_folder):
    generated = Trainer(llama_folder, PROMPTS, nouns, **SMALL).generate([])
    assert (generated.responses, generated.texts) == ([], [])


def test_a_missing_model_or_adapter(llama_folder, tmp_path):
    with pytest.raises(ModelError, match="is not a folder"):
        Trainer(tmp_path / "nothing", PROMPTS, nouns)
    with pytest.raises(ModelError, match=r"holds no adapter_model.safetensors"):
        Trainer(llama_folder, PROMPTS, nouns, start_adapter=tmp_path)


def test_no_database_is_involved():
    """A script that only trains imports neither the lab's store nor its page."""
    code = (
        "import sys, rlhf_lab.api\n"
        "print([name for name in sys.modules if name.startswith(('rlhf_lab.store', 'rlhf_lab.ui', 'sqlalchemy', 'gradio'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout) == []

"""Recipes for TRL: settings worked out by hand, the lab's own prompts and scores, and scripts that run in TRL."""

import ast
import hashlib
import json
import math
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from support import tiny_models
from support.environments import python_with

from rlhf_lab.cli.main import main
from rlhf_lab.common.algorithms import ALGORITHMS
from rlhf_lab.common.bundled_assets import EMBEDDED_MODEL
from rlhf_lab.common.enums import Choice, Source, Strength
from rlhf_lab.common.records import ChatSettings, NewCompletion, StepResult, Vote
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.kl import kl_estimate
from rlhf_lab.exporters import trl_settings
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store import projects
from rlhf_lab.store import tables as t
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.store.votes import cast_vote

HOSTILE = 'Say """hi""" \\ `now` {x}\n# no heading | $HOME'
TURNS = "\n\nHuman: the cat\n\nAssistant: sat\n\nHuman: the dog\n\nAssistant:"
PROMPTS = ("the old ship", TURNS, "a small dog saw", "moon")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <stop> {% endfor %}{% if loud %}! {% endif %}"
    "{% if add_generation_prompt %}sun {% endif %}"
)
#: Settings without an argument in TRL's config that the recipe has in another place.
ELSEWHERE = {"algorithm", "lora_r", "lora_alpha"}


def chat_model(folder):
    """A tiny Llama with a chat template that has an argument, and two end tokens."""
    tiny_models.save_llama(folder)
    tiny_models.set_generation_config(folder, eos_token_id=[tiny_models.EOS, tiny_models.STOP])
    words = tiny_models.tokenizer()
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)
    return str(folder)


class Lab:
    """A project with three labels and a reward model, with pooling = last or the default one."""

    def __init__(self, db, home, model, pooling="last", chat=ChatSettings("", {}), prompts=PROMPTS):  # noqa: B008
        self.db, self.home = db, home
        self.backbone = load_backbone(model, device="cpu", dtype=torch.float32)
        self.backbone.chat_settings = chat
        texts = [(text, "train") for text in prompts] + [("king", "eval")]
        self.project = projects.create_project(db, "p", model, self.backbone.digest, "mine", 0, texts, chat=chat)
        for number, prompt in enumerate(projects.prompts(db, self.project.id, "train")[:3]):
            new = [NewCompletion(prompt.id, f" {text} {number}", (1,), "base", 3) for text in ("good", "bad")]
            first, second = projects.add_completions(db, new)
            (pair,) = projects.add_pairs(db, self.project.id, [(first.id, second.id, "random")])
            choice = (Choice.FIRST, Choice.SECOND, Choice.TIE)[number]
            strength = (Strength.MUCH, None, None)[number]
            cast_vote(db, Vote(f"u{number}", pair.id, "ann", Source.HUMAN, choice, True, strength=strength))
        features = FeatureSpec("last") if pooling == "last" else FeatureSpec("mean", 0.1, "all")
        head = RewardHead(features.size(self.backbone), features, 3).requires_grad_(False)
        head.shift.fill_(0.25)
        head.scale.fill_(0.5)
        head.linear.bias.fill_(0.6)
        adapters = Adapters(self.backbone)
        adapters.add("reward", r=4, alpha=8, seed=1, trainable=True)
        tiny_models.disturb(adapters, "reward", 1, scale=0.05 if model == EMBEDDED_MODEL else 0.2)
        self.reward = RewardModel(self.backbone, adapters, "reward", head)
        self.reward.save(home / "reward_models" / "1")
        for name in ("report.json", "config.json"):
            (home / "reward_models" / "1" / name).write_text("{}")
        snapshot = snapshot_labels(db, self.project.id, Source.HUMAN)
        config = RewardConfig(margin=1.5, lora_r=4, epochs=3).to_dict()
        self.row = add_reward_model(db, self.project.id, "reward_models/1", config=config, report={}, snapshot=snapshot)

    def run(self, algorithm, name="mine", manifest=None, reward_model_id=1, **changes):
        config = PolicyConfig.for_algorithm(algorithm, **changes)
        run = create_run(
            self.db,
            self.project.id,
            reward_model_id,
            name,
            config=config.to_dict(),
            manifest=manifest or {},
            total_steps=9,
        )
        record_step(self.db, run.id, StepResult(2, {"objective/kl_coef": 0.4321}))
        return str(run.id)

    def recipe(self, out, *arguments):
        assert main(["export", "recipe", *arguments, "--home", str(self.home), "--out", str(out)]) == 0
        for name in ("train.py", "reward.py"):
            if (out / name).exists():
                ast.parse((out / name).read_text(encoding="utf-8"))
        return out


def data_of(folder):
    return [json.loads(line) for line in (folder / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()]


def arguments_of(folder):
    """The arguments of the config and of LoRA in train.py."""
    tree = ast.parse((folder / "train.py").read_text(encoding="utf-8"))
    calls = {
        call.func.id: call for call in ast.walk(tree) if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    (name,) = (name for name in calls if name.endswith("Config") and name != "LoraConfig")
    found = {
        key.arg: ast.literal_eval(key.value) for call in (calls[name], calls["LoraConfig"]) for key in call.keywords
    }
    return name, found


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("sft", "rejection")])
def test_each_setting_is_translated_or_named_as_left_out(algorithm):
    config = PolicyConfig.for_algorithm(algorithm)
    translate = trl_settings.dpo_settings if algorithm == "dpo" else trl_settings.online_settings
    check(translate(config, "float32"), {item.name for item in fields_of(PolicyConfig) if item.applies_to(algorithm)})


def test_each_setting_of_a_reward_model_is_translated_or_named_as_left_out():
    check(trl_settings.reward_settings(RewardConfig()), {item.name for item in fields_of(RewardConfig)})


def check(settings, used):
    places = [*settings.arguments, *settings.elsewhere, *trl_settings.rules_of(settings.trainer)]
    known = {name for place in places for name in place.settings} | {*trl_settings.WITHOUT_EFFECT} | ELSEWHERE
    assert used - known == set()


def test_batches_of_ppo():
    """30 responses in 3 minibatches and groups of 4: 24 responses, 8 per update, in passes of 4 rows (not 5)."""
    config = PolicyConfig.for_algorithm(
        "ppo", batch_size=15, rollouts=2, minibatches=3, epochs=2, steps=7, micro_batch=5, lr=1e-3, lr_schedule="cosine",
        checkpoint_every=2, cliprange=None, max_new_tokens=20, temperature=0.5, loss_mean="sum", seed=4, beta=0.2,
        entropy_coef=0.01,
    )  # fmt: skip
    settings = trl_settings.online_settings(config, "bfloat16")
    found = {argument.name: argument.value for argument in settings.arguments}
    assert (settings.trainer, settings.updates_per_step, settings.prompts_per_step) == ("GRPO", 6, 6)
    expected = {
        "max_steps": 42, "save_steps": 12, "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "adam_epsilon": 1e-5,
        "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 4, "generation_batch_size": 24, "num_generations": 4,
        "num_iterations": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_completion_length": 20,
        "temperature": 0.5, "beta": 0.2, "epsilon": 1e9, "loss_type": "luspo", "scale_rewards": "batch",
        "entropy_coef": 0.01, "use_bias_correction_kl": True,
        "model_init_kwargs": {"dtype": "bfloat16"}, "bf16": False, "disable_dropout": True,
        "gradient_checkpointing": False, "logging_steps": 1, "report_to": "none",
    }  # fmt: skip
    assert found == expected
    assert settings.replacement.startswith("TRL has no trainer for ppo any more (the last was in 1.12)")
    for part in (
        "GRPOTrainer",
        "no value function: each response is compared with the other 3",
        "clipped probability ratio",
    ):
        assert part in settings.replacement
    text = " ".join(settings.left_out)
    for part in ("kl_budget = 4.0", "vf_coef = 0.1", "group_size = 1", "30 responses per step", "kl_penalty = reward"):
        assert part in text
    assert "ptx_coef" not in text
    assert "live" not in text


@pytest.mark.parametrize(
    ("estimator", "updates", "corrected", "differs"),
    [("k2", 1, True, False), ("k2", 2, True, True), ("k3", 1, False, False), ("k3", 2, False, False)],
)
def test_a_kl_in_the_loss_has_the_same_gradient_in_trl(estimator, updates, corrected, differs):
    """TRL's term, written from `GRPOTrainer._compute_loss` of 1.16.0; before the first update the policy is the old one."""
    config = PolicyConfig.for_algorithm(
        "grpo", kl_penalty="loss", kl_estimator=estimator, epochs=updates, kl_budget=None, minibatches=1
    )
    settings = trl_settings.online_settings(config, "float32")
    found = {argument.name: argument.value for argument in settings.arguments}
    assert found["use_bias_correction_kl"] is corrected
    assert any("kl_" in text for text in settings.left_out) is differs
    for moved in range(updates):
        old, reference = torch.tensor([[-1.0, -2.0, -0.5]]), torch.tensor([[-1.5, -0.7, -0.5]])
        ours = (old + 0.3 * moved).requires_grad_()
        kl_estimate(ours, reference, estimator).sum().backward()
        theirs = (old + 0.3 * moved).requires_grad_()
        per_token_kl = torch.exp(reference - theirs) - (reference - theirs) - 1
        if found["use_bias_correction_kl"]:
            per_token_kl = per_token_kl * torch.exp(theirs - old)
        per_token_kl.sum().backward()
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6) is not (differs and moved > 0)


def test_groups_of_rloo_and_grpo():
    rloo = trl_settings.online_settings(PolicyConfig.for_algorithm("rloo", group_size=8, kl_budget=None), "float32")
    found = {argument.name: argument.value for argument in rloo.arguments}
    assert (rloo.trainer, rloo.updates_per_step, rloo.prompts_per_step) == ("RLOO", 1, 4)
    assert (found["num_generations"], found["generation_batch_size"], found["normalize_advantages"]) == (8, 32, False)
    assert "epsilon" not in found
    assert [text for text in rloo.left_out if "kl" in text] == []
    for scales, whole in ((True, "group"), (False, "none")):
        config = PolicyConfig.for_algorithm("grpo", group_scale=scales, whiten_advantages=False, kl_budget=None)
        found = {
            argument.name: argument.value for argument in trl_settings.online_settings(config, "float32").arguments
        }
        assert (found["scale_rewards"], found["loss_type"], found["epsilon"]) == (whole, "grpo", 0.2)


@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [
        ("ppo_penalty", ["GRPOTrainer", "no value function", "clips the probability ratio"]),
        ("trpo", ["GRPOTrainer", "no value function", "Adam", "natural gradient"]),
        ("a2c", ["RLOOTrainer", "no value function"]),
        ("reinforce", ["RLOOTrainer", "each response is compared with the other 3"]),
        ("rloo", []), ("grpo", []),
    ],
)  # fmt: skip
def test_a_recipe_says_which_algorithm_trl_has_in_its_place(db, home, tmp_path, algorithm, parts):
    """At the beginning of the README, above the commands; nothing for an algorithm that TRL has."""
    lab = Lab(db, home, EMBEDDED_MODEL)
    text = (lab.recipe(tmp_path / "out", lab.run(algorithm)) / "README.md").read_text(encoding="utf-8")
    beginning = " ".join(text[: text.index("```bash")].split())
    assert all(part in beginning for part in parts)
    assert ("TRL has no trainer" in text) is bool(parts)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_reward_and_prompts_are_those_of_the_lab(db, home, tmp_path, monkeypatch, kind, pooling):
    """reward.py in the folder: token ids of the prompts, and scores in the lab's unit, less a penalty for a missing end."""
    chat = ChatSettings("very happy king", {"loud": True} if kind == "chat" else {})
    model = chat_model(tmp_path / "base") if kind == "chat" else EMBEDDED_MODEL
    lab = Lab(db, home, model, pooling, chat)
    terms = [{"name": "reward_model", "weight": 2.0, "options": {}}]
    run = lab.run("ppo", manifest={"reward_terms": terms}, score_clip=1.0, missing_eos_penalty=0.5)
    checkpoint = home / "runs" / run / "step-000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"numbers": {"score_unit": [0.3, 0.5]}}')
    folder = lab.recipe(tmp_path / "out", run)
    monkeypatch.chdir(folder)
    names = runpy.run_path("reward.py")
    rows = data_of(folder)
    assert len(rows) == len(PROMPTS)
    prompts = [lab.backbone.encode_prompt(text) for text in PROMPTS]
    assert [names["encode_prompt"](row["prompt"]) for row in rows] == prompts
    end = lab.backbone.eos_ids[-1]
    responses = [[20, 21, end], [22, 23], [end], [24, 25, 26, end]]
    scores = (lab.reward.scores(prompts, responses).double() * 2 - 0.3) / 0.5
    assert float(scores.abs().max()) > 1.0
    expected = scores.clamp(-1, 1) - torch.tensor([0, 0.5, 0, 0])
    logged = []
    found = names["reward"](
        [row["prompt"] for row in rows],
        completion_ids=responses,
        log_metric=lambda *item: logged.append(item),
        unused=None,
    )
    assert logged == [("objective/scores", pytest.approx(scores.mean().item(), abs=1e-4, rel=1e-5))]
    assert found == pytest.approx(expected.tolist(), abs=1e-4, rel=1e-5)
    for row, ids in zip(rows, responses, strict=True):
        unclipped = names["score_ids"](names["encode_prompt"](row["prompt"]), ids)
        assert unclipped == pytest.approx(
            lab.reward.scores([names["encode_prompt"](row["prompt"])], [ids]).item(), abs=1e-4, rel=1e-5
        )
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "beta was 0.432" in text
    assert ("no `AutoModelForSequenceClassification`" in text) is (pooling == "mean")
    assert ("AutoModelForSequenceClassification" in (folder / "reward.py").read_text()) is (pooling == "last")


OWN_FUNCTIONS = """
def short(response):
    return -len(response.split())

def asks(prompt, response, bonus=1):
    return bonus * (prompt.count("e") + 10 * ("e" in response))

def many(prompts, responses):
    return [len(a) + len(b) / 1000 for a, b in zip(prompts, responses)]
"""


def own_term(file, function, weight):
    return {"name": "own", "weight": weight, "options": {"file": file, "function": function}}


def with_functions(home, source, *terms, name="mine.py"):
    """The manifest of a run that trained with these functions of a file in the lab's folder."""
    file = home / "rewards" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(source, encoding="utf-8")
    digest = hashlib.sha256(source.encode()).hexdigest()
    labels = [f"{file.stem}.{term['options']['function']}" for term in terms if term["name"] == "own"]
    return {"reward_terms": list(terms), "reward_functions": dict.fromkeys(labels, digest)}


@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_reward_functions_are_files_of_the_recipe(db, home, tmp_path, monkeypatch, kind):
    """Of a response, of both, and of a batch, with the lab's prompts and texts; and two that the lab has. 0.3 and 0.5: the unit.

    Sums are worked out by hand from the texts: weight -1 for words, 0.5 for the e of the prompt (ten more for one in the
    response), 0.001 for lengths, 4 for a response of 2 to 3 words, 8 for one with a "ki".
    """
    chat = ChatSettings("very happy king", {"loud": True} if kind == "chat" else {})
    lab = Lab(db, home, chat_model(tmp_path / "base") if kind == "chat" else EMBEDDED_MODEL, "mean", chat)
    shipped = [{"name": "length", "weight": 4.0, "options": {"min_words": 2, "max_words": 3}},
               {"name": "regex", "weight": 8.0, "options": {"pattern": r'\b"?ki'}}]  # fmt: skip
    own = [own_term("mine.py", "short", 1.0), own_term("mine.py", "asks", 0.5), own_term("mine.py", "many", 0.001)]
    run = lab.run(
        "grpo", manifest=with_functions(home, OWN_FUNCTIONS, *own, *shipped), reward_model_id=None, score_clip=None
    )
    checkpoint = home / "runs" / run / "step-000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text('{"numbers": {"score_unit": [0.3, 0.5]}}')
    folder = lab.recipe(tmp_path / "out", run)
    assert (folder / "function_1.py").read_text() == OWN_FUNCTIONS
    assert not (folder / "reward_model").exists()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    names = runpy.run_path("reward.py")
    for module in ("reward_functions", "function_1", "function_2"):
        monkeypatch.delitem(sys.modules, module)
    rows = data_of(folder)[:2]
    assert [row["lab_prompt"] for row in rows] == list(PROMPTS[:2])
    prompt_ids = [lab.backbone.encode_prompt(text) for text in PROMPTS[:2]]
    responses = [lab.backbone.encode_response(text) for text in (" the king", " a small dog saw the moon sun")]
    texts = [lab.backbone.decode(ids, after=prompt) for prompt, ids in zip(prompt_ids, responses, strict=True)]
    logged = {}
    found = names["reward"](
        prompts=[row["prompt"] for row in rows], completions=["unused"] * 2, completion_ids=responses,
        lab_prompt=[row["lab_prompt"] for row in rows], log_metric=logged.__setitem__, trainer_state=None,
    )  # fmt: skip
    assert [len(text.split()) for text in texts] == [2, 7]
    e_in_prompts = [PROMPTS[0].count("e"), PROMPTS[1].count("e")]
    lengths = [len(prompt) + len(text) / 1000 for prompt, text in zip(PROMPTS, texts, strict=False)]
    sums = [-2 + 0.5 * (e_in_prompts[0] + 10) + 0.001 * lengths[0] + 4 * 1 + 8,
            -7 + 0.5 * (e_in_prompts[1] + 10) + 0.001 * lengths[1] + 4 * 0]  # fmt: skip
    assert found == pytest.approx([(total - 0.3) / 0.5 for total in sums])
    assert logged["objective/reward/mine.short"] == -4.5
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "mine.asks, weight 0.5, of `function_1.py`" in readme
    assert "is missing" not in readme


@pytest.mark.parametrize(
    ("source", "recorded", "reason"),
    [
        ("import rlhf_lab.common\ndef f(r): return 1", None, "it needs the lab"),
        ("def f(r):\n    from rlhf_lab import api\n    return 1", None, "it needs the lab"),
        ("def f(r): return 1", "def f(r): return 2", "not the one that the run trained with"),
        ("def f(r): return", "def f(r:", "cannot be read"), (None, "x", "cannot be read"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_exported_is_named(db, home, tmp_path, capsys, source, recorded, reason):
    """With a reward model the recipe says so in its README; without one there is no reward, and no recipe."""
    lab = Lab(db, home, EMBEDDED_MODEL)
    manifest = with_functions(home, source or "x", own_term("mine.py", "f", 2.0))
    file = home / "rewards" / "mine.py"
    file.unlink() if source is None else file.write_text(recorded or source)
    model = {"name": "reward_model", "weight": 1.0, "options": {}}
    with_model = manifest | {"reward_terms": [model, *manifest["reward_terms"]]}
    folder = lab.recipe(tmp_path / "out", lab.run("ppo", manifest=with_model))
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "The reward function `mine.f` with weight 2 is missing" in text
    assert reason in text
    assert not list(folder.glob("*function*"))
    arguments = ["recipe", lab.run("ppo", manifest=manifest, reward_model_id=None), "--out", str(tmp_path / "none")]
    assert main(["export", *arguments, "--home", str(home)]) == 1
    assert reason in (printed := capsys.readouterr().err)
    assert "So there is no reward to export. Choose another run, or export a recipe of the labels." in printed


def test_what_a_function_imports_is_named(db, home, tmp_path):
    """Beside the standard library and what the recipe installs."""
    source = "import re, numpy.linalg\nfrom os import path\nimport textstat\nfrom . import words\ndef f(r): return 1"
    lab = Lab(db, home, EMBEDDED_MODEL)
    run = lab.run("ppo", manifest=with_functions(home, source, own_term("mine.py", "f", 2.0)), reward_model_id=None)
    text = (lab.recipe(tmp_path / "out", run) / "README.md").read_text(encoding="utf-8")
    assert "`mine.f` imports `a module beside it`, `textstat`: install or copy that too" in text


def test_a_classifier_is_loaded_from_its_folder_alone(db, home, tmp_path, monkeypatch):
    """transformers loads reward_model with base and head; its logit is the score less a constant."""
    from transformers import AutoModelForSequenceClassification

    lab = Lab(db, home, chat_model(tmp_path / "base"))
    monkeypatch.chdir(lab.recipe(tmp_path / "out", lab.run("ppo")))
    model = AutoModelForSequenceClassification.from_pretrained("reward_model", num_labels=1, dtype=torch.float32).eval()
    model.config.pad_token_id = None
    prompt = lab.backbone.encode_prompt(PROMPTS[0])
    responses = [[20, 21, 0], [30, 31, 32]]
    with torch.no_grad():
        logits = [model(torch.tensor([[*prompt, *ids]])).logits.item() for ids in responses]
    offset = (0.6 - 0.25) / 0.5
    assert [logit + offset for logit in logits] == pytest.approx(
        lab.reward.scores([prompt] * 2, responses).tolist(), abs=1e-4
    )


def test_dpo_has_the_labels_of_the_run(db, home, tmp_path):
    lab = Lab(db, home, chat_model(tmp_path / "base"), chat=ChatSettings("king", {"loud": True}))
    run = lab.run("dpo", dpo_loss="ipo", label_batch=6, micro_batch=4, lora_r=2, steps=5, lr=1e-2)
    other = projects.prompts(db, lab.project.id, "train")[3]  # a label after the run has started
    first, second = projects.add_completions(db, [NewCompletion(other.id, text, (1,), "base", 3) for text in "ab"])
    (pair,) = projects.add_pairs(db, lab.project.id, [(first.id, second.id, "random")])
    cast_vote(db, Vote("late", pair.id, "ann", Source.HUMAN, Choice.FIRST, True))
    folder = lab.recipe(tmp_path / "out", run)
    answers = [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in data_of(folder)]
    assert answers == [(" good 0", " bad 0"), (" bad 1", " good 1")]
    system, *turns = data_of(folder)[1]["prompt"]
    assert system == {"role": "system", "content": "king"}
    assert [turn["content"] for turn in turns] == ["the cat", "sat", "the dog"]
    assert set(data_of(folder)[0]) == {"prompt", "chosen", "rejected"}
    name, found = arguments_of(folder)
    assert name == "DPOConfig"
    assert (found["loss_type"], found["beta"], found["max_steps"], found["r"]) == (["ipo"], 0.3, 5, 2)
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (3, 2)
    assert 'data.add_column("chat_template_kwargs", [{"loud": True}] * len(data))' in (folder / "train.py").read_text()
    assert not (folder / "reward.py").exists()
    assert "divides the log-ratios by the lengths" in (folder / "README.md").read_text(encoding="utf-8")


def test_labels_train_a_reward_model_or_by_dpo(db, home, tmp_path):
    """A margin of 1.5 per level of strength: 3 for "much better". Texts of a model without a chat template are plain."""
    lab = Lab(db, home, EMBEDDED_MODEL, chat=ChatSettings("Be kind.", {}))
    folder = lab.recipe(tmp_path / "reward", "labels")
    assert data_of(folder)[0] == {
        "prompt": "Be kind.\n\nthe old ship", "chosen": " good 0", "rejected": " bad 0", "margin": 3.0
    }  # fmt: skip
    assert [row["margin"] for row in data_of(folder)] == [3.0, 0.0]
    name, found = arguments_of(folder)
    assert name == "RewardConfig"
    expected = {
        "num_train_epochs": 3,
        "center_rewards_coefficient": 0.01,
        "weight_decay": 0.01,
        "r": 4,
        "max_length": None,
    }
    assert {key: found[key] for key in expected} == expected
    assert (folder / "model" / "model.safetensors").stat().st_size > 1e6
    assert arguments_of(lab.recipe(tmp_path / "dpo", "labels", "--trainer", "dpo"))[0] == "DPOConfig"
    assert list(data_of(tmp_path / "dpo")[0]) == ["prompt", "chosen", "rejected"]


def test_names_and_prompts_are_quoted(db, home, tmp_path):
    lab = Lab(db, home, EMBEDDED_MODEL, prompts=(HOSTILE, HOSTILE + "2", HOSTILE + "3"))
    folder = lab.recipe(tmp_path / "out", lab.run("grpo", name=HOSTILE))
    assert [row["prompt"] for row in data_of(folder)] == [HOSTILE, HOSTILE + "2", HOSTILE + "3"]
    heading, *lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    assert heading.startswith('# Run 1 ("Say """hi""" \\\\ \\`now\\` {x} \\# no heading \\| $HOME", grpo)')
    assert not any(line.startswith("# no") for line in lines)
    assert "data = data.repeat(3)  # a step takes 8 prompts" in (folder / "train.py").read_text()


def test_requests_that_cannot_be_met(db, home, tmp_path, capsys):
    lab = Lab(db, home, EMBEDDED_MODEL)
    labels = {"labels": {"vote_ids": [1], "digest": "d", "source": "human", "weights": []}}
    for arguments, message in (
        ([lab.run("sft", manifest=labels)], "there is no recipe"),
        ([lab.run("ppo", reward_model_id=None)], "was not trained with a reward model or reward functions"),
        (["99"], "no run 99"), (["../x"], "not a run: give the id of a run, or the word labels"),
        (["labels", "--source", "simulated"], "no simulated labels"),
    ):  # fmt: skip
        out = tmp_path / "out"
        assert main(["export", "recipe", *arguments, "--home", str(home), "--out", str(out)]) != 0
        assert message in capsys.readouterr().err
        assert not out.exists()


@pytest.mark.parametrize("what", ["labels", "dpo"])
def test_a_recipe_of_a_model_whose_folder_is_gone_is_refused(db, home, tmp_path, capsys, what):
    lab = Lab(db, home, chat_model(tmp_path / "base"))
    arguments = "labels" if what == "labels" else lab.run("dpo")
    shutil.rmtree(tmp_path / "base")
    assert main(["export", "recipe", arguments, "--home", str(home), "--out", str(tmp_path / "out")]) != 0
    assert "Put its folder back" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"ensemble": {"members": "3): pass\n    import os\n    for k in range(3", "mode": "mean", "coef": 1.0}},
        {"ensemble": {"members": 3, "mode": "uncertainty", "coef": [1.0]}},
        {"ensemble": {"members": 3, "mode": "median", "coef": 1.0}}, {"ensemble": {"members": True, "mode": "mean", "coef": 1.0}},
        {"ensemble": []}, {"last_weight": "0.5"}, {"last_weight": math.nan}, {"correction": {"names": ["x"]}},
        {"backbone_sha256": "`\n# heading"},
    ],
)  # fmt: skip
def test_values_of_a_restored_head_become_no_code(db, home, tmp_path, capsys, change):
    lab = Lab(db, home, EMBEDDED_MODEL, pooling="mean")
    path = home / "reward_models" / "1" / "reward_head.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for arguments in (["recipe", lab.run("ppo")], ["reward-model", "1"]):
        assert main(["export", *arguments, "--home", str(home), "--out", str(tmp_path / "out")]) == 1
        assert "Train it again" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_labels_are_those_that_a_training_uses(db, home, tmp_path):
    """Of seven pairs, five are gold and one is a tie; ann failed on the five, so the other two labels count less."""
    lab = Lab(db, home, EMBEDDED_MODEL)
    rules = LabellingConfig(gold_rule="down_weight", gold_answers=5)
    projects.set_labelling_config(db, lab.project.id, rules)
    prompt = projects.prompts(db, lab.project.id, "train")[3]
    for number in range(4):
        new = [NewCompletion(prompt.id, f"{text} {number}", (1,), "base", 3) for text in "ab"]
        first, second = projects.add_completions(db, new)
        (pair,) = projects.add_pairs(db, lab.project.id, [(first.id, second.id, "random")])
        cast_vote(db, Vote(f"gold {number}", pair.id, "ann", Source.HUMAN, Choice.FIRST, True))
    with db.write() as conn:
        conn.execute(t.pairs.update().where(t.pairs.c.id.not_in([2, 3])).values(gold=Choice.SECOND, gold_at=0.0))
    folder = lab.recipe(tmp_path / "out", "labels")
    assert [(row["chosen"], row["rejected"]) for row in data_of(folder)] == [(" bad 1", " good 1")]
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "- 1 tie left out" in text
    assert "- 2 labels (ties included) with a reduced weight" in text


@pytest.mark.parametrize("has_model", [True, False])
def test_the_recipe_of_a_dpo_run_names_what_its_labels_lose(db, home, tmp_path, has_model):
    """Three labels: one tie, one taken back since, all of a reduced weight; with a reward model ann's count three times."""
    lab = Lab(db, home, EMBEDDED_MODEL)
    snapshot = replace(snapshot_labels(db, lab.project.id, Source.HUMAN), weights=(0.5, 0.5, 0.5))
    manifest = {"labels": asdict(snapshot)}
    if has_model:
        changed = {"report": {"weights": {"ann": 3, "ben": 2}}, "snapshot": snapshot}
        row = add_reward_model(db, lab.project.id, "reward_models/1", config=RewardConfig().to_dict(), **changed)
        run = lab.run("dpo", reward_model_id=row.id)
    else:
        run = lab.run("dpo", reward_model_id=None, manifest=manifest)
    with db.write() as conn:
        conn.execute(t.votes.update().where(t.votes.c.id == snapshot.vote_ids[0]).values(undone_at=1.0))
    folder = lab.recipe(tmp_path / "out", run)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert [row["chosen"] for row in data_of(folder)] == [" bad 1"]
    assert "- 1 tie left out: TRL's trainers have none." in text
    assert "- 1 label left out that were taken back, replaced or erased" in text
    assert "- 3 labels (ties included) with a reduced weight in the lab" in text
    assert ("- The labels of 1 annotator count several times in the lab" in text) is has_model


def test_a_head_alone_and_the_scale_of_a_batch_are_named():
    (text,) = (text for text in trl_settings.reward_settings(RewardConfig(epochs=0)).left_out if "epochs" in text)
    assert "TRL trains the adapter as well, here for one pass" in text
    assert "epochs" not in " ".join(trl_settings.reward_settings(RewardConfig(epochs=1)).left_out)
    for algorithm, whitens, named in (
        ("ppo", True, True),
        ("ppo", False, False),
        ("rloo", True, False),
        ("grpo", True, False),
    ):
        config = PolicyConfig.for_algorithm(algorithm, whiten_advantages=whitens)
        text = " ".join(trl_settings.online_settings(config, "float32").left_out)
        assert ("divides by the standard deviation of the batch" in text) is named


@pytest.fixture(scope="module")
def trl_python(tmp_path_factory):
    """Python of an environment with TRL on top of the packages of this one."""
    return python_with(tmp_path_factory.mktemp("trl") / "env", "TRL", f"trl=={trl_settings.TRL_VERSION}")


PROMPT_IDS = """
import runpy, sys
sys.argv[1:] = ["2"]
names = runpy.run_path("train.py")
trainer = names["trainer"]
rows = [row["prompt"] for row in names["data"]]
print("IDS", trainer._tokenize_prompts(rows)[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "plain"])
@pytest.mark.parametrize("what", ["ppo", "rloo", "dpo", "labels", "functions"])
def test_each_script_trains_two_steps(db, home, tmp_path, trl_python, kind, what):
    """With TRL itself; prompts have the same token ids as in the lab."""
    chat = ChatSettings("king", {"loud": True} if kind == "chat" else {})
    lab = Lab(db, home, chat_model(tmp_path / "base") if kind == "chat" else EMBEDDED_MODEL, "mean", chat)
    sizes = {"batch_size": 8, "max_new_tokens": 8} if what in ("ppo", "rloo", "functions") else {"label_batch": 2}
    if what == "functions":
        own = [own_term("mine.py", name, 0.5) for name in ("short", "asks", "many")]
        run = lab.run("grpo", manifest=with_functions(home, OWN_FUNCTIONS, *own), reward_model_id=None, **sizes)
    else:
        run = what if what == "labels" else lab.run(what, **sizes)
    folder = lab.recipe(tmp_path / "out", run)
    is_online = what in ("ppo", "rloo", "functions")
    command = [trl_python, "-c", PROMPT_IDS] if is_online else [trl_python, "train.py", "2"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment, timeout=280
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    history = json.loads((folder / "output" / "trainer_state.json").read_text())["log_history"]
    assert [row["step"] for row in history][:2] == [1, 2]
    assert (folder / "output" / "final" / "adapter_model.safetensors").is_file()
    assert ("objective/scores" in history[0]) is is_online
    assert ("objective/reward/mine.asks" in history[0]) is (what == "functions")
    if is_online:
        ids = ast.literal_eval(done.stdout.rpartition("IDS ")[2])
        assert ids[: len(PROMPTS)] == [lab.backbone.encode_prompt(text) for text in PROMPTS]

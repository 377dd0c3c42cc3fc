"""Zip files of a policy and of a reward model: unpacked and loaded with PEFT, they compute the same as in the lab."""

import json
import re
import shutil
import zipfile

import pytest
import torch
from peft import PeftModel
from support import tiny_models
from support.fake_hub import UploadHub
from transformers import AutoModelForCausalLM

from rlhf_lab.cli.main import main
from rlhf_lab.common.checkpoint_index import checkpoint_folder
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import ChatSettings, LabelSnapshot
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters.adapter_zip import export_adapter, export_reward_model
from rlhf_lab.exporters.run_export import export_run
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import EnsembleHead, RewardHead
from rlhf_lab.models.reward_model import RewardModel
from rlhf_lab.store import projects
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.runs import create_run
from rlhf_lab.training.checkpoints import save_checkpoint

PROMPT, RESPONSE = tiny_models.ids("the cat"), [*tiny_models.ids("sat and ran ."), tiny_models.EOS]
ADAPTER = ["adapter_config.json", "adapter_model.safetensors"]


#: (adapter, pooling, how an ensemble's scores are joined); the first two are those of the other tests here.
KINDS = [
    ("reward", "mean", None), (None, "last", None), ("reward", "last", None), (None, "mean", None),
    ("reward", "mean", "mean"), ("reward", "last", "worst"), (None, "mean", "uncertainty"),
    ("reward", "last of all layers", None), (None, "mean of all layers", "uncertainty"),
]  # fmt: skip
CLASSIFIER = 2


def head_of(backbone, pooling, mode):
    """One head or three, with a bias and a scale that the code in the README has to use."""
    pooling, _, layers = pooling.partition(" of all ")
    weight = 0.0 if mode == "mean" else 0.3  # weight of the last token, besides its share of the mean
    features = FeatureSpec(pooling, weight, "all" if layers else "last")
    size = features.size(backbone)
    head = EnsembleHead(size, features, [3, 4, 5], mode, 0.5) if mode else RewardHead(size, features, 3)
    for i, part in enumerate(dict.fromkeys([head, *head.heads])):
        part.shift.fill_(0.25 + i)
        part.scale.fill_(0.5 + i)
    with torch.no_grad():
        for one in head.heads:
            one.linear.bias.fill_(0.6)
    return head.requires_grad_(False)


class Trained:
    """A run with checkpoints of the steps 2 and 4, and reward models of all KINDS, of one tiny model."""

    def __init__(self, db, home, model):
        self.model, self.backbone = model, tiny_models.load(model)
        self.adapters = tiny_models.adapters_of(self.backbone, "policy", "reward")
        texts = [("the cat", "train"), ("moon", "eval")]
        digest = self.backbone.digest
        self.project = projects.create_project(db, "p", str(model), digest, "mine", 0, texts)
        self.scores, self.rewards = [], []
        for adapter, pooling, mode in KINDS:
            head = head_of(self.backbone, pooling, mode)
            scorer = RewardModel(self.backbone, self.adapters, adapter, head)
            path = f"reward_models/{adapter}-{pooling}-{mode}"
            folder = home / path
            scorer.save(folder)
            for name in ("report.json", "config.json"):
                (folder / name).write_text(json.dumps({"file": name}))
            self.scores.append(scorer.scores([PROMPT], [RESPONSE]).item())
            pinned = LabelSnapshot((1, 2, 3), "d" * 64, Source.SIMULATED)
            report = {"accuracy": 0.75}
            row = add_reward_model(db, self.project.id, path, config={"lora_r": 4}, report=report, snapshot=pinned)
            self.rewards.append(row.id)
        config = {"algorithm": "ppo", "temperature": 0.7, "beta": 0.1}
        self.run = create_run(db, self.project.id, self.rewards[0], "mine", config=config, manifest={}, total_steps=9)
        self.runs = home / "runs" / str(self.run.id)
        self.logits = {step: self.save(step) for step in (2, 4)}

    def save(self, step):
        """A checkpoint; returns the policy's logits."""
        tiny_models.disturb(self.adapters, "policy", step)
        tensors = {f"adapter.{name}": tensor for name, tensor in self.adapters.tensors("policy").items()}
        save_checkpoint(self.runs, self.adapters, "policy", tensors, {"step": step})
        with self.adapters.using("policy"):
            return tiny_models.all_logits(self.backbone, PROMPT, RESPONSE)


@pytest.fixture
def trained(db, home, llama_folder):
    return Trained(db, home, llama_folder)


def unpack(path, to):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        archive.extractall(to)
        return sorted(archive.namelist())


def logits_in_peft(base, folder):
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(folder))
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([[*PROMPT, *RESPONSE]])).logits[0].double()
    return rows[len(PROMPT) - 1 : -1]


@pytest.mark.parametrize(("requested_step", "step"), [(None, 4), (2, 2), (4, 4)])
def test_the_policy_has_the_same_logits_in_peft(db, home, trained, out, tmp_path, requested_step, step):
    path = export_adapter(db, home, trained.run.id, out, step=requested_step)
    assert path.name == f"run-1-step-{step:06d}.zip"
    assert unpack(path, tmp_path / "new") == ["README.md", *ADAPTER]
    found = logits_in_peft(trained.model, tmp_path / "new")
    assert torch.allclose(found, trained.logits[step], atol=1e-5)
    other = trained.logits[2 if step == 4 else 4]
    assert not torch.allclose(found, other, atol=1e-2)


def test_the_policy_readme_has_the_facts_and_no_local_paths(db, home, trained, out, tmp_path):
    unpack(export_adapter(db, home, trained.run.id, out), tmp_path / "new")
    text = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    base = trained.model.name
    for fact in (f"`{base}`", trained.backbone.digest, "step 4 of 9", '"beta": 0.1', "temperature 0.7",
                 "3 simulated labels (by a program, not by people)", "PeftModel.from_pretrained"):  # fmt: skip
        assert fact in text
    config = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == base
    for name in ("README.md", "adapter_config.json"):
        assert str(tmp_path.parent) not in (tmp_path / "new" / name).read_text(encoding="utf-8")
        assert str(trained.model.parent) not in (tmp_path / "new" / name).read_text(encoding="utf-8")


def test_the_code_in_the_policy_readme_loads_the_policy(db, home, trained, out, tmp_path):
    """Run the code of the README unchanged except for the two names that a reader fills in."""
    unpack(export_adapter(db, home, trained.run.id, out), tmp_path / "new")
    model = run_readme(trained, tmp_path / "new")["model"]
    with torch.no_grad():
        rows = model(input_ids=torch.tensor([[*PROMPT, *RESPONSE]])).logits[0].double()
    assert torch.allclose(rows[len(PROMPT) - 1 : -1], trained.logits[4], atol=1e-5)


def test_the_code_in_the_policy_readme_samples_as_the_run_did(db, home, out, tmp_path):
    """At its temperature, 0.7, from all tokens, and to any of the end tokens; whatever the base's own settings are."""
    base = tiny_models.save_llama(tmp_path / "base")
    tiny_models.set_generation_config(
        base, repetition_penalty=1.5, top_k=3, min_p=0.3, temperature=0.1, eos_token_id=[tiny_models.STOP]
    )
    trained = Trained(db, home, base)
    unpack(export_adapter(db, home, trained.run.id, out), tmp_path / "new")
    model = run_readme(trained, tmp_path / "new")["model"]
    assert (
        set(model.generation_config.eos_token_id)
        == set(trained.backbone.eos_ids)
        == {tiny_models.EOS, tiny_models.STOP}
    )
    made = model.generate(
        input_ids=torch.tensor([PROMPT]), max_new_tokens=6, return_dict_in_generate=True, output_scores=True,
        output_logits=True,
    )  # fmt: skip
    for scores, raw in zip(made.scores, made.logits, strict=True):
        torch.testing.assert_close(scores, raw / 0.7)


def run_readme(trained, folder):
    return run_code(trained.model, folder)


def run_code(model, folder):
    """The names that the README's code defines."""
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL).group(1)
    code = code.replace(f"BASE = '{model.name}'", f"BASE = {str(model)!r}")
    code = code.replace('FOLDER = "."', f"FOLDER = {str(folder)!r}")
    names = {}
    exec(code, names)
    return names


def test_a_damaged_checkpoint_is_not_exported(db, home, trained, out, names):
    newest = checkpoint_folder(trained.runs, 4) / "adapter_model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert export_adapter(db, home, trained.run.id, out).name == "run-1-step-000002.zip"
    with pytest.raises(StoreError, match="step 4 of run 1 is damaged"):
        export_adapter(db, home, trained.run.id, out, step=4)
    (checkpoint_folder(trained.runs, 2) / "adapter_config.json").unlink()
    with pytest.raises(StoreError, match="Every checkpoint of run 1 is damaged"):
        export_adapter(db, home, trained.run.id, out, force=True)
    assert names(out) == ["run-1-step-000002.zip"]


def test_missing_checkpoints(db, home, trained, out):
    with pytest.raises(StoreError, match="no checkpoint of step 3; it has those of 2, 4"):
        export_adapter(db, home, trained.run.id, out, step=3)
    shutil.rmtree(trained.runs)
    with pytest.raises(StoreError, match="has no checkpoint yet"):
        export_adapter(db, home, trained.run.id, out)


def test_run_export_has_the_newest_adapter(db, home, trained, out):
    assert [path.name for path in export_run(db, home, trained.run.id, out)][-1] == "run-1-step-000004.zip"


@pytest.mark.parametrize("kind_index", range(len(KINDS)))
def test_the_code_in_the_reward_model_readme_gives_the_same_scores(db, home, trained, out, tmp_path, kind_index):
    """Run the code of the README unchanged except for the two names that a reader fills in."""
    path = export_reward_model(db, home, trained.rewards[kind_index], out)
    assert path.name == f"reward-model-{trained.rewards[kind_index]}.zip"
    adapter = ADAPTER if KINDS[kind_index][0] else []
    rest = ["config.json", "report.json", "reward_head.json", "reward_head.safetensors"]
    assert unpack(path, tmp_path / "new") == ["README.md", *adapter, *rest]
    text = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    assert ("AutoModelForSequenceClassification" in text) is (kind_index == CLASSIFIER)
    names = run_readme(trained, tmp_path / "new")
    assert names["score_ids"](PROMPT, RESPONSE) == pytest.approx(trained.scores[kind_index], abs=1e-4)
    assert names["score"]("the cat", "sat and ran .") == pytest.approx(trained.scores[kind_index], abs=1e-4)
    adapter, pooling, mode = KINDS[kind_index]
    assert ("not a sequence classifier that transformers loads" in text) is (kind_index != CLASSIFIER)
    assert ("`pooling = last`" in text) is not pooling.startswith("last")
    assert ("`layers = last`" in text) is ("layers" in pooling)
    assert ("an adapter that is in use" in text) is (adapter is None)
    assert ("a single head" in text) is (mode is not None)
    assert trained.scores[0] != pytest.approx(trained.scores[1], abs=1e-2)
    assert str(trained.model.parent) not in text + (tmp_path / "new" / "reward_head.json").read_text()
    assert "75.0% (cross-validated)" in text


#: Each template writes turns in another way; the third refuses a system message, the fourth leaves it out.
TEMPLATES = {
    "plain": None,
    "with a system role": "{% for m in messages %}<{{ m.role }}> {{ m.content }} <stop> {% endfor %}{% if loud %}!{% endif %}",
    "refuses a system message": "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    "dog {{ m.content }} <stop> {% endfor %}",
    "without a system role": "{% for m in messages if m.role != 'system' %}moon {{ m.content }} <stop> {% endfor %}sun",
}


@pytest.mark.parametrize("system", ["", "very happy king"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_readme_scores_a_text_as_the_lab_does(db, home, out, tmp_path, template, system):
    """From texts to the score with the template, the system prompt and the template arguments of the project."""
    folder = tiny_models.save_llama(tmp_path / "base")
    words = tiny_models.tokenizer()
    words.chat_template = TEMPLATES[template]
    words.save_pretrained(folder)
    chat = ChatSettings(system, {"loud": True} if template == "with a system role" else {})
    backbone = tiny_models.load(folder)
    backbone.chat_settings = chat
    model = RewardModel(
        backbone, tiny_models.adapters_of(backbone, "reward"), "reward", head_of(backbone, "mean", None)
    )
    model.save(home / "reward_models" / "1")
    for name in ("report.json", "config.json"):
        (home / "reward_models" / "1" / name).write_text("{}")
    texts = [("the cat", "train"), ("moon", "eval")]
    project = projects.create_project(db, "p", str(folder), backbone.digest, "mine", 0, texts, chat=chat)
    pinned = LabelSnapshot((1,), "d" * 64, Source.HUMAN)
    row = add_reward_model(db, project.id, "reward_models/1", config={}, report={}, snapshot=pinned)
    unpack(export_reward_model(db, home, row.id, out), tmp_path / "new")
    score = run_code(folder, tmp_path / "new")["score"]
    for prompt in ("the old ship", "a small dog saw the moon ."):
        ids, response = backbone.encode_prompt(prompt), backbone.encode_response("sat and ran .")
        assert score(prompt, "sat and ran .") == pytest.approx(model.scores([ids], [response]).item(), abs=1e-4)
    changed = bool(system or TEMPLATES[template])
    assert (ids != tiny_models.ids(prompt)) is changed
    text = (tmp_path / "new" / "README.md").read_text(encoding="utf-8")
    assert ('the system prompt `"very happy king"`' in text) is bool(system)
    assert "in the base's chat template" in text


def test_reward_model_with_missing_files(db, home, trained, out):
    (home / "reward_models" / "reward-mean-None" / "reward_head.safetensors").unlink()
    with pytest.raises(StoreError, match=r"lacks reward_head\.safetensors.*Train it again"):
        export_reward_model(db, home, trained.rewards[0], out)
    shutil.rmtree(home / "reward_models" / "None-last-None")
    with pytest.raises(StoreError, match="Train it again"):
        export_reward_model(db, home, trained.rewards[1], out)
    (home / "reward_models" / "reward-last-None" / "adapter_model.safetensors").write_bytes(b"cut")
    with pytest.raises(StoreError, match="Train it again"):
        export_reward_model(db, home, trained.rewards[CLASSIFIER], out)
    assert not out.exists()


def test_two_exports_are_the_same_bytes(db, home, trained, out):
    first = export_adapter(db, home, trained.run.id, out).read_bytes()
    assert export_adapter(db, home, trained.run.id, out, force=True).read_bytes() == first


def test_a_reward_model_is_pushed_unpacked(home, trained, out, monkeypatch):
    hub = UploadHub(monkeypatch)
    command = ["export", "reward-model", str(trained.rewards[0]), "--home", str(home), "--out", str(out)]
    assert main([*command, "--push", "ann/judge", "--public"]) == 0
    (_, name, settings), (_, _, files) = hub.calls
    assert (name, settings["repo_type"], settings["private"]) == ("ann/judge", "model", False)
    assert {*ADAPTER, "README.md", "reward_head.safetensors", "report.json"} <= set(files)
    assert not any(file.endswith(".zip") for file in files)

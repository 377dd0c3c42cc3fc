"""docs/FROM_TRL.md: its scripts run, its settings exist with these defaults, and its TRL columns are those of TRL 1.12.0.

The last needs RLHF_LAB_PEER_PYTHON, the Python of an environment with trl==1.12.0 (see benchmarks/peer/trl_ppo.py).
"""

import inspect
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from support import tiny_models
from transformers import LlamaConfig, LlamaForSequenceClassification

from rlhf_lab.api import Trainer
from rlhf_lab.config.base import fields_of
from rlhf_lab.config.policy import PolicyConfig

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "FROM_TRL.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
SCRIPTS = [block for block in BLOCKS if "import Trainer" in block]
MODEL = '"HuggingFaceTB/SmolLM2-135M-Instruct"'
#: Smaller numbers, for a model with a context of 48 tokens.
SMALLER = {
    "steps=100": "steps=2, max_new_tokens=6",
    "steps=50": "steps=2, max_new_tokens=6",
    "< 50": "< 2",
    "% 20": "% 2",
}
PEER = os.environ.get("RLHF_LAB_PEER_PYTHON")
PEER_CODE = """
import dataclasses, inspect, json, trl
from trl.experimental.ppo import PPOConfig, PPOTrainer
defaults = {field.name: str(field.default) for field in dataclasses.fields(PPOConfig)}
arguments = [name for name in inspect.signature(PPOTrainer.__init__).parameters if name != "self"]
print(json.dumps([trl.__version__, defaults, list(PPOConfig.__annotations__), arguments]))
"""


def table(heading: str) -> list[list[str]]:
    """The rows below a heading: their cells, without the marks of code."""
    rows = re.findall(r"^\|(.+)\|$", TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0], re.MULTILINE)
    return [[cell.strip().replace("`", "") for cell in row.split("|")] for row in rows if not row.startswith("---")][1:]


def test_metrics_that_are_compared_exist():
    text = (Path(__file__).resolve().parents[1] / "docs" / "METRICS.md").read_text(encoding="utf-8")
    ours = [theirs if here == "the same" else here for theirs, here, _ in table("Metrics")]
    names = [name for cell in ours[:-1] for name in cell.split(", ")]
    assert len(names) == 21
    assert [name for name in names if f"| `{name}` |" not in text] == []
    assert ours[-1].startswith("completions")


def save_classifier(folder: Path) -> None:
    config = LlamaConfig(
        vocab_size=len(tiny_models.WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_labels=1, pad_token_id=tiny_models.PAD,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tiny_models.tokenizer().save_pretrained(folder)


@pytest.mark.parametrize("script", SCRIPTS, ids=["reward function", "own scores", "reward model"])
@pytest.mark.usefixtures("small_score_unit")
def test_the_scripts_run(llama_folder, tmp_path, monkeypatch, capsys, script):
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in tiny_models.PROMPTS))
    with torch.random.fork_rng(devices=[]):
        save_classifier(tmp_path / "my-reward-model")
    assert len(script.splitlines()) <= 25
    assert script.count(MODEL) == 1
    code = script.replace(MODEL, repr(str(llama_folder)))
    for given, smaller in SMALLER.items():
        code = code.replace(given, smaller)
    names: dict[str, object] = {}
    exec(compile(code, "script", "exec"), names)
    trainer = names["trainer"]
    assert isinstance(trainer, Trainer)
    assert trainer.steps_done == trainer.config.steps == 2
    assert [line[:2] for line in capsys.readouterr().out.splitlines()][:2] == ["1 ", "2 "]
    if "save(" in script:
        assert Trainer(llama_folder, start_adapter="adapter").adapters.names == ("start", "policy")
    if "save_checkpoint" in script:
        assert (tmp_path / "run" / "step-000002" / "state.json").is_file()


def test_there_are_three_scripts_and_a_set_of_settings():
    assert len(SCRIPTS) == 3
    (settings,) = [block for block in BLOCKS if block not in SCRIPTS]
    names: dict[str, object] = {}
    exec(settings, names)
    assert PolicyConfig.for_algorithm("ppo", **names["trl_defaults"]).beta == 0.05


def test_every_setting_of_the_tables_exists_with_its_default(llama_folder):
    settings = {item.name for item in fields_of(PolicyConfig)}
    parameters = inspect.signature(Trainer).parameters
    defaults = Trainer(llama_folder).config.to_dict()
    rows = table("Settings")
    assert len(rows) > 50
    for _, _, ours, default, _ in rows:
        assert ours == "–" or ours in settings or ours in parameters, ours
        assert default == (str(defaults[ours]) if ours in settings else ""), ours
    for _, ours, _ in table("Arguments of the trainer"):
        assert ours == "–" or ours in settings or ours in parameters, ours
    for name in re.findall(r"`(\w+)(?:=[^`]*)?`", TEXT.partition("counterpart in TRL:")[2].partition("and more")[0]):
        assert name in settings or name in parameters, name


@pytest.mark.slow
@pytest.mark.skipif(not PEER, reason="RLHF_LAB_PEER_PYTHON names no Python of an environment with trl==1.12.0")
def test_the_columns_of_trl_are_those_of_its_dataclass():
    environment = os.environ | {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(PEER), "-c", PEER_CODE], capture_output=True, text=True, check=True, timeout=600, env=environment
    )
    version, defaults, own, arguments = json.loads(done.stdout.splitlines()[-1])
    rows = {name: default for name, default, *_ in table("Settings")}
    assert version == "1.12.0"
    assert set(own) - set(rows) == set()
    computed = {name for name, default in rows.items() if default == "computed"}
    assert {name: defaults[name] for name in computed} == dict.fromkeys(computed, "None")
    stated = {name: default for name, default in rows.items() if name not in computed}
    assert stated == {name: defaults.get(name) for name in stated}
    assert [name for name, *_ in table("Arguments of the trainer")] == arguments

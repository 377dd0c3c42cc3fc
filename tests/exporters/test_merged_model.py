"""A policy merged into a model folder: transformers loads it, and it computes the same as base and adapter."""

import json
import re
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from support import tiny_models
from support.fake_hub import UploadHub
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_lab.cli.main import main
from rlhf_lab.common.checkpoint_index import checkpoint_folder
from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import ChatSettings, LabelSnapshot, StepResult
from rlhf_lab.errors import StoreError
from rlhf_lab.exporters import merged_model
from rlhf_lab.exporters.merged_model import export_model
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.store import projects
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.run_metrics import record_step
from rlhf_lab.store.runs import create_run
from rlhf_lab.training.checkpoints import save_checkpoint

IDS = torch.tensor([[*tiny_models.ids("the cat sat and ran ."), tiny_models.EOS]])
ADAPTED = "model.layers.0.self_attn.q_proj.weight"
GPT2_NOTE = "ignore:fan_in_fan_out is set to False but the target module is `Conv1D`"


def make_run(db, home, model, **settings):
    """A run of the model with a checkpoint of step 2. Returns its id."""
    backbone = load_backbone(str(model), device="cpu", dtype=torch.float32)
    adapters = tiny_models.adapters_of(backbone, "policy")
    texts = [("the cat", "train"), ("moon", "eval")]
    project = projects.create_project(db, "p", str(model), backbone.digest, "mine", 0, texts, **settings)
    pinned = LabelSnapshot((1, 2, 3), "d" * 64, Source.SIMULATED)
    row = add_reward_model(db, project.id, "reward_models/1", config={}, report={"accuracy": 0.75}, snapshot=pinned)
    run = create_run(db, project.id, row.id, "mine", config={"algorithm": "ppo"}, manifest={}, total_steps=9)
    tiny_models.disturb(adapters, "policy", 2)
    save_checkpoint(home / "runs" / str(run.id), adapters, "policy", {"value": torch.zeros(1)}, {"step": 2})
    record_step(db, run.id, StepResult(2, {"objective/kl": 3.456, "objective/scores": 1.25}, [], []))
    return run.id


def adapter_folder(home, run_id):
    return checkpoint_folder(home / "runs" / str(run_id), 2)


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits[0].double()


def load(folder, **kwargs):
    return AutoModelForCausalLM.from_pretrained(folder, **kwargs)


def in_peft(home, run_id, model):
    return PeftModel.from_pretrained(load(model, dtype=torch.float32), str(adapter_folder(home, run_id)))


def save_variant(kind, folder):
    if kind == "gpt2":
        return tiny_models.save_gpt2(folder)
    tiny_models.save_llama(folder, tie_word_embeddings=kind != "own vocabulary head")
    if kind == "several files":
        load(folder).save_pretrained(folder, max_shard_size="20KB")
        (folder / "model.safetensors").unlink()
        assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


@pytest.mark.filterwarnings(GPT2_NOTE)
@pytest.mark.parametrize("kind", ["tied", "own vocabulary head", "several files", "gpt2"])
def test_the_folder_computes_what_base_and_adapter_compute(db, home, out, tmp_path, kind):
    model = save_variant(kind, tmp_path / "base")
    run_id = make_run(db, home, model)
    folder = export_model(db, home, run_id, out)
    assert folder == out / f"run-{run_id}-step-000002-model"
    merged = load(folder, dtype=torch.float32)
    torch.testing.assert_close(logits(merged), logits(in_peft(home, run_id, model)), rtol=0.0, atol=2e-5)
    assert (logits(merged) - logits(load(model, dtype=torch.float32))).abs().max() > 0.01
    is_tied = merged.get_output_embeddings().weight is merged.get_input_embeddings().weight
    assert is_tied == (kind != "own vocabulary head")


@pytest.mark.filterwarnings(GPT2_NOTE)
def test_square_weights_of_gpt2_are_transposed_too(db, home, out, tmp_path):
    """attn.c_proj is (32, 32), stored as (in, out), which the shape does not show."""
    model = tiny_models.save_gpt2(tmp_path / "base")
    run_id = make_run(db, home, model)
    merged, expected = load(export_model(db, home, run_id, out)), in_peft(home, run_id, model).merge_and_unload()
    name = "transformer.h.1.attn.c_proj.weight"
    weight = merged.state_dict()[name]
    assert weight.shape[0] == weight.shape[1]
    torch.testing.assert_close(weight, expected.state_dict()[name])


@pytest.mark.filterwarnings(GPT2_NOTE)
def test_names_without_the_models_own_prefix(db, home, out, tmp_path):
    """The files of GPT-2 on the Hub name a weight h.0.…; in the model it is transformer.h.0.…"""
    model = tiny_models.save_gpt2(tmp_path / "base")
    path = model / "model.safetensors"
    save_file({k.removeprefix("transformer."): v for k, v in load_file(path).items()}, path, {"format": "pt"})
    run_id = make_run(db, home, model)
    merged = load(export_model(db, home, run_id, out), dtype=torch.float32)
    torch.testing.assert_close(logits(merged), logits(in_peft(home, run_id, model)), rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_keep_the_dtype_of_the_files(db, home, out, tmp_path, dtype):
    """Sums are taken in float32 (float64: in that) and rounded once, as PyTorch rounds."""
    model = tiny_models.save_llama(tmp_path / "base")
    load(model).to(dtype).save_pretrained(model)
    run_id = make_run(db, home, model)
    stored = load_file(export_model(db, home, run_id, out) / "model.safetensors")
    base, adapter = (
        load_file(model / "model.safetensors"),
        load_file(adapter_folder(home, run_id) / "adapter_model.safetensors"),
    )
    config = json.loads((adapter_folder(home, run_id) / "adapter_config.json").read_text())
    prefix = f"base_model.model.{ADAPTED.removesuffix('.weight')}"
    change = (
        adapter[f"{prefix}.lora_B.weight"] @ adapter[f"{prefix}.lora_A.weight"] * config["lora_alpha"] / config["r"]
    )
    exact = base[ADAPTED].double() + change.double()
    assert stored[ADAPTED].dtype == dtype
    difference = (stored[ADAPTED].double() - exact).abs()
    half_steps = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 2.0**-23}[dtype]
    assert (difference <= 1.01 * half_steps * exact.abs() + 1e-7).all()
    norm = "model.layers.0.input_layernorm.weight"
    assert torch.equal(stored[norm], base[norm])


def test_tokenizer_template_and_sampling_settings(db, home, out, tmp_path):
    """The tokenizer's files are the base's; the temperature is the project's, from the whole vocabulary."""
    model = tiny_models.save_llama(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    tokenizer.save_pretrained(model)
    run_id = make_run(db, home, model)
    projects.set_temperature(db, 1, 0.7)
    folder = export_model(db, home, run_id, out)
    messages = [{"role": "user", "content": "the cat"}]
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded.apply_chat_template(messages, tokenize=False) == "the cat "
    assert loaded("the cat sat").input_ids == tokenizer("the cat sat").input_ids
    settings = load(folder).generation_config
    assert (settings.do_sample, settings.temperature, settings.top_k, settings.top_p) == (True, 0.7, 0, 1.0)


def test_the_card_states_data_method_and_kl(db, home, out, tmp_path):
    chat = ChatSettings("Answer briefly.")
    run_id = make_run(db, home, tiny_models.save_llama(tmp_path / "base"), chat=chat)
    card = (export_model(db, home, run_id, out) / "README.md").read_text()
    assert "trained with PPO" in card
    assert "3 simulated labels (by a program, not by people)" in card
    assert "75.0% (cross-validated)" in card
    assert "| KL to the base, on the step's responses | 3.46 nats per response |" in card
    assert "| score of the step's responses | 1.25 sd of the base's |" in card
    assert "held-out" not in card  # metrics that were not measured are not in the table
    assert 'system prompt: "Answer briefly."' in card


@pytest.mark.slow
def test_the_code_of_the_card_runs(db, home, out, tmp_path):
    run_id = make_run(db, home, tiny_models.save_llama(tmp_path / "base"))
    folder = export_model(db, home, run_id, out)
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    code = code.replace("Say hello.", "the cat").replace("max_new_tokens=64", "max_new_tokens=8")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the cat")


def test_the_base_must_be_the_one_that_was_trained(db, home, out, tmp_path):
    model = tiny_models.save_llama(tmp_path / "base")
    run_id = make_run(db, home, model)
    tiny_models.save_llama(model, seed=1)
    with pytest.raises(StoreError, match="are not those that run 1 trained"):
        export_model(db, home, run_id, out)
    assert not out.exists()


def test_a_base_whose_files_name_other_weights(db, home, out, tmp_path, monkeypatch):
    model = tiny_models.save_llama(tmp_path / "base")
    run_id = make_run(db, home, model)
    path = model / "model.safetensors"
    save_file({name.replace("q_proj", "query"): tensor for name, tensor in load_file(path).items()}, path)
    monkeypatch.setattr(merged_model, "weights_digest", lambda folder: projects.get_project(db, 1).model_hash)
    with pytest.raises(
        StoreError, match=r"have no weight model\.layers\.0\.self_attn\.q_proj\.weight in floating point"
    ):
        export_model(db, home, run_id, out)
    assert not out.exists()


def test_the_command_and_the_hub(db, home, out, tmp_path, monkeypatch, capsys):
    run_id = make_run(db, home, tiny_models.save_llama(tmp_path / "base"))
    hub = UploadHub(monkeypatch)
    command = ["export", "model", str(run_id), "--home", str(home), "--out", str(out), "--push", "ann/model"]
    assert main(command) == 0
    (_, name, settings), (_, _, files) = hub.calls
    assert (name, settings["repo_type"], settings["private"]) == ("ann/model", "model", True)
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(files)
    assert capsys.readouterr().out.strip() == "https://huggingface.co/ann/model"

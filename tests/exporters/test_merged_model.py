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
from rlhf_lab.common.model_folder import check_model_folder
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


def make_run(db, home, model, temperature=1.0, factor=1.0, **settings):
    """A run of the model with a checkpoint of step 2. Returns its id. factor: of the adapter's weights."""
    backbone = load_backbone(str(model), device="cpu", dtype=torch.float32)
    adapters = tiny_models.adapters_of(backbone, "policy")
    texts = [("the cat", "train"), ("moon", "eval")]
    project = projects.create_project(db, "p", str(model), backbone.digest, "mine", 0, texts, **settings)
    pinned = LabelSnapshot((1, 2, 3), "d" * 64, Source.SIMULATED)
    row = add_reward_model(db, project.id, "reward_models/1", config={}, report={"accuracy": 0.75}, snapshot=pinned)
    run = create_run(
        db,
        project.id,
        row.id,
        "mine",
        config={"algorithm": "ppo", "temperature": temperature},
        manifest={},
        total_steps=9,
    )
    tiny_models.disturb(adapters, "policy", 2)
    with torch.no_grad():
        for parameter in adapters.parameters("policy"):
            parameter.mul_(factor)
    tensors = {f"adapter.{name}": tensor for name, tensor in adapters.tensors("policy").items()}
    save_checkpoint(home / "runs" / str(run.id), adapters, "policy", tensors, {"step": 2})
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


def test_tokenizer_and_template_are_those_of_the_base(db, home, out, tmp_path):
    model = tiny_models.save_llama(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    tokenizer.save_pretrained(model)
    folder = export_model(db, home, make_run(db, home, model), out)
    messages = [{"role": "user", "content": "the cat"}]
    loaded = AutoTokenizer.from_pretrained(folder)
    assert loaded.apply_chat_template(messages, tokenize=False) == "the cat "
    assert loaded("the cat sat").input_ids == tokenizer("the cat sat").input_ids


# ---- the files that transformers loads

WRITTEN = {"Modelfile", "README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}


def add_other_files(model):
    """Weights that transformers does not load, before and after model.safetensors in the order of names."""
    weights = load_file(model / "model.safetensors")
    for name in ("a.safetensors", "consolidated.safetensors", "model.fp16.safetensors", "model_copy.safetensors"):
        save_file(weights, model / name)
    for name in ("pytorch_model.bin", "params.json", "trainer_state.json", "adapter/adapter_config.json"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text("{}")
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}  # of files that are gone
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def test_only_the_files_that_transformers_loads_are_changed_and_copied(db, home, out, tmp_path, names):
    model = tiny_models.save_llama(tmp_path / "base")
    parameters = check_model_folder("base", model).parameters
    add_other_files(model)
    assert check_model_folder("base", model).parameters == parameters
    run_id = make_run(db, home, model)
    folder = export_model(db, home, run_id, out)
    assert set(names(folder)) == WRITTEN | {"model.safetensors"}
    merged = logits(load(folder, dtype=torch.float32))
    torch.testing.assert_close(merged, logits(in_peft(home, run_id, model)), rtol=0.0, atol=2e-5)


def test_files_beside_the_shards_are_left_out(db, home, out, tmp_path, names):
    model = save_variant("several files", tmp_path / "base")
    shards = {path.name for path in model.glob("*.safetensors")}
    save_file({ADAPTED: torch.zeros(32, 32)}, model / "model-00099-of-00099.safetensors")
    run_id = make_run(db, home, model)
    folder = export_model(db, home, run_id, out)
    assert set(names(folder)) == WRITTEN | shards | {"model.safetensors.index.json"}
    merged = logits(load(folder, dtype=torch.float32))
    torch.testing.assert_close(merged, logits(in_peft(home, run_id, model)), rtol=0.0, atol=2e-5)


def test_a_weight_file_with_another_name(db, home, out, tmp_path, names):
    """config.json may name it; a file model.safetensors is then ignored."""
    model = tiny_models.save_llama(tmp_path / "base")
    (model / "model.safetensors").rename(model / "weights.safetensors")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"transformers_weights": "weights.safetensors"}))
    save_file({ADAPTED: torch.zeros(32, 32)}, model / "model.safetensors")
    run_id = make_run(db, home, model)
    folder = export_model(db, home, run_id, out)
    assert set(names(folder)) == WRITTEN | {"weights.safetensors"}
    merged = logits(load(folder, dtype=torch.float32))
    torch.testing.assert_close(merged, logits(in_peft(home, run_id, model)), rtol=0.0, atol=2e-5)


def test_a_tensor_in_two_files_is_refused(db, home, out, tmp_path):
    model = save_variant("several files", tmp_path / "base")
    shards = sorted(model.glob("*.safetensors"))
    twice = next(iter(load_file(shards[0])))
    save_file(load_file(shards[1]) | {twice: load_file(shards[0])[twice]}, shards[1], {"format": "pt"})
    run_id = make_run(db, home, model)
    with pytest.raises(StoreError, match=rf"The tensor {twice} is in {shards[0].name} and in {shards[1].name}\."):
        export_model(db, home, run_id, out)
    assert not out.exists()


# ---- sampling

NOT_NEUTRAL = {
    "repetition_penalty": 1.3, "min_p": 0.2, "no_repeat_ngram_size": 2, "num_beams": 3, "max_length": 9, "top_k": 3,
    "top_p": 0.5, "typical_p": 0.5, "suppress_tokens": [20], "length_penalty": 2.0, "forced_eos_token_id": 0,
    "exponential_decay_length_penalty": [1, 2.0], "temperature": 0.1, "do_sample": False,
}  # fmt: skip


def check_generates_as_trained(folder, temperature):
    """What `generate` samples from are the model's logits over the run's temperature, without other processors."""
    model = load(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)
    made = model.generate(
        IDS[:, :3], max_new_tokens=8, return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    assert len(made.scores) > 1
    for scores, raw in zip(made.scores, made.logits, strict=True):
        assert scores.shape == (1, len(tiny_models.WORDS))
        torch.testing.assert_close(scores, raw / temperature, rtol=1e-6, atol=1e-6)
    assert made.sequences[0, 3:].tolist() != [int(step.argmax()) for step in made.logits]


def test_generate_samples_what_the_run_learned(db, home, out, tmp_path):
    """At the temperature of the run, not of the project; also fields that no version of transformers knows yet are left out."""
    model = tiny_models.save_llama(tmp_path / "base")
    unknown = {"penalty_of_the_future": 3.0, "transformers_version": "4.0.0", "bos_token_id": 1, "pad_token_id": 2}
    tiny_models.set_generation_config(model, **NOT_NEUTRAL, **unknown, eos_token_id=[tiny_models.STOP])
    run_id = make_run(db, home, model, temperature=0.5)
    folder = export_model(db, home, run_id, out)
    assert json.loads((folder / "generation_config.json").read_text()) == {
        "bos_token_id": 1, "eos_token_id": [tiny_models.EOS, tiny_models.STOP], "pad_token_id": 2,
        "do_sample": True, "temperature": 0.5, "top_k": 0, "top_p": 1.0,
    }  # fmt: skip
    check_generates_as_trained(folder, 0.5)


@pytest.mark.filterwarnings(GPT2_NOTE)
def test_settings_in_the_config_of_an_older_model(db, home, out, tmp_path):
    """Without a generation_config.json, transformers reads them, and the token ids, from config.json."""
    model = tiny_models.save_gpt2(tmp_path / "base")
    (model / "generation_config.json").unlink()
    config = json.loads((model / "config.json").read_text())
    of_pipelines = {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}
    (model / "config.json").write_text(json.dumps(config | NOT_NEUTRAL | of_pipelines | {"eos_token_id": 4}))
    run_id = make_run(db, home, model, temperature=0.7)
    folder = export_model(db, home, run_id, out)
    assert load_backbone(str(model)).eos_ids == (tiny_models.EOS, 4)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [tiny_models.EOS, 4]
    assert "task_specific_params" not in json.loads((folder / "config.json").read_text())
    check_generates_as_trained(folder, 0.7)


# ---- rounding


def in_bfloat16(folder):
    model = tiny_models.save_llama(folder)
    load(model).to(torch.bfloat16).save_pretrained(model)
    return model


def test_the_card_states_what_rounding_lost(db, home, out, tmp_path):
    """An adapter whose updates are about as large as the distance between two numbers in bfloat16."""
    model = in_bfloat16(tmp_path / "base")
    run_id = make_run(db, home, model, factor=0.06)
    notes = []
    folder = export_model(db, home, run_id, out, on_note=notes.append)
    base = load(model, dtype=torch.float64).state_dict()
    exact = PeftModel.from_pretrained(load(model, dtype=torch.float64), str(adapter_folder(home, run_id)))
    exact = exact.merge_and_unload().state_dict()
    merged = load(folder, dtype=torch.float64).state_dict()
    changed = [name for name in base if "_proj" in name]
    error, update = (
        sum(float((first[name] - second[name]).square().sum()) for name in changed) ** 0.5
        for first, second in ((merged, exact), (exact, base))
    )
    share = error / update
    assert 0.3 < share < 0.9
    stated = re.search(r"\| rounding of the merged weights \| ([\d.]+)% of the update .* in bfloat16\)", card(folder))[
        1
    ]
    assert float(stated) == pytest.approx(100 * share, abs=0.1)
    (note,) = notes
    assert f"to bfloat16 changed the run's update by {share:.0%}" in note


def card(folder):
    return (folder / "README.md").read_text()


@pytest.mark.parametrize("kind", ["one file", "several files", "a config without dtype"])
def test_float32_keeps_the_changed_weights_exact(db, home, out, tmp_path, capsys, kind):
    """The other weights stay in bfloat16, which loses nothing. Both exports are made by the command."""
    model = in_bfloat16(tmp_path / "base")
    if kind == "several files":
        load(model).save_pretrained(model, max_shard_size="20KB")
        (model / "model.safetensors").unlink()
    if kind == "a config without dtype":
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key != "dtype"}))
    run_id = make_run(db, home, model, factor=0.06)
    command = ["export", "model", str(run_id), "--home", str(home), "--out", str(out)]
    assert main([*command, "--dtype", "float32"]) == 0
    assert "Rounding" not in capsys.readouterr().err
    folder = out / f"run-{run_id}-step-000002-model"
    assert "| 0.0% of the update" in card(folder)
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert merged.dtype == torch.float32
    torch.testing.assert_close(logits(merged), logits(in_peft(home, run_id, model)), rtol=0.0, atol=2e-5)
    stored = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert (stored[ADAPTED].dtype, stored["model.norm.weight"].dtype) == (torch.float32, torch.bfloat16)
    if kind == "several files":
        total = json.loads((folder / "model.safetensors.index.json").read_text())["metadata"]["total_size"]
        assert total == sum(tensor.nbytes for tensor in stored.values())
    assert main([*command, "--force"]) == 0
    assert "Rounding the merged weights to bfloat16 changed" in capsys.readouterr().err


def test_the_card_states_data_method_and_kl(db, home, out, tmp_path):
    chat = ChatSettings("Answer briefly.")
    run_id = make_run(db, home, tiny_models.save_llama(tmp_path / "base"), chat=chat)
    text = card(export_model(db, home, run_id, out))
    assert "trained with PPO" in text
    assert "3 simulated labels (by a program, not by people)" in text
    assert "75.0% (cross-validated)" in text
    assert "| KL to the base, on the step's responses | 3.46 nats per response |" in text
    assert "| score of the step's responses | 1.25 sd of the base's |" in text
    assert "held-out" not in text  # metrics that were not measured are not in the table
    assert 'the system prompt `"Answer briefly."` before each prompt' in text
    assert "SYSTEM = 'Answer briefly.'" in text


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

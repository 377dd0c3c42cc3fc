"""Inspection of a model before it is loaded: local folders, a fake Hub, and all unusable models."""

import json
import os
import re
import subprocess
import sys

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from support.fake_hub import CONFIG, FakeHub, model, safetensors

from rlhf_lab.common.model_folder import WEIGHT_INDEX_FILE, count_parameters
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.model_inspection import inspect_model

NAME = "someone/small"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    result = FakeHub(tmp_path / "cache").use(monkeypatch)
    result.models[NAME] = model(tmp_path / "remote")
    return result


@pytest.mark.skipif(os.name != "posix", reason="other systems have no pipes")
@pytest.mark.parametrize("file", ["generation_config.json", "tokenizer_config.json", "chat_template.jinja", "notes"])
def test_a_pipe_in_a_folder_is_not_opened(tmp_path, file):
    folder = model(tmp_path / "m")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(ModelError, match=rf"{file}: it is a pipe, not a file"):
        inspect_model(str(folder))


def answer(status):
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid"))


def test_a_folder(tmp_path):
    facts = inspect_model(str(model(tmp_path / "m")))
    assert (facts.architecture, facts.parameters, facts.files_to_download) == (
        "LlamaForCausalLM",
        100 * 8 + 10 * 20 + 1,
        (),
    )
    assert facts.name == str(tmp_path / "m")
    assert facts.folder == tmp_path / "m"


def test_the_embedded_model():
    facts = inspect_model(" embedded ")
    assert facts.name == "embedded"
    assert 1_000_000 < facts.parameters < 20_000_000


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (False, 1.0, "tales")),
        ({"chat_template.jinja": "{{ messages }}"}, (True, 0.7, "everyday")),
        ({"tokenizer_config.json": '{"chat_template": "{{ messages }}"}'}, (True, 0.7, "everyday")),
        ({"tokenizer_config.json": '{"chat_template": null}'}, (False, 1.0, "tales")),
        ({"chat_template.jinja": "", "generation_config.json": '{"temperature": 0.6}'}, (True, 0.6, "everyday")),
        ({"generation_config.json": '{"temperature": 0.9}'}, (False, 0.9, "tales")),
        ({"generation_config.json": '{"temperature": 0.0}'}, (False, 1.0, "tales")),  # no sampling
        ({"chat_template.jinja": "", "generation_config.json": '{"temperature": 2}'}, (True, 0.7, "everyday")),
        ({"generation_config.json": '{"temperature": "hot"}'}, (False, 1.0, "tales")),
        ({"generation_config.json": "[0.5]", "tokenizer_config.json": "{"}, (False, 1.0, "tales")),
    ],
)
def test_prompts_and_temperature_that_suit_a_model(tmp_path, hub, files, expected):
    for folder in (model(tmp_path / "m"), tmp_path / "remote"):
        for name, content in files.items():
            (folder / name).write_text(content)
    for facts in (inspect_model(str(tmp_path / "m")), inspect_model(NAME)):
        assert (facts.has_chat_template, facts.temperature, facts.prompt_set) == expected


def test_a_real_folder_counts_what_torch_counts(gpt2_folder):
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        loaded = AutoModelForCausalLM.from_pretrained(gpt2_folder)
    assert inspect_model(str(gpt2_folder)).parameters == sum(p.numel() for p in loaded.parameters())


def make_sharded(folder, index: str) -> None:
    """Weights that transformers finds by the index, because there is no model.safetensors."""
    (folder / "model.safetensors").rename(folder / "first.safetensors")
    (folder / WEIGHT_INDEX_FILE).write_text(index)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read"),
        (lambda f: (f / "config.json").write_text("[" * 100_000), "cannot be read \\(it is nested too deeply\\)"),
        (lambda f: (f / "config.json").write_text("[]"), "no settings"),
        (lambda f: (f / "config.json").write_text('{"architectures": 5}'), "no architecture"),
        (lambda f: (f / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}'), "BertForMaskedLM, not a causal"),
        (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda f: (f / "model.safetensors").unlink(), "no \\*.safetensors"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickle files"),
        (lambda f: (f / "model.safetensors").write_bytes(b"short"), "damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "longer than the file"),
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-4]), "should have"),
        (lambda f: make_sharded(f, '{"weight_map": {"a": "model-2.safetensors"}}'), "model-2.safetensors"),
        (lambda f: make_sharded(f, "{}"), "KeyError"),
    ],
)  # fmt: skip
def test_a_folder_that_is_no_usable_model(tmp_path, damage, match):
    folder = model(tmp_path / "m")
    damage(folder)
    with pytest.raises(ModelError, match=match):
        inspect_model(str(folder))


def test_a_sharded_model_is_the_sum_of_its_files(tmp_path):
    folder = model(tmp_path / "m")
    safetensors(folder / "second.safetensors", [3, 3])
    make_sharded(folder, json.dumps({"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}))
    assert inspect_model(str(folder)).parameters == 1001 + 9


def test_an_empty_tensor_file(tmp_path):
    safetensors(tmp_path / "none.safetensors")
    assert count_parameters(tmp_path / "none.safetensors") == 0


@pytest.mark.parametrize("name", ["", "a b", "/no/such/folder", "./here", "~/there", "a/b/c", "C:\\model", "-x/y"])
def test_what_is_neither_a_folder_nor_an_id(name, hub):
    with pytest.raises(ModelError, match="neither a folder nor a Hub id"):
        inspect_model(name)
    assert hub.asked == []


def test_a_hub_id_says_what_has_to_be_downloaded(hub, tmp_path):
    (tmp_path / "remote" / "onnx").mkdir()
    (tmp_path / "remote" / "onnx" / "config.json").write_text("{}")
    (tmp_path / "remote" / "README.md").write_text("hello")
    (tmp_path / "remote" / "notes.md").write_text("no file that the lab needs")
    facts = inspect_model(NAME)
    assert [name for name, _ in facts.files_to_download] == [
        "README.md", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert facts.download_bytes == sum(
        (tmp_path / "remote" / name).stat().st_size for name, _ in facts.files_to_download
    )
    assert (facts.parameters, facts.folder) == (1001, None)


def test_a_cached_hub_model_needs_no_request(hub):
    model(hub.folder(NAME) / "snapshots" / "abc123")
    facts = inspect_model(NAME)
    assert (facts.name, facts.files_to_download, hub.asked) == (NAME, (), [])
    assert facts.folder == hub.folder(NAME) / "snapshots" / "abc123"


def test_a_partly_cached_hub_model_needs_a_request(hub):
    (model(hub.folder(NAME) / "snapshots" / "abc123") / "tokenizer.json").unlink()
    assert inspect_model(NAME).files_to_download
    assert hub.asked == [NAME]


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (GatedRepoError("no", response=answer(403)), "gated"),
        (RepositoryNotFoundError("no", response=answer(404)), "no model"),
        (httpx.ConnectError("no route"), "cannot be reached .*local folder, or use the embedded"),
        (OSError("no name"), "cannot be reached"),
    ],
)
def test_errors_of_the_hub(hub, error, match):
    hub.error = error
    with pytest.raises(ModelError, match=match):
        inspect_model(NAME)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickle"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (lambda f: (f / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["T5Model"]})), "T5Model"),
    ],
)
def test_a_hub_model_of_the_wrong_kind(hub, tmp_path, damage, match):
    damage(tmp_path / "remote")
    with pytest.raises(ModelError, match=match):
        inspect_model(NAME)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"hidden_size": 10**400}, f"hidden_size = {'1' + 39 * '0'}, which is not a number that a model can use"),
        ({"hidden_size": -(2**63)}, "hidden_size = -9223372036854775808, which"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan, which"),
        ({"rms_norm_eps": float("-inf")}, "rms_norm_eps = -inf, which"),
        ({"rms_norm_eps": {"__float__": "Infinity"}}, "rms_norm_eps = inf, which"),
        (
            {"rope_parameters": {"full": {"factors": [1.0, [float("nan")]]}}},
            "rope_parameters.full.factors = nan, which",
        ),
        ({"time_step_limit": [{"limit": float("inf")}]}, "time_step_limit.limit = inf, which"),
        ({"bos_token": "\ud800"}, "its config.json cannot be read ("),
        ({"text_config": {"name": "x" * 10**7}}, "its config.json cannot be read (it has more than 10,000,000 bytes)"),
    ],
)
@pytest.mark.parametrize("is_on_hub", [False, True])
def test_a_value_that_no_setting_can_have_is_refused_with_its_field(tmp_path, hub, change, cause, is_on_hub):
    folder = model(tmp_path / "m", CONFIG | change)
    hub.models["someone/odd"] = folder
    with pytest.raises(ModelError, match=re.escape(cause)):
        inspect_model("someone/odd" if is_on_hub else str(folder))


def test_a_list_of_limits_may_have_no_upper_one(tmp_path):
    config = CONFIG | {"time_step_limit": [0.0, float("inf")], "other_limit": [{"__float__": "Infinity"}]}
    assert inspect_model(str(model(tmp_path / "m", config))).parameters == 1001


@pytest.mark.parametrize("is_on_hub", [False, True])
def test_a_config_of_many_brackets_is_unreadable(tmp_path, hub, is_on_hub):
    folder = model(tmp_path / "m")
    (folder / "config.json").write_text('{"a": ' + "[" * 100_000)
    hub.models["someone/odd"] = folder
    with pytest.raises(ModelError, match=r"its config.json cannot be read \(it is nested too deeply"):
        inspect_model("someone/odd" if is_on_hub else str(folder))


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ("{{ [1] * 10**10 }}", "it needs more than 1,024 MB of memory"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "its calls or values are nested without an end"),
    ],
)
def test_a_template_that_exceeds_a_limit_is_refused_at_the_inspection(tmp_path, template, cause):
    folder = model(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=f"{folder}: its chat template cannot be used: {cause}"):
        inspect_model(str(folder))
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "tool_use", "template": ""}, {"name": "default", "template": template}]})
    )
    with pytest.raises(ModelError, match=f"its chat template cannot be used: {cause}"):
        inspect_model(str(folder))


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('The system speaks first.') }}", "{% for m in", "{{ 1 // 0 }}"]
)
def test_a_template_that_refuses_the_conversation_of_the_trial_is_accepted(tmp_path, template):
    folder = model(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    assert inspect_model(str(folder)).has_chat_template


def test_the_hubs_client_brings_no_torch():
    script = (
        "import sys; from rlhf_lab.jobs.model_inspection import inspect_model;"
        "from rlhf_lab.jobs import hub_download, memory_estimate;"
        "inspect_model('embedded'); memory_estimate.detect_device(); hub_download.cached_bytes('a/b');"
        "from huggingface_hub import HfApi, get_safetensors_metadata, hf_hub_download, snapshot_download;"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'transformers', 'peft'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

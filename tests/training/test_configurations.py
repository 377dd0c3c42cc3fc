"""A config.json with wrong values is refused with a sentence, or the model loads: never another error, or an endless trial.

The wrong values are generated for every field of the configurations of families of the tests, and of real models.
"""

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import model_families
from transformers import LlamaConfig

from rlhf_lab.common.model_folder import check_model_folder
from rlhf_lab.errors import ModelError
from rlhf_lab.jobs.model_inspection import inspect_model
from rlhf_lab.models.backbone import configuration, load_backbone
from rlhf_lab.training import trial_process
from rlhf_lab.training.model_trial import check_configuration, load_tried_backbone, try_model

FAMILIES = ("llama", "gpt2", "gemma3", "falcon_h1", "qwen3_moe", "mpt")
REAL = [
    Path(os.environ.get("RLHF_LAB_REAL", "")) / "models" / "stories260K-hf",
    Path(os.environ.get("RLHF_LAB_SMOLLM2", "")),
]
SOURCES = [*FAMILIES, *(str(path) for path in REAL if (path / "config.json").is_file())]
WRONG = (
    None, True, False, "", "x", "\ud800", -1, 0, 1, 2, 3, 10**6, 10**30, -1.5, 0.5, 1e9, 1e-300, float("nan"), float("inf"),
    [], [0], [1, 2], ["x", None], [[float("nan")]], {}, {"a": 1}, {"rope_type": "yarn"}, {"full_attention": {"factor": "x"}},
    {"__float__": "NaN"},
)  # fmt: skip
SAMPLE_SIZE = 20


def changes(config, path=()):
    """Every field, at any depth, and each wrong value for it."""
    for key, value in config.items():
        yield from (((*path, key), wrong) for wrong in WRONG)
        if isinstance(value, dict):
            yield from changes(value, (*path, key))


def changed(config, path, value):
    config = copy.deepcopy(config)
    fields = config
    for key in path[:-1]:
        fields = fields[key]
    fields[path[-1]] = value
    return config


@pytest.fixture(scope="module", params=SOURCES)
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m"
    if request.param in FAMILIES:
        return model_families.save(request.param, path)
    return Path(shutil.copytree(request.param, path))


def tried(folder):
    """What the page and the process of the trial do, without the process; then the model is loaded."""
    checked = check_model_folder("NAME", folder)
    config = configuration("NAME", folder)
    check_configuration("NAME", config, checked.parameters)
    if try_model("NAME", config):
        load_backbone(str(folder), device="cpu")


def check_changes(folder, sample_size=None):
    tried(folder)  # as it was saved
    original = (folder / "config.json").read_text()
    candidates = list(changes(json.loads(original)))
    if sample_size is not None:
        candidates = random.Random(57).sample(candidates, sample_size)
    count = 0
    for path, value in candidates:
        (folder / "config.json").write_text(json.dumps(changed(json.loads(original), path, value)))
        try:
            tried(folder)
        except ModelError as error:
            count += 1
            message = str(error)
            assert message.isprintable(), message
            assert message.endswith((".", "folder)'")), message
            assert len(message) < 600, message
        except Exception as error:
            raise AssertionError(f"{path} = {value!r}") from error
    (folder / "config.json").write_text(original)
    return count / len(candidates)


@pytest.mark.filterwarnings("ignore")
def test_wrong_values_are_refused_with_a_sentence_or_the_model_loads(folder):
    assert check_changes(folder, SAMPLE_SIZE) > 0.3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_wrong_value_is_refused_with_a_sentence_or_the_model_loads(folder):
    assert 0.3 < check_changes(folder) < 1


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"rms_norm_eps": "x"}, "cannot be read .*Field 'rms_norm_eps' expected float, got str"),
        ({"rms_norm_eps": -1.0}, "it computes numbers that are not finite"),
        ({"head_dim": 0}, "no model can be made of its config.json"),
        ({"num_attention_heads": 0}, r"cannot be read \(ZeroDivisionError: "),
        ({"vocab_size": 2**40}, r"a model of more than \d.* parameters, and its weight files hold "),
        ({"num_hidden_layers": 10**9}, r"a model of more than \d.* parameters, and its weight files hold "),
        ({"num_hidden_layers": 3}, r"a model of \d.* parameters, and its weight files hold "),
        ({"num_hidden_layers": -1}, "num_hidden_layers = -1, which is less than 1"),
        ({"max_position_embeddings": 0}, "max_position_embeddings = 0, which is less than 1"),
        ({"hidden_act": "none"}, "no model can be made of its config.json .*none"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": "x"}}, "no model can be made|cannot be read"),
    ],
)
def test_the_cause_is_named(llama_copy, change, cause):
    edit(llama_copy, **change)
    with pytest.raises(ModelError, match=cause):
        tried(llama_copy)


def edit(folder, **change):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_model_may_have_fewer_parameters_than_its_files():
    check_configuration("NAME", LlamaConfig(num_hidden_layers=1), 7_000_000_000)


@pytest.mark.trial
def test_page_and_engine_refuse_an_endless_configuration(tmp_path, monkeypatch):
    """The class of Qwen2 itself makes a list with an entry for each layer."""
    monkeypatch.setattr(trial_process, "TIME_LIMIT_S", 1)
    folder = model_families.save("qwen2", tmp_path / "m")
    edit(folder, num_hidden_layers=10**12, layer_types=None)
    with pytest.raises(ModelError, match=r"(4 GB of memory|1 s of computing)\."):
        load_tried_backbone(str(folder), device="cpu")
    with pytest.raises(ModelError, match=r"(4 GB of memory|1 s of computing)\."):
        inspect_model(str(folder))


def test_a_long_computation_ends_the_process():
    code = "from rlhf_lab.training import model_trial\nmodel_trial._limit_process(0.2)\nsum(range(10**12))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGPROF


@pytest.fixture
def process(monkeypatch, tmp_path):
    """A function (result of subprocess.run, or error). Its list `calls` grows with each process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trial_process._outcome.cache_clear()
    monkeypatch.setattr(trial_process.subprocess, "run", lambda *_, **__: run())

    def run():
        result.calls.append(1)
        if isinstance(result.outcome, Exception):
            raise result.outcome
        return result.outcome

    class result:
        calls, outcome = [], None

    return result


def completed(status, output=""):
    return subprocess.CompletedProcess([], status, output, "")


@pytest.mark.trial
@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (-signal.SIGPROF, "cannot be tried in 60 s of computing"),
        (-signal.SIGKILL, "cannot be tried in 4 GB of memory"),
        (-signal.SIGSEGV, "ended the process of its trial"),
    ],
)
def test_a_process_that_a_limit_ends_is_a_refusal(process, status, cause):
    process.outcome = completed(status)
    with pytest.raises(ModelError, match=f"NAME: its config.json describes a model that {cause}"):
        trial_process.try_configuration("NAME", {}, 1)


@pytest.mark.trial
@pytest.mark.parametrize(
    "outcome", [OSError("none left"), subprocess.TimeoutExpired([], 600), completed(1), completed(0, "[]")]
)
def test_a_trial_that_fails_itself_is_left_to_the_loaded_model(process, outcome):
    process.outcome = outcome
    assert trial_process.try_configuration("NAME", {}, 1) is False


@pytest.mark.trial
def test_an_accepted_configuration_is_remembered_on_the_machine(process):
    def outcome(config, parameters):
        trial_process._outcome.cache_clear()  # as another process
        return trial_process.try_configuration("NAME", config, parameters)

    process.outcome = completed(0, 'a line of a library\n{"outcome": true}\n')
    assert [outcome({"a": 1, "b": 2}, 7), outcome({"b": 2, "a": 1}, 7)] == [True, True]
    assert len(process.calls) == 1
    outcome({"a": 1, "b": 2}, 8)
    outcome({"a": 2, "b": 2}, 7)
    assert len(process.calls) == 3
    process.outcome = completed(0, '{"outcome": "NAME: no."}')
    for count in (4, 5):  # a refusal may have had a passing cause
        with pytest.raises(ModelError, match=r"^NAME: no\.$"):
            outcome({}, 1)
        assert len(process.calls) == count

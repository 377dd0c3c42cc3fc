"""A family that works is accepted, one that breaks a kind of pass is refused, and the message names that kind."""

import json
import logging

import pytest
import torch
from support import model_families, tiny_models
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from rlhf_lab.common.model_folder import TESTED_MODEL_TYPES
from rlhf_lab.errors import ModelError
from rlhf_lab.models import small_config
from rlhf_lab.training import model_trial, trial_process
from rlhf_lab.training.model_trial import PASSES, load_tried_backbone, try_backbone, try_model

#: One of each mechanism: state of the text so far, both kinds of cache in one layer, positions by column, streams.
MECHANISMS = ("lfm2", "falcon_h1", "mpt", "gemma3n")


@pytest.fixture(autouse=True)
def every_family_is_tried(monkeypatch):
    monkeypatch.setattr(model_trial, "_limit_process", lambda seconds: None)  # of this process
    monkeypatch.setattr(model_trial, "TESTED_MODEL_TYPES", ())


def refusal(config, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError) as refused:
        try_model("someone/model", config)
    return str(refused.value)


@pytest.mark.parametrize("kind", MECHANISMS)
def test_families_with_unusual_passes_are_accepted(kind):
    assert try_model("m", model_families.config(kind)) is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind for kind in model_families.CONFIGS if kind not in (*MECHANISMS, *model_families.REFUSED)]
)
def test_all_tested_families_are_accepted(kind):
    assert try_model("m", model_families.config(kind)) is True


@pytest.mark.parametrize("kind", model_families.REFUSED)
def test_families_that_transformers_cannot_sample_from_are_refused(kind, caplog):
    message = refusal(model_families.config(kind), caplog)
    assert message.startswith(f"someone/model: models of the type {kind} with its config.json do not work in the lab.")
    assert "writing texts token by token with a cache" in message
    assert "choose a model of another type" in message


class MadeUpConfig(LlamaConfig):
    model_type = "made_up"


class MadeUpTrunk(LlamaModel):
    """Which pass is broken: the attribute `fault`."""

    fault = ""

    def forward(self, input_ids=None, attention_mask=None, past_key_values=None, use_cache=None, **rest):
        if self.fault == "padding at the end" and use_cache is False and len(input_ids) > 1:
            input_ids = input_ids.flip(1)
        if self.fault == "padding at the start":
            attention_mask = None
        if self.fault == "its own cache" and use_cache and past_key_values is not None:
            raise ValueError("only a cache of the class MadeUpCache is accepted")
        if self.fault == "positions in the cache":
            rest["position_ids"] = None if past_key_values is None else torch.zeros_like(input_ids)
        if self.fault == "no gradient" and torch.is_grad_enabled():
            with torch.no_grad():
                return super().forward(
                    input_ids, attention_mask, past_key_values=past_key_values, use_cache=use_cache, **rest
                )
        output = super().forward(
            input_ids, attention_mask, past_key_values=past_key_values, use_cache=use_cache, **rest
        )
        if self.fault == "states" and output.hidden_states is not None:
            output.hidden_states = output.hidden_states[1:]
        if self.fault == "one more dimension" and output.hidden_states is not None:
            output.hidden_states = tuple(states[:, :, None] for states in output.hidden_states)
        return output


class MadeUpForCausalLM(LlamaForCausalLM):
    config_class = MadeUpConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = MadeUpTrunk(config)
        self.post_init()


@pytest.fixture
def made_up(monkeypatch):
    """A function (fault) -> the configuration of a family that nobody named, with 12 layers of 8 heads and its own widths."""
    AutoConfig.register("made_up", MadeUpConfig)
    AutoModelForCausalLM.register(MadeUpConfig, MadeUpForCausalLM)

    def config(fault=""):
        monkeypatch.setattr(MadeUpTrunk, "fault", fault)
        return MadeUpConfig(
            vocab_size=1000, hidden_size=64, intermediate_size=100, num_hidden_layers=12, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=64, eos_token_id=999,
        )  # fmt: skip

    yield config
    CONFIG_MAPPING._extra_content.pop("made_up")
    MODEL_FOR_CAUSAL_LM_MAPPING._extra_content.pop(MadeUpConfig)


def test_a_family_that_nobody_named_is_accepted(made_up):
    assert try_model("m", made_up()) is True


@pytest.mark.parametrize(
    ("fault", "kind", "outcome"),
    [
        ("padding at the end", "reading several texts of different lengths at once", "other numbers"),
        ("padding at the start", "writing after prompts of different lengths at once", "other numbers"),
        ("its own cache", "writing texts token by token with a cache", "failed"),
        ("positions in the cache", "writing texts token by token with a cache", "other numbers"),
        ("states", "reading the states of every layer", "other shapes"),
        ("one more dimension", "reading the states of every layer", "other shapes"),
        ("no gradient", "training an adapter and the head of a reward model", "no gradient"),
    ],
)
def test_each_kind_of_pass_that_a_made_up_family_breaks_is_named(made_up, caplog, fault, kind, outcome):
    message = refusal(made_up(fault), caplog)
    assert "models of the type made_up with its config.json do not work in the lab" in message
    assert f"and {kind} " in message
    assert outcome in message.split(kind)[1]
    assert caplog.records  # with the traceback
    assert caplog.records[0].exc_info


def test_families_of_the_tests_only_read_a_text(made_up, monkeypatch):
    monkeypatch.setattr(model_trial, "TESTED_MODEL_TYPES", ("made_up",))
    assert try_model("m", made_up("its own cache")) is True


def test_a_family_that_needs_another_package(made_up, monkeypatch, tmp_path, capsys):
    def outline(config):
        raise ImportError("\nit requires the package nonesuch\nInstall it")

    monkeypatch.setattr(small_config, "_summarize", outline)
    assert "needs another package for this model (it requires the package nonesuch)." in outcome(
        made_up(), tmp_path, capsys
    )


def test_a_model_of_which_no_small_one_can_be_made_is_tried_itself(llama_folder, monkeypatch, caplog):
    monkeypatch.setattr(model_trial, "small_configs", lambda config: iter(()))
    assert try_model("m", LlamaConfig()) is False
    assert "no small model of the type llama can be made" in caplog.text
    monkeypatch.setattr(trial_process, "_outcome", lambda *_: False)
    backbone = load_tried_backbone(str(llama_folder), device="cpu", dtype=torch.float32)
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    assert not any("lora" in name for name, _ in backbone.model.named_parameters())

    def broken(trial):
        raise RuntimeError("broken")

    monkeypatch.setitem(PASSES, "copying an adapter", broken)
    with pytest.raises(ModelError, match="copying an adapter failed"):
        load_tried_backbone(str(llama_folder), device="cpu", dtype=torch.float32)


def test_a_trial_leaves_the_backbone_as_it_was(llama_folder):
    backbone = tiny_models.load(llama_folder)
    before = tiny_models.weights_hash(backbone)
    try_backbone(backbone)
    assert tiny_models.weights_hash(backbone) == before


def outcome(config, folder, capsys):
    """What the process of the trial prints."""
    config.save_pretrained(folder)
    model_trial.main([str(folder), "someone/model"])
    return json.loads(capsys.readouterr().out)["outcome"]


def test_the_process_prints_the_outcome(tmp_path, capsys, made_up):
    assert outcome(made_up(), tmp_path, capsys) is True
    message = outcome(made_up("its own cache"), tmp_path, capsys)
    assert message.startswith("someone/model: models of the type made_up with its config.json do not work in the lab.")


def test_tested_types_are_those_of_the_tests():
    kinds = {kind: model_families.MODEL_TYPES.get(kind, kind) for kind in model_families.KINDS}
    assert sorted(kinds.values()) == sorted(TESTED_MODEL_TYPES)

"""A reward model with pooling = last as a sequence classifier loaded with PEFT, for six families of models."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForSequenceClassification
from support import model_families, tiny_models
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from rlhf_lab.common.model_files import HEAD_CONFIG
from rlhf_lab.common.model_folder import sequence_classifier_classes
from rlhf_lab.exporters import sequence_classifier
from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead
from rlhf_lab.models.reward_model import RewardModel

#: transformers has no sequence classifier of the others.
PARAMETERS = [kind for kind in model_families.PARAMETERS if kind not in model_families.WITHOUT_CLASSIFIER]


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.filterwarnings(model_families.IGNORED_WARNING)
def test_classifier_logit_plus_offset_is_the_score(kind, tmp_path):
    backbone = tiny_models.load(model_families.save(kind, tmp_path / "base"))
    head = RewardHead(32, FeatureSpec("last"), seed=3).requires_grad_(False)
    head.shift.fill_(0.25)
    head.scale.fill_(0.5)
    head.linear.bias.fill_(0.6)
    model = RewardModel(backbone, tiny_models.adapters_of(backbone, "policy", "reward"), "reward", head)
    folder = tmp_path / "reward"
    model.save(folder)
    assert sequence_classifier.unmet_conditions(json.loads((folder / HEAD_CONFIG).read_text())) == []
    for name, content in sequence_classifier.classifier_files(
        folder, (folder / "adapter_config.json").read_text()
    ).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False but the target module is `Conv1D`")
        loaded = AutoPeftModelForSequenceClassification.from_pretrained(
            folder, num_labels=1, dtype=torch.float32
        ).eval()
    loaded.config.pad_token_id = None
    prompts, responses = tiny_models.ragged()
    with torch.no_grad():
        logits = [loaded(torch.tensor([[*p, *r]])).logits.item() for p, r in zip(prompts, responses, strict=True)]
    assert sequence_classifier.score_offset(folder) == pytest.approx((0.6 - 0.25) / 0.5)
    expected = model.scores(prompts, responses).tolist()
    assert [logit + sequence_classifier.score_offset(folder) for logit in logits] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.5


def test_reward_models_that_cannot_be_a_classifier():
    """Each condition alone, and several; documents state them all."""
    fits = {"adapter": True, "pooling": "last", "layers": "last", "backbone": "embedded"}
    pooling, layers, adapter, head, attributes, model = sequence_classifier.CONDITIONS
    assert sequence_classifier.unmet_conditions(fits) == []
    for change, unmet in (
        ({"pooling": "mean"}, [pooling]), ({"layers": "all"}, [layers]), ({"adapter": False}, [adapter]),
        ({"ensemble": {"members": 3}}, [head]), ({"correction": {}}, [attributes]),
        ({"backbone": "someone/never-downloaded"}, [model]),
        ({"backbone": "/no/such/folder"}, [model]), ({"pooling": "mean", "layers": "all"}, [pooling, layers]),
    ):  # fmt: skip
        assert sequence_classifier.unmet_conditions(fits | change) == unmet
    path = Path(__file__).resolve().parents[2] / "docs" / "MODEL_FAMILIES.md"
    text = " ".join(path.read_text(encoding="utf-8").split())
    assert [condition for condition in sequence_classifier.CONDITIONS if condition not in text] == []


@pytest.mark.parametrize("kind", model_families.KINDS)
def test_only_a_model_with_a_class_in_transformers_becomes_a_classifier(kind, tmp_path):
    folder = model_families.save(kind, tmp_path / "base")
    try:
        AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder))
        has_class = True
    except ValueError:
        has_class = False
    assert has_class is (kind not in model_families.WITHOUT_CLASSIFIER)
    head_config = {"adapter": True, "pooling": "last", "backbone": str(folder)}
    assert (sequence_classifier.unmet_conditions(head_config) == []) is has_class


def test_known_types_are_those_of_transformers():
    assert sequence_classifier_classes() == dict(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)

"""The YAML headers of model cards, against the rules of the Hub for them.

The Hub validates a card when it is uploaded (docs/hub/model-cards and repositories-licenses of its documentation, modelcard.md of
hub-docs). SPEC has the rules for the fields that the lab writes; a field that is not in it is an error here.
"""

import re
import zipfile

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from support import tiny_models
from test_merged_model import make_run

from rlhf_lab.common.enums import Source
from rlhf_lab.common.records import LabelSnapshot, RewardModelRow
from rlhf_lab.exporters.adapter_zip import export_adapter
from rlhf_lab.exporters.base_model import card_origin
from rlhf_lab.exporters.merged_model import export_model
from rlhf_lab.exporters.reward_model_card import RewardModelFacts, reward_model_card
from rlhf_lab.store import projects

#: Licence identifiers of the Hub that have no number; the others are one of these families with a number or letters.
LICENSE = re.compile(
    r"apache-2\.0|mit|openrail|other|unknown|unlicense|isc|zlib|wtfpl|odbl|pddl|gemma|postgresql|ncsa|odc-by|ms-pl"
    r"|(afl|agpl|artistic|bsl|bsd|cc|cc0|cdla|ecl|epl|etalab|eupl|gpl|lgpl|lppl|mpl|ofl|osl|llama|bigscience|creativeml)[a-z0-9.-]*"
)  # fmt: skip
SPEC = {
    "license": LICENSE.fullmatch,
    "license_name": lambda value: re.fullmatch(r"[a-z0-9.-]+", value),
    "license_link": lambda value: value in ("LICENSE", "LICENSE.md") or value.startswith("https://"),
    "library_name": lambda value: value in ("transformers", "peft"),
    "pipeline_tag": lambda value: value in ("text-generation", "text-classification"),
    "base_model": lambda value: validate_repo_id(value) is None,
    "datasets": lambda value: value and all(validate_repo_id(name) is None for name in value),
    "tags": lambda value: value and all(re.fullmatch(r"[a-z0-9_-]+", tag) for tag in value),
}


def header(text):
    """The fields of a card's header. Fails if they break a rule."""
    fields = ModelCard(text, ignore_metadata_errors=False).data.to_dict()
    assert fields
    for name, value in fields.items():
        assert SPEC[name](value), (name, value)
    assert ("license_name" in fields) == (fields.get("license") == "other")
    return fields


def with_card(folder, text):
    (folder / "README.md").write_text(text)
    return folder


@pytest.fixture
def base(tmp_path):
    return tiny_models.save_llama(tmp_path / "base")


@pytest.mark.parametrize(("link", "kept"), [
    ("LICENSE", {}),  # a file that the export does not have
    ("https://example.org/tales", {"license_link": "https://example.org/tales"}),
])  # fmt: skip
def test_a_merged_model_has_the_licence_of_its_base(db, home, out, base, link, kept):
    with_card(
        base, f"---\nlicense: other\nlicense_name: tales-1.0\nlicense_link: {link}\nbase_model: x/y\n---\n# A base"
    )
    folder = export_model(db, home, make_run(db, home, base), out)
    assert header((folder / "README.md").read_text()) == {
        "license": "other", "license_name": "tales-1.0", "library_name": "transformers", "pipeline_tag": "text-generation",
        "tags": ["rlhf", "ppo"],
    } | kept  # fmt: skip


def test_an_adapter(db, home, out, base):
    with zipfile.ZipFile(export_adapter(db, home, make_run(db, home, base), out)) as archive:
        text = archive.read("README.md").decode()
    fields = header(text)
    assert (fields["library_name"], fields["tags"]) == ("peft", ["lora", "rlhf", "ppo"])
    assert "license" not in fields  # the base's card does not exist
    assert "--enable-lora --max-lora-rank 8 --lora-modules policy=FOLDER" in text  # rank 4, and 8 is vLLM's next value
    assert "rank 4" in text
    assert "`q_proj`" in text


@pytest.mark.parametrize(("adapter", "library"), [(True, "peft"), (False, None)])
def test_a_reward_model(db, base, adapter, library):
    project = projects.create_project(db, "p", str(base), "", "mine", 0, [("the cat", "train")])
    row = RewardModelRow(1, project.id, "reward_models/1", {}, {}, LabelSnapshot((1,), "d", Source.HUMAN), 1.0)
    head = {"adapter": adapter, "pooling": "mean"}
    fields = header(reward_model_card(RewardModelFacts(row, project, "base", head, None, ("a",), {"license": "mit"})))
    assert (fields["pipeline_tag"], fields.get("library_name"), fields["license"]) == (
        "text-classification", library, "mit",
    )  # fmt: skip


def origin(db, model):
    return card_origin(db, projects.create_project(db, "p", model, "", "mine", 0, [("the cat", "train")]))


def test_only_what_the_hub_knows_is_named(db, base, monkeypatch):
    assert origin(db, "org/model") == {"base_model": "org/model"}
    assert origin(db, str(base)) == {}
    assert origin(db, "embedded") == {"license": "apache-2.0"}
    monkeypatch.chdir(base.parent.parent)
    assert origin(db, f"{base.parent.name}/base") == {}  # a folder that looks like an id


@pytest.mark.parametrize(
    "card",
    ["# No card", "---\nlicense: [mit]\n---", "---\nlicense: MIT License\n---", "---\n: : :\n\t- {\n---", "---\n- 1\n---", "\0"],
)  # fmt: skip
def test_a_card_without_a_usable_licence(db, base, card):
    assert origin(db, str(with_card(base, card))) == {}


def test_data_sets_are_live_imports_from_the_hub(db, base, monkeypatch):
    from rlhf_lab.exporters import base_model
    from rlhf_lab.store.import_batches import ImportRecord

    def record(number, name, votes_left):
        return ImportRecord(number, 1, name, "", 0.0, None, 3, votes_left, 3, 3)

    records = [
        record(1, "org/votes", 3),
        record(2, "mine.jsonl", 3),
        record(3, "org/undone", 0),
        record(4, "org/votes", 1),
    ]
    monkeypatch.setattr(base_model, "project_imports", lambda db, project_id: records)
    assert origin(db, str(base)) == {"datasets": ["org/votes"]}

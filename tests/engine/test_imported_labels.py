"""Imported labels: texts of any length, annotators with weights or excluded."""

import dataclasses
import json

import pytest
from support_worker import REWARD

from rlhf_lab.common.enums import EventKind, JobKind, JobStatus, Source
from rlhf_lab.common.records import ChatSettings
from rlhf_lab.config.policy import PolicyConfig
from rlhf_lab.engine.label_preparation import _shorten_prompt, check_annotator_weights, prepare_labels
from rlhf_lab.errors import ConfigError, ModelError
from rlhf_lab.importers.parser import ImportRequest, parse_file
from rlhf_lab.importers.writer import ImportTarget, save_import
from rlhf_lab.models.backbone import load_backbone
from rlhf_lab.store.label_snapshots import annotator_per_vote, current_labels, snapshot_labels
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import latest_reward_model
from rlhf_lab.store.runs import create_run, events

LONG = "the cat sat on the moon " * 60


def take_in(lab, tmp_path, source="human"):
    """Import twelve votes of three people; one prompt and one text exceed the context of the model."""
    rows = [
        {"prompt": f"the bird {word}", "first": "good good", "second": "bad", "winner": "first", "annotator": who}
        for word in ("sat", "ran", "saw", "ate") for who in ("ann", "bob", "cy")
    ]  # fmt: skip
    rows[0] |= {"prompt": LONG + "the bird"}
    rows[1] |= {"second": LONG}
    path = tmp_path / "votes.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    save_import(lab.db, parse_file(ImportRequest(str(path))), ImportTarget(lab.project.id, source=Source(source)))


@pytest.mark.parametrize("source", ["human", "simulated"])
def test_long_imported_texts_do_not_fail_training_or_sampling(fresh, tmp_path, source):
    take_in(fresh, tmp_path, source)
    job = fresh.do(fresh.submit(JobKind.TRAIN_REWARD, source=source, config=REWARD))
    assert (job.status, job.error) == (JobStatus.DONE, "")
    row = latest_reward_model(fresh.db, fresh.project.id)
    assert (row.report["cut"], row.report["labels"]) == (2, 12)
    for sampling in ("random", "information"):
        job = fresh.do(fresh.submit(JobKind.SAMPLE_PAIRS, count=4, sampling=sampling))
        assert (job.status, job.error) == (JobStatus.DONE, "")
    assert LONG + "the bird" not in [p.text for p in prompts(fresh.db, fresh.project.id, "train")]


def test_truncation_keeps_the_end_of_the_prompt_and_the_start_of_the_texts(fresh, tmp_path, model):
    take_in(fresh, tmp_path)
    backbone = load_backbone(str(model), device="cpu")
    labels, cut, _ = prepare_labels(fresh.db, snapshot_labels(fresh.db, fresh.project.id, Source.HUMAN), backbone, {})
    assert cut == 2
    long_prompt, long_text, *others = labels
    assert long_prompt.prompt.endswith("moon the bird")
    assert len(backbone.encode_prompt(long_prompt.prompt)) <= backbone.context_length // 2
    assert long_prompt.chosen_ids == tuple(backbone.encode_response("good good"))
    prompt = backbone.encode_prompt(long_text.prompt)
    assert len(prompt) + len(long_text.rejected_ids) == backbone.context_length
    assert long_text.rejected_ids == tuple(backbone.encode_response(LONG)[: backbone.context_length - len(prompt)])
    assert all(label.chosen_ids == () for label in others)


def test_a_system_prompt_that_fills_the_context_is_named(fresh, tmp_path, model):
    take_in(fresh, tmp_path)
    backbone = load_backbone(str(model), device="cpu")
    backbone.chat_settings = ChatSettings(LONG)
    with pytest.raises(ModelError, match=r"system prompt takes .* tokens, and the model reads 96 in all"):
        prepare_labels(fresh.db, snapshot_labels(fresh.db, fresh.project.id, Source.HUMAN), backbone, {})


def test_near_duplicates_are_one_group_before_their_prompts_are_shortened(fresh, tmp_path, model):
    """The same two texts under a long prompt, the same with a full stop and another one; and two labels of their own."""
    pairs = [(LONG, "good", "bad"), (f"{LONG.upper()}. ", "sat", "ran"), ("so", "Bad.", "good")]
    pairs += [("the bird", "one", "two"), ("the moon", "three", "four"), ("the cat", "five", "six")]
    rows = [
        {"prompt": prompt, "first": first, "second": second, "winner": "first", "annotator": "ann"}
        for prompt, first, second in pairs
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    save_import(fresh.db, parse_file(ImportRequest(str(path))), ImportTarget(fresh.project.id, source=Source.HUMAN))
    backbone = load_backbone(str(model), device="cpu")
    labels, *_ = prepare_labels(fresh.db, snapshot_labels(fresh.db, fresh.project.id, Source.HUMAN), backbone, {})
    assert [label.group for label in labels] == [0, 0, 0, 3, 4, 5]


def test_long_prompts_that_end_alike_are_not_noted_as_one(fresh, tmp_path, model):
    """They are different prompts, in groups of their own, although the model reads the same end of each."""
    rows = [
        {
            "prompt": f"{word} {LONG}",
            "first": f"good {word}",
            "second": f"bad {word}",
            "winner": "first",
            "annotator": "ann",
        }
        for word in ("one", "two", "three", "four", "five", "six")
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    save_import(fresh.db, parse_file(ImportRequest(str(path))), ImportTarget(fresh.project.id, source=Source.HUMAN))
    snapshot = snapshot_labels(fresh.db, fresh.project.id, Source.HUMAN)
    prepared = prepare_labels(fresh.db, snapshot, load_backbone(str(model), device="cpu"), {})
    assert len({label.prompt for label in prepared.labels}) == 1
    assert [label.group for label in prepared.labels] == [0, 1, 2, 3, 4, 5]
    assert (prepared.truncated_count, prepared.grouping_note) == (6, "")


def test_truncation_of_a_conversation_takes_its_first_turns_away():
    turns = [("Human", "a" * 40), ("Assistant", "b"), ("Human", "c"), ("Assistant", "d"), ("Human", "e" * 9)]

    def transcript(count):
        return "".join(f"\n\n{speaker}: {text}" for speaker, text in turns[-count:]) + "\n\nAssistant:"

    assert _shorten_prompt(transcript(5), 0.5) == transcript(3)
    assert _shorten_prompt(transcript(3), 0.5) == "e" * 9  # a conversation of one message is its text
    assert _shorten_prompt("123456789", 0.5) == "6789"
    assert _shorten_prompt("\n\nHuman: a\n\nAssistant: b\n\nAssistant:", 0.9) == "\n\nAssistant: b\n\nAssistant:"


def test_pairs_that_differ_only_beyond_the_context_are_left_out_and_reported(fresh, tmp_path):
    """The context is 96 tokens; "the cat " forty times are 80, after a prompt of at most half."""
    take_in(fresh, tmp_path)
    rows = [
        {"prompt": "the bird sang " * 30 + word, "first": "the cat " * 40 + "good", "second": "the cat " * 40 + "bad",
         "winner": "first", "annotator": "ann"}
        for word in ("sat", "ran")
    ]  # fmt: skip
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    save_import(fresh.db, parse_file(ImportRequest(str(path))), ImportTarget(fresh.project.id, source=Source.HUMAN))
    job = fresh.do(fresh.submit(JobKind.TRAIN_REWARD, source="human", config=REWARD))
    assert (job.status, job.error) == (JobStatus.DONE, "")
    report = latest_reward_model(fresh.db, fresh.project.id).report
    assert (report["labels"], report["cut"], report["indistinguishable"]) == (12, 4, 2)
    note = (
        "4 labels are longer than the model reads, and truncated; "
        "2 labels are left out: the model reads the same tokens for both texts"
    )
    shared = (  # nearly all labels are about "good good" and "bad"
        "; more than half of the labels share prompts or texts, so they are not all held out together: the accuracy is partly "
        "for prompts or texts that the model has seen"
    )
    assert (job.result["note"], report["note"]) == (note + shared, note + shared)
    config = PolicyConfig.for_algorithm(
        "dpo", steps=1, batch_size=2, micro_batch=2, max_new_tokens=4, lora_r=2, sample_count=1, label_batch=2
    )
    labels = {"labels": dataclasses.asdict(current_labels(fresh.db, fresh.project.id))}
    run = create_run(fresh.db, fresh.project.id, None, "dpo", config=config.to_dict(), manifest=labels, total_steps=1)
    assert fresh.train(run.id).status is JobStatus.DONE
    assert note in [event.payload["words"] for event in events(fresh.db, run.id) if event.kind is EventKind.NOTE]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"source": "human"}, "no labels of people yet"),
        ({"source": "simulated", "annotators": ["gloomy"]}, "no labels of a judge by gloomy yet"),
    ],
)
def test_the_error_without_labels_says_which_labels_there_are(fresh, tmp_path, payload, message):
    take_in(fresh, tmp_path, "simulated")
    job = fresh.do(fresh.submit(JobKind.TRAIN_REWARD, config=REWARD, **payload))
    assert job.status is JobStatus.FAILED
    assert message in job.error
    assert "0 labels of people and 12 simulated ones" in job.error
    assert "train-reward --source" in job.error


def test_annotator_weights_and_exclusions(fresh, tmp_path, model):
    take_in(fresh, tmp_path)
    pinned = snapshot_labels(fresh.db, fresh.project.id, Source.HUMAN)
    assert annotator_per_vote(fresh.db, pinned) == ["ann", "bob", "cy"] * 4
    labels, *_ = prepare_labels(fresh.db, pinned, load_backbone(str(model), device="cpu"), {"bob": 3})
    assert [label.count for label in labels] == [1, 3, 1] * 4
    requested = {"annotators": ["ann", "bob"], "weights": {"bob": 3}}
    job = fresh.do(fresh.submit(JobKind.TRAIN_REWARD, source="human", config=REWARD, **requested))
    assert job.status is JobStatus.DONE
    row = latest_reward_model(fresh.db, fresh.project.id)
    assert annotator_per_vote(fresh.db, row.snapshot) == ["ann", "bob"] * 4
    assert {name: row.report[name] for name in requested} == requested


@pytest.mark.parametrize("weight", [0, 11, 1.5, True, "2"])
def test_invalid_annotator_weights_are_refused(weight):
    with pytest.raises(ConfigError, match="a whole number from 1 to 10"):
        check_annotator_weights({"ann": weight})


def test_a_comparison_counts_once_by_default():
    from rlhf_lab.common.records import Comparison

    assert {f.name: f.default for f in dataclasses.fields(Comparison)}["count"] == 1

"""Prompts that are too long for the model: the work goes on with the others, and says so."""

import pytest
import tiny
from workplace import Lab

from rlhf_lab.cli import demo
from rlhf_lab.engine.fitting import fitting
from rlhf_lab.engine.policy_run import PolicyRun
from rlhf_lab.engine.work import sample_pairs
from rlhf_lab.errors import ModelError
from rlhf_lab.judges import JUDGES
from rlhf_lab.kinds import EventKind, JobStatus
from rlhf_lab.records import Prompt
from rlhf_lab.store import tables as t
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.runs import events, get_run
from rlhf_lab.store.steps import samples_at

LONG = "the " * 200  # the context is 96


def asked(*words):
    return [Prompt(i, 1, "the " * count, "train") for i, count in enumerate(words)]


@pytest.fixture
def backbone(model):
    return tiny.load(model)


def test_by_default_there_is_room_behind_the_longest_of_the_usual_prompts(backbone):
    assert backbone.context == 96
    fit = fitting(backbone, asked(3, 48, 5, 49, 96, 97))
    assert ([p.id for p in fit.prompts], fit.length, fit.left_out) == ([0, 1, 2], 48, 3)
    assert fit.words == "3 prompts left out: too long for the model with 48 new tokens"
    fit = fitting(backbone, asked(3, 32))
    assert (len(fit.prompts), fit.length, fit.left_out, fit.words) == (2, 64, 0, "")


def test_where_all_are_long_the_shortest_says_how_long_a_response_is(backbone):
    fit = fitting(backbone, asked(95, 90, 91))
    assert ([p.id for p in fit.prompts], fit.length, fit.left_out) == ([1], 6, 2)


def test_as_many_tokens_as_are_asked_for(backbone):
    fit = fitting(backbone, asked(3, 48, 91, 92), 5)
    assert ([p.id for p in fit.prompts], fit.length, fit.left_out) == ([0, 1, 2], 5, 1)
    assert fit.words == "1 prompt left out: too long for the model with 5 new tokens"
    assert fitting(backbone, [], 5) == ([], 5, 0)


@pytest.mark.parametrize(("words", "wanted"), [((96, 200), None), ((95,), 2)])
def test_no_prompt_that_fits_is_an_error_that_says_what_to_do(backbone, words, wanted):
    with pytest.raises(ModelError, match=rf"the shortest takes {words[0]}.*reads 96 in all.*longer context"):
        fitting(backbone, asked(*words), wanted)


def too_long(lab):
    """A prompt more in each part that nothing can be written to."""
    with lab.db.write() as conn:
        for part in ("train", "eval"):
            row = {"project_id": lab.project.id, "text": LONG + part, "split": part, "labels_only": False}
            conn.execute(t.prompts.insert().values(**row))


def test_a_prompt_that_is_too_long_stops_nothing(lab, caplog):
    too_long(lab)
    assert {pair.prompt.text for pair in sample_pairs(lab.worker.lab, lab.project, 12)} == set(tiny.PROMPTS)
    assert "1 prompt left out: too long for the model with 64 new tokens" in caplog.text
    assert lab.train_reward().status is JobStatus.DONE
    run_id = lab.run(sample_count=6)
    assert lab.train(run_id).result["status"] == "done"
    (note,) = events(lab.db, run_id)
    assert (note.kind, note.applied_step) == (EventKind.NOTE, 0)
    words = get_run(lab.db, run_id).config["max_new_tokens"]
    assert note.payload == {"words": f"1 prompt left out: too long for the model with {words} new tokens"}
    held = [prompt.text for prompt in prompts(lab.db, lab.project.id, "eval")]
    assert [sample.prompt for sample in samples_at(lab.db, run_id, 0)] == held[:-1]


def test_the_others_are_written_to_as_if_it_were_not_there(tmp_path, model):
    written = []
    for name in ("with", "without"):
        lab = Lab(tmp_path / name, model)
        if name == "with":
            too_long(lab)
        pairs = sample_pairs(lab.worker.lab, lab.project, 12)
        written.append([(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs])
        lab.db.close()
    assert written[0] == written[1]


def test_the_demo_evaluates_on_those_that_fit(lab, monkeypatch):
    too_long(lab)
    monkeypatch.setattr(demo, "SAMPLES", [16, 16, 4])
    run = PolicyRun(lab.worker.lab, lab.run(steps=1))
    run.execute()
    scorer = lab.worker.lab.reward_model(run.run.reward_model_id, "reward")
    found = demo.evaluate(lab.worker.lab, lab.project, run, scorer, JUDGES["concise"], run.config)
    assert [sample["prompt"] for sample in found["samples"]] == ["a good bird", "the moon", "a good bird"]

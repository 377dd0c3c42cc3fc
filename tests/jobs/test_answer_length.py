"""The table of a measurement of lengths, its proposal, when a project is measured, and accepting the proposal."""

from dataclasses import asdict

import pytest

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import LabelSnapshot, NewCompletion, Vote
from rlhf_lab.errors import ConfigError
from rlhf_lab.jobs import answer_length, engine_process, queue
from rlhf_lab.jobs.answer_length import (
    INSTRUCTION,
    LengthRow,
    accept_proposal,
    lacks_measurement,
    length_note,
    length_rows,
    length_view,
    propose,
)
from rlhf_lab.jobs.project_setup import new_project
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import TextFeatures, add_features, load_features
from rlhf_lab.store.pair_leases import lease_pairs
from rlhf_lab.store.projects import (
    add_completions,
    add_pairs,
    count_pairs,
    get_labelling_config,
    get_project,
    newest_pairs,
    next_pair_index,
    prompts,
    set_answer_settings,
)
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.votes import cast_vote

STOP = 2


@pytest.fixture
def db(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_length, "stop_token_ids", lambda _: frozenset({STOP}))
    with Database.open(tmp_path / "home") as db:
        yield db


@pytest.fixture
def project(db):
    """A project without pairs, whose prompts are the embedded model's."""
    project = new_project(db, temperature=0.9)
    set_answer_settings(db, project.id, project.max_new_tokens, "Be kind.")
    return get_project(db, project.id)


def test_a_text_is_complete_from_its_length_on():
    """Lengths 10, 48, 49 and one that did not end at 96: means (10 + 3 · 48) / 4, (10 + 48 + 49 + 64) / 4, (107 + 96) / 4."""
    rows = length_rows([10, 48, 49, None], {48: 2.0, 64: 3.0, 96: 4.0}, adds_instruction=False)
    assert [(row.max_new_tokens, row.complete, row.share, row.mean_tokens, row.seconds) for row in rows] == [
        (48, 2, 0.5, 38.5, 1.0), (64, 3, 0.75, 42.75, 1.5), (96, 3, 0.75, 50.75, 2.0),
    ]  # fmt: skip
    # Wilson for 2 of 4: (0.5 + z²/8 ± z·√(0.25/4 + z²/64)) / (1 + z²/4), with z² = 3.8416
    assert (rows[0].low, rows[0].high) == pytest.approx((0.15, 0.85), abs=1e-3)


def row(limit, complete, seconds=1.0, *, adds=False):
    return LengthRow(adds, limit, complete, 32, 0.0, 1.0, 40.0, seconds)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(48, 28), row(64, 29), row(96, 32)], (64, False)),  # 28 of 32 are 87.5 %
        ([row(48, 20), row(256, 28)], None),
        ([row(96, 30, 1.25), row(48, 28, adds=True), row(64, 30, 1.0, adds=True)], (96, False)),  # costs little more
        ([row(96, 30, 1.26), row(64, 30, 1.0, adds=True)], (64, True)),
        ([row(256, 20), row(64, 30, adds=True)], (64, True)),
        ([row(64, 30), row(256, 20, adds=True)], (64, False)),
    ],
)
def test_the_shortest_setting_with_nine_in_ten_complete_is_proposed(rows, expected):
    proposed = propose(rows)
    assert (proposed and (proposed.max_new_tokens, proposed.adds_instruction)) == expected


def add(db, project, texts, reason="random"):
    """Pairs of texts with these token ids."""
    prompt = prompts(db, project.id, "train")[0].id
    sides = [
        add_completions(db, [NewCompletion(prompt, f"{side} {i}", ids, "base", i) for i, ids in enumerate(texts)])
        for side in ("first", "second")
    ]
    return add_pairs(db, project.id, [(a.id, b.id, reason) for a, b in zip(*sides, strict=True)])


CUT, ENDED = (5, 6, 7), (5, STOP)


def test_a_new_project_is_measured_once_if_some_of_its_first_texts_are_cut(db, project):
    assert lacks_measurement(db, project) is None
    add(db, project, [ENDED] * 7)
    assert lacks_measurement(db, project) is None
    add(db, project, [CUT])  # 2 of 16 texts
    assert lacks_measurement(db, project) is True
    queue.submit(db, JobKind.MEASURE_LENGTH, project.id, {})
    assert lacks_measurement(db, project) is False


def test_a_project_whose_texts_end_is_not_measured(db, project):
    add(db, project, [ENDED] * 8)
    assert lacks_measurement(db, project) is False


def test_texts_that_were_chosen_because_they_end_do_not_tell(db, project):
    add(db, project, [ENDED] * 8, "teaching: different")
    assert lacks_measurement(db, project) is True
    measured(db, project, [row(48, 29), row(64, 30), row(48, 30, adds=True)])
    assert length_view(db, project)["proposal"].max_new_tokens == 48
    assert length_note(db, project) == ""  # 64 tokens, the setting of the project, suffice


def test_a_project_with_a_reward_model_is_not_measured(db, project):
    add(db, project, [CUT] * 8)
    reward_model(db, project)
    assert lacks_measurement(db, project) is False


def reward_model(db, project):
    add_reward_model(db, project.id, "x", config={}, report={}, snapshot=LabelSnapshot((), "", Source.HUMAN))


def measured(db, project, rows):
    job = queue.submit(db, JobKind.MEASURE_LENGTH, project.id, {})
    assert (length_view(db, project)["is_measuring"], length_view(db, project)["rows"]) == (True, [])
    queue.claim(db, [JobKind.MEASURE_LENGTH], engine_process.record_heartbeat(db, "x"))
    result = {"rows": [asdict(row) for row in rows], "system_prompt": "Be kind.", "seconds": 9.0, "note": ""}
    queue.finish(db, job.id, result)


def test_an_accepted_proposal_replaces_unlabelled_pairs_and_keeps_the_others(db, project):
    labelled, *_ = add(db, project, [ENDED] * 4)
    vote = Vote("u", labelled.id, "ann", Source.HUMAN, Choice.FIRST, True)
    cast_vote(db, vote)
    leased = {lease.pair.id for lease in lease_pairs(db, project.id, "bob", get_labelling_config(db, project.id))}
    assert leased
    add_features(db, {labelled.first.id: TextFeatures(1, load_vector())})
    measured(db, project, [row(64, 10), row(96, 31, adds=True)])
    assert "with at most 96 tokens and a short instruction, 97 % are complete" in length_note(db, project)
    waiting = queue.submit(db, JobKind.SAMPLE_PAIRS, project.id, {"count": 4})
    message = accept_proposal(db, project.id)
    kept = {pair.id for pair in newest_pairs(db, project.id, 9)}
    assert kept == leased | {labelled.id}
    assert f"{4 - len(kept)} unlabelled pair" in message
    offered = lease_pairs(db, project.id, "cid", get_labelling_config(db, project.id))
    assert {lease.pair.id for lease in offered} <= kept
    assert next_pair_index(db, project.id) == 4 > count_pairs(db, project.id)  # no random numbers are used twice
    changed = get_project(db, project.id)
    assert (changed.max_new_tokens, changed.system_prompt) == (96, f"Be kind. {INSTRUCTION}")
    assert load_features(db, [labelled.first.id]) == {}  # they depend on the system prompt
    assert queue.get_job(db, waiting.id).status.value == "cancelled"
    assert (length_view(db, changed)["is_new"], length_note(db, changed)) == (False, "")


@pytest.mark.parametrize(
    ("limit", "system_prompt", "is_said"),
    [
        (64, "Be kind.", True),
        (128, "Be kind.", True),  # at 96, the longest measured limit below, 20 of 32
        (200, "Be kind.", False),  # at 192, 30 of 32
        (48, f"Be kind. {INSTRUCTION}", True),
        (128, f"Be kind. {INSTRUCTION}", False),  # at least as many end as at 64, the proposal
        (32, f"Be kind. {INSTRUCTION}", True),  # shorter than all that was measured
        (64, "Be brief.", False),  # not measured
    ],
)
def test_the_note_speaks_of_the_texts_of_the_present_settings(db, project, limit, system_prompt, is_said):
    plain = [row(64, 10), row(96, 20), row(192, 30, 9.0)]
    measured(db, project, [*plain, row(48, 20, adds=True), row(64, 31, adds=True)])
    set_answer_settings(db, project.id, limit, system_prompt)
    assert bool(length_note(db, get_project(db, project.id))) is is_said


def load_vector():
    import numpy as np

    return np.zeros(2, np.float16)


def test_without_a_proposal_nothing_can_be_accepted(db, project):
    with pytest.raises(ConfigError, match="Nothing is proposed"):
        accept_proposal(db, project.id)
    measured(db, project, [row(256, 10)])
    assert (length_view(db, project)["proposal"], length_note(db, project)) == (None, "")
    with pytest.raises(ConfigError, match="Nothing is proposed"):
        accept_proposal(db, project.id)


def test_the_system_prompt_of_a_reward_model_stays(db, project):
    measured(db, project, [row(96, 31, adds=True)])
    reward_model(db, project)
    with pytest.raises(ConfigError, match=r"has a reward model.*new project with at most 96 tokens"):
        accept_proposal(db, project.id)
    assert (get_project(db, project.id), length_note(db, project)) == (project, "")


def test_a_failed_measurement_is_shown_and_measured_again(db, project):
    job = queue.submit(db, JobKind.MEASURE_LENGTH, project.id, {})
    queue.claim(db, [JobKind.MEASURE_LENGTH], engine_process.record_heartbeat(db, "x"))
    queue.fail(db, job.id, "The machine is busy.")
    view = length_view(db, project)
    assert (view["is_measuring"], view["failure"], length_note(db, project)) == (False, "The machine is busy.", "")
    queue.submit_once(db, JobKind.MEASURE_LENGTH, project.id, {})
    assert (length_view(db, project)["is_measuring"], length_view(db, project)["failure"]) == (True, "")

"""Blind tests without a browser: the jobs of the engine, the texts and answers of a judge, and the results."""

from dataclasses import replace

import pytest
from fake_blind_tests import REQUEST, answer, finish_jobs, start

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import LabelSnapshot
from rlhf_lab.errors import LabError, StaleVoteError, StoreError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import copy_project
from rlhf_lab.store.blind_tests import answers, blind_tests, delete_test, end_test
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.ui.compare.blind_results import BlindPair
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.reward.check import start_check
from rlhf_lab.ui.shared.api import FieldError, parse_payload


def edit(ctx, annotator, **payload):
    return blind_test.edit_test(ctx, parse_payload(blind_test.EditTestPayload, payload), annotator)


def user(text):
    return {"role": "user", "content": text}


@pytest.fixture
def started_test(ctx):
    pinned = LabelSnapshot((), "", Source.HUMAN)
    add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={"accuracy": 0.8}, snapshot=pinned)
    return start(ctx)


def judge(ctx, test, annotator, choices):
    """Answer each pair with the given text, whichever side it is on, or "tie". Returns the pairs and the final state."""
    judged = []
    while (state := blind_test.state(ctx, test.id, annotator))["pair"]:
        pair = state["pair"]
        text = choices[pair["position"]]
        side = text if text == "tie" else "left" if pair["left"] == text else "right"
        answer(ctx, annotator, test_id=test.id, position=pair["position"], choice=side)
        judged.append((pair["position"], {pair["left"], pair["right"]}))
    return judged, state


def test_both_models_are_asked_for_the_same_prompts_that_nothing_was_trained_on(ctx, started_test):
    first, second = (job.payload for job in blind_test.test_jobs(ctx, started_test))
    held_out = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")]
    assert (first["checkpoint"], second["checkpoint"]) == ("base", "run/1/40")
    assert first["prompts"] == second["prompts"]
    assert len(set(first["prompts"])) == 4
    assert set(first["prompts"]) <= set(held_out)
    assert first["prompts"] != held_out[:4]
    for payload in (first, second):
        assert (payload["temperature"], payload["max_new_tokens"], payload["reward_model_id"]) == (0.8, 40, 1)
    assert blind_test.list_tests(ctx)[-1] == (started_test.id, "base model against run 1, step 40")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": ["base", "base"]}, "two different models"), ({"models": ["base"]}, "two different models"),
        ({"models": "base"}, "no usable models"), ({"pairs": "65"}, "from 1 to 64"), ({"pairs": "many"}, "whole number"),
        ({"models": ["base", "base/best/16"], "pairs": "5"}, "80 texts; at most 64"), ({"temperature": "0"}, "temperature"),
        ({"reward_model_id": "x"}, "no usable reward model"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_and_leaves_nothing(ctx, started_test, change, words):
    before = len(queue.jobs(ctx.db))
    with pytest.raises(LabError, match=words):
        start(ctx, **change)
    assert (len(queue.jobs(ctx.db)), len(blind_tests(ctx.db, ctx.project.id))) == (before, 1)


def test_pairs_cannot_exceed_the_held_out_prompts(ctx, started_test, monkeypatch):
    monkeypatch.setattr(blind_test, "prompts", lambda db, project, split: prompts(db, project, split)[:3])
    with pytest.raises(FieldError, match="has 3 held-out prompts") as refused:
        start(ctx)
    assert refused.value.field == "pairs"


def test_a_judge_sees_texts_without_names_and_then_the_result(ctx, started_test):
    assert blind_test.state(ctx, None, "ann") == {
        "annotator": "ann", "id": started_test.id, "model_names": ["base model", "run 1, step 40"], "reward_model_id": 1,
        "is_waiting": True, "failure": None, "deletion_note": "with its texts (nobody had answered)",
    }  # fmt: skip
    finish_jobs(ctx, started_test)
    state = blind_test.state(ctx, started_test.id, "ann")
    assert (state["pair_count"], state["judged_count"]) == (3, 0)
    assert state["left_out_note"] == "1 pair left out: both models wrote the same text."
    assert set(state["pair"]) == {"position", "token", "turns", "left", "right"}
    assert "sentences" not in state
    judged, done = judge(ctx, started_test, "ann", {0: "A", 1: "B", 3: "tie"})
    assert judged == [
        (0, {"a", "A"}),
        (1, {"b", "B"}),
        (3, {"d", "D"}),
    ]  # equal texts are not judged
    assert answers(ctx.db, started_test.id) == {"ann": {0: Choice.SECOND, 1: Choice.SECOND, 3: Choice.TIE}}
    assert done["sentences"] == [
        "You like run 1, step 40 more often: 2 of 2 decided pairs (100 %, 95 % interval 16 to 100 %), 1 tie. This "
        "may be chance: the interval contains 50 %, no preference.",
        "On the same pairs reward model 1 likes both equally often: 1 of 2 decided pairs each, 1 tie.",
        "Of the pairs that both you and it decided, you agreed on 1 of 2.",
    ]
    requested = blind_test.test_jobs(ctx, started_test)[0].payload["prompts"]
    assert done["rows"][0] == {
        "turns": [user(requested[0])],
        "first": "a",
        "second": "A",
        "choice": "second",
        "reward_choice": "second",
    }
    assert [row["choice"] for row in done["rows"]] == ["second", "second", "tie"]
    assert [row["reward_choice"] for row in done["rows"]] == ["second", "first", "tie"]  # scores 1 2, 1 0, 0.5 0.5


def test_sides_are_random_for_each_person(ctx, started_test):
    finish_jobs(ctx, started_test)
    sides = [blind_test.state(ctx, started_test.id, f"person {i}")["pair"]["left"] for i in range(64)]
    assert 16 < sides.count("a") < 48
    assert sides == [blind_test.state(ctx, started_test.id, f"person {i}")["pair"]["left"] for i in range(64)]


def test_several_people_and_one_who_stops(ctx, started_test, monkeypatch):
    monkeypatch.setattr(blind_test, "is_first_on_left", lambda _ctx, _id, position, _name: position != 1)  # both ways
    finish_jobs(ctx, started_test)
    judge(ctx, started_test, "ann", {0: "A", 1: "B", 3: "D"})
    judge(ctx, started_test, "bob", {0: "a", 1: "B", 3: "tie"})
    pair = blind_test.state(ctx, started_test.id, "eve")["pair"]
    side = "left" if pair["left"] == "a" else "right"
    answer(ctx, "eve", test_id=started_test.id, position=0, choice=side)
    stopped = answer(ctx, "eve", test_id=started_test.id, choice="stop")
    assert stopped["sentences"][:2] == [
        "You like the base model more often: 1 of 1 decided pairs (100 %, 95 % interval 3 to 100 %). This may be "
        "chance: the interval contains 50 %, no preference.",
        "All 3 people together like run 1, step 40 more often: 4 of 6 decided answers to 3 pairs (67 %; too few "
        "pairs for an interval, which needs 5), 1 tie.",
    ]
    assert stopped["sentences"][3] == "Of the pairs that both you and it decided, you agreed on 0 of 1."
    assert len(stopped["rows"]) == 1
    without_answers = answer(ctx, "zoe", test_id=started_test.id, choice="stop")
    assert without_answers["sentences"][0].startswith("All 3 people")  # a person without answers does not count


def test_nobody_judges_a_pair_after_anybody_has_seen_a_result(ctx, started_test):
    """In a lab of several people: also somebody who finishes or stops, and comes back under another name."""
    shared = ctx.as_multi_user(open_to_all=True)
    finish_jobs(shared, started_test)
    _, done = judge(shared, started_test, "ann", {0: "A", 1: "B", 3: "D"})
    stopped = answer(shared, "eve", test_id=started_test.id, choice="stop")
    for seen in (done, stopped, blind_test.state(shared, started_test.id, "")):
        assert {"sentences", "rows"}.isdisjoint(seen)
        assert seen["result_waits"]
        assert seen["pair"] is None
    assert "operator ends the test" in done["closed_text"]
    pair = blind_test.state(shared, started_test.id, "zoe")["pair"]
    reply = edit(shared, "ann", test_id=started_test.id, action="end")
    assert reply["message"] == f"Test {started_test.id} has ended. Its result is shown now."
    assert [row["first"] for row in reply["state"]["rows"]] == ["a", "b", "d"]
    for choice in ("left", "stop"):
        with pytest.raises(StaleVoteError, match="has ended this blind test"):
            answer(shared, "zoe", test_id=started_test.id, position=pair["position"], choice=choice)
    late = blind_test.state(shared, started_test.id, "zoe")
    assert (late["pair"], late["rows"], late["result_waits"]) == (None, [], False)
    assert late["sentences"][0].startswith("Those who judged like run 1, step 40 more often: 3 of 3")
    assert set(answers(shared.db, started_test.id)) == {"ann", "eve"}
    with pytest.raises(StoreError, match="no blind test 99"):
        end_test(shared.db, 99)


def test_nobody_can_compute_the_texts_of_a_blind_comparison(ctx, started_test):
    """Their seed is drawn, although a visitor may sample from the same models with the seed of the form."""
    shared = ctx.as_multi_user(open_to_all=True)
    jobs = [blind_test.test_jobs(lab, start(lab)) for lab in (shared, ctx, ctx)]
    seeds = {job.payload["seed"] for job, _ in jobs}
    assert all(first.payload["prompts"] == second.payload["prompts"] for first, second in jobs)
    assert [first.payload["seed"] for first, _ in jobs] == [second.payload["seed"] for _, second in jobs]
    assert len(seeds) == 3
    assert max(seeds) > 2**40


def test_a_test_takes_the_prompts_that_the_last_tests_did_not(ctx, started_test, monkeypatch):
    """Ten held-out prompts and tests of four: the third has the two that are left and two of the first test, the fourth those two
    of the first test that have rested longest, and two of the second. Their seeds differ, so the base writes other texts."""
    delete_test(ctx.db, started_test.id)
    monkeypatch.setattr(blind_test, "prompts", lambda db, project, split: prompts(db, project, split)[:10])
    payloads = [blind_test.test_jobs(ctx, start(ctx))[0].payload for _ in range(4)]
    first, second, third, fourth = (set(payload["prompts"]) for payload in payloads)
    assert [len(chosen) for chosen in (first, second, third, fourth)] == [4] * 4
    assert not first & second
    assert [len(third & earlier) for earlier in (first, second)] == [2, 0]
    assert len(third - first - second) == 2
    assert fourth >= first - third
    assert [len(fourth & earlier) for earlier in (second, third)] == [2, 0]
    assert len({payload["seed"] for payload in payloads}) == 4


def test_a_check_and_the_test_after_it_share_neither_prompts_nor_seed(ctx, started_test):
    delete_test(ctx.db, started_test.id)
    start_check(ctx, 1)
    check, test = (
        blind_test.test_jobs(ctx, one)[1].payload
        for one in (blind_tests(ctx.db, ctx.project.id)[0], start(ctx, seed="0"))
    )
    assert (check["checkpoint"], len(check["prompts"]), len(test["prompts"])) == ("base", 12, 4)
    assert not set(check["prompts"]) & set(test["prompts"])
    assert check["seed"] != test["seed"]


def test_a_test_is_renamed_and_deleted_with_its_answers(ctx, started_test):
    finish_jobs(ctx, started_test)
    other = start(ctx)
    judge(ctx, started_test, "ann", {0: "A", 1: "B", 3: "D"})
    reply = edit(ctx, "ann", test_id=started_test.id, action="rename", name="  before  the switch ")
    assert reply["message"] == f'Test {started_test.id} is called "before the switch" now.'
    assert reply["state"] == blind_test.state(ctx, started_test.id, "ann")
    assert blind_test.list_tests(ctx) == [
        (other.id, "base model against run 1, step 40"),
        (started_test.id, "before the switch"),
    ]
    assert blind_test.state(ctx, started_test.id, "")["deletion_note"] == "with its texts and 3 answers of one person"
    judge(ctx, started_test, "bob", {0: "a", 1: "B", 3: "tie"})
    reply = edit(ctx, "ann", test_id=started_test.id, action="delete")
    assert reply["message"] == f"Test {started_test.id} is deleted, with its texts and 6 answers of 2 people."
    assert (reply["state"]["id"], reply["state"]["deletion_note"]) == (other.id, "with its texts (nobody had answered)")
    assert blind_test.list_tests(ctx) == [(other.id, "base model against run 1, step 40")]
    assert blind_test.state(ctx, started_test.id, "bob") == {"id": None}
    with pytest.raises(StaleVoteError, match="was deleted"):
        answer(ctx, "eve", test_id=started_test.id, position=0, choice="left")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"test_id": 1, "action": "rename", "name": " "}, "1 to 80 characters"),
        ({"test_id": 1, "action": "rename"}, "1 to 80 characters"),
        ({"test_id": 1, "action": "rename", "name": "x" * 81}, "1 to 80 characters"),
        ({"test_id": 1, "action": "burn"}, "no usable action"),
        ({"action": "delete"}, "no usable test"), ({"test_id": 99, "action": "delete"}, "was deleted"),
    ],
)  # fmt: skip
def test_an_invalid_edit_of_a_test_is_refused(ctx, started_test, payload, words):
    with pytest.raises(LabError, match=words):
        edit(ctx, "ann", **payload)
    assert blind_test.list_tests(ctx) == [(started_test.id, "base model against run 1, step 40")]
    copy_project(ctx.db, ctx.project)
    with pytest.raises(LabError, match="was deleted"):
        edit(ctx, "ann", test_id=started_test.id, action="delete")


def test_only_who_may_begin_a_test_may_rename_or_delete_it(ctx, started_test, calls):
    rename = {"annotator": "ann", "test_id": started_test.id, "action": "rename", "name": "mine"}
    visitor = calls(blind_test, replace(ctx, operator_secret="sesame"))
    for request, payload in ((visitor.edit, rename), (visitor.start, REQUEST | {"annotator": "ann"})):
        assert "Only the operator" in request(payload)["error"]
    assert blind_test.list_tests(ctx) == [(started_test.id, "base model against run 1, step 40")]
    operator = calls(blind_test, ctx)
    reply = operator.edit(rename)
    assert (reply["state"]["id"], reply["tests"]) == (started_test.id, [[started_test.id, "mine"]])
    reply = operator.start(REQUEST | {"annotator": "ann"})
    assert (reply["state"]["is_waiting"], len(reply["tests"])) == (True, 2)


def test_the_page_judges_a_test_and_reads_its_state(ctx, started_test, calls):
    screen = calls(blind_test, ctx)
    finish_jobs(ctx, started_test)
    pair = screen.get_state({"annotator": "ann"})["pair"]
    answered = {"annotator": "ann", "test_id": started_test.id, "token": pair["token"], "choice": "left"}
    state = screen.answer(answered)["state"]
    assert (state["judged_count"], state["pair"]["position"]) == (1, 1)
    assert screen.get_state({"annotator": "ann", "test_id": started_test.id}) == state
    assert "already been judged" in screen.answer(answered)["error"]
    viewer = calls(blind_test, ctx.as_multi_user(open_to_all=False))
    assert viewer.get_state({"annotator": "ann"})["pair"] is None
    assert "join code" in viewer.answer(answered)["error"]


def test_answers_to_missing_pairs_are_refused_and_not_recorded(ctx, started_test):
    with pytest.raises(StaleVoteError, match="not written yet"):
        answer(ctx, "ann", test_id=started_test.id, position=0, choice="left")
    finish_jobs(ctx, started_test)
    for wrong in (
        {"position": 2},
        {"position": 4},
        {"position": -1},
    ):  # equal texts; beyond the end; before the beginning
        with pytest.raises(StaleVoteError, match="already been judged"):
            answer(ctx, "ann", test_id=started_test.id, choice="left", **wrong)
    for wrong in ({"token": 5}, {"choice": "second"}, {"choice": ["left"]}, {"token": None}):
        with pytest.raises(LabError, match=r"no usable (token|choice)"):
            answer(ctx, "ann", **{"test_id": started_test.id, "position": 0, "choice": "left"} | wrong)
    with pytest.raises(StaleVoteError, match="already been judged"):
        answer(ctx, "ann", test_id=started_test.id, token="", choice="left")
    with pytest.raises(StaleVoteError, match="was deleted"):
        answer(ctx, "ann", test_id=started_test.id + 1, position=0, choice="left")
    answer(ctx, "ann", test_id=started_test.id, position=0, choice="tie")
    with pytest.raises(StaleVoteError, match="already been judged"):
        answer(ctx, "ann", test_id=started_test.id, position=0, choice="left")
    assert answers(ctx.db, started_test.id) == {"ann": {0: Choice.TIE}}
    copy_project(ctx.db, ctx.project)  # another project is open: the test does not belong to it
    assert blind_test.state(ctx, started_test.id, "ann") == {"id": None}
    assert blind_test.list_tests(ctx) == []


def test_of_two_answers_at_once_the_second_is_refused(ctx, started_test, monkeypatch):
    """Both requests have read that the pair is not judged yet before one of them stores its answer."""
    finish_jobs(ctx, started_test)
    before = answers(ctx.db, started_test.id)
    answer(ctx, "ann", test_id=started_test.id, position=0, choice="tie")
    monkeypatch.setattr(blind_test, "answers", lambda *_: before)
    with pytest.raises(StaleVoteError, match="already been judged"):
        answer(ctx, "ann", test_id=started_test.id, position=0, choice="left")
    assert answers(ctx.db, started_test.id) == {"ann": {0: Choice.TIE}}


def test_prompts_that_were_too_long_are_left_out_and_the_others_keep_their_places(ctx, started_test):
    assert all(job.payload["leave_out"] is True for job in blind_test.test_jobs(ctx, started_test))
    finish_jobs(ctx, started_test, (["b", "d"], ["B", "D"]), ((1.0, 0.5), (0.0, 0.75)), (0, 2))
    state = blind_test.state(ctx, started_test.id, "ann")
    assert (state["pair_count"], state["judged_count"]) == (2, 0)
    assert state["left_out_note"] == "2 prompts left out: too long for the model with 40 new tokens."
    for left_out in (0, 2, 4):
        with pytest.raises(StaleVoteError, match="already been judged"):
            answer(ctx, "ann", test_id=started_test.id, position=left_out, choice="left")
    judged, done = judge(ctx, started_test, "ann", {1: "b", 3: "D"})
    assert judged == [(1, {"b", "B"}), (3, {"d", "D"})]
    assert answers(ctx.db, started_test.id) == {"ann": {1: Choice.FIRST, 3: Choice.SECOND}}
    requested = blind_test.test_jobs(ctx, started_test)[0].payload["prompts"]
    assert [row["turns"] for row in done["rows"]] == [[user(requested[1])], [user(requested[3])]]
    assert done["sentences"][-1] == "Of the pairs that both you and it decided, you agreed on 2 of 2."
    assert done["left_out_note"] == state["left_out_note"]


def test_of_best_of_n_a_prompt_is_left_out_with_all_its_texts(ctx, started_test):
    """Two prompts, the first too long: its four texts of the first model and its one of the second are left out."""
    test = start(ctx, models=["base/best/4", "run/1/latest"], pairs="2")
    for job in blind_test.test_jobs(ctx, started_test):
        queue.cancel(ctx.db, job.id)
    one, other = blind_test.test_jobs(ctx, test)
    for job, result in (
        (one, {"texts": ["b1", "b2", "b3", "b4"], "scores": [5.0, 4.0, 6.0, 2.0], "left_out": [0, 1, 2, 3]}),
        (other, {"texts": ["B"], "scores": [1.0], "left_out": [0]}),
    ):
        queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
        queue.finish(ctx.db, job.id, result)
    assert blind_test.pair_texts(*blind_test.test_jobs(ctx, test)) == {
        1: BlindPair(other.payload["prompts"][1], "b3", "B", (6.0, 1.0))
    }  # fmt: skip
    state = blind_test.state(ctx, test.id, "ann")
    assert (state["pair_count"], state["pair"]["position"]) == (1, 1)
    assert state["left_out_note"] == "1 prompt left out: too long for the model with 40 new tokens."


def test_only_pairs_with_texts_of_both_models_are_judged(ctx, started_test):
    """As when the model in the folder was changed between the two jobs."""
    first, second = blind_test.test_jobs(ctx, started_test)
    for job, result in (
        (first, {"texts": ["a", "b", "d"], "left_out": [2]}), (second, {"texts": ["B", "C", "D"], "left_out": [0]})
    ):  # fmt: skip
        queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
        queue.finish(ctx.db, job.id, result)
    couples = blind_test.pair_texts(*blind_test.test_jobs(ctx, started_test))
    assert {at: (couple.first, couple.second, couple.scores) for at, couple in couples.items()} == {
        1: ("b", "B", None), 3: ("d", "D", None)
    }  # fmt: skip
    assert blind_test.state(ctx, started_test.id, "ann")["left_out_note"].startswith("2 prompts left out")


def test_the_progress_of_others_is_shown_without_their_answers(ctx, started_test):
    """Three pairs differ.

    Bob judges all, Eve one, Zoe stops without judging; Ann never counts as another person for herself.
    """
    finish_jobs(ctx, started_test)

    def others_progress(annotator):
        return blind_test.state(ctx, started_test.id, annotator)["others_progress"]

    assert others_progress("ann") == {"finished": 0, "in_progress": 0}
    judge(ctx, started_test, "bob", {0: "a", 1: "B"} | {3: "tie"})
    assert others_progress("ann") == {"finished": 1, "in_progress": 0}
    answer(ctx, "eve", test_id=started_test.id, position=1, choice="tie")
    assert others_progress("ann") == {"finished": 1, "in_progress": 1}
    answer(ctx, "zoe", test_id=started_test.id, choice="stop")
    assert others_progress("ann") == others_progress("") == {"finished": 2, "in_progress": 1}
    assert (others_progress("bob"), others_progress("eve")) == (
        {"finished": 1, "in_progress": 1},
        {"finished": 2, "in_progress": 0},
    )
    state = blind_test.state(ctx, started_test.id, "ann")
    assert set(state) == {
        "id", "annotator", "model_names", "reward_model_id", "deletion_note", "pair_count", "judged_count", "pair",
        "left_out_note", "others_progress", "result_waits",
    }  # fmt: skip
    assert state["left_out_note"] == "1 pair left out: both models wrote the same text."
    answer(ctx, "eve", test_id=started_test.id, choice="stop")  # one judged, the others not
    _, done = judge(ctx, started_test, "ann", {0: "A", 1: "B", 3: "tie"})
    assert done["others_progress"] == {"finished": 3, "in_progress": 0}
    assert "sentences" in done


def test_a_viewer_cannot_judge_and_sees_no_result(ctx, started_test):
    finish_jobs(ctx, started_test)
    state = blind_test.state(ctx, started_test.id, "")
    assert (state["pair"], state["judged_count"], state["pair_count"]) == (None, 0, 3)
    assert "join code" in state["closed_text"]
    assert "sentences" not in state


def test_a_text_that_could_not_be_written_says_why(ctx, started_test):
    queue.fail(ctx.db, started_test.second_job, "There is no checkpoint.")
    state = blind_test.state(ctx, None, "ann")
    assert (state["failure"], state["is_waiting"]) == ("There is no checkpoint.", False)


def test_of_best_of_n_the_chosen_texts_are_judged(ctx, started_test):
    test = start(ctx, models=["base/best/4", "run/1/latest"], pairs="2")
    for job in blind_test.test_jobs(ctx, started_test):
        queue.cancel(ctx.db, job.id)
    eight = ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"]
    finish_jobs(ctx, test, (eight, ["A", "B"]), ((0, 3, 1, 2, 5, 4, 3, 2), (1, 1)))
    judged, done = judge(ctx, test, "ann", {0: "a2", 1: "b1"})
    assert judged == [(0, {"a2", "A"}), (1, {"b1", "B"})]
    assert done["model_names"] == ["base, best of 4", "run 1, latest step"]
    assert done["rows"][1]["turns"] == [user(blind_test.test_jobs(ctx, test)[1].payload["prompts"][1])]

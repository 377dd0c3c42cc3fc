"""Blind tests without a browser: what is asked of the engine, what a judge sees and may say, and how a test comes out."""

from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest

from rlhf_lab.common.enums import Choice, JobKind, Source
from rlhf_lab.common.records import LabelSnapshot
from rlhf_lab.errors import LabError, StaleVoteError
from rlhf_lab.jobs import engine_process, queue
from rlhf_lab.jobs.project_setup import copy_project
from rlhf_lab.store.blind_tests import answers, blind_tests
from rlhf_lab.store.projects import prompts
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.ui.screens import blind_test, compare
from rlhf_lab.ui.services import generation_requests
from rlhf_lab.ui.services.blind_results import BlindPair

SAID = {
    "models": ["base", "run/1/40", ""], "pairs": "4", "seed": "7", "temperature": "0.8", "tokens": "40", "reward": "1",
}  # fmt: skip
BASE, RUN = ["a", "b", "same", "d"], ["A", "B", "same", "D"]


@pytest.fixture
def begun(ctx):
    pinned = LabelSnapshot((), "", Source.HUMAN)
    add_reward_model(ctx.db, ctx.project.id, "x", config={}, report={"accuracy": 0.8}, snapshot=pinned)
    return blind_test.start_test(ctx, SAID)


def written(ctx, test, texts=(BASE, RUN), scores=((1.0, 1.0, 1.0, 0.5), (2.0, 0.0, 1.0, 0.5)), left_out=None):
    """The engine has written for both; left_out: the places of prompts that were too long, None as earlier versions say it."""
    more = {} if left_out is None else {"left_out": list(left_out)}
    for job, mine, given in zip(blind_test.test_jobs(ctx, test), texts, scores, strict=True):
        queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
        queue.finish(ctx.db, job.id, {"texts": mine, "scores": list(given)} | more)


def judge(ctx, test, annotator, wanted):
    """Say to each pair what is wanted of it: the text on whichever side it stands, or "tie"."""
    seen = []
    while (state := blind_test.state(ctx, test.id, annotator))["pair"]:
        pair = state["pair"]
        text = wanted[pair["position"]]
        side = text if text == "tie" else "left" if pair["left"] == text else "right"
        blind_test.record_preference(ctx, {"test": test.id, "position": pair["position"], "prefer": side}, annotator)
        seen.append((pair["position"], {pair["left"], pair["right"]}))
    return seen, state


def test_both_models_are_asked_for_the_same_prompts_that_nothing_was_trained_on(ctx, begun):
    first, second = (job.payload for job in blind_test.test_jobs(ctx, begun))
    aside = [prompt.text for prompt in prompts(ctx.db, ctx.project.id, "eval")]
    assert (first["checkpoint"], second["checkpoint"]) == ("base", "run/1/40")
    assert first["prompts"] == second["prompts"]
    assert len(set(first["prompts"])) == 4
    assert set(first["prompts"]) <= set(aside)
    assert first["prompts"] != aside[:4]
    for payload in (first, second):
        assert (payload["seed"], payload["temperature"], payload["max_new_tokens"], payload["reward_model_id"]) == (
            7,
            0.8,
            40,
            1,
        )
    again, other = blind_test.start_test(ctx, SAID), blind_test.start_test(ctx, SAID | {"seed": "8"})
    assert blind_test.test_jobs(ctx, again)[0].payload == first
    assert blind_test.test_jobs(ctx, other)[0].payload["prompts"] != first["prompts"]
    assert blind_test.list_tests(ctx)[-1] == [begun.id, "base model against run 1, step 40"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"models": ["base", "base"]}, "two different models"), ({"models": ["base"]}, "two different models"),
        ({"models": "base"}, "no models"), ({"pairs": "65"}, "from 1 to 64"), ({"pairs": "many"}, "whole number"),
        ({"models": ["base", "base/best/16"], "pairs": "5"}, "80 texts; at most 64"), ({"temperature": "0"}, "temperature"),
        ({"reward": "x"}, "no reward model"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_and_leaves_nothing(ctx, begun, change, words):
    before = len(queue.jobs(ctx.db))
    with pytest.raises(LabError, match=words):
        blind_test.start_test(ctx, SAID | change)
    assert (len(queue.jobs(ctx.db)), len(blind_tests(ctx.db, ctx.project.id))) == (before, 1)


def test_no_more_pairs_than_prompts_are_kept_aside(ctx, begun, monkeypatch):
    monkeypatch.setattr(blind_test, "prompts", lambda db, project, split: prompts(db, project, split)[:3])
    with pytest.raises(generation_requests.FieldError, match="keeps 3 prompts aside") as refused:
        blind_test.start_test(ctx, SAID)
    assert refused.value.field == "pairs"


def test_a_judge_sees_texts_without_names_and_then_how_it_came_out(ctx, begun):
    assert blind_test.state(ctx, None, "ann") == {
        "id": begun.id, "names": ["base model", "run 1, step 40"], "reward": 1, "waiting": True, "failed": None,
        "losing": "with its texts (nobody had answered)",
    }  # fmt: skip
    written(ctx, begun)
    state = blind_test.state(ctx, begun.id, "ann")
    assert (state["count"], state["alike"], state["judged"]) == (3, 1, 0)
    assert set(state["pair"]) == {"position", "prompt", "left", "right"}
    assert "lines" not in state
    seen, done = judge(ctx, begun, "ann", {0: "A", 1: "B", 3: "tie"})
    assert seen == [
        (0, {"a", "A"}),
        (1, {"b", "B"}),
        (3, {"d", "D"}),
    ]  # where both wrote the same there is nothing to say
    assert answers(ctx.db, begun.id) == {"ann": {0: Choice.SECOND, 1: Choice.SECOND, 3: Choice.TIE}}
    assert done["lines"] == [
        "You like run 1, step 40 more often: 2 of 2 decided pairs (100 %, 95 % interval 34 to 100 %), 1 tie. "
        "It may be chance: the interval holds one half.",
        "On the same pairs reward model 1 likes both as often: 1 of 2 decided pairs each, 1 tie.",
        "Where you and it both decided, you agreed on 1 of 2.",
    ]
    asked = blind_test.test_jobs(ctx, begun)[0].payload["prompts"]
    assert done["rows"][0] == {"prompt": asked[0], "first": "a", "second": "A", "choice": "second"}
    assert [row["choice"] for row in done["rows"]] == ["second", "second", "tie"]


def test_sides_are_dealt_for_everybody_anew(ctx, begun):
    written(ctx, begun)
    sides = [blind_test.state(ctx, begun.id, f"person {i}")["pair"]["left"] for i in range(64)]
    assert 16 < sides.count("a") < 48
    assert sides == [blind_test.state(ctx, begun.id, f"person {i}")["pair"]["left"] for i in range(64)]


def test_several_people_and_one_who_stops(ctx, begun):
    written(ctx, begun)
    judge(ctx, begun, "ann", {0: "A", 1: "B", 3: "D"})
    judge(ctx, begun, "bob", {0: "a", 1: "B", 3: "tie"})
    pair = blind_test.state(ctx, begun.id, "eve")["pair"]
    side = "left" if pair["left"] == "a" else "right"
    blind_test.record_preference(ctx, {"test": begun.id, "position": 0, "prefer": side}, "eve")
    stopped = blind_test.record_preference(ctx, {"test": begun.id, "prefer": "stop"}, "eve")
    assert stopped["lines"][:2] == [
        "You like the base model more often: 1 of 1 decided pairs (100 %, 95 % interval 21 to 100 %). "
        "It may be chance: the interval holds one half.",
        "All 3 people together like run 1, step 40 more often: 4 of 6 decided answers to 3 pairs (67 %; an interval takes "
        "5 pairs), 1 tie.",
    ]
    assert stopped["lines"][3] == "Where you and it both decided, you agreed on 0 of 1."
    assert len(stopped["rows"]) == 1
    nobody = blind_test.record_preference(ctx, {"test": begun.id, "prefer": "stop"}, "zoe")
    assert nobody["lines"][0] == "You decided no pair."
    assert nobody["lines"][1].startswith("All 3 people")  # who said nothing is not one of them


def test_a_test_is_renamed_and_deleted_with_what_was_said(ctx, begun):
    written(ctx, begun)
    other = blind_test.start_test(ctx, SAID)
    judge(ctx, begun, "ann", {0: "A", 1: "B", 3: "D"})
    told = blind_test.edit_test(ctx, {"test": begun.id, "do": "rename", "name": "  before  the switch "}, "ann")
    assert told["done"] == f'Test {begun.id} is called "before the switch" now.'
    assert told["test"] == blind_test.state(ctx, begun.id, "ann")
    assert blind_test.list_tests(ctx) == [
        [other.id, "base model against run 1, step 40"],
        [begun.id, "before the switch"],
    ]
    assert blind_test.state(ctx, begun.id, "")["losing"] == "with its texts and 3 answers of one person"
    judge(ctx, begun, "bob", {0: "a", 1: "B", 3: "tie"})
    told = blind_test.edit_test(ctx, {"test": begun.id, "do": "delete"}, "ann")
    assert told["done"] == f"Test {begun.id} is deleted, with its texts and 6 answers of 2 people."
    assert (told["test"]["id"], told["test"]["losing"]) == (other.id, "with its texts (nobody had answered)")
    assert blind_test.list_tests(ctx) == [[other.id, "base model against run 1, step 40"]]
    assert blind_test.state(ctx, begun.id, "bob") == {"id": None}
    with pytest.raises(StaleVoteError, match="not there any more"):
        blind_test.record_preference(ctx, {"test": begun.id, "position": 0, "prefer": "left"}, "eve")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"test": 1, "do": "rename", "name": " "}, "1 to 80 characters"), ({"test": 1, "do": "rename"}, "1 to 80 characters"),
        ({"test": 1, "do": "rename", "name": "x" * 81}, "1 to 80 characters"), ({"test": 1, "do": "burn"}, "no change"),
        ({"do": "delete"}, "not there any more"), ({"test": 99, "do": "delete"}, "not there any more"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_is_refused(ctx, begun, said, words):
    with pytest.raises(LabError, match=words):
        blind_test.edit_test(ctx, said, "ann")
    assert blind_test.list_tests(ctx) == [[begun.id, "base model against run 1, step 40"]]
    copy_project(ctx.db, ctx.project)
    with pytest.raises(LabError, match="not there any more"):
        blind_test.edit_test(ctx, {"test": begun.id, "do": "delete"}, "ann")


def test_only_who_may_begin_a_test_may_rename_or_delete_it(ctx, begun, in_loop):
    guarded = replace(ctx, operator_secret="sesame")

    def make():
        with gr.Blocks() as page:
            compare.build(guarded, gr.BrowserState())
        return page

    acts = {event.fn.__name__: event.fn for event in in_loop(make).fns.values()}
    rename = SimpleNamespace(_data={"at": 1, "annotator": "ann", "test": begun.id, "do": "rename", "name": "mine"})
    for wrong in (None, "", "open"):
        for act, said in (("manage", rename), ("begin", SimpleNamespace(_data=SAID | {"at": 1, "annotator": "ann"}))):
            assert "operator" in acts[act](wrong, said)["error"]
    assert blind_test.list_tests(ctx) == [[begun.id, "base model against run 1, step 40"]]
    reply = acts["manage"]("sesame", rename)
    assert (reply["at"], reply["tests"]) == (1, [[begun.id, "mine"]])


def test_answers_to_what_is_not_there_are_refused_and_nothing_is_recorded(ctx, begun):
    with pytest.raises(StaleVoteError, match="not written yet"):
        blind_test.record_preference(ctx, {"test": begun.id, "position": 0, "prefer": "left"}, "ann")
    written(ctx, begun)
    for wrong in ({"position": 2}, {"position": 4}, {"position": -1}):  # alike; beyond the end; before the beginning
        with pytest.raises(StaleVoteError, match="judged already"):
            blind_test.record_preference(ctx, {"test": begun.id, "prefer": "left"} | wrong, "ann")
    for wrong in (
        {"position": "x"},
        {"position": None},
        {"prefer": "second"},
        {"prefer": ["left"]},
        {"position": 1e999},
    ):
        with pytest.raises(LabError, match="no usable answer"):
            blind_test.record_preference(ctx, {"test": begun.id, "position": 0, "prefer": "left"} | wrong, "ann")
    with pytest.raises(StaleVoteError, match="not there any more"):
        blind_test.record_preference(ctx, {"test": begun.id + 1, "position": 0, "prefer": "left"}, "ann")
    blind_test.record_preference(ctx, {"test": begun.id, "position": 0, "prefer": "tie"}, "ann")
    with pytest.raises(StaleVoteError, match="judged already"):
        blind_test.record_preference(ctx, {"test": begun.id, "position": 0, "prefer": "left"}, "ann")
    assert answers(ctx.db, begun.id) == {"ann": {0: Choice.TIE}}
    copy_project(ctx.db, ctx.project)  # another project is open: what was asked about is not this one's
    assert blind_test.state(ctx, begun.id, "ann") == {"id": None}
    assert blind_test.list_tests(ctx) == []


def test_prompts_that_were_too_long_are_left_out_and_the_others_keep_their_places(ctx, begun):
    assert all(job.payload["leave_out"] is True for job in blind_test.test_jobs(ctx, begun))
    written(ctx, begun, (["b", "d"], ["B", "D"]), ((1.0, 0.5), (0.0, 0.75)), (0, 2))
    state = blind_test.state(ctx, begun.id, "ann")
    assert (state["count"], state["alike"], state["judged"]) == (2, 0, 0)
    assert state["left_out"] == "2 prompts left out: too long for the model with 40 new tokens"
    for gone in (0, 2, 4):
        with pytest.raises(StaleVoteError, match="judged already"):
            blind_test.record_preference(ctx, {"test": begun.id, "position": gone, "prefer": "left"}, "ann")
    seen, done = judge(ctx, begun, "ann", {1: "b", 3: "D"})
    assert seen == [(1, {"b", "B"}), (3, {"d", "D"})]
    assert answers(ctx.db, begun.id) == {"ann": {1: Choice.FIRST, 3: Choice.SECOND}}
    asked = blind_test.test_jobs(ctx, begun)[0].payload["prompts"]
    assert [row["prompt"] for row in done["rows"]] == [asked[1], asked[3]]
    assert done["lines"][-1] == "Where you and it both decided, you agreed on 2 of 2."
    assert done["left_out"] == state["left_out"]


def test_of_best_of_n_a_prompt_is_left_out_with_all_its_texts(ctx, begun):
    """Two prompts, the first too long: of the first model its four texts are left out, of the second its one."""
    test = blind_test.start_test(ctx, SAID | {"models": ["base/best/4", "run/1/latest"], "pairs": "2"})
    for job in blind_test.test_jobs(ctx, begun):
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
    assert (state["count"], state["pair"]["position"]) == (1, 1)
    assert state["left_out"] == "1 prompt left out: too long for the model with 40 new tokens"


def test_where_one_model_left_out_more_what_both_wrote_is_judged(ctx, begun):
    """So it is if a folder's model was changed between the two jobs."""
    first, second = blind_test.test_jobs(ctx, begun)
    for job, result in (
        (first, {"texts": ["a", "b", "d"], "left_out": [2]}), (second, {"texts": ["B", "C", "D"], "left_out": [0]})
    ):  # fmt: skip
        queue.claim(ctx.db, [JobKind.COMPLETE], engine_process.record_heartbeat(ctx.db, "x"))
        queue.finish(ctx.db, job.id, result)
    couples = blind_test.pair_texts(*blind_test.test_jobs(ctx, begun))
    assert {at: (couple.first, couple.second, couple.scores) for at, couple in couples.items()} == {
        1: ("b", "B", None), 3: ("d", "D", None)
    }  # fmt: skip
    assert blind_test.state(ctx, begun.id, "ann")["left_out"].startswith("2 prompts left out")


def test_everybody_learns_how_far_the_others_are_and_nothing_else(ctx, begun):
    """Three pairs differ. Bob judges all, Eve one, Zoe none but stops; Ann is never one of her own others."""
    written(ctx, begun)

    def seen(annotator):
        return blind_test.state(ctx, begun.id, annotator)["others"]

    assert seen("ann") == {"done": 0, "at_it": 0}
    judge(ctx, begun, "bob", {0: "a", 1: "B"} | {3: "tie"})
    assert seen("ann") == {"done": 1, "at_it": 0}
    blind_test.record_preference(ctx, {"test": begun.id, "position": 1, "prefer": "tie"}, "eve")
    assert seen("ann") == {"done": 1, "at_it": 1}
    blind_test.record_preference(ctx, {"test": begun.id, "prefer": "stop"}, "zoe")
    assert (seen("ann"), seen("bob"), seen("eve"), seen("")) == (
        {"done": 2, "at_it": 1}, {"done": 1, "at_it": 1}, {"done": 2, "at_it": 0}, {"done": 2, "at_it": 1},
    )  # fmt: skip
    state = blind_test.state(ctx, begun.id, "ann")
    assert set(state) == {
        "id", "names", "reward", "losing", "count", "alike", "judged", "pair", "left_out", "others"
    }  # fmt: skip
    assert state["left_out"] == ""
    blind_test.record_preference(ctx, {"test": begun.id, "prefer": "stop"}, "eve")  # one judged, the others left
    _, done = judge(ctx, begun, "ann", {0: "A", 1: "B", 3: "tie"})
    assert done["others"] == {"done": 3, "at_it": 0}
    assert "lines" in done


def test_who_may_only_look_judges_nothing_and_is_told_nothing(ctx, begun):
    written(ctx, begun)
    state = blind_test.state(ctx, begun.id, "")
    assert state["pair"] is None
    assert "join code" in state["closed"]
    assert "lines" not in state


def test_a_text_that_could_not_be_written_says_why(ctx, begun):
    queue.fail(ctx.db, begun.second_job, "There is no checkpoint.")
    state = blind_test.state(ctx, None, "ann")
    assert (state["failed"], state["waiting"]) == ("There is no checkpoint.", False)


def test_of_best_of_n_the_chosen_texts_are_judged(ctx, begun):
    test = blind_test.start_test(ctx, SAID | {"models": ["base/best/4", "run/1/latest"], "pairs": "2"})
    for job in blind_test.test_jobs(ctx, begun):
        queue.cancel(ctx.db, job.id)
    eight = ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "b4"]
    written(ctx, test, (eight, ["A", "B"]), ((0, 3, 1, 2, 5, 4, 3, 2), (1, 1)))
    seen, done = judge(ctx, test, "ann", {0: "a2", 1: "b1"})
    assert seen == [(0, {"a2", "A"}), (1, {"b1", "B"})]
    assert done["names"] == ["base, best of 4", "run 1, latest step"]
    assert done["rows"][1]["prompt"] == blind_test.test_jobs(ctx, test)[1].payload["prompts"][1]

"""Nobody sees how another person answered a pair that they may still be asked to judge themselves."""

from types import SimpleNamespace

import pytest
from gradio.context import LocalContext
from support.page_requests import requests_of

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import Role, Vote
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.store.annotators import add_person
from rlhf_lab.store.label_snapshots import snapshot_labels
from rlhf_lab.store.project_people import set_expert
from rlhf_lab.store.projects import newest_pairs, set_labelling_config
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.votes import cast_vote, find_vote, vote_history
from rlhf_lab.ui.auth.visitors import Visitor
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.reward import api as reward
from rlhf_lab.ui.runs.quality import api as quality


@pytest.fixture
def lab(ctx, calls):
    """Bob preferred the first text of three pairs; Ann judged the first pair and skipped the second. The reward model doubts
    all of Bob's labels."""
    lab = ctx.as_multi_user(open_to_all=False)
    for name in ("Ann", "Bob"):
        add_person(lab.db, name)
    pairs = newest_pairs(lab.db, lab.project.id, 3)

    def cast(name, number, choice, source=Source.HUMAN, **more):
        uuid = f"{name} {number} {more}"
        return cast_vote(lab.db, Vote(uuid, pairs[number].id, name, source, choice, True, **more))

    bobs = [cast("Bob", number, Choice.FIRST).id for number in range(3)]
    cast("Ann", 0, Choice.SECOND)
    cast("Ann", 1, Choice.SKIP)
    add_model(lab, Source.HUMAN, bobs)
    return SimpleNamespace(ctx=lab, pairs=pairs, cast=cast, reward=calls(reward, lab), quality=calls(quality, lab))


def add_model(ctx, source, votes):
    snapshot = snapshot_labels(ctx.db, ctx.project.id, source)
    report = {"disagreements": [{"index": snapshot.vote_ids.index(vote), "probability": 0.1} for vote in votes]}
    return add_reward_model(ctx.db, ctx.project.id, "x", config={}, report=report, snapshot=snapshot)


@pytest.fixture
def act_as(lab):
    """act_as(name): from now on that person sends the requests; "" is a viewer."""
    tokens, access = [], lab.ctx.access

    def become(name):
        role = Role.OPERATOR if name == "operator" else Role.LABELLER
        cookies = {access.login_cookie_name: access.cookie_value(Visitor(role, name))} if name else {}
        tokens.append(LocalContext.request.set(SimpleNamespace(cookies=cookies, headers={"host": "lab.example"})))

    yield become
    for token in reversed(tokens):
        LocalContext.request.reset(token)


def shown_pairs(lab, model=1, source="human"):
    """The numbers of the pairs with an answer that each part shows: disagreements, examples, and unlikely labels."""
    report = lab.reward.report({"model": model})
    texts = {row["chosen"] for row in report["disagreements"]}
    examples = {row["text"] for row in report["example_texts"] if row["tag"] == "preferred"}
    doubtful = lab.quality.state({"source": source})["figures"]["unlikely_labels"]["labels"]
    sides = [{side.text.strip() for side in (pair.first, pair.second)} for pair in lab.pairs]

    def numbers(some):
        return {number for number, side in enumerate(sides) if side & some}

    return numbers(texts), numbers(examples), numbers({row["first"].strip() for row in doubtful})


@pytest.mark.parametrize(
    ("name", "expected"), [("operator", {0, 1, 2}), ("Bob", {0, 1, 2}), ("Ann", {0}), ("Cy", set()), ("", set())]
)
def test_answers_are_shown_to_those_who_have_judged_the_pair(lab, act_as, name, expected):
    act_as(name)
    assert shown_pairs(lab) == (expected,) * 3


def test_a_pair_that_may_come_back_as_a_hidden_repeat_is_not_judged_yet(lab, act_as):
    set_labelling_config(lab.ctx.db, lab.ctx.project.id, LabellingConfig(repeats=0.2))
    act_as("Ann")
    assert shown_pairs(lab) == (set(),) * 3
    lab.cast("Ann", 0, Choice.SECOND, repeat=True)
    assert shown_pairs(lab) == ({0},) * 3


def test_an_expert_may_still_have_to_decide_a_pair(lab, act_as):
    """Also one on which people agree so far: the next answer may differ."""
    set_expert(lab.ctx.db, lab.ctx.project.id, "Ann", True)
    lab.cast("Ann", 2, Choice.FIRST)
    act_as("Ann")
    assert shown_pairs(lab) == (set(),) * 3
    lab.cast("Eve", 0, Choice.FIRST, adjudication=True)
    lab.cast("Eve", 2, Choice.SKIP, adjudication=True)
    assert shown_pairs(lab) == ({0},) * 3


def test_who_has_seen_the_answers_of_others_keeps_their_own(lab, act_as):
    """Both ways to change an answer; those on pairs that no report shows can still be changed."""
    act_as("Ann")
    screen = requests_of(lab.ctx, label.api)
    assert shown_pairs(lab) == ({0},) * 3
    (seen,) = [vote for vote, _ in vote_history(lab.ctx.db, lab.ctx.project.id, "Ann") if vote.choice is Choice.SECOND]
    amended = screen.amend({"vote_id": seen.id, "uuid": "again", "choice": "tie"})
    assert "your answer stays as it is" in amended["notice"]
    assert "was undone" in screen.undo()["notice"]  # the skipped pair
    assert "your answer stays as it is" in screen.undo()["notice"]
    assert shown_pairs(lab) == ({0},) * 3
    assert find_vote(lab.ctx.db, seen.uuid) == seen


def test_an_answer_can_be_changed_as_long_as_the_others_are_hidden(lab, act_as):
    new, *_ = newest_pairs(lab.ctx.db, lab.ctx.project.id, 4)
    vote = cast_vote(lab.ctx.db, Vote("own", new.id, "Ann", Source.HUMAN, Choice.FIRST, True))
    cast_vote(lab.ctx.db, Vote("other", new.id, "Bob", Source.HUMAN, Choice.FIRST, True))
    act_as("Ann")
    screen = requests_of(lab.ctx, label.api)
    assert "was changed" in screen.amend({"vote_id": vote.id, "uuid": "b", "choice": "tie"})["notice"]
    assert "was undone" in screen.undo()["notice"]


def test_an_own_answer_in_a_report_can_be_changed(lab, act_as):
    """Bob's answers are shown, but nobody else's on the second and third pair."""
    act_as("Bob")
    screen = requests_of(lab.ctx, label.api)
    assert ["was undone" in screen.undo()["notice"] for _ in range(3)] == [True, True, False]


def test_nothing_is_fixed_where_it_would_reveal_a_gold_pair(lab, act_as):
    """Reports show no answers there, so everybody may change theirs, whoever else has judged the pair."""
    set_labelling_config(lab.ctx.db, lab.ctx.project.id, LabellingConfig(gold_rate=0.2))
    act_as("Ann")
    screen = requests_of(lab.ctx, label.api)
    assert ["was undone" in screen.undo()["notice"] for _ in range(2)] == [True, True]


def test_answers_of_a_judge_are_shown_to_everybody(lab, act_as):
    model = add_model(lab.ctx, Source.SIMULATED, [lab.cast("judge:vivid", 2, Choice.FIRST, Source.SIMULATED).id])
    for name in ("Ann", ""):
        act_as(name)
        assert shown_pairs(lab, model.id, "simulated") == ({2},) * 3

"""What a person sees of a blind comparison does not depend on what is hidden from them."""

import itertools
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.page_requests import requests_of

from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.records import LabelSnapshot, PairKey, Role, Vote
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.jobs.retraining import LABELS_PER_RETRAINING
from rlhf_lab.quality.tournament import Contestant
from rlhf_lab.store import pair_selection
from rlhf_lab.store.database import Database
from rlhf_lab.store.gold_pairs import mark_gold
from rlhf_lab.store.label_snapshots import labels_with_gold, snapshot_labels
from rlhf_lab.store.pair_leases import lease_next, leased_pairs
from rlhf_lab.store.projects import newest_pairs, set_labelling_config
from rlhf_lab.store.reward_models import add_reward_model
from rlhf_lab.store.reward_scores import add_scores
from rlhf_lab.store.votes import cast_vote, vote_history
from rlhf_lab.ui.auth.visitors import LOCAL_ACCESS, Visitor
from rlhf_lab.ui.compare.blind_results import BlindPair
from rlhf_lab.ui.compare.blind_test import api as blind_test
from rlhf_lab.ui.compare.tournament import api as tournament
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.http_api import endpoints
from rlhf_lab.ui.label import api as label
from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.shared import voting
from rlhf_lab.ui.shared.presence import PRESENCE

PAIRS = [PairKey(position, *models) for position in range(8) for models in itertools.combinations(range(4), 2)]
CONTESTANTS = [Contestant(f"m{i}", [f"{i}{position}" for position in range(8)], None, [0.0] * 8) for i in range(4)]
JOB = SimpleNamespace(result={"prompts": ["P"] * 8})


def lab_with_key(ctx, key):
    return replace(ctx, access=replace(LOCAL_ACCESS, key=key))


def tournament_views(ctx):
    return [tournament._pair_view(ctx, 3, key, CONTESTANTS, JOB, "ann") for key in PAIRS]


def blind_test_views(ctx):
    return [blind_test.pair_view(ctx, 3, i, BlindPair("P", "a", "b", None), "ann") for i in range(48)]


def label_views(ctx):
    """Ids and sides of the pairs of a lab with gold pairs."""
    shown = [voting.shown_as(ctx, "ann", i) for i in range(1, 49)]
    return [{"token": shown_id, "left": first_on_left} for shown_id, first_on_left in shown]


@pytest.mark.parametrize("views", [tournament_views, blind_test_views, label_views])
def test_ids_tokens_and_sides_cannot_be_computed_without_the_labs_key(ctx, views):
    first, again, other = (views(lab_with_key(ctx, key)) for key in (b"a" * 32, b"a" * 32, b"b" * 32))
    assert first == again  # also after a reload
    assert {view["token"] for view in first}.isdisjoint(view["token"] for view in other)
    flipped = sum(view["left"] != another["left"] for view, another in zip(first, other, strict=True))
    assert 10 < flipped < 38  # of 48, half of them on average


def test_trying_all_contestants_does_not_reveal_those_of_a_token(ctx):
    lab = lab_with_key(ctx, b"a" * 32)
    tokens = {view["token"] for view in tournament_views(lab)}
    tried = {str(derive_seed(3, *key, "ann")) for key in itertools.product(range(8), repeat=3)}
    tried |= {lab_with_key(ctx, b"\0").blind_token("tournament", 3, *key, "ann") for key in PAIRS}
    assert tokens.isdisjoint(tried)
    assert len(tokens) == len(PAIRS)


def test_a_local_lab_has_a_key_of_its_own_that_stays(ctx):
    sides = [
        [Context(home, ctx.db).blind_side("x", i) for i in range(64)] for home in (ctx.home, ctx.home, ctx.home / "b")
    ]
    assert sides[0] == sides[1] != sides[2]
    shared = Context(ctx.home, ctx.db).as_multi_user(open_to_all=True)
    assert [shared.blind_side("x", i) for i in range(64)] == sides[0]


def test_a_hidden_repeat_has_the_same_id_and_the_sides_swapped(ctx):
    lab = lab_with_key(ctx, b"k" * 32)
    for pair_id in range(1, 20):
        shown_id, first_on_left = voting.shown_as(lab, "ann", pair_id)
        assert voting.shown_as(lab, "ann", pair_id, repeat=True) == (shown_id, not first_on_left)


def test_no_vote_finds_out_which_pairs_exist_or_what_their_own_ids_are(ctx, monkeypatch):
    """The own id of a pair tells how old it is, and an old pair is more likely a gold pair."""
    monkeypatch.setattr(Context, "visitor", lambda *_: Visitor(Role.LABELLER, "Ann"))
    screen = requests_of(ctx.as_multi_user(open_to_all=False), label.api)
    judged = screen.opened()["pair"]
    shown = screen.vote({"uuid": "1", "pair_id": judged["id"], "choice": "tie"})
    leased = list(leased_pairs(ctx.db, "Ann"))
    judged_id = vote_history(ctx.db, ctx.project.id, "Ann")[0][0].pair_id
    free = [pair.id for pair in newest_pairs(ctx.db, ctx.project.id, 200) if pair.id not in {*leased, judged_id}]
    numbers = [*leased, judged_id, *free[:3], 0, -1, 9**9]
    assert len(leased) == 2
    texts = [shown["pair"]["left"], shown["pair"]["right"], judged["left"], judged["right"], "x" * 30_000, ""]
    notices = {
        screen.vote({"uuid": f"{number}-{i}", "pair_id": number, "choice": choice, "edit": text})["notice"]
        for number in numbers
        for i, text in enumerate(texts)
        for choice in (("left", "skip") if not i else ("left",))
    }
    notices = {notice.partition(" Your edited text was: ")[0] for notice in notices}
    assert notices == {
        "That pair was deleted or was not given to you; here is the next one. Your vote was not counted."
    }
    assert screen.vote({"uuid": "2", "pair_id": shown["pair"]["id"], "choice": "tie"})["labels"] == 2


def test_parts_of_a_token_cannot_be_shifted_into_each_other(ctx):
    lab = lab_with_key(ctx, b"a" * 32)
    assert (
        len({lab.blind_token(*parts) for parts in (("a", 1, 2), ("a", 12), ("a/1", 2), ("a", "1", 2), ('a", 1', 2))})
        == 5
    )


# ---- gold pairs: what a labeller reads is the same whether the pair that they judged is a gold pair or an ordinary one

RULES = LabellingConfig(gold_rate=0.5, gold_rule="inform")


def without_texts(value):
    """JSON without the texts of pairs, and without times and random names of requests."""
    if isinstance(value, dict):
        left_out = {
            "turns",
            "left",
            "right",
            "prompt",
            "counted_at",
            "request_id",
            "uptime",
            "revision",
            "age_s",
            "created_at",
        }
        texts = {"id"} if "left" in value else set()
        return {key: without_texts(item) for key, item in value.items() if key not in left_out | texts}
    return [without_texts(item) for item in value] if isinstance(value, list) else value


def reads(ctx):
    """{name of the screen and of the request: what reads something} of the whole page."""
    return {
        f"lab-{api.screen}.{name}": getattr(requests_of(ctx, api), name)
        for api in APIS
        for name, endpoint in api.endpoints.items()
        if endpoint.is_read
    }


@pytest.fixture
def two_labs(ctx, tmp_path, monkeypatch):
    """The same lab twice, in which Ann judges as her next pair a gold pair or an ordinary one. In both, pairs have been judged by
    Eve and by Ann, and a reward model has scored all texts."""
    project = ctx.project.id
    pairs = newest_pairs(ctx.db, project, 12)
    for number, pair in enumerate(pairs[:6]):
        vote = cast_vote(ctx.db, Vote(f"e{number}", pair.id, "Eve", Source.HUMAN, Choice.FIRST, True))
        if number < 4:
            mark_gold(ctx.db, project, "Eve", vote.id, True)
    for pair in pairs[1:3]:
        cast_vote(ctx.db, Vote(f"a{pair.id}", pair.id, "Ann", Source.HUMAN, Choice.SECOND, True))
    set_labelling_config(ctx.db, project, RULES)
    model = add_reward_model(
        ctx.db,
        project,
        "x",
        config={},
        report={"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6},
        snapshot=LabelSnapshot((), "", Source.HUMAN),
    )
    add_scores(ctx.db, model.id, {side.id: 1.0 * side.id for pair in pairs[6:] for side in (pair.first, pair.second)})
    ctx.db.close()
    labs = []
    for name, pair in (("gold", pairs[0]), ("ordinary", pairs[8])):
        home = tmp_path.with_name(f"{tmp_path.name}-{name}")
        shutil.copytree(tmp_path, home)
        lab = Context(home, Database.open(home)).as_multi_user(open_to_all=False)
        labs.append((lab, pair))
    yield labs
    for lab, _ in labs:
        lab.db.close()


def figures_after_answer(lab, pair):
    """Everything that Ann can read after she has judged a pair."""
    PRESENCE._last_seen.clear()
    lease_next(lab.db, pair.id, "Ann", RULES)
    shown_id = label.state(lab, "Ann")["pair"]["id"]
    answer = {"uuid": "new", "pair_id": shown_id, "choice": "left"}
    figures = {
        "vote": requests_of(lab, label.api).vote(answer),
        "status": endpoints(lab)[2](),
        **{name: read({"annotator": "Ann", "vote_uuid": "new", "model": 1}) for name, read in reads(lab).items()},
    }
    return json.loads(json.dumps(without_texts(figures)))


def add_model(lab):
    """A reward model with the figures that are computed from the labels it was trained on, votes on gold pairs left out."""
    project, db = lab.project.id, lab.db
    snapshot = snapshot_labels(db, project, Source.HUMAN)
    count = len(snapshot.vote_ids)
    report = {
        "accuracy": 0.75 + count / 1e4, "accuracy_low": 0.5 + count / 1e4, "accuracy_high": 0.9, "ties": count,
        "chosen_scores": [0.5] * count, "rejected_scores": [0.1] * count, "loss": [0.7] * count, "seconds": count,
        "calibration": [[0.5, 0.5, count]], "note": f"{count}", "disagreements": [{"index": count - 1, "probability": 0.1}],
    }  # fmt: skip
    report |= labels_with_gold(db, project, Source.HUMAN)
    return add_reward_model(db, project, "y", config={}, report=report, snapshot=snapshot), count


def test_no_figure_of_a_reward_model_tells_whether_a_vote_was_on_a_gold_pair(two_labs, monkeypatch):
    monkeypatch.setattr(Context, "visitor", lambda *_: Visitor(Role.LABELLER, "Ann"))
    monkeypatch.setattr(pair_selection.secrets, "randbelow", lambda _: 9_999)
    seen, counts = [], []
    for lab, pair in two_labs:
        figures_after_answer(lab, pair)
        later = replace(lab)  # without cached replies
        model, count = add_model(later)
        counts.append(count)
        query = {"annotator": "Ann", "vote_uuid": "new", "model": model.id}
        figures = {name: read(query) for name, read in reads(later).items()} | {"status": endpoints(later)[2]()}
        seen.append(json.loads(json.dumps(without_texts(figures))))
    gold, ordinary = seen
    assert counts[0] == counts[1] - 1  # the figures would differ
    assert {name: (gold[name], ordinary[name]) for name in gold if gold[name] != ordinary[name]} == {}
    assert gold["lab-reward.state"]["models"][0]["labels"] == gold["status"]["labels"] == 9
    assert gold["status"]["goal"] == 9 + LABELS_PER_RETRAINING
    assert gold["lab-reward.report"]["id"] == 2


def test_no_figure_tells_a_gold_pair_from_an_ordinary_one(two_labs, monkeypatch):
    monkeypatch.setattr(Context, "visitor", lambda *_: Visitor(Role.LABELLER, "Ann"))
    monkeypatch.setattr(pair_selection.secrets, "randbelow", lambda _: 9_999)  # no gold pair is drawn
    gold, ordinary = (figures_after_answer(lab, pair) for lab, pair in two_labs)
    assert {name: (gold[name], ordinary[name]) for name in gold if gold[name] != ordinary[name]} == {}
    shown = {
        "vote",
        "status",
        "lab-label.recent_votes",
        "lab-people.state",
        "lab-quality.state",
        "lab-reward.state",
    }
    assert shown <= {name for name, figures in gold.items() if figures is False or "error" not in figures}
    assert gold["lab-reward.report"]["example_texts"] == []  # the next ordinary pair would be the one that is not shown
    assert gold["status"]["labels"] == 9
    assert len(gold["lab-label.recent_votes"]) == 3
    assert [row["labels"] for row in gold["lab-people.state"]["leaderboard"]] == [6, 3]

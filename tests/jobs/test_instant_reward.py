"""The instant reward model: its labels, its predictions of votes before learning them, and one fit for many votes."""

import math
import shutil
import threading
import uuid

import numpy as np
import pytest
import torch

from rlhf_lab.common.enums import Choice, JobKind, Source, Strength
from rlhf_lab.common.records import NewCompletion, Vote
from rlhf_lab.common.stats import cross_validated_interval
from rlhf_lab.config.labelling import LabellingConfig
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.preference_fit import PreferenceTargets
from rlhf_lab.jobs import instant_reward, queue, retraining
from rlhf_lab.jobs.instant_reward import InstantFigures, InstantModel, InstantReward, Prediction
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.store import features, projects
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import StoredText, TextFeatures, add_features
from rlhf_lab.store.votes import cast_vote
from rlhf_lab.training.reward.head_init import HeadFitter, PairAttributes

WIDTH = 12  # two layers of six
TEXT = StoredText("prompt", "text")
NO_ATTRIBUTES = np.zeros((50, 0))


@pytest.fixture
def db(tmp_path, empty_home):
    with Database.open(shutil.copytree(empty_home, tmp_path, dirs_exist_ok=True)) as db:
        yield db


@pytest.fixture
def project(db):
    texts = [(f"prompt {i}", "train") for i in range(40)]
    return projects.create_project(db, "tales", "embedded", "", "tales", 7, texts)


class Texts:
    """Pairs whose first features say how good a text is; a person prefers the better text."""

    def __init__(self, db, project, seed=0):
        self.db, self.project, self.random = db, project, np.random.default_rng(seed)
        self.prompts = projects.prompts(db, project.id, "train")
        self.vectors = {}

    def pairs(self, count, *, with_features=True, prompt=None, shift=0):
        """Of one prompt, or of the prompts from `shift` on."""
        new = [
            NewCompletion(self.prompts[i + shift if prompt is None else prompt].id, f"{side}{i}", (i,), "base", i)
            for i in range(count)
            for side in "ab"
        ]
        sides = projects.add_completions(self.db, new)
        vectors = self.random.normal(size=(2 * count, WIDTH)).astype(np.float16)
        vectors[:, 0] *= 2
        self.vectors |= {side.id: vector for side, vector in zip(sides, vectors, strict=True)}
        if with_features:
            self.store(*(side.id for side in sides))
        ids = [(sides[2 * i].id, sides[2 * i + 1].id, "random") for i in range(count)]
        return projects.add_pairs(self.db, self.project.id, ids)

    def store(self, *ids):
        add_features(self.db, {i: TextFeatures(2, self.vectors[i]) for i in ids})

    def better(self, pair):
        return Choice.FIRST if self.vectors[pair.first.id][0] > self.vectors[pair.second.id][0] else Choice.SECOND

    def vote(self, pair, choice=None, annotator="ann", **more):
        source = Source.SIMULATED if annotator.startswith("judge:") else Source.HUMAN
        vote = Vote(str(uuid.uuid4()), pair.id, annotator, source, choice or self.better(pair), True, **more)
        return cast_vote(self.db, vote)


@pytest.fixture
def texts(db, project):
    return Texts(db, project)


@pytest.fixture
def fixed_ridge(monkeypatch):
    """The ridge does not depend on the labels."""
    monkeypatch.setattr(instant_reward, "choose_ridge", lambda *_: 0.1)


def undo(db, vote):
    from rlhf_lab.store import tables as t

    with db.write() as conn:
        conn.execute(t.votes.update().where(t.votes.c.id == vote.id).values(undone_at=1.0))


def test_it_starts_with_the_sixth_decided_label(db, project, texts):
    model, p = InstantModel(db, project.id), texts.pairs(20)
    texts.vote(p[19], Choice.TIE)
    for pair in p[:5]:
        texts.vote(pair)
    model.update()
    assert model.figures == InstantFigures(project.id, Source.HUMAN, labels=6, decided=5)
    assert model.predict(p[10]) is None
    texts.vote(p[5])
    model.update()
    assert (model.figures.labels, model.figures.decided) == (7, 6)
    assert model.figures.right is not None
    assert isinstance(model.predict(p[10]), Prediction)


def test_it_learns_what_people_prefer(db, project, texts):
    """It learns the direction of the first feature: unlabelled pairs are predicted, and the held-out accuracy is high."""
    model, p = InstantModel(db, project.id), texts.pairs(40)
    for pair in p[:30]:
        texts.vote(pair)
    model.update()
    unseen = [model.predict(pair).choice is texts.better(pair) for pair in p[30:]]
    assert sum(unseen) >= 8
    figures = model.figures
    assert 24 <= figures.right <= 30
    assert figures.low < figures.right / 30 < figures.high <= 1.0


def test_a_score_is_explained_by_the_labels_behind_it(db, project, texts, fixed_ridge):
    """Without the label with the greatest influence the score changes by about this influence, in the units of either fit."""
    model, p = InstantModel(db, project.id), texts.pairs(24)
    assert model.explain(np.ones(WIDTH, np.float32), TEXT) is None
    votes = [texts.vote(pair) for pair in p[:20]]
    votes.append(texts.vote(p[20], Choice.TIE))
    model.update()
    vector = texts.vectors[p[22].first.id].astype(np.float32)
    explained = model.explain(vector, TEXT)
    assert set(explained.influences) == {vote.id for vote in votes}
    prediction = model.predict(p[22])
    assert explained.score == pytest.approx(prediction.first, abs=1e-4)
    assert 0.0 < explained.half_width < 10.0
    strongest = max(votes, key=lambda vote: abs(explained.influences[vote.id]))
    undo(db, strongest)
    model.update()
    change = explained.score - model.explain(vector, TEXT).score
    assert np.sign(change) == np.sign(explained.influences[strongest.id])
    assert model.explain(vector[:5], TEXT) is None


@pytest.mark.parametrize("ignored", [(), ("length",)])
def test_what_the_parts_of_a_text_add_is_its_score(db, project, texts, fixed_ridge, ignored):
    """So are their labels' influences. The first part has three quarters of the weight."""
    model, p = InstantModel(db, project.id, ignored), texts.pairs(24)
    for pair in p[:20]:
        texts.vote(pair)
    model.update()
    vector, part = texts.vectors[p[22].first.id].astype(np.float32), np.linspace(-1, 1, WIDTH, dtype=np.float32)
    whole = model.explain(vector, TEXT)
    first, second = model.explain(part, TEXT, 0.75), model.explain(vector - part, TEXT, 0.25)
    assert first.score + second.score == pytest.approx(whole.score, abs=1e-4)
    assert abs(first.score - second.score) > 0.01
    for vote, influence in whole.influences.items():
        assert first.influences[vote] + second.influences[vote] == pytest.approx(influence, abs=1e-4)


def test_the_page_explains_with_the_newest_labels(db, project, texts):
    """Without the thread, and only texts of the open project."""
    instant, p = InstantReward(db), texts.pairs(12)
    vector = texts.vectors[p[11].first.id].astype(np.float32)
    for pair in p[:8]:
        texts.vote(pair)
    assert len(instant.explain(project.id, vector, TEXT).influences) == 8
    texts.vote(p[8])
    assert len(instant.explain(project.id, vector, TEXT).influences) == 9
    assert instant.explain(project.id + 1, vector, TEXT) is None


def test_texts_get_scores_once_it_is_known_to_have_learned_something(db, project, texts):
    texts.pairs(2)
    pairs = texts.pairs(36)
    model = InstantModel(db, project.id)
    vectors = np.random.default_rng(3).normal(size=(50, WIDTH)).astype(np.float32)
    for pair in pairs[:6]:
        texts.vote(pair)
    model.update()
    assert model.figures.low <= 0.5
    assert model.scores(vectors, NO_ATTRIBUTES) is None
    for pair in pairs[6:]:
        texts.vote(pair)
    model.update()
    assert model.figures.low > 0.5
    scores = model.scores(vectors, NO_ATTRIBUTES)
    assert scores.shape == (50,)
    assert np.corrcoef(scores, vectors[:, 0])[0, 1] > 0.7
    assert model.scores(vectors[:, :-1], NO_ATTRIBUTES) is None  # features of another model


def test_votes_of_a_random_person_are_right_half_of_the_time(db, project, texts):
    """The accuracy is held out: a fit of 12 features to 30 labels would reproduce most of them."""
    model, p = InstantModel(db, project.id), texts.pairs(40)
    for pair in p[:30]:
        texts.vote(pair, Choice.FIRST if texts.random.random() < 0.5 else Choice.SECOND)
    model.update()
    assert 6 <= model.figures.right <= 22


def test_scores_of_the_first_texts_have_mean_0_and_spread_1(db, project, texts):
    model, p = InstantModel(db, project.id), texts.pairs(40)
    for pair in p[:10]:
        texts.vote(pair)
    model.update()
    predictions = [model.predict(pair) for pair in p[10:]]
    model._labels = []  # the same head scores the labelled pairs too
    predictions += [model.predict(pair) for pair in p[:10]]
    scores = [score for one in predictions for score in (one.first, one.second)]
    assert np.mean(scores) == pytest.approx(0.0, abs=1e-3)
    assert np.std(scores) == pytest.approx(1.0, abs=1e-3)


def test_labels_wait_for_features_and_texts_without_usable_ones_are_left_out(db, project, texts):
    model = InstantModel(db, project.id)
    p = texts.pairs(8) + texts.pairs(3, with_features=False)
    for pair in p:
        texts.vote(pair)
    model.update()
    assert (model.figures.labels, model.figures.waiting) == (8, 3)
    texts.store(p[8].first.id, p[8].second.id, p[9].first.id)
    add_features(db, {p[9].second.id: TextFeatures(2, np.empty(0, np.float16))})
    model.update()
    assert (model.figures.labels, model.figures.waiting) == (9, 1)
    assert model.predict(p[9]) is model.predict(p[10]) is None


@pytest.mark.parametrize("with_features", [True, False])
def test_only_answers_that_prefer_a_text_count_before_it_starts(db, project, texts, with_features):
    """Whether the engine has read the texts or not; one pair was answered by two people."""
    texts.pairs(8)  # reference texts
    p, model = texts.pairs(7, with_features=with_features), InstantModel(db, project.id)
    for pair, choice in zip(p, (Choice.TIE, Choice.BOTH_BAD, Choice.SKIP), strict=False):
        texts.vote(pair, choice)
    for pair in p[3:6]:
        texts.vote(pair)
    texts.vote(p[5], annotator="bob")
    model.update()
    figures = model.figures
    assert (figures.labels + figures.waiting, figures.decided + figures.waiting_decided) == (6, 4)
    assert figures.waiting == (0 if with_features else 6)


def test_labels_on_equal_texts_are_left_out(db, project, texts):
    """Equal up to the rounding of their stored features, they say nothing; the accuracy is that of the others."""
    pairs = texts.pairs(8)
    for pair in pairs:
        texts.vote(pair)
    model = InstantModel(db, project.id)
    model.update()
    for pair in texts.pairs(3, prompt=30):
        vector = texts.vectors[pair.first.id].copy()
        vector[3] = np.nextafter(vector[3], np.float16(9))
        texts.vectors[pair.second.id] = vector
        texts.store(pair.second.id)
        texts.vote(pair, Choice.SECOND)
    fresh = InstantModel(db, project.id)
    fresh.update()
    assert fresh.figures.decided == 8
    assert fresh.figures == model.figures


def test_people_count_and_simulated_labels_only_without_them(db, project, texts):
    model, p = InstantModel(db, project.id), texts.pairs(20)
    for pair in p[:8]:
        texts.vote(pair, annotator="judge:x")
    model.update()
    assert (model.figures.source, model.figures.labels) == (Source.SIMULATED, 8)
    texts.vote(p[9])
    model.update()
    assert (model.figures.source, model.figures.labels, model.figures.right) == (Source.HUMAN, 1, None)


def test_undone_and_changed_votes_are_unlearned(db, project, texts):
    """Figures and head equal those of a model that never had the vote."""
    model, p = InstantModel(db, project.id), texts.pairs(20)
    for pair in p[:12]:
        texts.vote(pair)
    wrong = texts.vote(p[12], Choice.FIRST if texts.better(p[12]) is Choice.SECOND else Choice.SECOND)
    model.update()
    with_vote = model.predict(p[15])
    undo(db, wrong)
    model.update()
    reference = InstantModel(db, project.id)
    reference.update()
    assert model.figures == reference.figures
    assert model.predict(p[15]).first == pytest.approx(reference.predict(p[15]).first, abs=1e-4)
    assert model.predict(p[15]).first != pytest.approx(with_vote.first, abs=1e-4)
    texts.vote(p[12])
    model.update()
    reference.update()
    assert model.figures == reference.figures
    assert model.figures.labels == 13


def test_a_pair_that_has_labels_is_predicted_without_them(db, project, texts, fixed_ridge):
    """Three people contradict the prediction for a pair: a fourth person gets the prediction of a model without their votes."""
    model, p = InstantModel(db, project.id), texts.pairs(20)
    for pair in p[:15]:
        texts.vote(pair)
    model.update()
    before = model.predict(p[15])
    for name in ("bob", "eve", "joe"):
        texts.vote(p[15], Choice.SECOND if before.choice is Choice.FIRST else Choice.FIRST, name)
    model.update()
    assert model.knows(p[15].id)
    after = model.predict(p[15])
    assert (after.first, after.second) == pytest.approx((before.first, before.second), abs=2e-3)


def test_labels_that_cancel_out_predict_nothing(db, project, texts):
    """As many people prefer one text of a pair as the other."""
    model, p = InstantModel(db, project.id), texts.pairs(20)
    for i in range(6):
        texts.vote(p[0], Choice.FIRST if i % 2 else Choice.SECOND, f"person {i}")
    model.update()
    assert model.figures.decided == 6
    assert model.predict(p[1]) is None


def test_a_stronger_label_moves_scores_further_apart(db, project, texts, fixed_ridge):
    p, distances = texts.pairs(20), []
    for strength in (None, Strength.MUCH):
        votes = [texts.vote(pair, strength=strength) for pair in p[:10]]
        model = InstantModel(db, project.id)
        model.update()
        distances.append(float(np.abs(model._fit.scores).mean()))
        for vote in votes:
            undo(db, vote)
    assert distances[1] > 1.3 * distances[0]


def test_labels_on_one_prompt_are_held_out_together(db, project, texts, fixed_ridge):
    """Three people contradict each other's features on each prompt's pair: what two of them said does not predict the third."""
    model, p = InstantModel(db, project.id), texts.pairs(12)
    for pair in p:
        choice = Choice.FIRST if texts.random.random() < 0.5 else Choice.SECOND
        for name in ("ann", "bob", "eve"):
            texts.vote(pair, choice, name)
    model.update()
    figures = model.figures
    assert figures.decided == 36
    assert figures.right <= 27
    right_pairs = int(figures.right) // 3  # the three labels of a pair are predicted alike, so they count as one
    trials = [(pair, float(pair < right_pairs)) for pair in range(12) for _ in range(3)]
    assert (figures.low, figures.high) == cross_validated_interval(trials)


@pytest.mark.parametrize("ties", [0, 2])
def test_one_group_of_labels_says_nothing_about_accuracy(db, project, texts, ties):
    """Six people label one pair; of other pairs there are only ties. Without the six no text is better than another."""
    model, p = InstantModel(db, project.id), texts.pairs(12)
    for name in "abcdef":
        texts.vote(p[0], annotator=name)
    for pair in p[1 : 1 + ties]:
        texts.vote(pair, Choice.TIE)
    model.update()
    figures = model.figures
    assert (figures.labels, figures.decided) == (6 + ties, 6)
    assert (figures.right, figures.low, figures.high) == (None, None, None)
    assert model.predict(p[5]) is not None
    texts.vote(p[6])
    model.update()
    assert model.figures.right is not None


def test_labels_on_the_same_texts_are_held_out_together(db, project, texts, fixed_ridge):
    """Twelve pairs of texts under three prompts each, judged by coin flips: the label under one prompt does not predict the
    others, although it is the same."""
    first = texts.pairs(12)
    copies = [texts.pairs(12, shift=12), texts.pairs(12, shift=24)]
    for i, pair in enumerate(first):
        choice = Choice.FIRST if texts.random.random() < 0.5 else Choice.SECOND
        for other in (pair, *(copy[i] for copy in copies)):
            for side in ("first", "second"):
                texts.vectors[getattr(other, side).id] = texts.vectors[getattr(pair, side).id]
                texts.store(getattr(other, side).id)
            texts.vote(other, choice)
    model = InstantModel(db, project.id)
    model.update()
    assert model.figures.decided == 36
    assert model.figures.right <= 27


def test_labels_on_one_prompt_are_held_out_pair_by_pair(db, project, texts):
    model = InstantModel(db, project.id)
    for pair in texts.pairs(20, prompt=3):
        texts.vote(pair)
    model.update()
    assert model.figures.right >= 14


def test_the_ridge_is_chosen_again_after_the_figures_are_there(db, project, texts, monkeypatch):
    monkeypatch.setattr(instant_reward, "MAX_QUICK_LABELS", 10)
    monkeypatch.setattr(instant_reward, "RIDGE_INTERVAL", 5)
    chosen, choose = [], instant_reward.choose_ridge
    monkeypatch.setattr(instant_reward, "choose_ridge", lambda *args: chosen.append(len(args[0])) or choose(*args))
    model, p = InstantModel(db, project.id), texts.pairs(30)
    for count in range(1, 21):
        texts.vote(p[count - 1])
        model.update()
        if model.choose_ridge():
            assert chosen[-1] == count
    assert chosen == [6, 7, 8, 9, 10, 15, 20]


def test_with_many_labels_the_ridge_is_chosen_less_often(db, project, texts, monkeypatch):
    """Up to 6 at every fit, then with two more, from 10 on with a quarter more: at 8, 10, 12, 15 and 18."""
    monkeypatch.setattr(instant_reward, "MAX_QUICK_LABELS", 6)
    monkeypatch.setattr(instant_reward, "RIDGE_INTERVAL", 2)
    model, p, chosen = InstantModel(db, project.id), texts.pairs(30), []
    for count in range(1, 21):
        texts.vote(p[count - 1])
        model.update()
        if model.choose_ridge():
            chosen.append(count)
    assert chosen == [8, 10, 12, 15, 18]


def test_a_round_is_followed_by_a_rest_of_twice_its_cpu_time(db, monkeypatch):
    """A round that waited a minute for a core is not followed by a rest of two: figures on the page would be out of date."""
    service, waits, cpu = InstantReward(db), [], iter([5.0, 5.25])
    monkeypatch.setattr(instant_reward.time, "thread_time", lambda: next(cpu))
    monkeypatch.setattr(service, "run_once", lambda: None)
    monkeypatch.setattr(service._stopped, "wait", lambda seconds: (waits.append(seconds), service._stopped.set()))
    service.figures(1)
    service._run()
    assert waits == [0.5]


def test_nothing_is_fitted_until_a_page_requests_the_figures(db, monkeypatch):
    """Votes of programs need no predictions. monotonic: 100 s, and later 131 s after the page asked for the figures."""
    service, clock = InstantReward(db), [100.0]
    monkeypatch.setattr(instant_reward.time, "monotonic", lambda: clock[0])
    service.labels_changed()
    assert not service._wake.is_set()
    service.model = InstantModel(db, 1)
    service.figures(1)
    assert service._wake.is_set()
    service._wake.clear()
    service.figures(1)
    assert not service._wake.is_set()  # the page looks several times per second
    service.labels_changed()
    assert service._wake.is_set()
    service._wake.clear()
    clock[0] = 231.0
    service.labels_changed()
    assert not service._wake.is_set()


def test_only_the_newest_labels_are_learned(db, project, texts, monkeypatch):
    monkeypatch.setattr(
        instant_reward, "newest_labels", lambda db, pid, source: features.newest_labels(db, pid, source, 8)
    )
    monkeypatch.setattr(instant_reward, "MAX_INSTANT_LABELS", 8)
    model, p = InstantModel(db, project.id), texts.pairs(30)
    monkeypatch.setattr(instant_reward, "REFERENCE_TEXTS", 16)
    for pair in p:
        texts.vote(pair)
        model.update()
        assert len(model._pairs) <= 2 * 8 + 1  # the pairs of earlier labels are dropped now and then
    assert model.figures.labels == 8


def test_a_vote_is_predicted_before_it_is_learned(db, project, texts):
    service, p = InstantReward(db), texts.pairs(20)
    for pair in p[:10]:
        texts.vote(pair)
    service.run_once()
    expected = service.model.predict(p[10])
    vote = texts.vote(p[10])
    service.predict_vote(vote)
    assert service.is_pending(vote.uuid)
    assert service.prediction(vote.uuid, "ann") is None
    assert service.figures(project.id).labels == 10
    service.run_once()
    assert not service.is_pending(vote.uuid)
    assert service.prediction(vote.uuid, "ann") == (vote, expected)
    assert service.figures(project.id).labels == 11
    assert service.prediction(vote.uuid, "bob") is None
    service.predict_vote(vote)  # sent again, because its reply was lost
    assert not service.is_pending(vote.uuid)


def test_a_vote_learned_before_its_turn_is_still_predicted_without_it(db, project, texts, fixed_ridge):
    """A round started for another reason may come first."""
    service, p = InstantReward(db), texts.pairs(20)
    for pair in p[:10]:
        texts.vote(pair)
    service.run_once()
    expected = service.model.predict(p[10])
    vote = texts.vote(p[10])
    service.run_once()
    service.predict_vote(vote)
    service.run_once()
    actual = service.prediction(vote.uuid, "ann")[1]
    assert (actual.first, actual.second) == pytest.approx((expected.first, expected.second), abs=2e-3)


def test_predictions_of_undone_votes_are_forgotten(db, project, texts):
    service, p = InstantReward(db), texts.pairs(20)
    for pair in p[:10]:
        texts.vote(pair)
    first, second, third = texts.vote(p[10]), texts.vote(p[11]), texts.vote(p[10], annotator="bob")
    for vote in (first, second, third):
        service.predict_vote(vote)
    service.run_once()
    service.forget_votes("ann", p[10].id)
    assert service.prediction(first.uuid, "ann") is None
    assert service.prediction(second.uuid, "ann") is not None
    assert service.prediction(third.uuid, "bob") is not None
    waiting = texts.vote(p[12])
    service.predict_vote(waiting)
    service.forget_votes("ann", p[12].id)
    assert not service.is_pending(waiting.uuid)


def test_the_open_project_is_the_one_that_is_learned(db, project, texts):
    service, p = InstantReward(db), texts.pairs(20)
    for pair in p[:10]:
        texts.vote(pair)
    service.run_once()
    assert service.figures(project.id).right is not None
    vote = texts.vote(p[10])
    other = projects.create_project(db, "other", "embedded", "", "tales", 7, [("Once", "train")])
    projects.open_project(db, other.id)
    service.predict_vote(vote)
    service.run_once()
    assert service.figures(other.id) == InstantFigures(other.id, Source.HUMAN)
    assert service.figures(project.id) == InstantFigures(project.id, Source.HUMAN)
    assert service.prediction(vote.uuid, "ann") == (vote, None)


def test_many_votes_at_once_are_one_fit(db, project, texts, monkeypatch):
    """Votes of many people that arrive during a fit are learned together in the next one; each has a prediction."""
    p = texts.pairs(40)
    for pair in p[:10]:
        texts.vote(pair)
    service, started, released, rounds = InstantReward(db), threading.Event(), threading.Event(), []
    service.run_once()
    run_once = service.run_once

    def slow() -> None:
        rounds.append(len(service._pending))
        started.set()
        assert released.wait(30)
        run_once()

    monkeypatch.setattr(service, "run_once", slow)
    service.start()
    votes = [texts.vote(p[10])]
    service.predict_vote(votes[0])
    assert started.wait(30)
    for i, pair in enumerate(p[11:35]):
        votes.append(texts.vote(pair, annotator=f"person {i}"))
        service.predict_vote(votes[-1])
    released.set()
    while any(service.is_pending(vote.uuid) for vote in votes):
        threading.Event().wait(0.01)
    service.stop()
    assert len(rounds) <= 2
    assert all(service.prediction(vote.uuid, vote.annotator)[1] is not None for vote in votes)
    assert service.figures(project.id).labels == 35


def test_an_error_in_one_round_does_not_end_the_thread(db, project, texts, monkeypatch, caplog):
    service, p = InstantReward(db), texts.pairs(20)
    update = InstantModel.update
    failures = [RuntimeError("once")]

    def fail_once(model):
        if failures:
            raise failures.pop()
        update(model)

    monkeypatch.setattr(InstantModel, "update", fail_once)
    service.start()
    for pair in p[:10]:
        vote = texts.vote(pair)
        service.predict_vote(vote)
    while service.is_pending(vote.uuid):
        service.labels_changed()
        threading.Event().wait(0.01)
    service.stop()
    assert "the next vote tries again" in caplog.text
    assert service.figures(project.id).labels == 10


def test_refits_for_predictions_are_bounded(db, project, texts, monkeypatch):
    monkeypatch.setattr(instant_reward, "MAX_REFITS", 2)
    service, p = InstantReward(db), texts.pairs(20)
    for pair in p[:12]:
        texts.vote(pair)
    service.run_once()
    votes = [texts.vote(pair, annotator="bob") for pair in (*p[:4], p[15])]
    for vote in votes:
        service.predict_vote(vote)
    service.run_once()
    assert [service.prediction(vote.uuid, "bob")[1] is not None for vote in votes] == [True, True, False, False, True]


def test_a_missing_prediction_does_not_tell_a_gold_pair(db, project, texts, monkeypatch):
    """With gold pairs, a vote on a pair that others have judged is predicted or not as a vote on any other pair is."""
    monkeypatch.setattr(instant_reward, "MAX_REFITS", 2)
    projects.set_labelling_config(db, project.id, LabellingConfig(gold_rate=0.1))
    service, p = InstantReward(db), texts.pairs(20)

    def predicted(*pairs):
        votes = [texts.vote(pair, annotator="bob") for pair in pairs]
        for vote in votes:
            service.predict_vote(vote)
        service.run_once()
        return [service.prediction(vote.uuid, "bob")[1] is not None for vote in votes]

    for pair in p[:5]:
        texts.vote(pair)
    texts.vote(p[0], annotator="eve")  # 6 labels, 4 without those of the first pair
    service.run_once()
    assert predicted(p[1]) == predicted(p[15]) == [False]
    for pair in p[5:12]:
        texts.vote(pair)
    service.run_once()
    assert predicted(p[2], p[3], p[4]) == predicted(p[16], p[17], p[18]) == [True, True, False]


def texts_of_two_lengths(texts, count=30):
    """Pairs of a long text and a short one that was cut off. The length is in the features, beside the quality."""
    stop, other = min(stop_token_ids("embedded")), max(stop_token_ids("embedded")) + 1
    long, short = (
        [
            NewCompletion(texts.prompts[i].id, f"{i} " + "word " * (number + i % 3), (i, end), "base", i)
            for i in range(count)
        ]
        for number, end in ((12, stop), (3, other))
    )
    sides = [projects.add_completions(texts.db, rows) for rows in (long, short)]
    for side, rows in zip((1.5, -1.5), sides, strict=True):
        vectors = texts.random.normal(size=(count, WIDTH)).astype(np.float16)
        vectors[:, 1] += side
        texts.vectors |= {row.id: vector for row, vector in zip(rows, vectors, strict=True)}
        texts.store(*(row.id for row in rows))
    ids = [(a.id, b.id, "random") for a, b in zip(*sides, strict=True)]
    return projects.add_pairs(texts.db, texts.project.id, ids)


def spread_of_lengths(model, pairs):
    """By how much the long texts score higher than the short ones, on average."""
    predictions = [model.predict(pair) for pair in pairs]
    return np.mean([prediction.first - prediction.second for prediction in predictions])


def choose(db, project, **choices):
    """As on Reward model: a training with the choice is queued."""
    for job in queue.jobs(db, project_id=project.id, kinds=[JobKind.TRAIN_REWARD]):
        queue.cancel(db, job.id)
    return retraining.submit_training(db, project.id, Source.HUMAN, RewardConfig(**choices))


@pytest.mark.parametrize("attribute", ["length", "cut"])
def test_scores_ignore_a_chosen_attribute_at_once(db, project, texts, attribute):
    """Nearly all labels prefer the long, complete text. Ignored, the attribute has no linear relation to the scores; a choice
    that is taken back counts at once, too."""
    pairs = texts_of_two_lengths(texts)
    for i, pair in enumerate(pairs[:20]):
        texts.vote(pair, Choice.FIRST if i % 10 else Choice.SECOND)
    model = InstantModel(db, project.id)
    model.update()
    assert (model.figures.ignored, model.figures.right > 15) == ((), True)
    assert spread_of_lengths(model, pairs[20:]) > 1.0
    choose(db, project, **{attribute: "ignore"})
    model.update()
    assert model.figures.ignored == (attribute,)
    assert model.figures.right < 15  # what is left of the scores says little about these labels
    assert abs(spread_of_lengths(model, pairs)) < 0.3  # those of labelled pairs are by fits without their labels
    if attribute == "length":  # a text to explain ended by itself
        sides = [side for pair in pairs for side in (pair.first, pair.second)]
        explained = [model.explain(texts.vectors[s.id].astype(np.float32), StoredText("", s.text)) for s in sides]
        lengths = [math.log(1 + len(side.text.strip())) for side in sides]
        assert np.corrcoef([one.score for one in explained], lengths)[0, 1] == pytest.approx(0.0, abs=1e-3)
    choose(db, project)
    model.update()
    assert model.figures.ignored == ()
    assert spread_of_lengths(model, pairs[20:]) > 1.0


def test_a_head_that_ignores_an_attribute_is_that_of_a_trained_reward_model(db, project, texts, fixed_ridge):
    """`HeadFitter` with the same features, attributes and labels; weights are compared up to the half precision of the rows."""
    pairs = texts_of_two_lengths(texts)
    for pair in pairs[:20]:
        texts.vote(pair)
    model = InstantModel(db, project.id, ["length"])  # no reward model says otherwise
    model.update()
    chosen = [(p.first, p.second) if texts.better(p) is Choice.FIRST else (p.second, p.first) for p in pairs[:20]]

    def of(sides):
        vectors = torch.tensor(np.stack([texts.vectors[side.id] for side in sides]).astype(np.float32))
        return vectors, torch.tensor([[math.log(1 + len(side.text.strip()))] for side in sides], dtype=torch.float64)

    reference = sorted((side for p in pairs for side in (p.first, p.second)), key=lambda side: side.id)
    (better, better_length), (worse, worse_length) = (of(sides) for sides in zip(*chosen, strict=True))
    features, lengths = of(reference)
    fitter = HeadFitter(
        better - worse, features, 2, PreferenceTargets(np.zeros(20, bool)), list(range(20)), 0.1,
        PairAttributes(better_length - worse_length, lengths),
    )  # fmt: skip
    expected = fitter.fit(range(20), torch.ones(20)).weights.numpy()
    assert model.weights() == pytest.approx(expected, abs=2e-3 * float(np.abs(expected).max()))


def test_the_choice_is_that_of_the_training_and_else_of_the_newest_reward_model(db, project):
    assert retraining.chosen_attributes(db, project.id, Source.HUMAN) is None
    job = choose(db, project, length="ignore", copied="ignore")
    assert retraining.chosen_attributes(db, project.id, Source.HUMAN) == ("length", "copied")
    assert retraining.chosen_attributes(db, project.id, Source.SIMULATED) is None
    assert retraining.next_config(db, project.id, Source.HUMAN).ignored == ("length", "copied")
    queue.cancel(db, job.id)
    assert retraining.chosen_attributes(db, project.id, Source.HUMAN) is None

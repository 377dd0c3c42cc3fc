"""The instant reward model: a linear head on stored features that is refitted after every vote, in the page's process.

It predicts each vote before it learns from it. It needs neither torch nor a running engine.
"""

import contextlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from rlhf_lab.common.chat_format import plain_prompt
from rlhf_lab.common.enums import Choice, Source
from rlhf_lab.common.label_groups import LabelKeys, group_labels, label_keys
from rlhf_lab.common.records import Pair, Vote
from rlhf_lab.common.stats import cross_validated_interval, hit
from rlhf_lab.common.text import cut_length
from rlhf_lab.common.text_attributes import attribute_values
from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.core.attribute_effects import AttributeRegression, attribute_gram, held_out_attribute_scores
from rlhf_lab.core.preference_fit import (
    DualFit,
    Float32,
    Float64,
    LayerScaler,
    PairGram,
    PreferenceTargets,
    choose_ridge,
    fit_dual,
    held_out_scores,
    label_influences,
    score_variance,
)
from rlhf_lab.errors import LabError, NotFoundError
from rlhf_lab.jobs.model_inspection import stop_token_ids
from rlhf_lab.jobs.retraining import chosen_attributes
from rlhf_lab.store.database import Database
from rlhf_lab.store.features import (
    MAX_INSTANT_LABELS,
    PairLabel,
    StoredText,
    TextFeatures,
    load_features,
    newest_labels,
    oldest_features,
    texts_of_pairs,
)
from rlhf_lab.store.projects import current_project, get_labelling_config, get_pair, get_project

log = logging.getLogger("rlhf_lab.instant_reward")

MIN_DECIDED = 6  # labels that prefer one text; with fewer nothing is fitted
REFERENCE_TEXTS = 128  # scores are standardised to mean 0 and standard deviation 1 on these texts
MIN_REFERENCE_TEXTS = 8
TEXTS_PER_ATTRIBUTE = 8  # with fewer, the slopes of ignored attributes add more error than they remove
MIN_SPREAD = 1e-6  # smallest usable standard deviation of their raw scores; below it, labels cancel out up to rounding
#: Square distance of two texts, whose mean is about 2. Below it they have the same tokens up to the context, and differ by the
#: rounding of the stored features: such a label is left out, as in `training/label_tokens.py`.
MIN_DISTANCE = 1e-6
MAX_QUICK_LABELS = 100  # up to here the ridge is chosen at every fit; above, after the figures are shown,
RIDGE_INTERVAL = 25  # when the number of labels has changed by at least this many and by a quarter
LOADED_PAIRS = 64  # pairs whose features are loaded at once
POLL_INTERVAL_S = 3.0  # for votes of other processes and new features
WATCHED_S = 30.0  # longer than the interval at which an open page requests the figures
REST_FACTOR = 2.0  # pause after a round over its CPU time, so that the thread uses at most a third of a core
#: Predictions per round that need a separate fit. In a project with gold pairs each counts, because those on gold pairs need one.
MAX_REFITS = 8
MAX_PREDICTIONS = 2000  # predictions kept in memory
DECIDED = (Choice.FIRST, Choice.SECOND)


@dataclass(frozen=True)
class InstantFigures:
    """Figures about the labels of a project and the accuracy of the head.

    labels: number of labels learned from. decided: those that prefer one text. waiting: labels whose texts have no features yet;
    waiting_decided: those of them that prefer one text.
    right: decided labels that are predicted correctly by a head fitted without the labels of the same group; equal scores count
    half. low, high: 95 % interval of the expected accuracy on new prompts of a head fitted to as many labels
    (`cross_validated_interval`). These three are None if there are fewer than MIN_DECIDED decided labels, or if these are one
    group: nothing is known of other prompts then. ignored: the attributes of texts that the scores ignore.
    """

    project_id: int
    source: Source
    labels: int = 0
    decided: int = 0
    waiting: int = 0
    waiting_decided: int = 0
    right: float | None = None
    low: float | None = None
    high: float | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """Scores of both texts of a pair, by a head fitted without the labels of that pair."""

    first: float
    second: float

    @property
    def choice(self) -> Choice | None:
        """The text with the higher score; None if the scores are equal."""
        if self.first == self.second:
            return None
        return Choice.FIRST if self.first > self.second else Choice.SECOND


class Explanation(NamedTuple):
    """score: of a text, with the half-width of its 95 % interval. influences: by vote, the score less that by a head that was
    fitted without it. In standard deviations of the reference texts' scores."""

    score: float
    half_width: float
    influences: dict[int, float]


def labels_to_learn_from(db: Database, project_id: int) -> tuple[Source, list[PairLabel]]:
    """The newest labels of people, or simulated ones if there are none."""
    labels = newest_labels(db, project_id, Source.HUMAN)
    if labels:
        return Source.HUMAN, labels
    return Source.SIMULATED, newest_labels(db, project_id, Source.SIMULATED)


class InstantModel:
    """The head of one project, the labels that it learned from, and the Gram matrix of their pairs.

    It ignores the attributes of texts that were chosen for the project's reward models (`chosen_attributes`), before the first of
    these `ignored_at_first`. As in the head of a trained one, the features of a text are then those less their regression on
    these attributes over the reference texts (core/attribute_effects.py).
    """

    def __init__(self, db: Database, project_id: int, ignored_at_first: Sequence[str] = ()) -> None:
        self.db, self.project_id, self.ignored_at_first = db, project_id, tuple(ignored_at_first)
        self.figures = InstantFigures(project_id, Source.HUMAN)
        self._stored_labels: list[PairLabel] = []
        self._labels: list[PairLabel] = []  # those with features
        self._fit: DualFit | None = None
        self._ridge_chosen_at = 0  # number of labels
        self._unusable_pairs: set[int] = set()
        self._reference = np.empty((0, 0), np.float32)
        self._weights: Float32 | None = None
        self._pairs = PairGram(0)
        self._keys: dict[int, LabelKeys] = {}  # by pair
        self._attributes: dict[int, Float64] = {}  # by pair: (A,) scaled, first - second
        self._ignored: tuple[str, ...] = ()  # the A attributes
        self._scaler: LayerScaler
        self._regression: AttributeRegression

    def update(self) -> None:
        """Learn from the current labels (`labels_to_learn_from`)."""
        source, labels = labels_to_learn_from(self.db, self.project_id)
        chosen = chosen_attributes(self.db, self.project_id, source)
        ignored = self.ignored_at_first if chosen is None else chosen
        if labels == self._stored_labels and ignored == self._ignored and not self.figures.waiting:
            return
        if ignored != self._ignored:
            self._ignored, self._reference = ignored, np.empty((0, 0), np.float32)
        self._stored_labels = labels
        self._update_reference()
        usable = self._add_pairs(labels)
        decided = sum(label.choice in DECIDED for label in usable)
        known = self._unusable_pairs | self._pairs.index_by_pair.keys()
        waiting = [label.choice in DECIDED for label in labels if label.pair_id not in known]
        figures = InstantFigures(
            self.project_id, source, len(usable), decided, len(waiting), sum(waiting), ignored=ignored
        )
        if decided < MIN_DECIDED:
            self._labels, self._fit, self._weights = [], None, None
        elif usable != self._labels:
            self._learn(usable)
        self.figures = self._with_accuracy(figures)

    def choose_ridge(self) -> bool:
        """Choose the ridge again if the number of labels has changed enough. Returns whether the figures were recomputed."""
        interval = max(RIDGE_INTERVAL, self._ridge_chosen_at // 4)
        if self._fit is None or abs(len(self._labels) - self._ridge_chosen_at) < interval:
            return False
        self._ridge_chosen_at = 0
        self._learn(self._labels)
        self.figures = self._with_accuracy(self.figures)
        return True

    def predict(self, pair: Pair) -> Prediction | None:
        """The scores of a pair by a head fitted without its labels.

        None if the texts have no features, there are too few other labels, or these cancel out.
        """
        texts = load_features(self.db, [pair.first.id, pair.second.id])
        if self._fit is None or len(texts) < 2 or not all(self._is_usable(text) for text in texts.values()):
            return None
        weights = self._weights_without(pair.id)
        if weights is None:
            return None
        reference = self._reference @ weights
        spread = reference.std()
        if spread < MIN_SPREAD:
            return None
        vectors = np.stack([texts[side.id].vector for side in (pair.first, pair.second)]).astype(np.float32)
        first, second = (
            self._features_of(vectors, self._pair_attributes([pair])[0]) @ weights - reference.mean()
        ) / spread
        return Prediction(float(first), float(second))

    def can_omit_any_pair(self) -> bool:
        """Whether enough labels are left without those of one pair, whichever it is."""
        decided = Counter(label.pair_id for label in self._labels if label.choice in DECIDED)
        return sum(decided.values()) - max(decided.values(), default=0) >= MIN_DECIDED

    def weights(self) -> Float32 | None:
        """(F,) weights of the head for features that are not scaled; None before anything is fitted."""
        weights = None if self._fit is None else self._weights_without(None)
        return None if weights is None else (weights * self._scaler.scales).astype(np.float32)

    @property
    def labels(self) -> list[PairLabel]:
        """All labels of the last `update`, oldest first."""
        return self._stored_labels

    @property
    def learned(self) -> list[PairLabel]:
        """Those of `labels` whose texts have features, from which the head learns."""
        return self._labels

    def scores(self, vectors: Float32, attributes: Float64) -> Float32 | None:
        """(N,) raw scores of unlabelled texts by their features (N, D) and the attributes `figures.ignored` (N, A).

        None before the head is known to have learned something: while the interval of its accuracy contains 0.5.
        """
        if self._fit is None or (self.figures.low or 0.0) <= 0.5 or vectors.shape[1] != self._reference.shape[1]:
            return None
        weights = self._weights_without(None)
        assert weights is not None
        scores: Float32 = self._features_of(vectors, attributes) @ weights
        return scores

    def explain(self, vector: Float32, text: StoredText, share: float = 1.0) -> "Explanation | None":
        """The score of a text by its features (D,), and the labels behind it.

        share: below 1, `vector` is what a part of the text of this weight contributes to its features; score and influences are
        then this part's, and those of all parts of a text add up to the whole text's.

        None if nothing is fitted, the features are of another model, or the labels cancel out.
        """
        if self._fit is None or len(vector) != self._reference.shape[1]:
            return None
        weights = self._weights_without(None)
        assert weights is not None
        spread = float((self._reference @ weights).std())
        if spread < MIN_SPREAD:
            return None
        features = self._features_of(vector[None], self._attributes_of([text]), share)[0]
        gram = self._gram(self._labels)[0]
        products = self._pairs.products(*self._signed(self._labels, np.ones(len(self._labels))), features)
        influences = label_influences(gram, self._fit, products)
        sd = float(score_variance(gram, self._fit, products, float(features @ features))) ** 0.5
        by_vote = {label.vote_id: float(x) / spread for label, x in zip(self._labels, influences, strict=True)}
        return Explanation(float(features @ weights) / spread, 1.96 * sd / spread, by_vote)

    def knows(self, pair_id: int | None) -> bool:
        """Whether the head has learned from a label of the pair."""
        return any(label.pair_id == pair_id for label in self._labels)

    def _weights_without(self, pair_id: int | None) -> Float32 | None:
        """Weights of the head, refitted without the labels of the pair if it has learned from any."""
        assert self._fit is not None
        if not self.knows(pair_id):
            if self._weights is None:
                self._weights = self._pairs.weights(*self._signed(self._labels, self._fit.coefficients))
            return self._weights
        others = [label for label in self._labels if label.pair_id != pair_id]
        if sum(label.choice in DECIDED for label in others) < MIN_DECIDED:
            return None
        return self._pairs.weights(*self._signed(others, self._fit_labels(others, self._fit.ridge).coefficients))

    def _update_reference(self) -> None:
        """Choose the project's oldest texts as the reference texts, and clear the Gram matrix.

        Repeated each time their number has doubled, up to REFERENCE_TEXTS, and when the Gram matrix holds too many pairs, most of
        whose labels were undone.
        """
        count = len(self._reference)
        if count >= REFERENCE_TEXTS and len(self._pairs) <= 2 * MAX_INSTANT_LABELS:
            return
        texts = oldest_features(self.db, self.project_id, REFERENCE_TEXTS)
        needed = max(MIN_REFERENCE_TEXTS, TEXTS_PER_ATTRIBUTE * len(self._ignored))
        if len(texts) < max(needed, min(2 * count, REFERENCE_TEXTS)):
            return
        layers, width = texts[0][1].layers, len(texts[0][1].vector)
        texts = [text for text in texts if len(text[1].vector) == width]
        vectors = np.stack([features.vector for _, features in texts]).astype(np.float32)
        self._scaler = LayerScaler(vectors, layers)
        attributes = self._attributes_of([text for text, _ in texts])
        self._regression = AttributeRegression(self._scaler(vectors - self._scaler.mean), attributes)
        self._reference = self._features_of(vectors, attributes)
        self._pairs, self._keys, self._attributes = PairGram(width), {}, {}
        self._labels, self._fit, self._weights, self._ridge_chosen_at = [], None, None, 0
        self._unusable_pairs.clear()

    def _is_usable(self, text: TextFeatures) -> bool:
        return len(text.vector) == self._reference.shape[1]

    def _features_of(self, vectors: Float32, attributes: Float64, share: float = 1.0) -> Float32:
        """(N, D) scaled features, less what the ignored attributes (N, A) explain. share: as in `explain`; a part takes this
        share of what is subtracted from the whole text."""
        scaled = self._scaler(vectors - np.float32(share) * self._scaler.mean)
        return self._regression.residual(scaled, share * self._regression.scaler(attributes))

    def _attributes_of(self, texts: Sequence[StoredText]) -> Float64:
        """(N, A) values of the ignored attributes."""
        stop_ids = stop_token_ids(get_project(self.db, self.project_id).model) if self._ignored else ()
        return attribute_values(
            [plain_prompt(text.prompt) for text in texts], [text.text for text in texts],
            [cut_length(text.token_ids, stop_ids) is not None for text in texts], self._ignored,
        )  # fmt: skip

    def _pair_attributes(self, pairs: Sequence[Pair]) -> Float64:
        """(N, 2, A) of both texts of N pairs."""
        sides = [
            StoredText(pair.prompt.text, side.text, side.token_ids)
            for pair in pairs
            for side in (pair.first, pair.second)
        ]
        return self._attributes_of(sides).reshape(len(pairs), 2, len(self._ignored))

    def _add_pairs(self, labels: Sequence[PairLabel]) -> list[PairLabel]:
        """Add the pairs of new labels to the Gram matrix. Returns the labels whose pairs are in it."""
        if not len(self._reference):
            return []
        new_pairs = {
            label.pair_id: (label.first_id, label.second_id)
            for label in labels
            if label.pair_id not in self._pairs.index_by_pair and label.pair_id not in self._unusable_pairs
        }
        pair_ids = list(new_pairs)
        for start in range(0, len(pair_ids), LOADED_PAIRS):
            chunk = pair_ids[start : start + LOADED_PAIRS]
            texts = load_features(self.db, [text_id for pair_id in chunk for text_id in new_pairs[pair_id]])
            complete = [i for i in chunk if all(text_id in texts for text_id in new_pairs[i])]
            usable = [i for i in complete if all(self._is_usable(texts[text_id]) for text_id in new_pairs[i])]
            if usable:
                first, second = (
                    np.stack([texts[new_pairs[i][side]].vector for i in usable]).astype(np.float32) for side in (0, 1)
                )
                differences = self._scaler(first - second)
                differ = np.square(differences).sum(1) > MIN_DISTANCE
                usable = [i for i, is_kept in zip(usable, differ.tolist(), strict=True) if is_kept]
                self._add_texts(texts_of_pairs(self.db, usable), differences[differ])
            self._unusable_pairs |= set(complete) - set(usable)
        return [label for label in labels if label.pair_id in self._pairs.index_by_pair]

    def _add_texts(self, pairs: Sequence[Pair], differences: Float32) -> None:
        """differences: (N, D) scaled features, first - second."""
        ids, sides = [pair.id for pair in pairs], self._pair_attributes(pairs)
        scaled = self._regression.scaler.differences(sides[:, 0] - sides[:, 1])
        self._attributes |= dict(zip(ids, scaled, strict=True))
        self._keys |= {pair.id: label_keys(pair.prompt.text, pair.first.text, pair.second.text) for pair in pairs}
        self._pairs.add(ids, self._regression.residual(differences, scaled))

    def _learn(self, labels: list[PairLabel]) -> None:
        if self._fit is None or len(labels) <= MAX_QUICK_LABELS or not self._ridge_chosen_at:
            gram, targets, groups = self._training_data(labels)
            ridge, self._ridge_chosen_at = choose_ridge(gram, targets, groups), len(labels)
        else:
            ridge = self._fit.ridge
        self._fit, self._labels, self._weights = self._fit_labels(labels, ridge), labels, None

    def _fit_labels(self, labels: Sequence[PairLabel], ridge: float) -> DualFit:
        """Fit the head, starting from the coefficients of the current fit."""
        gram, targets, _ = self._training_data(labels)
        start = None
        if self._fit is not None:
            known = dict(zip((label.vote_id for label in self._labels), self._fit.coefficients, strict=True))
            start = np.array([known.get(label.vote_id, 0.0) for label in labels])
        return fit_dual(gram, targets, ridge, start)

    def _gram(self, labels: Sequence[PairLabel]) -> tuple[Float64, Float64]:
        """(N, N) Gram matrix of chosen - rejected, and their scaled attributes (N, A), fitted jointly with the features."""
        pair_ids, signs = self._signed(labels, np.ones(len(labels)))
        attributes = np.array([self._attributes[i] for i in pair_ids]).reshape(len(labels), len(self._ignored))
        attributes *= signs[:, None]
        return self._pairs.gram(pair_ids, signs) + attribute_gram(attributes), attributes

    def _training_data(self, labels: Sequence[PairLabel]) -> tuple[Float64, PreferenceTargets, list[int]]:
        """Gram matrix of chosen - rejected, targets, and the groups for leave-one-group-out validation (`group_labels`)."""
        ties = np.array([label.choice not in DECIDED for label in labels])
        margins = np.array([label.strength for label in labels]) * RewardConfig().margin
        groups = group_labels([self._keys[label.pair_id] for label in labels])
        return self._gram(labels)[0], PreferenceTargets(ties, margins), groups

    @staticmethod
    def _signed(labels: Sequence[PairLabel], coefficients: Float64) -> tuple[list[int], Float64]:
        """Ids of the pairs, and the coefficients for their differences first - second."""
        signs = np.array([-1.0 if label.choice is Choice.SECOND else 1.0 for label in labels])
        return [label.pair_id for label in labels], signs * coefficients

    def _with_accuracy(self, figures: InstantFigures) -> InstantFigures:
        if self._fit is None:
            return figures
        gram, targets, groups = self._training_data(self._labels)
        held_out = held_out_scores(gram, self._fit, groups)
        if self._ignored:
            held_out = held_out - held_out_attribute_scores(gram, self._fit, self._gram(self._labels)[1], groups)
        hits = hit(held_out)
        decided = [
            (group, value)
            for group, value, tie in zip(groups, hits.tolist(), targets.ties.tolist(), strict=True)
            if not tie
        ]
        if len({group for group, _ in decided}) < 2:
            return figures
        low, high = cross_validated_interval(decided)
        return replace(figures, right=sum(value for _, value in decided), low=low, high=high)


class InstantReward:
    """A thread of the page's process that keeps the model of the open project up to date, one fit at a time."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.model: InstantModel | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="instant reward")
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._fit_lock = threading.Lock()  # held while the model changes, and while another thread reads it
        self._pending: dict[str, Vote] = {}  # by uuid, in order
        self._predictions: OrderedDict[str, tuple[Vote, Prediction | None]] = OrderedDict()
        self._last_request_at = -WATCHED_S

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def predict_vote(self, vote: Vote) -> None:
        """Predict a stored vote, then learn from it. Returns at once; the thread does the work."""
        with self._lock:
            if vote.uuid not in self._predictions:
                self._pending[vote.uuid] = vote
        self._wake.set()

    def labels_changed(self) -> None:
        """Refit after votes were undone, changed, imported or sent by a program.

        Does nothing while no page shows the figures: sixty labelling programs would otherwise keep a third of a core busy for no
        one.
        """
        if self._is_watched():
            self._wake.set()

    def forget_votes(self, annotator: str, pair_id: int) -> None:
        """Drop the predictions for a person's undone vote: they may label the pair again and must not see its scores."""
        with self._lock:
            for uuid in [uuid for uuid, vote in self._pending.items() if is_vote_on(vote, annotator, pair_id)]:
                del self._pending[uuid]
            for uuid in [uuid for uuid, (vote, _) in self._predictions.items() if is_vote_on(vote, annotator, pair_id)]:
                del self._predictions[uuid]
        self._wake.set()

    def figures(self, project_id: int) -> InstantFigures:
        """The figures of the newest fit. A request after a pause of WATCHED_S also starts a new fit."""
        was_watched, model = self._is_watched(), self.model
        self._last_request_at = time.monotonic()
        if not was_watched or model is None or model.project_id != project_id:
            self._wake.set()
        if model is None or model.project_id != project_id:
            return InstantFigures(project_id, Source.HUMAN)
        return model.figures

    def explain(self, project_id: int, vector: Float32, text: StoredText, share: float = 1.0) -> Explanation | None:
        """`InstantModel.explain` with the present labels of the open project."""
        self.update()
        with self._fit_lock:
            model = self.model
            is_of_project = model is not None and model.project_id == project_id
            return model.explain(vector, text, share) if model is not None and is_of_project else None

    def _is_watched(self) -> bool:
        return time.monotonic() - self._last_request_at < WATCHED_S

    def is_pending(self, uuid: str) -> bool:
        """Whether a vote is still to be predicted and learned from."""
        with self._lock:
            return uuid in self._pending

    def prediction(self, uuid: str, annotator: str) -> tuple[Vote, Prediction | None] | None:
        """A person's own vote with its prediction; None if the vote is someone else's or is not stored here any more."""
        with self._lock:
            entry = self._predictions.get(uuid)
        return entry if entry is not None and entry[0].annotator == annotator else None

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(POLL_INTERVAL_S)
            if self._stopped.is_set() or not (self._wake.is_set() or self._is_watched()):
                continue
            self._wake.clear()
            start_time = time.thread_time()
            try:
                self.run_once()
            except LabError as error:
                log.warning("%s", error)
            except Exception:  # if this thread ended, the figures would not change until the page is restarted
                log.exception("the instant reward model was not fitted; the next vote tries again")
            self._stopped.wait(REST_FACTOR * (time.thread_time() - start_time))

    def run_once(self) -> None:
        """Predict the pending votes, learn from all labels of the open project, and choose the ridge if that is due."""
        self.update()
        if self.model is not None:
            with self._fit_lock:
                self.model.choose_ridge()  # last, because the figures can already be shown

    def update(self) -> None:
        """Like `run_once`, but without choosing the ridge."""
        project = current_project(self.db)
        if project is None:
            return
        with self._lock:
            votes = list(self._pending.values())
        with self._fit_lock:
            if self.model is None or self.model.project_id != project.id:
                self.model = InstantModel(self.db, project.id)
                self.model.update()
            predictions = self._predict(self.model, votes)
            self.model.update()
        with self._lock:
            for vote in votes:
                if self._pending.pop(vote.uuid, None) is not None:
                    self._predictions[vote.uuid] = vote, predictions.get(vote.uuid)
            while len(self._predictions) > MAX_PREDICTIONS:
                self._predictions.popitem(last=False)

    def _predict(self, model: InstantModel, votes: Sequence[Vote]) -> dict[str, Prediction | None]:
        """Predictions by the uuid of the vote, without votes on deleted pairs and those that exceed MAX_REFITS."""
        predictions: dict[str, Prediction | None] = {}
        has_gold = get_labelling_config(self.db, model.project_id).gold_rate > 0
        refits = 0
        for vote in votes:
            needs_refit = has_gold or model.knows(vote.pair_id)
            refits += needs_refit
            if refits <= MAX_REFITS or not needs_refit:
                with contextlib.suppress(NotFoundError):
                    pair = get_pair(self.db, vote.pair_id)
                    if pair.project_id == model.project_id and (not has_gold or model.can_omit_any_pair()):
                        predictions[vote.uuid] = model.predict(pair)
        return predictions


def is_vote_on(vote: Vote, annotator: str, pair_id: int) -> bool:
    return (vote.annotator, vote.pair_id) == (annotator, pair_id)

"""Pairs selected by uncertainty, information or diversity, and the stored reason."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import tiny_models
from support_worker import Lab

from rlhf_lab.common.enums import JobStatus, Source
from rlhf_lab.config.labelling import is_actively_selected
from rlhf_lab.engine import pair_sampling as pairs_module
from rlhf_lab.engine.pair_sampling import PairRequest, sample_pairs
from rlhf_lab.store import label_snapshots
from rlhf_lab.store.projects import count_pairs
from rlhf_lab.training.reward.active_selection import (
    CANDIDATES_PER_PAIR,
    jaccard_distance,
    select_most_diverse,
    select_most_uncertain,
    select_teaching_pair,
    word_set,
)


class Scores:
    """A reward model that knows its scores: member k gives text [n] the k-th row's n-th number."""

    def __init__(self, *rows):
        self.rows = torch.tensor(rows)

    def raw_scores(self, prompts, responses, on_progress):
        assert len(prompts) == len(responses)
        return self.rows[:, [response[0] for response in responses]]


FIRSTS, SECONDS = [[0], [1], [2]], [[3], [4], [5]]


def test_a_single_head_is_uncertain_where_scores_are_close():
    model = Scores([2.0, 0.0, -1.0, 0.0, 0.5, -1.1])  # gaps 2.0, -0.5, 0.1
    assert select_most_uncertain(model, [[9]] * 3, FIRSTS, SECONDS, 1) == [2]
    assert select_most_uncertain(model, [[9]] * 3, FIRSTS, SECONDS, 2) == [1, 2]


def test_an_ensemble_is_uncertain_where_members_disagree_on_the_gap():
    # gaps of the two members: 1 and 1; 0 and 0 (both sure that it is a tie); 3 and -3
    model = Scores([5.0, 0.0, 3.0, 4.0, 0.0, 0.0], [1.0, 7.0, 0.0, 0.0, 7.0, 3.0])
    assert select_most_uncertain(model, [[9]] * 3, FIRSTS, SECONDS, 1) == [2]


def test_jaccard_distance_by_hand():
    assert jaccard_distance(word_set("A cat sat."), word_set("the cat sat")) == pytest.approx(2 / 4)
    assert jaccard_distance(word_set(""), word_set("")) == 0.0


def test_most_diverse_is_farthest_from_existing_and_selected_pairs():
    existing = [word_set("a b c d")]
    candidates = [word_set("a b c d"), word_set("p q r s"), word_set("p q r t"), word_set("a b x y")]
    assert select_most_diverse(candidates, existing, 1) == [1]
    assert select_most_diverse(candidates, existing, 2) == [1, 3]  # not 2, which is nearly 1 again
    assert select_most_diverse(candidates, existing, 9) == [0, 1, 2, 3]


@pytest.mark.parametrize("sampling", ["information", "uncertainty", "diversity"])
def test_selected_pairs_have_a_reason_and_are_never_repeated(lab, sampling):
    before = count_pairs(lab.db, lab.project.id)
    pairs = [
        pair
        for n in (2, 3)
        for pair in sample_pairs(
            lab.worker.model_cache, lab.project, PairRequest(n, sampling=sampling, max_new_tokens=8)
        )
    ]
    assert count_pairs(lab.db, lab.project.id) == before + 5
    assert {pair.reason for pair in pairs} == {"uncertainty: gap" if sampling == "uncertainty" else sampling}
    assert all(is_actively_selected(pair.reason) for pair in pairs)
    assert len({pair.first.seed for pair in pairs}) == 5


def test_the_most_uncertain_candidates_are_kept(lab, monkeypatch):
    calls = []

    def spy(model, prompts, firsts, seconds, count, on_progress):
        calls.append((len(prompts), count))
        return select_most_uncertain(model, prompts, firsts, seconds, count, on_progress)

    monkeypatch.setattr(pairs_module, "select_most_uncertain", spy)
    sample_pairs(lab.worker.model_cache, lab.project, PairRequest(3, sampling="uncertainty", max_new_tokens=8))
    assert calls == [(3 * CANDIDATES_PER_PAIR, 3)]


def test_the_most_informative_are_selected_by_the_current_labels(lab, monkeypatch):
    seen = []

    def spy(adapters, labels, reference, candidates, count, config, *, on_progress):
        seen.append((len(labels), len(reference.responses), len(candidates), count, config.pooling))
        return list(range(count))[::-1]

    monkeypatch.setattr(pairs_module, "select_most_informative", spy)
    label_count = len(label_snapshots.snapshot_labels(lab.db, lab.project.id, Source.SIMULATED).vote_ids)
    made = sample_pairs(lab.worker.model_cache, lab.project, PairRequest(3, sampling="information", max_new_tokens=8))
    assert seen == [(label_count, 128, 3 * CANDIDATES_PER_PAIR, 3, "mean")]
    assert len(made) == 3


def test_pairs_selected_by_an_ensemble_have_its_reason(lab):
    assert lab.train_reward(ensemble=3).status is JobStatus.DONE
    made = sample_pairs(lab.worker.model_cache, lab.project, PairRequest(2, sampling="uncertainty", max_new_tokens=8))
    assert [pair.reason for pair in made] == ["uncertainty: ensemble"] * 2


@pytest.mark.parametrize("sampling", ["information", "uncertainty"])
def test_pairs_are_random_without_labels_or_reward_model(tmp_path, model, sampling):
    fresh, other = Lab(tmp_path / "a", model), Lab(tmp_path / "b", model)
    chosen = sample_pairs(fresh.worker.model_cache, fresh.project, PairRequest(2, sampling=sampling))
    random = sample_pairs(other.worker.model_cache, other.project, PairRequest(2))
    assert [pair.reason for pair in chosen] == ["random", "random"]
    assert [pair.first.text for pair in chosen] == [pair.first.text for pair in random]
    fresh.db.close()
    other.db.close()


#: Tokens (the last one is the end, 0), and positions in a plane of features, which is the only layer.
FOUR = [[5, 6, 7, 0], [5, 6, 0], [1, 2, 3, 0], [4, 4, 4, 4, 4, 4, 4, 0]]
PLANE = np.array([[0, 0], [1, 0], [0, 2], [9, 9]], np.float32)


@pytest.mark.parametrize(
    ("responses", "ended", "scores", "expected"),
    [
        # |Δ log length|: 02 0; 01, 12 log 4/3; 03, 23 log 2; 13 log 8/3. Kept: 02, 01, 12, at distances 2, 1, root 5.
        (FOUR, [True] * 4, None, (1, 2)),
        (FOUR, [True] * 4, [2.0, 0.0, 1.0, 9.0], (0, 2)),  # of these, sums 3, 2, 1: 02 and 01 are kept
        (FOUR, [True, True, False, True], None, (0, 3)),  # complete: 01, 03, 13; the last one differs most in length
        (FOUR, [False, True, False, True], None, (1, 3)),  # the only two complete ones, whatever their length
        (FOUR, [False, True, False, False], None, (1, 2)),  # one complete one: as if all were cut
        ([[5, 0], [5, 0], [5, 0], [6, 0]], [True] * 4, None, (0, 3)),  # the others are equal
    ],
)
def test_the_pair_that_teaches_by_hand(responses, ended, scores, expected):
    assert select_teaching_pair(responses, ended, PLANE, 1, scores) == expected


def test_each_layer_has_the_same_say_in_what_is_different():
    # Of equal length, so the first half: 01, 02, 03. Square distances over the variance of the first layer (3/16): 16/3, 0, 0;
    # of the second one (768.75): 0, 3.3, 4.7.
    features = np.array([[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 50.0, 60.0]], np.float32).T
    assert select_teaching_pair([[n, 0] for n in range(1, 5)], [True] * 4, features, 2, None) == (0, 1)


class Instant:
    """An instant model that gives the n-th text the score n, and remembers how many texts it was asked about."""

    figures = SimpleNamespace(ignored=("length", "cut"))

    def __init__(self, learned):
        self.learned, self.asked = learned, []

    def scores(self, vectors, attributes):
        assert attributes.shape == (len(vectors), 2)  # one row for each response
        self.asked.append(len(vectors))
        return np.arange(len(vectors), dtype=np.float32) if self.learned else None


def texts_of(pairs):
    return [(pair.prompt.text, pair.first.text, pair.second.text, pair.first.seed, pair.second.seed) for pair in pairs]


def test_the_nth_teaching_pair_does_not_depend_on_the_batches(tmp_path, model):
    found = []
    for name, counts, early in (("a", [5], 2), ("b", [1, 3, 1], 0)):
        fresh = Lab(tmp_path / name, model)
        pairs = [
            pair
            for n in counts
            for pair in sample_pairs(
                fresh.worker.model_cache, fresh.project, PairRequest(n, sampling="teaching", stored_first=early)
            )
        ]
        found.append(texts_of(pairs))
        assert {pair.reason for pair in pairs} == {"teaching: different"}
        assert not any(is_actively_selected(pair.reason) for pair in pairs)  # accuracies count them like random ones
        fresh.db.close()
    assert found[0] == found[1]
    assert len({seed for *_, first, second in found[0] for seed in (first, second)}) == 10


def test_teaching_pairs_are_selected_by_scores_except_for_exploration(lab, monkeypatch):
    seen, instant = [], Instant(learned=True)

    def spy(responses, ended, features, layers, scores):
        seen.append(scores)
        assert len(responses) == len(ended) == len(features) == 4
        assert ended == [response[-1] == tiny_models.EOS for response in responses]
        return 1, 3

    monkeypatch.setattr(pairs_module, "select_teaching_pair", spy)
    monkeypatch.setattr(pairs_module, "InstantModel", lambda db, project_id: instant)
    monkeypatch.setattr(instant, "update", lambda: None, raising=False)
    monkeypatch.setattr(pairs_module, "TEACHING_BATCH_SIZE", 6)
    made = sample_pairs(lab.worker.model_cache, lab.project, PairRequest(8, sampling="teaching", max_new_tokens=8))
    assert instant.asked == [24, 8]
    explored = [i for i, scores in enumerate(seen) if scores is None]
    assert 0 < len(explored) < 8
    assert [i for i, pair in enumerate(made) if pair.reason == "teaching: different"] == explored
    first_scores = {i: scores[0] for i, scores in enumerate(seen) if scores is not None}
    assert first_scores == {i: 4.0 * (i % 6) for i in range(8) if i not in explored}  # each group has its own scores


@pytest.mark.parametrize(("cut_attempts", "expected"), [(0, 0), (1, 1), (8, 1)])
def test_another_prompt_is_tried_once_if_fewer_than_two_responses_are_complete(
    lab, monkeypatch, cut_attempts, expected
):
    """The tokens of a response are its side, the attempt in which it was sampled, and an end if it is complete."""
    sides = pairs_module._sample_sides

    def cut(backbone, spec, indices, attempt, on_progress):
        completions, count = sides(backbone, spec, indices, attempt, on_progress), len(indices)
        complete = 2 * count if attempt >= cut_attempts else count
        ends = [(tiny_models.EOS,) if i < complete else () for i in range(4 * count)]
        tokens = [(i // count + 5, attempt + 5, *end) for i, end in enumerate(ends)]
        return [replace(response, token_ids=ids) for response, ids in zip(completions, tokens, strict=True)]

    monkeypatch.setattr(pairs_module, "_sample_sides", cut)
    made = sample_pairs(lab.worker.model_cache, lab.project, PairRequest(2, sampling="teaching", max_new_tokens=8))
    assert [pair.first.token_ids[1] - 5 for pair in made] == [expected] * 2
    if cut_attempts <= expected:
        assert [(pair.first.token_ids[0], pair.second.token_ids[0]) for pair in made] == [(5, 6)] * 2

"""Pairs selected by uncertainty, information or diversity, and the stored reason."""

import pytest
import torch
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

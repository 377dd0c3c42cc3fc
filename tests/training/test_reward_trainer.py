"""Reward training through its public interface."""

import dataclasses
import math

import pytest
import torch
from support import tiny_models
from support.preference_data import QUICK, comparisons, contradicting, flat, raw_gap, reference_of, train

from rlhf_lab.config.reward import RewardConfig
from rlhf_lab.errors import ConfigError, LabelError, NotFiniteError
from rlhf_lab.models.adapters import Adapters
from rlhf_lab.models.reward_model import load_reward_model
from rlhf_lab.training.reward.trainer import check_labels, train_reward

HEAD_ONLY = QUICK | {"epochs": 0}


# --- labels ---


def test_insufficient_labels_are_refused():
    decided = comparisons(2)
    tie = dataclasses.replace(decided[0], tie=True)
    with pytest.raises(LabelError, match="no labels yet"):
        check_labels([])
    with pytest.raises(LabelError, match="all 3 labels are ties"):
        check_labels([tie] * 3)
    with pytest.raises(LabelError, match="one decided label"):
        check_labels([decided[0], tie])
    check_labels(decided)


@pytest.mark.parametrize("labels", [[], comparisons(1), [dataclasses.replace(comparisons(1)[0], tie=True)] * 4])
def test_insufficient_labels_are_refused_before_training(llama_folder, labels):
    adapters = Adapters(tiny_models.load(llama_folder))
    with pytest.raises(LabelError):
        train_reward(adapters, labels, reference_of(adapters.backbone), RewardConfig())
    assert adapters.names == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"margin": math.inf}, "label 2 has the margin inf"),
        ({"margin": -math.inf}, "label 2 has the margin -inf"),
        ({"margin": math.nan}, "label 2 has the margin nan"),
        ({"strength": math.inf}, "label 2 has the strength inf"),
        ({"strength": math.nan}, "label 2 has the strength nan"),
        ({"margin": 1e39}, r"label 2 has the margin 1e\+39\. Give it a number from -1e\+15 to 1e\+15"),
        ({"strength": 1e39}, r"label 2 has the strength 1e\+39\. Give it a number from 0 to 1e\+15"),
        ({"strength": -5.0}, r"label 2 has the strength -5\.0\. Give it a number from 0 to"),
        ({"margin": None}, "label 2 has the margin None"),
        ({"margin": None, "tie": True}, "label 2 has the margin None"),
        ({"strength": None}, "label 2 has the strength None"),
        ({"margin": "1"}, "label 2 has the margin 1"),
        ({"strength": "1"}, "label 2 has the strength 1"),
        ({"count": -1}, "label 2 has the count -1. Give it a whole number of 0 or more"),
        ({"count": math.nan}, "label 2 has the count nan"),
        ({"count": 1.5}, "label 2 has the count 1.5"),
        ({"count": None}, "label 2 has the count None"),
    ],
)
@pytest.mark.parametrize("warm_start", [False, True])
def test_a_margin_that_is_not_finite_is_refused_before_training(llama_folder, changes, message, warm_start):
    labels = comparisons()
    labels[2] = dataclasses.replace(labels[2], **changes)
    adapters = Adapters(tiny_models.load(llama_folder))
    with pytest.raises(LabelError, match=message) as caught:
        train_reward(
            adapters, labels, reference_of(adapters.backbone), RewardConfig(**(QUICK | {"warm_start": warm_start}))
        )
    assert "learning rate" not in str(caught.value)
    assert adapters.names == ()


def test_the_margin_of_a_tie_may_be_any_number(llama_folder):
    """A tie has no margin, so its value changes nothing."""
    labels, changed = comparisons(), comparisons()
    labels[2] = dataclasses.replace(labels[2], tie=True)
    changed[2] = dataclasses.replace(labels[2], margin=math.inf)
    assert train(llama_folder, changed)[1] == train(llama_folder, labels)[1]


@pytest.mark.parametrize("changes", [{"folds": 3}, {"folds": 3, "warm_start": False}, {"ensemble": 2}])
def test_labels_with_equal_tokens_are_left_out_and_counted(llama_folder, changes):
    """The model scores both texts alike, so such a label is neither learned nor counted as wrong."""
    labels = comparisons()
    same_ids = labels[1].chosen_ids
    blind = dataclasses.replace(labels[1], rejected_ids=same_ids)
    blind_tie = dataclasses.replace(blind, tie=True)
    without = train(llama_folder, labels, **changes)[1]
    mixed = train(llama_folder, [*labels, blind, blind_tie], **changes)[1]
    assert (mixed.indistinguishable, without.indistinguishable) == (2, 0)
    same = dataclasses.replace(mixed, indistinguishable=0, agreement=without.agreement)
    expected = dataclasses.asdict(without)
    # Other batches round differently, and the report rounds scores to four decimals.
    assert flat(dataclasses.asdict(same)) == pytest.approx(flat(expected), abs=2e-4)


@pytest.mark.parametrize("changes", [{"folds": 3}, {"folds": 3, "warm_start": False}, {"ensemble": 5}])
@pytest.mark.parametrize("nothing", [{"weight": 0.0}, {"count": 0}])
def test_labels_that_do_not_count_are_as_if_they_were_not_there(llama_folder, changes, nothing):
    """Of ten prompts in three folds, the last fold has the only three labels that count."""
    labels, counted = [dataclasses.replace(one, group=i) for i, one in enumerate(comparisons(10))], (2, 5, 8)
    mixed = [label if i in counted else dataclasses.replace(label, **nothing) for i, label in enumerate(labels)]
    expected = train(llama_folder, [labels[i] for i in counted], **changes)[1]
    disagreements = [one | {"index": counted[one["index"]]} for one in expected.disagreements]
    assert train(llama_folder, mixed, **changes)[1] == dataclasses.replace(expected, disagreements=disagreements)


def test_a_single_label_that_counts_is_refused(llama_folder):
    labels = [dataclasses.replace(label, weight=float(i == 2)) for i, label in enumerate(comparisons(4))]
    with pytest.raises(LabelError, match="only one decided label has a weight and a count above 0"):
        train(llama_folder, labels, ensemble=5)


def test_ties_of_other_prompts_measure_nothing(llama_folder):
    """Only one prompt has labels that prefer a text: a head without them is 0, and the sign of its rounding no prediction."""
    labels = [dataclasses.replace(label, tie=i > 3, group=max(0, i - 3)) for i, label in enumerate(comparisons(8))]
    report = train(llama_folder, labels, epochs=0, folds=2)[1]
    assert (report.accuracy, report.accuracy_low, report.accuracy_high) == (None, 0.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "cross_validated"), [({"epochs": 0, "folds": 2}, True), ({"folds": 3, "warm_start": False}, False)]
)
def test_the_interval_is_that_of_the_way_of_holding_out(llama_folder, monkeypatch, changes, cross_validated):
    """A fitted head leaves out one prompt after the other, an adapter one fold."""
    ways = []
    monkeypatch.setattr(
        "rlhf_lab.training.reward.report.held_out_interval",
        lambda hits, cross_validated: ways.append(cross_validated) or (0.0, 1.0),
    )
    train(llama_folder, **changes)
    assert set(ways) == {cross_validated}


def test_disagreements_keep_their_label_when_others_are_left_out(llama_folder):
    labels = contradicting()
    blind = dataclasses.replace(labels[0], rejected_ids=labels[0].chosen_ids)
    plain = train(llama_folder, labels, folds=2, epochs=0)[1].disagreements
    shifted = train(llama_folder, [blind, *labels], folds=2, epochs=0)[1].disagreements
    assert plain
    by_index = [{one["index"]: one["probability"] for one in disagreements} for disagreements in (plain, shifted)]
    assert by_index[1] == pytest.approx(
        {index + 1: probability for index, probability in by_index[0].items()}, abs=2e-4
    )


def test_labels_that_the_model_cannot_tell_apart_are_refused_before_training(llama_folder):
    labels = [dataclasses.replace(c, rejected_ids=c.chosen_ids) for c in comparisons()]
    adapters = Adapters(tiny_models.load(llama_folder))
    with pytest.raises(LabelError, match=r"all 12 labels .* the same tokens"):
        train_reward(adapters, labels, reference_of(adapters.backbone), RewardConfig())
    assert adapters.names == ()


def test_a_count_of_two_equals_a_repeated_label(llama_folder):
    labels = comparisons(12)
    odd = dataclasses.replace(labels[0], chosen=labels[0].rejected, rejected=labels[0].chosen,
                              chosen_ids=labels[0].rejected_ids, rejected_ids=labels[0].chosen_ids)  # fmt: skip
    thrice, _ = train(llama_folder, [*labels, dataclasses.replace(odd, count=3)], **HEAD_ONLY)
    listed, _ = train(llama_folder, [*labels, odd, odd, odd], **HEAD_ONLY)
    once, _ = train(llama_folder, [*labels, odd], **HEAD_ONLY)
    torch.testing.assert_close(thrice.head.linear.weight, listed.head.linear.weight)
    assert not torch.allclose(thrice.head.linear.weight, once.head.linear.weight)


# --- what is learned ---


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("changes", [{}, {"warm_start": False, "epochs": 12}, {"epochs": 0}])
def test_it_learns_the_preferred_word(llama_folder, pooling, changes):
    model, report = train(llama_folder, pooling=pooling, **changes)
    assert report.train_accuracy == 1.0
    assert (report.labels, report.ties) == (12, 0)
    assert all(a > b for a, b in zip(report.chosen_scores, report.rejected_scores, strict=True))
    if pooling == "mean":
        unseen = comparisons(8, seed=9)
        prompts = [model.backbone.encode_prompt(c.prompt) for c in unseen]
        chosen = model.scores(prompts, [list(c.chosen_ids) for c in unseen])
        rejected = model.scores(prompts, [list(c.rejected_ids) for c in unseen])
        assert float((chosen > rejected).double().mean()) > 0.9


@pytest.mark.parametrize("changes", [{}, {"warm_start": False}, {"epochs": 0}, {"pooling": "last"}])
def test_scores_of_the_reference_have_mean_0_and_sd_1(llama_folder, changes):
    model, _ = train(llama_folder, **changes)
    scores = model.scores(*reference_of(model.backbone)).double()
    assert float(scores.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(scores.std()) == pytest.approx(1.0, abs=1e-4)


def test_normalising_keeps_the_order(llama_folder):
    """The scale is positive: a chosen text still scores above a rejected one."""
    model, _ = train(llama_folder)
    assert float(model.head.scale) > 0


def test_deterministic(llama_folder):
    """Bit for bit, independent of the global generator; another seed gives another model."""
    _, validated = train(llama_folder, folds=3)
    torch.rand(5)
    assert train(llama_folder, folds=3)[1] == validated
    first, first_report = train(llama_folder)
    torch.rand(5)
    second, second_report = train(llama_folder)
    assert first_report == second_report
    assert tiny_models.same(first.head.state_dict(), second.head.state_dict())
    assert tiny_models.same(first.adapters.tensors(first.adapter), second.adapters.tensors(second.adapter))
    other, _ = train(llama_folder, seed=1)
    assert not tiny_models.same(first.adapters.tensors(first.adapter), other.adapters.tensors(other.adapter))


def test_training_leaves_backbone_and_other_adapters_alone(llama_folder):
    """The backbone, another adapter and the global generator stay; the new adapter is frozen again."""
    backbone = tiny_models.load(llama_folder)
    adapters = tiny_models.adapters_of(backbone, "policy")
    reference = reference_of(backbone)
    before, policy, state = tiny_models.weights_hash(backbone), adapters.tensors("policy"), torch.random.get_rng_state()
    with adapters.using("policy"):
        train_reward(adapters, comparisons(), reference, RewardConfig(**(QUICK | {"folds": 2, "warm_start": False})))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert tiny_models.weights_hash(backbone) == before
    assert tiny_models.same(adapters.tensors("policy"), policy)
    assert adapters.names == ("policy", "reward training")
    assert not [p for p in adapters.parameters("reward training") if p.requires_grad]
    assert all(p.requires_grad for p in adapters.parameters("policy"))


def test_saved_with_head_and_normalisation(llama_folder, tmp_path):
    model, _ = train(llama_folder)
    model.save(tmp_path / "model")
    backbone = tiny_models.load(llama_folder)
    again = load_reward_model(backbone, Adapters(backbone), tmp_path / "model", "reward")
    prompts, responses = tiny_models.ragged()
    assert torch.equal(again.scores(prompts, responses), model.scores(prompts, responses))


def test_sampled_ids_are_used_not_the_text(llama_folder):
    """Item 19 for rewards: with ids given, the text is not read; without, it is encoded, EOS appended."""
    labels = comparisons()
    other_text = [dataclasses.replace(c, chosen="cat", rejected="cat") for c in labels]
    no_ids = [dataclasses.replace(c, chosen_ids=(), rejected_ids=()) for c in labels]
    models = [train(llama_folder, variant)[0] for variant in (labels, other_text, no_ids)]
    assert tiny_models.same(models[0].head.state_dict(), models[1].head.state_dict())
    assert tiny_models.same(models[0].head.state_dict(), models[2].head.state_dict())


def test_swapped_labels_swap_the_order(llama_folder):
    swapped = [
        dataclasses.replace(
            c, chosen=c.rejected, rejected=c.chosen, chosen_ids=c.rejected_ids, rejected_ids=c.chosen_ids
        )
        for c in comparisons()
    ]
    model, report = train(llama_folder, swapped)
    assert report.train_accuracy == 1.0
    happy, sad = (
        model.scores([[5]], [[*tiny_models.ids(f"cat {w} {w} dog"), tiny_models.EOS]]) for w in ("happy", "sad")
    )
    assert float(sad) > float(happy)


# --- margins, ties, smoothing ---


def test_ties_pull_the_scores_together(llama_folder):
    """Half of the labels as ties: the score gap is narrower than with decided labels only."""
    labels = comparisons()
    tied = [dataclasses.replace(c, tie=True) if i % 2 else c for i, c in enumerate(labels)]
    for changes in ({"warm_start": False, "epochs": 8}, HEAD_ONLY):
        decided_model, _ = train(llama_folder, labels, **changes)
        tied_model, report = train(llama_folder, tied, **changes)
        assert report.ties == 6
        assert len(report.chosen_scores) == 6
        assert raw_gap(tied_model, labels[1]) < 0.8 * raw_gap(decided_model, labels[1])


def test_margins_push_the_scores_apart(llama_folder):
    labels = comparisons()
    wide = [dataclasses.replace(c, margin=4.0) for c in labels]
    changes = {"warm_start": False, "epochs": 20, "lr": 1e-2}
    plain, plain_report = train(llama_folder, labels, **changes)
    with_margin, report = train(llama_folder, wide, **changes)
    assert report.loss[0] > plain_report.loss[0] + 1
    assert raw_gap(with_margin, labels[0]) > 1.1 * raw_gap(plain, labels[0])


def test_smoothing_and_centring_are_used(llama_folder):
    changes = {"warm_start": False, "epochs": 1}
    losses = [
        train(llama_folder, **changes, **more)[1].loss[0] for more in ({}, {"label_smoothing": 0.4}, {"centering": 1.0})
    ]
    assert len(set(losses)) == 3
    assert losses[2] > losses[0]


def test_the_first_loss_by_hand(llama_folder):
    """Head alone on the untouched adapter (B = 0): mean of log(1 + exp(margin - gap)), ties half of both sides."""
    labels = comparisons(4)
    labels[1] = dataclasses.replace(labels[1], tie=True)
    labels[2] = dataclasses.replace(labels[2], margin=0.7)
    changes = {"warm_start": False, "epochs": 1, "batch_size": 4, "centering": 0.0, "lr": 1e-7}
    model, report = train(llama_folder, labels, **changes)
    gaps = [raw_gap(model, c) for c in labels]
    expected = [math.log1p(math.exp(-gap)) for gap in gaps]
    expected[1] = (expected[1] + math.log1p(math.exp(gaps[1]))) / 2
    expected[2] = math.log1p(math.exp(0.7 - gaps[2]))
    assert report.loss[0] == pytest.approx(sum(expected) / 4, abs=1e-4)


# --- the report ---


@pytest.mark.parametrize("changes", [{}, {"warm_start": False, "epochs": 10}, {"epochs": 0}])
def test_folds_never_split_a_prompt(llama_folder, changes):
    """Two groups that contradict each other: trained on either, every held-out label of the other is missed. Folds that
    mix the groups would train on both, and could not be wrong on all."""
    _, report = train(llama_folder, contradicting(), **(changes | {"folds": 5}))
    assert report.folds == (2 if changes.get("warm_start", True) else 1)
    assert report.accuracy == 0.0


def test_one_prompt_cannot_be_cross_validated(llama_folder):
    labels = [dataclasses.replace(c, group=1) for c in comparisons(6)]
    _, report = train(llama_folder, labels, folds=5)
    assert (report.accuracy, report.folds) == (None, 0)
    assert (report.accuracy_low, report.accuracy_high) == (0.0, 1.0)


def test_cross_validated_accuracy_of_an_easy_rule(llama_folder):
    _, report = train(llama_folder, comparisons(20), folds=5)
    assert report.folds == 5
    assert report.accuracy > 0.8
    assert 0 < report.accuracy_low < report.accuracy <= 1.0 == pytest.approx(report.accuracy_high, abs=0.3)


def test_progress_callbacks(llama_folder):
    """12 labels in batches of 4: 3 updates an epoch, 2 epochs; every loss is reported once, done never passes all."""
    seen, ticks = [], []
    _, report = train(llama_folder, progress=lambda *args: seen.append(args), on_progress=lambda: ticks.append(1))
    assert len(report.loss) == 6
    assert [loss for _, _, loss, _ in seen][-6:] == report.loss
    done = [done for done, _, _, _ in seen]
    assert done == sorted(done)
    assert all(done <= total for done, total, _, _ in seen)
    stages = list(dict.fromkeys(stage for _, _, _, stage in seen))
    assert stages == ["final"]
    assert [stage for _, _, _, stage in seen][-6:] == ["final"] * 6
    assert len(ticks) > 6

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(llama_folder, on_progress=stop)


# --- when something is broken ---


@pytest.mark.parametrize("warm_start", [False, True])
def test_nan_weights(llama_folder, warm_start):
    backbone = tiny_models.load(llama_folder)
    reference = reference_of(backbone)
    with torch.no_grad():
        backbone.model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(NotFiniteError):
        train_reward(Adapters(backbone), comparisons(), reference, RewardConfig(**(QUICK | {"warm_start": warm_start})))


def test_one_reference_sample_is_refused_before_anything_is_trained(llama_folder):
    backbone, done = tiny_models.load(llama_folder), []
    with pytest.raises(ConfigError, match="Give at least 2"):
        train_reward(
            Adapters(backbone), comparisons(), reference_of(backbone, 1), RewardConfig(**QUICK, warm_start=False),
            on_update=lambda *args: done.append(args),
        )  # fmt: skip
    assert done == []

"""The linear heads, against hand computation."""

import pytest
import torch
from support import tiny_models  # noqa: F401  one thread

from rlhf_lab.models.features import FeatureSpec
from rlhf_lab.models.heads import RewardHead, ValueHead

NAN = float("nan")
HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [NAN, NAN]], [[5.0, 6.0], [-1.0, 0.0], [7.0, -2.0]]])
MASK = torch.tensor([[True, True, False], [True, True, True]])


def head_of(pooling, shift=0.0, scale=1.0, last_weight=0.0):
    """raw = 2 x - y + 0.5"""
    head = RewardHead(2, FeatureSpec(pooling, last_weight), 0)
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[2.0, -1.0]]))
        head.linear.bias.fill_(0.5)
        head.shift.fill_(shift)
        head.scale.fill_(scale)
    return head.requires_grad_(False)


def test_mean_pooling_by_hand():
    """Row 0: mean of (1, 2) and (3, 4) = (2, 3): 4 - 3 + 0.5. Row 1: (11/3, 4/3): 22/3 - 4/3 + 0.5."""
    head = head_of("mean")
    torch.testing.assert_close(head.features.pool(HIDDEN, MASK), torch.tensor([[2.0, 3.0], [11 / 3, 4 / 3]]))
    torch.testing.assert_close(head(head.features.pool(HIDDEN, MASK)), torch.tensor([1.5, 6.5]))


def test_last_pooling_by_hand():
    """The last real token: (3, 4) and (7, -2)."""
    head = head_of("last")
    assert head.features.pool(HIDDEN, MASK).tolist() == [[3.0, 4.0], [7.0, -2.0]]
    assert head(head.features.pool(HIDDEN, MASK)).tolist() == [2.5, 16.5]


def test_the_last_token_may_weigh_more_in_the_mean():
    """3/4 of the means (2, 3) and (11/3, 4/3), 1/4 of the last tokens (3, 4) and (7, -2)."""
    head = head_of("mean", last_weight=0.25)
    torch.testing.assert_close(head.features.pool(HIDDEN, MASK), torch.tensor([[2.25, 3.25], [4.5, 0.5]]))
    torch.testing.assert_close(
        head.features.token_weights(MASK), torch.tensor([[0.375, 0.625, 0.0], [0.25, 0.25, 0.5]])
    )
    assert torch.equal(FeatureSpec("last", 0.25).pool(HIDDEN, MASK), FeatureSpec("last").pool(HIDDEN, MASK))
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert head.features.pool(HIDDEN[:1], nothing).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_score_is_shifted_then_scaled(pooling):
    raw = head_of(pooling)(FeatureSpec(pooling).pool(HIDDEN, MASK))
    head = head_of(pooling, shift=1.5, scale=4.0)
    torch.testing.assert_close(head(head.features.pool(HIDDEN, MASK)), (raw - 1.5) / 4)
    assert torch.equal(head.raw(head.features.pool(HIDDEN, MASK)), raw)


def test_per_token_shares_average_to_the_score():
    head = head_of("mean", shift=1.5, scale=4.0)
    shares = head.per_token(HIDDEN, MASK)
    torch.testing.assert_close(shares, torch.tensor([[-0.25, 0.25, 0.0], [0.75, -0.75, 3.75]]))
    torch.testing.assert_close(shares.sum(1) / MASK.sum(1), head(head.features.pool(HIDDEN, MASK)))


def test_per_token_shares_with_a_last_token_that_weighs_more():
    """raw - 0.5 is 0, 2 and 4, -2, 16; times 0.75 and 1.25 of two tokens, 0.75, 0.75 and 1.5 of three; then (+ 0.5 - 1.5) / 4."""
    head = head_of("mean", shift=1.5, scale=4.0, last_weight=0.25)
    shares = head.per_token(HIDDEN, MASK)
    torch.testing.assert_close(shares, torch.tensor([[-0.25, 0.375, 0.0], [0.5, -0.625, 5.75]]))
    torch.testing.assert_close(shares.sum(1) / MASK.sum(1), head(head.features.pool(HIDDEN, MASK)))


def test_reward_head_starts_at_one_over_root_d_plus_one():
    """Standard deviation 1/sqrt(d + 1) = 0.01 for d = 9999; bias 0; the seed alone decides."""
    head = RewardHead(9999, FeatureSpec("mean"), seed=3).requires_grad_(False)
    assert float(head.linear.weight.std()) == pytest.approx(0.01, rel=0.03)
    assert float(head.linear.weight.mean()) == pytest.approx(0.0, abs=3e-4)
    assert head.linear.bias.tolist() == [0.0]
    assert torch.equal(head.linear.weight, RewardHead(9999, FeatureSpec("mean"), seed=3).linear.weight)
    assert not torch.equal(head.linear.weight, RewardHead(9999, FeatureSpec("mean"), seed=4).linear.weight)
    assert (head.shift.item(), head.scale.item()) == (0.0, 1.0)


def test_value_head_starts_at_zero():
    head = ValueHead(2)
    assert head(HIDDEN.nan_to_num()).tolist() == [[0.0] * 3, [0.0] * 3]
    assert head(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32


def test_new_heads_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    RewardHead(8, FeatureSpec("mean"), seed=0)
    ValueHead(8)
    assert torch.equal(torch.random.get_rng_state(), before)

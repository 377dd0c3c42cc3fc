"""What a person sees of a blind comparison does not depend on what is hidden from them."""

import hashlib
import hmac
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlhf_lab.common.records import PairKey
from rlhf_lab.common.seeding import derive_seed
from rlhf_lab.quality.tournament import Contestant
from rlhf_lab.ui.auth.visitors import LOCAL_ACCESS
from rlhf_lab.ui.context import Context
from rlhf_lab.ui.screens import blind_test, tournament
from rlhf_lab.ui.services import voting
from rlhf_lab.ui.services.blind_results import BlindPair

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
    shown = [next(iter(voting.sides_by_shown_id(ctx, "ann", i).items())) for i in range(1, 49)]
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


def test_a_page_that_was_open_during_the_update_keeps_its_sides(ctx):
    lab = lab_with_key(ctx, b"k" * 32)
    for pair_id in range(1, 20):
        earlier_id = int(hmac.new(b"k" * 32, f"pair/ann/{pair_id}".encode(), "sha256").hexdigest()[:8], 16) // 2
        was_on_left = hashlib.sha256(f"ann/{pair_id}".encode()).digest()[0] % 2 == 0
        sides = voting.sides_by_shown_id(lab, "ann", pair_id)
        assert (sides[earlier_id], sides[pair_id]) == (was_on_left, was_on_left)
        assert [not side for side in sides.values()] == list(
            voting.sides_by_shown_id(lab, "ann", pair_id, True).values()
        )


def test_parts_of_a_token_cannot_be_shifted_into_each_other(ctx):
    lab = lab_with_key(ctx, b"a" * 32)
    assert (
        len({lab.blind_token(*parts) for parts in (("a", 1, 2), ("a", 12), ("a/1", 2), ("a", "1", 2), ('a", 1', 2))})
        == 5
    )

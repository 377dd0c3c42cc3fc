"""Screen "People" without a browser: the link and QR code by which others join."""

from dataclasses import replace

import pytest

from rlhf_lab.ui import address, people


@pytest.fixture
def room(ctx, monkeypatch):
    """A lab that listens on all addresses of its computer, 192.168.1.7 in its network."""
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    monkeypatch.setattr(address, "reached_at", lambda: "192.168.1.7")
    return replace(ctx.guarded(open_to_all=False), address=address.address_for_others("0.0.0.0", 7861))


@pytest.mark.parametrize("seen", ["http://localhost:7861/", "http://127.0.0.1:7861/", "http://[::1]:9000/"])
def test_at_the_labs_own_computer_the_link_is_the_one_that_phones_reach(room, seen):
    assert people.invitation(room, seen)["link"] == "http://192.168.1.7:7861/join?code=ABC234"


def test_elsewhere_the_link_is_where_the_operator_looks(room):
    for seen in ("http://192.168.1.9:7861/", "https://lab.example.org/rlhf/"):
        assert people.invitation(room, seen)["link"] == f"{seen}join?code=ABC234"


def test_who_listens_on_one_address_is_reached_at_it():
    assert address.address_for_others("10.0.0.5", 80) == "http://10.0.0.5:80/"
    assert address.address_for_others("fd00::5", 80) == "http://[fd00::5]:80/"
    assert [address.address_for_others(host, 80) for host in ("127.0.0.1", "localhost", "::1")] == ["", "", ""]


def test_nobody_is_invited_to_a_lab_that_only_its_own_computer_reaches(ctx):
    alone = ctx.guarded(open_to_all=True)
    assert people.invitation(alone, "http://localhost:7860/") is None
    assert people.invitation(ctx, "http://localhost:7860/") is None


def test_on_a_space_the_link_is_the_pages_own(room):
    space = replace(room, on_space=True, address="")
    assert people.invitation(space, "https://me-lab.hf.space/")["link"] == "https://me-lab.hf.space/join?code=ABC234"
    assert people.invitation(space, "http://localhost:7860/")["link"] == "http://localhost:7860/join?code=ABC234"

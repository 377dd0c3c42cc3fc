"""Screen "People" without a browser: the link and QR code for joining."""

from dataclasses import replace

import pytest

from rlhf_lab.cli.serve import access_instructions
from rlhf_lab.common.records import Role
from rlhf_lab.store.annotators import OPERATOR_NAME
from rlhf_lab.ui import network
from rlhf_lab.ui.auth.visitors import Access, JoinCode, Visitor
from rlhf_lab.ui.people import api as people


@pytest.fixture
def network_lab(ctx, monkeypatch):
    """A lab that listens on all addresses of its computer, which is 192.168.1.7 in its network."""
    monkeypatch.setenv("RLHF_LAB_JOIN_CODE", "ABC234")
    monkeypatch.setattr(network, "lan_address", lambda: "192.168.1.7")
    monkeypatch.setattr(network, "CONTAINER_MARKERS", ())
    monkeypatch.delenv("RLHF_LAB_CONTAINER", raising=False)
    return replace(ctx.as_multi_user(open_to_all=False), public_url=network.network_url("0.0.0.0", 7861))


@pytest.mark.parametrize("page_url", ["http://localhost:7861/", "http://127.0.0.1:7861/", "http://[::1]:9000/"])
def test_at_the_labs_own_computer_the_link_is_the_one_that_phones_reach(network_lab, page_url):
    assert people.invitation(network_lab, page_url)["link"] == "http://192.168.1.7:7861/join?code=ABC234"


def test_elsewhere_the_link_is_where_the_operator_looks(network_lab):
    for page_url in ("http://192.168.1.9:7861/", "https://lab.example.org/rlhf/"):
        assert people.invitation(network_lab, page_url)["link"] == f"{page_url}join?code=ABC234"


@pytest.mark.parametrize(
    "odd", ["", "http://[", "http://a:99999", "javascript:alert(1)//", "ftp://a.org/", "//a.org", "x"]
)
def test_an_address_that_no_page_can_have_is_not_in_the_link(network_lab, odd):
    assert people.invitation(network_lab, odd)["link"] == "http://192.168.1.7:7861/join?code=ABC234"
    assert people.invitation(replace(network_lab, on_space=True, public_url=""), odd) is None


def test_a_code_of_ones_own_is_quoted_in_the_link(network_lab):
    own = replace(network_lab, access=replace(network_lab.access, code=JoinCode("ours & 2#")))
    assert people.invitation(own, "http://a.org/")["link"] == "http://a.org/join?code=ours%20%26%202%23"


def test_a_lab_in_a_container_does_not_link_the_containers_address(network_lab, tmp_path, monkeypatch):
    marker = tmp_path / ".dockerenv"
    monkeypatch.setattr(network, "CONTAINER_MARKERS", (marker,))
    assert network.network_url("0.0.0.0", 7861) == "http://192.168.1.7:7861/"
    assert not people.needs_address(network_lab)
    marker.touch()
    monkeypatch.setenv("RLHF_LAB_CONTAINER", "0")  # a container in the network of its computer
    assert network.network_url("0.0.0.0", 7861) == "http://192.168.1.7:7861/"
    monkeypatch.delenv("RLHF_LAB_CONTAINER")
    assert [network.network_url(host, 7861) for host in ("0.0.0.0", "::")] == ["", ""]
    assert network.network_url("10.0.0.5", 7861) == "http://10.0.0.5:7861/"
    in_container = replace(network_lab, public_url="", in_container=True)
    assert people.needs_address(in_container)
    shown = people.invitation(in_container, "http://localhost:7861/")  # the page asks for the address
    assert shown == {"code": "ABC234", "link": "", "qr": None}
    assert people.invitation(in_container, "http://192.168.1.9/")["link"] == "http://192.168.1.9/join?code=ABC234"
    printed = access_instructions(in_container, "http://localhost:7861/")
    assert "http://localhost:7861/join  with the code ABC234\nThis lab runs in a container" in printed
    assert "--url" in printed
    assert "container" not in access_instructions(network_lab, network_lab.public_url)


def test_a_lab_on_one_address_is_linked_by_that_address():
    assert network.network_url("10.0.0.5", 80) == "http://10.0.0.5:80/"
    assert network.network_url("fd00::5", 80) == "http://[fd00::5]:80/"
    assert [network.network_url(host, 80) for host in ("127.0.0.1", "localhost", "::1")] == ["", "", ""]


def test_nobody_is_invited_to_a_lab_that_only_its_own_computer_reaches(ctx):
    local_lab = ctx.as_multi_user(open_to_all=True)
    assert people.invitation(local_lab, "http://localhost:7860/") is None
    assert people.invitation(ctx, "http://localhost:7860/") is None


def test_on_a_space_the_link_is_the_pages_own(network_lab):
    space = replace(network_lab, on_space=True, public_url="")
    assert not people.needs_address(space)
    assert people.invitation(space, "https://me-lab.hf.space/")["link"] == "https://me-lab.hf.space/join?code=ABC234"
    assert people.invitation(space, "http://localhost:7860/")["link"] == "http://localhost:7860/join?code=ABC234"


HERE = {"origin": "http://192.168.1.9:7861/"}


@pytest.fixture
def screen(network_lab, calls, monkeypatch):
    """The screen People of that lab, for the labeller Ann."""
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(Role.LABELLER, "Ann"))
    return calls(people, network_lab)


def test_the_invitation_is_shown_only_with_the_secret(network_lab, screen, send_secret):
    for wrong in ("", "Sesame", network_lab.operator_secret.swapcase(), network_lab.access.join_code):
        send_secret(wrong)
        answer = screen.invite(HERE)
        assert "Only the operator" in answer.pop("error")
        assert answer == {}
    send_secret(network_lab.operator_secret)
    answer = screen.invite(HERE)
    assert (answer["code"], answer["link"]) == ("ABC234", "http://192.168.1.9:7861/join?code=ABC234")


def test_who_entered_as_the_operator_needs_no_secret_for_it(screen, monkeypatch):
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(Role.OPERATOR, OPERATOR_NAME))
    assert screen.invite(HERE)["code"] == "ABC234"


@pytest.mark.parametrize("role", Role)
def test_the_state_of_the_screen_does_not_contain_the_code(network_lab, screen, monkeypatch, role):
    monkeypatch.setattr(Access, "visitor", lambda *_: Visitor(role, "Ann"))
    read = screen.state(HERE)
    assert read["you"] == {"name": "Ann", "role": role.value}
    assert network_lab.access.join_code not in str(read)
    assert network_lab.operator_secret not in str(read)


def test_the_operator_of_an_unreachable_lab_is_told_so(ctx, calls, send_secret):
    assert calls(people, ctx).invite(HERE) is None
    guarded = calls(people, replace(ctx, operator_secret="sesame"))
    assert "Only the operator" in guarded.invite(HERE)["error"]
    send_secret("sesame")
    assert guarded.invite(HERE) is None

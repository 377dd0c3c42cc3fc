"""The operator enters repository and token on the page: mistakes are reported immediately, and the lab is saved."""

import re

import pytest
from browser_lab import press_key
from helpers import ENGINE_TIMEOUT_MS, control, expect_text, open_tab
from playwright.sync_api import expect
from prepared_labs import idle_lab
from support.mirror_hub import READ_TOKEN, TOKEN, MirrorHub


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    server = MirrorHub(tmp_path_factory.mktemp("hub"))
    with server.running():
        yield server


@pytest.fixture(scope="module")
def lab(hub, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    lab = idle_lab(folder / "home", environment=hub.environment(folder / "cache") | {"HF_TOKEN": ""}).start()
    yield lab
    lab.stop()


def open_form(page):
    open_tab(page, "Runs & data")
    page.locator("#runs-backup > button").click()


def enter(page, repository, token):
    control(page, "mirror-repository").fill(repository)
    control(page, "mirror-token").fill(token)
    control(page, "mirror-set-up").click()


def test_repository_and_token_are_entered_on_the_page(lab, hub, open_page):
    page = open_page(lab)
    open_form(page)
    expect_text(page, "mirror-state", "The lab is not saved to the Hub.")
    for repository, token, message in (
        ("lab", TOKEN, "OWNER/NAME"),
        ("someone/lab", "hf_wrong", "status 401"),
        ("someone/lab", READ_TOKEN, "status 403"),
    ):
        enter(page, repository, token)
        expect_text(page, "mirror-message", message)
        expect(control(page, "mirror-set-up")).to_be_enabled()
        assert control(page, "mirror-token").input_value() == token  # it can be corrected
    enter(page, "someone/lab", TOKEN)
    expect_text(page, "mirror-message", "The Hub accepts someone/lab.")
    expect(control(page, "mirror-token")).to_have_value("")
    expect(control(page, "mirror-state")).to_contain_text("Saved to someone/lab", timeout=ENGINE_TIMEOUT_MS)
    expect(control(page, "mirror")).to_contain_text("Saved ")
    expect(control(page, "mirror-take-over")).to_be_hidden()

    hub.add_commit({"manifest.json": hub.content("manifest.json").replace(b'"save": "', b'"save": "theirs')})
    head_of_other = hub.head
    open_tab(page, "Label")
    press_key(page, "1")
    open_tab(page, "Runs & data")
    expect(control(page, "mirror-take-over")).to_be_visible(timeout=ENGINE_TIMEOUT_MS)
    expect(control(page, "mirror-message")).to_be_hidden()  # no longer "The Hub accepts someone/lab."
    control(page, "mirror-take-over").click()
    control(page, "mirror-sure").click()
    expect_text(page, "mirror-message", "The next save replaces")
    expect(control(page, "mirror-state")).to_contain_text("Saved to someone/lab", timeout=ENGINE_TIMEOUT_MS)
    assert hub.commit()["parent"] == head_of_other

    page.reload()
    open_form(page)
    expect(control(page, "mirror-state")).to_contain_text("Saved to someone/lab")
    expect(control(page, "mirror-repository")).to_have_value("someone/lab")
    assert TOKEN not in page.content()
    control(page, "mirror-turn-off").click()
    control(page, "mirror-sure").click()
    expect_text(page, "mirror-state", "The lab is not saved to the Hub.")
    assert TOKEN not in lab.log.read_text()


#: JavaScript: requests wait at most half a second.
SHORT_WAITS = (
    "const timeout = AbortSignal.timeout; AbortSignal.timeout = (ms) => timeout.call(AbortSignal, Math.min(ms, 500));"
)


def test_a_reply_that_is_lost_is_said_and_the_buttons_work_again(lab, open_page):
    page = open_page(lab)
    page.add_init_script(SHORT_WAITS)
    page.reload()
    open_form(page)
    page.route(re.compile("lab-api/(backup/create|hub_mirror/set_up)"), lambda route: None)
    for button, notice in (("backup-create", "backup-notice"), ("mirror-set-up", "mirror-message")):
        control(page, button).click()
        expect_text(page, notice, "The lab has not answered.")
        expect(control(page, button)).to_be_enabled()
    page.unroute_all()

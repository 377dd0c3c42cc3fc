"""The header of a lab that is saved to the Hub: the age of the copy, and what to do if saving fails."""

import pytest
from browser_lab import press_key
from helpers import ENGINE_TIMEOUT_MS, control, expect_text, open_tab
from playwright.sync_api import expect
from prepared_labs import idle_lab
from support.mirror_hub import MirrorHub


@pytest.fixture
def hub(tmp_path):
    server = MirrorHub(tmp_path / "hub")
    with server.running():
        yield server


@pytest.fixture
def lab(hub, tmp_path):
    environment = hub.environment(tmp_path / "cache") | {"RLHF_LAB_MIRROR": "someone/lab"}
    lab = idle_lab(tmp_path / "home", environment=environment).start()
    yield lab
    lab.stop()


def test_a_failed_save_is_shown_with_what_to_do(lab, hub, open_page):
    page = open_page(lab)
    open_tab(page, "Runs & data")
    page.locator("#runs-backup > button").click()
    expect_text(page, "mirror-variable", "RLHF_LAB_MIRROR names someone/lab")  # and wins over the form
    expect(control(page, "mirror-repository")).to_be_hidden()
    open_tab(page, "Label")
    expect(control(page, "mirror")).to_contain_text("Saved ", timeout=ENGINE_TIMEOUT_MS)
    hub.is_down = True
    press_key(page, "1")
    expect(control(page, "mirror-notice")).to_contain_text("Not saved to the Hub since", timeout=ENGINE_TIMEOUT_MS)
    expect(control(page, "mirror-notice")).to_contain_text("status 503")
    expect(control(page, "mirror")).to_contain_text("Not saved since")
    hub.is_down = False
    expect(control(page, "mirror")).to_contain_text("Saved ", timeout=ENGINE_TIMEOUT_MS)
    hub.add_commit({"manifest.json": hub.content("manifest.json").replace(b'"save": "', b'"save": "theirs')})
    press_key(page, "2")
    expect(control(page, "mirror-notice")).to_contain_text("RLHF_LAB_MIRROR_TAKE_OVER=1", timeout=ENGINE_TIMEOUT_MS)

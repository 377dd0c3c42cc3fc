"""The operator downloads a backup in a real browser, and restores it: the lab of before is back after a restart."""

import pytest
from browser_lab import press_key
from helpers import control
from playwright.sync_api import expect
from prepared_labs import idle_lab

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project
from rlhf_lab.store.votes import voters


def open_section(page):
    page.get_by_role("tab", name="Runs & data").click()
    page.locator("#runs-backup > button").click()


def human_voters(lab):
    with Database.open(lab.home) as db:
        return voters(db, current_project(db).id, "human")


@pytest.fixture
def own_lab(tmp_path):
    lab = idle_lab(tmp_path / "home").start()
    yield lab
    lab.stop()


def test_download_and_restore(own_lab, open_page, tmp_path):
    page = open_page(own_lab)
    open_section(page)
    with page.expect_download() as download:
        control(page, "backup-create").click()
    file = tmp_path / "lab.zip"
    download.value.save_as(file)
    expect(control(page, "backup-notice")).to_contain_text("rlhf-lab-")
    page.get_by_role("tab", name="Label", exact=True).click()
    press_key(page, "1")
    assert len(human_voters(own_lab)) == 1

    page.get_by_role("tab", name="Runs & data").click()
    bad = tmp_path / "bad.zip"
    bad.write_bytes(file.read_bytes()[:-50])
    control(page, "backup-file").set_input_files(bad)
    expect(control(page, "backup-notice")).to_contain_text("not an intact backup")
    control(page, "backup-file").set_input_files(file)
    expect(control(page, "backup-question")).to_contain_text("replaces everything")
    control(page, "backup-confirm").click()
    expect(control(page, "backup-waits")).to_have_text("The backup is checked. Restart the lab to use it.")
    page.close()

    own_lab.stop()
    assert len(human_voters(own_lab)) == 1
    own_lab.start()
    assert human_voters(own_lab) == []
    assert len(list(own_lab.home.glob("before-restore-*"))) == 1
    assert "The backup was restored." in own_lab.log.read_text()
    own_lab.stop()

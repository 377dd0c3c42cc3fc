"""A Space whose variables name a model on the Hub: progress, failure and retry on the page. The Hub server is local."""

import re
import shutil

import pytest
from browser_lab import Lab, current_pair
from helpers import control, expect_text, open_screen, open_tab, wait_until
from playwright.sync_api import expect
from support.hub_server import HubServer

from rlhf_lab.common.bundled_assets import embedded_model_folder
from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import current_project

NAME = "someone/storyteller"
SECRET = "three small owls"


@pytest.fixture
def hub(tmp_path):
    server = HubServer()
    server.models[NAME] = shutil.copytree(embedded_model_folder(), tmp_path / "remote")
    with server.running():
        yield server


@pytest.fixture
def space(tmp_path, hub):
    environment = {
        "SPACE_ID": "somebody/lab", "RLHF_LAB_OPERATOR_SECRET": SECRET, "RLHF_LAB_MODEL": NAME, "RLHF_LAB_PROMPTS": "reviews",
    }  # fmt: skip
    lab = Lab(tmp_path / "home", environment=environment | hub.environment(tmp_path / "cache"))
    yield lab
    hub.go_on.set()
    lab.stop()


def test_progress_failure_and_another_try(space, hub, open_page):
    hub.is_down = True
    page = open_screen(space.start(), open_page, "Label")
    notice = page.locator("[data-do=startup-notice]")
    expect(notice).to_contain_text("storyteller is not available. RLHF_LAB_MODEL: The Hub cannot be reached")
    expect(notice).to_contain_text("You can label texts of the embedded model; the operator can retry under Project.")
    current_pair(page)  # the lab works during the download
    open_tab(page, "Project")
    expect(control(page, "project-retry")).to_be_disabled()
    control(page, "secret").fill(SECRET)
    page.click("[data-do=secret-enter]")
    expect_text(page, "project-notice", "You are the operator")

    hub.is_down = False
    hub.go_on.clear()
    page.click("[data-do=project-retry]")
    expect(notice).to_contain_text("Downloading storyteller")
    expect(notice).to_contain_text("Until then you can label texts of the embedded model")
    bar = notice.get_by_role("progressbar")
    wait_until(lambda: 0 < int(bar.get_attribute("aria-valuenow") or 0) < 100, "some progress", page)
    expect(notice).to_contain_text(re.compile(r"\d+ kB of 8\.\d MB · "))  # the small files; the weights are held back
    guest = open_screen(space, open_page, "Label", viewport={"width": 390, "height": 800})
    expect(guest.locator("[data-do=startup-notice]")).to_contain_text("Downloading storyteller")
    current_pair(guest)

    hub.go_on.set()
    expect(notice).to_have_count(0)
    expect(page.locator(".lab-header .what").first).to_contain_text("storyteller: reviews")
    expect(page.locator("section[aria-label=download]")).to_contain_text('The project "storyteller: reviews" is open.')
    with Database.open(space.home) as db:
        assert current_project(db).model == NAME

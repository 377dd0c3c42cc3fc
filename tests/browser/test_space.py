"""The lab as a Space runs it, in a real browser."""

import pytest
from browser_lab import Lab
from playwright.sync_api import expect
from test_guests import WORDS
from waits import part, says, screen, tab

SECRET = "three small owls"
ENABLED_AGAIN = """() => { window.enabledAgain = 0;
    const look = () => { window.enabledAgain += !document.body.classList.contains('lab-guest'); };
    new MutationObserver(look).observe(document.body, { attributes: true }); }"""


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """A lab as a Space runs it: everybody may label, the operator has a secret."""
    environment = {"SPACE_ID": "somebody/lab", "RLHF_LAB_OPERATOR_SECRET": SECRET}
    lab = Lab(tmp_path_factory.mktemp("space") / "home", environment=environment).start()
    yield lab
    lab.end()


def test_on_a_space_only_the_operators_secret_trains(space, open_page):
    page = screen(space, open_page, "Reward model")
    expect(page.get_by_role("alert").filter(has_text="This Space keeps labels and models on a disk")).to_be_visible()
    expect(part(page, "train")).to_be_disabled()
    tab(page, "Project")
    part(page, "secret").fill("three small cats")
    page.click("[data-do=secret-enter]")
    says(page, "project-notice", "Only the operator may do this")
    expect(part(page, "stop-engine")).to_be_disabled()
    part(page, "secret").fill(SECRET)
    page.click("[data-do=secret-enter]")
    says(page, "project-notice", "You are the operator")
    tab(page, "Reward model")
    page.click("[data-do=train]:not([disabled])")
    says(page, "train-error", "fewer than 2 decided")
    other = screen(space, open_page, "Reward model")  # another browser has no secret
    expect(part(other, "train")).to_be_disabled()
    expect(other.locator(".lab-reward .lab-only")).to_have_text(WORDS["Reward model"])
    page.reload()
    page.wait_for_selector(".lab-reward .headline, .lab-reward [data-do=empty]")
    page.wait_for_timeout(4000)
    expect(part(page, "train")).to_be_enabled()
    page.evaluate("localStorage.setItem('rlhf-lab-operator', 'of another lab')")  # what a browser keeps proves nothing
    page.reload()
    expect(part(page, "train")).to_be_disabled()
    page.evaluate(ENABLED_AGAIN)
    page.wait_for_timeout(4000)
    assert page.evaluate("window.enabledAgain") == 0
    open_page.said[:] = [words for words in open_page.said if "reading from localStorage" not in words]  # Gradio's own


def test_who_may_not_import_is_told_before_they_click(space, open_page):
    page = screen(space, open_page, "Runs & data")
    page.locator("#runs-import > button").click()
    expect(page.locator(".lab-data .lab-only")).to_contain_text("Only the operator imports and takes back.")
    for button in ("data-choose", "data-hub-look"):
        expect(part(page, button)).to_be_disabled()
    tab(page, "Project")
    part(page, "secret").fill(SECRET)
    page.click("[data-do=secret-enter]")
    says(page, "project-notice", "You are the operator")
    tab(page, "Runs & data")
    expect(page.locator(".lab-data .lab-only")).to_be_hidden()
    for button in ("data-choose", "data-hub-look"):
        expect(part(page, button)).to_be_enabled()

"""The lab as a Hugging Face Space, in a real browser."""

import pytest
from helpers import control, expect_text, open_screen, open_tab
from playwright.sync_api import expect
from prepared_labs import idle_lab
from test_operator_only import NOTICES

SECRET = "three small owls"
ENABLED_AGAIN = """() => { window.enabledAgain = 0;
    const look = () => { window.enabledAgain += !document.body.classList.contains('lab-guest'); };
    new MutationObserver(look).observe(document.body, { attributes: true }); }"""


@pytest.fixture(scope="module")
def space(tmp_path_factory):
    """A lab on a Space: everybody may label, the operator has a secret."""
    environment = {"SPACE_ID": "somebody/lab", "RLHF_LAB_OPERATOR_SECRET": SECRET}
    lab = idle_lab(tmp_path_factory.mktemp("space") / "home", environment=environment).start()
    yield lab
    lab.stop()


def test_training_on_a_space_needs_the_operator_secret(space, open_page):
    page = open_screen(space, open_page, "Reward model")
    expect(page.get_by_role("alert").filter(has_text="This Space keeps labels and models on a disk")).to_be_visible()
    expect(control(page, "train")).to_be_disabled()
    open_tab(page, "Project")
    control(page, "secret").fill("three small cats")
    page.click("[data-do=secret-enter]")
    expect_text(page, "project-notice", "Only the operator may do this")
    expect(control(page, "stop-engine")).to_be_disabled()
    control(page, "secret").fill(SECRET)
    page.click("[data-do=secret-enter]")
    expect_text(page, "project-notice", "You are the operator")
    open_tab(page, "Reward model")
    page.click("[data-do=train]:not([disabled])")
    expect_text(page, "train-error", "fewer than 2 decided")
    other = open_screen(space, open_page, "Reward model")  # another browser without the secret
    expect(control(other, "train")).to_be_disabled()
    expect(other.locator(".lab-reward .lab-only")).to_have_text(NOTICES["Reward model"])
    page.goto(f"{space.url}?view=settings#reward-model")  # an address of Gradio's own page
    expect(page).to_have_url(f"{space.url}#reward-model")
    page.wait_for_selector(".lab-reward .headline, .lab-reward [data-do=empty]")
    page.wait_for_timeout(4000)
    expect(control(page, "train")).to_be_enabled()
    wrong = "['rlhf-lab-operator', 'rlhf-lab-operator-secret'].forEach((key) => localStorage.setItem(key, 'of another lab'))"
    page.evaluate(wrong)
    page.reload()
    expect(control(page, "train")).to_be_disabled()
    page.evaluate(ENABLED_AGAIN)
    page.wait_for_timeout(4000)
    assert page.evaluate("window.enabledAgain") == 0
    open_page.console_messages[:] = [
        words for words in open_page.console_messages if "reading from localStorage" not in words
    ]  # Gradio's own

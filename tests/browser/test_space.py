"""The lab as a Hugging Face Space, in a real browser."""

import pytest
from browser_lab import current_pair
from helpers import control, expect_text, open_screen, open_tab
from playwright.sync_api import expect
from prepared_labs import idle_lab
from test_operator_only import NOTICES
from test_people_screen import access_keys, query_rows

from rlhf_lab.ui.context import OPERATOR_HEADER

SECRET, CODE = "three small owls", "ABC234"
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


@pytest.fixture(scope="module")
def class_space(tmp_path_factory):
    """A Space for a class: labelling requires the join code."""
    environment = {"SPACE_ID": "somebody/lab", "RLHF_LAB_OPERATOR_SECRET": SECRET, "RLHF_LAB_JOIN_CODE": CODE}
    lab = idle_lab(tmp_path_factory.mktemp("room") / "home", environment=environment).start()
    yield lab
    lab.stop()


def enter_secret(page, secret=SECRET) -> None:
    page.get_by_role("tab", name="Project", exact=True).click()
    control(page, "secret").fill(secret)
    page.click("[data-do=secret-enter]")


def expect_invitation(page, link: str) -> None:
    """The screen People shows the operator's sections: QR code, rules, erasing a person."""
    page.get_by_role("tab", name="People", exact=True).click()
    expect(page.locator("[aria-label='who is connected']")).to_contain_text("can do everything")
    expect(page.locator(".invite svg.qr path")).to_have_count(1)
    expect(page.locator(".invite .lab-text")).to_have_text(link)
    page.locator("summary:has-text('Remove a person from this lab')").click()


def join_by_link(page, link: str, name: str) -> None:
    """Join by the link of the QR code."""
    page.goto(link)
    page.fill("#name", name)
    page.click("button")
    current_pair(page)


def expect_no_invitation(page, code: str) -> None:
    page.get_by_role("tab", name="People", exact=True).click()
    page.wait_for_selector("[aria-label='who is connected']")
    page.wait_for_timeout(5000)  # longer than a poll
    expect(page.locator(".lab-people .lab-only")).to_have_text(NOTICES["People"])
    for selector in (".invite", "svg.qr", "summary:has-text('Labelling rules')"):
        expect(page.locator(selector)).to_have_count(0)
    expect(page.locator(".lab-people .erasure")).to_be_hidden()
    assert code not in page.content()


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
    page.reload()
    page.wait_for_selector(".lab-reward .headline, .lab-reward [data-do=empty]")
    page.wait_for_timeout(4000)
    expect(control(page, "train")).to_be_enabled()
    page.evaluate("localStorage.setItem('rlhf-lab-operator-secret', 'of another lab')")
    page.reload()
    expect(control(page, "train")).to_be_disabled()
    page.evaluate(ENABLED_AGAIN)
    page.wait_for_timeout(4000)
    assert page.evaluate("window.enabledAgain") == 0
    open_page.console_messages[:] = [
        words for words in open_page.console_messages if "reading from localStorage" not in words
    ]  # Gradio's own


def test_import_is_disabled_with_a_notice_without_the_secret(space, open_page):
    page = open_screen(space, open_page, "Runs & data")
    page.locator("#runs-import > button").click()
    expect(page.locator(".lab-import-data .lab-only")).to_contain_text("Only the operator can import and undo imports.")
    for button in ("data-choose", "data-hub-look"):
        expect(control(page, button)).to_be_disabled()
    open_tab(page, "Project")
    control(page, "secret").fill(SECRET)
    page.click("[data-do=secret-enter]")
    expect_text(page, "project-notice", "You are the operator")
    open_tab(page, "Runs & data")
    expect(page.locator(".lab-import-data .lab-only")).to_be_hidden()
    for button in ("data-choose", "data-hub-look"):
        expect(control(page, button)).to_be_enabled()


@pytest.mark.slow
def test_secret_shows_the_invitation_and_allows_erasing_people(space, open_page):
    code = access_keys(space)["code"]
    guest = open_screen(space, open_page, "People")
    page = open_screen(space, open_page, "People")
    expect_no_invitation(page, code)
    enter_secret(page, "three small cats")
    expect_text(page, "project-notice", "Only the operator may do this")
    expect_no_invitation(page, code)
    enter_secret(page)
    expect_text(page, "project-notice", "You are the operator")
    expect_invitation(page, f"{space.url}join?code={code}")
    phone = open_page(space, viewport={"width": 390, "height": 800})
    join_by_link(phone, page.locator(".invite .lab-text").inner_text(), "Rude")
    page.locator("[data-do=erase-name]").select_option("Rude")
    page.click("[data-do=erase]")
    page.click("[data-do=erase-sure]")
    page.wait_for_selector(".lab-people .erasure .result:has-text('The name was removed from this lab')")
    assert query_rows(space, "SELECT name FROM people") == []
    expect_no_invitation(guest, code)
    for name in ("invite", "names"):
        for secret in ("", "three%20small%20cats"):
            address, headers = f"{space.url}lab-api/people/{name}", {OPERATOR_HEADER: secret}
            answer = guest.request.post(address, data={"origin": space.url}, headers=headers)
            assert "Only the operator may do this" in answer.text()
            assert code not in answer.text()
    page.reload()  # the stored secret is sent again
    expect_invitation(page, f"{space.url}join?code={code}")
    page.evaluate("localStorage.clear()")
    expect_no_invitation(page, code)


def test_secret_opens_a_space_with_a_join_code(class_space, open_page):
    page = open_screen(class_space, open_page, "People")
    expect_no_invitation(page, CODE)
    enter_secret(page, "three small cats")
    expect_text(page, "project-notice", "Only the operator may do this")
    enter_secret(page)
    expect(control(page, "stop-engine")).to_be_visible()
    expect(page.locator(".lab-project .lab-only")).to_be_hidden()
    assert page.url == f"{class_space.url}#project"  # does not contain the secret
    expect_invitation(page, f"{class_space.url}join?code={CODE}")
    page.get_by_role("tab", name="Label", exact=True).click()
    current_pair(page)
    ann = open_page(class_space)
    join_by_link(ann, f"{class_space.url}join?code={CODE}", "Ann")
    expect_no_invitation(ann, CODE)
    enter_secret(ann)  # the visitor keeps the name
    expect_text(ann, "project-notice", "You are the operator")
    expect_invitation(ann, f"{class_space.url}join?code={CODE}")
    expect(ann.locator("[aria-label='who is connected']")).to_contain_text("You, Ann, can do everything")

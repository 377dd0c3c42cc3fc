"""The lab as a Space runs it, in a real browser."""

import pytest
from browser_lab import Lab, pair_of
from helpers import part, says, screen, tab
from playwright.sync_api import expect
from test_operator_only import WORDS
from test_people_screen import keys, rows

SECRET, CODE = "three small owls", "ABC234"
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


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A Space for a class: to label one needs the code that its operator chose."""
    environment = {"SPACE_ID": "somebody/lab", "RLHF_LAB_OPERATOR_SECRET": SECRET, "RLHF_LAB_JOIN_CODE": CODE}
    lab = Lab(tmp_path_factory.mktemp("room") / "home", environment=environment).start()
    yield lab
    lab.end()


def give_secret(page, secret=SECRET) -> None:
    page.get_by_role("tab", name="Project", exact=True).click()
    part(page, "secret").fill(secret)
    page.click("[data-do=secret-enter]")


def shows_the_way_in(page, link: str) -> None:
    """The screen People shows an operator's parts: the QR code, the rules, and who can be taken out."""
    page.get_by_role("tab", name="People", exact=True).click()
    expect(page.locator("[aria-label='who is here']")).to_contain_text("may do everything here")
    expect(page.locator(".invite svg.qr path")).to_have_count(1)
    expect(page.locator(".invite .lab-text")).to_have_text(link)
    page.locator("summary:has-text('Take somebody out')").click()


def joins(page, link: str, name: str) -> None:
    """By what the QR code says."""
    page.goto(link)
    page.fill("#name", name)
    page.click("button")
    pair_of(page)


def shows_nobody_else_the_way_in(page, code: str) -> None:
    page.get_by_role("tab", name="People", exact=True).click()
    page.wait_for_selector("[aria-label='who is here']")
    page.wait_for_timeout(5000)  # asked again
    expect(page.locator(".lab-people .lab-only")).to_have_text(WORDS["People"])
    for theirs in (".invite", "svg.qr", "summary:has-text('Labelling rules')"):
        expect(page.locator(theirs)).to_have_count(0)
    expect(page.locator(".lab-leaving details")).to_be_hidden()
    assert code not in page.content()


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


@pytest.mark.slow
def test_whoever_gave_the_secret_shows_a_class_the_way_in_and_takes_people_out(space, open_page):
    code = keys(space)["code"]
    guest = screen(space, open_page, "People")
    page = screen(space, open_page, "People")
    shows_nobody_else_the_way_in(page, code)
    give_secret(page, "three small cats")
    says(page, "project-notice", "Only the operator may do this")
    shows_nobody_else_the_way_in(page, code)
    give_secret(page)
    says(page, "project-notice", "You are the operator")
    shows_the_way_in(page, f"{space.url}join?code={code}")
    phone = open_page(space, viewport={"width": 390, "height": 800})
    joins(phone, page.locator(".invite .lab-text").inner_text(), "Rude")
    page.locator("[data-do=leaving-name]").select_option("Rude")
    page.click("[data-do=leaving]")
    page.click("[data-do=leaving-sure]")
    page.wait_for_selector(".lab-leaving .told:has-text('The name is out of this lab')")
    assert rows(space, "SELECT name FROM people") == []
    shows_nobody_else_the_way_in(guest, code)
    for name in ("invite", "known"):
        for said in ("", "three small cats", None):
            event = guest.evaluate("name => window.gradio_config.dependencies.find(d => d.api_name === name).id", name)
            asked = {"data": [said], "fn_index": event, "session_hash": "g", "event_data": {"origin": space.url}}
            answer = guest.request.post(f"{space.url}gradio_api/run/predict", data=asked)
            assert "Only the operator may do this" in answer.text()
            assert code not in answer.text()
    page.reload()  # the browser keeps the secret, and is believed when it has shown it
    shows_the_way_in(page, f"{space.url}join?code={code}")
    page.evaluate("localStorage.clear()")
    shows_nobody_else_the_way_in(page, code)


def test_where_a_code_is_needed_the_secret_opens_the_lab_too(room, open_page):
    page = screen(room, open_page, "People")
    shows_nobody_else_the_way_in(page, CODE)
    give_secret(page, "three small cats")
    says(page, "project-notice", "Only the operator may do this")
    give_secret(page)
    expect(part(page, "stop-engine")).to_be_visible()
    expect(page.locator(".lab-project .lab-only")).to_be_hidden()
    assert page.url == f"{room.url}#project"  # without the secret
    shows_the_way_in(page, f"{room.url}join?code={CODE}")
    page.get_by_role("tab", name="Label", exact=True).click()
    pair_of(page)
    ann = open_page(room)
    joins(ann, f"{room.url}join?code={CODE}", "Ann")
    shows_nobody_else_the_way_in(ann, CODE)
    give_secret(ann)  # of whoever has a name it makes nobody else
    says(ann, "project-notice", "You are the operator")
    shows_the_way_in(ann, f"{room.url}join?code={CODE}")
    expect(ann.locator("[aria-label='who is here']")).to_contain_text("You, Ann, may do everything here")

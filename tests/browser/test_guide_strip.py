"""The guide in a browser: it leads to the tab of the next action, keeps the focus, and is hidden for good by one click."""

from browser_lab import current_pair, press_key
from helpers import control, open_tab
from playwright.sync_api import expect


def test_the_guide_leads_to_the_next_action_until_it_is_hidden(lab, open_page):
    page = open_page(lab)
    current_pair(page)
    guide = page.locator(".lab-header .guide")
    expect(guide.locator("li")).to_have_text(["Label", "Reward model", "Train", "Compare"])
    expect(guide.locator("[aria-current=step]")).to_have_text("Label")
    expect(guide.locator(".introduction")).to_contain_text("Your choices teach a language model")
    expect(guide.locator("b")).to_have_text("10 more labels for a reward model")
    expect(control(page, "guide-next")).to_have_count(0)  # its tab is open
    press_key(page, "1")
    expect(guide.locator("b")).to_have_text("9 more labels for a reward model")
    open_tab(page, "Train")
    control(page, "guide-next").focus()
    page.wait_for_timeout(4000)  # the header polls twice
    expect(control(page, "guide-next")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="Label", exact=True)).to_have_attribute("aria-selected", "true")
    page.reload()
    current_pair(page)
    expect(guide).to_be_visible()
    expect(guide.locator(".introduction")).to_have_count(0)  # the first visit is over
    control(page, "guide-hide").click()
    expect(guide).to_be_hidden()
    page.reload()
    with page.expect_response("**/lab-api/header/status") as reply:
        current_pair(page)
    assert reply.value.json()["reply"]["guide"] is None
    expect(guide).to_be_hidden()

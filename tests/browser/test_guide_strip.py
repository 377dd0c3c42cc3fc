"""The guide in a browser: it leads to the tab of the next action, keeps the focus, and is hidden for good by one click."""

from browser_lab import current_pair, press_key
from helpers import change_replies, control, open_tab
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


def test_people_who_label_are_told_that_training_has_started_and_ended(lab, open_page):
    """The notice stays the same element while the header changes with every step: a finger may be on its button."""
    run, count = {"id": 5, "is_training": True}, iter(range(1, 1000))

    def with_run(reply):
        job = {"label": f"run 5, step {next(count)} of 900", "run": 5, "step": 1, "progress": 0.1}
        job |= {"show_percent": False, "eta_s": None}
        return reply | {"is_operator": False, "may_label": True, "run": run, "job": job}

    page = open_page(lab)
    change_replies(page, "header/status", with_run)
    notice, step = control(page, "run-notice"), page.locator(".lab-header .job .what")
    expect(notice).to_contain_text("Training has started.")
    control(page, "watch-run").evaluate("button => { button.isFirst = true; }")
    before = step.inner_text()
    page.wait_for_function("text => document.querySelector('.lab-header .job .what').innerText !== text", arg=before)
    assert control(page, "watch-run").evaluate("button => button.isFirst")
    control(page, "hide-run").click()
    expect(notice).to_have_count(0)
    run["is_training"] = False
    expect(notice).to_contain_text("Training has ended.")
    control(page, "watch-run").click()
    expect(page.get_by_role("tab", name="Train", exact=True)).to_have_attribute("aria-selected", "true")
    expect(notice).to_have_count(0)
    page.unroute_all(behavior="wait")

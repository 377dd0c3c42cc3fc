"""The temperature and the length of the texts of a project on the screens Project and Compare."""

from helpers import open_tab
from playwright.sync_api import expect

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project


def test_changed_settings_are_stored_and_proposed_and_a_new_project_has_its_own(lab, idle_project, open_page):
    page = open_page(lab)
    open_tab(page, "Compare")
    proposed = page.locator(".lab-compare [data-do=temperature]")
    expect(proposed).to_have_value("1")
    open_tab(page, "Project")
    temperature, length = (
        page.locator(f"[data-do=project-{name}][data-project='{idle_project.id}']")
        for name in ("temperature", "length")
    )
    temperature.click()
    field, notice = page.locator("[data-do=project-new-temperature]"), page.locator("[data-do=project-notice]")
    expect(field).to_be_focused()
    field.fill("9")
    field.press("Enter")
    expect(notice).to_contain_text("give a number from 0.05 to 5")
    temperature.click()
    field.fill("0,8")
    field.press("Enter")
    expect(notice).to_contain_text("New texts are sampled at temperature 0.8.")
    expect(temperature).to_have_text("0.8")
    expect(length).to_have_text("64")
    length.click()
    page.fill("[data-do=project-new-length]", "200")
    page.press("[data-do=project-new-length]", "Enter")
    expect(notice).to_contain_text("New texts have at most 200 tokens.")
    expect(length).to_have_text("200")
    with Database.open(lab.home) as db:
        stored = get_project(db, idle_project.id)
    assert (stored.temperature, stored.max_new_tokens) == (0.8, 200)
    open_tab(page, "Compare")
    expect(proposed).to_have_value("0.8")
    expect(page.locator(".lab-compare [data-do=max_new_tokens]")).to_have_value("200")
    page.locator(".fold summary").click()
    proposed.fill("1.5")
    page.wait_for_timeout(5000)  # longer than the polling interval: a value that a person entered stays
    expect(proposed).to_have_value("1.5")
    open_tab(page, "Chat")
    expect(page.locator(".lab-chat [data-do=chat-max_new_tokens]")).to_have_value("200")

    open_tab(page, "Project")
    page.click("[data-do=new-check]")
    expect(page.locator("[data-do=new-check-result]")).to_contain_text(
        'Suits this model: prompts "tales", temperature 1.'
    )
    page.fill("[data-do=new-temperature]", "0.6")
    page.fill("[data-do=new-length]", "96")
    page.select_option("[data-do=new-set]", "support")
    page.click("[data-do=new-create]")
    expect(notice).to_contain_text("was created and opened")
    expect(page.locator("[data-do=new-temperature]")).to_have_value("")
    expect(page.locator("tr.open [data-do=project-temperature]")).to_have_text("0.6")
    expect(page.locator("tr.open [data-do=project-length]")).to_have_text("96")

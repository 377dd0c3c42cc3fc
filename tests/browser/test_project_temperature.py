"""The temperature and the length of the texts of a project on the screens Project and Compare."""

from helpers import open_tab
from playwright.sync_api import expect

from rlhf_lab.store.database import Database
from rlhf_lab.store.projects import get_project


def test_a_changed_temperature_is_stored_and_proposed_under_compare(lab, idle_project, open_page):
    page = open_page(lab)
    open_tab(page, "Compare")
    proposed = page.locator(".lab-compare [data-do=temperature]")
    expect(proposed).to_have_value("1")
    open_tab(page, "Project")
    page.click(f"[data-do=project-temperature][data-project='{idle_project.id}']")
    field = page.locator("[data-do=project-new-temperature]")
    expect(field).to_be_focused()
    field.fill("9")
    field.press("Enter")
    expect(page.locator("[data-do=project-notice]")).to_contain_text("give a number from 0.05 to 5")
    page.click(f"[data-do=project-temperature][data-project='{idle_project.id}']")
    field.fill("0,8")
    field.press("Enter")
    expect(page.locator("[data-do=project-notice]")).to_contain_text("New texts are sampled at temperature 0.8.")
    expect(page.locator(f"[data-do=project-temperature][data-project='{idle_project.id}']")).to_have_text("0.8")
    with Database.open(lab.home) as db:
        assert get_project(db, idle_project.id).temperature == 0.8
    open_tab(page, "Compare")
    expect(proposed).to_have_value("0.8")
    proposed.fill("1.5")
    page.wait_for_timeout(5000)  # longer than the polling interval: a value that a person entered stays
    expect(proposed).to_have_value("1.5")


def test_a_changed_length_is_proposed_under_compare_and_chat(lab, idle_project, open_page):
    page = open_page(lab)
    open_tab(page, "Project")
    button = page.locator(f"[data-do=project-length][data-project='{idle_project.id}']")
    expect(button).to_have_text("64")
    button.click()
    page.fill("[data-do=project-new-length]", "200")
    page.press("[data-do=project-new-length]", "Enter")
    expect(page.locator("[data-do=project-notice]")).to_contain_text("New texts have at most 200 tokens.")
    expect(button).to_have_text("200")
    open_tab(page, "Compare")
    expect(page.locator(".lab-compare [data-do=max_new_tokens]")).to_have_value("200")
    open_tab(page, "Chat")
    expect(page.locator(".lab-chat [data-do=chat-max_new_tokens]")).to_have_value("200")


def test_a_new_project_is_made_with_a_temperature(lab, idle_project, open_page):
    page = open_page(lab)
    open_tab(page, "Project")
    page.click("[data-do=new-check]")
    expect(page.locator("[data-do=new-check-result]")).to_contain_text(
        'Suits this model: prompts "tales", temperature 1.'
    )
    page.fill("[data-do=new-temperature]", "0.6")
    page.fill("[data-do=new-length]", "96")
    page.select_option("[data-do=new-set]", "support")
    page.click("[data-do=new-create]")
    expect(page.locator("[data-do=project-notice]")).to_contain_text("was created and opened")
    expect(page.locator("[data-do=new-temperature]")).to_have_value("")
    expect(page.locator("tr.open [data-do=project-temperature]")).to_have_text("0.6")
    expect(page.locator("tr.open [data-do=project-length]")).to_have_text("96")

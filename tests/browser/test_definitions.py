"""Words that open their definition: by click, touch and keyboard; Escape and a click elsewhere close it."""

from browser_lab import current_pair
from playwright.sync_api import expect

from rlhf_lab.ui.shared.glossary import definitions


def test_a_word_opens_its_definition_by_click_touch_and_keyboard(lab, open_page):
    page = open_page(lab)
    current_pair(page)
    word, card = page.locator("[data-do='term-instant reward model']"), page.locator(".lab-definition")
    word.click()
    expect(card).to_contain_text(definitions()["instant reward model"])
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    expect(word).to_be_focused()
    page.keyboard.press("Enter")
    expect(card).to_be_visible()
    page.mouse.click(3, 3)
    expect(card).to_be_hidden()
    phone = open_page(lab, viewport={"width": 390, "height": 844}, has_touch=True)
    current_pair(phone)
    phone.locator(".lab-label [data-do='term-instant reward model']").tap()
    card = phone.locator(".lab-definition")
    expect(card).to_be_in_viewport(ratio=1)
    box = card.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390

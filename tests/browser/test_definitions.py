"""Words that open their definition: by click, touch and keyboard; Escape and a click elsewhere close it. A resting mouse and the
Tab key show a preview."""

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


def test_preview_by_mouse_and_tab_key_lets_presses_through(lab, open_page):
    page = open_page(lab)
    current_pair(page)
    card, tabs = page.locator(".lab-definition"), page.locator("[role=tablist] >> visible=true").first
    word = page.locator(".lab-header .accuracy .lab-term")
    word.hover()
    expect(card).to_be_visible()
    assert card.bounding_box()["y"] >= word.bounding_box()["y"] + word.bounding_box()["height"]
    passes_through = page.evaluate(  # whether a press on the card meets what is below it
        """() => { const { left, top } = document.querySelector('.lab-definition').getBoundingClientRect();
        return document.elementFromPoint(left + 9, top + 9).closest('.lab-definition') === null; }"""
    )
    assert passes_through
    page.mouse.move(3, 3)
    expect(card).to_be_hidden()
    tabs.get_by_role("tab", name="Label").focus()
    page.keyboard.press("Shift+Tab")
    while not page.evaluate("document.activeElement.classList.contains('lab-term')"):
        page.keyboard.press("Shift+Tab")
    expect(card).to_be_visible()
    assert page.evaluate("document.activeElement.classList.contains('lab-term')")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    page.keyboard.press("Enter")
    expect(card).to_be_focused()

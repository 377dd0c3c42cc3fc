"""Accessibility of a page: contrast and size of texts, names of controls."""

import re
from typing import NamedTuple

#: Each screen and an element that is present once it is loaded.
SCREENS = {
    "Label": ".lab-label .side", "Reward model": ".lab-reward .headline", "Train": ".lab-train .sample",
    "Compare": "[data-do=write]", "Chat": "[data-do=chat-message]", "Learn": ".lab-learn h2",
    "Runs & data": ".lab-runs td.name", "People": "[aria-label='who is connected']", "Project": "[data-do=new-create]",
}  # fmt: skip
NAMELESS = re.compile(r"^\s*- (button|textbox|combobox|checkbox|radio|slider|spinbutton|listbox)(?! \")", re.MULTILINE)
#: JavaScript: every visible text of ours and of the tabs, as the fields of Text (relative luminance: WCAG 2).
FIND_TEXTS = """() => {
    const pen = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const luminance = (colours) => {
        for (const colour of colours) { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].map((value) => channel(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = [];
    for (const part of document.querySelectorAll('.lab, [role=tab]')) {
        const words = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
        while (words.nextNode()) {
            const node = words.currentNode.parentElement, text = words.currentNode.data.trim();
            if (!text || !node.checkVisibility() || node.closest('svg, script, style, :disabled, option')) continue;
            const layers = ['white'];
            for (let at = node; at; at = at.parentElement) layers.splice(1, 0, getComputedStyle(at).backgroundColor);
            const style = getComputedStyle(node);
            found.push([text.slice(0, 40), parseFloat(style.fontSize), luminance([...layers, style.color]), luminance(layers)]);
        }
    }
    return found; }"""


class Text(NamedTuple):
    """A text on a page. font_size: pixels. ink, background: relative luminance from 0 to 1."""

    text: str
    font_size: float
    ink: float
    background: float

    @property
    def contrast(self) -> float:
        dark, light = sorted((self.ink, self.background))
        return (light + 0.05) / (dark + 0.05)


def inspect_screen(page, screen: str) -> list[Text]:
    """Open a screen and its sections; returns its texts. AssertionError: it overflows the window, or a control has no name."""
    page.get_by_role("tab", name=screen, exact=True).click()
    page.locator(SCREENS[screen]).first.wait_for()
    page.evaluate("for (const details of document.querySelectorAll('.lab details')) details.open = true")
    if screen == "Train":
        page.locator(".token-view .token.seen").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), screen
    for part in page.locator(".lab:visible").all():
        described = part.aria_snapshot()
        assert not NAMELESS.search(described), described
    return visible_texts(page)


def visible_texts(page) -> list[Text]:
    """The texts visible now."""
    return [Text(*text) for text in page.evaluate(FIND_TEXTS)]

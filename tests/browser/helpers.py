"""Navigating a page and waiting for its contents; failures report what the page shows."""

import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from rlhf_lab.ui.scripts import MODULE_FOLDER
from rlhf_lab.ui.shared.api import REVISION_HEADER

#: For actions that take a page and its server one or two seconds, with a reserve for a busy machine.
PAGE_TIMEOUT_MS = 60_000
#: For the engine, which starts, samples and trains within ten seconds.
ENGINE_TIMEOUT_MS = 3 * PAGE_TIMEOUT_MS
#: JavaScript: the errors that a page shows, without the header's warnings about the machine.
VISIBLE_ERRORS = """[...document.querySelectorAll('[role=alert], .lab-notice.bad')].filter(
    (one) => one.checkVisibility() && !one.closest('.lab-header')).map((one) => one.innerText.trim()).filter(Boolean)"""
#: JavaScript: address, header and all messages of a page.
PAGE_SUMMARY = """() => [location.href,
    ...[...document.querySelectorAll('.lab-header .strip, .lab-notice, [role=alert], [role=status]')]
    .filter((one) => one.checkVisibility() && one.innerText.trim())
    .map((one) => `${one.matches('.strip') ? 'header' : one.dataset.do || one.role || 'notice'}: ${one.innerText}`)]"""


def open_tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def call_module(page: Page, module: str, function: str, *arguments):
    """Call a function that a module exports, in a lab's page: call_module(page, "shared/format.js", "plural", 2, "label")."""
    script = """async ([address, name, values]) =>
        (await import(new URL(address, document.baseURI)))[name](...values)"""
    return page.evaluate(script, [f"{MODULE_FOLDER}/{module}", function, arguments])


def change_replies(page: Page, path: str, change: Callable[[dict], dict]) -> None:
    """Replace the replies to a request of the page, such as "header/status", by what `change` makes of them."""

    def changed(route):
        headers = {name: value for name, value in route.request.headers.items() if name != REVISION_HEADER}
        route.fulfill(json={"reply": change(route.fetch(headers=headers).json()["reply"])})

    page.route(f"**/lab-api/{path}", changed)


def open_screen(lab, open_page, name: str, **options) -> Page:
    page = open_page(lab, **options)
    open_tab(page, name)
    return page


def open_section(button: Locator, field: Locator) -> None:
    """Open an accordion of Gradio, and wait for a field in it. With the next frame after it was opened for the first time, Gradio
    gives its fields the values that they had before: what was typed in between is lost."""
    button.click()
    field.wait_for()
    field.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def control(page: Page, name: str):
    return page.locator(f'[data-do="{name}"]')


def expect_text(page: Page, name: str, text: str) -> None:
    expect(control(page, name)).to_contain_text(text)


def wait_for_engine(page: Page, condition: str, arg=None) -> None:
    """Wait for the engine until a JavaScript function is true. AssertionError at once if the page shows a new error."""
    outcome = page.wait_for_function(
        f"""([before, arg]) => {{
            if (({condition})(arg)) return 'done';
            const errors = {VISIBLE_ERRORS}.filter((text) => !before.includes(text));
            return errors.length ? errors.join(' | ') : null; }}""",
        arg=[page.evaluate(VISIBLE_ERRORS), arg],
        timeout=ENGINE_TIMEOUT_MS,
    ).json_value()
    assert outcome == "done", f"the page shows an error instead: {outcome}"


def wait_until(condition: Callable[[], object], description: str, page: Page | None = None) -> None:
    """Wait until a condition holds: up to the timeout of the engine; with a page: up to that of a page, handling its events."""
    end = time.monotonic() + (PAGE_TIMEOUT_MS if page else ENGINE_TIMEOUT_MS) / 1000
    while not condition():
        assert time.monotonic() < end, f"still waiting for {description}"
        page.wait_for_timeout(50) if page else time.sleep(0.1)


def wait_visible(page: Page, selector: str) -> None:
    """Wait for the engine until an element is visible."""
    wait_for_engine(page, "name => document.querySelector(name)?.checkVisibility()", selector)


def wait_step(page: Page, at_least: int) -> None:
    wait_for_engine(
        page, "n => Number(document.querySelector('.lab-train [data-step]')?.dataset.step ?? -1) >= n", at_least
    )


def wait_status(page: Page, *statuses: str) -> None:
    wait_for_engine(
        page, "all => all.includes(document.querySelector('.lab-train [data-status]')?.dataset.status)", list(statuses)
    )


def describe_pages(browser) -> str:
    """What all open pages show, for the report of a failed test."""
    lines = []
    for frame in (frame for context in browser.contexts for page in context.pages for frame in page.frames):
        try:
            summary = frame.wait_for_function(PAGE_SUMMARY, timeout=2000).json_value()
        except Exception as error:  # also one of a route handler of the test; the report must not end the whole session
            summary = [f"{frame.url} shows nothing: {str(error).partition(chr(10))[0]}"]
        lines += [" ".join(line.split()) for line in summary]
    return "\n".join(lines)

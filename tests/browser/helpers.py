"""Ways about a page, and waiting for what shall stand on it: how long, and what it says when that does not come."""

import time
from collections.abc import Callable

from playwright.sync_api import Error, Page, expect

#: Waiting for what a page and its server do within a second or two, in milliseconds, on a machine that others use as well.
PATIENCE = 60_000
#: Waiting for the engine: it starts, writes, trains, which takes up to ten seconds.
WORK = 3 * PATIENCE
#: The errors that a page shows; not the strip's, which warns of the machine.
ERRORS = """[...document.querySelectorAll('[role=alert], .lab-notice.bad')].filter(
    (one) => one.checkVisibility() && !one.closest('.lab-header')).map((one) => one.innerText.trim()).filter(Boolean)"""
#: Where a page is, what its strip says, and all that it tells whoever looks at it.
SHOWN = """() => [location.href, ...[...document.querySelectorAll('.lab-header .strip, .lab-notice, [role=alert], [role=status]')]
    .filter((one) => one.checkVisibility() && one.innerText.trim())
    .map((one) => `${one.matches('.strip') ? 'the strip' : one.dataset.do || one.role || 'notice'}: ${one.innerText}`)]"""


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def screen(lab, open_page, name: str, **options) -> Page:
    page = open_page(lab, **options)
    tab(page, name)
    return page


def part(page: Page, name: str):
    return page.locator(f'[data-do="{name}"]')


def says(page: Page, name: str, words: str) -> None:
    expect(part(page, name)).to_contain_text(words)


def works(page: Page, condition: str, arg=None) -> None:
    """Wait for what the engine does, a JavaScript function that becomes true. AssertionError at once with a new error's words."""
    found = page.wait_for_function(
        f"""([before, arg]) => {{
            if (({condition})(arg)) return 'done';
            const said = {ERRORS}.filter((words) => !before.includes(words));
            return said.length ? said.join(' | ') : null; }}""",
        arg=[page.evaluate(ERRORS), arg],
        timeout=WORK,
    ).json_value()
    assert found == "done", f"the page shows an error instead: {found}"


def until(true: Callable[[], object], what: str, page: Page | None = None) -> None:
    """Wait for something that the engine does; or that a page does, which goes on with its requests meanwhile."""
    end = time.monotonic() + (PATIENCE if page else WORK) / 1000
    while not true():
        assert time.monotonic() < end, f"still waiting for {what}"
        page.wait_for_timeout(50) if page else time.sleep(0.1)


def made(page: Page, selector: str) -> None:
    """Wait for what the engine makes, as `works` does, until it is to be seen."""
    works(page, "name => document.querySelector(name)?.checkVisibility()", selector)


def wait_step(page: Page, at_least: int) -> None:
    works(page, "n => Number(document.querySelector('.lab-train [data-step]')?.dataset.step ?? -1) >= n", at_least)


def wait_status(page: Page, *wanted: str) -> None:
    works(page, "all => all.includes(document.querySelector('.lab-train [data-status]')?.dataset.status)", list(wanted))


def shown(browser) -> str:
    """What stands on all pages that are open, for the report of a test that failed."""
    lines = []
    for frame in (frame for context in browser.contexts for page in context.pages for frame in page.frames):
        try:
            seen = frame.wait_for_function(SHOWN, timeout=2000).json_value()
        except Error as error:
            seen = [f"{frame.url} tells nothing: {error.message.splitlines()[0]}"]
        lines += [" ".join(line.split()) for line in seen]
    return "\n".join(lines)

"""Functions of the page's JavaScript modules that need a browser but no lab: an empty page imports them.

Expected values worked out by hand.
"""

import pytest
from playwright.sync_api import Error

from rlhf_lab.ui.scripts import MODULES

ADDRESS = "http://127.0.0.1:9/"  # no server: `serve` below replies to everything


@pytest.fixture(scope="module")
def page(chromium):
    context = chromium.new_context()
    page = context.new_page()

    def serve(route):
        name = route.request.url.removeprefix(ADDRESS)
        if name in MODULES:
            route.fulfill(body=MODULES[name], content_type="text/javascript; charset=utf-8")
        elif not name:
            route.fulfill(body="<!doctype html><body></body>", content_type="text/html")
        else:
            route.fulfill(status=204)

    page.route("**", serve)
    page.goto(ADDRESS)
    yield page
    context.close()


MARKDOWN = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# Title": "<p><strong>Title</strong></p>",
    "- a\n- **b**": "<ul><li>a</li><li><strong>b</strong></li></ul>",
    "1. a\n2) *b*": "<ol><li>a</li><li><em>b</em></li></ol>",
    "```\n<b> *x*\n```": "<pre><code>&lt;b&gt; *x*\n</code></pre>",
    "<img src=x> `<i>`": "<p>&lt;img src=x&gt; <code>&lt;i&gt;</code></p>",
}


def test_markdown_becomes_elements_and_never_markup(page):
    script = "async (texts) => { const { renderMarkdown } = await import('/label/markdown.js');"
    script += " return texts.map((text) => renderMarkdown(text).innerHTML); }"
    assert page.evaluate(script, list(MARKDOWN)) == list(MARKDOWN.values())


def test_every_module_can_be_imported(page):
    for name in MODULES:
        try:
            page.evaluate("name => import(`/${name}`).then(() => null)", name)
        except Error as error:
            raise AssertionError(f"{name}: {error.message}") from error


HTML_CASES = {
    "text": ("html`<p>${'<b>&amp;'}</p>`", "<p>&lt;b&gt;&amp;amp;</p>"),
    "number, list and element": ("html`<p>${1}${['a', [html`<i>b</i>`]]}</p>`", "<p>1a<i>b</i></p>"),
    "left out": ("html`<p>${null}${false}${undefined}${0}</p>`", "<p>0</p>"),
    "attributes": (
        "html`<a class=\"x ${'y\" onclick=\"z'}\" title=${'<'} hidden=${true} lang=${null} dir=${false}></a>`",
        '<a class="x y&quot; onclick=&quot;z" title="&lt;" hidden=""></a>',
    ),
    "lines": ("html`<p>\n  a\n  b <i>c</i>\n  </p>\n`", "<p>a b <i>c</i></p>"),
    "an element in a table": ("html`<table><tbody>${html`<tr><td>${'x'}</td></tr>`}</tbody></table>`",
                              "<table><tbody><tr><td>x</td></tr></tbody></table>"),
    "a drawing": ("html`<svg viewBox=${'0 0 1 1'}><path d=${'M0 0'}></path></svg>`",
                  '<svg viewBox="0 0 1 1"><path d="M0 0"></path></svg>'),
}  # fmt: skip


def test_a_template_becomes_elements(page):
    expressions = ", ".join(expression for expression, _ in HTML_CASES.values())
    code = f"async () => {{ const {{ html }} = await import('/shared/html.js'); return [{expressions}]"
    shown = page.evaluate(code + ".map((one) => one.outerHTML); }")
    assert dict(zip(HTML_CASES, shown, strict=True)) == {case: markup for case, (_, markup) in HTML_CASES.items()}


def test_a_template_listens_and_is_new_each_time(page):
    code = """async () => {
      const { html } = await import('/shared/html.js');
      const clicked = [];
      const button = (name) => html`<button type="button" onclick=${() => clicked.push(name)}>${name}</button>`;
      const [first, second] = ['a', 'b'].map(button);
      first.click();
      second.click();
      const two = html`<i></i><b></b>`;
      return [clicked.join(''), first.getAttribute('onclick'), two.childNodes.length, first.namespaceURI === second.namespaceURI];
    }"""
    assert page.evaluate(code) == ["ab", None, 2, True]


def test_the_charts_are_loaded_again_after_a_failure(page):
    code = """async () => {
      const { loadPlotly } = await import('/shared/charts.js');
      const load = () => loadPlotly('/plotly.js');
      const failure = await load().catch((error) => error.message);
      await Promise.all([load(), load()]);
      await load();
      return [failure, window.loads];
    }"""
    script = {"body": "window.loads = (window.loads ?? 0) + 1", "content_type": "text/javascript"}
    replies = iter([lambda route: route.abort(), lambda route: route.fulfill(**script)])
    page.route("**/plotly.js", lambda route: next(replies)(route))  # noqa: PLW0108  Playwright reads its signature
    assert page.evaluate(code) == ["The charts could not be loaded.", 1]


def test_the_module_of_a_widget_exports_mount(page):
    script = "async (name) => typeof (await import(`/${name}`)).default"
    mounted = {name for name in MODULES if page.evaluate(script, name) == "function"}
    views = {name for name in MODULES if name.endswith("/view.js")}
    assert mounted == views - {"compare/blind_test/view.js", "compare/tournament/view.js"}

"""Functions of the page's JavaScript modules that need no lab: an empty page imports them.

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


@pytest.fixture
def call(page):
    """call("shared/format.js", "plural", 2, "label") -> "2 labels", with empty storage."""
    page.evaluate("localStorage.clear()")
    script = "async ([module, name, values]) => (await import(module))[name](...values)"
    return lambda module, name, *values: page.evaluate(script, [f"/{module}", name, values])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("formatNumber", [0.123456], "0.123"),
        ("formatNumber", [-0.5], "−0.5"),  # a minus sign, not a hyphen
        ("formatNumber", [0], "0"),
        ("formatNumber", [0.00012345], "1.2e−4"),
        ("formatNumber", [1234567], "1.2e+6"),
        ("formatNumber", [99999, 5], "99999"),
        ("formatNumber", [None], "–"),
        ("formatDifference", [0.25], "+0.25"),
        ("formatDifference", [-0.25], "−0.25"),
        ("formatDifference", [0], "0"),
        ("formatPercent", [0.666], "67 %"),
        ("formatPercent", [None], "–"),
        ("formatInterval", [0.514, 0.848], "51–85 %"),
        ("formatInterval", [None, None], ""),
        ("plural", [1, "label"], "1 label"),
        ("plural", [0, "label"], "0 labels"),
        ("formatAccuracy", [{"accuracy": 0.7, "low": 0.6, "high": 0.8}], "70 %"),
        ("formatAccuracy", [{"accuracy": 0.7, "low": 0.5, "high": 0.8}], "50–80 %"),  # 0.3 wide
        ("formatAccuracy", [{"accuracy": 0.7, "low": None, "high": None}], "70 %"),
        ("formatBytes", [0], "0 kB"),
        ("formatBytes", [1], "1 kB"),  # not 0
        ("formatBytes", [1_540], "2 kB"),
        ("formatBytes", [1_540_000], "1.5 MB"),
        ("formatBytes", [123_456_789], "123 MB"),
        ("formatBytes", [2_500_000_000], "2.5 GB"),
        ("formatDuration", [59.4], "59 s"),
        ("formatDuration", [59.6], "1 min 0 s"),
        ("formatDuration", [3_725], "1 h 2 min"),
        ("formatDuration", [-3], "0 s"),
        ("formatDuration", [None], ""),
        ("timeLeftText", [599, 0.5], " · 9 min 59 s left"),
        ("timeLeftText", [3_155, 0.5], " · 53 min left"),
        ("timeLeftText", [5_430, 0.5], " · 1 h 31 min left"),
        ("timeLeftText", [7, 0.5, "about "], " · about 7 s left"),
        ("timeLeftText", [None, 0.5], ""),
        ("timeLeftText", [None, 1], " · finishing"),
        ("timeLeftText", [0.4, 0.5], " · finishing"),
        ("displayName", ["visitor-0123456789"], "visitor 0123"),
        ("displayName", ["judge:cheerful"], "judge cheerful (simulated)"),
        ("displayName", ["Ann"], "Ann"),
        ("plotlyText", ["a<b>&c"], "a&lt;b>&amp;c"),
        ("plotlyText", ["abcdef", 3], "abc"),
        (
            "resetText",
            [{"reset_at": 0, "is_reset_due": True}],
            "The demo is reset when all work in progress has ended.",
        ),
    ],
)
def test_formats(call, name, arguments, expected):
    assert call("shared/format.js", name, *arguments) == expected


@pytest.mark.parametrize(
    ("before", "after", "new_words"),
    [
        ("the cat sat", "the cat sat", ""),
        ("the cat sat", "the old cat sat down", "old down"),
        ("a b c d", "b d a", "a"),  # the longest common subsequence is "b d"
        ("", "one two", "one two"),
        ("one two", "", ""),
        ("A  cat\n", "a cat", "a"),  # case counts, space does not
    ],
)
def test_new_words_of_a_text(call, before, after, new_words):
    words = call("shared/diff.js", "wordDiff", before, after)
    assert " ".join(item["word"] for item in words) == after
    assert " ".join(item["word"] for item in words if item["isNew"]) == new_words


def test_very_long_texts_are_not_compared(call):
    words = call("shared/diff.js", "wordDiff", "a " * 501, "b " * 500)  # 250,500 cells
    assert len(words) == 500
    assert not any(item["isNew"] for item in words)


def test_kept_requests_are_those_of_the_project_until_they_are_forgotten(call):
    first, second, other = (
        {"uuid": uuid, "by": "Ann", "project_created_at": created}
        for uuid, created in (("a", 1.5), ("b", 1.5), ("c", 2.5))
    )
    for request in (first, second, other):
        call("label/kept_requests.js", "keepRequest", request)
    assert sorted(call("label/kept_requests.js", "keptRequests", 1.5), key=lambda item: item["uuid"]) == [first, second]
    call("label/kept_requests.js", "keepRequest", first | {"choice": "tie"})  # the same uuid: replaces it
    call("label/kept_requests.js", "forgetRequest", "b")
    assert call("label/kept_requests.js", "keptRequests", 1.5) == [first | {"choice": "tie"}]
    assert call("label/kept_requests.js", "keptRequests", 2.5) == [other]


def test_a_browser_keeps_the_name_that_it_made(call):
    name = call("shared/session.js", "annotatorName")
    assert name.startswith("visitor-")
    assert len(name) == len("visitor-") + 8
    assert call("shared/session.js", "annotatorName") == name
    assert call("shared/session.js", "earlierName") is None


@pytest.mark.parametrize(
    ("address", "tab"),
    [
        ("", "label"),
        ("#runs", "runs-data"),
        ("#data", "runs-data"),
        ("#Runs%20%26%20data", "runs-data"),
        ("#reward", "reward-model"),
        ("#nothing", "label"),
        ("#%", "label"),
    ],
)
def test_the_address_opens_a_tab_by_a_short_name(call, page, address, tab):
    page.evaluate(
        """hash => { location.hash = hash; document.body.innerHTML = ['Label', 'Reward model', 'Runs & data']
            .map((name) => `<button role=tab>${name.replace('&', '&amp;')}</button>`).join(''); }""",
        address,
    )
    assert call("shared/session.js", "currentTab") == tab


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# Title", "<p><strong>Title</strong></p>"),
        ("- a\n- **b**", "<ul><li>a</li><li><strong>b</strong></li></ul>"),
        ("1. a\n2) *b*", "<ol><li>a</li><li><em>b</em></li></ol>"),
        ("```\n<b> *x*\n```", "<pre><code>&lt;b&gt; *x*\n</code></pre>"),
        ("<img src=x> `<i>`", "<p>&lt;img src=x&gt; <code>&lt;i&gt;</code></p>"),
    ],
)
def test_markdown_becomes_elements_and_never_markup(page, text, markup):
    script = "async (text) => (await import('/label/markdown.js')).renderMarkdown(text).innerHTML"
    assert page.evaluate(script, text) == markup


@pytest.mark.parametrize(("ends", "distance"), [((0, 8), 1), ((3, 11), 1), ((0, 9), None)])
def test_short_axes_of_steps_have_a_tick_at_every_integer(call, ends, distance):
    assert call("shared/charts.js", "integerTick", *ends) == distance


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


@pytest.mark.parametrize("case", HTML_CASES)
def test_a_template_becomes_elements(page, case):
    expression, expected = HTML_CASES[case]
    code = f"async () => {{ const {{ html }} = await import('/shared/html.js'); return ({expression}).outerHTML; }}"
    assert page.evaluate(code) == expected


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


def test_the_module_of_a_widget_exports_mount(page):
    script = "async (name) => typeof (await import(`/${name}`)).default"
    mounted = {name for name in MODULES if page.evaluate(script, name) == "function"}
    views = {name for name in MODULES if name.endswith("/view.js")}
    assert mounted == views - {"compare/blind_test/view.js", "compare/tournament/view.js"}


@pytest.mark.parametrize(
    ("heights", "expected"),
    [
        ([100, 50], [100, 50]),
        ([300, 60], [140, 60]),
        ([60, 300], [60, 140]),
        ([300, 201], [100, 100]),
        ([80, 80], [80, 80]),
    ],
)
def test_share_height(call, heights, expected):
    assert call("shared/dom.js", "shareHeight", heights, 200) == expected

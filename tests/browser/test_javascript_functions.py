"""Functions of the page's JavaScript modules that need a browser but no lab: an empty page imports them.

Expected values worked out by hand.
"""

import pytest
from playwright.sync_api import Error

from rlhf_lab.ui.scripts import MODULES


@pytest.fixture(scope="module")
def page(module_page):
    return module_page


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


def test_polling_goes_on_after_an_element_was_briefly_detached(page):
    """An element that is attached after its first poll, and one that was moved; one that is removed is forgotten."""
    code = """async () => {
      const { poll } = await import('/shared/poll.js');
      const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
      const seen = [];
      const node = document.createElement('p');
      node.textContent = 'x';
      const until = async (count) => { for (let i = 0; i < 400 && seen.length < count; i += 1) await pause(5); };
      poll(node, async () => seen.push(1), 10);
      const whileAbsent = seen.length;
      await pause(30);
      document.body.append(node);
      await until(2);
      node.remove();
      await pause(30);
      document.body.append(node);
      const beforeMove = seen.length;
      await until(beforeMove + 2);
      const wasUpdated = [beforeMove >= 2, seen.length >= beforeMove + 2];
      node.remove();
      await pause(1000);
      document.body.append(node);
      const atEnd = seen.length;
      await pause(100);
      return [whileAbsent, ...wasUpdated, seen.length === atEnd];
    }"""
    assert page.evaluate(code) == [0, True, True, True]


RECORDING = """const frame = (step) => ({ run: { step }, seconds: 0.01 });
const recording = {
  title: 'a run', recorded_at: 1796040000, model: 'm', algorithm: 'ppo', frames: [1, 2, 4].map(frame),
  feed: {
    run: { total_steps: 9 }, points: { score: [[1, 0.5], [2, 0.6], [3, null], [4, 0.8]], kl: [[4, 2]] },
    static: { events: [{ step: 2, text: 'beta' }], other_metrics: ['lr'], has_rollouts: true },
  },
  samples: { 0: 'base', 2: 'two', 4: 'four' }, tokens: { 1: 'first', 4: 'last' },
};
const { Replay, ReplayBand, currentReplay, closeReplay } = await import('/train/replay.js');
const replay = new Replay(recording);
"""
#: What the page gets at the frames 0, 0, 1, 2, 1: reset, last step, points, steps with samples, number of marks.
REPLIES = [
    [True, 1, {"score": [[1, 0.5]], "kl": []}, [0], 0],
    None,
    [False, 2, {"score": [[2, 0.6]], "kl": []}, [2], 1],
    [False, 4, {"score": [[3, None], [4, 0.8]], "kl": [[4, 2]]}, [4], 1],
    [True, 2, {"score": [[1, 0.5], [2, 0.6]], "kl": []}, [0, 2], 1],
]


def test_a_recording_answers_up_to_the_step_of_its_clock(page):
    script = """
      let known = {};
      const replies = [];
      for (const at of [0, 0, 1, 2, 1]) {
        replay.goTo(at);
        const { state } = await replay.points(known);
        if (state) known = { epoch: state.epoch, after_step: state.last_step };
        const { reset, last_step: last, points, sample_steps: steps, static: fixed } = state ?? {};
        replies.push(state ? [reset, last, points, steps, fixed.events.length] : null);
      }
      const count = (await replay.metric_points({ metric: 'score' })).points.length;
      const texts = [await replay.samples({ step: 2 }), await replay.tokens({ step: 3 })];
      replay.goTo(2);
      return [replies, count, [...texts, await replay.tokens({ step: 3 })]];"""
    assert page.evaluate(f"async () => {{ {RECORDING} {script} }}") == [REPLIES, 2, ["two", "first", "last"]]


def test_a_recording_plays_to_its_end_and_begins_again(page):
    script = """
      replay.goTo(0);
      const band = new ReplayBand(replay);
      const [play, slider] = ['play', 'step'].map((name) => band.node.querySelector(`[data-do=replay-${name}]`));
      const seen = [];
      window.addEventListener('lab-replay', () => seen.push(replay.at));
      play.click();
      const isPaused = () => replay.timer === null;
      while (!isPaused()) await new Promise((resolve) => setTimeout(resolve, 20));
      const atEnd = [replay.step, play.textContent, slider.value, slider.getAttribute('aria-valuetext')];
      const order = seen.every((at, i) => !i || at >= seen[i - 1]);
      play.click();
      const again = [replay.at, play.textContent];
      band.stepBack();
      closeReplay();
      const speeds = [30, 31, 120, 121, 9999].map((seconds) => new Replay({ ...recording, frames: [{ seconds }] }).speed);
      return [atEnd, order, again, replay.at, isPaused(), currentReplay(), band.node.textContent, replay.speed, speeds];"""
    at_end, order, again, at, is_paused, current, text, speed, speeds = page.evaluate(
        f"async () => {{ {RECORDING} {script} }}"
    )
    assert at_end == [4, "▶ Play", "2", "step 4 of 9"]
    assert order
    assert again == [0, "❚❚ Pause"]
    assert (at, is_paused, current) == (0, True, None)
    assert [speed, *speeds] == [1, 1, 4, 4, 16, 16]
    assert text.startswith("Recording of 30 November 2026: this is a replay, not training.")


def test_the_module_of_a_widget_exports_its_screen(page):
    script = "async (name) => typeof (await import(`/${name}`)).default"
    exported = {name for name in MODULES if page.evaluate(script, name) == "function"}
    views = {name for name in MODULES if name.endswith("/view.js")}
    assert exported == views - {"compare/blind_test/view.js", "compare/tournament/view.js"}


SHARED = "async () => { const { %s } = await import('/shared/dom.js'); document.body.replaceChildren(); %s }"


def test_a_button_has_further_attributes_and_leaves_out_those_that_are_false(page):
    script = SHARED % (
        "actionButton",
        """
        const attributes = { title: 'asks first', disabled: false, 'data-run': 7 };
        return actionButton('go', 'Go', () => {}, 'small danger', attributes).outerHTML;
    """,
    )
    html = (
        '<button type="button" class="lab-button small danger" data-do="go" title="asks first" data-run="7">Go</button>'
    )
    assert page.evaluate(script) == html


@pytest.mark.parametrize(("value", "maximum", "width"), [(3, 12, "25%"), (9, 4, "100%"), (5, 0, "0%")])
def test_a_bar_is_never_wider_than_its_frame(page, value, maximum, width):
    script = SHARED % (
        "progressBar",
        f"""
        const bar = progressBar('done', {value}, {maximum});
        return [bar.getAttribute('aria-valuenow'), bar.getAttribute('aria-valuemax'), bar.firstElementChild.style.width];
    """,
    )
    assert page.evaluate(script) == [str(value), str(maximum), width]


def test_a_list_that_changes_keeps_what_was_chosen(page):
    script = SHARED % (
        "selectField, setOptions",
        """
        const node = selectField('which', 'which one', null, [[1, 'one'], [2, 'two']], 2);
        const values = [node.value];
        const first = node.firstElementChild;
        setOptions(node, [[2, 'two'], [3, 'three']], 3);
        values.push(node.value);
        const [option] = node.children;
        setOptions(node, [[2, 'two'], [3, 'three']], 3, false);
        values.push(node.value, node.contains(option), node.contains(first));
        setOptions(node, [[4, 'four']], 4);
        return [...values, node.value];
    """,
    )
    assert page.evaluate(script) == ["2", "2", "3", True, False, "4"]


def test_what_is_drawn_again_keeps_the_focus_of_the_same_control(page):
    script = SHARED % (
        "actionButton, redraw",
        """
        const box = document.createElement('div');
        document.body.append(box);
        const buttons = () => [1, 2].map((run) => actionButton('go', 'Go', () => {}, '', { 'data-run': run }));
        redraw(box, ...buttons());
        box.lastElementChild.focus();
        redraw(box, ...buttons());
        const kept = document.activeElement === box.lastElementChild;
        redraw(box, buttons()[0]);
        return [kept, document.activeElement === document.body];
    """,
    )
    assert page.evaluate(script) == [True, True]


def test_the_outcome_of_an_action_is_shown(page):
    """Its buttons are disabled until then."""
    script = SHARED % (
        "perform",
        """
        const [notice, button] = [document.createElement('p'), document.createElement('button')];
        const outcomes = [];
        for (const request of [Promise.resolve('Stored.'), Promise.reject(new Error('The disk is full.'))]) {
          const reply = perform(request, notice, [button]);
          const wasDisabled = button.disabled;
          outcomes.push([await reply, notice.textContent, notice.classList.contains('bad'), wasDisabled, button.disabled]);
        }
        return outcomes;
    """,
    )
    assert page.evaluate(script) == [
        ["Stored.", "Stored.", False, True, False],
        [None, "The disk is full.", True, True, False],
    ]


def test_controls_are_found_by_their_names(page):
    script = SHARED % (
        "actionButton, controlsOf",
        """
        const root = document.createElement('form');
        root.append(actionButton('chat-send', 'Send'), actionButton('chat-stop', 'Stop'));
        return Object.entries(controlsOf(root, 'chat-')).map(([name, node]) => [name, node.textContent]);
    """,
    )
    assert page.evaluate(script) == [["send", "Send"], ["stop", "Stop"]]


def test_a_field_has_a_name_a_help_and_a_value(page):
    code = """async () => {
      const { field, valuesOf } = await import('/shared/fields.js');
      const pressed = [];
      const form = document.createElement('form');
      form.append(
        field('a-share', 'Share', { name: 'share', type: 'number', min: 0, max: null, value: 0.5, help: 'from 0' }),
        field('a-model', 'Model', { name: 'model', choices: [['x', 'one'], ['y', 'two']], value: 'y' }),
        field('a-tick', 'Tick', { name: 'tick', type: 'checkbox', value: true, onclick: () => pressed.push('tick') }),
        field('a-text', 'Text', { name: 'text', type: 'textarea', value: '<b>' }),
        field('a-seed', 'seed', { word: 'seed', value: 7 }));
      document.body.replaceChildren(form);
      const before = valuesOf(form);
      for (const label of form.querySelectorAll('label')) label.click();
      form.querySelector('textarea').value = 'c';
      form.reset();
      const share = form.querySelector('[data-do=a-share]');
      const described = document.getElementById(share.getAttribute('aria-describedby')).textContent;
      return { before, pressed, reset: valuesOf(form).text, described, share: share.outerHTML.includes('max'),
        fields: [...form.children].map((one) => one.localName), term: form.querySelector('.lab-term').textContent };
    }"""
    assert page.evaluate(code) == {
        "before": {"share": "0.5", "model": "y", "tick": True, "text": "<b>"}, "pressed": ["tick"], "reset": "<b>",
        "described": "from 0", "share": False, "fields": ["label"] * 4 + ["div"], "term": "seed",
    }  # fmt: skip

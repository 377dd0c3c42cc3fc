"""Keys, focus and dialogs of the page's modules, in a browser without a lab. A page of a screen gets prepared replies."""

import re

import pytest
from playwright.sync_api import expect

KEY = """const press = (target, key, options = {}) =>
  target.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true, ...options }));
const dom = await import('/shared/dom.js');
const { html } = await import('/shared/html.js');
document.body.replaceChildren();
"""


@pytest.fixture
def run(module_page):
    """run(code): what an asynchronous function of this body returns."""
    return lambda code: module_page.evaluate(f"async () => {{ {KEY} {code} }}")


def test_no_shortcuts_behind_an_open_dialog(run):
    code = """
      const seen = [];
      const listen = (event) => seen.push(dom.isShortcut(event));
      document.addEventListener('keydown', listen);
      press(document.body, '1');
      const dialog = dom.openDialog('stage', html`<button>Close</button>`);
      press(dialog.querySelector('button'), '1');
      press(document.body, '1');
      dialog.close();
      press(document.body, '1');
      document.removeEventListener('keydown', listen);
      return seen;"""
    assert run(code) == [True, False, False, True]


def test_pressing_a_button_twice_opens_one_dialog(run):
    code = """
      const closed = [];
      for (const text of ['first', 'second']) {
        dom.openDialog('next class', html`<p>${text}</p>`).addEventListener('close', () => closed.push(text));
      }
      dom.openDialog('join', html`<p>another</p>`);
      await new Promise((resolve) => setTimeout(resolve, 100));
      const open = [...document.querySelectorAll('dialog')].map((dialog) => dialog.textContent);
      document.querySelectorAll('dialog').forEach((dialog) => dialog.remove());
      return [open, closed];"""
    assert run(code) == [["second", "another"], ["first"]]


#: JavaScript: answers[i] is the reply to the question that the button of number i opens.
QUESTIONS = """
  globalThis.answers = [];
  const root = html`<div></div>`;
  document.body.append(root);
  globalThis.draw = () => {
    const open = async (i, text) => { answers[i] = await dom.asked('name', 'A question?', 'Yes', text); };
    root.replaceChildren(...[null, 'old'].map((text, i) => html`<button data-i=${i} onclick=${() => open(i, text)}>b</button>`));
  };
  draw();
  return null;
"""


def focused(page) -> dict[str, str]:
    return page.evaluate(
        "document.activeElement.matches('dialog') ? 'dialog' : ({ ...document.activeElement.dataset })"
    )


def test_enter_does_not_confirm_a_deletion(run, module_page):
    run(QUESTIONS)
    answers = []
    for keys, is_open in (("Enter", True), ("Escape", False), ("Tab Tab Enter", False), ("Tab Enter", False)):
        module_page.locator("[data-i='0']").press("Enter")
        assert focused(module_page) == "dialog"
        for key in keys.split():
            module_page.keyboard.press(key)
        expect(module_page.locator("dialog")).to_have_count(int(is_open))
        if is_open:
            module_page.keyboard.press("Escape")
        assert focused(module_page) == {"i": "0"}
        answers.append(module_page.evaluate("answers[0]"))
    assert answers == [None, None, None, True]


def test_enter_saves_a_changed_name_also_an_empty_one(run, module_page):
    run(QUESTIONS)
    answers = []
    for text, key in (("new", "Enter"), ("new", "Escape"), ("old", "Enter"), ("", "Enter")):
        module_page.locator("[data-i='1']").press("Enter")
        assert focused(module_page) == {"do": "name"}
        module_page.keyboard.press("ControlOrMeta+a")
        module_page.keyboard.press("Delete")
        module_page.keyboard.type(text)
        module_page.keyboard.press(key)
        expect(module_page.locator("dialog")).to_have_count(0)
        answers.append(module_page.evaluate("answers[1]"))
    assert answers == ["new", None, None, ""]


def test_focus_returns_to_a_button_that_was_drawn_again(run, module_page):
    run(QUESTIONS)
    module_page.locator("[data-i='1']").press("Enter")
    module_page.evaluate("draw()")
    module_page.keyboard.press("Escape")
    expect(module_page.locator("[data-i='1']")).to_be_focused()


def test_redrawing_a_form_keeps_the_caret(run):
    code = """
      const root = html`<div></div>`;
      document.body.append(root);
      const draw = (type, value) =>
        dom.redraw(root, html`<input type=${type} value=${value} data-do="name" /><button data-do="b">b</button>`);
      const seen = [];
      for (const [type, value] of [['text', 'my run'], ['number', '12'], ['checkbox', 'on']]) {
        draw(type, value);
        const before = root.querySelector('input');
        before.focus();
        if (type === 'text') before.setSelectionRange(3, 5);
        draw(type, value);
        const { activeElement: now } = document;
        seen.push([now !== before && now.dataset.do, now.selectionStart, now.selectionEnd]);
      }
      return seen;"""
    assert run(code) == [["name", 3, 5], ["name", None, None], ["name", None, None]]


def test_samples_of_fifty_steps_are_cached(run):
    code = """
      const { SampleViewer } = await import('/train/sample_viewer.js');
      const fetched = [];
      const fetchSamples = async ({ step }) => { fetched.push(step); return { step, rows: [] }; };
      const samples = new SampleViewer(1, fetchSamples, { onStep() {}, onTokens() {} });
      document.body.append(samples.node);
      for (let step = 0; step < 200; step += 1) {
        samples.addSteps('epoch', [step], false);
        await samples.load();
      }
      samples.goTo(190);
      samples.goTo(1);
      await samples.load();
      const shown = samples.node.querySelector('[data-at]').textContent;
      return [Object.keys(samples.cache).length, fetched.length, fetched.at(-1), shown];"""
    assert run(code) == [50, 201, 1, "step 1"]


def test_compare_accepts_a_run_without_a_reward_model(run):
    """Such as one that learned from labels directly, or while people labelled."""
    code = """
      const { CompareForm } = await import('/compare/form.js');
      const form = new CompareForm({ write() {}, onModel() {} });
      document.body.append(form.element);
      const options = {
        temperature: 1, max_new_tokens: 8, models: [['base', 'base model'], ['run/3/latest', 'run 3: dpo']],
        reward_models: [], judges: [], default_scorer: null, prompts: ['Once'], conversations: {}, tests: [],
        steps_by_run: {}, best_by_run: {}, scorer_by_run: {},
      };
      form.fill(options);
      const before = form.fields.write.disabled;
      form.fill({ ...options, steps_by_run: { 3: [4, 8] }, best_by_run: { 3: null } });
      return [before, form.fields.write.disabled, form.chosenModels().map(([model]) => model)];"""
    assert run(code) == [True, False, ["base", "run/3/8"]]


def test_title_of_a_setting_that_the_run_adapts(run):
    code = """
      const { LiveSetting } = await import('/train/live_setting.js');
      const setting = new LiveSetting('beta', () => {});
      setting.draw({ set_by_hand: [], beta: 0.1 }, ['beta'], { beta: 0.2 });
      return [setting.input.value, setting.setBy.title];"""
    value, title = run(code)
    assert value == "0.2"
    assert re.fullmatch(r"The run adapts beta[a-z;. A]*no longer adapted\.", title)  # without marks of the code


def test_note_on_a_cut_text(run):
    code = """
      return [null, 0, 1, 1200].map((tokens) => dom.withCut(html`<p>text</p>`, tokens).textContent);"""
    assert run(code) == ["text", "text", "text … cut off at 1 token", "text … cut off at 1,200 tokens"]


def test_token_view_offers_the_next_step_of_a_run(run):
    code = """
      const { TokenView } = await import('/train/token_view.js');
      const view = { run: 3, step: 4, last_step: 4, tokens_per_step: 0, color_scales: [{ column: 'kl', name: 'KL' }], rows: [] };
      const tokens = new TokenView(async () => structuredClone(view));
      document.body.append(tokens.node);
      tokens.node.open = true;
      tokens.show(3, 4);
      await new Promise((resolve) => setTimeout(resolve, 50));
      const next = tokens.node.querySelector('[data-do=token-on]');
      const seen = [next.disabled];
      await tokens.load(4);
      seen.push(next.disabled);
      await tokens.load(5);
      return [...seen, next.disabled];"""
    assert run(code) == [True, True, False]

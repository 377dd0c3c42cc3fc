// Helpers for creating elements. No library, and data is never inserted as markup.
import { plural } from './format.js';
import { html, withAttributes } from './html.js';

export { html };

// A button that performs an action. style: its classes; attributes: further ones, such as {title: 'asks first'}.
export const actionButton = (action, label, onclick, style = 'small', attributes = {}) =>
  withAttributes(
    html`<button type="button" class="lab-button ${style}" data-do=${action} onclick=${onclick}>${label}</button>`,
    attributes,
  );

// The options of a select. items: [value, label].
export const optionList = (items, selected = null) =>
  items.map(([value, label]) => html`<option value=${value} selected=${value === selected}>${label}</option>`);

// A select. label: for screen readers; items: [value, label]; attributes: further ones.
export const selectField = (action, label, onchange, items = [], selected = null, attributes = {}) =>
  withAttributes(
    html`<select class="lab-input" data-do=${action} aria-label=${label} onchange=${onchange}>
      ${optionList(items, selected)}
    </select>`,
    attributes,
  );

// Replaces the options of a select. Its value stays if it is still offered, unless keepsValue is false.
export function setOptions(node, items, fallback, keepsValue = true) {
  const previous = node.value;
  const key = JSON.stringify(items);
  if (node.dataset.items !== key) node.replaceChildren(...optionList(items));
  node.dataset.items = key;
  node.value = keepsValue && items.some(([value]) => String(value) === previous) ? previous : String(fallback);
}

// The controls below an element by their names, "chat-send" as `send`.
/** @returns {Record<string, any>} */
export const controlsOf = (root, prefix) =>
  Object.fromEntries(
    [...root.querySelectorAll('[data-do]')].map((node) => [node.dataset.do.slice(prefix.length), node]),
  );

// How much of something is done, as a bar.
export const progressBar = (label, value, max = 100) =>
  html`<div
    class="lab-bar" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax=${max} aria-valuenow=${value}
  ><i style="width: ${(100 * Math.min(value, max)) / Math.max(1, max)}%"></i></div>`;

// Open a dialog over the page and return it. It replaces an open one of this name (a button was pressed twice), and is
// removed when it closes, which Escape does too.
export function openDialog(name, content) {
  /** @type {HTMLDialogElement | null} */ (document.querySelector(`dialog[aria-label="${name}"]`))?.close();
  const remove = ({ target }) => target.remove();
  const dialog = html`<dialog
    class="lab lab-card lab-${name.replace(' ', '-')}" aria-label=${name} tabindex="-1" onclose=${remove}
  >${content}</dialog>`;
  document.body.append(dialog);
  dialog.showModal();
  dialog.focus(); // not its first button, which Space would press
  return dialog;
}

// Asks a question in a dialog, with a field if there is a text to change. Resolves to true or the changed text, and to
// null if the person cancels or leaves the text as it is. `${name}-sure` is the button that confirms.
export function asked(name, question, label = 'Delete', text = null) {
  const opener = document.activeElement;
  const field =
    text !== null &&
    html`<input class="lab-input" maxlength="80" value=${text} aria-label=${question} data-do=${name} />`;
  const style = field ? 'lab-main' : 'danger';
  const dialog = openDialog(
    'question',
    html`<form method="dialog">
      <p id="lab-question">${question}</p>
      ${field}
      <div class="lab-row">
        <button class="lab-button small ${style}" value="yes" data-do="${name}-sure">${label}</button>
        <button class="lab-button small" data-do="${name}-leave">Cancel</button>
      </div>
    </form>`,
  );
  dialog.setAttribute('aria-describedby', 'lab-question');
  if (field) field.select();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => {
      if (!opener?.isConnected) sameControl(document, opener)?.focus(); // its list was drawn again
      const answer = field ? field.value : true;
      resolve(dialog.returnValue === 'yes' && answer !== text ? answer : null);
    });
  });
}

// The control below an element that has the data attributes of an earlier one.
function sameControl(root, before) {
  const attributes = Object.entries(before?.dataset ?? {});
  const isSame = (node) => attributes.length && attributes.every(([name, value]) => node.dataset[name] === value);
  return [...root.querySelectorAll('a, button, input, select, summary, textarea')].find(isSame);
}

// Draws the contents of an element again. The focus, with the caret of a text, stays on the control with the same data
// attributes.
export function keepFocus(root, draw) {
  const before = /** @type {any} */ (root.contains(document.activeElement) ? document.activeElement : null);
  const caret = [before?.selectionStart, before?.selectionEnd];
  draw();
  if (!before || before.isConnected) return;
  const node = sameControl(root, before);
  node?.focus();
  if (node?.type === before.type && caret.every(Number.isInteger)) node.setSelectionRange(...caret);
}

export const redraw = (root, ...children) => keepFocus(root, () => root.replaceChildren(...children));

// The head of a table, a column for each label.
export const tableHead = (labels) =>
  html`<thead><tr>${labels.map((label) => html`<th scope="col">${label}</th>`)}</tr></thead>`;

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A small line chart, 100 by 28. y(value): the vertical position of a value. Missing values (null) are skipped; with
// fewer than two values nothing is drawn.
export function sparkline(values, y, attributes) {
  const known = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  const points = known
    .map(([i, value]) => `${((100 * i) / (values.length - 1)).toFixed(1)},${y(value).toFixed(1)}`)
    .join(' ');
  return svg(
    'svg',
    { viewBox: '0 0 100 28', preserveAspectRatio: 'none', class: 'spark', ...attributes },
    ...(known.length < 2 ? [] : [svg('polyline', { points })]),
  );
}

// Sets a text that is drawn again and again: a screen reader reads a status aloud whenever its text is set.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Show the result of an action in an element. Errors that are still shown are cleared when another tab is opened.
export function showNotice(notice, text, isError = false) {
  notice.hidden = !text;
  notice.textContent = text || '';
  notice.classList.toggle('bad', isError);
  notice.setAttribute('role', isError ? 'alert' : 'status');
  notice.dataset.notice = '';
}

// Shows the reply to an action (a text, or its message), or why it failed; `controls` are disabled until then. Resolves
// to the reply, and to null if the action failed.
export async function perform(request, notice, controls = []) {
  for (const control of controls) control.disabled = true;
  try {
    const reply = await request;
    showNotice(notice, reply?.message ?? reply);
    return reply;
  } catch (error) {
    showNotice(notice, error.message, true);
    return null;
  } finally {
    for (const control of controls) control.disabled = false;
  }
}

// A prompt: its text, or a conversation turn by turn, scrolled to the last one. turns: [{role, content}]; classes: such
// as 'asked'.
const SPEAKERS = { user: 'User', assistant: 'Model', system: 'System prompt' };
const isConversation = (turns) => turns.length > 1 || turns[0].role !== 'user';
export const promptView = (turns, classes = '') =>
  isConversation(turns) ? conversationView(turns, classes) : textView(turns[0].content, classes);

// A text that somebody or a model wrote.
export const textView = (text, classes = '') => html`<p class="lab-text ${classes}" dir="auto">${text}</p>`;

export function conversationView(turns, classes = '') {
  const turn = ({ role, content }) =>
    html`<div class="turn ${role}"><span class="muted">${SPEAKERS[role]}</span>${textView(content)}</div>`;
  return html`<div
    class="conversation lab-scroll ${classes}" role="group" aria-label="conversation" tabindex="0"
  ><div class="turns">${turns.map(turn)}</div></div>`;
}

// Shows a conversation in place of the text field that contains it, until the person presses `edit`. show(turns): the
// turns of the field's text; null or undefined for a typed text.
export function conversationField(field, action) {
  let editedText = null;
  const shown = html`<div hidden></div>`;
  const edit = actionButton(action, 'Edit as text', () => {
    editedText = field.value;
    show(null);
    field.focus();
  });
  edit.hidden = true;
  function show(turns) {
    if (field.value !== editedText) editedText = null;
    field.hidden = Boolean(turns) && isConversation(turns) && editedText === null;
    shown.hidden = edit.hidden = !field.hidden;
    shown.replaceChildren(...(field.hidden ? [promptView(turns, 'asked')] : []));
  }
  return { shown, edit, show };
}

// The prompt that the texts of a pair answer.
export const promptSection = (turns) =>
  isConversation(turns)
    ? promptView(turns, 'prompt')
    : html`<section class="prompt lab-scroll" aria-label="prompt">
        <span class="muted">Prompt</span>${textView(turns[0].content)}
      </section>`;

// whether the texts of a pair are stacked: label.css
export const stackedScreen = matchMedia('(max-width: 640px) and (orientation: portrait)');
const shortScreen = matchMedia('(max-height: 700px)');
const MIN_TEXT_PX = 40;
const COMFORTABLE_TEXT_PX = 128; // five lines

// Divides `room` between two texts of these heights: a text that needs less than half leaves the rest to a longer one.
/** @param {number[]} heights @param {number} room */
export function shareHeight([first, second], room) {
  const half = Math.floor(room / 2);
  if (first > half && second <= half) return [room - second, second];
  return first <= half && second > half ? [first, room - first] : [half, room - half];
}

// On a phone or a short screen the two texts of `root` fill what the window leaves beside prompt and buttons, so that
// all buttons are visible and stay where they are from pair to pair. The element `extra` below the buttons is made
// visible too if the texts are comfortable to read even then.
export function fitTextHeights(root, buttons, extra = null) {
  const texts = [...root.querySelectorAll('.side .lab-text')];
  const prompt = root.querySelector('.prompt, .asked');
  const isStacked = stackedScreen.matches;
  for (const text of texts) text.style.removeProperty('--text-height');
  for (const node of [prompt, ...texts]) node?.classList.remove('fits');
  if (!(isStacked || shortScreen.matches) || !buttons || !texts.length || !root.getClientRects().length) return;
  for (const node of [prompt, ...texts]) node?.classList.add('fits');
  if (prompt && !fitsInside(prompt)) prompt.classList.remove('fits');
  const rows = isStacked ? texts : texts.slice(0, 1);
  const textsHeight = rows.reduce((sum, node) => sum + node.getBoundingClientRect().height, 0);
  const top = root.getBoundingClientRect().top + window.scrollY;
  // People scroll to what is far down.
  const above = top < window.innerHeight / 2 ? -window.scrollY : root.getBoundingClientRect().top;
  const roomAbove = (last) => window.innerHeight - last.getBoundingClientRect().bottom + above + textsHeight - 6;
  const unusedByPrompt = prompt
    ? (parseFloat(getComputedStyle(prompt).maxHeight) || 0) - prompt.getBoundingClientRect().height
    : 0;
  const withExtra = extra ? roomAbove(extra) : 0;
  const isExtraShown = withExtra - Math.max(0, unusedByPrompt) >= COMFORTABLE_TEXT_PX * rows.length;
  const room = Math.max(MIN_TEXT_PX * rows.length, isExtraShown ? withExtra : roomAbove(buttons));
  const heights = isStacked ? shareHeight(texts.map(neededHeight), room) : texts.map(() => room);
  heights[0] = endWithinLine(texts[0], heights[0]);
  heights[1] = isStacked ? room - heights[0] : endWithinLine(texts[1], heights[1]);
  texts.forEach((text, i) => text.style.setProperty('--text-height', `${heights[i]}px`));
  for (const text of texts) text.classList.toggle('fits', fitsInside(text));
}

const neededHeight = (node) => node.scrollHeight + node.offsetHeight - node.clientHeight + 1;

// The height of a text, or a smaller one at which it ends within a line if it has to be scrolled.
function endWithinLine(text, height) {
  const { lineHeight, paddingTop, borderTopWidth } = getComputedStyle(text);
  const inset = parseFloat(paddingTop) + parseFloat(borderTopWidth);
  const isCut = !stackedScreen.matches || neededHeight(text) > height;
  return isCut ? Math.max(MIN_TEXT_PX, inset + cutWithinLine(height - inset, parseFloat(lineHeight))) : height;
}

// A height at which a scrolled text ends within a line, so that it does not look complete. line: its height in px.
export const cutWithinLine = (height, line) => (line > 0 ? (Math.floor(height / line - 0.7) + 0.7) * line : height);

const fitsInside = (node) => node.scrollHeight <= node.clientHeight + 1;

// Whether a key press belongs to an input method that composes a word (229: Safari's last one). Its Enter and Escape
// are not meant for the page.
const isComposing = (event) => event.isComposing || event.keyCode === 229;
export const isKey = (event, key) => event.key === key && !isComposing(event);

// Whether a key press may be a shortcut: not while typing, with modifiers, repeated, or behind an open dialog.
export function isShortcut(event) {
  if (event.defaultPrevented || event.repeat || isComposing(event)) return false;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return false;
  const target = event.composedPath()[0];
  return !(target instanceof Element && target.closest('input, textarea, select, [contenteditable]'));
}

// Mark the end of a text that was cut off after so many tokens; null: it ended by itself, or nobody knows.
export function withCut(node, tokens) {
  const title =
    'The project limits the length of its texts. A token is a word or a part of one; this text had not ended by then.';
  const note = () => ` … cut off at ${plural(tokens, 'token')}`;
  if (tokens) node.append(html`<span class="lab-cut" title=${title}>${note()}</span>`);
  return node;
}

// Fill in the project's settings where a field still has the value that was last proposed.
export function fillProposed(fields, proposed, settings) {
  for (const name of Object.keys(proposed)) {
    if (settings[name] !== undefined && fields[name].value === proposed[name]) {
      fields[name].value = proposed[name] = String(settings[name]);
    }
  }
}

// The colors of the current theme, for charts.
export function palette() {
  const style = getComputedStyle(document.body);
  const read = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  return {
    ink: read('--lab-ink', '#1f2430'),
    muted: read('--lab-muted', '#667085'),
    line: read('--lab-line', '#e4e7ec'),
    card: read('--lab-card', ''),
    accent: read('--lab-accent', '#4f46e5'),
    good: read('--lab-good', '#15803d'),
    warn: read('--lab-warn', '#b45309'),
    bad: read('--lab-bad', '#b91c1c'),
    left: read('--lab-left', '#2563eb'),
    right: read('--lab-right', '#c2570c'),
    font: style.fontFamily,
  };
}

// The fields of forms, and the values in them.
import { optionList } from './dom.js';
import { term } from './glossary.js';
import { html, withAttributes } from './html.js';

// A label before its controls. One with a button in it, such as a word of the glossary, would be the button's.
export const labelled = (label, ...controls) =>
  typeof label === 'string'
    ? html`<label class="field"><span class="muted words">${label}</span>${controls}</label>`
    : html`<div class="field"><span class="muted words">${label}</span>${controls}</div>`;

// An input, or a select if there are choices. label: for screen readers; name: of its value in `valuesOf`; type: of an
// input, or 'textarea'; choices: [value, label]; value: of a checkbox true or false. All others are attributes.
/** @param {string | null} action @param {string} label @param {Record<string, any>} options */
export const control = (action, label, { type = 'text', choices = null, value = '', ...attributes } = {}) =>
  withAttributes(bareControl(type, choices, value), { 'data-do': action, 'aria-label': label || null, ...attributes });

function bareControl(type, choices, value) {
  if (choices) return html`<select class="lab-input">${optionList(choices, value)}</select>`;
  if (type === 'checkbox') return html`<input type="checkbox" checked=${value} />`;
  if (type !== 'textarea') return html`<input class="lab-input" type=${type} value=${value} />`;
  return Object.assign(html`<textarea class="lab-input" dir="auto"></textarea>`, { defaultValue: value });
}

// A control with its label. word: of the glossary, if the label is one; help: a sentence below it.
/** @param {string} action @param {string} label @param {Record<string, any>} options */
export function field(action, label, { word = '', help = '', ...more } = {}) {
  const node = control(action, label, more);
  if (!help) return labelled(word ? term(word, label) : label, node);
  node.setAttribute('aria-describedby', `lab-help-${action}`);
  return labelled(label, node, html`<span class="muted" id="lab-help-${action}">${help}</span>`);
}

// The values of the named controls below an element, texts as typed.
/** @returns {Record<string, any>} */
export const valuesOf = (root) =>
  Object.fromEntries(
    [...root.querySelectorAll('[name]')].map((one) => [one.name, one.type === 'checkbox' ? one.checked : one.value]),
  );

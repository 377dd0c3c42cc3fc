// @ts-check
// Elements that several parts of "Runs & data" show.
import { tableHead } from '../shared/dom.js';
import { formatBytes } from '../shared/format.js';
import { html } from '../shared/html.js';
import { operatorNotice } from '../shared/session.js';

// A small button. style: further classes.
export const button = (name, label, onclick, style = '') =>
  html`<button type="button" class="lab-button small ${style}" data-do=${name} onclick=${onclick}>${label}</button>`;

// Options of a select. items: [value, label].
export const options = (items, selected = '') =>
  items.map(([value, label]) => html`<option value=${value} selected=${value === selected}>${label}</option>`);

// A table below a heading of its columns, which is wider than a phone.
export const scrollingTable = (label, columns, rows) =>
  html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table>${tableHead(columns)}<tbody>${rows}</tbody></table>
  </div>`;

// Draws the contents of an element again; the control that had the focus gets it back.
export function redraw(container, draw) {
  const focused = /** @type {HTMLElement} */ (document.activeElement);
  const before = container.contains(focused) ? Object.entries(focused.dataset) : [];
  draw();
  if (!before.length) return;
  const controls = [...container.querySelectorAll('[data-do]')];
  controls.find((node) => before.every(([name, value]) => node.dataset[name] === value))?.focus();
}

// A notice for all others that only the operator may do something, and how to become the operator.
export const operatorHint = (text) =>
  operatorNotice(`${text} Open the operator's link, or enter the operator's secret under Project.`);

// Offers a written file in a notice, and saves it. name: of the link.
/** @param {HTMLElement} notice @param {import('../api_types').Download} download @param {string} name */
export function offerDownload(notice, download, name) {
  const link = html`<a class="lab-button small" href=${download.address} download=${download.name} data-do=${name}>
    Save it
  </a>`;
  notice.hidden = false;
  notice.replaceChildren(`${download.name}, ${formatBytes(download.bytes)}. ${download.note} `, link);
  link.click();
}

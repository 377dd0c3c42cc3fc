// @ts-check
// Elements that several parts of "Runs & data" show.
import { tableHead } from '../shared/dom.js';
import { formatBytes } from '../shared/format.js';
import { html } from '../shared/html.js';
import { operatorNotice } from '../shared/session.js';

// A table below a heading of its columns, which is wider than a phone.
export const scrollingTable = (label, columns, rows) =>
  html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table>${tableHead(columns)}<tbody>${rows}</tbody></table>
  </div>`;

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

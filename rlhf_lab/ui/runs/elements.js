// Elements that several parts of "Runs & data" show.
import { html, tableHead } from '../shared/dom.js';
import { formatBytes } from '../shared/format.js';
import { operatorNotice } from '../shared/session.js';

// A table below a heading of its columns, which is wider than a phone.
export const scrollingTable = (label, columns, rows) =>
  html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>
    <table>${tableHead(columns)}<tbody>${rows}</tbody></table>
  </div>`;

// A notice for all others that only the operator may do something, and how to become the operator.
export const operatorHint = (text) =>
  operatorNotice(`${text} Open the operator's link, or enter the operator's secret under Project.`);

// Saves a written file, and offers it in a notice, for a browser that asks first or refuses. name: of the link.
/** @param {HTMLElement} notice @param {lab.Download} download @param {string} name */
export function offerDownload(notice, download, name) {
  const link = html`<a class="lab-button small" href=${download.address} download=${download.name} data-do=${name}>
    Save it again
  </a>`;
  notice.hidden = false;
  const saved = `Your browser saves ${download.name}, ${formatBytes(download.bytes)}.`;
  notice.replaceChildren(`${saved} ${download.note} `, link);
  link.click();
}

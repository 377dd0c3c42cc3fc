// The cards of the open project's measured lengths, and of a download.
import { actionButton, html, progressBar, tableHead } from '../shared/dom.js';
import { operatorOnly } from '../shared/session.js';
import { downloadText, percent, proposalText, shareRange } from './figures.js';

// The measured lengths of the answers, and the proposed setting with a button that accepts it.
/** @param {lab.LengthView} length @param {Record<'accept' | 'measure', (event: any) => void>} act */
export function lengthContent(length, act) {
  if (length.is_measuring) {
    return html`<p class="muted" role="status">
      The engine is measuring how long the answers are; up to half a minute …
    </p>`;
  }
  if (length.failure) {
    return html`<h3>How long are the answers?</h3>
      <p class="lab-notice bad">The measurement failed: ${length.failure}</p>
      ${operatorOnly(actionButton('length-measure', 'Measure again', act.measure, 'small'))}`;
  }
  return html`<h3>How long are the answers?</h3>
    <p class="muted">
      ${length.texts} answers of the model were measured, with random numbers that are the same in all rows. An
      answer is complete if it ends before the limit; the range is where the share probably is for other prompts
      (95 %). ${length.note}
    </p>
    <table>
      ${tableHead(['tokens at most', 'complete', 'mean tokens', 'per pair'])}
      <tbody>${lengthGroup(length, false)}${lengthGroup(length, true)}</tbody>
    </table>
    ${lengthDecision(length, act.accept)}`;
}

/** @param {lab.LengthView} length @param {boolean} addsInstruction */
function lengthGroup(length, addsInstruction) {
  const rows = length.rows.filter((row) => row.adds_instruction === addsInstruction);
  if (!rows.length) return null;
  const title = addsInstruction ? `With the instruction “${length.instruction}”` : 'As the project is';
  return html`<tr><th class="group" colspan="4" scope="rowgroup">${title}</th></tr>
    ${rows.map((row) => lengthRow(row, isSameSetting(row, length.proposal)))}`;
}

/** @param {lab.LengthRow} row @param {lab.LengthRow | null} other */
const isSameSetting = (row, other) =>
  row.max_new_tokens === other?.max_new_tokens && row.adds_instruction === other.adds_instruction;

/** @param {lab.LengthRow} row @param {boolean} isProposed */
const lengthRow = (row, isProposed) =>
  html`<tr class=${isProposed && 'open'}>
    <td class="limit">${row.max_new_tokens} ${isProposed && html`<strong>proposed</strong>`}</td>
    <td class="figure">${percent(row.complete / row.texts)}<span class="muted"> (${shareRange(row)})</span></td>
    <td class="figure">${row.mean_tokens.toFixed(0)}</td>
    <td class="figure">${row.seconds.toFixed(2)} s</td>
  </tr>`;

/** @param {lab.LengthView} length @param {(event: any) => void} accept */
function lengthDecision({ proposal, is_new: isNew }, accept) {
  if (!proposal) {
    return html`<p>
      With none of the measured settings do 90 % of the texts end before the limit. Choose a length yourself in the list
      above.
    </p>`;
  }
  if (!isNew) return null;
  return html`<div class="lab-row">
    ${operatorOnly(actionButton('length-accept', proposalText(proposal), accept, 'lab-main'))}
    <span class="muted">
      ${percent(proposal.complete / proposal.texts)} of the texts are complete then. New texts are written this way, and
      unlabelled pairs are written again; labelled ones stay. Nothing changes before you decide.
    </span>
  </div>`;
}

/** @param {lab.DownloadView} download @param {(name: string) => void} act */
export function downloadContent(download, act) {
  const { downloaded_bytes: downloaded, total_bytes: total } = download;
  const isRunning = download.status === 'running';
  const button = (name, action, label) => operatorOnly(actionButton(name, label, () => act(action)));
  return html`<div class="lab-row">
      <h3>${isRunning && 'Downloading '}${download.model}</h3>
      <span class="muted lab-grow" role="status">${downloadText(download)}</span>
      ${isRunning && button('project-cancel', 'cancel_download', 'Cancel')}
      ${download.can_retry && button('project-retry', 'retry_download', 'Try again')}
    </div>
    ${isRunning && progressBar('download', Math.round((100 * downloaded) / Math.max(1, total)))}`;
}

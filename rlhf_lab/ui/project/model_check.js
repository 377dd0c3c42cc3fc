// What the check of a model shows: its size, and whether it fits into memory.
import { formatBytes } from '../shared/format.js';
import { html } from '../shared/html.js';
import { parameterCount } from './figures.js';

const VERDICT_STYLES = { fits: 'good', tight: 'warn', 'does not fit': 'bad' };

/** @param {lab.MemoryCheck} check */
export function checkResult(check) {
  const download = check.download_bytes ? `${formatBytes(check.download_bytes)} to download` : 'all files are here';
  return html`<div class="verdict" data-verdict=${check.verdict}>
    <div class="lab-row">
      <span class="lab-badge ${VERDICT_STYLES[check.verdict]}">${check.verdict}</span>
      <strong>
        about ${formatBytes(check.required_bytes)} of ${formatBytes(check.free_bytes)} free memory on this
        machine (${check.device})
      </strong>
      <span class="muted">${check.architecture}, ${parameterCount(check.parameters)} parameters, ${download}</span>
    </div>
    <p>${check.advice}</p>
    <details>
      <summary class="muted">How this was estimated</summary>
      <table>
        <tbody>${check.components.map(componentRow)}</tbody>
      </table>
      <p class="muted">
        For texts of ${check.tokens} tokens with their prompts, and the presets; longer texts need more. On a CPU
        the estimate was within 5 % of the measured memory of a model with 135 million parameters. It has not
        been compared on a GPU.
      </p>
    </details>
  </div>`;
}

const componentRow = ([name, size, formula]) =>
  html`<tr>
    <th scope="row">${name}</th>
    <td class="figure">${formatBytes(size)}</td>
    <td class="muted">${formula}</td>
  </tr>`;

/** @param {lab.ModelCheck} reply the settings that suit the model, as a sentence */
export const suitableSettings = (reply) =>
  html`<p>
    Suits this model: prompts "${reply.prompt_set}", temperature ${reply.temperature}${
      reply.template_arguments ? `, template arguments ${reply.template_arguments}` : ''
    }.
  </p>`;

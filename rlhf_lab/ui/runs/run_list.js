// The list of runs of the screen "Runs & data".
import { actionButton, html, progressBar, sparkline, tableHead } from '../shared/dom.js';
import { formatNumber, momentText } from '../shared/format.js';
import { operatorOnly, showRun } from '../shared/session.js';

const STATUS_STYLES = {
  running: 'accent',
  queued: '',
  paused: 'warn',
  interrupted: 'warn',
  failed: 'bad',
  stopped: 'warn',
  done: 'good',
};
const COLUMNS = [
  '', 'run', 'algorithm', 'status', 'step', 'score over steps', 'score (sd)', 'KL (nats)', 'gold (points)', 'created',
  '',
]; // prettier-ignore

// screen: the Runs of view.js, which has the compared runs, and acts.
/** @param {lab.RunsOverview} overview @param {any} screen */
export function runList(overview, screen) {
  if (!overview.runs.length) {
    return html`<div class="lab-card lab-empty" role="status">
      <p>This project has no run yet.</p>
      <p>
        Label pairs under Label, then start PPO under Train; every run is listed here, with its metrics, samples and
        checkpoints.
      </p>
    </div>`;
  }
  const { max_runs: maxRuns, window: steps } = screen.data;
  return html`<div class="lab-card">
    <div class="lab-row">
      <h2>Runs of ${overview.name}</h2>
      <span class="muted">
        Select up to ${maxRuns} runs to compare. Score, KL and gold are means over the last ${steps} steps (fewer before
        step ${2 * steps}).
      </span>
    </div>
    <table>${tableHead(COLUMNS)}<tbody>${overview.runs.map((run) => row(run, screen))}</tbody></table>
    ${overview.unlisted_count > 0 && unlistedView(overview)}
  </div>`;
}

const unlistedView = ({ unlisted_count: count, lab_command: command }) =>
  html`<p class="muted">${count} older runs are not listed; <code>${command} runs</code> lists all of them.</p>`;

/** @param {lab.RunRow} run */
function row(run, screen) {
  const figure = (label, value) => html`<td class="figure" data-words=${label}>${value}</td>`;
  return html`<tr data-run=${run.id}>
    <td class="pick">${compareBox(run, screen)}</td>
    <td class="name">${name(run, screen)}</td>
    ${figure('algorithm', run.algorithm || '–')} <td>${status(run)}</td>
    <td class="step">${progress(run)}</td>
    <td class="curve" title="the score over the steps">${scoreSparkline(run.sparkline)}</td>
    ${figure('score', formatNumber(run.score))} ${figure('KL', formatNumber(run.kl))}
    ${figure('gold', formatNumber(run.gold))}
    <td class="muted when" title=${new Date(1000 * run.created_at).toLocaleString('en-GB')}>
      ${momentText(run.created_at)}
    </td>
    <td class="actions">${actions(run, screen)}</td>
  </tr>`;
}

/** @param {lab.RunRow} run */
function status(run) {
  if (run.outside_file)
    return html`<span class="lab-badge warn" title="only its metrics are here">made elsewhere</span>`;
  return html`<span class="lab-badge ${STATUS_STYLES[run.status]}" title=${run.message || null}>${run.status}</span>`;
}

/** @param {lab.RunRow} run */
function compareBox(run, screen) {
  const slot = screen.slots.get(run.id);
  const choose = (event) => screen.choose(run.id, event.target.checked);
  return html`<label>
    <input
      type="checkbox" checked=${slot !== undefined} aria-label="compare run ${run.id}, ${run.name}"
      data-do="run-choose" data-run=${run.id} onchange=${choose}
    />
    <i class="swatch" data-slot=${slot === undefined ? null : slot + 1}></i>
  </label>`;
}

/** @param {lab.RunRow} run */
function name(run, screen) {
  const rename = html`<button
    type="button" class="plain" title="rename" aria-label="rename run ${run.id}, ${run.name}" data-do="run-rename"
    data-run=${run.id} onclick=${() => screen.rename(run)}
  >
    ${run.name}
  </button>`;
  return html`<span class="muted">${run.id}</span> ${operatorOnly(rename)}
    ${run.outside_file && html`<p class="muted message">from ${run.outside_file}</p>`}
    ${run.message && run.status === 'failed' && html`<p class="muted message">${run.message}</p>`}`;
}

/** @param {lab.RunRow} run */
function progress(run) {
  return html`<div>${run.step} of ${run.total_steps}</div>
    ${progressBar(`steps of run ${run.id}`, run.step, run.total_steps)}`;
}

function scoreSparkline(values) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known);
  const high = Math.max(...known);
  return sparkline(values, (value) => 25 - (22 * (value - low)) / (high - low || 1), { 'aria-hidden': 'true' });
}

/** @param {lab.RunRow} run */
function actions(run, screen) {
  const button = (name, label, onclick, style, attributes) =>
    actionButton(name, label, onclick, `small ${style}`, { 'data-run': run.id, ...attributes });
  const resume = button('run-resume', 'Resume', (event) => screen.resume(run.id, event.target), '', {});
  const remove = button('run-delete', 'Delete', () => screen.remove(run), 'danger', {
    disabled: run.is_active,
    title: run.is_active ? 'stop it first under Train' : 'asks first',
  });
  const title = 'its curves and samples, under Train';
  const isOurs = !run.outside_file; // of others there are only metrics
  return html`<div class="lab-row">
    ${isOurs && button('run-watch', 'Show', () => showRun(run.id), '', { title })}
    ${operatorOnly(run.is_resumable && resume, remove)}
  </div>`;
}

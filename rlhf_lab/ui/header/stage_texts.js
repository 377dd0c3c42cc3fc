// @ts-check
// What the stage says and which sample it shows.
import { timeLeftText } from '../shared/format.js';

/** @typedef {import('../api_types').SampleRow} SampleRow */

const STATES = { running: 'Training', queued: 'Waiting to train', paused: 'Paused', done: 'Training is done' };

// The state of the newest run in words. etaS: seconds until it ends.
/** @param {import('../api_types').RunState | null} run @param {number | null} etaS */
export function stateText(run, etaS) {
  if (!run) return 'No run yet: people choose the better of two texts';
  const left = run.status === 'running' && run.step ? timeLeftText(etaS, run.step / run.total_steps, 'about ') : '';
  return `${STATES[run.status] ?? `Run ${run.id}: ${run.status}`} · step ${run.step} of ${run.total_steps}${left}`;
}

// The sample that is the easiest to read from a distance; the same one at every step, because its base text decides.
/** @param {SampleRow[]} rows */
export function shortestRow(rows) {
  const length = (row) => (row.base_text ?? row.text).length;
  return rows.reduce((best, row) => (best && length(best) <= length(row) ? best : row), null);
}

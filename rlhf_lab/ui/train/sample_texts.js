// Texts of a run beside its curves: what happens now, and its samples.
import { formatDifference, formatDuration, formatNumber } from '../shared/format.js';

const LONG_STEP_S = 5; // Stop asks before it drops such a step
const MIN_CHANGE = 0.05; // of a score; smaller ones have no colour

/**
 * What happens now, and for how long.
 * @param {string} status of the run @param {string} text @param {number | null} seconds null: the time does not matter
 */
export function activityText(status, text, seconds) {
  if (!text || seconds === null) return text;
  const duration = formatDuration(seconds);
  const time = { paused: `paused for ${duration}`, queued: `waiting for ${duration}` }[status];
  return `${text} (${time ?? `${duration} so far`})`;
}

/**
 * What Stop would drop, as a question; '' if that is little.
 * @param {Pick<lab.FeedReply, 'run' | 'eta_s'>} state
 */
export function droppedText({ run, eta_s: eta }) {
  const seconds = (eta ?? 0) / Math.max(1, run.total_steps - run.step);
  if (run.status !== 'running' || seconds < LONG_STEP_S) return '';
  const step = `step ${run.step + 1}, which takes about ${formatDuration(seconds)}`;
  return `Stop does not wait for ${step}. Resume would begin that step again.`;
}

/** @param {number | null} step */
export function stepText(step) {
  if (step === null) return '';
  return step === 0 ? 'step 0: base' : `step ${step}`;
}

/**
 * A score and its change since the base model's text; null without a score.
 * @param {string} name @param {number | null} value @param {number | null} base
 */
export function scoreBadge(name, value, base) {
  if (value === null) return null;
  if (base === null) return { text: formatNumber(value), title: `${name} now`, style: '' };
  const change = value - base;
  const difference = change ? ` (${formatDifference(change, 2)})` : '';
  return {
    text: `${formatNumber(value)}${difference}`,
    title: `${name} now; ${formatNumber(base)} at the start`,
    style: Math.abs(change) < MIN_CHANGE ? '' : change > 0 ? 'good' : 'bad',
  };
}

/** The step that is nearest to another one; null if there is none. @param {number[]} steps @param {number} to */
export const nearest = (steps, to) =>
  steps.reduce((best, step) => (Math.abs(step - to) < Math.abs(best - to) ? step : best), steps[0] ?? null);

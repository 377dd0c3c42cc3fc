// @ts-check
// Texts beside the samples of a run.
import { formatDifference, formatNumber } from '../shared/format.js';

const MIN_CHANGE = 0.05; // of a score; smaller ones have no colour

/** @param {number | null} step */
export function stepText(step) {
  if (step === null) return '';
  return step === 0 ? 'step 0: the base model' : `step ${step}`;
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

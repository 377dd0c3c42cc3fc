// The numbers of the token view as texts and colours.
import { formatFixed, formatNumber } from '../shared/format.js';

// Values of tokens have the same number of decimals, so that sums can be checked; constants are shown as they were set.
export function decimals(value) {
  if (value === null) return 'not finite';
  return Math.abs(value) < 100 ? formatFixed(value, 4) : formatNumber(value, 6);
}

/**
 * An equation with the numbers of token i; a negative number is in parentheses unless it stands alone.
 * @param {string} equation @param {lab.TokenRow['columns']} columns @param {Record<string, number>} constants
 * @param {number} i
 */
export function equationText(equation, columns, constants, i) {
  let text = '';
  equation.split(/\{(\w+)\}/).forEach((piece, n) => {
    if (n % 2 === 0) {
      text += piece;
      return;
    }
    const value = piece in columns ? decimals(columns[piece][i]) : formatNumber(constants[piece], 4);
    text += value.startsWith('−') && !/(^|[=(,])\s*$/.test(text) ? `(${value})` : value;
  });
  return text || '–';
}

/** The probability of a token. @param {number | null} logProbability */
export function probabilityText(logProbability) {
  if (logProbability === null) return 'unknown';
  const percent = 100 * Math.exp(logProbability);
  return percent < 0.1 ? 'under 0.1 %' : `${formatNumber(percent, percent >= 99.95 ? 4 : 3)} %`;
}

/** @param {Pick<lab.TokenRow, 'score' | 'shaped_score'>} row */
export function scoreText({ score, shaped_score: shaped }) {
  if (score === null) return '';
  const text = `score ${formatNumber(score)}`;
  return shaped === score || shaped === null
    ? text
    : `${text}, after scaling, limit and penalties ${formatNumber(shaped)}`;
}

// The background of a token.
/** @param {number} color from -1 to 1 @param {Pick<lab.TokenScale, 'higher_is_better'>} scale */
export function background(color, { higher_is_better: isBetter }) {
  const [positive, negative] = isBetter ? ['--lab-good', '--lab-bad'] : ['--lab-left', '--lab-right'];
  const base = color > 0 ? positive : negative;
  return `color-mix(in srgb, var(${base}) calc(${Math.abs(color)} * var(--lab-strongest)), transparent)`;
}

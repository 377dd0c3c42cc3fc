// Texts of the screen "Compare", from the lab's replies.
import { formatDuration, formatFixedDifference, formatNumber, plural } from '../shared/format.js';

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

/** @param {lab.TextColumn | undefined} column */
export function meansText(column) {
  if (!column?.texts || column.texts.length < 2) return '';
  const means = Object.entries({ score: column.scores, gold: column.gold }).filter(([, values]) => values.length);
  return means.map(([name, values]) => `mean ${name} ${formatNumber(mean(values))}`).join(', ');
}

/** @param {lab.TextColumn | undefined} column @param {number} seconds */
export function waitingText(column, seconds) {
  const status = column?.running
    ? 'The engine writes'
    : 'Waiting for the engine (it answers between the steps of a run; if it was stopped, it loads the model first)';
  return `${status} (${formatDuration(seconds)}) …`;
}

// Names the runs that learned from another reward model than the scoring one. reward: its id as text; '' for none.
export function otherScorersNote(runs, scorerByRun, reward) {
  return runs
    .filter((run) => reward && String(scorerByRun[run]?.[0] ?? reward) !== reward)
    .map((run) => ` Run ${run} was trained on reward model ${scorerByRun[run][0]}.`)
    .join('');
}

// The progress of other people in a blind test; '' if there are none.
export function othersText({ finished = 0, in_progress: inProgress = 0 } = {}) {
  const parts = [finished && `${finished} done`, inProgress && `${inProgress} in progress`].filter(Boolean);
  return parts.length ? `${plural(finished + inProgress, 'other')}: ${parts.join(', ')}` : '';
}

// The score of a row of the ranking with its 95 % interval; null stands for what the answers do not determine.
/** @param {Pick<lab.Standing, 'contestant' | 'score' | 'low' | 'high'>} row */
export function scoreText({ contestant, score, low, high }) {
  if (contestant === 0) return '0 (by definition)';
  if (score === null) return 'not compared';
  if (low === null && high === null) return 'too few answers';
  if (high === null) return `above ${formatFixedDifference(low)}`;
  if (low === null) return `below ${formatFixedDifference(high)}`;
  return `${formatFixedDifference(score)} (${formatFixedDifference(low)} to ${formatFixedDifference(high)})`;
}

// [text, explanation] of how often the row was preferred to the column; wins: of both.
export function winShare(rowWins, columnWins) {
  const total = rowWins + columnWins;
  if (!total) return ['–', 'no answer yet'];
  return [`${Math.round((100 * rowWins) / total)}\u00a0%`, `${rowWins} of ${total} answers, ties count half`];
}

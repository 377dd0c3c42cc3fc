// Texts of the section "Import", and the person's answers.
import { formatBytes, plural } from '../../shared/format.js';

const MAX_UNUSED = 12;

// The answer to each question: a later one of the same question ("numbers=…") replaces the earlier one.
export function withAnswer(answers, answer) {
  const question = (text) => text.split('=', 1)[0];
  return [...answers.filter((other) => question(other) !== question(answer)), answer];
}

/** @param {{ name: string, size: number }} file @param {string} command that reads files of any size */
export const tooLargeText = ({ name, size }, command) =>
  `${name} has ${formatBytes(size)}. Import it with: ${command} FILE`;

/** @param {lab.Preview} preview */
export function countsText({ rows, votes, prompts, people, layout, choices }) {
  const counts = Object.entries(choices).map(([name, count]) => `${count} ${name.replace('_', ' ')}`);
  return (
    `${plural(rows, 'row')}, ${plural(votes, 'vote')} on ${plural(prompts, 'prompt')} (${layout}); ` +
    (counts.join(', ') || 'no votes') +
    (people ? `; ${plural(people, 'annotator')}` : '')
  );
}

export const unusedText = (columns) =>
  columns.length
    ? `Not used: ${columns.slice(0, MAX_UNUSED).join(', ')}${columns.length > MAX_UNUSED ? ' …' : ''}`
    : '';

// What is left of an import.
/** @param {lab.ImportRecord} item */
export function contentsText(item) {
  if (!item.votes && !item.pairs) return 'contained nothing new';
  const part = (left, total, noun) =>
    `${left === total ? '' : `${left.toLocaleString('en')} of `}${total.toLocaleString('en')} ` +
    `${noun}${total === 1 ? '' : 's'}`;
  return `${part(item.votes_left, item.votes, 'vote')}, ${part(item.pairs_left, item.pairs, 'new pair')}`;
}

// Whether something is left that an undo would remove. One that was interrupted is repeated.
/** @param {lab.ImportRecord} item */
export function canBeUndone(item) {
  return Boolean(item.votes_left || (item.pairs_left && !item.taken_back_at));
}

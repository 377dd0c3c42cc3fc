// Word differences between two texts.
import { html } from './html.js';

const MAX_CELLS = 250000; // of the table; longer texts are not compared
// Share of common words below which nothing is marked, since nearly every word would be. Two samples of the embedded
// model for one prompt mostly share 0.05 to 0.3; if the first half of their words is the same, 0.4 to 0.6.
const MIN_SHARED = 0.4;

// The words of `after`, and for each whether it is new, that is not in the longest common subsequence with `before`.
// None is new in a text that has too little in common with `before`.
export function wordDiff(before, after) {
  const a = before.split(/\s+/).filter(Boolean);
  const b = after.split(/\s+/).filter(Boolean);
  const n = a.length;
  const m = b.length;
  const unmarked = b.map((word) => ({ word, isNew: false }));
  if (n * m > MAX_CELLS) return unmarked;
  const table = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  if (2 * table[0][0] < MIN_SHARED * (n + m)) return unmarked;
  const words = [];
  let i = 0;
  let j = 0;
  while (j < m) {
    if (i < n && a[i] === b[j]) {
      words.push({ word: b[j], isNew: false });
      i++;
      j++;
    } else if (i < n && table[i + 1][j] >= table[i][j + 1]) i++;
    else {
      words.push({ word: b[j], isNew: true });
      j++;
    }
  }
  return words;
}

// Whether words are marked in one of the two texts.
export const isMarked = (one, other) => [...wordDiff(one, other), ...wordDiff(other, one)].some((word) => word.isNew);

// An element with the text `after`, its new words marked.
export function markedDiff(before, after, classes = '') {
  const words = wordDiff(before, after).values();
  const mark = (part) => (part.trim() && words.next().value.isNew ? html`<mark>${part}</mark>` : part);
  return html`<p class="lab-text ${classes}" dir="auto">${after.split(/(\s+)/).map(mark)}</p>`;
}

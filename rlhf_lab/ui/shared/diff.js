// Word differences between two texts.
import { el } from './dom.js';

const MAX_CELLS = 250000; // of the table; longer texts are not compared

// The words of `after`, and for each whether it is new, that is not in the longest common subsequence with `before`.
export function wordDiff(before, after) {
  const a = before.split(/(\s+)/).filter((w) => w.trim());
  const b = after.split(/(\s+)/).filter((w) => w.trim());
  const n = a.length;
  const m = b.length;
  if (n * m > MAX_CELLS) return b.map((word) => ({ word, isNew: false }));
  const table = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
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

// An element with the text `after`, its new words marked.
export function markedDiff(before, after, selector = 'p.lab-text') {
  const node = el(selector, { dir: 'auto' });
  for (const { word, isNew } of wordDiff(before, after)) node.append(isNew ? el('mark', {}, word) : word, ' ');
  return node;
}

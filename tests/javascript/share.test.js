import './storage.js';
import assert from 'node:assert/strict';
import test from 'node:test';

globalThis.matchMedia ??= /** @type {any} */ (() => ({ matches: false }));
const { resultText, voteLines } = await import('../../rlhf_lab/ui/share/blind_test.js');

test('wins are choices of the side that the policy wrote, and ties decide nothing', () => {
  const pairs = [{ policy: 0 }, { policy: 1 }, { policy: 1 }];
  const text =
    'You preferred the policy in 1 of 2 decided pairs (50 %, 95 % interval 1 % to 99 %). This may be chance.';
  const intervals = [[[0, 1]], [[0, 0.975], [0.025, 1]], [[0, 0.842], [0.0126, 0.9874], [0.51, 1]]]; // prettier-ignore
  assert.equal(resultText(pairs, [0, 0, 2], intervals), text);
  assert.match(resultText(pairs, [0, 1, 2], intervals), /51 % to 100 %\)\.$/);
  assert.equal(resultText(pairs, [2, 2, 2], intervals), 'You had no preference in any pair.');
});

test('a vote has the chosen text first', () => {
  const pair = { prompt: 'Why?', turns: [], texts: ['a', 'b'], policy: 0 };
  const rows = voteLines([pair, pair], [1, 2], 'reader of x')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  assert.deepEqual(rows[0], { prompt: 'Why?', chosen: 'b', rejected: 'a', tie: false, annotator: 'reader of x' });
  assert.equal(rows[1].tie, true);
});

import './storage.js';
import assert from 'node:assert/strict';
import test from 'node:test';

globalThis.matchMedia ??= /** @type {any} */ (() => ({ matches: false }));
const { resultText, voteLines, wilsonInterval } = await import('../../rlhf_lab/ui/share/blind_test.js');

test('the interval is that of wilson_interval in common/stats.py', () => {
  const rounded = (wins, count) => wilsonInterval(wins, count).map((end) => Number(end.toFixed(4)));
  assert.deepEqual(rounded(14, 18), [0.5478, 0.91]);
  assert.deepEqual(rounded(0, 5), [0, 0.4345]);
  assert.deepEqual(wilsonInterval(0, 0), [0, 1]);
});

test('wins are choices of the side that the policy wrote, and ties decide nothing', () => {
  const pairs = [{ policy: 0 }, { policy: 1 }, { policy: 1 }];
  const text =
    'You preferred the policy in 1 of 2 decided pairs (50 %, 95 % interval 9 % to 91 %). This may be chance.';
  assert.equal(resultText(pairs, [0, 0, 2]), text);
  assert.equal(resultText(pairs, [2, 2, 2]), 'You preferred no text.');
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

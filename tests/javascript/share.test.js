import './storage.js';
import assert from 'node:assert/strict';
import test from 'node:test';

globalThis.matchMedia ??= /** @type {any} */ (() => ({ matches: false }));
const { exactInterval, resultText, voteLines } = await import('../../rlhf_lab/ui/share/blind_test.js');

test('the interval is that of exact_interval in common/stats.py', () => {
  const rounded = (wins, count) => exactInterval(wins, count).map((end) => Number(end.toFixed(4)));
  assert.deepEqual(rounded(15, 148), [0.0578, 0.1617]); // Newcombe 1998, table I
  assert.deepEqual(rounded(0, 20), [0, 0.1684]);
  assert.deepEqual(exactInterval(0, 0), [0, 1]);
  assert.equal(resultText(Array(5).fill({ policy: 1 }), Array(5).fill(1)).endsWith('This may be chance.'), true);
  assert.equal(resultText(Array(6).fill({ policy: 1 }), Array(6).fill(1)).endsWith('54 % to 100 %).'), true);
});

test('wins are choices of the side that the policy wrote, and ties decide nothing', () => {
  const pairs = [{ policy: 0 }, { policy: 1 }, { policy: 1 }];
  const text =
    'You preferred the policy in 1 of 2 decided pairs (50 %, 95 % interval 1 % to 99 %). This may be chance.';
  assert.equal(resultText(pairs, [0, 0, 2]), text);
  assert.equal(resultText(pairs, [2, 2, 2]), 'You had no preference in any pair.');
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

import assert from 'node:assert/strict';
import test from 'node:test';

import {
  meansText,
  otherScorersNote,
  othersText,
  scoreText,
  waitingText,
  winShare,
} from '../../rlhf_lab/ui/compare/texts.js';

test('the score of a model in a tournament, and what the answers do not determine', () => {
  const text = (score, low, high) => scoreText({ contestant: 1, score, low, high });
  assert.equal(text(1, -0.5, 2.5), '+1.00 (−0.50 to +2.50)');
  assert.equal(text(-0.004, -0.3, 0.004), '0.00 (−0.30 to 0.00)'); // zero has no sign
  assert.equal(text(2.5, 0.4, null), 'above +0.40');
  assert.equal(text(-2.5, null, -0.4), 'below −0.40');
  assert.equal(text(1, null, null), 'too few answers');
  assert.equal(text(null, null, null), 'not compared');
  assert.equal(scoreText({ contestant: 0, score: 0, low: null, high: null }), '0 (by definition)');
});

test('how often a model was preferred to another one', () => {
  assert.deepEqual(winShare(1.5, 0.5), ['75\u00a0%', '1.5 of 2 answers, ties count half']);
  assert.deepEqual(winShare(0, 3), ['0\u00a0%', '0 of 3 answers, ties count half']);
  assert.deepEqual(winShare(0, 0), ['–', 'no answer yet']);
});

test('the progress of others in a blind test', () => {
  assert.equal(othersText(), '');
  assert.equal(othersText({ finished: 0, in_progress: 0 }), '');
  assert.equal(othersText({ finished: 1, in_progress: 0 }), '1 other: 1 done');
  assert.equal(othersText({ finished: 2, in_progress: 1 }), '3 others: 2 done, 1 in progress');
});

test('the means of a column of several texts', () => {
  const column = { is_waiting: false, texts: ['a', 'b'], scores: [1, 2], gold: [-1, -2] };
  assert.equal(meansText(column), 'mean score 1.5, mean gold −1.5');
  assert.equal(meansText({ ...column, scores: [] }), 'mean gold −1.5');
  assert.equal(meansText({ ...column, texts: ['a'] }), '');
  assert.equal(meansText({ is_waiting: true, running: true }), '');
  assert.equal(meansText(undefined), '');
});

test('what a column waits for', () => {
  assert.match(waitingText(undefined, 3), /^Waiting for the engine .* \(3 s\) …$/);
  assert.match(waitingText({ is_waiting: true, running: false }, 3), /^Waiting for the engine/);
  assert.equal(waitingText({ is_waiting: true, running: true }, 65), 'The engine writes (1 min 5 s) …');
});

test('runs that learned from another reward model are named', () => {
  const scorers = { 3: [1, ''], 4: [2, 'polite'] };
  assert.equal(otherScorersNote(['3', '4'], scorers, '2'), ' Run 3 was trained on reward model 1.');
  assert.equal(otherScorersNote(['3', '9'], scorers, '1'), '');
  assert.equal(otherScorersNote(['3', '4'], scorers, ''), '');
});

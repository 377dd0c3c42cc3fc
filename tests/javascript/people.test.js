import assert from 'node:assert/strict';
import test from 'node:test';

import { goldNames, presentText, presentTitle, share, stateSentences } from '../../rlhf_lab/ui/people/figures.js';

const row = (annotator, labels, same, repeated, agreed = 0, shared = 0) => ({
  annotator,
  labels,
  same,
  repeated,
  agreed,
  shared,
});
test('a share without cases is a dash', () => {
  assert.equal(share(1, 3), '33 % of 3');
  assert.equal(share(0, 0), '–');
});

test('who is connected', () => {
  assert.equal(presentTitle(['Ann'], 'Ann'), 'Nobody else is connected');
  assert.equal(presentTitle(['Ann'], 'Bob'), 'One person is connected');
  assert.equal(presentTitle([], 'Bob'), '0 people are connected');
  assert.equal(presentText(['visitor-1', 'Ann', 'visitor-2']), 'Ann, 2 without a name');
  assert.equal(presentText(['Ann', 'Bob']), 'Ann, Bob');
});

test('visitors are listed with the gold pairs only if they answered one', () => {
  const gold = { people: [{ annotator: 'visitor-2' }], experts: ['Cid'] };
  const voters = [row('visitor-1', 4), row('Bob', 3), row('visitor-2', 1)];
  assert.deepEqual(goldNames(gold, voters), ['Bob', 'Cid', 'visitor-2']);
});

test('the dialog before the next class says what goes on', () => {
  const runs = [{ id: 3, name: 'ppo', status: 'running', step: 12, total_steps: 40 }];
  const state = { project: 'Cats', labels: 1, people: 1, present: 24, runs, training: '', has_code: true };
  const sentences = [
    '"Cats" has 1 label by 1 person. 24 people are connected.',
    'Run 3 (ppo) is running, at step 12 of 40.',
  ];
  assert.deepEqual(stateSentences(state), sentences);
  const training = 'A reward model waits.';
  assert.deepEqual(stateSentences({ ...state, training }), [...sentences, training]);
});

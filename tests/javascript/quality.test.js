import assert from 'node:assert/strict';
import test from 'node:test';

import { alphaMeaning, remarks } from '../../rlhf_lab/ui/runs/quality/remarks.js';

const unknown = { share: null, low: 0, high: 1, count: 0 };
const person = {
  name: 'Ann',
  votes: 40,
  left: unknown,
  ties: unknown,
  seconds: 4,
  alpha_without: null,
};

test('remarks need an interval that rules out chance', () => {
  assert.equal(remarks(person, null), '');
  assert.equal(remarks({ ...person, left: { share: 0.6, low: 0.5, high: 0.7, count: 90 } }, null), '');
  assert.equal(
    remarks({ ...person, left: { share: 0.8, low: 0.51, high: 0.9, count: 30 } }, null),
    'prefers the left side',
  );
  assert.equal(
    remarks({ ...person, left: { share: 0.1, low: 0, high: 0.49, count: 30 } }, null),
    'prefers the right side',
  );
  assert.equal(remarks({ ...person, ties: { share: 0.7, low: 0.55, high: 0.8, count: 40 } }, null), 'mostly ties');
});

test('hasty annotators and those with whom the others disagree', () => {
  assert.equal(remarks({ ...person, seconds: 0.9, votes: 10 }, null), 'votes within a second');
  assert.equal(remarks({ ...person, seconds: 0.9, votes: 9 }, null), '');
  const alone = { ...person, seconds: 0.5, alpha_without: 0.54 };
  assert.equal(remarks(alone, 0.5), 'votes within a second, the others agree better without this person');
  assert.equal(remarks({ ...alone, seconds: null }, 0.52), '');
});

test('the meaning of alpha', () => {
  assert.match(alphaMeaning(null), /needs pairs with votes of two people/);
  assert.equal(alphaMeaning(0.8), 'They agree well.');
  assert.match(alphaMeaning(0.79), /tentative conclusions/);
  assert.match(alphaMeaning(0.2), /somewhat/);
  assert.match(alphaMeaning(-0.3), /hardly more than chance would/);
});

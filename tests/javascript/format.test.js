import assert from 'node:assert/strict';
import test from 'node:test';

import { formatDuration, formatNumber, plural, timeLeftText } from '../../rlhf_lab/ui/shared/format.js';

test('numbers', () => {
  assert.equal(formatNumber(0.123456), '0.123');
  assert.equal(formatNumber(-0.5), '−0.5'); // a minus sign, not a hyphen
  assert.equal(formatNumber(1234567), '1.2e+6');
  assert.equal(formatNumber(null), '–');
});

test('times', () => {
  assert.equal(formatDuration(59.4), '59 s');
  assert.equal(formatDuration(3599.6), '1 h 0 min');
  assert.equal(timeLeftText(0.2, 0.5), ' · finishing');
  assert.equal(timeLeftText(null, 0.5), '');
});

test('counts', () => {
  assert.equal(plural(1, 'label'), '1 label');
  assert.equal(plural(2, 'label'), '2 labels');
});

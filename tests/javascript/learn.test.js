import assert from 'node:assert/strict';
import test from 'node:test';

import { isNearBest } from '../../rlhf_lab/ui/learn/formulas.js';

test('a step between two at which gold is high is a good one to stop at, although gold is noisy', () => {
  const gold = [0, 1, 0.8, 0.95, 0.2];
  const answers = gold.map((_, at) => isNearBest(gold, at));
  assert.deepEqual(answers, [false, true, true, true, false]);
});

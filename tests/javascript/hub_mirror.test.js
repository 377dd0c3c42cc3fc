import assert from 'node:assert/strict';
import test from 'node:test';

import { statusText, variableText } from '../../rlhf_lab/ui/runs/hub_mirror/status.js';

const saved = { repository: 'someone/lab', problem: '', age_s: 75 };

test('whether the lab is saved', () => {
  assert.equal(statusText({ ...saved, repository: '' }), 'The lab is not saved to the Hub.');
  assert.equal(statusText({ ...saved, age_s: null }), 'Saving to someone/lab for the first time …');
  assert.equal(statusText(saved), 'Saved to someone/lab 1 min 15 s ago.');
  assert.equal(statusText({ ...saved, problem: 'It is full.' }), 'Not saved to someone/lab. It is full.');
});

test('a variable takes precedence over the form, and a token in a variable over one that is entered', () => {
  const status = { ...saved, is_set_by_variable: false, has_token_variable: false };
  assert.equal(variableText(status), '');
  assert.match(variableText({ ...status, has_token_variable: true }), /HF_TOKEN contains a token/);
  assert.match(variableText({ ...status, is_set_by_variable: true, has_token_variable: true }), /names someone\/lab/);
});

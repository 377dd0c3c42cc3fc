import assert from 'node:assert/strict';
import test from 'node:test';

import {
  chatSettings,
  contentsText,
  downloadText,
  parameterCount,
  proposalText,
  shareRange,
} from '../../rlhf_lab/ui/project/figures.js';

test('a number of parameters', () => {
  assert.equal(parameterCount(134_515_008), '135 million');
  assert.equal(parameterCount(1_240_000_000), '1.24 billion');
});

test('a range of shares', () => {
  assert.equal(shareRange({ low: 0.426, high: 0.914 }), '43 to 91 %');
});

test('a proposed length in words', () => {
  assert.equal(proposalText({ max_new_tokens: 128, adds_instruction: false }), 'Use 128 tokens');
  assert.equal(proposalText({ max_new_tokens: 96, adds_instruction: true }), 'Use 96 tokens and add the instruction');
});

test('what is deleted with a project', () => {
  const project = { human_labels: 1, model_count: 0, run_count: 2 };
  assert.equal(contentsText(project), '1 label, 0 reward models, 2 runs');
});

test('the state of a download', () => {
  const download = { status: 'running', downloaded_bytes: 5e6, total_bytes: 2e7, eta_s: 30, message: '' };
  assert.equal(downloadText(download), '5 MB of 20 MB · 30 s left');
  assert.equal(downloadText({ ...download, total_bytes: 0, downloaded_bytes: 0, eta_s: null }), '0 kB of 0 kB');
  assert.equal(downloadText({ ...download, status: 'checking' }), 'is being checked …');
  assert.equal(downloadText({ ...download, status: 'failed', message: 'No route.' }), 'No route.');
});

test('only chat settings that a project has are listed', () => {
  assert.deepEqual(chatSettings({ system_prompt: '', template_arguments: '' }), []);
  const project = { system_prompt: 'Be kind.', template_arguments: '{"a": 1}' };
  assert.deepEqual(
    chatSettings(project).map(({ text }) => text),
    ['system prompt: Be kind.', 'template: {"a": 1}'],
  );
});

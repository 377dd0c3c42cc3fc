import assert from 'node:assert/strict';
import test from 'node:test';

import {
  canBeUndone,
  contentsText,
  countsText,
  unusedText,
  withAnswer,
} from '../../rlhf_lab/ui/runs/import_data/texts.js';

test('an answer replaces the earlier one of the same question', () => {
  const answers = ['file=row', 'texts=skip'];
  assert.deepEqual(withAnswer(answers, 'file=columns'), ['texts=skip', 'file=columns']);
  assert.deepEqual(withAnswer(answers, 'votes=names'), ['file=row', 'texts=skip', 'votes=names']);
});

test('the counts of a preview', () => {
  const preview = { rows: 1, votes: 36, prompts: 12, people: 3, layout: 'votes', choices: { first: 35, both_bad: 1 } };
  assert.equal(countsText(preview), '1 row, 36 votes on 12 prompts (votes); 35 first, 1 both bad; 3 annotators');
  assert.equal(
    countsText({ ...preview, votes: 0, prompts: 0, people: 0, choices: {} }),
    '1 row, 0 votes on 0 prompts (votes); no votes',
  );
});

test('columns that are not used', () => {
  assert.equal(unusedText([]), '');
  assert.equal(unusedText(['a', 'b']), 'Not used: a, b');
  assert.equal(unusedText([...'abcdefghijklm']), 'Not used: a, b, c, d, e, f, g, h, i, j, k, l …');
});

test('what is left of an import, and whether it can be undone', () => {
  const item = { votes: 1234, votes_left: 1234, pairs: 1, pairs_left: 1, taken_back_at: null };
  assert.equal(contentsText(item), '1,234 votes, 1 new pair');
  assert.equal(contentsText({ ...item, votes_left: 0, pairs_left: 0 }), '0 of 1,234 votes, 0 of 1 new pair');
  assert.equal(contentsText({ ...item, votes: 0, pairs: 0 }), 'contained nothing new');
  assert.equal(canBeUndone(item), true);
  assert.equal(canBeUndone({ ...item, votes_left: 0 }), true);
  assert.equal(canBeUndone({ ...item, votes_left: 0, pairs_left: 0 }), false);
  assert.equal(canBeUndone({ ...item, taken_back_at: 5 }), true); // the undo was interrupted
  assert.equal(canBeUndone({ ...item, votes_left: 0, taken_back_at: 5 }), false);
});

import assert from 'node:assert/strict';
import test from 'node:test';

import {
  accuracyText,
  downloadText,
  intervalText,
  machineText,
  measuredAtText,
  runKey,
  runNews,
  savedText,
  unsavedText,
  withScreenFigures,
} from '../../rlhf_lab/ui/header/figures.js';
import { brakeText, classSteps, shortestRow, stageCaption, stateText } from '../../rlhf_lab/ui/header/stage_texts.js';

const STATUS = {
  project_created_at: 5,
  counted_at: 10,
  labels: 3,
  simulated: 0,
  job: { label: 'run 4, step 2 of 30', run: 4, step: 2 },
  guide: null,
};
const counts = (values) => ({ project_created_at: 5, counted_at: 11, labels: 7, simulated: 40, ...values });
const shown = (publishedCounts, step, now = 1000) => withScreenFigures(STATUS, publishedCounts, step, now);

test('newer counts of the open screen are shown, but not older ones or those of another project', () => {
  assert.deepEqual(shown(null, null), STATUS);
  assert.deepEqual([shown(counts(), null).labels, shown(counts(), null).simulated], [7, 40]);
  assert.equal(shown(counts({ counted_at: 10 }), null).labels, 3);
  assert.equal(shown(counts({ project_created_at: 6 }), null).labels, 3);
});

test('a newer step of the open screen is shown for four seconds', () => {
  const label = (step, now) => shown(null, step, now).job.label;
  assert.equal(label({ run: 4, step: 3, at: 1000 }), 'run 4, step 3 of 30');
  assert.equal(label({ run: 4, step: 1, at: 1000 }), 'run 4, step 2 of 30');
  assert.equal(label({ run: 5, step: 3, at: 1000 }), 'run 4, step 2 of 30');
  assert.equal(label({ run: 4, step: 3, at: 1000 }, 5000), 'run 4, step 3 of 30');
  assert.equal(label({ run: 4, step: 3, at: 1000 }, 5001), 'run 4, step 2 of 30');
  assert.equal(withScreenFigures({ ...STATUS, job: null }, null, { run: 4, step: 3, at: 0 }, 0).job, null);
});

test('the stage says at how many labels an accuracy was measured that is out of date', () => {
  const text = (labels, reward) => measuredAtText({ ...STATUS, labels, simulated: 5, reward });
  const reward = { accuracy: 0.8, labels: 12, simulated: false };
  assert.deepEqual([text(16, reward), text(17, reward)], ['', ' (at 12 labels)']);
  assert.equal(text(90, { ...reward, simulated: true }), '');
  assert.deepEqual([text(90, null), text(90, { ...reward, accuracy: null })], ['', '']);
});

test('the guide says the same as the open screen', () => {
  const guide = (present, note) => ({ ...STATUS, may_label: true, guide: { present, note } });
  const note = (status, published) => withScreenFigures(status, ...published, 1000).guide.note;
  const published = [counts({ guide_note: '3 more labels' }), { run: 4, step: 3, at: 1000 }];
  assert.equal(note(guide('Label', '4 more labels'), published), '3 more labels');
  const viewer = { ...guide('Label', 'to label, join the lab'), may_label: false };
  assert.equal(note(viewer, published), 'to label, join the lab');
  assert.equal(
    note(guide('Label', 'no label prefers a text yet'), [counts({ guide_note: '' }), null]),
    'no label prefers a text yet',
  );
  const reached = [counts({ labels: 10, guide_note: '' }), null];
  assert.equal(note(guide('Label', '1 more label for a reward model'), reached), '10 labels');
  assert.equal(note(guide('Label', '4 more'), [counts({ counted_at: 10, guide_note: '' }), null]), '4 more');
  assert.equal(note(guide('Train', 'run 4 step 2 of 30'), published), 'run 4 step 3 of 30');
  assert.equal(note(guide('Compare', '4 more pairs'), published), '4 more pairs');
});

test('the accuracy names its labels where there are both kinds', () => {
  const reward = { id: 2, accuracy: 0.8, low: 0.75, high: 0.85, simulated: false };
  const run = { id: 1, is_training: true, is_live: true };
  assert.equal(accuracyText({ reward: null, simulated: 0, run: null }), 'no reward model yet');
  assert.equal(accuracyText({ reward: null, simulated: 0, run }), 'instant reward model');
  assert.equal(
    accuracyText({ reward: null, simulated: 0, run: { ...run, is_training: false } }),
    'no reward model yet',
  );
  assert.equal(accuracyText({ reward, simulated: 0 }), 'accuracy 80 %');
  assert.equal(accuracyText({ reward, simulated: 9 }), 'accuracy 80 %, people');
  assert.equal(accuracyText({ reward: { ...reward, simulated: true }, simulated: 9 }), 'accuracy 80 %, simulated');
  assert.equal(intervalText(reward), ' (75–85 %)');
  assert.equal(intervalText({ ...reward, low: 0.5 }), '');
  assert.equal(intervalText({ ...reward, low: null }), '');
});

test('device and memory', () => {
  assert.equal(machineText({ engine: { device: 'cpu', memory_mib: 512 } }), 'cpu · 537 MB');
  assert.equal(machineText({ engine: { device: '', memory_mib: null } }), '');
});

test('people who label are told that training has started, and that it has ended', () => {
  const trains = { id: 4, is_training: true };
  const ended = { id: 4, is_training: false };
  const news = (run, known, seen = null, more = {}) =>
    runNews({ run, is_operator: false, may_label: true, ...more }, known, seen);
  assert.equal(news(null, 0), '');
  assert.equal(news(trains, 4), 'Training has started.');
  assert.equal(news(trains, 4, runKey(trains)), '');
  assert.equal(news(ended, 4, runKey(trains)), 'Training has ended.');
  assert.equal(news(ended, 4), 'Training has ended.');
  assert.equal(news(ended, 4, runKey(ended)), '');
  assert.equal(news(ended, 3), ''); // it had ended before this page was opened
  assert.equal(news(trains, 4, null, { is_operator: true }), '');
  assert.equal(news(trains, 4, null, { may_label: false }), '');
});

test('the copy on the Hub', () => {
  const mirror = { repository: 'a/b', saved_at: null, age_s: null, problem: '', is_late: false };
  assert.equal(savedText(mirror), 'Saving …');
  assert.equal(savedText({ ...mirror, saved_at: 1, age_s: 61 }), 'Saved 1 min 1 s ago');
  assert.equal(savedText({ ...mirror, is_late: true }), 'Not saved yet');
  assert.match(savedText({ ...mirror, saved_at: 1, problem: 'No.' }), /^Not saved since /);
  assert.match(unsavedText({ ...mirror, problem: 'No.' }), /^Not saved to the Hub yet\. No\. /);
  assert.match(unsavedText({ ...mirror, is_late: true }), /The Hub takes long to answer/);
});

test('the download of a model', () => {
  assert.equal(downloadText({ total_bytes: null }), '');
  const half = { downloaded_bytes: 2e6, total_bytes: 4e6, eta_s: 30 };
  assert.equal(downloadText(half), '2 MB of 4 MB · 30 s left');
});

test('the stage says in words what the run does', () => {
  const run = { id: 3, status: 'running', step: 12, total_steps: 40 };
  assert.equal(stateText(null, null), 'Which text is better? You decide');
  assert.equal(stateText(null, null, { accuracy: 0.8 }), 'A reward model has learned from the labels');
  assert.equal(stateText(run, 90), 'Training · step 12 of 40 · about 1 min 30 s left');
  assert.equal(stateText({ ...run, step: 0 }, 90), 'Training · step 0 of 40');
  assert.equal(stateText({ ...run, status: 'paused' }, 90), 'Paused · step 12 of 40');
  assert.equal(stateText({ ...run, status: 'failed' }, null), 'Run 3: failed · step 12 of 40');
});

test('the stage shows the sample with the shortest text of the base model', () => {
  const row = (text, base) => ({ text, base_text: base });
  const rows = [row('aa', 'aaaa'), row('bbbbbbbb', 'bb'), row('c', 'ccc')];
  assert.equal(shortestRow(rows), rows[1]);
  assert.equal(shortestRow([row('aaa', null), row('a', null)]).text, 'a'); // at step 0 the texts are the base model's
  assert.equal(shortestRow([]), null);
});

test('captions on the stage end before their explanation, unless they warn', () => {
  const caption = (level, message) => stageCaption({ level, message });
  assert.equal(
    caption('good', 'Mean score 1.14 sd, now rising: the policy learns. It is good.'),
    'Mean score 1.14 sd, now rising',
  );
  assert.equal(caption('info', 'Mean score 1.14 sd, now steady.'), 'Mean score 1.14 sd, now steady');
  assert.equal(caption('good', '1.6 % of tokens clipped'), '1.6 % of tokens clipped');
  const warning = 'Mean score 0.14 sd, now steady: no clear gain so far; label more pairs.';
  assert.equal(caption('warn', warning), 'Mean score 0.14 sd, now steady: no clear gain so far');
  assert.equal(
    caption('alert', 'Since beta was set to 0.1 after step 7: mean KL 15.0: far from the base model; stop.'),
    'Since beta was set to 0.1 after step 7: mean KL 15.0: far from the base model',
  );
});

test('before the first run the stage says what the class does', () => {
  const states = (status) => classSteps(status).map(({ state }) => state);
  const guide = (present) => /** @type {any} */ ({ present, note: '4 more labels' });
  const reward = /** @type {any} */ ({});
  assert.deepEqual(states({ guide: guide('Label'), reward: null }), ['present', 'next', 'next']);
  assert.deepEqual(states({ guide: guide('Label'), reward }), ['present', 'next', 'next']); // it may be guessing
  assert.deepEqual(states({ guide: guide('Reward model'), reward: null }), ['done', 'present', 'next']);
  assert.deepEqual(states({ guide: guide('Train'), reward }), ['done', 'done', 'present']);
  assert.deepEqual(states({ guide: null, reward: null }), ['present', 'next', 'next']); // the guide is hidden
  assert.deepEqual(states({ guide: null, reward }), ['done', 'done', 'present']);
  assert.deepEqual(
    classSteps({ guide: guide('Label'), reward: null }).map(({ note }) => note),
    ['4 more labels', '', ''],
  );
});

test('the stage says which texts people prefer, and before it is known how they answered', () => {
  const preferred = {
    state: 'preferred',
    text: '33 of 42 for the policy against the base. People prefer the policy.',
    step: null,
  };
  assert.equal(brakeText(preferred), 'People prefer the policy.');
  const declined = { state: 'declined', text: '5 of 9 for the policy. People prefer the texts of step 5.', step: 5 };
  assert.equal(brakeText(declined), 'People prefer the texts of step 5.');
  const unknown = { state: 'unknown', text: 'none yet. Some of the next pairs …', step: null };
  assert.equal(brakeText(unknown), 'Blind answers: none yet. Some of the next pairs …');
});

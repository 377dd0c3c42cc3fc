import assert from 'node:assert/strict';
import test from 'node:test';

import { axisRanges, changeMarkers, lineMode } from '../../rlhf_lab/ui/train/chart_layout.js';
import { activityText, droppedText, scoreBadge, stepText } from '../../rlhf_lab/ui/train/sample_texts.js';
import {
  fieldProperties,
  keepEdits,
  missingModelText,
  progressText,
  sizeLabel,
  sourceText,
  startLabel,
  usesPretrainingTexts,
} from '../../rlhf_lab/ui/train/start_run/texts.js';
import { background, decimals, equationText, probabilityText, scoreText } from '../../rlhf_lab/ui/train/token_texts.js';

globalThis.matchMedia ??= /** @type {any} */ (() => ({ matches: false }));
const { settingText } = await import('../../rlhf_lab/ui/train/live_setting.js');

const STYLE = { color: 'orange', size: 10 };

test('negative numbers of an equation have parentheses unless they stand alone', () => {
  const columns = { kl: [-0.25, 0.5], old: [-1, -0.5], ref: [-0.75, -1], lost: [null, 1] };
  assert.equal(equationText('{kl} = {old} − {ref}', columns, {}, 0), '−0.2500 = −1.0000 − (−0.7500)');
  assert.equal(equationText('{kl} = {old} − {ref}', columns, {}, 1), '0.5000 = −0.5000 − (−1.0000)');
  assert.equal(equationText('max({kl}, {old} · {beta})', columns, { beta: -0.1 }, 0), 'max(−0.2500, −1.0000 · (−0.1))');
  assert.equal(equationText('{lost}', columns, {}, 0), 'not finite');
  assert.equal(equationText('', columns, {}, 0), '–');
});

test('values of tokens have four decimals, large ones six digits, and zero has no sign', () => {
  assert.deepEqual([0.5, -0.00001, -12.25, 1234.5678, null].map(decimals), [
    '0.5000',
    '0.0000',
    '−12.2500',
    '1234.57',
    'not finite',
  ]);
});

test('a probability in percent', () => {
  assert.deepEqual([0, Math.log(0.5), Math.log(0.9996), Math.log(0.0005), null].map(probabilityText), [
    '100 %',
    '50 %',
    '99.96 %',
    'under 0.1 %',
    'unknown',
  ]);
});

test('the score of a text, with the one that was learned from if it is another', () => {
  assert.equal(scoreText({ score: null, shaped_score: null }), '');
  assert.equal(scoreText({ score: 1.5, shaped_score: null }), 'score 1.5');
  assert.equal(scoreText({ score: 1.5, shaped_score: 1.5 }), 'score 1.5');
  assert.match(scoreText({ score: 1.5, shaped_score: 0 }), /^score 1.5, after scaling, limit and penalties 0$/);
});

test('good and bad have their own colours, other scales left and right', () => {
  assert.match(background(0.5, { higher_is_better: true }), /--lab-good\) calc\(0.5 \*/);
  assert.match(background(-1, { higher_is_better: true }), /--lab-bad\) calc\(1 \*/);
  assert.match(background(0.5, { higher_is_better: false }), /--lab-left/);
  assert.match(background(-0.5, { higher_is_better: false }), /--lab-right/);
});

test('a score with its change since the base', () => {
  assert.equal(scoreBadge('score', null, 1), null);
  assert.deepEqual(scoreBadge('score', 1.25, null), { text: '1.25', title: 'score now', style: '' });
  assert.deepEqual(scoreBadge('gold', 1, 0.5), {
    text: '1 (+0.5)',
    title: 'gold now; 0.5 at the start',
    style: 'good',
  });
  assert.deepEqual(
    [0.5, 0.48, 0.4].map((value) => [scoreBadge('score', value, 0.5).text, scoreBadge('score', value, 0.5).style]),
    [
      ['0.5', ''],
      ['0.48 (−0.02)', ''],
      ['0.4 (−0.1)', 'bad'],
    ],
  );
});

test('the time of an activity says what takes it', () => {
  assert.equal(activityText('paused', 'Paused. Then resume.', 14), 'Paused. Then resume. (paused for 14 s)');
  assert.equal(
    activityText('queued', 'Waits until run 3 has ended.', 75),
    'Waits until run 3 has ended. (waiting for 1 min 15 s)',
  );
  assert.equal(activityText('running', 'Scoring 128 texts …', 3), 'Scoring 128 texts … (3 s so far)');
  assert.equal(activityText('done', 'Finished.', null), 'Finished.');
  assert.equal(activityText('running', '', 3), '');
});

test('Stop asks about a step that takes long', () => {
  const run = /** @type {any} */ ({ status: 'running', step: 3, total_steps: 13 });
  const text = 'Stop does not wait for step 4, which takes about 1 min 30 s. Resume would begin that step again.';
  assert.equal(droppedText({ run, eta_s: 900 }), text);
  assert.equal(droppedText({ run, eta_s: 49 }), '');
  assert.equal(droppedText({ run, eta_s: null }), '');
  assert.equal(droppedText({ run: { ...run, status: 'paused' }, eta_s: 900 }), '');
});

test('the step of the samples', () => {
  assert.deepEqual([null, 0, 7].map(stepText), ['', 'step 0: base', 'step 7']);
});

test('a setting fits into its field', () => {
  assert.equal(settingText(0.25, null), '0.25');
  assert.equal(settingText(0.25, undefined), '0.25');
  assert.equal(settingText(0.25, 0.019432), '0.0194');
  assert.equal(settingText(0.25, 3e-11), '0');
  assert.equal(settingText(1e-4, 0.00003123), '0.000031');
  assert.equal(settingText(1e-4, 0), '0');
});

test('the axes of a curve', () => {
  const { xaxis, yaxis } = axisRanges({ lastStep: 100, min: 0, max: 2 }, []);
  assert.deepEqual(xaxis.autorangeoptions, { minallowed: 0, maxallowed: 104 });
  assert.deepEqual(yaxis, { rangemode: 'nonnegative', autorangeoptions: {} });
  const marked = axisRanges({ lastStep: 2, min: -1, max: 2 }, [{ step: 4, text: 'paused' }]);
  assert.equal(marked.xaxis.autorangeoptions.maxallowed, 4.6);
  assert.equal(marked.yaxis.rangemode, 'normal');
  const constant = (value) => axisRanges({ lastStep: 9, min: value, max: value }, []).yaxis.autorangeoptions;
  assert.deepEqual(constant(0), { minallowed: 0, maxallowed: 1 });
  assert.deepEqual(constant(4), { minallowed: 0, maxallowed: 5 });
  assert.deepEqual(constant(-4), { minallowed: -5, maxallowed: 1 });
  const atLeast1 = (min, max) => axisRanges({ lastStep: 9, min, max }, [], 1).yaxis.autorangeoptions;
  assert.deepEqual(atLeast1(-0.015, 0.02), { include: 1 }); // noise does not look like a fall
  assert.deepEqual(atLeast1(0, 0), { minallowed: 0, include: 1 });
  assert.deepEqual(atLeast1(-0.04, -0.04), { minallowed: -0.05, include: 1 }); // not 1 below
  assert.deepEqual(atLeast1(0, 1.5), {});
});

test('changes at one step share a marker, and only the newest three have a label', () => {
  const changes = [1, 2, 3, 4, 4].map((step, i) => ({ step, text: `change ${i}` }));
  const { shapes, annotations, ...layout } = changeMarkers(changes, 10, STYLE);
  assert.deepEqual(
    shapes.map(({ x0 }) => x0),
    [1.5, 2.5, 3.5, 4.5],
  );
  assert.deepEqual(
    annotations.map(({ text, yshift }) => [text, yshift]),
    [
      ['change 1', 11],
      ['change 2', 22],
      ['change 3, change 4', 0],
    ],
  );
  assert.deepEqual(layout, { 'margin.t': 39 });
  assert.deepEqual(changeMarkers([], 10, STYLE), { shapes: [], annotations: [], 'margin.t': 6 });
});

test('new labels have a short line without a label', () => {
  const { shapes, annotations } = changeMarkers(
    [
      { step: 2, text: '' },
      { step: 3, text: 'beta' },
    ],
    10,
    STYLE,
  );
  assert.deepEqual(
    shapes.map(({ x0, y1 }) => [x0, y1]),
    [
      [3.5, 1],
      [2.5, 0.05],
    ],
  );
  assert.equal(annotations.length, 1);
});

test('a label is inside the figure, and the axis ends with the last marker', () => {
  const sides = [1, 9].map((step) => changeMarkers([{ step, text: 'a' }], 10, STYLE).annotations[0].xanchor);
  assert.deepEqual(sides, ['left', 'right']);
  assert.equal(changeMarkers([{ step: 10, text: 'a' }], 10, STYLE)['xaxis.autorangeoptions.maxallowed'], 10.6);
});

test('many changes at one step are counted, and their markup is no markup', () => {
  const text = (...texts) =>
    changeMarkers(
      texts.map((one) => ({ step: 1, text: one })),
      4,
      STYLE,
    ).annotations[0].text;
  assert.equal(text('beta 0.1 → 0.2', 'lr 0.0001 → 0.0002', 'paused'), '3 changes');
  assert.equal(text('<b>&'), '&lt;b>&amp;');
  assert.equal(text('paused', 'paused'), 'paused');
});

test('a long curve has no dots', () => {
  assert.deepEqual([lineMode(Array(300)), lineMode(Array(301))], ['lines+markers', 'lines']);
});

// ---- the form that starts a run

const STATE = {
  models: [{ id: 3, label: '3: 40 labels', note: 'It learns from labels.' }],
  default_id: 3,
  default_reason: '',
  labels_text: '',
  labels_missing: 0,
  training_progress: null,
  training_text: '',
  active_runs: [],
};
const MODEL = STATE.models[0];

test('another algorithm keeps what a person has changed', () => {
  const before = { algorithm: 'ppo', steps: '40', minibatches: '4', lr: '0.001' };
  const after = { algorithm: 'rloo', steps: '40', minibatches: '1', lr: '0.001' };
  const shown = { ...before, steps: '12', lr: 'abc', reward_terms: 'json' };
  assert.deepEqual(keepEdits(shown, before, after), { algorithm: 'rloo', steps: '12', minibatches: '1', lr: 'abc' });
});

test('a setting that the algorithm does not read is disabled and shows its default', () => {
  const values = { steps: '12', cliprange: '0.3', lam: '0.9' };
  const defaults = { steps: '40', cliprange: '0.2', lam: '0.95' };
  assert.deepEqual(fieldProperties(values, defaults, 'rloo', { cliprange: ['ppo', 'grpo'], lam: ['ppo', 'rloo'] }), {
    steps: { value: '12', interactive: true },
    cliprange: { value: '0.2', interactive: false },
    lam: { value: '0.9', interactive: true },
  });
});

test('texts for PPO-ptx are needed unless its coefficient is 0', () => {
  const used = ['0', '0.0', ' 0 ', '', '0.1', 'much'].map((value) => usesPretrainingTexts({ ptx_coef: value }));
  assert.deepEqual(used, [false, false, false, false, true, true]);
});

test('the size of a step has the name of its setting', () => {
  const size = ['batch_size', 'responses per step'];
  assert.equal(sizeLabel(size, { rollouts: '1' }), 'responses per step');
  assert.equal(sizeLabel(size, {}), 'responses per step');
  assert.equal(sizeLabel(size, { rollouts: '4' }), 'responses per rollout');
  assert.equal(sizeLabel(['label_batch', 'pairs per step'], { rollouts: '4' }), 'pairs per step');
});

test('what a run learns from', () => {
  assert.equal(sourceText(STATE, MODEL, 'ppo', false), MODEL.note);
  assert.match(sourceText(STATE, undefined, 'ppo', false), /^Without a reward model the reward is the sum/);
  assert.match(sourceText(STATE, MODEL, 'dpo', true), /^It learns from labels. dpo learns directly from these labels;/);
  assert.match(sourceText(STATE, undefined, 'sft', true), /^sft learns from labels, and no label here prefers a text/);
  const labelled = { ...STATE, labels_text: '24 labels of people' };
  assert.match(sourceText(labelled, undefined, 'sft', true), /^sft learns from the project's 24 labels of people\./);
});

test('reward models and runs in progress', () => {
  assert.equal(progressText(STATE, MODEL), 'Training continues in the background when this page is closed.');
  const busy = {
    ...STATE,
    models: [{ id: 4, label: '', note: '' }, MODEL],
    default_reason: 'Reward model 3 is preselected.',
    training_text: 'A reward model learns.',
    active_runs: [7, 6],
  };
  assert.equal(
    progressText(busy, MODEL),
    'Reward model 3 is preselected. A reward model learns. A run started now learns from reward model 3 and can be ' +
      'switched to that one later. Run 7, 6 is in progress; this run waits until it has ended.',
  );
  assert.equal(progressText(busy, undefined), 'Run 7, 6 is in progress; this run waits until it has ended.');
});

test('why there is no reward model yet', () => {
  assert.equal(missingModelText({ ...STATE, labels_missing: 1 }), 'Label 1 more pair under Label');
  assert.match(missingModelText(STATE), /^There are enough labels;/);
  const training = { ...STATE, training_text: 'It learns.', labels_missing: 3 };
  assert.equal(missingModelText(training), 'It learns.');
  assert.equal(missingModelText({ ...training, training_progress: 0.25 }), 'It learns. 25 % done.');
});

test('the button names the algorithm', () => {
  assert.equal(startLabel('ppo_penalty'), 'Start PPO PENALTY');
});

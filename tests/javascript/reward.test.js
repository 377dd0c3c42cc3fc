import assert from 'node:assert/strict';
import test from 'node:test';

globalThis.document = /** @type {any} */ ({
  querySelector: () => null,
  addEventListener: () => {},
  body: { classList: { toggle: () => {} } },
});
globalThis.matchMedia = /** @type {any} */ (() => ({ matches: false }));
globalThis.ResizeObserver = /** @type {any} */ (class {});

const { calibrationText } = await import('../../rlhf_lab/ui/reward/report_cards.js');
const { correlationText, effectText } = await import('../../rlhf_lab/ui/reward/attributes.js');
const { predictionsText } = await import('../../rlhf_lab/ui/reward/accuracy.js');
const { nextTrainingText } = await import('../../rlhf_lab/ui/reward/training.js');
const { wordAt } = await import('../../rlhf_lab/ui/reward/words.js');
const { hintText, missingText, putBackText, removedText, takeOutText } =
  await import('../../rlhf_lab/ui/reward/labels_behind.js');

const labels = { human: 12, simulated: 40, goals: { human: 20, simulated: 40 } };

test('when the next reward model is trained', () => {
  const state = { job: null, cancelled: false, labels };
  assert.equal(nextTrainingText(state, 'human'), 'A new one is trained automatically after 8 more labels by people.');
  assert.match(
    nextTrainingText({ ...state, labels: { ...labels, simulated: 39 } }, 'simulated'),
    /after 1 more label by a judge\.$/,
  );
  assert.equal(nextTrainingText(state, 'simulated'), 'It is due and starts automatically.');
  assert.equal(
    nextTrainingText({ ...state, cancelled: true }, 'human'),
    'The last training was cancelled; its labels are kept. A new one is trained automatically after 8 more labels by people.',
  );
  assert.equal(nextTrainingText({ ...state, job: { status_text: 'It waits.' } }, 'human'), 'It waits.');
});

test('the correlation with the length', () => {
  assert.equal(correlationText(null), '');
  assert.match(correlationText(-0.19), /lengths of texts correlate \(−0.19\), over texts of the base model\.$/);
  assert.match(correlationText(0.0026), /hardly correlate \(0\.00\)/);
});

test('what labels say about an attribute', () => {
  const row = { step_text: 'Texts half as long', odds: 1.9, low: 1.1, high: 3.2 };
  const text = 'Texts half as long have ';
  assert.equal(effectText(row), `${text}1.9 times the odds of being preferred (1.1 to 3.2).`);
  assert.equal(
    effectText({ ...row, low: 0.9 }),
    `${text}1.9 times the odds of being preferred (0.9 to 3.2). This may be chance.`,
  );
  const unsure = effectText({ ...row, odds: 0.02, low: 1e-8, high: 2e5 });
  assert.match(unsure, /are less likely to be preferred; too few labels to say how much\. This may be chance\.$/);
  assert.equal(
    effectText({ ...row, odds: 200, low: 90, high: 900 }),
    `${text}over 100 times the odds of being preferred (90 to over 100).`,
  );
  assert.match(effectText({ ...row, odds: null, low: null, high: null }), /^Not measured/);
});

test('calibration', () => {
  const report = (bins, error) => ({ calibration: bins, calibration_error: error });
  assert.equal(calibrationText(report([], null)), '');
  assert.equal(calibrationText(report([[0.9, 0.5, 10]], 0.4)), 'Off by 40 points on average: it is overconfident.');
  assert.equal(calibrationText(report([[0.6, 0.9, 10]], 0.3)), 'Off by 30 points on average: it is underconfident.');
  assert.match(calibrationText(report([[0.6, 0.6, 10]], 0.01)), /well calibrated/);
});

test('predicted votes', () => {
  const none = { right: 0, decided: 0, low: 0, high: 1, chosen_right: 0, chosen_decided: 0 };
  assert.match(predictionsText(none), /^New votes: none yet\./);
  assert.match(predictionsText({ ...none, chosen_right: 2, chosen_decided: 3 }), /harder than most\): 2 of 3\.$/);
  assert.match(
    predictionsText({ ...none, right: 3, decided: 4, low: 0.3, high: 0.95 }),
    /ranked 3 correctly .*\(accuracy 30–95 %\)\.$/,
  );
  assert.match(
    predictionsText({ ...none, right: 30, decided: 40, low: 0.65, high: 0.85 }),
    /ranked 30 correctly .*\(accuracy 75 % \(65–85 %\)\)\.$/,
  );
});

test('the word of a token has all its pieces', () => {
  const tokens = ['Un', 'believ', 'able', ',', ' the', ' ', 'Dra', 'gon', ''];
  const words = tokens.map((_, i) => wordAt(tokens, i));
  assert.deepEqual(words[1], { name: 'Unbelievable,', tokens: [0, 4] });
  assert.deepEqual([words[0], words[3]], [words[1], words[1]]);
  assert.deepEqual(words[4], { name: 'the', tokens: [4, 5] });
  assert.deepEqual(words[7], { name: 'Dragon', tokens: [6, 8] });
  assert.deepEqual(words[8], { name: 'the end, which has read the whole text', tokens: [8, 9] });
});

test('an explanation says what it is of', () => {
  const whole = { word: '', hasAdapter: false, showText: () => {} };
  assert.match(hintText(whole, ''), /adds to the score\.$/);
  assert.match(
    hintText({ ...whole, word: 'sun' }, 'length'),
    /exactly the sum of what the words add.*ignores length\.$/,
  );
  assert.match(hintText({ ...whole, hasAdapter: true }, ''), /explain a head without it\.$/);
});

test('all labels of a pair are taken out and put back together', () => {
  assert.deepEqual([takeOutText(1), putBackText(1)], ['Remove this label', 'Restore it']);
  assert.deepEqual([takeOutText(3), putBackText(3)], ['Remove all 3 labels of this pair', 'Restore all 3']);
  assert.equal(removedText(1), 'Removed; nothing learns from it now:');
  assert.match(removedText(2), /all 2 labels of its pair/);
  assert.equal(missingText(3, 3), '');
  assert.match(missingText(2, 3), /^Only 2 of 3 labels were restored/);
});

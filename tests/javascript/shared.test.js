import assert from 'node:assert/strict';
import test from 'node:test';

import { Storage } from './storage.js';

// What the modules read from the browser when they are imported.
globalThis.localStorage = new Storage();
globalThis.matchMedia = () => ({ matches: false });
globalThis.ResizeObserver = class {};
globalThis.location = { hash: '' };
globalThis.document = {
  querySelector: () => null,
  querySelectorAll: () =>
    ['Label', 'Reward model', 'Train', 'Compare', 'Chat', 'Runs & data', 'People', 'Project'].map(tabOf),
  body: { classList: { toggle: () => {} } },
  addEventListener: () => {},
};
const tabOf = (textContent) => ({ textContent });

const { countAxis, integerTick } = await import('../../rlhf_lab/ui/shared/charts.js');
const { ticks } = await import('../../rlhf_lab/ui/shared/plot.js');
const { isMarked, wordDiff } = await import('../../rlhf_lab/ui/shared/diff.js');
const { cutWithinLine, isKey, shareHeight } = await import('../../rlhf_lab/ui/shared/dom.js');
const { annotatorName, currentTab, earlierName } = await import('../../rlhf_lab/ui/shared/session.js');

test('the new words of a text', () => {
  for (const [before, after, newWords] of [
    ['the cat sat', 'the cat sat', ''],
    ['the cat sat', 'the old cat sat down', 'old down'],
    ['a b c d', 'b d a', 'a'], // the longest common subsequence is "b d"
    ['', 'one two', ''], // nothing in common
    ['a b c d e', 'a b v w x', 'v w x'], // 2 of 5 words are common
    ['a b c d e', 'a b v w x y', ''], // 4 of 11
    ['one two three', 'one', ''], // 1 of 2 on average, and no word is new
    ['the reply made him dance', 'his friend bought the bread', ''], // only "the"
    ['one two', '', ''],
    ['A  cat\n', 'a cat', 'a'], // case counts, space does not
  ]) {
    const words = wordDiff(before, after);
    const joined = (items) => items.map(({ word }) => word).join(' ');
    assert.deepEqual([joined(words), joined(words.filter(({ isNew }) => isNew))], [after, newWords]);
  }
});

test('whether two texts have marks', () => {
  assert.ok(isMarked('a b c', 'a b')); // in the first text
  assert.ok(isMarked('a b', 'a b c'));
  assert.ok(!isMarked('a b', 'a b'));
  assert.ok(!isMarked('a b', 'c d'));
});

test('very long texts are not compared', () => {
  const words = wordDiff('a '.repeat(501), 'b '.repeat(500)); // 250,500 cells
  assert.equal(words.length, 500);
  assert.ok(!words.some(({ isNew }) => isNew));
});

test('two texts share the height of a phone', () => {
  const shared = (...heights) => shareHeight(heights, 200);
  assert.deepEqual(shared(100, 50), [100, 100]); // all of it, also for short texts: what is below them stays
  assert.deepEqual(shared(300, 60), [140, 60]);
  assert.deepEqual(shared(60, 300), [60, 140]);
  assert.deepEqual(shared(300, 201), [100, 100]);
  assert.deepEqual(shareHeight([80, 80], 201), [100, 101]);
});

test('a scrolled text ends within a line', () => {
  assert.equal(cutWithinLine(100, 20), 94);
  assert.equal(cutWithinLine(94, 20), 94);
  assert.equal(cutWithinLine(93, 20), 74);
  assert.equal(cutWithinLine(93, NaN), 93); // of a browser that does not say
});

test('short axes of steps have a tick at every integer', () => {
  assert.deepEqual([integerTick(0, 8), integerTick(3, 11), integerTick(0, 9)], [1, 1, null]);
});

test('an axis of counts begins at 0', () => {
  assert.deepEqual(countAxis(120), { rangemode: 'tozero', dtick: null });
  assert.deepEqual(countAxis(3), { rangemode: 'tozero', dtick: 1 });
});

test('ticks are round, and whole on an axis of whole numbers', () => {
  assert.deepEqual(ticks([1, 2]), [1, 1.5, 2]);
  assert.deepEqual(ticks([1, 2], 1), [1, 2]);
  assert.deepEqual(ticks([0, 2.1], 1), [0, 1, 2]);
  assert.deepEqual(ticks([1, 7], 1), [2, 4, 6]);
  assert.deepEqual(ticks([0, 40], 1), [0, 10, 20, 30, 40]);
  for (let last = 2; last < 300; last += 1) assert.ok(ticks([1, last], 1).every(Number.isInteger), String(last));
});

const TAB_BY_ADDRESS = {
  '': 'label',
  '#runs': 'runs-data',
  '#data': 'runs-data',
  '#run': 'runs-data',
  '#Runs': 'runs-data',
  '#Runs%20%26%20data': 'runs-data',
  '#runs%20&%20data': 'runs-data',
  '#runs-and-data': 'runs-data',
  '#reward': 'reward-model',
  '#rewards': 'reward-model',
  '#model': 'reward-model',
  '#reward_model': 'reward-model',
  '#training': 'train',
  '#comp': 'compare',
  '#projects': 'project',
  '#people/': 'people',
  '#labels': 'label',
  '#nonsense': 'label',
  '#%': 'label',
};

test('the address opens a tab by a short name', () => {
  for (const [hash, tab] of Object.entries(TAB_BY_ADDRESS)) {
    globalThis.location.hash = hash;
    assert.equal(currentTab(), tab, hash);
  }
});

test('a browser keeps the name that it made', () => {
  const name = annotatorName();
  assert.match(name, /^visitor-.{8}$/);
  assert.deepEqual([annotatorName(), earlierName()], [name, null]);
  globalThis.document.querySelector = () => ({ content: 'Ann' }); // a name that is sent with the page
  assert.deepEqual([annotatorName(), earlierName()], ['Ann', name]);
});

test('the keys of an input method are not meant for the page', () => {
  assert.equal(isKey({ key: 'Enter' }, 'Enter'), true);
  assert.equal(isKey({ key: 'Escape' }, 'Enter'), false);
  assert.equal(isKey({ key: 'Enter', isComposing: true }, 'Enter'), false);
  assert.equal(isKey({ key: 'Enter', keyCode: 229 }, 'Enter'), false);
});

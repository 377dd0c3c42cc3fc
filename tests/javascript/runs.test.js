import './storage.js';
import assert from 'node:assert/strict';
import test from 'node:test';

import { freeSlot, nextSlots } from '../../rlhf_lab/ui/runs/slots.js';

const entries = (slots) => [...slots];

test('the first list of a project begins with three runs', () => {
  assert.deepEqual(entries(nextSlots(new Map([[1, 0]]), null, [9, 8, 7, 6], 8)), [
    [9, 0],
    [8, 1],
    [7, 2],
  ]);
  assert.deepEqual(entries(nextSlots(new Map(), null, [], 8)), []);
});

test('a new run gets the first free color, a run that is gone frees its own afterwards', () => {
  const slots = new Map([
    [1, 0],
    [2, 2],
  ]);
  assert.deepEqual(entries(nextSlots(slots, [2, 1], [3, 2, 1], 8)), [
    [1, 0],
    [2, 2],
    [3, 1],
  ]);
  assert.deepEqual(entries(nextSlots(slots, [2, 1], [3, 2], 8)), [
    [2, 2],
    [3, 1],
  ]);
  assert.deepEqual(entries(slots), [
    [1, 0],
    [2, 2],
  ]);
});

test('a run that somebody left out stays out, and there are no more runs than colors', () => {
  assert.deepEqual(entries(nextSlots(new Map([[1, 0]]), [2, 1], [2, 1], 8)), [[1, 0]]);
  assert.deepEqual(entries(nextSlots(new Map([[1, 0]]), [1], [4, 3, 2, 1], 3)), [
    [1, 0],
    [4, 1],
    [3, 2],
  ]);
  assert.equal(
    freeSlot(
      new Map([
        [1, 1],
        [2, 0],
      ]),
      2,
    ),
    undefined,
  );
});

test('names of metrics of a file are text in a chart, and no keys of the titles', async () => {
  const globals = /** @type {any} */ (globalThis);
  globals.matchMedia ??= () => ({ matches: false });
  globals.ResizeObserver ??= class {};
  const body = { classList: { toggle() {} } };
  globals.document ??= { body, querySelector: () => null, addEventListener() {} };
  globals.getComputedStyle ??= () => ({ fontSize: '16px', getPropertyValue: () => '' });
  const drawn = [];
  globals.window ??= globals;
  globals.window.Plotly = { react: (node, traces, layout) => drawn.push(layout.yaxis.title.text) };
  const { Comparison } = await import('../../rlhf_lab/ui/runs/comparison.js');
  for (const metric of ['<a href="https://example.org">x</a>', '__proto__', 'constructor', 'kl']) {
    const card = Object.assign(Object.create(Comparison.prototype), {
      data: { titles: { kl: ['KL', 'nats'] }, layout: {}, config: {} },
      reply: { metric },
      part: () => ({ setAttribute() {} }),
    });
    card.drawMetric([]);
  }
  assert.deepEqual(drawn, ['&lt;a href="https://example.org">x&lt;/a>', '__proto__', 'constructor', 'KL (nats)']);
});

import assert from 'node:assert/strict';
import test from 'node:test';

import { Storage } from './storage.js';

const { forgetRequest, keepRequest, keptRequests, unansweredOnce } =
  await import('../../rlhf_lab/ui/label/kept_requests.js');
const { Sender } = await import('../../rlhf_lab/ui/label/sender.js');
const texts = await import('../../rlhf_lab/ui/label/texts.js');

const VOTE = { name: 'vote', uuid: 'u1', by: 'ann', project_created_at: 5 };
const ONCE = { name: 'undo', before: 7, by: 'ann' };

// A sender whose requests the test answers: sent[i].{name, fields, reply(value), fail(message, isReply)}. log: what the
// screen was told.
function begin(t) {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  globalThis.localStorage = new Storage();
  globalThis.sessionStorage = new Storage();
  const sent = [];
  const log = [];
  const api = new Proxy(
    {},
    {
      get: (_, name) => (fields) =>
        new Promise((resolve, reject) => {
          const fail = (message, isReply) => reject(Object.assign(new Error(message), { isReply }));
          sent.push({ name, fields, reply: resolve, fail });
        }),
    },
  );
  const screen = {
    onReadyChange: () => {},
    applyReply: (reply, { isResumed, once }) => {
      log.push(['reply', reply, isResumed, once?.name ?? '']);
      return reply === 'other visit';
    },
    resumeKept: () => log.push(['resume']),
    showUnstored: (request, refusal) => log.push(['unstored', request.uuid, refusal]),
    showUnanswered: (once) => log.push(['unanswered', once.name]),
    showRefusal: (text) => log.push(['refusal', text]),
  };
  const sender = new Sender(api, screen);
  const tick = (ms) => t.mock.timers.tick(ms);
  return { sender, sent, log, tick, names: () => sent.map((one) => one.name) };
}
const settled = () => new Promise((resolve) => setImmediate(resolve));

test('a vote is sent again with growing timeouts until it is stored', async (t) => {
  const { sender, sent, log, tick } = begin(t);
  sender.sendKept(VOTE);
  for (const [i, seconds] of [5, 10, 20, 40, 40].entries()) {
    sent[i].fail('no connection', false); // the timer decides, so that an offline page does not send without a pause
    await settled();
    tick(1000 * seconds - 1);
    assert.equal(sent.length, i + 1);
    tick(1);
    assert.equal(sent.length, i + 2);
  }
  assert.deepEqual(new Set(sent.map((one) => one.fields.uuid)), new Set(['u1']));
  assert.deepEqual(keptRequests(5), [VOTE]);
  assert.deepEqual(keptRequests(6), []);
  sent.at(-1).reply('stored');
  await settled();
  assert.deepEqual(keptRequests(5), []);
  assert.deepEqual(log.slice(-2), [['reply', 'stored', true, ''], ['resume']]);
  tick(100_000);
  assert.equal(sent.length, 6);
});

test('nothing else is sent while a reply is awaited', async (t) => {
  const { sender, sent, names } = begin(t);
  sender.sendKept(VOTE);
  sender.send('opened');
  sender.sendOnce(ONCE, {});
  sender.sendKept({ ...VOTE, uuid: 'u2' });
  assert.deepEqual(names(), ['vote']);
  assert.equal(keptRequests(5).length, 1);
  sent[0].reply('stored');
  await settled();
  sender.sendOnce(ONCE, {});
  assert.deepEqual(names(), ['vote', 'undo']);
});

test('a late reply to the vote counts, one to an earlier request does not', async (t) => {
  const { sender, sent, log, tick } = begin(t);
  sender.send('opened');
  tick(5000); // no reply: the state is requested again
  sent[1].reply('state');
  await settled();
  sender.sendKept(VOTE);
  sent[0].reply('late');
  sent[0].fail('late', true);
  await settled();
  assert.deepEqual(log, [['reply', 'state', false, '']]);
  assert.equal(keptRequests(5).length, 1);
  tick(5000);
  sent[2].reply('stored'); // the reply to the first attempt
  await settled();
  assert.deepEqual(keptRequests(5), []);
});

test('a refused vote is kept, and sent again after the timeout', async (t) => {
  const { sender, sent, log, tick } = begin(t);
  sender.sendKept(VOTE);
  sent[0].fail('Too many requests.', true);
  await settled();
  assert.deepEqual(log, [['unstored', 'u1', 'Too many requests.']]);
  assert.equal(keptRequests(5).length, 1);
  tick(5000);
  assert.equal(sent.length, 2);
  sent[1].reply('stored');
  await settled();
  assert.equal(sender.refusal, '');
});

test('a discarded vote is not sent again', async (t) => {
  const { sender, sent, tick } = begin(t);
  sender.sendKept(VOTE);
  sender.discard({ ...VOTE, uuid: 'u9' }); // another one, of an earlier visit
  assert.equal(keptRequests(5).length, 1);
  sender.discard(VOTE);
  assert.deepEqual([keptRequests(5), sender.awaitsReply], [[], false]);
  tick(60_000);
  assert.equal(sent.length, 1);
});

test('an undo is sent once; then the state is requested, which tells whether it was done', async (t) => {
  const { sender, sent, log, tick, names } = begin(t);
  sender.sendOnce(ONCE, { by: 'ann' });
  assert.deepEqual(unansweredOnce(), ONCE);
  tick(5000);
  assert.deepEqual(names(), ['undo', 'opened']);
  tick(10_000);
  assert.deepEqual(names(), ['undo', 'opened', 'opened']);
  sent[2].reply('state');
  await settled();
  assert.deepEqual(log, [
    ['unanswered', 'undo'],
    ['unanswered', 'undo'],
    ['reply', 'state', false, 'undo'],
  ]);
  assert.equal(unansweredOnce(), null);
});

test('a second reply does not clear the outcome, but a late one to the action itself counts', async (t) => {
  const { sender, sent, log, tick } = begin(t);
  sender.sendOnce(ONCE, {});
  tick(5000);
  tick(10_000);
  sent[2].reply({ notice: '' });
  await settled();
  assert.deepEqual(log.at(-1), ['reply', { notice: '' }, false, 'undo']);
  const count = log.length;
  sent[1].reply({ notice: '' });
  await settled();
  assert.equal(log.length, count);
  sent[0].reply({ notice: 'Your last answer was undone.' });
  await settled();
  assert.equal(log.length, count + 1);
});

test('a refused action is not repeated, and others are possible again', async (t) => {
  const { sender, sent, log, tick, names } = begin(t);
  sender.sendOnce(ONCE, {});
  sent[0].fail('Not now.', true);
  await settled();
  assert.deepEqual([log, unansweredOnce(), sender.awaitsReply], [[['refusal', 'Not now.']], null, false]);
  tick(60_000);
  sender.send('opened');
  sent[1].fail('No name.', true); // the state is requested again, because without it the screen is empty
  await settled();
  tick(5000);
  assert.deepEqual(names(), ['undo', 'opened', 'opened']);
});

test('the outcome of an action without a reply', () => {
  const state = (id) => ({ pair: { id } });
  assert.match(texts.outcomeOfOnce(ONCE, state(7), 'ann'), /^"Undo" is not done/);
  assert.match(texts.outcomeOfOnce(ONCE, state(8), 'ann'), /something has changed since/);
  assert.equal(texts.outcomeOfOnce(ONCE, state(8), 'bob'), '');
});

test('every action that is sent once says so, and whether it was done', () => {
  const state = { pair: { id: 1 }, simulated: 40 };
  const earlier = { undo: 1, redo: 1, judge: 40 };
  const labels = { undo: 'Undo', redo: 'Redo', judge: 'Judge labels 40 more' };
  assert.deepEqual(Object.keys(texts.SENT_ONCE), Object.keys(labels));
  for (const [name, label] of Object.entries(labels)) {
    const once = { name, before: earlier[name], by: 'ann' };
    assert.ok(texts.unansweredText(once).startsWith(`The lab does not reply to "${label}". It is not sent again`));
    assert.ok(texts.outcomeOfOnce(once, state, 'ann').startsWith(`"${label}" is not done.`));
    assert.match(texts.outcomeOfOnce({ ...once, before: 0 }, state, 'ann'), /something has changed since/);
  }
});

test('the texts about what is not stored yet', () => {
  const kept = /The lab does not reply\. The page keeps your answer, also if you close it, and sends it again/;
  assert.match(texts.unstoredText(VOTE, ''), kept);
  assert.match(
    texts.unstoredText({ name: 'amend' }, 'No.'),
    /^Your change of an earlier answer .* No\. The page keeps/,
  );
  assert.match(texts.foreignText(VOTE, false), /It is kept, and sent when ann labels here again\.$/);
  assert.match(texts.foreignText(VOTE, true), /With the join code you get a new name, and the answer is not sent\.$/);
});

test('kept requests are those of the project until they are forgotten', () => {
  globalThis.localStorage = new Storage();
  const [first, second, other] = ['a', 'b', 'c'].map((uuid) => ({ ...VOTE, uuid }));
  other.project_created_at = 6;
  for (const request of [first, second, other]) keepRequest(request);
  assert.deepEqual(keptRequests(5), [first, second]);
  keepRequest({ ...first, choice: 'tie' }); // the same uuid: replaces it
  forgetRequest('b');
  assert.deepEqual(keptRequests(5), [{ ...first, choice: 'tie' }]);
  assert.deepEqual(keptRequests(6), [other]);
});

test('what the instant reward model waits for', () => {
  const figures = { needed: 6, decided: 2, waiting: 5, engine_work: '', right: null, pending: false, prediction: null };
  assert.match(texts.waitingText(figures, ''), /starts after 6 answers that prefer one text; so far there are 2/);
  const unread = { ...figures, decided: 6, waiting: 7 };
  assert.equal(
    texts.waitingText(unread, ''),
    'does not know the last 7 answers yet: the engine has to read the texts first.',
  );
  const late = { ...unread, decided: 30, waiting: 12, right: 20, engine_work: 'training the reward model' };
  const isTraining = 'does not know the last 12 answers yet: the engine is training the reward model.';
  assert.equal(texts.waitingText(late, ''), isTraining);
  assert.equal(texts.waitingText(late, 'u'), isTraining);
  assert.match(texts.waitingText({ ...late, waiting: 1 }, 'u'), /^does not know the last answer yet/);
  assert.equal(texts.waitingText({ ...late, prediction: {} }, 'u'), '');
  const fitted = { ...figures, decided: 8, waiting: 0, right: 6 };
  assert.equal(texts.waitingText(fitted, ''), 'predicts your next answer; you see it afterwards.');
  const isSimulated = 'has learned from simulated labels only. It predicts your next answer; you see it afterwards.';
  assert.equal(texts.waitingText({ ...fitted, simulated: true }, ''), isSimulated);
  assert.match(texts.waitingText({ ...fitted, pending: true }, 'u'), /is being trained on your answer/);
  assert.equal(texts.waitingText({ ...fitted, prediction: {} }, 'u'), '');
});

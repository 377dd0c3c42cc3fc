// Blind pairs on the screen "Compare", of a blind test or a tournament: the two texts with their buttons and keys,
// requests to the lab, and answers that the browser stores until the lab has confirmed them. name: prefix of data-do
// and of storage keys; idName: a key in an answer's payload; fetchState({[idName], annotator}) -> state, with
// the `pair` to judge; choiceByKey: further keys; mayUseKeys(), isShown(): whether keys are active and the state is
// needed; show(), updateButtons(): draw.
import { el, isShortcut, promptView, showNotice } from '../shared/dom.js';
import { unwrap } from '../shared/poll.js';
import { annotatorName, getItem, setItem } from '../shared/session.js';

export function createBlindPairs({
  name,
  idName,
  answerEvent,
  card,
  stage,
  notice,
  trigger,
  fetchState,
  show,
  choiceByKey = {},
  updateButtons = () => {},
  mayUseKeys = () => true,
  isShown = () => true,
}) {
  const REPLY_TIMEOUT_MS = 6000;
  const KEPT = `rlhf-lab-${name}-answer`;
  const NOTICE = `${name}-notice`;
  const STORED = 'Your last answer is stored now.';
  const keys = { 1: 'left', arrowleft: 'left', 2: 'right', arrowright: 'right', 0: 'tie', '=': 'tie', ...choiceByKey };
  const unconfirmedAnswer = () => JSON.parse(localStorage.getItem(KEPT) || 'null');
  const forgetAnswer = () => localStorage.removeItem(KEPT);
  const pairs = {
    state: null,
    selectedId: unconfirmedAnswer()?.[idName] ?? null,
    send,
    answer,
    handleReply,
    refresh,
    reset,
    showNoReply,
    view,
    choiceButton,
    drawButtons,
  };
  let pending = null; // {id, isAnswer, isResend} of the request that waits for its reply
  let replyCount = 0;
  let isFetching = false;

  // onNoReply(): shows a message. Gradio may reload the page when the connection is lost, so the message is stored for
  // this tab.
  function send(event, fields, onNoReply, isResend = false) {
    if (pending) return;
    const sent = (pending = { id: Date.now(), isAnswer: Boolean(fields.choice), isResend });
    showNoReply('');
    drawButtons();
    trigger(event, { request_id: sent.id, annotator: annotatorName(), ...fields });
    setTimeout(() => {
      if (pending === sent) {
        pending = null;
        onNoReply();
        drawButtons();
        refresh();
      }
    }, REPLY_TIMEOUT_MS);
  }

  function showNoReply(text) {
    setItem(NOTICE, text);
    showNotice(notice, text);
  }

  function drawButtons() {
    for (const button of card.querySelectorAll('button:not(.lab-offline-too)')) button.disabled = Boolean(pending);
    updateButtons();
  }

  // This browser stores an answer until the lab has replied. If the lab can be reached again and still shows that pair,
  // the answer is sent again.
  function answer(choice) {
    const { id, annotator, pair } = pairs.state || {};
    if (!pair || pending) return;
    localStorage.setItem(KEPT, JSON.stringify({ by: annotator, [idName]: id, pair, choice }));
    sendAnswer(choice);
  }
  function sendAnswer(choice, isResend) {
    send(answerEvent, { [idName]: pairs.state.id, token: pairs.state.pair.token, choice }, showKept, isResend);
  }

  function showKept() {
    if (!unconfirmedAnswer()) return;
    showNotice(
      notice,
      'Your last answer is not stored yet, because the lab does not reply. The page keeps your answer, also ' +
        'if you close it, and sends it again until it is stored.',
    );
    notice.append(
      ' ',
      el(
        'button.lab-button.small.lab-offline-too',
        { type: 'button', 'data-do': `${name}-discard`, onclick: discardAnswer },
        'Discard it',
      ),
    );
  }

  function discardAnswer() {
    forgetAnswer();
    pending = null;
    drawButtons();
    showNoReply('It is no longer sent. If the lab has already received it, it counts.');
  }

  // If the pair on screen is that of the unconfirmed answer, the lab never stored the answer.
  function resendAnswer() {
    const unconfirmed = unconfirmedAnswer();
    const { id, annotator, pair = null } = pairs.state;
    if (!unconfirmed || pending || unconfirmed[idName] !== id || unconfirmed.by !== annotator) return;
    if (JSON.stringify(unconfirmed.pair) === JSON.stringify(pair)) {
      sendAnswer(unconfirmed.choice, true);
      showKept();
      return;
    }
    forgetAnswer();
    showNotice(notice, STORED);
  }

  // Returns whether the reply belongs to a request of this component. A reply contains the new state, or an error.
  function handleReply(reply) {
    if (!pending || reply?.request_id !== pending.id) return false;
    const { isAnswer, isResend } = pending;
    const state = reply[idName.replace('_id', '')];
    pending = null;
    replyCount += 1;
    if (isAnswer) forgetAnswer();
    if (reply.error) {
      showNotice(notice, reply.error, true);
      refresh();
    } else {
      pairs.selectedId = state.id;
      setState(state);
      showNotice(notice, reply.message || (isResend ? STORED : ''));
    }
    drawButtons();
    return true;
  }

  async function refresh() {
    if (isFetching || !(isShown() || unconfirmedAnswer())) return;
    isFetching = true;
    const replyCountBefore = replyCount;
    const requestedId = pairs.selectedId;
    try {
      const state = await unwrap(fetchState({ [idName]: requestedId, annotator: annotatorName() }));
      if (replyCountBefore === replyCount && !pending && requestedId === pairs.selectedId) {
        setState(state);
        resendAnswer();
      }
    } catch (error) {
      /* the next poll tries again */
    } finally {
      isFetching = false;
    }
    if (requestedId !== pairs.selectedId && !pairs.state) await refresh(); // another one was selected in the meantime
  }

  function setState(state) {
    pairs.state = state;
    if (state.id === null) {
      pairs.selectedId = null;
    } // it was deleted: the next poll shows the newest
    else if (state.pair) pairs.selectedId = state.id; // a newer one does not replace the one being judged
    show();
  }

  // Another project is open.
  function reset() {
    pairs.selectedId = pairs.state = null;
    stage.replaceChildren();
    showNotice(notice, '');
  }

  // The pair on screen. head, others: contents of the rows above and below it.
  function view(head, others) {
    const { pair } = pairs.state;
    const side = (choice, key) =>
      el(
        `div.lab-card.side.${choice}`,
        {},
        el('p.lab-text.lab-scroll', { dir: 'auto' }, pair[choice] || '(nothing)'),
        choiceButton(choice, 'This one', key),
      );
    return [
      el('div.lab-row', {}, ...head),
      promptView(pair.turns, '.asked.lab-scroll'),
      el('div.sides', {}, side('left', '1'), side('right', '2')),
      el('div.lab-row', {}, choiceButton('tie', 'No difference', '0'), ...others),
    ];
  }
  function choiceButton(choice, label, key) {
    return el(
      'button.lab-button',
      { type: 'button', 'data-do': `${name}-${choice}`, onclick: () => answer(choice) },
      label,
      el('kbd', {}, key),
    );
  }

  document.addEventListener('keydown', (event) => {
    const choice = keys[event.key.toLowerCase()];
    if (!choice || !pairs.state?.pair || !stage.checkVisibility() || !mayUseKeys() || !isShortcut(event)) return;
    event.preventDefault();
    answer(choice);
  });
  showNotice(notice, getItem(NOTICE));
  return pairs;
}

// What the screen Label says, as text.
import { displayName, plural } from '../shared/format.js';

export const STRENGTHS = ['slightly', 'clearly', 'much'];
export const CHOICE_LABELS = {
  left: 'first is better',
  right: 'second is better',
  tie: 'equally good',
  both_bad: 'both bad',
  skip: 'skipped',
};

// Actions that must not be sent twice: the button's label, and the part of the page's state that the action changes.
export const SENT_ONCE = {
  undo: ['Undo', (state) => state.pair?.id],
  redo: ['Redo', (state) => state.pair?.id],
  judge: ['Judge labels 40 more', (state) => state.simulated],
};

// Whether an action without a reply was done. before: the part of the state that it changes, as it was then; by: who
// did it.
export function outcomeOfOnce({ name, before, by }, state, person) {
  const [label, value] = SENT_ONCE[name];
  if (by !== person) return '';
  if (value(state) === before) return `"${label}" is not done. Press it again if you still want it.`;
  return `The lab did not reply to "${label}", but something has changed since: check before you press it again.`;
}

export const unansweredText = ({ name }) =>
  `The lab does not reply to "${SENT_ONCE[name][0]}". It is not sent again automatically. When the lab replies, the ` +
  'page says whether it was done.';

// Why a vote or change is not stored yet. refusal: the lab's error; '' if it does not reply.
export function unstoredText({ name }, refusal) {
  const what = name === 'vote' ? 'Your last answer' : 'Your change of an earlier answer';
  const kept = `The page keeps your ${name === 'vote' ? 'answer' : 'change'}, also if you close it`;
  const reason = refusal || 'The lab does not reply.';
  return `${what} is not stored yet. ${reason} ${kept}, and sends it again until it is stored.`;
}

// Why a request of an earlier visit by another person is not sent. isViewer: whether the visitor may not label.
export function foreignText({ name: action, by }, isViewer) {
  const name = displayName(by);
  if (!isViewer) {
    const then = `It is kept, and sent when ${name} labels here again.`;
    return `An answer of ${name} in this browser is not stored yet. ${then}`;
  }
  const what = action === 'vote' ? 'Your last answer' : 'Your change of an earlier answer';
  return (
    `${what} is not stored yet. It is the answer of ${name}, and you are logged out. Log in with the password, ` +
    `account or operator's link of ${name} to send it. With the join code you get a new name, and the answer ` +
    'is not sent.'
  );
}

/** @param {lab.LabelState} state */
export function goalText(state) {
  if (state.labels_to_next <= 0) return state.training_text;
  const next = state.has_model ? 'the reward model is trained again' : 'a reward model is trained';
  return `${state.labels_to_next} more by people and ${next}`;
}

// Replies may arrive in another order; the newest counts stay on screen.
const COUNT_KEYS = [
  ...['counted_at', 'labels', 'simulated', 'next_training_at', 'labels_to_next', 'has_model', 'training_text'],
  'guide_note',
];
export const counts = (reply) => Object.fromEntries(COUNT_KEYS.map((key) => [key, reply[key]]));

// What the instant reward model waits for; '' if there is a prediction to show. uuid: the vote that it is about.
/** @param {lab.InstantFigures} figures @param {string} uuid */
export function waitingText(figures, uuid) {
  const { needed, decided, waiting, engine_work: work, simulated, right, pending, prediction } = figures;
  if (right === null && decided < needed) {
    return (
      `is trained on every answer. It starts after ${needed} answers that prefer one text; so far there ` +
      `${decided === 1 ? 'is' : 'are'} ${decided}.`
    );
  }
  if (uuid && pending) return 'is being trained on your answer …';
  if (uuid && prediction) return '';
  if (!waiting) {
    const source = simulated ? 'has learned from simulated labels only. It ' : '';
    return `${source}predicts your next answer; you see it afterwards.`;
  }
  const which = waiting === 1 ? 'the last answer' : `the last ${waiting} answers`;
  return `does not know ${which} yet: the engine ${work ? `is ${work}` : 'has to read the texts first'}.`;
}

// The verdict on a prediction, on a wide screen and on a phone.
export function verdict({ decided, expected }) {
  if (!decided) return ['Your last answer preferred neither text. Scores:', 'Neither preferred. Scores:'];
  return expected
    ? ['✓ The instant reward model predicted your last answer', '✓ Predicted by the instant reward model']
    : ['✗ The instant reward model predicted the other text', '✗ Not predicted by the instant reward model'];
}

export const disputesText = ({ count }) => `People disagree about ${plural(count, 'pair')}`;

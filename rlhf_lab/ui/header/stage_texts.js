// What the stage says and which sample it shows.
import { timeLeftText } from '../shared/format.js';

const STATES = { running: 'Training', queued: 'Waiting to train', paused: 'Paused', done: 'Training is done' };

// The state of the newest run in words. etaS: seconds until it ends; reward: the reward model, if there is one.
/**
 * @param {lab.RunState | null} run
 * @param {number | null} etaS
 * @param {lab.HeaderReward | null} reward
 */
export function stateText(run, etaS, reward = null) {
  if (!run) return reward ? 'A reward model has learned from the labels' : 'Which text is better? You decide';
  const left = run.status === 'running' && run.step ? timeLeftText(etaS, run.step / run.total_steps, 'about ') : '';
  return `${STATES[run.status] ?? `Run ${run.id}: ${run.status}`} · step ${run.step} of ${run.total_steps}${left}`;
}

// The sample that is the easiest to read from a distance; the same one at every step, because its base text decides.
/** @param {lab.SampleRow[]} rows */
export function shortestRow(rows) {
  const length = (row) => (row.base_text ?? row.text).length;
  return rows.reduce((best, row) => (best && length(best) <= length(row) ? best : row), null);
}

/**
 * A caption without its explanation; a warning keeps the explanation, but not the advice.
 * @param {{ level: string, message: string }} verdict
 */
export function stageCaption({ level, message }) {
  const [since] = message.match(/^(Since [^:]+: )?/); // a change of a setting
  const end = ['warn', 'alert'].includes(level) ? /[;.](?: |$)/ : /[:;.](?: |$)/;
  return since + message.slice(since.length).split(end)[0];
}

/** What blind answers say of a run: once it is known, only which texts people prefer. @param {lab.BrakeView} brake */
export const brakeText = ({ state, text }) =>
  state === 'unknown' ? `Blind answers: ${text}` : text.slice(text.indexOf('. ') + 2);

/** @param {Pick<lab.HeaderStatus, 'people_here'>} status */
export const hereText = ({ people_here: here }) => (here > 1 ? `${here} people here` : '');

const CLASS_STEPS = [
  'People choose the better of two texts.',
  'A reward model learns from their choices.',
  'The language model learns to write what the reward model likes.',
];

/**
 * What a class does before its first run: steps {text, note, state}, of which one is present.
 * @param {Pick<lab.HeaderStatus, 'guide' | 'reward'>} status
 */
export function classSteps({ guide, reward }) {
  const present = { Label: 0, 'Reward model': 1 }[guide?.present] ?? (guide || reward ? 2 : 0);
  return CLASS_STEPS.map((text, i) => ({
    text,
    note: i === present ? (guide?.note ?? '') : '',
    state: i < present ? 'done' : i === present ? 'present' : 'next',
  }));
}

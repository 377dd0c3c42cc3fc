// The last page of Learn: experiments that go wrong on purpose, and their curves while they run.
import { actionButton, html } from '../shared/dom.js';
import { formatNumber } from '../shared/format.js';
import { stepChart } from '../shared/plot.js';
import { operatorOnly } from '../shared/session.js';

/** @type {[string, string, string][]} */
const CURVES = [
  ['score', 'score', 'accent'],
  ['gold', 'gold', 'good'],
  ['kl', 'KL, in nats', 'warn'],
  ['clip_fraction', 'clip fraction', 'muted'],
];

/** @typedef {{ name: string, title: string, look_for: string, explanation: string }} Experiment */

const isDone = (experiment) => experiment !== null && experiment.steps > 0 && experiment.step >= experiment.steps;

// When gold was highest, as a sentence.
export function goldText(curves) {
  if (!curves) return '';
  const at = curves.gold.indexOf(Math.max(...curves.gold));
  return `Gold was highest at step ${curves.steps[at]}, at a KL of ${formatNumber(curves.kl[at], 2)} nats.`;
}

const explanationText = (experiment, { curves }) => `${experiment.explanation} ${goldText(curves)}`;
function charts(curves) {
  const chart = ([name, title, kind]) => stepChart(title, curves.steps, curves[name], kind, { height: 190 });
  return html`<div class="curves">${CURVES.map(chart)}</div>`;
}

/** @param {Experiment} experiment @param {any} running the experiment of the open project */
function card(experiment, running, start) {
  const isOpen = running?.name === experiment.name;
  return html`<section class="experiment" aria-label=${experiment.title}>
    <h3>${experiment.title}</h3>
    <p>${experiment.look_for}</p>
    ${operatorOnly(actionButton(`try-${experiment.name}`, isOpen ? 'Run it again' : 'Run it', start))}
    ${isOpen && !isDone(running) && html`<p class="muted" role="status">${progressText(running)}</p>`}
    ${isOpen && isDone(running) && html`<p class="lab-notice">${explanationText(experiment, running)}</p>`}
    ${isOpen && running.curves && charts(running.curves)}
  </section>`;
}

export function progressText({ step, steps, problem }) {
  if (problem) return `It ended at step ${step}. ${problem}`;
  return steps ? `Step ${step} of ${steps}. The curves grow below.` : 'The reward model is being trained …';
}

/** @param {Experiment[]} experiments @param {(name: string) => void} start */
export const experimentPage = (experiments, start) => ({
  name: 'broken',
  title: 'Broken on purpose',
  uses: '',
  text: [
    'Each of these runs takes one to three minutes on a laptop and goes wrong in its own way. Read first what to ' +
      'look for. The explanation comes when the run has ended.',
    'It opens a new project, which everybody then sees, with a simulated judge’s labels. Yours stays as it is: open ' +
      'it again under Project.',
  ],
  question: 'Run one, and say what goes wrong before the page does.',
  praise: '✓ The run has ended. Were you right?',
  sliders: () => [],
  begin: () => ({}),
  picture: (_, { experiment }) => experiments.map((one) => card(one, experiment, () => start(one.name))),
  facts: () => [],
  isSolved: (_, { experiment }) => isDone(experiment),
});

// The training of reward models: the bar that starts it, and the card of one in progress.
import { actionButton, html, progressBar, selectField, setText } from '../shared/dom.js';
import { plural, timeLeftText } from '../shared/format.js';
import { operatorNotice, operatorOnly } from '../shared/session.js';
import { lossFigure } from './chart_set.js';

const VIEWER_NOTICE = 'Only the operator can train reward models; you can view them.';
const LOSS_HINT =
  'Loss per update; 0.69 is guessing. The validation fit leaves out some prompts and is tested on them. If the ' +
  'adapter helps, a final fit uses all labels.';

/** The source that a training learns from unless another one was chosen. @param {lab.RewardState} state */
export const proposedSource = ({ labels }) => (labels.simulated > labels.human ? 'simulated' : 'human');

/**
 * When the next reward model is trained from these labels.
 * @param {lab.RewardState} state @param {'human' | 'simulated'} source
 */
export function nextTrainingText(state, source) {
  if (state.job) return state.job.status_text;
  const { [source]: count, goals } = state.labels;
  const cancelled = state.cancelled ? 'The last training was cancelled; its labels are kept. ' : '';
  if (count >= goals[source]) return 'It is due and starts automatically.';
  const missing = `${plural(goals[source] - count, 'more label')} by ${source === 'human' ? 'people' : 'a judge'}`;
  return `${cancelled}A new one is trained automatically after ${missing}.`;
}

const buttonText = ({ job }) => (job ? (job.running ? 'Training …' : 'Waiting …') : 'Train reward model');

/**
 * @param {lab.RewardState} state
 * @param {{ source: 'human' | 'simulated', error: string, estimate: string, isDemo: boolean }} view
 * @param {Record<'train' | 'trainAsVisitor' | 'cancel', () => void> & { chooseSource: (source: string) => void }} act
 */
export function trainingBar(state, view, act) {
  const { human, simulated } = state.labels;
  const nextText = nextTrainingText(state, view.source);
  const error = view.error || (state.failed && `The last training failed. ${state.failed}`);
  const sources = [
    ['human', `people's labels (${human})`],
    ['simulated', `simulated labels (${simulated})`],
  ];
  const choose = (event) => act.chooseSource(event.target.value);
  return html`<div class="lab-card">
    ${view.isDemo ? visitorBar(state, nextText, act.trainAsVisitor) : null}
    <div class="lab-row ${view.isDemo ? 'lab-operating' : ''}">
      ${operatorOnly(
        actionButton('train', buttonText(state), act.train, state.models.length ? '' : 'lab-main', {
          disabled: state.job !== null,
        }),
        html`<span class="muted">from</span>`,
        selectField('source', 'labels to learn from', choose, sources, view.source),
        state.job && actionButton('cancel', 'Cancel', act.cancel, ''),
      )}
      <span class="muted lab-grow" data-do="next">${nextText}</span>
      ${!state.job && view.estimate ? html`<p class="muted" data-do="estimate">${view.estimate}</p>` : null}
    </div>
    ${view.isDemo ? null : operatorNotice(VIEWER_NOTICE)}
    ${error ? html`<p class="lab-notice bad" role="alert" data-do="train-error">${error}</p>` : null}
  </div>`;
}

// Demo mode: visitors can train on people's labels with the default settings, before the automatic training.
function visitorBar(state, nextText, trainAsVisitor) {
  const missing = state.labels.visitor_goal - state.labels.human;
  const isEarly = missing > 0 && !state.job;
  const disabled = missing > 0 || state.job !== null;
  return html`<div class="lab-row lab-visitor">
    ${actionButton('visitor-train', buttonText(state), trainAsVisitor, 'lab-main', { disabled })}
    <span class="muted lab-grow">
      ${isEarly ? `You can train it yourself after ${plural(missing, 'more label')}. ${nextText}` : nextText}
    </span>
  </div>`;
}

/** The card of a training in progress, which `updateTraining` fills. losses(): its losses so far. */
export function trainingCard(charts, losses) {
  const label = 'loss of the training in progress, by update';
  return html`<div class="lab-card training" data-do="training">
    <div class="lab-row">
      <h2></h2><span class="muted lab-grow"><span role="status"></span><span class="left"></span></span>
    </div>
    ${progressBar('training of the reward model', 0)}
    <p class="muted note"></p>
    <p class="muted hint">${LOSS_HINT}</p>
    ${charts.create('training', label, lossFigure(losses, 'update of this fit', 160))}
  </div>`;
}

/** @param {any} card @param {lab.Training} job */
export function updateTraining(card, job, charts) {
  const share = Math.round(100 * job.progress);
  const left = timeLeftText(job.eta_s, job.progress, 'about ');
  const stage = job.stage === 'final' ? 'last fit, on all labels' : job.stage || 'reading the texts';
  setText(card.querySelector('[role=status]'), job.running ? stage : job.status_text);
  setText(card.querySelector('.left'), job.running ? ` · ${share} %${left}` : '');
  card.querySelector('h2').textContent = job.running ? 'Training on the labels' : 'Waiting for training to start';
  card.querySelector('.lab-bar').setAttribute('aria-valuenow', share);
  card.querySelector('.lab-bar > i').style.width = `${share}%`;
  card.querySelector('.note').textContent = job.note;
  for (const selector of ['.hint', '.plot']) card.querySelector(selector).hidden = job.loss.length < 2;
  if (job.loss.length > 1) charts.draw('training');
}

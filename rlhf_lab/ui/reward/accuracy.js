// How good the reward models are: the accuracy of the shown one, the curve over their labels, and the list of all.
import { countAxis } from '../shared/charts.js';
import { html, tableHead } from '../shared/dom.js';
import {
  formatAccuracy,
  formatInterval,
  formatMeasured,
  formatPercent,
  isWideInterval,
  momentText,
  plotlyText,
  plural,
} from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { hasCalibration, MIN_CALIBRATION_PAIRS, unseenPairs } from './report_cards.js';

const LINE_COLORS = ['accent', 'right', 'good'];
const OVERFIT_GAP = 0.15;

/** @param {lab.ModelSummary[]} models */
export const measuredModels = (models) => models.filter(({ accuracy }) => accuracy !== null);

/**
 * The accuracy of a model; other measurements are folded away, because the header shows this one.
 * @param {lab.ModelSummary} model @param {lab.RewardReport | null} report @param {lab.RewardState} state
 * @param {boolean | undefined} isOpen whether the others are shown
 */
export function accuracyCard(model, report, state, isOpen) {
  const isMeasured = model.accuracy !== null;
  const isWide = isMeasured && isWideInterval(model);
  return html`<div class="lab-card headline">
    <div>
      <div class="big ${isWide ? 'range' : ''}" data-accuracy=${model.accuracy ?? ''}>
        ${isMeasured ? formatAccuracy(model) : formatPercent(null)}
      </div>
      ${isMeasured ? intervalBar(model) : null}
    </div>
    <div>
      <h2>${term('accuracy', isMeasured ? 'Accuracy on held-out pairs' : 'Accuracy not measured')}</h2>
      ${isWide && html`<p class="warn">Too few labels for a single figure.</p>`}
      <p class="muted">${measurementText(model, report)}</p>
      <p class="muted">${trainedOnText(model, state.default_id)}</p>
      ${report?.note ? html`<p class="warn" data-do="note">${report.note}.</p>` : null}
      ${isMeasured && !isWide && report ? overfitWarning(report.train_accuracy - model.accuracy) : null}
      ${moreToCome(state, report)}
      <details data-do="other-measurements" open=${Boolean(isOpen)}>
        <summary class="muted">Other measurements</summary>
        ${report && !isWide && html`<p>${trainingText(report)}</p>`}
        ${state.instant?.source === model.source ? html`<p data-do="instant">${instantText(state.instant)}</p>` : null}
        <p data-do="predictions">${predictionsText(state.prediction_stats[model.source])}</p>
      </details>
    </div>
  </div>`;
}

function intervalBar(model) {
  const { accuracy, low, high } = model;
  const isWide = isWideInterval(model);
  const position = (share) => `${Math.max(0, Math.min(100, 100 * share))}%`;
  const figure = isWide ? '' : ` ${formatPercent(accuracy)}`;
  const label = `accuracy${figure}, 95 % interval ${formatInterval(low, high)}`;
  return html`<div class="interval" role="img" aria-label=${label}>
    <div class="track">
      <i class="band" style="left: ${position(low)}; width: ${position(high - low)}"></i>
      <i class="chance" style="left: ${position(0.5)}"></i>
      ${isWide ? null : html`<i class="point" style="left: ${position(accuracy)}"></i>`}
    </div>
    <div class="ends" aria-hidden="true"><span>0 %</span><span>50 %: guessing</span><span>100 %</span></div>
  </div>`;
}

function measurementText(model, report) {
  if (model.accuracy === null) return 'Too few labels or prompts to hold some of them out. Label more pairs.';
  if (!report) return '';
  const ties = report.ties ? `, ${plural(report.ties, 'tie')} (or both bad) not counted` : '';
  const interval = isWideInterval(model) ? '' : `95 % interval ${formatInterval(model.low, model.high)}; `;
  const measured =
    report.folds > 1
      ? `cross-validated on ${plural(model.labels, 'label')}${ties} in ${report.folds} folds, grouped by prompt.`
      : `measured on the labels of prompts that were left out of the training${ties}.`;
  const text = interval + measured;
  return text[0].toUpperCase() + text.slice(1);
}

function trainedOnText(model, defaultId) {
  const source = model.source_text; // "people; ignores length", "simulated by cheerful"
  const labels = source.startsWith('people') ? source.replace('people', "people's labels") : `labels ${source}`;
  const use = model.id === defaultId ? ' A new run learns from it.' : '';
  return `Reward model ${model.id}, trained on ${labels}.${use}`;
}

const trainingText = (report) => `It ranks ${formatPercent(report.train_accuracy)} of its training labels correctly.`;

const instantText = (instant) =>
  `The instant reward model, which is trained on every vote: ${formatAccuracy(instant)} of ` +
  `${plural(instant.decided, 'vote')} ranked correctly, each without learning from the votes on its prompt.` +
  (instant.ignores && ` It ignores ${instant.ignores}.`);

function overfitWarning(gap) {
  if (gap <= OVERFIT_GAP) return null;
  const points = plural(Math.round(100 * gap), 'point');
  return html`<p class="muted warn">
    ${points} more on its training labels than on held-out ones: it overfits. Only the held-out ones
    tell how well it ranks new texts.
  </p>`;
}

/** @param {lab.RewardPredictionStats} stats */
export function predictionsText({
  right,
  decided,
  low,
  high,
  chosen_right: chosenRight,
  chosen_decided: chosenDecided,
}) {
  const accuracy = formatMeasured({ accuracy: right / decided, low, high });
  const text = decided
    ? `New votes: of ${plural(decided, 'vote')} on pairs that were new to the reward model of that time, it had ` +
      `ranked ${right} correctly beforehand (accuracy ${accuracy}).`
    : 'New votes: none yet. This line will say how many of them the reward model ranked correctly beforehand.';
  if (!chosenDecided) return text;
  return (
    `${text} In addition, on pairs chosen because they are informative (harder than most): ` +
    `${chosenRight} of ${chosenDecided}.`
  );
}

// A line about the parts that need more labels than there are; these have no card yet.
function moreToCome(state, report) {
  const isAlone = measuredModels(state.models).length < 2;
  const lacksCalibration = report && !report.counts_hidden && !hasCalibration(report);
  const sentences = [
    isAlone && 'The next measured reward model adds a curve that shows whether more labels still help.',
    lacksCalibration &&
      `With ${MIN_CALIBRATION_PAIRS} unseen pairs (there are ${unseenPairs(report)}) its calibration is shown here.`,
  ].filter(Boolean);
  return sentences.length ? html`<p class="muted" data-do="more-to-come">${sentences.join(' ')}</p>` : null;
}

/** @param {lab.ModelSummary[]} models the measured ones */
export function learningCurve(models, charts) {
  const groups = [...new Set(models.map((model) => model.source_text))];
  const badge = (name, i) =>
    html`<span class="lab-badge"><i class="swatch line-${LINE_COLORS[i % LINE_COLORS.length]}"></i>${name}</span>`;
  const label = 'accuracy of the reward models against their number of labels';
  return html`<div class="lab-card">
    <div class="lab-row">
      <h3>Accuracy against labels</h3>
      ${groups.length > 1 ? groups.map(badge) : html`<span class="muted">with 95 % intervals</span>`}
    </div>
    ${charts.create('curve', label, (colors) => curveFigure(models, groups, colors))}
  </div>`;
}

function curveFigure(models, groups, colors) {
  const lowest = Math.min(0.4, ...models.map((model) => model.low - 0.02));
  return {
    traces: groups.map((name, i) => {
      const group = models.filter((model) => model.source_text === name).sort((a, b) => a.labels - b.labels);
      return curveTrace(group, colors[LINE_COLORS[i % LINE_COLORS.length]]);
    }),
    layout: {
      xTitle: 'labels',
      yTitle: 'accuracy',
      xaxis: countAxis(Math.max(...models.map((model) => model.labels))),
      yaxis: { range: [lowest, 1.02], tickformat: '.0%' },
    },
  };
}

function curveTrace(models, color) {
  return {
    x: models.map((model) => model.labels),
    y: models.map((model) => model.accuracy),
    mode: 'lines+markers',
    line: { color, width: 2 },
    marker: { size: 7 },
    error_y: {
      type: 'data',
      symmetric: false,
      array: models.map((model) => model.high - model.accuracy),
      arrayminus: models.map((model) => model.accuracy - model.low),
      thickness: 1.2,
      width: 4,
    },
    text: models.map((model) =>
      plotlyText(`model ${model.id}, ${model.source_text}: ${formatMeasured(model)} at ${model.labels} labels`),
    ),
    hovertemplate: '%{text}<extra></extra>',
  };
}

/**
 * @param {lab.RewardState} state @param {number} shownId
 * @param {(id: number | null) => void} choose null: the one that a new run learns from
 */
export function modelTable({ models, default_id: defaultId }, shownId, choose) {
  const isDefault = shownId === defaultId;
  const row = (model) =>
    html`<tr class=${model.id === shownId ? 'open' : null}>
      <td>
        <button
          type="button" class="lab-button small" data-do="look-${model.id}"
          aria-label="look at reward model ${model.id}" aria-pressed=${String(model.id === shownId)}
          onclick=${() => choose(model.id)}
        >${model.id}</button>
      </td>
      <td>${formatMeasured(model)}</td>
      <td>${model.labels}</td>
      <td>${model.source_text}</td>
      <td>${momentText(model.created_at)}</td>
    </tr>`;
  return html`<div class="lab-card">
    <div class="lab-row">
      <h3>All reward models</h3>
      <span class="muted">
        ${isDefault ? 'press a number to view another one' : `you are viewing number ${shownId}`}
      </span>
      ${
        isDefault
          ? null
          : html`<button type="button" class="lab-button small" data-do="look-at-default" onclick=${() => choose(null)}>
            Back to number ${defaultId}
          </button>`
      }
    </div>
    <div class="scroll lab-scroll" tabindex="0" role="group" aria-label="list of reward models">
      <table>
        ${tableHead(['', 'accuracy (95 % interval)', 'labels', 'from', 'trained'])}
        <tbody>${models.map(row)}</tbody>
      </table>
    </div>
  </div>`;
}

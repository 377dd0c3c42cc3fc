// Cards that show the report of one reward model, which never changes.
import { countAxis } from '../shared/charts.js';
import { html, promptView, textView } from '../shared/dom.js';
import { formatDuration, formatPercent, plural } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { lossFigure } from './chart_set.js';

export const MIN_CALIBRATION_PAIRS = 30; // unseen pairs for a calibration curve
const BINS = { start: -50, end: 50 }; // of the scores, in sd
const DISAGREEMENTS_HINT =
  ' Each was predicted by a model that was not trained on it. They are either mistakes of the annotator or errors of ' +
  'the model. To see the annotators and ask again: Runs & data, Quality of the labels.';

/** @param {lab.RewardReport} report */
export function scoreHistogram(report, charts) {
  return html`<div class="lab-card">
    <div class="lab-row">
      <h3>${term('score', 'Scores of the labelled texts')}</h3>
      <span class="lab-badge"><i class="swatch up"></i>preferred</span>
      <span class="lab-badge"><i class="swatch down"></i>not preferred</span>
    </div>
    ${charts.create('histogram', 'histogram of the scores of preferred and of other texts', (colors) =>
      histogramFigure(report, colors),
    )}
  </div>`;
}

function histogramFigure({ chosen_scores: chosen, rejected_scores: rejected }, colors) {
  const scores = [...chosen, ...rejected].map(([score]) => score);
  const size = Math.max(0.1, Math.round((Math.max(...scores) - Math.min(...scores)) / 1.6) / 10);
  const trace = (counts, color, name) => ({
    type: 'histogram',
    x: counts.map(([score]) => score),
    y: counts.map(([, texts]) => texts),
    histfunc: 'sum',
    marker: { color },
    opacity: 0.6,
    xbins: { ...BINS, size },
    autobinx: false,
    hovertemplate: `${name}: %{y} between %{x}<extra></extra>`,
  });
  const tallest = (counts) => {
    const bins = new Map();
    for (const [score, texts] of counts) {
      const bin = Math.floor((score - BINS.start) / size);
      bins.set(bin, (bins.get(bin) ?? 0) + texts);
    }
    return Math.max(0, ...bins.values());
  };
  return {
    traces: [trace(chosen, colors.left, 'preferred'), trace(rejected, colors.right, 'not preferred')],
    layout: { xTitle: 'score (sd)', yTitle: 'texts', yaxis: countAxis(Math.max(tallest(chosen), tallest(rejected))) },
  };
}

/** @param {lab.RewardReport} report */
export function lossesCard(report, charts) {
  const hasLosses = report.loss.length > 1;
  const time = report.seconds && `total time ${formatDuration(report.seconds)}`;
  const caption = [hasLosses && 'loss of the last fit', time].filter(Boolean).join('; ');
  return html`<div class="lab-card">
    <div class="lab-row"><h3>Training</h3><span class="muted">${caption}</span></div>
    ${hasLosses ? lossCurve(report, charts) : html`<p class="muted" data-do="no-losses">${directFitText(report)}</p>`}
  </div>`;
}

function lossCurve(report, charts) {
  const start = report.warm_start
    ? ' It starts lower, because these updates refine a head that was fitted before.'
    : '';
  const figure = lossFigure(() => report.loss, 'update', 170);
  return html`<p class="muted">0.69 (ln 2) is guessing.${start}</p>
    ${charts.create('losses', 'loss of the last fit over its updates', figure)}`;
}

const directFitText = (report) =>
  'There is no loss curve: the reward model was computed from the labels in one go.' +
  (report.adapter_rejected
    ? ' An adapter of the language model was trained too, but it was not clearly better on held-out labels.'
    : '');

/** @param {lab.RewardReport} report */
export const unseenPairs = (report) => report.calibration.reduce((sum, [, , pairs]) => sum + pairs, 0);
/** @param {lab.RewardReport} report */
export const hasCalibration = (report) => unseenPairs(report) >= MIN_CALIBRATION_PAIRS;

/** @param {lab.RewardReport} report */
export function calibrationText(report) {
  const { calibration, calibration_error: error } = report;
  if (error === null) return '';
  const weighted = calibration.reduce((sum, [predicted, observed, pairs]) => sum + pairs * (predicted - observed), 0);
  const bias = weighted / unseenPairs(report);
  const points = `Off by ${plural(Math.round(100 * error), 'point')} on average`;
  if (error < 0.05) return `${points}: its probabilities are well calibrated.`;
  if (bias > 0.02) return `${points}: it is overconfident.`;
  return bias < -0.02 ? `${points}: it is underconfident.` : `${points}.`;
}

/** @param {lab.RewardReport} report */
export function calibrationCard(report, charts) {
  const label = "share of held-out pairs ranked correctly, by the reward model's confidence";
  return html`<div class="lab-card">
    <div class="lab-row">
      <h3>${term('Calibration')}</h3>
      <span class="muted">on held-out pairs; perfect calibration lies on the line</span>
    </div>
    ${charts.create('calibration', label, (colors) => calibrationFigure(report.calibration, colors))}
    <p class="muted" data-do="calibration">${calibrationText(report)}</p>
  </div>`;
}

function calibrationFigure(bins, colors) {
  const text = ([predicted, observed, pairs]) =>
    `confidence ${formatPercent(predicted)}, accuracy ${formatPercent(observed)}, ${plural(pairs, 'label')}`;
  const diagonal = { mode: 'lines', line: { color: colors.muted, width: 1, dash: 'dash' }, hoverinfo: 'skip' };
  return {
    traces: [
      { x: [0.5, 1], y: [0.5, 1], ...diagonal },
      {
        x: bins.map(([predicted]) => predicted),
        y: bins.map(([, observed]) => observed),
        mode: 'lines+markers',
        line: { color: colors.accent, width: 2 },
        marker: { size: 8 },
        text: bins.map(text),
        hovertemplate: '%{text}<extra></extra>',
      },
    ],
    layout: {
      xTitle: 'confidence',
      yTitle: 'ranked right',
      xaxis: { range: [0.48, 1.02], tickformat: '.0%' },
      yaxis: { range: [-0.03, 1.05], tickformat: '.0%' },
    },
  };
}

/** @param {lab.RewardReport} report */
export function disagreementsCard({ disagreements }) {
  const side = (label, text) => html`<div><span class="muted">${label}</span>${textView(text)}</div>`;
  const listItem = ({ turns, chosen, rejected, probability }) =>
    html`<li>
      ${promptView(turns, 'muted brief')}
      <div class="sides">${side('the label prefers', chosen)}${side('it would have preferred', rejected)}</div>
      <p><span class="lab-badge warn">gave this label ${formatPercent(probability)}</span></p>
    </li>`;
  return html`<details class="lab-card disagreements" data-do="disagreements">
    <summary>
      <strong>Labels that the model disagrees with most (${disagreements.length})</strong>
      <span class="muted">${DISAGREEMENTS_HINT}</span>
    </summary>
    <ol class="lab-scroll">${disagreements.map(listItem)}</ol>
  </details>`;
}

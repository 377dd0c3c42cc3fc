// Cards of the screen "Reward model" that show its report. chart(name, label, figure): see reward.js.
import { integerTick } from '../shared/charts.js';
import { el, promptView } from '../shared/dom.js';
import { formatDuration, formatNumber, formatPercent, plural } from '../shared/format.js';

export const MIN_CALIBRATION_PAIRS = 30; // unseen pairs for a calibration curve

export function lossesCard(report, chart) {
  const hasLosses = report.loss.length > 1;
  const caption = [
    hasLosses && 'loss of the last fit',
    report.seconds && `total time ${formatDuration(report.seconds)}`,
  ]
    .filter(Boolean)
    .join('; ');
  const card = el('div.lab-card', {}, el('div.lab-row', {}, el('h3', {}, 'Training'), el('span.muted', {}, caption)));
  if (!hasLosses) {
    const why = report.adapter_rejected
      ? ' An adapter was also trained, but it was not clearly better on held-out labels.'
      : '';
    card.append(
      el('p.muted', { 'data-do': 'no-losses' }, `Its head was fitted directly, without gradient updates.${why}`),
    );
    return card;
  }
  card.append(
    el(
      'p.muted',
      {},
      '0.69 (ln 2) is guessing.' +
        (report.warm_start ? ' It starts lower, because these updates refine a head that was fitted before.' : ''),
    ),
  );
  card.append(
    chart('losses', 'loss of the last fit over its updates', (c) => ({
      traces: [
        {
          x: report.loss.map((_, i) => i + 1),
          y: report.loss,
          mode: 'lines',
          line: { color: c.accent, width: 2 },
          hovertemplate: '%{y:.3f}<extra></extra>',
        },
      ],
      layout: {
        xTitle: 'update',
        yTitle: 'loss',
        height: 170,
        xaxis: { dtick: integerTick(1, report.loss.length) },
        y: { rangemode: 'tozero' },
      },
    })),
  );
  return card;
}

export function lengthCard(report) {
  const r = report.length_correlation;
  const strength = Math.abs(r);
  const direction = r > 0 ? ['longer', 'shorter'] : ['shorter', 'longer'];
  const text =
    r === null || r === undefined
      ? 'Not measured: all texts are of the same length, or there are too few.'
      : strength < 0.2
        ? 'Length hardly matters to it.'
        : strength < 0.5
          ? `It likes ${direction[0]} texts slightly, and PPO will follow. That is fine if you prefer them too.`
          : `It mostly rewards ${direction[0]} texts, and PPO will write them. If that is not what you want, ` +
            `label pairs where the ${direction[1]} one is better.`;
  const pin = el('i.point');
  pin.style.left = `${50 + 50 * (r || 0)}%`;
  return el(
    'div.lab-card.length',
    {},
    el(
      'div.lab-row',
      {},
      el('h3', {}, 'Influence of length'),
      el('span.muted', {}, 'correlation of score and length over base samples'),
    ),
    r === null || r === undefined
      ? null
      : el(
          'div.interval',
          { 'aria-hidden': 'true' },
          el('div.track', {}, el('i.chance', { style: 'left:50%' }), pin),
          el('div.ends', {}, el('span', {}, '−1: short'), el('span', {}, '0'), el('span', {}, 'long: +1')),
        ),
    el(
      'p',
      { 'data-do': 'length' },
      r === null || r === undefined ? null : el('strong', {}, `${formatNumber(r, 2)}. `),
      text,
    ),
  );
}

export const unseenPairs = (report) => report.calibration.reduce((sum, bin) => sum + bin[2], 0);
export const hasCalibration = (report) => unseenPairs(report) >= MIN_CALIBRATION_PAIRS;

export function calibrationCard(report, chart) {
  const bins = report.calibration;
  const error = report.calibration_error;
  const count = unseenPairs(report);
  const bias = bins.reduce((sum, [predicted, observed, n]) => sum + n * (predicted - observed), 0) / count;
  const text =
    error === null
      ? ''
      : `Off by ${plural(Math.round(100 * error), 'point')} on average${
          error < 0.05
            ? ': its probabilities are well calibrated.'
            : bias > 0.02
              ? ': it is overconfident.'
              : bias < -0.02
                ? ': it is underconfident.'
                : '.'
        }`;
  const card = el(
    'div.lab-card',
    {},
    el(
      'div.lab-row',
      {},
      el('h3', {}, 'Calibration'),
      el('span.muted', {}, 'on held-out pairs; perfect calibration lies on the line'),
    ),
  );
  card.append(
    chart('calibration', "share of held-out pairs ranked correctly, by the reward model's confidence", (c) => ({
      traces: [
        {
          x: [0.5, 1],
          y: [0.5, 1],
          mode: 'lines',
          line: { color: c.muted, width: 1, dash: 'dash' },
          hoverinfo: 'skip',
        },
        {
          x: bins.map((bin) => bin[0]),
          y: bins.map((bin) => bin[1]),
          mode: 'lines+markers',
          line: { color: c.accent, width: 2 },
          marker: { size: 8 },
          text: bins.map(
            ([predicted, observed, n]) =>
              `confidence ${formatPercent(predicted)}, accuracy ${formatPercent(observed)}, ${plural(n, 'label')}`,
          ),
          hovertemplate: '%{text}<extra></extra>',
        },
      ],
      layout: {
        xTitle: 'confidence',
        yTitle: 'ranked right',
        xaxis: { range: [0.48, 1.02], tickformat: '.0%' },
        y: { range: [-0.03, 1.05], tickformat: '.0%' },
      },
    })),
    el('p.muted', { 'data-do': 'calibration' }, text),
  );
  return card;
}

export function disagreementsCard(report) {
  const side = (label, text) => el('div', {}, el('span.muted', {}, label), el('p.lab-text', { dir: 'auto' }, text));
  const listItem = (item) =>
    el(
      'li',
      {},
      promptView(item.turns, '.muted.brief'),
      el('div.sides', {}, side('the label prefers', item.chosen), side('it would have preferred', item.rejected)),
      el('p', {}, el('span.lab-badge.warn', {}, `gave this label ${formatPercent(item.probability)}`)),
    );
  return el(
    'details.lab-card.disagreements',
    { 'data-do': 'disagreements' },
    el(
      'summary',
      {},
      el('strong', {}, `Labels that the model disagrees with most (${report.disagreements.length})`),
      el(
        'span.muted',
        {},
        ' Each was predicted by a model that was not trained on it. They are either mistakes of the annotator ' +
          'or errors of the model. To see the annotators and ask again: Runs & data, Quality of the labels.',
      ),
    ),
    el('ol.lab-scroll', {}, report.disagreements.map(listItem)),
  );
}

// Parts of plotly's layout of a live curve.
import { plotlyText } from '../shared/format.js';

const MAX_LABELS = 3; // only the newest markers get a label, each on its own line; more would overlap
const MAX_LABEL_CHARS = 40;
const MAX_DOTTED = 300; // points; a longer curve is a line without dots

const TICK_HEIGHT = 0.05; // of the chart

/** @typedef {{ step: number, text: string }} Change between `step` and the next one; without a text: new labels */

/** @param {unknown[]} points */
export const lineMode = (points) => (points.length > MAX_DOTTED ? 'lines' : 'lines+markers');

/** @param {Change[]} changes */
const markersEnd = (changes) => Math.max(0, ...changes.map(({ step }) => step + 0.6));

/**
 * The x axis ends with the curve or the last marker, even if labels of markers need more room. The y axis starts at 0
 * unless a value is negative; for a constant curve, plotly's own range would be 1 above and below.
 * @param {{ lastStep: number, min: number, max: number }} range @param {Change[]} changes
 * @param {number} least the y axis reaches this value
 */
export function axisRanges({ lastStep, min, max }, changes, least = 0) {
  const end = Math.max(1, 1.04 * lastStep, markersEnd(changes));
  const minallowed = Math.min(0, 1.25 * min);
  const constant = {
    minallowed,
    maxallowed: Math.max(min < 0 ? -0.25 * min : 1.25 * min, min ? 0 : 1),
  };
  const extended = min === max ? { minallowed, include: least } : { include: least };
  return {
    xaxis: { autorangeoptions: { minallowed: 0, maxallowed: end } },
    yaxis: {
      rangemode: min < 0 ? 'normal' : 'nonnegative',
      autorangeoptions: least && max < least ? extended : min === max ? constant : {},
    },
  };
}

// The changes at one step as a short label. Numbers are never truncated.
function shorten(labels) {
  const joined = labels.join(', ');
  return labels.length > 1 && joined.length > 30 ? `${labels.length} changes` : joined;
}

/**
 * Vertical lines where settings were changed and short ones where labels arrived, as layout changes.
 * @param {Change[]} changes @param {number} lastStep of the curve @param {{ color: string, size: number }} style
 */
export function changeMarkers(changes, lastStep, { color, size }) {
  const labelsByStep = new Map();
  for (const { step, text } of changes) {
    if (text) labelsByStep.set(step, [...(labelsByStep.get(step) || []), text]);
  }
  const arrivals = changes.filter(({ text }) => !text);
  const markers = [...labelsByStep];
  const lines = Math.min(MAX_LABELS, markers.length);
  const end = markersEnd(changes);
  return {
    shapes: [
      ...markers.map(([step]) => verticalLine(step, 1, { color, width: 1, dash: 'dot' })),
      ...arrivals.map(({ step }) => verticalLine(step, TICK_HEIGHT, { color, width: 1 })),
    ],
    annotations: markers
      .map(([step, labels], i) => label(step + 0.5, [...new Set(labels)], i, lastStep, { color, size }))
      .slice(-MAX_LABELS),
    'margin.t': 6 + 11 * lines,
    ...(end > 1.04 * lastStep ? { 'xaxis.autorangeoptions.maxallowed': end } : {}),
  };
}

function verticalLine(step, height, line) {
  return { type: 'line', x0: step + 0.5, x1: step + 0.5, yref: 'paper', y0: 0, y1: height, line };
}

function label(x, texts, line, lastStep, font) {
  const isRightHalf = x > lastStep / 2; // the label stays inside the figure
  return {
    x,
    yref: 'paper',
    y: 1,
    yanchor: 'bottom',
    xanchor: isRightHalf ? 'right' : 'left',
    xshift: isRightHalf ? 3 : -3,
    yshift: 11 * (line % MAX_LABELS),
    text: plotlyText(shorten(texts), MAX_LABEL_CHARS),
    showarrow: false,
    font,
    borderpad: 0,
  };
}

// Small charts without a library: SVG that scales with its element and prints.
import { svg } from './dom.js';
import { formatNumber } from './format.js';

const WIDTH = 400;
const HEIGHT = 230;
const EDGE = { left: 60, right: 12, top: 12, bottom: 40 };
const TICKS = 4;

const scale =
  ([low, high], from, to) =>
  (value) =>
    from + ((value - low) / (high - low || 1)) * (to - from);
const middle = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/**
 * Round numbers in a range, about TICKS of them.
 * @param {[number, number]} range @param {number} least their smallest distance: 1 on an axis of whole numbers
 * @returns {number[]}
 */
export function ticks([low, high], least = 0) {
  const rough = (high - low) / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const round = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.99) ?? rough;
  const step = Math.max(round, least);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** The range of values, a little wider. @param {number[]} values @returns {[number, number]} */
export function rangeOf(values, margin = 0.06) {
  const finite = values.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const extra = (high - low || Math.abs(high) || 1) * margin;
  return [low - extra, high + extra];
}

/**
 * A chart. lines: {points: [x, y][], kind}; dots: {x, y, kind}; bars: {x, y, width, kind, label}; marks: {x, kind}.
 * kind: accent, good, bad, warn or muted. label: the chart in words, for a screen reader. whole: the axes of whole
 * numbers, 'x' or 'y'.
 * @param {{ label: string, x: [number, number], y: [number, number], xTitle?: string, yTitle?: string, lines?: any[],
 *   dots?: any[], bars?: any[], marks?: any[], hasXTicks?: boolean, height?: number, whole?: string }} chart
 */
export function plot({ label, x, y, xTitle = '', yTitle = '', lines = [], dots = [], bars = [], marks = [], ...rest }) {
  const { hasXTicks = true, height = HEIGHT, whole = '' } = rest;
  const ticksOf = (axis, range) => ticks(range, whole === axis ? 1 : 0);
  const bottom = height - (xTitle ? EDGE.bottom : EDGE.bottom / 2);
  const atX = scale(x, EDGE.left, WIDTH - EDGE.right);
  const atY = scale(y, bottom, EDGE.top);
  const zero = Math.min(Math.max(0, y[0]), y[1]);
  const path = (points) => points.map(([px, py]) => `${atX(px).toFixed(1)},${atY(py).toFixed(1)}`).join(' ');
  return svg(
    'svg',
    { viewBox: `0 0 ${WIDTH} ${height}`, class: 'lab-chart', role: 'img', 'aria-label': label },
    ...ticksOf('y', y).map((value) =>
      text(formatNumber(value), EDGE.left - 6, atY(value) + 4, { 'text-anchor': 'end' }),
    ),
    ...(hasXTicks ? ticksOf('x', x).map((value) => text(formatNumber(value), atX(value), bottom + 16)) : []),
    text(xTitle, middle([EDGE.left, WIDTH - EDGE.right]), height - 6, { class: 'title' }),
    text(yTitle, -middle([EDGE.top, bottom]), 11, { class: 'title', transform: 'rotate(-90)' }),
    svg('line', { x1: EDGE.left, x2: WIDTH - EDGE.right, y1: atY(zero), y2: atY(zero), class: 'axis' }),
    ...bars.flatMap((bar) => barShape(bar, atX, atY, zero, bottom)),
    ...marks.map(({ x: at, kind }) =>
      svg('line', { x1: atX(at), x2: atX(at), y1: EDGE.top, y2: bottom, class: `mark ${kind}` }),
    ),
    ...lines.map(({ points, kind }) => svg('polyline', { points: path(points), class: `curve ${kind}` })),
    ...dots.map((dot) => svg('circle', { cx: atX(dot.x), cy: atY(dot.y), r: dot.r ?? 4, class: `dot ${dot.kind}` })),
  );
}

function text(content, x, y, attributes = {}) {
  const node = svg('text', { x, y, 'text-anchor': 'middle', ...attributes });
  node.textContent = content;
  return node;
}

function barShape({ x, y, width, kind, label }, atX, atY, zero, bottom) {
  const [left, right] = [atX(x - width / 2), atX(x + width / 2)];
  const [top, base] = [atY(Math.max(y, zero)), atY(Math.min(y, zero))];
  const bar = svg('rect', {
    x: left,
    width: right - left,
    y: top,
    height: Math.max(1, base - top),
    class: `bar ${kind}`,
  });
  return label === undefined ? [bar] : [bar, text(label, (left + right) / 2, bottom + 16)];
}

/**
 * Bars with a name each; with several series they stand side by side.
 * @param {string} label @param {(string | undefined)[]} names @param {any[]} series {values, kind}[]
 * @param {{ xTitle: string, yTitle: string, height?: number }} axes
 */
export function barChart(label, names, series, { xTitle, yTitle, height = 190 }) {
  const width = 0.8 / series.length;
  const bars = series.flatMap(({ values, kind, kinds }, s) =>
    values.map((y, i) => ({
      x: i + (s - (series.length - 1) / 2) * width,
      y,
      width: width * 0.92,
      kind: kinds?.[i] ?? kind,
      ...(s === 0 && names[i] !== undefined ? { label: names[i] } : {}),
    })),
  );
  const all = [0, ...series.flatMap(({ values }) => values)];
  const margin = 0.06 * (Math.max(...all) - Math.min(...all) || 1);
  /** @type {[number, number]} */
  const y = [Math.min(...all) < 0 ? Math.min(...all) - margin : 0, Math.max(...all) + margin];
  return plot({ label, x: [-0.6, names.length - 0.4], y, bars, xTitle, yTitle, hasXTicks: false, height });
}

/**
 * A curve over the steps of a run. marks: steps with a vertical line.
 * @param {string} title @param {number[]} steps @param {number[]} values @param {string} kind
 * @param {{ marks?: number[], height?: number, hasTitle?: boolean }} options
 */
export function stepChart(title, steps, values, kind, { marks = [], height = HEIGHT, hasTitle = true } = {}) {
  return plot({
    label: `${title} by step`,
    x: [steps[0], Math.max(steps.at(-1), steps[0] + 1)],
    y: rangeOf(values),
    xTitle: 'step',
    yTitle: hasTitle ? title : '',
    lines: [{ points: values.map((y, i) => [steps[i], y]), kind }],
    dots: steps.length === 1 ? [{ x: steps[0], y: values[0], kind }] : [],
    marks: marks.map((x) => ({ x, kind: 'warn' })),
    height,
    whole: 'x',
  });
}

// @ts-check
// Pictures of the screen Learn: the cat's world, charts, and coloured tokens.
import { ARROWS, cellCount, isOver, PIECES } from './world.js';
import { svg } from '../shared/dom.js';
import { formatNumber } from '../shared/format.js';
import { html } from '../shared/html.js';

const WIDTH = 400;
const HEIGHT = 230;
const EDGE = { left: 60, right: 12, top: 12, bottom: 40 };
const TICKS = 4;

/** A tint of the palette for a value. @param {number} share from -1 (bad) to 1 (good) */
function tint(share) {
  const color = share > 0 ? '--lab-good' : '--lab-bad';
  return `color-mix(in srgb, var(${color}) ${Math.round(45 * Math.min(1, Math.abs(share)))}%, var(--lab-card))`;
}

// ---- the world

const DRAWINGS = {
  start: ['M6 20 L4 5 L11 10 H21 L28 5 L26 20 A10 9 0 0 1 6 20 Z', 'M12 17 h1 M19 17 h1 M14 22 q2 2 4 0'],
  meat: ['M8 22 A8 8 0 1 1 22 10 Q23 18 15 22 Q11 24 8 22 Z', 'M21 10 l5 -4 M25 3 a2 2 0 1 1 3 3 a2 2 0 1 1 -3 -3'],
  broom: ['M11 16 H21 L24 28 H8 Z', 'M16 3 V16 M12 20 V27 M16 20 V27 M20 20 V27'],
  bathtub: ['M3 14 H29 L26 24 H6 Z', 'M7 24 V28 M25 24 V28 M24 14 V6 Q24 3 20 4'],
};

export const PIECE_NAMES = { start: 'the cat', meat: 'the meat', broom: 'the broom', bathtub: 'the bathtub' };

const drawing = (piece) =>
  svg(
    'svg',
    { viewBox: '0 0 32 32', class: `piece ${piece}`, 'aria-hidden': 'true' },
    ...DRAWINGS[piece].map((d, i) => svg('path', { d, class: i ? 'line' : 'body' })),
  );

/**
 * The grid; each cell is a button. values: V of each cell; policy: its arrows.
 * @param {any} world
 * @param {{ values: number[], policy: number[][] }} solution
 * @param {{ selected: number, path?: number[], choose: (cell: number) => void }} view
 */
export function grid(world, { values, policy }, { selected, path = [], choose }) {
  const largest = Math.max(1, ...values.map(Math.abs));
  const cells = Array.from({ length: cellCount(world) }, (_, cell) => {
    const pieces = PIECES.filter((piece) => world[piece] === cell);
    const over = isOver(world, cell);
    const best = policy[cell].indexOf(Math.max(...policy[cell]));
    const names = pieces.map((piece) => PIECE_NAMES[piece]).join(' and ');
    const value = over ? 'the end' : `V ${formatNumber(values[cell], 2)}`;
    const node = html`<button
      type="button" class="cell" aria-pressed=${String(cell === selected)} data-do="cell-${cell}"
      aria-label="row ${Math.floor(cell / world.columns) + 1}, column ${(cell % world.columns) + 1}${
        names ? `, ${names}` : ''
      }: ${value}"
      onclick=${() => choose(cell)}
    >
      <span class="pieces">${pieces.map(drawing)}</span>
      <span class="value">${value}</span>
      <span class="arrow">${over ? '' : ARROWS[best]}</span>
      ${path.includes(cell) && html`<span class="seen" aria-hidden="true"></span>`}
    </button>`;
    node.style.background = tint(values[cell] / largest);
    return node;
  });
  const node = html`<div class="world" role="group" aria-label="the cat's world">${cells}</div>`;
  node.style.setProperty('--columns', world.columns);
  return node;
}

// ---- charts

const scale =
  ([low, high], from, to) =>
  (value) =>
    from + ((value - low) / (high - low || 1)) * (to - from);
const middle = (values) => values.reduce((a, b) => a + b, 0) / values.length;

/** Round numbers in a range, about TICKS of them. @param {[number, number]} range @returns {number[]} */
export function ticks([low, high]) {
  const rough = (high - low) / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.99) ?? rough;
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
 * kind: accent, good, bad, warn or muted. label: the chart in words, for a screen reader.
 * @param {{ label: string, x: [number, number], y: [number, number], xTitle?: string, yTitle?: string, lines?: any[],
 *   dots?: any[], bars?: any[], marks?: any[], hasXTicks?: boolean, height?: number }} chart
 */
export function plot({ label, x, y, xTitle = '', yTitle = '', lines = [], dots = [], bars = [], marks = [], ...rest }) {
  const { hasXTicks = true, height = HEIGHT } = rest;
  const bottom = height - (xTitle ? EDGE.bottom : EDGE.bottom / 2);
  const atX = scale(x, EDGE.left, WIDTH - EDGE.right);
  const atY = scale(y, bottom, EDGE.top);
  const zero = Math.min(Math.max(0, y[0]), y[1]);
  const path = (points) => points.map(([px, py]) => `${atX(px).toFixed(1)},${atY(py).toFixed(1)}`).join(' ');
  return svg(
    'svg',
    { viewBox: `0 0 ${WIDTH} ${height}`, class: 'chart', role: 'img', 'aria-label': label },
    ...ticks(y).map((value) => yTick(value, atY(value))),
    ...(hasXTicks ? ticks(x).map((value) => text(formatNumber(value), atX(value), bottom + 16)) : []),
    text(xTitle, middle([EDGE.left, WIDTH - EDGE.right]), height - 6),
    text(yTitle, -middle([EDGE.top, bottom]), 11, { transform: 'rotate(-90)' }),
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

function yTick(value, y) {
  const node = text(formatNumber(value), EDGE.left - 6, y + 4, {
    'text-anchor': 'end',
  });
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

/** Bars with a name each; with several series they stand side by side. series: {values, kind}[] */
export function barChart(label, names, series, yTitle = '', height = 190) {
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
  return plot({ label, x: [-0.6, names.length - 0.4], y, bars, yTitle, hasXTicks: false, height });
}

/** How often values occur, in equal bins of `range`. @param {number[]} values @param {[number, number]} range */
export function histogram(label, values, range, marks, xTitle) {
  const bins = 24;
  const width = (range[1] - range[0]) / bins;
  const counts = new Array(bins).fill(0);
  for (const value of values) {
    counts[Math.min(bins - 1, Math.max(0, Math.floor((value - range[0]) / width)))] += 1;
  }
  const bars = counts.map((y, i) => ({ x: range[0] + (i + 0.5) * width, y, width: width * 0.9, kind: 'accent' }));
  return plot({ label, x: range, y: [0, Math.max(...counts) * 1.05], bars, marks, xTitle, yTitle: 'walks' });
}

// ---- tokens

/**
 * The tokens of a text as buttons, coloured by a share from -1 to 1 each.
 * @param {string[]} tokens
 * @param {{ shares?: number[], selected: number, until?: number, choose: (i: number) => void }} view
 */
export function tokenLine(tokens, { shares, selected, until = tokens.length, choose }) {
  const nodes = tokens.slice(0, until).map((token, i) => {
    const node = html`<button
      type="button" class="token" aria-pressed=${String(i === selected)} data-do="token-${i}"
      aria-label="token ${i + 1}: ${token.trim() || 'space'}" onclick=${() => choose(i)}
    >${token.replace(/\n/g, '⏎') || '·'}</button>`;
    if (shares) node.style.background = tint(shares[i]);
    return node;
  });
  return html`<div class="tokens lab-text" role="group" aria-label="tokens of the text" dir="auto">${nodes}</div>`;
}

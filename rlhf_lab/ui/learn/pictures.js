// Pictures of the screen Learn: the cat's world, charts, and coloured tokens.
import { ARROWS, cellCount, isOver, PIECES } from './world.js';
import { html, svg } from '../shared/dom.js';
import { formatNumber } from '../shared/format.js';
import { plot } from '../shared/plot.js';

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
  const largestValue = Math.max(1, ...values.map(Math.abs));
  const cells = Array.from({ length: cellCount(world) }, (_, cell) => {
    const pieces = PIECES.filter((piece) => world[piece] === cell);
    const over = isOver(world, cell);
    const largest = Math.max(...policy[cell]);
    const isEven = policy[cell].every((share) => largest - share < 1e-9);
    const best = policy[cell].indexOf(largest);
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
      <span class="arrow">${over || isEven ? '' : ARROWS[best]}</span>
      ${path.includes(cell) && html`<span class="seen" aria-hidden="true"></span>`}
    </button>`;
    node.style.background = tint(values[cell] / largestValue);
    return node;
  });
  const node = html`<div class="world" role="group" aria-label="the cat's world">${cells}</div>`;
  node.style.setProperty('--columns', world.columns);
  return node;
}

// ---- charts

/** How often values occur, in equal bins of `range`. @param {number[]} values @param {[number, number]} range */
export function histogram(label, values, range, marks, xTitle) {
  const bins = 24;
  const width = (range[1] - range[0]) / bins;
  const counts = new Array(bins).fill(0);
  for (const value of values) {
    counts[Math.min(bins - 1, Math.max(0, Math.floor((value - range[0]) / width)))] += 1;
  }
  const bars = counts.map((y, i) => ({ x: range[0] + (i + 0.5) * width, y, width: width * 0.9, kind: 'accent' }));
  const y = /** @type {[number, number]} */ ([0, Math.max(...counts) * 1.05]);
  return plot({ label, x: range, y, bars, marks, xTitle, yTitle: 'walks', whole: 'y' });
}

// ---- tokens

/**
 * The tokens of a text as buttons, coloured by a share from -1 to 1 each.
 * @param {string[]} tokens
 * @param {{ shares?: number[], selected: number, until?: number, choose: (i: number) => void,
 *   style?: string }} view
 */
export function tokenLine(tokens, { shares, selected, until = tokens.length, choose, style = '' }) {
  const nodes = tokens.slice(0, until).map((token, i) => {
    const node = html`<button
      type="button" class="token" aria-pressed=${String(i === selected)} data-do="token-${i}"
      aria-label="token ${i + 1}: ${token.trim() || 'space'}" onclick=${() => choose(i)}
    >${token.replace(/\n/g, '⏎') || '·'}</button>`;
    if (shares) node.style.background = tint(shares[i]);
    return node;
  });
  return html`<div class="tokens lab-text ${style}" role="group" aria-label="tokens of the text" dir="auto">
    ${nodes}
  </div>`;
}

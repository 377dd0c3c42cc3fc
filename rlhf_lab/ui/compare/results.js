// The texts of a comparison: a column for each model, with changed words marked.
import { markedDiff } from '../shared/diff.js';
import { actionButton, html, promptView, textView, withCut } from '../shared/dom.js';
import { formatNumber } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { meansText, waitingText } from './texts.js';

// A comparison: {labels, judge, reward, seed, temperature, scorersNote, startedAt, jobs (null until the lab has
// accepted it), turns, columns: TextColumn[]}. cancel(): while it is sampled.
export function resultCard(item, cancel = null) {
  const grid = html`<div class="grid"></div>`;
  grid.style.setProperty('--columns', item.labels.length);
  grid.append(...gridContent(item));
  const scorer = item.reward ? `, scored by reward model ${item.reward}.${item.scorersNote}` : '';
  return html`<section class="lab-card" data-do=${cancel ? 'awaited' : 'answer'} aria-label="answers">
    ${item.turns ? promptView(item.turns, 'asked lab-scroll') : null}
    <div class="lab-row">
      <span class="muted">seed ${item.seed}, temperature ${item.temperature}${scorer}</span>
      ${cancel && actionButton('cancel', 'Cancel', cancel)}
    </div>
    ${grid}
  </section>`;
}

function gridContent(item) {
  const failures = new Set(item.columns.map((column) => column.error));
  if (failures.size === 1 && !failures.has(undefined)) {
    return [html`<p class="lab-notice bad all" role="alert">${[...failures]}</p>`];
  }
  const rowCount = Math.max(1, ...item.columns.map((column) => column.texts?.length ?? 0));
  const heads = item.labels.map(
    (label, c) =>
      html`<div class="head"><h3>${label}</h3><span class="muted">${meansText(item.columns[c])}</span></div>`,
  );
  const rows = Array.from({ length: rowCount }, (_, i) => item.labels.map((_label, c) => textCell(item, c, i)));
  return [...heads, ...rows.flat()];
}

function textCell(item, c, i) {
  const column = item.columns[c];
  if (!column || column.is_waiting) {
    const waits = html`<p class="muted waits" data-column=${c}>${waitingText(column, secondsOf(item))}</p>`;
    return html`<div class="text">${i ? null : waits}</div>`;
  }
  if (column.error) {
    return html`<div class="text">${i ? null : html`<p class="lab-notice bad" role="alert">${column.error}</p>`}</div>`;
  }
  if (column.texts[i] === undefined) return html`<div class="text"></div>`;
  return html`<div class="text" data-column-name=${item.labels[c]}>
    ${column.note && !i ? html`<p class="muted">${column.note}</p>` : null} ${answerText(item, c, i)}
    <div class="lab-row badges">${badges(column, i, item.judge)}</div>
  </div>`;
}

function answerText(item, c, i) {
  const [first, column] = [item.columns[0], item.columns[c]];
  const text = column.texts[i];
  if (text === '') return html`<p class="muted">(it wrote nothing)</p>`;
  const base = first.texts?.[i];
  const isComparable = c > 0 && column.best_of === 1 && first.best_of === 1 && base !== undefined;
  const view = isComparable ? markedDiff(base, text, 'lab-scroll') : textView(text, 'lab-scroll');
  return withCut(view, column.cut[i]);
}

function badges({ scores, gold, best_of: bestOf }, i, judge) {
  const isHighest = bestOf === 1 && scores.length > 2 && scores[i] === Math.max(...scores);
  return [
    scores[i] !== undefined &&
      html`<span class="lab-badge">${i ? 'score' : term('score')} ${formatNumber(scores[i])}</span>`,
    gold[i] !== undefined &&
      html`<span class="lab-badge" title="score by the judge ${judge}">
        ${i ? 'gold' : term('gold')} ${formatNumber(gold[i])}
      </span>`,
    bestOf > 1 && html`<span class="lab-badge accent">best of ${bestOf} by its score</span>`,
    isHighest && html`<span class="lab-badge good">highest of ${scores.length}</span>`,
  ];
}

const secondsOf = (item) => (Date.now() - item.startedAt) / 1000;

// Refresh how long the columns have waited.
export function updateWaitingTimes(element, item) {
  for (const node of element.querySelectorAll('.waits')) {
    node.textContent = waitingText(item.columns[Number(node.dataset.column)], secondsOf(item));
  }
}

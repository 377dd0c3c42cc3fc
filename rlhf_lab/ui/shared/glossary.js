// @ts-check
// Words and metrics that open their definition on a click, a touch or the Enter key: one card for all of them. Their
// definitions are those of docs/METRICS.md and come with the header.
import { html } from './html.js';

const MARGIN = 8; // pixels between the card, its word and the edge of the window
let definitions = /** @type {Record<string, string>} */ ({});
let card = /** @type {any} */ (null);

/** @param {Record<string, string>} all */
export function useDefinitions(all) {
  definitions = all;
  const close = ({ target }) => {
    if (target !== card && card.matches(':popover-open')) card.hidePopover();
  };
  card = html`<div
    class="lab lab-definition lab-card" popover role="dialog" tabindex="-1" aria-label="definition"
    onclick=${() => card.hidePopover()}
  >
    <h3></h3>
    <p></p>
    <p class="muted"></p>
  </div>`;
  document.body.append(card);
  window.addEventListener('scroll', close, { capture: true, passive: true }); // it would stay behind its word
}

export const definitionOf = (word) => (Object.hasOwn(definitions, word) ? definitions[word] : '');

// A word of the glossary as a button. label: how it is written here; metric: its key, which is explained too.
export function term(word, label = word, metric = '') {
  return html`<button
    type="button" class="lab-term lab-offline-too" aria-haspopup="dialog" data-do="term-${word}"
    onclick=${(event) => open(event.currentTarget, word, metric)}
  >${label}</button>`;
}

function open(button, word, metric) {
  const [title, text, details] = card.children;
  title.textContent = word;
  text.textContent = definitionOf(word.toLowerCase());
  details.textContent = metric && metric !== word ? `${metric}: ${definitionOf(metric)}` : '';
  (button.closest('dialog') ?? document.body).append(card); // beside an open dialog nothing can be used
  card.showPopover();
  const { left, top, bottom } = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card;
  const below = bottom + MARGIN;
  const fitsBelow = below + height <= innerHeight - MARGIN;
  card.style.left = `${Math.max(MARGIN, Math.min(left, innerWidth - width - MARGIN))}px`;
  card.style.top = `${fitsBelow ? below : Math.max(MARGIN, top - height - MARGIN)}px`;
  card.focus({ preventScroll: true }); // Escape and a click beside it close it, and return the focus
}

// Words and metrics with a definition. A click, a touch or the Enter key opens it; a resting mouse or the Tab key shows
// a preview, which does not take clicks. There is one card for all. The definitions are those of docs/METRICS.md and
// come with the header.
import { html } from './html.js';

const MARGIN = 8; // pixels between the card, its word and the edge of the window
const HOVER_MS = 500; // how long a mouse rests on a word before its preview
let definitions = /** @type {Record<string, string>} */ ({});
let card = /** @type {any} */ (null);
let hoverTimer = /** @type {any} */ (null);

/** @param {Record<string, string>} all */
export function useDefinitions(all) {
  definitions = all;
  const close = ({ target }) => {
    if (target !== card) hide();
  };
  card = html`<div
    class="lab lab-definition lab-card" popover role="dialog" tabindex="-1" aria-label="definition"
    onclick=${hide}
  >
    <h3></h3>
    <p></p>
    <p class="muted"></p>
  </div>`;
  document.body.append(card);
  window.addEventListener('scroll', close, { capture: true, passive: true }); // it would stay behind its word
  document.addEventListener('pointerover', onHover); // one listener: a word may be drawn again under the mouse
  document.addEventListener('pointerdown', () => clearTimeout(hoverTimer));
  document.addEventListener('focusout', () => isPreview() && hide());
}

const hide = () => card.matches(':popover-open') && card.hidePopover();
const isPreview = () => card.classList.contains('preview') && card.matches(':popover-open');

function onHover({ target, pointerType }) {
  clearTimeout(hoverTimer);
  if (pointerType !== 'mouse') return;
  const button = target.closest?.('.lab-term');
  if (isPreview() && button?.dataset.do !== card.dataset.of) hide();
  if (!button || card.matches(':popover-open')) return;
  hoverTimer = setTimeout(() => button.isConnected && show(button, true), HOVER_MS);
}

export const definitionOf = (word) => (Object.hasOwn(definitions, word) ? definitions[word] : '');

// A word of the glossary as a button. label: how it is written here; metric: its key, which is explained too.
export function term(word, label = word, metric = '') {
  return html`<button
    type="button" class="lab-term lab-offline-too" aria-haspopup="dialog" data-do="term-${word}" data-also=${metric}
    onclick=${(event) => show(event.currentTarget)}
    onkeyup=${(event) => event.key === 'Tab' && show(event.currentTarget, true)}
  >${label}</button>`;
}

function show(button, asPreview = false) {
  const [title, text, details] = card.children;
  const word = button.dataset.do.slice('term-'.length);
  const { also } = button.dataset;
  title.textContent = word;
  text.textContent = definitionOf(word.toLowerCase());
  details.textContent = also && also !== word ? `${also}: ${definitionOf(also)}` : '';
  card.dataset.of = button.dataset.do;
  card.classList.toggle('preview', asPreview);
  (button.closest('dialog') ?? document.body).append(card); // beside an open dialog nothing can be used
  card.showPopover();
  const { left, top, bottom } = button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card;
  const below = bottom + MARGIN;
  const fitsBelow = below + height <= innerHeight - MARGIN;
  card.style.left = `${Math.max(MARGIN, Math.min(left, innerWidth - width - MARGIN))}px`;
  card.style.top = `${fitsBelow ? below : Math.max(MARGIN, top - height - MARGIN)}px`;
  if (!asPreview) card.focus({ preventScroll: true }); // Escape and a click beside it close it, and return the focus
}

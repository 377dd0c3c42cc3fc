// The guide: the visitor's steps, the present one, what is missing, and the next action. guide.py decides what it says.
import { actionButton, html, redraw } from '../shared/dom.js';
import { currentTab, openTab, slugOf } from '../shared/session.js';

const HIDDEN = 'rlhf-lab-guide-hidden'; // in localStorage, for good
const VISITED = 'rlhf-lab-visited';
// On a phone only its first part is shown.
export const introduction = () =>
  html`<p class="introduction">Your choices teach a language model<span class="rest"
    >: a reward model learns your taste from them, and the language model learns to please it</span
  >.</p>`;

export const isGuideHidden = () => localStorage.getItem(HIDDEN) !== null;
export const isFirstVisit = localStorage.getItem(VISITED) === null && !isGuideHidden();
localStorage.setItem(VISITED, 'yes');

export class Guide {
  constructor() {
    this.node = html`<nav class="guide" aria-label="guide" hidden></nav>`;
    this.drawnKey = '';
  }

  /** @param {lab.HeaderGuide | null} guide @param {Element | false} offer something else to do */
  draw(guide, offer) {
    this.node.hidden = !guide || isGuideHidden();
    const tab = currentTab();
    const key = JSON.stringify([guide, tab, Boolean(offer)]);
    if (this.node.hidden || key === this.drawnKey) return;
    this.drawnKey = key;
    redraw(this.node, this.content(guide, tab, offer));
  }

  /** @param {lab.HeaderGuide} guide @param {string} tab the open one @param {Element | false} offer */
  content({ steps, done, present, note, button, hint }, tab, offer) {
    const isThere = tab === slugOf(present);
    const step = (name) =>
      html`<li class=${name === present ? 'present' : done.includes(name) ? 'done' : null}
        aria-current=${name === present && 'step'}
      >${name}</li>`;
    const next = actionButton('guide-next', button, () => openTab(present), 'lab-main small');
    return html`${isFirstVisit && tab === 'label' && introduction()}
      <ol>${steps.map(step)}</ol>
      <span class="missing"><b>${note}</b> ${isThere && html`<span class="hint">${hint}</span>`}</span>
      ${!isThere && next}
      ${tab !== 'train' && offer}
      ${actionButton('guide-hide', '✕', () => this.hide(), 'small', {
        'aria-label': 'hide the guide for good',
        title: 'hide the guide for good',
      })}`;
  }

  hide() {
    localStorage.setItem(HIDDEN, 'yes');
    this.node.hidden = true;
  }
}

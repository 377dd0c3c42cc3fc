// @ts-check
// The instant reward model's prediction of the last vote, and how often it is right. It reveals nothing about the pair
// on screen.
import { verdict, waitingText } from './texts.js';
import { stackedScreen } from '../shared/dom.js';
import { formatAccuracy, formatDifference, formatInterval, isWideInterval } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { html } from '../shared/html.js';

/** @typedef {import('../api_types').InstantFigures} InstantFigures */

const POLL_MS = 80;
const MAX_POLLS = 60;
const MAX_GUESSES = 10;

export class InstantPanel {
  // createdAt(): when the open project was created
  constructor(root, api, createdAt) {
    this.root = root;
    this.api = api;
    this.createdAt = createdAt;
    this.figures = /** @type {InstantFigures | null} */ (null);
    this.uuid = ''; // the vote that the figures must include, and whose prediction is shown
    this.polls = 0;
    this.guesses = []; // whether the last predictions were right, oldest first
    this.countedUuid = ''; // the vote of the last prediction
  }

  view() {
    return html`<section class="instant" aria-label="instant reward model" data-right=${this.figures?.right ?? ''}>
      <div class="guess" aria-live="polite">${this.guess()}</div>
      <div class="accuracy">${this.accuracy()}</div>
    </section>`;
  }

  draw() {
    const panel = this.root.querySelector('.instant');
    if (!panel) return;
    panel.dataset.right = this.figures?.right ?? '';
    panel.querySelector('.guess').replaceChildren(this.guess());
    panel.querySelector('.accuracy').replaceChildren(...this.accuracy());
  }

  async load() {
    const { uuid } = this;
    const reply = await this.api.instant({ vote_uuid: uuid }).catch(() => null); // the next poll tries again
    if (!reply || uuid !== this.uuid || reply.project_created_at !== this.createdAt()) return;
    if (reply.prediction?.decided && this.countedUuid !== uuid) {
      this.guesses = [...this.guesses, reply.prediction.expected].slice(-MAX_GUESSES);
      this.countedUuid = uuid;
    }
    const isSame = JSON.stringify(reply) === JSON.stringify(this.figures);
    this.figures = reply;
    if (!isSame) this.draw();
    if (reply.pending && this.polls++ < MAX_POLLS) setTimeout(() => this.load(), POLL_MS);
  }

  // uuid: the vote whose prediction is shown after the model has learnt from it; '' for none.
  expect(uuid) {
    this.uuid = uuid;
    this.polls = 0;
    if (this.figures) this.figures = { ...this.figures, pending: Boolean(uuid), prediction: null };
    this.draw();
  }

  guess() {
    const text = this.figures ? waitingText(this.figures, this.uuid) : ' ';
    if (text) {
      const name = term('instant reward model', 'Instant reward model');
      return html`<span><strong>${name}</strong> <span class="muted">${text}</span></span>`;
    }
    const { prediction } = this.figures;
    const sideNames = stackedScreen.matches ? ['first', 'second'] : ['left', 'right'];
    const [first, second] = prediction.decided ? ['your choice', 'other'] : sideNames;
    const [wide, narrow] = verdict(prediction);
    const style = prediction.expected === null ? '' : prediction.expected ? ' good' : ' bad';
    const title = 'Scores before it was trained on your answer: 0 is an average text, most are between −2 and 2.';
    return html`<strong class="verdict${style}" data-expected=${String(prediction.expected)}>
        <span class="beside">${wide}</span><span class="above">${narrow}</span>
      </strong>
      <span class="scores" title=${title}>
        ${scoreBar(first, prediction.scores[0])}${scoreBar(second, prediction.scores[1])}
      </span>`;
  }

  accuracy() {
    if (!this.figures || this.figures.right === null) return [];
    const { low, high, decided, right, simulated } = this.figures;
    const figure = { accuracy: right / decided, low, high };
    const answers = `${decided}${simulated ? ' simulated' : ''} answers`;
    const title =
      'Leave-one-out: each answer is predicted by a model that was fitted without the answers to its prompt and ' +
      'about its texts. If most answers share a prompt, those about other texts stay in. Guessing is right in half ' +
      'of the cases. The interval is for new prompts, with as many answers to learn from.';
    const interval = html`<span class="muted beside"> (95 % sure: ${formatInterval(low, high)})</span>`;
    return [
      html`<span class="figure">
        <b>${formatAccuracy(figure)}</b><span class="muted"> right</span>${isWideInterval(figure) ? null : interval}
      </span>`,
      html`<span class="range" aria-hidden="true">
        <i class="span" style="left: ${100 * low}%; width: ${100 * (high - low)}%"></i>
        <i class="mark" style="left: ${100 * figure.accuracy}%"></i>
      </span>`,
      html`<span class="muted" title=${title}>
        <span class="beside">tested on ${answers} that were hidden from it</span>
        <span class="above">of ${answers}</span>
      </span>`,
      ...(this.guesses.length > 1 ? [guessesView(this.guesses)] : []),
    ];
  }
}

function scoreBar(label, score) {
  const left = 50 + 50 * Math.max(-1, Math.min(0, score / 3));
  const width = 50 * Math.min(1, Math.abs(score) / 3);
  return html`<span class="score">
    <span class="muted">${label}</span>
    <span class="track" aria-hidden="true"><i style="left: ${left}%; width: ${width}%"></i></span>
    <b>${formatDifference(Number(score.toFixed(1)))}</b>
  </span>`;
}

function guessesView(guesses) {
  const label = `${guesses.filter(Boolean).length} of your last ${guesses.length} answers predicted correctly`;
  const title = 'Its latest predictions of your answers, made before it was trained on them';
  return html`<span class="guesses" role="img" title=${title} aria-label=${label}>
    <span class="muted">last ones </span>${guesses.map((right) => html`<i class=${right ? 'right' : null}></i>`)}
  </span>`;
}

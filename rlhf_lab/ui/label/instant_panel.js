// The instant reward model's prediction of the last vote, and which of the last ones were right. It reveals nothing
// about the pair on screen.
import { verdict, waitingText } from './texts.js';
import { requests } from '../shared/api.js';
import { actionButton, html, stackedScreen } from '../shared/dom.js';
import { formatDifference } from '../shared/format.js';
import { term } from '../shared/glossary.js';

const startRun = requests('start_run');
const POLL_MS = 80;
const MAX_POLLS = 60;
const MAX_GUESSES = 10;
const STARTED =
  'A run that learns from your answers was started. Go on labelling: it learns from every answer. ' +
  'Stop it on Train at any time.';

export class InstantPanel {
  // project(): the one that the screen shows
  constructor(root, api, project) {
    this.root = root;
    this.api = api;
    this.project = project;
    this.figures = /** @type {lab.InstantFigures | null} */ (null);
    this.uuid = ''; // the vote that the figures must include, and whose prediction is shown
    this.polls = 0;
    this.guesses = []; // whether the last predictions were right, oldest first
    this.guessesOf = null; // when their project was created
    this.news = ''; // why a run could not be started here
    this.hasStarted = false; // a live run has been started here since the last vote
    this.isStarting = false;
    this.countedUuid = ''; // the vote of the last prediction
  }

  view() {
    return html`<section class="instant" aria-label="instant reward model" data-right=${this.figures?.right ?? ''}>
      <div class="guess" aria-live="polite">${this.guess()}</div>
      <div class="hits">${this.hits()}</div>
    </section>`;
  }

  draw() {
    const panel = this.root.querySelector('.instant');
    if (!panel) return;
    panel.dataset.right = this.figures?.right ?? '';
    panel.querySelector('.guess').replaceChildren(this.guess());
    panel.querySelector('.hits').replaceChildren(this.hits());
  }

  async load() {
    const { uuid } = this;
    const reply = await this.api.instant({ vote_uuid: uuid }).catch(() => null); // the next poll tries again
    if (!reply || uuid !== this.uuid || reply.project_created_at !== this.project()?.project_created_at) return;
    if (this.guessesOf !== this.project()?.project_created_at) this.forgetProject();
    this.guessesOf = this.project()?.project_created_at;
    if (reply.prediction?.decided && this.countedUuid !== uuid) {
      this.guesses = [...this.guesses, reply.prediction.expected].slice(-MAX_GUESSES);
      this.countedUuid = uuid;
    }
    const isSame = JSON.stringify(reply) === JSON.stringify(this.figures);
    this.figures = reply;
    if (!isSame) this.draw();
    if (reply.pending && this.polls++ < MAX_POLLS) setTimeout(() => this.load(), POLL_MS);
  }

  forgetProject() {
    this.guesses = [];
    this.news = '';
    this.hasStarted = false;
  }

  // uuid: the vote whose prediction is shown after the model has learned from it; '' for none.
  expect(uuid) {
    this.uuid = uuid;
    this.news = '';
    this.hasStarted = false;
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
        ${this.figures.ignores && html`<span class="muted" data-do="ignores">ignoring ${this.figures.ignores}</span>`}
      </span>`;
  }

  // Beside the guess: who wrote the texts of the last vote; otherwise how many answers were expected, and the offer to
  // train while people label. The accuracy of the reward model is in the header; this one is not that model.
  hits() {
    const { writers, offers_live_run: isOffered, trains_live: isTraining } = this.figures ?? {};
    const news = this.hasStarted && isTraining ? STARTED : this.news;
    if (news) return html`<span role="status">${news}</span>`;
    if (writers) return writersView(writers);
    return html`${isOffered && this.startButton()}
      ${this.guesses.length > 1 && guessesView(this.guesses)}`; // the button does not move when they grow
  }

  startButton() {
    const label = this.isStarting ? 'Starting …' : 'Train while I label';
    const button = actionButton('start-live', label, () => this.startLive());
    button.disabled = this.isStarting;
    return button;
  }

  async startLive() {
    this.isStarting = true;
    this.draw();
    this.news = await startRun.start_live({ shown_project: this.project()?.id }).then(
      () => '',
      (error) => error.message,
    );
    this.hasStarted = !this.news;
    await this.load();
    this.isStarting = false;
    this.draw();
  }
}

function writersView([first, second]) {
  return html`<span class="muted" data-do="writers">
    Your last pair: the first text was written by ${first}, the second by ${second}.
  </span>`;
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
  const title = 'Its latest predictions of your answers, made before it was trained on them';
  const count = guesses.filter(Boolean).length;
  return html`<span class="guesses" title=${title}>
    <span class="muted">${count} of your last ${guesses.length} answers predicted</span>
    <span aria-hidden="true">${guesses.map((right) => html`<i class=${right ? 'right' : null}></i>`)}</span>
  </span>`;
}

// A recorded run that the page plays again. It answers the requests of the screen Train as the lab does, up to the step
// that its clock has reached, so that Train and the stage draw it like a run that goes on, below a band that says so.
import { requests } from '../shared/api.js';
import { actionButton, html, perform, selectField } from '../shared/dom.js';
import { poll } from '../shared/poll.js';
import { openTab, showRun } from '../shared/session.js';
import { nearest } from './sample_texts.js';

const share = requests('share');
const train = requests('train');

export const REPLAY = 'lab-replay'; // the event: the replay has begun, moved on or ended
const SPEEDS = [1, 4, 16]; // 1: as long as the run took
const FIRST_SECONDS = 30; // the first speed is the lowest that takes no longer
const MIN_FRAME_MS = 60;
const POLL_MS = 1500;
const [PAUSE, PLAY] = [
  ['❚❚', 'Pause'],
  ['▶', 'Play'],
];

let count = 0;
let current = /** @type {Replay | null} */ (null); // of this page
export const currentReplay = () => current;

function publish(replay) {
  current = replay;
  window.dispatchEvent(new Event(REPLAY));
}

export function closeReplay() {
  current?.pause();
  if (current) publish(null);
}

/** Play a run under Train. @param {number | null} run its id; null: the recording that every lab has */
export async function openReplay(run) {
  const replay = new Replay(await share.replay({ run }));
  closeReplay();
  publish(replay);
  openTab('Train');
  if (matchMedia('(prefers-reduced-motion: reduce)').matches) replay.goTo(replay.lastFrame);
  else replay.play();
}

/** A button that plays a run. @param {() => number | null} run @param {string} label @param {string} style */
export function replayButton(run, label, style = 'small') {
  const notice = html`<span class="lab-notice bad" hidden></span>`;
  const open = () => perform(openReplay(run()), notice, [button]);
  const title = 'plays the recorded curves and texts; nothing is trained';
  const button = actionButton('replay', label, open, style, { title });
  return html`<span class="lab-replay-button">${button}${notice}</span>`;
}

export class Replay {
  /** @param {lab.Replay} recording */
  constructor(recording) {
    this.recording = recording;
    this.id = -(count += 1); // of no run
    this.at = 0; // of the frames
    this.rewinds = 0;
    const seconds = recording.frames.reduce((sum, frame) => sum + frame.seconds, 0);
    this.speed = SPEEDS.find((speed) => seconds / speed <= FIRST_SECONDS) ?? SPEEDS.at(-1);
    this.timer = /** @type {ReturnType<typeof setTimeout> | null} */ (null);
  }

  get lastFrame() {
    return this.recording.frames.length - 1;
  }

  get step() {
    return this.recording.frames[this.at].run.step;
  }

  // ---- the clock

  play() {
    if (this.at === this.lastFrame) this.goTo(0);
    this.schedule();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
    if (current === this) publish(this);
  }

  schedule() {
    clearTimeout(this.timer);
    const next = this.recording.frames[this.at + 1];
    const ms = next ? Math.max(MIN_FRAME_MS, (1000 * next.seconds) / this.speed) : 0;
    this.timer = next ? setTimeout(() => this.advance(), ms) : null;
    publish(this);
  }

  advance() {
    this.goTo(this.at + 1);
    this.schedule();
  }

  goTo(at) {
    const to = Math.max(0, Math.min(this.lastFrame, at));
    if (to < this.at) this.rewinds += 1;
    this.at = to;
    if (this.timer !== null) this.schedule();
    else publish(this);
  }

  setSpeed(speed) {
    this.speed = speed;
    if (this.timer !== null) this.schedule();
  }

  // ---- the answers of the lab

  /**
   * @param {{ epoch?: string | null, after_step?: number }} known
   * @returns {Promise<lab.RunPoll>}
   */
  async points({ epoch = null, after_step: after = -1 }) {
    const { feed, frames, samples, tokens } = this.recording;
    const now = `${this.id}.${this.rewinds}`;
    const reset = epoch !== now;
    if (!reset && after === this.step) return {};
    const isNew = (step) => step > (reset ? -1 : after) && step <= this.step;
    const points = Object.entries(feed.points).map(([name, all]) => [name, all.filter(([step]) => isNew(step))]);
    const frame = frames[this.at];
    const state = {
      ...feed,
      ...frame,
      run: { ...frame.run, id: this.id },
      epoch: now,
      elapsed_s: null,
      reset,
      last_step: this.step,
      points: Object.fromEntries(points),
      sample_steps: Object.keys(samples).map(Number).filter(isNew),
      static: {
        ...feed.static,
        events: feed.static.events.filter(({ step }) => step <= this.step),
        other_metrics: [],
        has_rollouts: Object.keys(tokens).length > 0,
      },
    };
    return { state };
  }

  async samples({ step }) {
    return this.recording.samples[step];
  }

  async tokens({ step }) {
    return this.recording.tokens[nearest(this.tokenSteps(), step)];
  }

  // The steps with tokens so far; the first one if there is none yet.
  tokenSteps() {
    const [first, ...later] = Object.keys(this.recording.tokens).map(Number);
    return first === undefined ? [] : [first, ...later.filter((step) => step <= this.step)];
  }

  async metric_points({ metric }) {
    return { points: this.recording.feed.points[metric].filter(([step]) => step <= this.step) };
  }
}

export class ReplayBand {
  /** @param {Replay} replay */
  constructor(replay) {
    this.replay = replay;
    this.known = {}; // of the lab's own run
    const { title, recorded_at: at, model, algorithm } = replay.recording;
    const day = new Date(1000 * at).toLocaleDateString('en-GB', { day: 'numeric', month: 'long', year: 'numeric' });
    this.playButton = actionButton('replay-play', '', () => this.toggle());
    this.slider = html`<input
      type="range" min="0" max=${replay.lastFrame} step="1" aria-label="step of the recording" data-do="replay-step"
      oninput=${(event) => replay.goTo(Number(event.target.value))}
    />`;
    this.position = html`<span class="position"></span>`;
    this.live = html`<p class="lab-row live" role="status" hidden></p>`;
    this.node = html`<section class="lab-replay" aria-label="recording" tabindex="-1">
      <p class="lab-row">
        <strong>Recording<span class="wide"> of ${day}</span>: this is a replay, not training.</strong>
        <span class="of">${title} · ${algorithm.toUpperCase()} · ${model}</span>
      </p>
      <div class="lab-row" role="group" aria-label="playback">
        ${this.playButton} ${actionButton('replay-back', '◀ Step back', () => this.stepBack())}
        ${this.slider}${this.position} ${this.speedField()}
        ${actionButton('replay-close', ['End', html`<span class="wide"> recording</span>`], closeReplay)}
      </div>
      ${this.live}
    </section>`;
    this.listener = () => this.draw();
    window.addEventListener(REPLAY, this.listener);
    this.draw();
    poll(this.node, () => this.lookForLiveRun(), POLL_MS);
  }

  speedField() {
    const { replay } = this;
    const choose = ({ target }) => replay.setSpeed(Number(target.value));
    const items = SPEEDS.map((speed) => [speed, `${speed}×`]);
    return selectField('replay-speed', 'speed, 1× is that of the training', choose, items, replay.speed);
  }

  toggle() {
    if (this.replay.timer === null) this.replay.play();
    else this.replay.pause();
  }

  stepBack() {
    this.replay.pause();
    this.replay.goTo(this.replay.at - 1);
  }

  draw() {
    const { replay, slider, position } = this;
    if (current !== replay) {
      window.removeEventListener(REPLAY, this.listener);
      return;
    }
    const text = `step ${replay.step} of ${replay.recording.feed.run.total_steps}`;
    slider.value = replay.at;
    slider.setAttribute('aria-valuetext', text);
    position.replaceChildren(html`<span class="wide">step </span>`, text.slice('step '.length));
    position.dataset.step = replay.step;
    const [sign, word] = replay.timer === null ? PLAY : PAUSE;
    if (this.playButton.ariaLabel === word) return; // a new text would lose a click
    this.playButton.ariaLabel = word;
    this.playButton.replaceChildren(sign, html`<span class="wide"> ${word}</span>`);
  }

  async lookForLiveRun() {
    const { state } = await train.points({ run: null, ...this.known });
    if (!state) return;
    const { epoch, last_step: afterStep, static_id: staticId, revision, run } = state;
    this.known = { epoch, after_step: afterStep, static_id: staticId, revision };
    const text = { running: 'is training now', queued: 'waits to train' }[run.status];
    this.live.hidden = !text;
    if (this.live.dataset.text === `${run.id} ${text}`) return;
    this.live.dataset.text = `${run.id} ${text}`;
    this.live.replaceChildren(
      html`<b class="lab-grow">Run ${run.id} ${text}.</b>`,
      actionButton('replay-live', 'Watch it live', () => showRun(run.id), 'small lab-main'),
    );
  }
}

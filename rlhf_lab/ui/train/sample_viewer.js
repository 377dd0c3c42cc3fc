// The samples of a run, beside its curves: the texts of one step, and a slider that selects the step.
import { markedDiff } from '../shared/diff.js';
import { actionButton, html, promptView, textView, withCut } from '../shared/dom.js';
import { term } from '../shared/glossary.js';
import { operatorOnly } from '../shared/session.js';
import { scoreBadge, stepText } from './sample_texts.js';

const MAX_CACHED = 50; // steps: a page may show a run of thousands for hours

export class SampleViewer {
  /**
   * @param {number} run
   * @param {(query: { run: number, step: number }) => Promise<lab.StepSamples>} fetchSamples
   * @param {{ onStep: (step: number) => void, onTokens: () => void, onWhy?: (row: lab.SampleRow) => void }} listeners
   *   onStep: another step was selected; onTokens: the button Tokens was pressed; onWhy: the button Which labels?
   */
  constructor(run, fetchSamples, { onStep, onTokens, onWhy = null }) {
    this.onWhy = onWhy;
    this.run = run;
    this.fetchSamples = fetchSamples;
    this.onStep = onStep;
    this.steps = [];
    this.step = null;
    this.followsLatest = true; // show the newest step
    this.epoch = null;
    this.shownKey = null;
    this.pendingKey = null;
    this.isScheduled = false;
    this.cache = {};
    this.node = this.build(onTokens);
    this.slider = this.node.querySelector('[data-do=scrub]');
    this.rows = this.node.querySelector('.rows');
  }

  build(onTokens) {
    return html`<aside class="side lab-scroll" aria-label="samples">
      <div class="lab-row">
        <h2>Samples</h2>
        <strong data-at aria-live="off"></strong>
        <span class="lab-grow"></span>
        <button type="button" class="lab-button small" data-do="to-tokens" onclick=${onTokens}>Tokens</button>
        <button
          type="button" class="lab-button small" data-do="latest" aria-pressed="true"
          onclick=${() => this.goTo(this.steps.at(-1), true)}
        >
          Latest
        </button>
      </div>
      <div class="scrub">
        <input
          type="range" min="0" max="0" step="1" value="0" aria-label="step of the samples" data-do="scrub"
          oninput=${() => this.scrub()}
        />
      </div>
      <p class="muted">Same prompts and seeds as at the start; changed words are marked in similar texts.</p>
      <div class="rows"><p class="lab-empty">The base model first writes samples for the fixed prompts.</p></div>
    </aside>`;
  }

  // ---- the step

  goTo(step, isLatest = false) {
    if (step === undefined || step === null) return;
    [this.step, this.followsLatest] = [step, isLatest];
    this.updateSlider();
    this.load();
    this.onStep(step);
  }

  scrub() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      const i = Number(this.slider.value);
      this.goTo(this.steps[i], i === this.steps.length - 1);
    });
  }

  // Add steps that have samples; with reset, replace all steps by these.
  addSteps(epoch, steps, reset) {
    this.epoch = epoch;
    this.steps = reset ? steps : [...this.steps, ...steps];
    const last = this.steps.at(-1);
    const isBehind = this.followsLatest || !this.steps.includes(this.step);
    if (this.steps.length && isBehind && (this.step !== last || reset)) this.goTo(last, true);
    this.updateSlider();
  }

  updateSlider() {
    const { node, slider, step, steps } = this;
    slider.max = Math.max(0, steps.length - 1);
    slider.value = Math.max(0, steps.indexOf(step));
    slider.disabled = steps.length < 2;
    slider.setAttribute('aria-valuetext', stepText(step));
    const label = node.querySelector('[data-at]');
    label.textContent = stepText(step);
    label.dataset.at = step ?? '';
    const latest = node.querySelector('[data-do=latest]');
    latest.setAttribute('aria-pressed', this.followsLatest);
    latest.disabled = !steps.length;
  }

  // ---- the texts

  // Called with every poll until the samples have arrived, because a reply may be lost.
  async load() {
    const key = `${this.epoch}/${this.step}`;
    if (this.step === null || this.shownKey === key || this.pendingKey === key) return;
    if (!this.cache[key]) {
      if (!this.shownKey) this.rows.replaceChildren(html`<p class="lab-empty">Loading the texts of this step …</p>`);
      this.pendingKey = key;
      try {
        this.cache[key] = await this.fetchSamples({ run: this.run, step: this.step });
        const [oldest, ...others] = Object.keys(this.cache);
        if (others.length >= MAX_CACHED) delete this.cache[oldest];
      } catch (error) {
        return;
      } finally {
        this.pendingKey = null;
      }
    }
    if (key !== `${this.epoch}/${this.step}`) return;
    this.shownKey = key;
    this.draw(this.cache[key]);
  }

  draw({ rows, step }) {
    const { scrollTop } = this.node;
    const samples = rows.map((row, i) => sample(row, step, i === 0, this.onWhy));
    if (!rows.length) samples.push(html`<p class="lab-empty">No samples were stored at this step.</p>`);
    this.rows.replaceChildren(...samples);
    this.node.scrollTop = scrollTop;
  }
}

/**
 * @param {lab.SampleRow} row
 * @param {number} step
 * @param {boolean} isFirst whether its words open their definitions
 * @param {((row: lab.SampleRow) => void) | null} onWhy
 */
function sample(row, step, isFirst, onWhy) {
  const showsBase = step !== 0 && row.base_text !== null;
  const badge = (name, value, base) => {
    const shown = scoreBadge(name, value, showsBase ? base : null);
    if (!shown) return null;
    return html`<span class="lab-badge ${shown.style}" title=${shown.title}>
      ${isFirst ? term(name) : name} ${shown.text}
    </span>`;
  };
  return html`<article class="lab-card sample">
    ${promptView(row.turns, 'muted')}
    <div class="pair">
      ${
        showsBase &&
        html`<div class="before">
          <span class="tag">${isFirst ? term('base') : 'base'}</span>${withCut(textView(row.base_text), row.base_cut)}
        </div>`
      }
      <div class="now">
        <span class="tag">${step === 0 ? 'base' : `step ${step}`}</span>
        ${withCut(showsBase ? markedDiff(row.base_text, row.text) : textView(row.text), row.cut)}
      </div>
    </div>
    <div class="lab-row">
      ${badge('score', row.score, row.base_score)} ${badge('gold', row.gold, row.base_gold)}
      <span class="lab-grow"></span>${onWhy && row.score !== null && row.text && operatorOnly(whyButton(row, onWhy))}
    </div>
  </article>`;
}

const whyButton = (row, onWhy) =>
  actionButton('sample-why', 'Which labels?', () => onWhy(row), 'small', {
    title: 'opens Reward model with this text',
  });

// @ts-check
// The card "Words that raise or lower the score": a text of the labels or of one's own, scored token by token.
import { conversationField } from '../shared/dom.js';
import { formatDifference, formatDuration, formatNumber } from '../shared/format.js';
import { html } from '../shared/html.js';
import { labelsBehind } from './labels_behind.js';

const HINT = 'Hover over a word, or move to it with Tab, to see its value.';
const LAST_TOKEN_ONLY =
  '. This reward model reads only the last token, so single words have no score. Train one with pooling "mean" to ' +
  'see them.';
const ENGINE_HINT =
  'Waiting for the engine (it answers between the steps of a run; if it was stopped, it loads the model first)';

export class WordScores {
  /** @param {any} api the requests of the screen @param {() => any} container where the scores are drawn */
  constructor(api, container) {
    this.api = api;
    this.container = container;
    this.draft = null; // {prompt, turns, text} as typed; turns: of a prompt that was not typed
    this.reset();
  }

  reset() {
    this.pending = null; // {askedAt, job, running} of the text being explained
    this.result = null; // {score, tokens, token_scores, instant} or {failure}
    this.job = 0; // of the result
    this.removed = null; // the label that was taken out last
    this.isChanging = false;
    this.problem = ''; // why it could not be taken out or put back
  }

  /** @param {import('../api_types').RewardReport} report */
  card(report) {
    const texts = report.example_texts;
    this.model = report.id;
    this.draft ||= texts[0] ? { ...texts[0] } : { prompt: '', turns: null, text: '' };
    const field = (name) =>
      html`<textarea
        class="lab-input" rows="4" dir="auto" data-do="explain-${name}"
        oninput=${(event) => this.type(name, event.target.value, picker)}
      ></textarea>`;
    const [prompt, text] = [field('prompt'), field('text')];
    const conversation = conversationField(prompt, 'explain-edit');
    const fill = () => {
      [prompt.value, text.value] = [this.draft.prompt, this.draft.text];
      conversation.show(this.draft.turns);
    };
    const picker = this.picker(texts, fill);
    fill();
    return html`<div class="lab-card words">
      <div class="lab-row"><h3>Words that raise or lower the score</h3>${picker}</div>
      <div class="twice">
        <label><span class="muted">prompt</span>${conversation.shown}${prompt}</label>
        <label><span class="muted">text; change a word to see the effect</span>${text}</label>
      </div>
      <div class="lab-row">
        <button type="button" class="lab-button small" data-do="explain" onclick=${() => this.explain()}>
          Show words
        </button>
        ${conversation.edit}
      </div>
      <div class="tokens" data-do="tokens"></div>
    </div>`;
  }

  type(name, value, picker) {
    this.draft[name] = value;
    if (name === 'prompt') this.draft.turns = null;
    picker.value = '';
  }

  picker(texts, fill) {
    const shorten = (words) => (words.length > 60 ? `${words.slice(0, 60)}…` : words);
    const node = html`<select
      class="lab-input pick" aria-label="text to explain" data-do="explain-pick"
      onchange=${() => {
        if (node.value === '') return;
        this.draft = { ...texts[Number(node.value)] };
        fill();
        this.explain();
      }}
    >
      <option value="">a text of my own</option>
      ${texts.map((item, i) => html`<option value=${i}>${`${item.tag}: ${shorten(item.text)}`}</option>`)}
    </select>`;
    node.value = String(
      texts.findIndex(({ text, prompt }) => text === this.draft.text && prompt === this.draft.prompt),
    );
    if (node.selectedIndex < 0) node.value = '';
    return node;
  }

  async explain() {
    const pending = { askedAt: Date.now(), job: null, running: false };
    this.result = null;
    this.pending = pending;
    this.draw();
    const { prompt, text } = this.draft;
    try {
      pending.job = (await this.api.explain({ model: this.model, prompt, text })).job;
    } catch (error) {
      this.finish(pending, { failure: error.message });
    }
  }

  async update() {
    const { pending } = this;
    if (!pending) return;
    if (pending.job) {
      const answer = await this.api.explanation({ job: pending.job });
      pending.running = answer.running;
      if (!answer.is_waiting) this.finish(pending, answer);
    }
    this.draw();
  }

  finish(pending, result) {
    if (this.pending !== pending) return;
    this.result = result;
    Object.assign(this, { job: pending.job, removed: null, problem: '' });
    this.pending = null;
    this.draw();
  }

  labels() {
    const { instant } = this.result;
    return instant ? labelsBehind(instant, this, (label, putBack) => this.change(label, putBack)) : '';
  }

  // Take a label out or put it back; the score by the present labels follows at once.
  async change(label, putBack) {
    const { job } = this;
    if (this.isChanging) return;
    Object.assign(this, { isChanging: true, problem: '' });
    try {
      await this.api.take_out_label({ vote: label.vote, put_back: putBack });
      this.removed = putBack ? null : label;
      const result = await this.api.explanation({ job });
      if (this.job === job && this.result) this.result = result;
    } catch (error) {
      this.problem = error.message;
    } finally {
      this.isChanging = false;
    }
    this.draw();
  }

  draw() {
    const container = this.container();
    if (!container) return;
    if (this.result) container.replaceChildren(resultView(this.result), this.labels());
    else
      container.replaceChildren(
        this.pending ? html`<p class="muted" role="status">${waitingText(this.pending)}</p>` : '',
      );
  }
}

const waitingText = ({ running, askedAt }) =>
  `${running ? 'The engine is scoring the text' : ENGINE_HINT} (${formatDuration((Date.now() - askedAt) / 1000)}) …`;

function resultView({ failure, score, tokens, token_scores: scores }) {
  if (failure) return html`<p class="lab-notice bad" role="alert">${failure}</p>`;
  const total = html`<strong>Score ${formatNumber(score, 2)} sd</strong>`;
  if (!scores) return html`<p role="status">${total}${LAST_TOKEN_ONLY}</p>`;
  const limit = Math.max(0.5, ...scores.slice(0, -1).map(Math.abs)); // the end's score is that of the whole text
  const hint = html`<p class="muted tell" aria-live="polite">${HINT}</p>`;
  const show = (event) => {
    hint.textContent = event.target.closest?.('.token')?.title || HINT;
  };
  const hide = () => {
    hint.textContent = HINT;
  };
  return html`<p role="status">
      ${total}<span class="muted">: the mean over its word pieces; 0 is the average text of the base model</span>
    </p>
    <div class="legend" aria-hidden="true">
      <span>lowers ${formatDifference(-limit, 2)}</span><i></i><span>raises ${formatDifference(limit, 2)}</span>
    </div>
    <p
      class="lab-text pieces lab-scroll" dir="auto"
      onmouseover=${show} onmouseout=${hide} onfocusin=${show} onfocusout=${hide}
    >${tokens.map((token, i) => tokenView(token, scores[i], limit, i === tokens.length - 1))}</p>
    ${hint}`;
}

function tokenView(token, value, limit, isLast) {
  const name = token.trim() || (isLast ? 'the end, which has read the whole text' : 'space');
  const label = `“${name}”: ${formatDifference(value, 2)} sd`;
  const strength = Math.min(1, Math.abs(value) / limit).toFixed(2);
  return html`<span
    class="token ${value >= 0 ? 'up' : 'down'}" tabindex="0" title=${label} aria-label=${label}
    style="--strength: ${strength}"
  >${token === '' && isLast ? '⏎' : token}</span>`;
}

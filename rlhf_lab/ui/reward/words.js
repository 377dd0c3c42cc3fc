// The card "Words that raise or lower the score": a text of the labels or of one's own, scored token by token.
import { actionButton, conversationField, html, setText } from '../shared/dom.js';
import { formatDifference, formatDuration, formatNumber } from '../shared/format.js';
import { openTab } from '../shared/session.js';
import { labelsBehind, missingText } from './labels_behind.js';

const HINT = 'Hover over a word, or move to it with Tab, to see its value.';
const CLICK_HINT = `${HINT} Click it, or press Enter, to see the labels behind it.`;
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
    this.back = null; // {tab, scroll} of the screen that asked for a text
    this.shown = 0; // how many texts other screens have asked for
    this.reset();
  }

  reset() {
    this.pending = null; // {askedAt, job, running, word} of the text, or its word, being explained
    this.asked = null; // {prompt, text} of the result
    this.result = null; // {score, tokens, token_scores, instant} or {failure}
    this.job = 0; // of the result
    this.word = null; // {name, tokens, job, result} of the word whose labels are shown
    this.removed = null; // {label, votes} that were taken out last
    this.isChanging = false;
    this.problem = ''; // why it could not be taken out or put back
  }

  // Explain a text of another screen.
  /** @param {{prompt: string, turns: any, text: string, back: {tab: string, scroll: number}}} wanted */
  show({ back, ...draft }) {
    this.draft = draft;
    this.back = back;
    this.shown += 1;
  }

  /** @param {lab.RewardReport} report */
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
        ${conversation.edit} ${this.back && backButton(this.back)}
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
      <option value="">another text</option>
      ${texts.map((item, i) => html`<option value=${i}>${`${item.tag}: ${shorten(item.text)}`}</option>`)}
    </select>`;
    node.value = String(
      texts.findIndex(({ text, prompt }) => text === this.draft.text && prompt === this.draft.prompt),
    );
    if (node.selectedIndex < 0) node.value = '';
    return node;
  }

  // word: {name, tokens} of the explained text; null to explain the text of the card.
  async explain(word = null) {
    const pending = { askedAt: Date.now(), job: null, running: false, word };
    const { prompt, text } = this.draft;
    if (!word) Object.assign(this, { result: null, asked: { prompt, text } });
    Object.assign(this, { pending, word: null });
    this.draw();
    try {
      pending.job = (await this.api.explain({ model: this.model, ...this.asked, tokens: word?.tokens ?? null })).job;
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
      if (!answer.is_waiting) {
        this.finish(pending, answer);
        return;
      }
    }
    const waiting = this.container()?.querySelector('.waiting');
    if (waiting) waitingTexts(pending).forEach((text, i) => setText(waiting.children[i], text));
    else this.draw();
  }

  finish(pending, result) {
    if (this.pending !== pending) return;
    const { word, job } = pending;
    Object.assign(this, { pending: null, removed: null, problem: '' });
    if (word) this.word = { ...word, job, result };
    else Object.assign(this, { result, job });
    this.draw();
  }

  labels() {
    if (this.pending) return waitingView(this.pending);
    const { word } = this;
    const { instant, failure, has_adapter: hasAdapter } = (word ?? this).result;
    if (word && failure) return html`<p class="lab-notice bad" role="alert">${failure}</p>`;
    const about = { word: word?.name ?? '', hasAdapter, showText: () => this.showText() };
    const change = { takeOut: (label) => this.takeOut(label), putBack: () => this.putBack() };
    return instant ? labelsBehind(instant, this, about, change) : '';
  }

  showText() {
    this.word = null;
    this.draw();
  }

  takeOut(label) {
    return this.change(async () => {
      this.removed = { label, votes: await this.api.take_out_label({ vote: label.vote }) };
    });
  }

  putBack() {
    const { votes } = this.removed;
    return this.change(async () => {
      const back = await this.api.take_out_label({ put_back: votes });
      this.removed = null;
      this.problem = missingText(back.length, votes.length);
    });
  }

  // Change the labels; the score by the present ones follows at once.
  async change(request) {
    const { job, word } = this;
    if (this.isChanging) return;
    Object.assign(this, { isChanging: true, problem: '' });
    try {
      await request();
      const results = [await this.api.explanation({ job }), word && (await this.api.explanation({ job: word.job }))];
      if (this.job === job && this.result) this.result = results[0];
      if (word && this.word === word) this.word = { ...word, result: results[1] };
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
    if (!this.result) return container.replaceChildren(this.pending ? waitingView(this.pending) : '');
    const choose = this.result.instant && ((i) => this.explain(wordAt(this.result.tokens, i)));
    container.replaceChildren(resultView(this.result, choose), this.labels());
  }
}

// To where the text was chosen, and as far down.
function backButton({ tab, scroll }) {
  const goBack = () => {
    openTab(tab);
    setTimeout(() => window.scrollTo(0, scroll), 100); // Gradio shows it a little later
  };
  return actionButton('explain-back', `← Back to ${tab}`, goBack);
}

const waitingView = (pending) => {
  const [words, clock] = waitingTexts(pending);
  return html`<p class="muted waiting"><span role="status">${words}</span><span>${clock}</span></p>`;
};

// The word to which a token belongs: its tokens from the last white space to the next, {name, tokens: [first, end]}.
export function wordAt(tokens, index) {
  const startsWord = (i) => i === 0 || /^\s/.test(tokens[i]) || /\s$/.test(tokens[i - 1]) || tokens[i] === '';
  let [first, end] = [index, index + 1];
  while (!startsWord(first)) first -= 1;
  while (end < tokens.length && !startsWord(end)) end += 1;
  return { name: tokens.slice(first, end).join('').trim() || tokenName(tokens[index], true), tokens: [first, end] };
}

const waitingTexts = ({ running, askedAt }) => [
  running ? 'The engine is scoring the text' : ENGINE_HINT,
  ` (${formatDuration((Date.now() - askedAt) / 1000)}) …`,
];

// choose(i): a token was chosen; null where no labels are shown.
function resultView({ failure, score, tokens, token_scores: scores }, choose) {
  if (failure) return html`<p class="lab-notice bad" role="alert">${failure}</p>`;
  const total = html`<strong>Score ${formatNumber(score, 2)} sd</strong>`;
  if (!scores) return html`<p role="status">${total}${LAST_TOKEN_ONLY}</p>`;
  const limit = Math.max(0.5, ...scores.slice(0, -1).map(Math.abs)); // the end's score is that of the whole text
  const advice = choose ? CLICK_HINT : HINT;
  const value = html`<p class="tell" aria-live="polite"></p>`;
  const show = (event) => {
    value.textContent = event.target.closest?.('.token')?.title ?? '';
  };
  const hide = () => {
    value.textContent = '';
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
    >${tokens.map((token, i) =>
      tokenView(token, scores[i], limit, i === tokens.length - 1, choose && (() => choose(i))),
    )}</p>
    ${value}
    <p class="muted">${advice}</p>`;
}

const tokenName = (token, isLast) => token.trim() || (isLast ? 'the end, which has read the whole text' : 'space');

function tokenView(token, value, limit, isLast, choose) {
  const label = `“${tokenName(token, isLast)}”: ${formatDifference(value, 2)} sd`;
  const strength = Math.min(1, Math.abs(value) / limit).toFixed(2);
  return html`<span
    class="token ${value >= 0 ? 'up' : 'down'}" tabindex="0" title=${label} aria-label=${label}
    style="--strength: ${strength}" role=${choose ? 'button' : null} onclick=${choose}
    onkeydown=${choose && ((event) => event.key === 'Enter' && choose())}
  >${token === '' && isLast ? '⏎' : token}</span>`;
}

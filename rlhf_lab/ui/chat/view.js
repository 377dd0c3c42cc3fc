// Screen "Chat": a conversation with a model, whose answers appear while they are sampled; the base model answers
// beside it on request.
import { requests } from '../shared/api.js';
import { actionButton, controlsOf, conversationView, fillProposed, html, selectField } from '../shared/dom.js';
import { isKey, setOptions, textView, withCut } from '../shared/dom.js';
import { field, labelled, valuesOf } from '../shared/fields.js';
import { plural } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { poll } from '../shared/poll.js';
import { getItem, isOperator, setItem, WANTED_MODEL } from '../shared/session.js';

const api = requests('chat');

const POLL_MS = 250;
const OPTIONS_MS = 4000;
const NUMBERS = ['temperature', 'top_p', 'max_new_tokens', 'seed'];
const ENTER_HINT = 'Enter sends the message, Shift+Enter starts a new line.';
const CONTINUATION_HINT = 'This model was not trained to chat: it continues your text.';
const GO_ON_HINT = 'Press Continue for a longer text, or write a continuation yourself.';
const END_HINT = 'The model has ended the text. Write how it goes on, or start a new conversation.';
const DELETION_HINT = 'A conversation is deleted an hour after its last message';

export default class Chat {
  constructor(root, { is_demo: isDemo }) {
    this.root = root;
    this.isDemo = isDemo;
    this.fields = /** @type {Record<string, any>} */ ({}); // the controls of the form by name
    this.options = /** @type {lab.ChatOptions | null} */ (null);
    this.optionsRequestedAt = 0;
    this.proposed = { temperature: '', max_new_tokens: '128' };
    this.turns = /** @type {any[]} */ ([]); // the conversation before the answers on screen
    // The answers on screen: {sentAt, models, jobs (null until the lab has accepted the message), answers, firstAt}.
    this.exchange = /** @type {any} */ (null);
    this.isMakingPair = false;
    root.append(html`<div class="lab-card lab-empty" role="status">Loading the models …</div>`);
    poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    if (this.options) await this.updateAnswers();
    const lacksSteps = this.options && this.options.run !== this.chosenRun();
    if (!this.options || lacksSteps || Date.now() - this.optionsRequestedAt > OPTIONS_MS) await this.loadOptions();
    if (getItem(WANTED_MODEL)) await this.chooseWanted();
  }

  // Another screen asked for a checkpoint, perhaps before this one was drawn.
  async chooseWanted() {
    const [run, step] = getItem(WANTED_MODEL).split('/');
    setItem(WANTED_MODEL, '');
    this.fields.model.value = `run/${run}`;
    if (this.options.run !== Number(run)) await this.loadOptions();
    this.fields.step.value = step;
  }

  // ---- the form

  async loadOptions() {
    this.optionsRequestedAt = Date.now();
    const options = await api.options.ifChanged({ run: this.options ? this.chosenRun() : null });
    if (!options) return;
    const before = this.options;
    this.options = options;
    if (!before) this.buildForm();
    if (before && before.project !== options.project) this.begin();
    else if (before && String(before.examples) !== String(options.examples)) this.draw();
    this.refillForm();
    this.drawButtons();
  }

  buildForm() {
    this.root.replaceChildren(
      html`<div class="lab-card form">${this.modelChoice()} ${this.samplingSettings()}</div>
        <div class="lab-card talk">
          <div class="stage" data-do="chat-stage"></div>
          <p class="lab-notice bad" role="alert" hidden data-do="chat-error"></p>
          <div class="composer">
            <textarea
              class="lab-input" rows="2" dir="auto" aria-label="message" data-do="chat-message"
              oninput=${() => this.drawButtons()} onkeydown=${(event) => this.sendOnEnter(event)}
            ></textarea>
            ${actionButton('chat-send', 'Send', () => this.ask(), 'lab-main')}
            ${actionButton('chat-stop', 'Stop', () => this.stop(), '')}
            <span class="muted" data-do="chat-hint"></span>
          </div>
        </div>`,
    );
    this.fields = controlsOf(this.root, 'chat-');
    this.draw();
  }

  modelChoice() {
    return html`<div class="lab-row who">
      ${labelled(
        'Model',
        html`<div class="models">
          ${selectField('chat-model', 'model', () => this.loadOptions())}
          ${selectField('chat-step', 'step of the model', null)}
        </div>`,
      )}
      <label class="lab-row beside">
        <input type="checkbox" data-do="chat-beside" /><span>also show the ${term('base model')}</span>
      </label>
      <span class="lab-grow"></span>
      ${actionButton('chat-begin', 'New conversation', () => this.begin())}
    </div>`;
  }

  samplingSettings() {
    const number = (name, label, value, title, word = '') =>
      field(`chat-${name}`, label, { name, value, title, word, inputmode: 'decimal' });
    const topP = '0.05 to 1: sample only from the likeliest tokens that together have this probability';
    return html`<details class="sampling">
      <summary class="muted">Sampling settings</summary>
      <div class="fields">
        ${number('temperature', 'temperature', '', '0.05 to 5', 'temperature')}
        ${number('top_p', 'top-p', '1', topP, 'top-p')}
        ${number('max_new_tokens', 'longest response (tokens)', '128', '1 to 512')}
        ${number('seed', 'seed', '0', '0 or more', 'seed')}
      </div>
    </details>`;
  }

  refillForm() {
    const { fields, options } = this;
    setOptions(fields.model, options.models, options.models[1]?.[0] ?? 'base');
    const run = this.chosenRun();
    const steps = options.run === run ? options.steps : [];
    const stepName = (step) => `step ${step}${step === options.best ? ' (best)' : ''}`;
    setOptions(fields.step, [['latest', 'latest step'], ...steps.map((step) => [step, stepName(step)])], 'latest');
    fields.step.hidden = fields.beside.parentElement.hidden = run === null;
    fillProposed(fields, this.proposed, options);
    fields.message.placeholder = options.has_chat_template ? 'Write a message' : 'Write the beginning of a text';
  }

  chosenRun() {
    const { value } = this.fields.model;
    return value.startsWith('run/') ? Number(value.split('/')[1]) : null;
  }

  // [checkpoint, its name] of the models that answer; the first one's answer is part of the conversation.
  chosenModels() {
    const { fields, options } = this;
    const run = this.chosenRun();
    const base = ['base', 'Base model'];
    if (run === null) return [base];
    const latest = (options.run === run && options.steps.at(-1)) || 'latest';
    const step = fields.step.value === 'latest' ? latest : fields.step.value;
    const model = [`run/${run}/${step}`, `Run ${run}, ${step === 'latest' ? 'latest step' : `step ${step}`}`];
    return fields.beside.checked ? [model, base] : [model];
  }

  // ---- the conversation

  isWaiting() {
    const { exchange } = this;
    return Boolean(exchange) && (!exchange.answers.length || exchange.answers.some((answer) => answer.is_waiting));
  }

  // The conversation including the answer on screen, to which the next message is added.
  turnsSoFar() {
    const answer = this.exchange?.answers[0]?.text;
    const continues = this.exchange && !this.options.has_chat_template;
    return answer || continues ? [...this.turns, { role: 'assistant', content: answer || '' }] : this.turns;
  }

  // Whether an empty message asks for a longer continuation. After an empty answer it would be empty again.
  canContinue() {
    return !this.options.has_chat_template && Boolean(this.exchange?.answers[0]?.text.trim());
  }

  sendOnEnter(event) {
    if (!isKey(event, 'Enter') || event.shiftKey) return;
    event.preventDefault();
    this.ask();
  }

  async ask() {
    const text = this.fields.message.value;
    if (this.isWaiting() || (!text.trim() && !this.canContinue())) return;
    const before = { turns: this.turns, exchange: this.exchange };
    const models = this.chosenModels();
    const labels = models.map(([, name]) => name);
    this.turns = [...this.turnsSoFar(), { role: 'user', content: text }];
    const exchange = { sentAt: performance.now(), labels, jobs: null, answers: [], firstAt: [] };
    this.exchange = exchange;
    this.showError('');
    this.fields.message.value = '';
    this.draw();
    try {
      const jobs = await api.ask({
        turns: this.turns,
        forget: before.exchange?.jobs || [],
        models: models.map(([checkpoint]) => checkpoint),
        .../** @type {any} */ (valuesOf(this.root)), // the numbers as typed
      });
      exchange.jobs = jobs;
      this.drawButtons();
      await this.updateAnswers();
    } catch (error) {
      if (this.exchange !== exchange || exchange.jobs) return;
      Object.assign(this, before); // nothing was sent: the conversation is as before
      this.fields.message.value = text;
      this.draw();
      this.showError(error.message, error.field);
    }
  }

  stop() {
    if (this.exchange?.jobs) this.send(api.stop_answers({ jobs: this.exchange.jobs }));
  }

  begin() {
    if (this.exchange?.jobs) this.send(api.forget({ jobs: this.exchange.jobs }));
    this.turns = [];
    this.exchange = null;
    this.showError('');
    this.draw();
    this.fields.message.focus();
  }

  async makePair() {
    this.isMakingPair = true;
    this.drawAnswers();
    const isMade = await this.send(api.make_pair({ jobs: this.exchange.jobs }));
    this.isMakingPair = false;
    this.drawAnswers();
    if (!isMade) return;
    window.dispatchEvent(new CustomEvent('lab-pair'));
    location.hash = 'label';
  }

  // Whether a request succeeded; otherwise its error is shown.
  async send(request) {
    try {
      await request;
      return true;
    } catch (error) {
      this.showError(error.message, error.field);
      return false;
    }
  }

  async updateAnswers() {
    const { exchange } = this;
    if (!exchange?.jobs || !this.isWaiting()) return;
    const answers = await api.answers({ jobs: exchange.jobs });
    if (this.exchange !== exchange) return;
    answers.forEach((answer, i) => {
      if (answer.tokens && !exchange.firstAt[i]) exchange.firstAt[i] = (performance.now() - exchange.sentAt) / 1000;
    });
    const hasChanged = JSON.stringify(answers) !== JSON.stringify(exchange.answers);
    exchange.answers = answers;
    if (hasChanged) this.drawAnswers();
  }

  // ---- what is on screen

  showError(text, field = '') {
    const { error } = this.fields;
    error.hidden = !text;
    error.textContent = text;
    for (const name of ['message', ...NUMBERS]) this.fields[name].toggleAttribute('aria-invalid', name === field);
    if (NUMBERS.includes(field)) this.root.querySelector('details.sampling').open = true;
    if (field) this.fields[field].focus();
  }

  draw() {
    const { system_prompt: systemPrompt } = this.options;
    const messages = this.turns.map(({ role, content }) => ({ role, content: content.trim() }));
    const system = systemPrompt ? [{ role: 'system', content: systemPrompt }] : [];
    const history = [...system, ...messages.filter((turn) => turn.content)];
    this.fields.stage.replaceChildren(
      html`<div class="talked">
        ${this.turns.length ? conversationView(history, 'history') : this.examples()}
        <div class="answers" aria-live="polite" aria-busy="false"></div>
      </div>`,
    );
    this.drawAnswers();
  }

  // What can be sent with one click: prompts of the project.
  examples() {
    const { examples, has_chat_template: isChat } = this.options;
    const send = (text) => () => {
      this.fields.message.value = text;
      this.ask();
    };
    const what = isChat ? 'Ask the model something' : 'Write the beginning of a text';
    return html`<div class="examples" role="group" aria-label="examples">
      <p>${what}${examples.length ? ', or press an example:' : '.'}</p>
      ${examples.map((text) => actionButton('chat-example', text, send(text), ''))}
      <p class="muted">${DELETION_HINT}${this.canMakePairs() ? ', unless you label two answers.' : '.'}</p>
    </div>`;
  }

  drawAnswers() {
    const { exchange } = this;
    const container = this.fields.stage.querySelector('.answers');
    container.style.setProperty('--columns', exchange?.labels.length || 1);
    container.setAttribute('aria-busy', String(this.isWaiting()));
    const views = exchange
      ? exchange.labels.map((label, i) => answerView(label, exchange.answers[i], exchange.firstAt[i]))
      : [];
    container.replaceChildren(...views, ...[this.pairControls()].filter(Boolean));
    this.drawButtons();
  }

  // Visitors of a demo cannot: others would have to read what they write.
  canMakePairs() {
    return !this.isDemo || isOperator();
  }

  pairControls() {
    const answers = this.exchange?.answers || [];
    if (!this.canMakePairs() || answers.length < 2 || this.isWaiting() || answers.some((answer) => answer.error))
      return null;
    const areComplete = answers.every((answer) => answer.status === 'done');
    const areEqual = answers[0].text.trim() === answers[1].text.trim();
    const disabled = !areComplete || areEqual || this.isMakingPair;
    return html`<div class="lab-row pair">
      ${actionButton('chat-label', 'Label these two answers', () => this.makePair(), '', { disabled })}
      <span class="muted lab-grow">${pairHint(areComplete, areEqual)}</span>
    </div>`;
  }

  drawButtons() {
    const { fields } = this;
    const isWaiting = this.isWaiting();
    const hasText = Boolean(fields.message.value.trim());
    fields.send.disabled = isWaiting || (!hasText && !this.canContinue());
    const goesOn = this.canContinue() && !hasText;
    const isDone = !isWaiting && this.exchange?.answers[0]?.status === 'done';
    const continuationHint =
      !isDone || (hasText && this.canContinue()) ? CONTINUATION_HINT : goesOn ? GO_ON_HINT : END_HINT;
    fields.hint.textContent = this.options.has_chat_template ? ENTER_HINT : continuationHint;
    fields.send.textContent = goesOn ? 'Continue' : 'Send';
    fields.send.hidden = isWaiting;
    fields.stop.hidden = !isWaiting;
    fields.stop.disabled = !this.exchange?.jobs;
    fields.begin.disabled = isWaiting || !this.turns.length;
  }
}

/** @param {string} label @param {lab.Answer | undefined} answer @param {number | undefined} firstAt seconds */
function answerView(label, answer, firstAt) {
  const text =
    answer?.text.trim() || (answer && !answer.is_waiting ? html`<span class="muted">(the text ends here)</span>` : '…');
  const leftOut = answer?.turns_left_out
    ? `The conversation is too long for the model: its oldest ${plural(answer.turns_left_out, 'turn')} are left out.`
    : '';
  return html`<article class="reply" data-status=${answer?.status || 'queued'} aria-label=${label}>
    <div class="lab-row"><strong>${label}</strong><span class="muted">${statusText(answer, firstAt)}</span></div>
    ${[leftOut, answer?.note].filter(Boolean).map((note) => html`<p class="muted">${note}</p>`)}
    ${
      answer?.error
        ? html`<p class="lab-notice bad" role="alert">${answer.error}</p>`
        : withCut(textView(text), answer?.cut)
    }
  </article>`;
}

/** @param {lab.Answer | undefined} answer @param {number | undefined} firstAt seconds */
export function statusText(answer, firstAt) {
  if (!answer || answer.status === 'queued') return 'waiting for the engine';
  const tokens = `${plural(answer.tokens, 'token')}${firstAt ? `, the first after ${firstAt.toFixed(1)} s` : ''}`;
  if (answer.status === 'cancelled') return `stopped after ${tokens}`;
  if (answer.status === 'running') return answer.tokens ? `writing: ${tokens}` : 'reading the conversation';
  return answer.status === 'done' ? tokens : '';
}

function pairHint(areComplete, areEqual) {
  if (!areComplete) return 'Only answers that were not stopped can be labelled.';
  if (areEqual) {
    return (
      'Both answers are the same, so there is nothing to label. Choose another seed under Sampling settings and send ' +
      'the message again.'
    );
  }
  return (
    'This stores the conversation and both answers as a pair of the project, where others can see them, and shows ' +
    'the pair under Label.'
  );
}

// The form of a new project: its model with a check, its prompts with a preview, and its settings.
import { actionButton, controlsOf, html, promptView, selectField } from '../shared/dom.js';
import { control, field, labelled, valuesOf } from '../shared/fields.js';
import { formatBytes } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { checkResult, suitableSettings } from './model_check.js';

const OWN = 'own';
const OTHER = 'other';
const PREVIEW_DELAY_MS = 600;
const BRIEF_CHARS = 160;
const HINTS = {
  temperature: '0.05 to 5; lower: more similar texts, higher: more varied texts. Empty: chosen for the model',
  max_new_tokens: 'A text that has not ended by then is cut off. Longer texts take longer to write and to train on.',
  seed: 'In a lab of several people 0 is a random seed, so that nobody can compute the texts.',
  template_arguments: 'Values for the chat template of the model, as JSON. Example: {"enable_thinking": true}',
};

export class NewProject {
  // screen: sends requests and shows messages; settings: {models, prompt_sets, suffixes, max_bytes}.
  constructor(screen, settings) {
    this.screen = screen;
    this.settings = settings;
    this.timer = 0;
    this.node = html`<section class="lab-card make lab-operating" aria-label="new project">
      <h2>New project</h2>
      ${this.mainFields()}${this.promptFields()}${this.chatFields()}${this.buttons()}
      <div data-do="new-check-result" role="status"></div>
    </section>`;
    this.fields = controlsOf(this.node, 'new-');
  }

  mainFields() {
    const { models, prompt_sets: promptSets } = this.settings;
    const modelItems = [...models, [OTHER, 'another: a Hub id or a folder …']];
    const promptItems = [['', 'chosen for the model'], ...promptSets, [OWN, 'my own …']];
    const other = { placeholder: "owner/name on the Hub, or a folder on the lab's machine", hidden: true };
    return html`<div class="fields">
      ${labelled(
        'Model',
        selectField('new-model', 'model', () => this.chooseModel(), modelItems),
        control('new-other', 'Hub id or folder', { ...other, oninput: () => this.clearCheck() }),
      )}
      ${field('new-set', 'Prompts', { name: 'prompt_set', choices: promptItems, onchange: () => this.choosePrompts() })}
      ${field('new-name', 'Name', { name: 'name', placeholder: 'automatic', maxlength: 80 })}
      ${number('new-temperature', 'Temperature', 'temperature', { word: 'temperature', placeholder: 'automatic' })}
      ${number('new-length', 'Longest text', 'max_new_tokens', { placeholder: '64 tokens' })}
      ${number('new-seed', 'Seed', 'seed', { word: 'seed', value: '0' })}
    </div>`;
  }

  promptFields() {
    const suffixes = this.settings.suffixes;
    return html`<div class="own" hidden data-do="new-own">
      <textarea
        class="lab-input" data-do="new-text" aria-label="own prompts" rows="6" placeholder="One prompt per line."
        oninput=${() => this.typePrompts()}
      ></textarea>
      <div class="lab-row">
        ${actionButton('new-file-choose', 'Choose a file …', () => this.fields.file.click())}
        <input
          class="file" type="file" data-do="new-file" tabindex="-1" aria-hidden="true" accept=${suffixes.join(',')}
          onchange=${(event) => this.loadFile(event.target)}
        />
        <span class="muted" data-do="new-file-name"></span>
        <span class="muted">${suffixes.join(', ')}; .jsonl and .csv need a column "prompt"</span>
      </div>
      <div data-do="new-preview" role="status"></div>
    </div>`;
  }

  chatFields() {
    const systemPrompt = { name: 'system_prompt', type: 'textarea', rows: 3, maxlength: 10000, placeholder: 'none' };
    const templateArguments = {
      name: 'template_arguments',
      placeholder: 'automatic: thinking is off',
      title: HINTS.template_arguments,
    };
    return html`<details class="chat-settings">
      <summary>System prompt and chat template</summary>
      <div class="inside">
        ${field('new-system-prompt', 'System prompt', systemPrompt)}
        ${field('new-template-arguments', 'Template arguments', templateArguments)}
        <p class="muted">
          The model reads the ${term('system prompt')} before every conversation: for pairs, training and comparisons
          alike. A conversation with its own system message keeps it. If the ${term('chat template')} has no system
          role, the system prompt is placed at the beginning of the first user message. Both settings are fixed: to
          change them, create a new project.
        </p>
      </div>
    </details>`;
  }

  buttons() {
    return html`<div class="lab-row">
      ${actionButton('new-check', 'Check the model', () => this.check(), '')}
      ${actionButton('new-create', 'Create and open', () => this.create(), 'lab-main')}
      <span class="muted">The check reads the files that describe the model; it does not load the model.</span>
    </div>`;
  }

  // ---- what is chosen

  chooseModel() {
    const { model, other } = this.fields;
    other.hidden = model.value !== OTHER;
    this.clearCheck();
    if (!other.hidden) other.focus();
  }

  choosePrompts() {
    const { own, set, text } = this.fields;
    own.hidden = set.value !== OWN;
    if (!own.hidden) text.focus();
  }

  // The model; '' if it has to be typed first, which gets the focus.
  chosenModel() {
    const { model, other } = this.fields;
    const name = model.value === OTHER ? other.value.trim() : model.value;
    if (!name) other.focus();
    return name;
  }

  ownPrompts() {
    const { set, text } = this.fields;
    return set.value === OWN ? { text: text.value, file: text.dataset.file || '' } : {};
  }

  reset() {
    for (const field of this.node.querySelectorAll('input, textarea')) field.value = field.defaultValue;
    for (const field of this.node.querySelectorAll('select')) field.selectedIndex = 0;
    this.fields.other.hidden = this.fields.own.hidden = true;
    this.setFile('');
    this.fields.preview.replaceChildren();
    this.clearCheck();
  }

  // ---- prompts of one's own

  setFile(name) {
    this.fields.text.dataset.file = name;
    this.fields['file-name'].textContent = name;
  }

  typePrompts() {
    const hasText = Boolean(this.fields.text.value.trim());
    if (!hasText) this.setFile('');
    clearTimeout(this.timer);
    this.fields.preview.replaceChildren();
    if (hasText) this.timer = setTimeout(() => this.preview(), PREVIEW_DELAY_MS);
  }

  async loadFile(input) {
    const [file] = input.files;
    const { max_bytes: maxBytes } = this.settings;
    if (file && file.size > maxBytes) {
      const sizes = `${file.name} has ${formatBytes(file.size)}; at most ${formatBytes(maxBytes)} of prompts`;
      this.show(`${sizes} can be read. Choose a smaller file.`, true);
    } else if (file) {
      this.fields.text.value = await file.text();
      this.setFile(file.name);
      this.preview();
    }
    input.value = '';
  }

  async preview() {
    this.show('');
    const view = await this.screen.request('preview_prompts', this.ownPrompts()).then(promptsPreview, errorView);
    this.fields.preview.replaceChildren(view);
  }

  // ---- the model, and the project

  clearCheck() {
    this.fields['check-result'].replaceChildren();
  }

  setBusy(isBusy) {
    this.fields.check.disabled = this.fields.create.disabled = isBusy;
  }

  show(text, isError = false) {
    this.screen.showMessage(text, isError, this.fields['check-result']);
  }

  async check() {
    const model = this.chosenModel();
    if (!model) return;
    const result = this.fields['check-result'];
    this.setBusy(true);
    result.replaceChildren(html`<p class="muted">Checking the model; its first check takes some seconds …</p>`);
    const view = await this.screen
      .request('check_model', { model, max_new_tokens: this.fields.length.value })
      .then((reply) => html`${checkResult(reply.check)}${suitableSettings(reply)}`, errorView);
    this.setBusy(false);
    if (this.chosenModel() === model) result.replaceChildren(view);
  }

  async create(confirmed = false) {
    const model = this.chosenModel();
    if (!model) return;
    this.setBusy(true);
    this.show('Creating the project …');
    const values = { model, confirmed, ...this.ownPrompts(), ...valuesOf(this.node) };
    try {
      const reply = await this.screen.request('create', values);
      this.show(reply.message);
      if (reply.warning) this.askToConfirm(reply);
      else this.reset();
    } catch (error) {
      this.show(error.message, true);
    }
    this.setBusy(false);
    this.screen.notice.scrollIntoView({ block: 'nearest' });
  }

  /** @param {lab.Creation} reply */
  askToConfirm(reply) {
    this.fields['check-result'].replaceChildren(
      html`${checkResult(reply.check)}
        <div class="lab-notice lab-row" role="alert">
          ${reply.warning}
          ${actionButton('new-sure', 'Create it anyway', () => this.create(true))}
        </div>`,
    );
  }
}

const number = (action, label, name, more) =>
  field(action, label, { name, inputmode: 'decimal', title: HINTS[name], ...more });

const errorView = (error) => html`<p class="lab-notice bad">${error.message}</p>`;

/** @param {lab.PromptsPreview} preview */
function promptsPreview({ count, eval_count: evalCount, first_prompts: firstPrompts }) {
  const brief = (text) => (text.length > BRIEF_CHARS ? `${text.slice(0, BRIEF_CHARS)} …` : text);
  const items = firstPrompts.map((turns) => {
    const briefTurns = turns.map(({ role, content }) => ({ role, content: brief(content) }));
    return html`<li>${promptView(briefTurns, 'brief')}</li>`;
  });
  return html`<p class="muted">
      ${count} prompts: ${count - evalCount} to train on, ${evalCount}
      ${' '}${term('held-out prompts', 'kept for evaluation')}. The first:
    </p>
    <ol class="first">${items}</ol>`;
}

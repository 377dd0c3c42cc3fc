// The form of the screen "Compare": the prompt, the models of the columns, and how their texts are sampled and scored.
// It is built once; its options are refreshed in place, so that no input is lost.
import { actionButton, controlsOf, conversationField, fillProposed, html, isKey } from '../shared/dom.js';
import { selectField, setOptions } from '../shared/dom.js';
import { control, field, labelled, valuesOf } from '../shared/fields.js';
import { plural } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { otherScorersNote } from './texts.js';

const COLUMNS = [1, 2, 3];
const COLUMN_NAMES = ['first column', 'second column', 'third column'];
const NUMBERS = ['samples', 'seed', 'temperature', 'max_new_tokens'];
const NO_RUN =
  'No run has completed a step yet. Start one under Train to compare before and after; until then you can sample ' +
  'from the base model.';

export class CompareForm {
  // write(): the button was pressed. onModel(): another model was chosen.
  constructor({ write, onModel }) {
    this.write = write;
    this.onModel = onModel;
    this.options = /** @type {lab.CompareOptions} */ (/** @type {unknown} */ (null));
    this.isBusy = false;
    this.suggestedPrompt = ''; // the prompt that the page filled in
    this.proposed = { temperature: '', max_new_tokens: '64' };
    this.fields = /** @type {Record<string, any>} */ ({}); // by name
    this.fields.prompt = control('prompt', 'prompt', { type: 'textarea', rows: 2 });
    this.conversation = conversationField(this.fields.prompt, 'edit-prompt');
    this.source = html`<span class="muted">from the ${term('held-out prompts')}</span>`;
    this.chosen = html`<summary></summary>`;
    this.estimate = html`<span class="muted" data-do="estimate"></span>`;
    this.note = html`<p class="muted" hidden></p>`;
    this.error = html`<p class="lab-notice bad" role="alert" hidden data-do="compare-error"></p>`;
    this.pickers = COLUMNS.map((column) => this.modelPicker(column));
    this.fold = this.buildSettings();
    this.element = this.build();
    Object.assign(this.fields, controlsOf(this.element, ''));
  }

  // ---- building

  build() {
    const { fields, conversation } = this;
    const button = (name, label, onclick, classes = 'small', title = null) =>
      (fields[name] = actionButton(name, label, onclick, classes, { title }));
    return html`<div class="lab-card form">
      ${labelled(html`<span aria-hidden="true">Prompt</span>`, conversation.shown, fields.prompt)}
      <div class="lab-row">
        ${button('another', 'Another prompt', () => this.suggestPrompt())} ${conversation.edit} ${this.source}
      </div>
      <div class="fields wide">${this.pickers.slice(0, 2)}</div>
      <div class="lab-row">
        ${button('write', 'Write', () => this.write(), 'lab-main')}
        ${button('dice', 'Another seed', () => this.writeWithNewSeed(), 'small', 'write again with another seed')}
        ${this.estimate}
        <span class="muted lab-grow hint">
          The same ${term('seed')} gives every model the same random numbers. Words that differ from the first column
          are marked if the texts have much in common.
        </span>
      </div>
      ${this.note} ${this.error} ${this.fold}
    </div>`;
  }

  modelPicker(column) {
    return labelled(
      COLUMN_NAMES[column - 1],
      html`<div class="models">
        ${this.select(`model-${column}`, `model ${column}`, () => this.chooseModel(column))}
        ${this.select(`step-${column}`, `step of model ${column}`)}
      </div>`,
    );
  }

  buildSettings() {
    const update = () => this.updateSummary();
    return html`<details class="fold" oninput=${update} ontoggle=${update}>
      ${this.chosen}
      <div class="inside">
        <div class="fields">
          ${this.number('samples', 'samples each', '2', '1 to 16')}
          ${this.number('seed', 'seed', '0', '0 or more', 'seed')}
          ${this.number('temperature', 'temperature', '', '0.05 to 5', 'temperature')}
          ${this.number('max_new_tokens', 'maximum length (tokens)', '64', '1 to 512')}
        </div>
        <div class="fields wide">
          ${this.pickers[2]} ${labelled('scored by', this.select('reward', 'reward model for the scores'))}
          ${labelled(html`${term('gold')}: a judge’s own score`, this.select('judge', 'judge'))}
        </div>
      </div>
    </details>`;
  }

  select(name, label, onchange = () => {}) {
    const change = () => {
      this.keepChoice(name);
      onchange();
    };
    return (this.fields[name] = selectField(name, label, change));
  }

  number(name, label, value, title, word = '') {
    const onkeydown = (event) => isKey(event, 'Enter') && this.write();
    return field(name, label, { name, value, title, word, inputmode: 'decimal', onkeydown });
  }

  // ---- filling in

  /** @param {lab.CompareOptions} options */
  fill(options) {
    this.options = options;
    const newestRun = options.models.find(([id]) => id.startsWith('run/'))?.[0] ?? '';
    const defaults = ['base', newestRun, ''];
    for (const column of COLUMNS) {
      const models = [...(column > 1 ? [['', 'nothing']] : []), ...options.models];
      this.setOptions(`model-${column}`, models, defaults[column - 1]);
      this.fillSteps(column);
    }
    this.fillScorers();
    fillProposed(this.fields, this.proposed, options);
    this.updateSummary();
    this.updateButtons();
    this.fields.another.disabled = !options.prompts.length;
    this.source.hidden = !options.prompts.length;
    this.fields.prompt.placeholder = options.prompts.length ? '' : 'This project has no held-out prompts. Write one.';
    this.note.hidden = Boolean(newestRun);
    this.note.textContent = NO_RUN;
    if (!this.fields.prompt.value || this.fields.prompt.value === this.suggestedPrompt) {
      this.fillPrompt(options.prompts.includes(this.suggestedPrompt) ? this.suggestedPrompt : options.prompts[0] || '');
    }
  }

  fillSteps(column) {
    const { best_by_run: bestByRun, steps_by_run: stepsByRun } = this.options;
    const run = this.runInColumn(column);
    const node = this.fields[`step-${column}`];
    if (node.dataset.run !== String(run)) {
      delete node.dataset.chosen;
      node.dataset.run = run;
    }
    const steps = (run && stepsByRun[run]) || [];
    const named = steps.map((step) => [step, `step ${step}${step === bestByRun[run] ? ' (best)' : ''}`]);
    this.setOptions(`step-${column}`, [['latest', 'latest step'], ...named], 'latest');
    node.hidden = !run;
  }

  // The default until a person chooses: the reward model of the rightmost run, or without a run the newest one.
  fillScorers() {
    const { default_scorer: newest, scorer_by_run: scorerByRun, reward_models: rewardModels, judges } = this.options;
    const run =
      COLUMNS.map((column) => this.runInColumn(column))
        .filter(Boolean)
        .at(-1) || '';
    const [reward, judge] = scorerByRun[run] || newest || ['', ''];
    this.setOptions('reward', [...rewardModels, ['', 'no scores']], reward);
    this.setOptions('judge', [['', 'no judge'], ...judges.map((name) => [name, `judge ${name}`])], judge);
  }

  setOptions(name, items, fallback) {
    const node = this.fields[name];
    setOptions(node, items, fallback, Boolean(node.dataset.chosen));
  }

  fillPrompt(text) {
    this.suggestedPrompt = this.fields.prompt.value = text;
    this.conversation.show(this.options.conversations[text]);
  }

  suggestPrompt() {
    const { prompt } = this.fields;
    const others = this.options.prompts.filter((text) => text !== prompt.value);
    this.fillPrompt(others[Math.floor(Math.random() * others.length)] ?? prompt.value);
  }

  chooseModel(column) {
    this.fillSteps(column);
    this.fillScorers();
    this.onModel();
  }

  writeWithNewSeed() {
    this.fields.seed.value = String(Math.floor(Math.random() * 1e6));
    this.updateSummary();
    this.write();
  }

  // A person's choice is not replaced by another default.
  keepChoice(name) {
    this.fields[name].dataset.chosen = '1';
  }

  keepModels() {
    for (const column of COLUMNS) this.keepChoice(`model-${column}`);
  }

  // ---- reading

  // The run of a column; null for the base model, its best of n, and no model.
  runInColumn(column) {
    const model = this.fields[`model-${column}`].value;
    return model.startsWith('run/') ? model.split('/')[1] : null;
  }

  selectedRuns() {
    return [...new Set(COLUMNS.map((column) => this.runInColumn(column)).filter(Boolean))];
  }

  // Whether the details of the selected runs are known. A run without a reward model has no scorer.
  areRunsLoaded() {
    return this.selectedRuns().every((run) => this.options.steps_by_run[run]);
  }

  // [model, label] of the columns; of the latest step its number, so that the result can be reproduced.
  chosenModels() {
    return COLUMNS.map((column) => this.chosenModel(column)).filter(Boolean);
  }

  chosenModel(column) {
    const node = this.fields[`model-${column}`];
    const run = this.runInColumn(column);
    if (run === null) return node.value ? [node.value, node.selectedOptions[0].textContent] : null;
    const step = this.fields[`step-${column}`].value;
    const lastStep = (this.options.steps_by_run[run] || []).at(-1);
    if (step === 'latest' && lastStep !== undefined) {
      return [`run/${run}/${lastStep}`, `run ${run}, step ${lastStep} (latest)`];
    }
    return [`run/${run}/${step}`, `run ${run}, ${step === 'latest' ? 'latest step' : `step ${step}`}`];
  }

  // The models of the columns and the settings, as typed.
  /** @returns {any} */
  request() {
    return {
      shown_project: this.options.project,
      models: this.chosenModels().map(([model]) => model),
      reward_model_id: this.fields.reward.value,
      ...valuesOf(this.fold),
    };
  }

  // What is shown with the texts of the request.
  description() {
    const { judge, reward } = this.fields;
    return {
      labels: this.chosenModels().map(([, label]) => label),
      judge: judge.value,
      reward: reward.value,
      ...valuesOf(this.fold),
      scorersNote: otherScorersNote(this.selectedRuns(), this.options.scorer_by_run, reward.value),
    };
  }

  // ---- what is on screen

  // The settings as one line.
  updateSummary() {
    const { samples, seed, temperature, max_new_tokens: length, reward } = this.fields;
    const scorer = `${reward.value ? 'scored by reward model ' : ''}${reward.selectedOptions[0]?.textContent ?? ''}`;
    const texts = plural(Number(samples.value), 'text');
    const settings = `: ${texts} each, seed ${seed.value}, temperature ${temperature.value}, ${length.value} tokens, `;
    this.chosen.replaceChildren('Settings', html`<span class="muted">${settings}${scorer}</span>`);
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    this.fields.write.textContent = isBusy ? 'Writing …' : 'Write';
    this.updateButtons();
  }

  updateButtons() {
    this.fields.write.disabled = this.fields.dice.disabled = this.isBusy || !this.areRunsLoaded();
  }

  showError(text, field = '') {
    this.error.hidden = !text;
    this.error.textContent = text;
    for (const name of ['prompt', ...NUMBERS]) this.fields[name].toggleAttribute('aria-invalid', name === field);
    if (field && field !== 'prompt') this.fold.open = true;
    if (field) this.fields[field].focus();
  }
}

// Screen "Compare": columns of texts from the base model and checkpoints, with the same prompt and random numbers; and
// the blind test and the tournament below them.
import { requests } from '../shared/api.js';
import { html } from '../shared/html.js';
import { poll } from '../shared/poll.js';
import { BlindTest } from './blind_test/view.js';
import { CompareForm } from './form.js';
import { resultCard, updateWaitingTimes } from './results.js';
import { Tournament } from './tournament/view.js';

const api = requests('compare');

const POLL_MS = 700;
const OPTIONS_MS = 4000;
const MAX_RESULTS = 5; // on screen
const NO_RESULTS =
  'Press Write to see the texts of the models side by side. The last five results are kept while the page is open.';

export default class Compare {
  constructor(root) {
    this.root = root;
    this.options = /** @type {lab.CompareOptions | null} */ (null);
    this.optionsRequestedAt = 0;
    this.pending = /** @type {any} */ (null); // the comparison being sampled: results.js
    this.finished = /** @type {any[]} */ ([]); // the last ones, newest first
    this.estimatedKey = '';
    root.append(html`<div class="lab-card lab-empty" role="status">Loading the models …</div>`);
    poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    if (this.options) {
      this.blindTest.refreshIfWaiting();
      this.tournament.refreshIfWaiting();
      await this.updateEstimates();
      await this.updateResults();
      if (Date.now() - this.optionsRequestedAt < OPTIONS_MS && this.form.areRunsLoaded()) return;
    }
    await this.loadOptions();
    if (!this.form.areRunsLoaded()) await this.loadOptions();
  }

  build() {
    this.form = new CompareForm({ write: () => this.write(), onModel: () => this.loadOptions() });
    this.results = html`<div class="results"></div>`;
    this.root.replaceChildren(this.form.element, this.results);
    const getRequest = () => this.form.request();
    this.blindTest = new BlindTest({
      root: this.root,
      getRequest,
      onChange: () => {
        this.optionsRequestedAt = Date.now();
      },
    });
    this.tournament = new Tournament({ root: this.root, getRequest, chosenModels: () => this.form.chosenModels() });
  }

  // The options of the form, with details of the runs in the columns.
  async loadOptions() {
    this.optionsRequestedAt = Date.now();
    const before = this.options;
    if (before) this.form.updateButtons();
    const options = await api.options.ifChanged({ runs: before ? this.form.selectedRuns() : [] });
    if (!options) {
      this.blindTest.setTests();
      this.tournament.update(before.reward_models.length > 0);
      return;
    }
    this.options = options;
    if (!before) this.build();
    const projectChanged = Boolean(before) && before.project !== options.project;
    if (projectChanged) {
      this.finished = [];
      this.pending = null;
    }
    this.blindTest.setTests(options.tests, projectChanged);
    this.form.fill(options);
    for (const part of [this.blindTest, this.tournament]) part.setLimit(options.prompts.length); // held-out ones
    if (!before || projectChanged) this.drawResults();
    if (this.form.areRunsLoaded()) this.tournament.update(options.reward_models.length > 0, projectChanged);
  }

  // How long the forms on screen will take, while they can be sent.
  async updateEstimates() {
    const { models, samples, max_new_tokens, reward_model_id } = this.form.request();
    const query = {
      models,
      max_new_tokens,
      reward_model_id,
      samples,
      pairs: this.blindTest.pairCount.value,
      ...this.tournament.settings(),
    };
    const key = JSON.stringify([query, this.options.project, this.options.estimates_key]);
    if (key === this.estimatedKey) return;
    this.estimatedKey = key;
    const sentences = await api.estimates(query).catch((error) => {
      if (error.isReply) return null; // an invalid number
      this.estimatedKey = '';
      throw error;
    });
    if (key !== this.estimatedKey) return;
    this.form.estimate.textContent = sentences?.comparison ?? '';
    for (const [pairs, name] of /** @type {const} */ ([
      [this.blindTest, 'blind_test'],
      [this.tournament, 'tournament'],
    ])) {
      pairs.estimate.textContent = sentences?.[name] ?? '';
      pairs.size.textContent = sentences?.[`${name}_size`] ?? '';
    }
  }

  // ---- texts

  async write() {
    if (this.pending || !this.form.areRunsLoaded()) return;
    const item = { ...this.form.description(), startedAt: Date.now(), jobs: null, turns: null, columns: [] };
    this.pending = item;
    this.form.keepModels(); // also when others become the default
    this.form.showError('');
    this.drawResults();
    const { prompt } = this.form.fields;
    try {
      const reply = await api.sample({ prompt: prompt.value, ...this.form.request() });
      if (this.pending !== item) return;
      Object.assign(item, reply);
      this.drawResults();
    } catch (error) {
      if (this.pending !== item) return;
      this.pending = null;
      this.drawResults();
      this.form.showError(error.message, error.field);
      return;
    }
    await this.updateResults().catch(() => {}); // the next poll tries again
  }

  cancel() {
    const { jobs } = this.pending;
    if (jobs) api.cancel({ jobs }).catch((error) => this.form.showError(error.message));
    this.pending = null;
    this.drawResults();
  }

  async updateResults() {
    const item = this.pending;
    if (!item) return;
    if (!item.jobs) {
      updateWaitingTimes(this.results, item);
      return;
    }
    const { columns } = await api.completions({ jobs: item.jobs, judge: item.judge });
    if (this.pending !== item) return;
    const hasChanged = JSON.stringify(item.columns) !== JSON.stringify(columns);
    item.columns = columns;
    if (columns.every((column) => !column.is_waiting)) {
      this.finished = [item, ...this.finished].slice(0, MAX_RESULTS);
      this.pending = null;
    }
    if (hasChanged) this.drawResults();
    else updateWaitingTimes(this.results, item);
  }

  drawResults() {
    const cards = this.finished.map((item) => resultCard(item));
    if (this.pending) cards.unshift(resultCard(this.pending, () => this.cancel()));
    const empty = html`<div class="lab-card lab-empty">${NO_RESULTS}</div>`;
    this.results.replaceChildren(...(cards.length ? cards : [empty]));
    this.form.setBusy(Boolean(this.pending));
  }
}

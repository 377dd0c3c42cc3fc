// The card "Export" of the screen "Runs & data": labels, runs and reward models as files.
import { actionButton, html, optionList, showNotice } from '../shared/dom.js';
import { field, valuesOf } from '../shared/fields.js';
import { displayName } from '../shared/format.js';
import { operatorOnly } from '../shared/session.js';
import { offerDownload } from './elements.js';

const EXPORT_MS = 60 * 60_000; // time limit of an export
// The options of labels: name, label, choices by value.
/** @type {[string, string, Record<string, string>][]} */
const LABEL_OPTIONS = [
  ['source', 'whose labels', { human: 'by people', simulated: 'simulated', all: 'all, each marked' }],
  ['annotator', 'labelled by', {}],
  ['names', 'names', { true: 'with names', false: 'without names' }],
  [
    'layout',
    'rows',
    {
      training: 'for training, without ties',
      votes: 'every vote, with ties',
      explicit: 'TRL, explicit prompt',
      implicit: 'TRL, implicit prompt',
      'explicit+chats': 'TRL, explicit, chats',
      'implicit+chats': 'TRL, implicit, chats',
    },
  ],
  [
    'agreement',
    'agreement',
    { '0.0': 'any agreement', 0.5: 'half of the votes agree', 0.66: 'two thirds agree', '1.0': 'all agree' },
  ],
  ['trainer', 'a recipe trains', { reward: 'a reward model', dpo: 'the model, by DPO' }],
  [
    'format',
    'file format',
    { jsonl: 'JSON Lines', 'jsonl.gz': 'JSON Lines, gzip', json: 'JSON', csv: 'CSV', parquet: 'Parquet' },
  ],
];

export class ExportCard {
  // notice: moves below the card when it is used
  /** @param {lab.RunsRequests} api @param {HTMLElement} notice */
  constructor(api, notice) {
    this.api = api;
    this.notice = notice;
    this.drawn = ''; // what the card shows, as JSON
    this.running = new Set(); // kinds of the exports that are being written
    this.card = html`<section
      class="lab-card take lab-operating" aria-label="export" hidden onchange=${() => this.withdrawOffer()}
    ></section>`;
  }

  // Draws the card if what it offers has changed; choices are kept.
  /** @param {lab.RunsOverview} overview */
  update(overview) {
    const { project, labels, annotators, reward_models: models } = overview;
    const runs = overview.runs.filter((run) => !run.outside_file);
    const shown = JSON.stringify([
      project,
      labels,
      annotators,
      models,
      runs.map((run) => [run.id, run.name, run.step > 0]),
    ]);
    if (shown === this.drawn) return;
    this.drawn = shown;
    const chosen = [...this.card.querySelectorAll('select')].map((select) => [select.dataset.do, select.value]);
    this.card.hidden = false;
    this.card.replaceChildren(
      html`<h2>Export</h2>${this.labelRow(labels)} ${this.runRow(runs)} ${this.rewardModelRow(models)}`,
    );
    const source = this.control('source');
    if (!chosen.length && !labels.human && labels.simulated) source.value = 'simulated';
    for (const [name, value] of chosen) setIfOffered(this.card.querySelector(`[data-do="${name}"]`), value);
    this.fillAnnotators(annotators, chosen.find(([name]) => name === 'export-annotator')?.[1]);
    source.onchange = () => this.fillAnnotators(annotators);
    this.withdrawOffer();
  }

  control(name) {
    return this.card.querySelector(`[data-do="export-${name}"]`);
  }

  // A file that is on offer no longer matches this card.
  withdrawOffer() {
    if (this.notice.querySelector('[data-do=export-link]')) showNotice(this.notice, '');
  }

  /** @param {Record<string, number>} labels */
  labelRow(labels) {
    const { human, simulated } = labels;
    const description =
      `${human} by people, ${simulated} simulated. Prompt, chosen, rejected: the format that TRL reads. The data set ` +
      'has a card and a record of its provenance; load_dataset opens it. A recipe is a folder with a script that ' +
      'trains on them in TRL.';
    const fields = LABEL_OPTIONS.map(([name, label, choices]) =>
      field(`export-${name}`, label, { name, choices: Object.entries(choices) }),
    );
    const kinds = { labels: 'Labels', dataset: 'Data set (zip)', 'label-recipe': 'Recipe for TRL (zip)' };
    return this.row({ title: 'Labels', description, fields, kinds, isEnabled: human + simulated > 0 });
  }

  runRow(runs) {
    const description =
      'Metrics as CSV, samples, manifest; a page that opens without a lab and prints as a report; a recipe: a ' +
      'folder with data, reward and a script for TRL; or its latest checkpoint, as a LoRA ' +
      'adapter for PEFT or as a whole model that transformers, vLLM and llama.cpp load.';
    const choices = runs.length ? runs.map((run) => [run.id, `${run.id} ${run.name}`]) : [['', 'no run yet']];
    const kinds = {
      run: 'Run (zip)',
      page: 'Page to share',
      recipe: 'Recipe for TRL (zip)',
      adapter: 'Adapter (zip)',
      model: 'Whole model (zip)',
    };
    const fields = [field('export-which-run', 'run', { name: 'run', choices })];
    return this.row({ title: 'Run', description, fields, kinds, isEnabled: runs.length > 0 });
  }

  rewardModelRow(models) {
    const choices = models.length ? models : [['', 'none yet']];
    const fields = [field('export-which-model', 'reward model', { name: 'reward_model', choices })];
    const kinds = { 'reward-model': 'Reward model (zip)' };
    const description = 'Adapter, head and report.';
    return this.row({ title: 'Reward model', description, fields, kinds, isEnabled: models.length > 0 });
  }

  // kinds: labels of the buttons by what they export.
  row({ title, description, fields, kinds, isEnabled }) {
    const choices = html`<div class="lab-row">${operatorOnly(...fields)}</div>`;
    const button = ([kind, label]) => {
      const write = () => this.write(kind, valuesOf(choices));
      return actionButton(`export-${kind}`, label, write, 'small', { disabled: !isEnabled });
    };
    const buttons = Object.entries(kinds).map(button);
    return html`<div class="line">
      <div><h3>${title}</h3><p class="muted">${description}</p></div>
      <div class="controls">
        ${choices}
        <div class="lab-row">${operatorOnly(...buttons)}</div>
      </div>
    </div>`;
  }

  // All annotators and each one with labels of the chosen source.
  fillAnnotators(annotators, chosen = '') {
    const source = this.control('source').value;
    const names = source === 'all' ? Object.values(annotators).flat() : annotators[source];
    const items = [['', 'everybody'], ...names.map((name) => [name, displayName(name)])];
    this.control('annotator').replaceChildren(...optionList(items, chosen));
  }

  // ---- a file

  async write(kind, { annotator = '', ...choices }) {
    if (this.running.has(kind)) return;
    this.running.add(kind);
    this.card.after(this.notice);
    showNotice(this.notice, 'Writing the file …');
    try {
      const request = { kind, ...choices, annotators: [annotator].filter(Boolean) };
      offerDownload(this.notice, await this.api.export(request, EXPORT_MS), 'export-link');
    } catch (error) {
      showNotice(this.notice, error.message, true);
    }
    this.running.delete(kind);
    this.card.after(this.notice);
  }
}

function setIfOffered(node, value) {
  if ([...node.options].some((option) => option.value === value)) node.value = value;
}

// Screen "Reward model": accuracy, training, what it rewards. A card is redrawn only when its own data has changed.
import { requests } from '../shared/api.js';
import { html, redraw } from '../shared/dom.js';
import { plural } from '../shared/format.js';
import { nativeForm } from '../shared/native_form.js';
import { poll } from '../shared/poll.js';
import { getItem, isOperator, judgeHint, setItem, WANTED_TEXT } from '../shared/session.js';
import { accuracyCard, learningCurve, measuredModels, modelTable } from './accuracy.js';
import { attributesCard } from './attributes.js';
import { ChartSet } from './chart_set.js';
import { checkCard } from './check.js';
import { calibrationCard, disagreementsCard, hasCalibration, lossesCard, scoreHistogram } from './report_cards.js';
import { proposedSource, trainingBar, trainingCard, updateTraining } from './training.js';
import { WordScores } from './words.js';

const api = requests('reward');

const NEWEST = 'newest';

export default class RewardScreen {
  constructor(root, data, widget) {
    this.root = root;
    this.data = data;
    this.form = nativeForm(widget, (settings) => this.estimate(settings));
    this.charts = new ChartSet(data);
    this.words = new WordScores(api, () => this.root.querySelector('[data-do=tokens]'));
    this.state = /** @type {lab.RewardState | null} */ (null);
    this.report = /** @type {lab.RewardReport | null} */ (null); // of the shown model
    this.check = /** @type {lab.CheckView | null} */ (null); // of the shown model
    this.checkError = '';
    this.chosenId = null; // the selected model or NEWEST; null: the one that a new run learns from
    this.source = null; // the chosen label source; null: the one with more labels
    this.trainError = ''; // why the last training did not start
    this.estimates = {}; // how long a training takes, by the source of its labels
    this.estimatedKey = ''; // the values that the estimates depend on, except the settings
    this.pollNow = () => {};
    this.parts = this.partList().map(([name, key, build]) => {
      return { key, build, container: html`<div class="part ${name}-part" hidden></div>` };
    });
    root.append(html`<div class="lab-card lab-empty" role="status">Loading the reward models …</div>`);
    this.pollNow = poll(root, () => this.update(), 1000);
  }

  shownModel() {
    const models = this.state?.models || [];
    const newest = this.state?.models[0]?.id;
    const id = this.chosenId === NEWEST ? newest : (this.chosenId ?? this.state?.default_id);
    return models.find((model) => model.id === id) || models[0] || null;
  }

  // Each part of the screen: its name, a key (redrawn when that changes, hidden without one), and how it is built.
  /** @returns {Array<[string, () => any, () => any]>} */
  partList() {
    const { charts } = this;
    const report = (condition) => () => this.report && condition(this.report) && this.report.id;
    const measured = () => measuredModels(this.state.models);
    return [
      ['bar', () => this.barKey(), () => this.bar()],
      ['training', () => this.state.job?.id, () => trainingCard(charts, () => this.state.job?.loss || [])],
      ['intro', () => !this.state.models.length && !this.state.job && this.state.labels, () => introCard(this.state)],
      ['headline', () => this.headlineKey(), () => this.headline()],
      [
        'check',
        () => this.check && this.report && [this.check, this.checkError],
        () => checkCard(this.check, this.checkError, () => this.beginCheck()),
      ],
      [
        'attributes',
        () => this.report && [this.report.id, !!this.state.job],
        () => attributesCard(this.report, !!this.state.job, (name, ignore) => this.chooseAttribute(name, ignore)),
      ],
      [
        'curve',
        () => measured().length > 1 && measured().map(({ id, accuracy }) => [id, accuracy]),
        () => learningCurve(measured().reverse(), charts),
      ],
      ['histogram', report((one) => one.chosen_scores.length), () => scoreHistogram(this.report, charts)],
      [
        'words',
        () => this.report && [this.state.project, this.report.id, this.words.shown, this.scoresHidden()],
        () => (this.scoresHidden() ? scoresHiddenCard(this.scoresHidden()) : this.words.card(this.report)),
      ],
      ['calibration', report(hasCalibration), () => calibrationCard(this.report, charts)],
      ['losses', report((one) => !one.counts_hidden), () => lossesCard(this.report, charts)],
      ['disagreements', report((one) => one.disagreements.length), () => disagreementsCard(this.report)],
      ['table', () => this.shownModel() && [this.state.models, this.shownModel().id], () => this.table()],
    ];
  }

  // Why this person cannot have texts scored now; '' if they can.
  scoresHidden() {
    return isOperator() ? '' : this.state.scores_hidden;
  }

  barKey() {
    const { labels, job, failed, cancelled } = this.state;
    const training = job && [job.running, job.status_text];
    return [labels, training, failed, cancelled, this.trainError, this.source, this.estimates];
  }

  headlineKey() {
    const { models, default_id: defaultId, prediction_stats: predictions, instant } = this.state;
    return (
      this.shownModel() && [
        this.shownModel(),
        defaultId,
        predictions,
        instant,
        this.report?.id,
        measuredModels(models).length,
      ]
    );
  }

  headline() {
    const isOpen = this.root.querySelector('[data-do=other-measurements]')?.open;
    return accuracyCard(this.shownModel(), this.report, this.state, isOpen);
  }

  bar() {
    const source = this.source || proposedSource(this.state);
    const view = { source, error: this.trainError, estimate: this.estimates[source], isDemo: this.data.is_demo };
    return trainingBar(this.state, view, {
      train: () => this.train(source),
      trainAsVisitor: () => this.send(() => api.visitor_train({ last_training: this.state.last_training })),
      cancel: () => this.send(() => api.cancel({ job: this.state.job.id })),
      chooseSource: (chosen) => {
        this.source = chosen;
        this.pollNow();
      },
    });
  }

  table() {
    return modelTable(this.state, this.shownModel().id, (id) => {
      this.chosenId = id;
      this.pollNow();
    });
  }

  // ---- requests

  train(source) {
    const lastTraining = this.state.last_training;
    this.send(async () => api.train({ source, last_training: lastTraining, settings: await this.form.values() }));
  }

  chooseAttribute(attribute, ignore) {
    const { state, report } = this;
    this.chosenId = NEWEST; // also when it is trained
    this.send(() => api.choose_attribute({ model: report.id, attribute, ignore, last_training: state.last_training }));
  }

  async beginCheck() {
    const model = this.report.id;
    try {
      const check = await api.begin_check({ model, pairs: this.check.pairs });
      if (this.report?.id === model) Object.assign(this, { check, checkError: '' });
    } catch (error) {
      this.checkError = error.message;
    }
    this.draw();
  }

  // Other people's answers do not matter here until the screen is opened again.
  async updateCheck() {
    const model = this.report?.id;
    if (!model) this.check = null;
    else if (!this.check || this.check.is_open || this.check.can_judge) this.check = await api.check({ model });
  }

  async send(request) {
    this.trainError = '';
    try {
      await request();
    } catch (error) {
      this.trainError = error.message;
    }
    this.pollNow();
  }

  async estimate(settings) {
    if (!isOperator()) return;
    this.estimates = await api.estimates({ settings }).catch(() => ({}));
    if (this.state) this.draw();
  }

  async updateEstimates() {
    const { project, labels, estimates_key: estimatesKey } = this.state;
    const key = JSON.stringify([project, labels, estimatesKey]);
    if (key === this.estimatedKey || !isOperator()) return;
    this.estimatedKey = key;
    this.estimate(await this.form.values());
  }

  async update() {
    const state = await api.state();
    const before = this.state;
    this.state = state;
    if (!before) this.root.replaceChildren(...this.parts.map(({ container }) => container));
    if (before && before.project !== state.project) {
      this.chosenId = null;
      this.words.draft = null;
      this.trainError = '';
    }
    if (state.job || (before && JSON.stringify(before.labels) !== JSON.stringify(state.labels))) this.trainError = '';
    this.updateEstimates();
    if (getItem(WANTED_TEXT)) this.chosenId = JSON.parse(getItem(WANTED_TEXT)).model;
    const model = this.shownModel();
    const isNew = !model || this.report?.id !== model.id;
    if (isNew) {
      this.words.reset();
      Object.assign(this, { report: null, check: null, checkError: '' }); // nothing is drawn of another model meanwhile
      this.report = model ? await api.report({ model: model.id }) : null;
    }
    await this.updateCheck();
    this.draw();
    this.showWanted();
    await this.words.update();
  }

  // Explain the text that was chosen on another screen, by the reward model that its run uses now.
  showWanted() {
    if (!this.report || !getItem(WANTED_TEXT)) return;
    const { model, ...wanted } = JSON.parse(getItem(WANTED_TEXT));
    if (this.chosenId !== model) return; // asked for just now: the report of that model comes first
    this.words.show(wanted);
    setItem(WANTED_TEXT, '');
    this.draw();
    this.words.explain();
    this.root.querySelector('.words-part').scrollIntoView();
  }

  // ---- drawing

  draw() {
    for (const { key, build, container } of this.parts) {
      const value = key() || null;
      const newKey = JSON.stringify(value);
      if (container.dataset.key === newKey) continue;
      container.dataset.key = newKey;
      container.hidden = value === null;
      redraw(container, ...(value === null ? [] : [build()]));
    }
    this.charts.removeUnused();
    const training = this.root.querySelector('.training');
    if (training && this.state.job) updateTraining(training, this.state.job, this.charts);
  }
}

/** @param {string} reason */
const scoresHiddenCard = (reason) =>
  html`<div class="lab-card words">
    <h3>Words that raise or lower the score</h3>
    <p class="lab-notice" data-do="scores-hidden">${reason}</p>
  </div>`;

/** @param {lab.RewardState} state */
function introCard({ labels }) {
  const missing = Math.max(0, labels.goals.human - labels.human);
  return html`<div class="lab-card lab-empty" data-do="empty">
    <p>
      A reward model reads a text and gives it a score. It is trained on pairs so that the preferred text gets the
      higher score.
    </p>
    <p>
      ${
        missing > 0
          ? [`${plural(missing, 'more label')} under Label, then it is trained automatically`, judgeHint(';'), '.']
          : 'There are enough labels; training starts in a moment.'
      }
    </p>
  </div>`;
}

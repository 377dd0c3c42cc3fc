// Section "Quality of the labels": agreement, annotators, weights for the next reward model, unlikely labels.
import { requests } from '../../shared/api.js';
import { actionButton, html, keepFocus, promptView, selectField, showNotice } from '../../shared/dom.js';
import { perform, sparkline, textView } from '../../shared/dom.js';
import { displayName, formatInterval, formatMeasured, formatNumber, formatPercent } from '../../shared/format.js';
import { poll } from '../../shared/poll.js';
import { operatorOnly } from '../../shared/session.js';
import { scrollingTable } from '../elements.js';
import { alphaMeaning, remarks } from './remarks.js';

const api = requests('quality');
const POLL_MS = 4000;
const SOURCES = [
  ['human', 'votes of people'],
  ['simulated', 'simulated votes'],
];
// Metrics over time: label and number format.
const TREND_METRICS = {
  with_others: ['agreement with others', formatPercent],
  with_self: ['self-consistency', formatPercent],
  alpha: ['alpha', (value) => formatNumber(value, 2)],
  left: ['share of left', formatPercent],
  ties: ['share of ties', formatPercent],
  seconds: ['seconds a vote', (value) => formatNumber(value, 1)],
};

export default class Quality {
  constructor(root, { heaviest }) {
    this.root = root;
    this.heaviest = heaviest; // the largest weight
    this.figures = /** @type {lab.QualityFigures | null} */ (null);
    this.source = null; // as chosen; null until then
    this.trend = 'with_others'; // the metric in the table
    this.isActing = false;
    this.weights = new Map(); // annotator -> 0 (left out) to `heaviest`; 1 where missing
    this.notice = html`<p class="lab-notice" role="status" hidden data-do="quality-notice"></p>`;
    this.agreement = html`<section class="lab-card head" aria-label="agreement">
      <p class="muted" role="status">Loading the votes …</p>
    </section>`;
    this.annotators = html`<section class="lab-card crowd" aria-label="annotators" hidden></section>`;
    this.models = html`<section class="lab-card models" aria-label="reward models" hidden></section>`;
    this.unlikely = html`<section class="lab-card again" aria-label="labels to check again" hidden></section>`;
    root.append(this.notice, this.agreement, this.annotators, this.models, this.unlikely);
    poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    const reply = await api.state.ifChanged({ source: this.source });
    if (!reply) return;
    if (reply.figures?.project !== this.figures?.project) this.weights.clear();
    this.figures = reply.figures;
    if (reply.figures) {
      keepFocus(this.root, () => this.draw());
      return;
    }
    for (const card of [this.annotators, this.models, this.unlikely]) card.hidden = true;
    this.agreement.replaceChildren(html`<p class="muted">${reply.closed_text}</p>`);
  }

  // Show the reply to an action; until it has arrived, further ones are ignored.
  async act(request) {
    if (this.isActing) return;
    this.isActing = true;
    showNotice(this.notice, '');
    await perform(request(), this.notice);
    this.isActing = false;
    await this.update().catch(() => {});
  }

  draw() {
    const { agreement, models, unlikely, figures } = this;
    const setSource = (event) => {
      this.source = event.target.value;
      this.weights.clear();
      this.update();
    };
    agreement.replaceChildren(
      html`<div class="lab-row">
          ${selectField('quality-source', 'whose votes', setSource, SOURCES, figures.source)}
          ${figures.votes > 0 && html`<span class="muted">${figures.votes} votes</span>`}
        </div>
        ${figures.votes ? agreementView(figures) : html`<p class="muted">There are no such votes yet.</p>`}`,
    );
    this.drawAnnotators();
    models.hidden = !figures.reward_models.length;
    models.replaceChildren(modelsView(figures.reward_models));
    unlikely.hidden = !figures.unlikely_labels?.labels.length;
    unlikely.replaceChildren(unlikely.hidden ? '' : this.unlikelyLabelsView());
  }

  drawAnnotators() {
    const { people, unlisted_count: unlistedCount } = this.figures;
    this.annotators.hidden = !people.length;
    const columns = [
      'annotator', 'votes', 'agree with others', 'with themselves', 'left', 'ties', 'seconds', 'alpha without',
      this.trendSelect(), 'in the next reward model',
    ]; // prettier-ignore
    const unlisted = `${unlistedCount} with fewer votes are not listed; their weight is 1.`;
    this.annotators.replaceChildren(
      html`<div class="lab-row">
          <h3>Each annotator</h3>
          <span class="muted">hover over a figure for its interval</span>
        </div>
        ${scrollingTable(
          'annotators and their figures',
          columns,
          people.map((person) => this.annotatorRow(person)),
        )}
        ${unlistedCount > 0 && html`<p class="muted">${unlisted}</p>`}
        <div class="lab-row train"></div>`,
    );
    this.drawTrainRow();
  }

  trendSelect() {
    const choose = (event) => {
      this.trend = event.target.value;
      keepFocus(this.annotators, () => this.drawAnnotators());
    };
    const metrics = Object.entries(TREND_METRICS).filter(([key]) => key !== 'alpha');
    const items = metrics.map(([key, [name]]) => [key, `${name} over time`]);
    return selectField('quality-trend', 'what to show over time', choose, items, this.trend);
  }

  /** @param {lab.AnnotatorRow} person */
  annotatorRow(person) {
    const name = displayName(person.name);
    const share = (rate, word) =>
      html`<td class="figure" data-words=${word} title=${intervalOf(rate) || null}>${formatPercent(rate.share)}</td>`;
    return html`<tr data-name=${person.name}>
      <th scope="row" title=${person.name}>${name}<p class="muted">${remarks(person, this.figures.alpha)}</p></th>
      <td class="figure">${person.votes}</td>
      ${share(person.with_others, 'others')} ${share(person.with_self, 'self')} ${share(person.left, 'left')}
      ${share(person.ties, 'ties')}
      <td class="figure">${formatNumber(person.seconds, 2)}</td>
      <td class="figure">${formatNumber(person.alpha_without, 3)}</td>
      <td>${trendSparkline(person.time_buckets, this.trend, ` of ${name}`)}</td>
      <td>${this.weightSelect(person.name)}</td>
    </tr>`;
  }

  weightSelect(name) {
    const choose = (event) => {
      this.weights.set(name, Number(event.target.value));
      this.drawTrainRow();
    };
    const times = [2, 3, 5, this.heaviest].map((count) => [count, `counts ${count} times`]);
    const items = [[0, 'left out'], [1, 'counts once'], ...times];
    const label = `weight of ${displayName(name)}`;
    const weight = this.weights.get(name) ?? 1;
    return operatorOnly(selectField('quality-weight', label, choose, items, weight, { 'data-name': name }));
  }

  drawTrainRow() {
    const { people, is_training: isTraining, source } = this.figures;
    const leftOutCount = people.filter((person) => this.weights.get(person.name) === 0).length;
    const included = leftOutCount ? `Without ${leftOutCount} of ${people.length}.` : 'All annotators are included.';
    const train = () => this.act(() => api.train({ source, weights: Object.fromEntries(this.weights) }));
    this.annotators.querySelector('.train').replaceChildren(
      operatorOnly(
        actionButton('quality-train', 'Train a reward model with these weights', train, 'small', {
          disabled: isTraining,
        }),
      ),
      html`<span class="muted">
        ${
          isTraining
            ? 'One is being trained; wait for it.'
            : `${included} Train reward models with and without an annotator and compare them below.`
        }
      </span>`,
    );
  }

  unlikelyLabelsView() {
    const { source, unlikely_labels: unlikely } = this.figures;
    const explanation =
      `Labels that reward model ${unlikely.reward_model_id} finds least likely, without training on them. Some are ` +
      'mistakes of annotators, some are errors of the model.';
    return html`<div class="lab-row">
        <h3>Unlikely labels: ${source === 'human' ? "people's" : 'simulated'} labels</h3>
        <span class="muted lab-grow">${explanation}</span>
      </div>
      <ol>${unlikely.labels.map((label) => this.unlikelyLabel(label))}</ol>`;
  }

  unlikelyLabel(label) {
    const side = (choice) => {
      const isChosen = label.choice === choice;
      return html`<div class="text lab-scroll" data-chosen=${isChosen && '1'}>
        ${isChosen && html`<span class="lab-badge accent">chosen</span>`}
        ${textView(label[choice].trim())}
      </div>`;
    };
    const ask = () => this.act(() => api.ask_again({ vote_id: label.vote_id }));
    const askAgain = actionButton('quality-again', 'Ask again', ask, 'small', {
      title: 'set the vote aside and ask this annotator again',
    });
    const isOfPerson = this.figures.source === 'human'; // a judge would give the same answer
    return html`<li data-vote=${label.vote_id}>
      ${promptView(label.turns, 'asked lab-scroll')}
      <div class="two">${side('first')} ${side('second')}</div>
      <div class="lab-row">
        <span class="muted lab-grow">
          ${displayName(label.annotator)}; the model gives this label ${formatPercent(label.probability)}
        </span>
        ${label.is_set_aside ? html`<span class="muted">set aside</span>` : isOfPerson && operatorOnly(askAgain)}
      </div>
    </li>`;
  }
}

/** @param {lab.QualityFigures} figures */
function agreementView(figures) {
  const interval = intervalOf(figures.agreement);
  const measured = Object.keys(TREND_METRICS).filter((key) => figures.time_buckets.some((b) => b[key] !== null));
  return html`<div class="figures">
      <div>
        <div class="big" data-do="quality-alpha">${formatNumber(figures.alpha, 3)}</div>
        <span class="muted">Krippendorff's alpha: 1 is perfect, 0 is chance</span>
      </div>
      <div>
        <div class="big" data-do="quality-agreement">${formatPercent(figures.agreement.share)}</div>
        <span class="muted">
          ${
            interval
              ? `of two votes on the same pair agree (${interval})`
              : 'no pair has two votes, so their agreement is not known'
          }
        </span>
      </div>
    </div>
    <p>${alphaMeaning(figures.alpha)}</p>
    <div class="trends">
      ${measured.map(
        (key) => html`<figure data-trend=${key}>
          <figcaption class="muted">${TREND_METRICS[key][0]} over time</figcaption>
          ${trendSparkline(figures.time_buckets, key)}
        </figure>`,
      )}
    </div>`;
}

function modelsView(models) {
  const named = ([name, weight]) => `${displayName(name)}${weight === 1 ? '' : ` ×${weight}`}`;
  const rows = models.map((model) => {
    const moreCount = model.annotator_count - model.people.length;
    const isMeasured = model.accuracy !== null;
    return html`<tr>
      <th scope="row">${model.id}</th>
      <td class="figure">${model.labels}</td>
      <td>
        ${model.people.map(named).join(', ')}${moreCount > 0 && ` and ${moreCount} more`}
        ${model.has_selection && html`<span class="lab-badge">chosen people</span>`}
      </td>
      <td class="figure">
        ${isMeasured ? formatMeasured(model) : 'not measured'}
      </td>
    </tr>`;
  });
  const columns = ['reward model', 'labels', 'learned from', 'held-out pairs ranked as labelled'];
  return html`<div class="lab-row">
      <h3>Reward models and the annotators whose labels they were trained on</h3>
      <span class="muted">start PPO on any of them under Train</span>
    </div>
    ${scrollingTable('reward models', columns, rows)}`;
}

const intervalOf = (rate) =>
  rate.share === null ? '' : `95 %: ${formatInterval(rate.low, rate.high)}, of ${rate.count}`;

// From 0 to 1; seconds: from 0 to the largest value. suffix: whose votes.
function trendSparkline(buckets, key, suffix = '') {
  const [name, format] = TREND_METRICS[key];
  const values = buckets.map((bucket) => bucket[key]);
  const maximum = key === 'seconds' ? Math.max(...values, 1e-9) : 1;
  const texts = values.map((value) => (value === null ? 'unknown' : format(value)));
  return sparkline(values, (value) => 26 - (24 * Math.max(0, value)) / maximum, {
    role: 'img',
    'aria-label': `${name}${suffix} over time: ${texts.join(', ')}`,
  });
}

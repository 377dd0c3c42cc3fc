// The card "Comparison" of the screen "Runs & data": charts of the chosen runs, and which of their settings differ.
import { countAxis, drawChart } from '../shared/charts.js';
import { html, selectField, setOptions } from '../shared/dom.js';
import { plotlyText } from '../shared/format.js';
import { definitionOf, term } from '../shared/glossary.js';
import { scrollingTable } from './elements.js';

const MAX_NAME_CHARS = 60;
const MAX_MARKED_POINTS = 150;

export class Comparison {
  /** @param {lab.RunsRequests} api */
  constructor(api, data) {
    this.api = api;
    this.data = data;
    this.metric = 'objective/scores';
    this.slots = /** @type {Map<number, number>} */ (new Map()); // run id -> color
    this.reply = /** @type {lab.Comparison | null} */ (null);
    this.onMetric = () => {}; // called after another metric was chosen
    this.card = html`<section class="lab-card compare" aria-label="compare runs" hidden>
      <div class="lab-row">
        <h2>Comparison</h2>
        ${selectField('runs-metric', 'metric', () => this.chooseMetric())}
        <span class="muted about"></span>
      </div>
      <ul class="legend" aria-label="legend"></ul>
      <p class="muted none" hidden>Tick runs in the list to draw them here.</p>
      ${plots(data.buckets)}
      <div class="differs"></div>
    </section>`;
  }

  chooseMetric() {
    this.metric = this.part('select').value;
    this.onMetric();
  }

  part(selector) {
    return this.card.querySelector(selector);
  }

  /** @param {Map<number, number>} slots */
  async update(slots) {
    this.slots = slots;
    const revision = this.reply?.revision ?? '';
    const reply = await this.api.compare({ runs: [...slots.keys()], metric: this.metric, revision });
    if (!reply) return;
    this.reply = reply;
    this.draw();
  }

  drawIfVisible() {
    if (this.reply && this.card.offsetParent !== null) this.draw();
  }

  draw() {
    const runs = this.reply.runs.filter((run) => this.slots.has(run.id));
    this.part('.none').hidden = runs.length > 0;
    this.part('.drawn').hidden = !runs.length;
    const origin = (run) => run.outside_file && ` (made elsewhere: ${run.outside_file})`;
    this.part('.legend').replaceChildren(...runs.map((run) => html`<li>${this.nameOf(run)}${origin(run)}</li>`));
    this.drawMetrics();
    this.part('.differs').replaceChildren(this.differences(runs));
    if (!runs.length) return;
    this.drawMetric(runs);
    const goldTraces = this.frontiers(runs, 'gold'); // without gold scores the other chart takes the full width
    this.part('figure.gold').hidden = !goldTraces.length;
    this.part('.two').classList.toggle('alone', !goldTraces.length);
    this.plot('.plot.score', this.frontiers(runs, 'score'), '√KL (√nats)', 'score (sd)', 'score');
    if (goldTraces.length) this.plot('.plot.gold', goldTraces, '√KL (√nats)', "gold (judge's points)", 'gold');
  }

  /** @param {lab.ComparedRun} run */
  nameOf(run) {
    return html`<i class="swatch" data-slot=${this.slots.get(run.id) + 1}></i>${run.id} ${run.name}`;
  }

  /** @param {lab.ComparedRun} run */
  colorOf(run) {
    const series = `--series-${this.slots.get(run.id) + 1}`;
    return getComputedStyle(this.card).getPropertyValue(series).trim();
  }

  // ---- charts

  /** @param {lab.ComparedRun[]} runs */
  drawMetric(runs) {
    const { metric } = this.reply;
    const [title, unit] = titleOf(this.data.titles, metric) || [metric, ''];
    this.part('.plot.wide').setAttribute('aria-label', `${title} over the steps of ${runs.length} runs`);
    const traces = runs.map((run) => ({
      ...this.trace(run, run.points, 'step %{x}: %{y:.4g}'),
      mode: run.points.length > MAX_MARKED_POINTS ? 'lines' : 'lines+markers',
      connectgaps: false,
      marker: { size: 4, color: this.colorOf(run) },
    }));
    const lastStep = Math.max(0, ...traces.flatMap((trace) => trace.x));
    this.plot('.plot.wide', traces, 'step', `${title}${unit ? ` (${unit})` : ''}`, metric, countAxis(lastStep));
  }

  /** @param {lab.ComparedRun[]} runs @param {'score' | 'gold'} name */
  frontiers(runs, name) {
    return runs
      .map((run) => ({ run, points: run[`${name}_frontier`] }))
      .filter(({ points }) => points.length)
      .map(({ run, points }) => ({
        ...this.trace(run, points, `%{customdata}<br>√KL %{x:.3g}, ${name} %{y:.3g}`),
        mode: 'lines+markers',
        marker: { size: points.map((_, i) => (i === points.length - 1 ? 9 : 5)), color: this.colorOf(run) },
        customdata: points.map(([, , first, last]) => (first === last ? `step ${first}` : `steps ${first}–${last}`)),
      }));
  }

  // hover: plotly's template of the text at a point.
  /** @param {lab.ComparedRun} run */
  trace(run, points, hover) {
    const name = plotlyText(run.name, MAX_NAME_CHARS) + (run.outside_file ? ' (made elsewhere)' : '');
    return {
      x: points.map((point) => point[0]),
      y: points.map((point) => point[1]),
      name,
      line: { color: this.colorOf(run), width: 2 },
      hovertemplate: `${run.id} ${name}<br>${hover}<extra></extra>`,
    };
  }

  plot(selector, traces, xTitle, yTitle, revision, axis = {}) {
    const margin = { t: 8, r: 12, b: 40, l: 50 };
    drawChart(this.part(selector), traces, this.data, {
      xTitle, yTitle, margin, uirevision: revision, xaxis: { automargin: true, ...axis },
    }); // prettier-ignore
  }

  drawMetrics() {
    const { metrics: measured, metric: drawn } = this.reply;
    const select = this.part('select');
    const metrics = measured.includes(this.metric) ? measured : [this.metric, ...measured];
    const items = metrics.map((name) => {
      const title = titleOf(this.data.titles, name);
      return [name, title ? `${title[0]} (${name})` : name];
    });
    if (select !== document.activeElement) setOptions(select, items, this.metric, false);
    this.part('.about').textContent = definitionOf(drawn);
  }

  /** @param {lab.ComparedRun[]} runs */
  differences(runs) {
    const { setting_differences: differences } = this.reply;
    if (runs.length < 2 || runs.length < this.reply.runs.length) return '';
    const note = differences.length
      ? 'Only settings that differ are listed.'
      : 'No differences: same settings, labels, seed, device and versions. The metrics should be the same too.';
    const rows = differences.map(
      ({ name, about, values }) => html`<tr>
        <th scope="row" title=${about || null}>${name}</th>
        ${values.map((value) => html`<td>${value}</td>`)}
      </tr>`,
    );
    const columns = ['setting', ...runs.map((run) => this.nameOf(run))];
    return html`<div class="lab-row"><h3>What differs</h3><span class="muted">${note}</span></div>
      ${rows.length > 0 && scrollingTable('what differs', columns, rows)}`;
  }
}

// [title, unit] of one of the lab's metrics. Other names are those of a file, such as __proto__.
const titleOf = (titles, metric) => (Object.hasOwn(titles, metric) ? titles[metric] : null);

function plots(buckets) {
  const figure = (name, title, description, label) =>
    html`<figure class=${name}>
      <div class="lab-row"><h3>${term(name, title)}</h3><span class="muted">${description}</span></div>
      <div class="plot ${name}" role="img" aria-label="${label} over the square root of KL"></div>
    </figure>`;
  return html`<div class="drawn">
    <div class="plot wide" role="img" aria-label="metric over the steps"></div>
    <div class="two">
      ${figure('score', 'Score against √KL', 'what the run maximises', 'score')}
      ${figure('gold', 'Gold against √KL', 'what the score is meant to measure', 'gold score')}
    </div>
    <p class="muted how">
      Distance from the base grows to the right; the large dot is the end. A dot is the mean of a few steps in a row
      (point at it to see which), at most ${buckets} a run. Where the score still rises and gold falls, the policy
      exploits the reward model (over-optimisation, Gao et al. 2022).
    </p>
  </div>`;
}

// The curves of a run: those that every run has, its reward terms, and metrics that a person adds.
import { chartConfig, chartTheme, integerTick, sizeObserver } from '../shared/charts.js';
import { html, optionList, palette, selectField } from '../shared/dom.js';
import { formatNumber } from '../shared/format.js';
import { definitionOf, term } from '../shared/glossary.js';
import { axisRanges, changeMarkers, lineMode } from './chart_layout.js';

const MAX_POINTS = 2500; // of a curve in the page; a longer one is requested again, thinned
const FIRST_CHARTS = 4; // in view when the screen opens
const TERM_PREFIX = 'objective/reward/';
const EXPLANATION =
  'The sentence under each curve describes the mean of its last 5 steps (fewer before step 10), because single steps ' +
  'are noisy. "Since the start" compares it with the first 5 steps, "now" with the 5 steps before. "Highest" or ' +
  '"lowest around step" is said of a curve that was clearly higher or lower in between. "Within ' +
  'the noise": chance alone may cause such a change; if the newest step does not confirm one, it is "up and down". ' +
  'Short lines at the foot of the curves mark where a run that trains while people label got new labels.';

export class Curves {
  /**
   * @param {{ curves: any[], layout: any, config: any }} data of the widget
   * @param {(metric: string) => Promise<lab.MetricPoints>} fetchMetric
   * @param {(step: number) => void} onStep a point was clicked
   * @param {HTMLElement} details of the run, placed after the first charts
   */
  constructor(data, fetchMetric, onStep, details) {
    this.data = data;
    this.fetchMetric = fetchMetric;
    this.onStep = onStep;
    this.extraCharts = {}; // reward terms and added metrics, by metric
    this.changes = [];
    this.step = null; // of the samples
    this.isRemoved = false;
    this.details = details;
    this.grid = html`<div class="grid" role="group" aria-label="curves"></div>`;
    this.moreGrid = html`<div class="grid"></div>`;
    this.moreSelect = selectField('more', 'another metric', (event) => this.add(event.target.value));
    this.none = html`<div class="lab-card lab-empty">The curves start with the first step.</div>`;
    this.explanation = html`<p class="muted">${EXPLANATION}</p>`;
    this.more = html`<div class="more">
      <details data-do="more-fold">
        <summary class="muted">More metrics</summary>
        <div class="lab-row" style="margin:10px 0">${this.moreSelect}</div>
        ${this.moreGrid}
      </details>
    </div>`;
    this.node = html`<div class="curves">${this.none}${this.grid}${this.explanation}${this.more}</div>`;
    this.charts = Object.fromEntries(data.curves.map((curve) => [curve.metric, this.chart(this.grid, curve)]));
    this.grid.prepend(details);
  }

  chart(grid, curve) {
    return new MetricChart(grid, curve, this.data, this.onStep);
  }

  all() {
    return [...Object.values(this.charts), ...Object.values(this.extraCharts)];
  }

  /** Returns whether a curve has become so long that all points should be requested again.
   * @param {lab.FeedReply} reply @param {lab.StaticState} fixed */
  draw(reply, fixed) {
    const hasSteps = reply.last_step > 0;
    this.none.hidden = hasSteps;
    this.explanation.hidden = !hasSteps;
    this.more.hidden = !fixed.other_metrics.length; // a recording has none
    for (const [metric, chart] of Object.entries(this.charts)) {
      chart.addPoints(reply.points[metric] || [], reply.reset);
      const verdict = reply.verdicts[metric];
      if (verdict) chart.showVerdict(verdict.level, verdict.message);
      chart.unit.hidden = Boolean(fixed.without_unit?.includes(metric)); // the shipped recording does not have it
    }
    this.listMetrics(fixed.other_metrics);
    let previous = this.charts['loss/value_avg'];
    for (const [metric, weight] of fixed.reward_terms) {
      previous = this.extraCharts[metric] ??= this.termChart(metric, weight, previous);
    }
    for (const metric of Object.keys(this.extraCharts)) this.refresh(metric);
    this.placeDetails();
    return Object.values(this.charts).some((chart) => chart.pointCount > MAX_POINTS);
  }

  mark(changes, step) {
    [this.changes, this.step] = [changes, step];
    for (const chart of this.all()) chart.mark(changes, step);
  }

  placeDetails() {
    const shown = this.grid.querySelectorAll('figure:not([hidden])');
    const last = shown[Math.min(FIRST_CHARTS, shown.length) - 1];
    if (last && last.nextElementSibling !== this.details) last.after(this.details);
  }

  // The curves of reward terms, of which the score consists, are placed after those that every run has.
  termChart(metric, weight, previous) {
    const title = `Reward term: ${metric.slice(TERM_PREFIX.length)}`;
    const chart = this.chart(this.grid, { metric, title, unit: '', documented: `${TERM_PREFIX}<term>` });
    previous.figure.after(chart.figure);
    chart.showVerdict('info', `Mean of the sampled texts. Its weight in the score is ${formatNumber(weight)}.`);
    return chart;
  }

  listMetrics(names) {
    if (this.moreSelect.options.length === names.length + 1) return;
    const items = names.map((name) => [name, name]);
    this.moreSelect.replaceChildren(...optionList([['', 'choose a metric …'], ...items]));
  }

  add(metric) {
    this.moreSelect.value = '';
    if (!metric || this.extraCharts[metric]) return;
    const chart = this.chart(this.moreGrid, { metric, title: metric, unit: '' });
    this.extraCharts[metric] = chart;
    chart.showVerdict('info', definitionOf(metric));
    this.refresh(metric);
  }

  // A lost reply is requested again with the next step.
  async refresh(metric) {
    const reply = await this.fetchMetric(metric).catch(() => null);
    if (!reply || this.isRemoved) return;
    this.extraCharts[metric].addPoints(reply.points, true);
    this.extraCharts[metric].mark(this.changes, this.step);
  }

  restyle() {
    for (const chart of this.all()) chart.restyle();
  }

  remove() {
    this.isRemoved = true;
    for (const chart of this.all()) chart.remove();
  }
}

// The theme of the page as layout changes of a chart that is already drawn.
function themeChanges(plot) {
  const { font, axis, hoverlabel } = chartTheme(plot);
  return {
    font,
    'xaxis.gridcolor': axis.gridcolor,
    'yaxis.gridcolor': axis.gridcolor,
    'yaxis.zerolinecolor': axis.zerolinecolor,
    'xaxis.color': axis.color,
    'yaxis.color': axis.color,
    'xaxis.spikecolor': axis.color,
    'hoverlabel.bgcolor': hoverlabel.bgcolor,
    'hoverlabel.bordercolor': hoverlabel.bordercolor,
    'hoverlabel.font.color': hoverlabel.font.color,
  };
}

// A live curve. Points are appended, so that zoom is kept; markers and colours are applied again.
export class MetricChart {
  /**
   * @param {{ append: (node: any) => void }} container
   * @param {{ metric: string, title: string, unit: string, documented?: string, least?: number }} curve
   *   documented: the metric whose definition it has, if not its own; least: a value up to which its axis reaches
   * @param {{ layout: any, config: any }} base of plotly
   * @param {(step: number) => void} onStep a point was clicked
   */
  constructor(container, curve, base, onStep) {
    this.base = base;
    this.least = curve.least;
    this.isShare = curve.unit === 'share'; // drawn in percent
    this.onStep = onStep;
    this.pointCount = 0;
    this.changes = []; // {step, text} of the markers
    this.markersKey = '';
    this.isDrawn = false;
    this.range = { lastStep: 0, min: Infinity, max: -Infinity }; // of all points
    this.cursorStep = null;
    // The line at the step of the samples is a separate element, so that moving it does not redraw the chart.
    this.cursor = html`<i class="cursor" hidden></i>`;
    this.plot = html`<div class="plot" role="img" aria-label="${curve.title} over the steps"></div>`;
    this.verdict = html`<figcaption class="verdict"> </figcaption>`;
    this.unit = html`<span class="muted">${curve.unit && term(curve.unit)}</span>`;
    this.figure = html`<figure class="lab-card chart" data-metric=${curve.metric} hidden>
      <div class="lab-row">
        <h3>${term(curve.title, curve.title, curve.documented ?? curve.metric)}</h3>
        ${this.unit}
      </div>
      <div class="stage">${this.plot}${this.cursor}</div>
      ${this.verdict}
    </figure>`;
    container.append(this.figure);
  }

  get plotly() {
    return window['Plotly'];
  }

  /** @param {Array<Array<number | null>>} points [step, value] @param {boolean} reset replace the present ones */
  addPoints(points, reset) {
    if (!points.length && !reset) return;
    const x = points.map((point) => point[0]);
    const y = points.map((point) => point[1]);
    this.pointCount = reset ? x.length : this.pointCount + x.length;
    if (!this.isDrawn) {
      if (x.length) this.drawFirst(x, y);
      return;
    }
    this.fitAxes(x, y, reset);
    if (reset) this.plotly.restyle(this.plot, { x: [x], y: [y], mode: lineMode(x) }, [0]);
    else this.plotly.extendTraces(this.plot, { x: [x], y: [y] }, [0]);
    this.drawMarkers();
  }

  drawFirst(x, y) {
    const { accent } = palette();
    const trace = {
      x,
      y,
      mode: lineMode(x),
      connectgaps: false,
      line: { color: accent, width: 2 },
      marker: { size: 4, color: accent },
      hovertemplate: `%{y:${this.isShare ? '.3~%' : '.4g'}}<extra></extra>`,
    };
    const { plot, plotly } = this;
    this.figure.hidden = false;
    this.isDrawn = true;
    const layout = structuredClone(this.base.layout);
    if (this.isShare) layout.yaxis.tickformat = '~%';
    plotly.newPlot(plot, [trace], layout, chartConfig(this.base.config));
    this.fitAxes(x, y, true);
    plotly.relayout(plot, themeChanges(plot));
    this.drawMarkers();
    plot.on('plotly_relayout', () => this.updateTicks());
    plot.on('plotly_click', (event) => this.onStep(event.points[0].x));
    plot.on('plotly_afterplot', () => this.placeCursor());
    sizeObserver.observe(plot);
  }

  fitAxes(x, y, reset) {
    const { xaxis, yaxis } = this.plot.layout;
    const before = reset ? { lastStep: 0, min: Infinity, max: -Infinity } : this.range;
    const finite = y.filter(Number.isFinite);
    this.range = {
      lastStep: Math.max(before.lastStep, ...x),
      min: Math.min(before.min, ...finite),
      max: Math.max(before.max, ...finite),
    };
    const ranges = axisRanges(this.range, this.changes, this.least);
    Object.assign(xaxis, ranges.xaxis);
    Object.assign(yaxis, ranges.yaxis);
    const [from, to] = xaxis.autorange === false ? xaxis.range : [0, this.range.lastStep];
    xaxis.dtick = integerTick(from, to);
  }

  updateTicks() {
    const [from, to] = this.plot._fullLayout.xaxis.range;
    const dtick = integerTick(from, to);
    if ((this.plot.layout.xaxis.dtick ?? null) !== dtick) this.plotly.relayout(this.plot, { 'xaxis.dtick': dtick });
  }

  /** @param {Array<{ step: number, text: string }>} changes @param {number | null} step of the samples */
  mark(changes, step) {
    this.changes = changes;
    this.cursorStep = step;
    if (this.isDrawn && !this.drawMarkers()) this.placeCursor();
  }

  // Redraw the markers if they changed, or if a longer axis leaves room on their other side. Returns whether it redrew.
  drawMarkers() {
    const style = { color: palette().warn, size: Math.round(0.8 * chartTheme(this.plot).font.size) };
    const layout = changeMarkers(this.changes, this.range.lastStep, style);
    const key = JSON.stringify(layout);
    if (key === this.markersKey) return false;
    this.markersKey = key;
    this.plotly.relayout(this.plot, layout);
    return true;
  }

  placeCursor() {
    const { cursor, cursorStep } = this;
    const { xaxis, yaxis } = this.plot._fullLayout || {};
    const x = xaxis && cursorStep !== null ? xaxis.l2p(cursorStep) : -1;
    cursor.hidden = !(x >= 0 && x <= xaxis._length);
    if (cursor.hidden) return;
    cursor.style.left = `${xaxis._offset + x}px`;
    cursor.style.top = `${yaxis._offset}px`;
    cursor.style.height = `${yaxis._length}px`;
  }

  showVerdict(level, message) {
    if (this.verdict.textContent !== message) this.verdict.textContent = message;
    this.verdict.dataset.level = level;
  }

  restyle() {
    if (!this.isDrawn) return;
    const { accent } = palette();
    this.plotly.relayout(this.plot, themeChanges(this.plot));
    this.drawMarkers();
    this.plotly.restyle(this.plot, { 'line.color': accent, 'marker.color': accent });
  }

  remove() {
    if (this.isDrawn) this.plotly.purge(this.plot);
    this.figure.remove();
  }
}

// The stage: the newest run, the labels and the invitation in large type over the whole window, for a projector.
import { accuracyText, labelsText, measuredAtText } from './figures.js';
import { brakeText, classSteps, hereText, shortestRow, stageCaption, stateText } from './stage_texts.js';
import { invitationCard, loadInvitation } from '../people/cards.js';
import { openNextClass } from '../people/next_class.js';
import { requests } from '../shared/api.js';
import { loadPlotly, onThemeChange } from '../shared/charts.js';
import { markedDiff } from '../shared/diff.js';
import { actionButton, html, openDialog, promptView, textView, withCut } from '../shared/dom.js';
import { formatMetric } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { poll } from '../shared/poll.js';
import { MetricChart } from '../train/curves.js';
import { currentReplay, REPLAY, ReplayBand } from '../train/replay.js';

const train = requests('train');

const CHARTS = 2; // of the run's first curves
const VALUES = 4;
const POLL_MS = 1500;
export const NOTHING_KNOWN = { epoch: null, after_step: -1, static_id: null, revision: null };

export class Stage {
  /**
   * @param {{ curves: any[], layout: any, config: any, plotly: string }} charts of a run
   * @param {() => lab.HeaderStatus} status
   */
  constructor(charts, status) {
    const margin = { t: 10, r: 20, b: 46, l: 60 };
    this.charts = { ...charts, layout: { ...charts.layout, margin } };
    this.status = status;
    this.state = html`<h2 class="state"></h2>`;
    this.counts = html`<div class="counts" aria-live="off"></div>`;
    this.steps = html`<ol class="steps"></ol>`; // before the first run
    this.plots = html`<div class="plots"></div>`;
    this.at = html`<h3></h3>`; // the step of the values
    this.values = html`<dl class="values"></dl>`;
    this.texts = html`<div class="texts"></div>`;
    this.invitation = html`<div class="corner"></div>`;
    this.band = html`<div class="band"></div>`; // of a recording
    // Its own, because `ifChanged` remembers what was answered.
    this.people = requests('people');
    this.replay = /** @type {import('../train/replay.js').Replay | null} */ (null); // on screen
    this.forgetRun();
    const buttons = html`<div class="lab-row buttons">
      ${actionButton('stage-close', 'Close', () => this.dialog.close())}
      ${status().can_invite && actionButton('next-class', 'Next class …', openNextClass)}
    </div>`;
    this.dialog = openDialog(
      'stage',
      html`${this.band}${this.state}${buttons}${this.plots}
        <div class="figures">${this.counts}${this.steps}<div>${this.at}${this.values}</div></div>
        ${this.texts}${this.invitation}`,
    );
    this.showWhetherThereIsARun(Boolean(status().run));
    const themes = onThemeChange(() => this.all().forEach((chart) => chart.restyle()));
    const show = () => pollNow();
    window.addEventListener(REPLAY, show);
    this.dialog.addEventListener('close', () => {
      themes.disconnect();
      window.removeEventListener(REPLAY, show);
      this.forgetRun();
    });
    const pollNow = poll(this.state, () => this.update(), POLL_MS);
  }

  all() {
    return Object.values(this.metrics).flatMap(({ chart }) => chart ?? []);
  }

  forgetRun() {
    for (const chart of this.metrics ? this.all() : []) chart.remove();
    this.run = null;
    this.brake = ''; // what its blind answers say
    this.known = NOTHING_KNOWN;
    this.metrics = {}; // by name: {chart, value: the element of its newest value}
    this.step = this.newestStep = null; // of the texts on screen, and with texts
    this.at.textContent = '';
    this.values.replaceChildren();
    this.texts.replaceChildren();
  }

  async update() {
    this.drawCounts();
    if (this.status().can_invite) {
      const invitation = await loadInvitation(this.people.invite.ifChanged);
      if (invitation) this.invitation.replaceChildren(invitationCard(invitation, ''));
    }
    await loadPlotly(this.charts.plotly);
    this.useReplay();
    const { source } = this;
    const { state, elsewhere } = await source.points({ run: null, ...this.known });
    if (!this.dialog.isConnected || currentReplay() !== this.replay) return; // closed in the meantime
    if (elsewhere) this.forgetRun(); // the open project has no run
    if (state) this.apply(state);
    this.showWhetherThereIsARun(Boolean(this.run));
    await this.loadTexts();
  }

  /** @param {boolean} isRun the first time from the header's status, before the run was loaded */
  showWhetherThereIsARun(isRun) {
    this.dialog.classList.toggle('no-run', !isRun);
    if (!isRun) this.state.textContent = stateText(null, null, this.status().reward);
  }

  get source() {
    return this.replay ?? train;
  }

  useReplay() {
    const replay = currentReplay();
    if (replay === this.replay) return;
    this.forgetRun();
    this.replay = replay;
    this.dialog.classList.toggle('replaying', Boolean(replay));
    this.band.replaceChildren(...(replay ? [new ReplayBand(replay).node] : []));
  }

  async loadTexts() {
    const { run, newestStep: step } = this;
    if (step === null || step === this.step) return;
    const { rows } = await this.source.samples({ run, step });
    this.step = step;
    const row = shortestRow(rows);
    if (row) this.texts.replaceChildren(textsView(row, step));
  }

  drawCounts() {
    const status = this.status();
    this.drawSteps(classSteps(status));
    const accuracy = accuracyText(status) + measuredAtText(status);
    [labelsText(status), accuracy, this.brake || hereText(status)].forEach((text, i) => {
      const shown = this.counts.children[i];
      if (shown?.textContent === text) return;
      const count = html`<p class="count">${text}</p>`; // a new element shows the change
      if (shown) shown.replaceWith(count);
      else this.counts.append(count);
    });
  }

  /** @param {ReturnType<typeof classSteps>} steps */
  drawSteps(steps) {
    const key = JSON.stringify(steps);
    if (this.steps.dataset.key === key) return;
    this.steps.dataset.key = key;
    const item = ({ text, note, state }) =>
      html`<li class=${state} aria-current=${state === 'present' && 'step'}>
        ${text}${note && html`<b>${note}</b>`}
      </li>`;
    this.steps.replaceChildren(...steps.map(item));
  }

  /** @param {lab.FeedReply} reply */
  apply(reply) {
    if (this.run !== reply.run.id) this.forgetRun();
    this.run = reply.run.id;
    const { epoch, last_step: afterStep, static_id: staticId, revision } = reply;
    this.known = { epoch, after_step: afterStep, static_id: staticId, revision };
    this.state.textContent = this.replay ? 'A recorded run' : stateText(reply.run, reply.eta_s);
    this.brake = reply.brake ? brakeText(reply.brake) : '';
    this.at.textContent = afterStep > 0 ? `Step ${afterStep}` : '';
    for (const curve of this.charts.curves) this.drawCurve(curve, reply);
    this.newestStep = reply.sample_steps.at(-1) ?? (reply.reset ? null : this.newestStep);
    if (this.step === null) this.texts.replaceChildren(html`<p class="asked">${reply.status_text}</p>`);
  }

  // The first metrics that the run has are shown.
  drawCurve(curve, reply) {
    const points = reply.points[curve.metric] ?? [];
    const shown = Object.keys(this.metrics).length;
    if (!this.metrics[curve.metric]) {
      if (!points.length || shown >= VALUES) return;
      const isDrawn = shown < CHARTS;
      const chart = isDrawn ? new MetricChart(this.plots, curve, this.charts, () => {}) : null;
      const value = html`<dd></dd>`;
      this.values.append(html`<div><dt>${term(curve.title)}</dt>${value}</div>`);
      this.metrics[curve.metric] = { chart, value };
    }
    const metric = this.metrics[curve.metric];
    if (points.length) metric.value.textContent = formatMetric(points.at(-1)[1], curve.unit, 2);
    metric.chart?.addPoints(points, reply.reset);
    const verdict = reply.verdicts[curve.metric];
    if (verdict) metric.chart?.showVerdict(verdict.level, stageCaption(verdict));
  }
}

/** @param {lab.SampleRow} row @param {number} step */
function textsView(row, step) {
  const base = row.base_text ?? row.text;
  const side = (title, text, cut) => html`<section class="lab-card"><h3>${title}</h3>${withCut(text, cut)}</section>`;
  return html`${promptView(row.turns, 'asked')}
    <div class="pair">
      ${side(term('base model', 'Base model'), textView(base), row.base_text === null ? row.cut : row.base_cut)}
      ${side(`Step ${step}`, markedDiff(base, row.text), row.cut)}
    </div>`;
}

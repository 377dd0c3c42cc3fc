// Screen "Runs & data": the list of runs, a comparison of chosen runs, exports.
import { requests } from '../shared/api.js';
import { onThemeChange } from '../shared/charts.js';
import { asked, html, perform, redraw, showNotice } from '../shared/dom.js';
import { poll } from '../shared/poll.js';
import { operatorNotice } from '../shared/session.js';
import { Comparison } from './comparison.js';
import { ExportCard } from './export_card.js';
import { runList } from './run_list.js';
import { freeSlot, nextSlots } from './slots.js';

const api = requests('runs');
const POLL_MS = 2000;

export default class Runs {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.overview = /** @type {lab.RunsOverview | null} */ (null);
    this.slots = /** @type {Map<number, number>} */ (new Map()); // run id -> color of the compared runs
    this.notice = html`<p class="lab-notice" role="status" hidden data-do="runs-notice"></p>`;
    this.list = html`<section class="list" aria-label="runs of this project">
      <div class="lab-card lab-empty" role="status">Loading the runs …</div>
    </section>`;
    this.comparison = new Comparison(api, data);
    this.exports = new ExportCard(api, this.notice);
    root.append(
      operatorNotice('Only the operator can change runs, train, export and import; you can view and compare.'),
      this.notice,
      this.list,
      this.comparison.card,
      this.exports.card,
    );
    this.comparison.onMetric = () => this.updateSoon();
    onThemeChange(() => this.comparison.drawIfVisible());
    new IntersectionObserver(() => this.comparison.drawIfVisible()).observe(root);
    poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    const overview = await api.overview.ifChanged();
    if (overview) this.receive(overview);
    this.comparison.card.hidden = !this.overview.runs.length;
    if (this.overview.runs.length) await this.comparison.update(this.slots);
  }

  // After an action of a person; an error is shown after the next regular request.
  updateSoon() {
    this.update().catch(() => {});
  }

  /** @param {lab.RunsOverview} overview */
  receive(overview) {
    const before = this.overview?.project === overview.project ? this.overview.runs.map((run) => run.id) : null;
    const ids = overview.runs.map((run) => run.id);
    this.slots = nextSlots(this.slots, before, ids, this.data.max_runs);
    this.overview = overview;
    this.drawList();
    this.exports.update(overview);
  }

  // ---- the list

  drawList() {
    redraw(this.list, runList(this.overview, this));
  }

  /** @param {number} run @param {boolean} isChosen */
  choose(run, isChosen) {
    const slot = freeSlot(this.slots, this.data.max_runs);
    if (!isChosen) this.slots.delete(run);
    else if (slot !== undefined) this.slots.set(run, slot);
    else this.showMessage(`At most ${this.data.max_runs} runs can be compared at once. Leave one out first.`, true);
    this.drawList();
    this.updateSoon();
  }

  async rename({ id, name }) {
    const text = await asked('run-name', `New name of run ${id}`, 'Save', name);
    if (text !== null) this.act(api.rename({ run: id, name: text }));
  }

  async remove({ id, name }) {
    if (await asked('run-delete', `Delete run ${id} "${name}" permanently?`)) this.act(api.delete({ run: id }));
  }

  resume(run, button) {
    return this.act(api.resume({ run }), [button]);
  }

  // Show the reply to an action on a run, above the list.
  async act(request, controls = []) {
    this.showMessage('');
    await perform(request, this.notice, controls);
    this.updateSoon();
  }

  showMessage(text, isError = false) {
    this.list.before(this.notice);
    showNotice(this.notice, text, isError);
  }
}

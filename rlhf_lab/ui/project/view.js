// Screen "Project": the list of projects, a new one, the operator's secret, the lab's folder and engine.
import { requests } from '../shared/api.js';
import { html, perform, redraw, showNotice } from '../shared/dom.js';
import { poll } from '../shared/poll.js';
import { operatorNotice } from '../shared/session.js';
import { downloadContent, lengthContent } from './cards.js';
import { LabCard } from './lab_card.js';
import { NewProject } from './new_project.js';
import { projectList } from './project_list.js';

const api = requests('project');
const POLL_MS = 2000;

export default class Project {
  constructor(root, settings) {
    this.root = root;
    this.running = new Map(); // JSON of an action -> promise of its reply
    this.lastAction = Promise.resolve();
    this.pollNow = () => {};
    this.notice = html`<p class="lab-notice" role="status" hidden data-do="project-notice"></p>`;
    this.current = /** @type {number | null} */ (null); // the open project
    this.list = html`<section aria-label="projects">
      <div class="lab-card lab-empty" role="status">Loading the projects …</div>
    </section>`;
    this.lengthCard = html`<section class="lab-card length" aria-label="length of the answers" hidden></section>`;
    this.downloadCard = html`<section class="lab-card fetching" aria-label="download" hidden></section>`;
    this.form = new NewProject(this, settings);
    this.lab = new LabCard(this, settings.has_secret);
    root.append(
      operatorNotice('Only the operator can open, create and change projects; you can view them.'),
      this.notice,
      this.list,
      this.lengthCard,
      this.downloadCard,
      this.form.node,
      this.lab.node,
    );
    this.pollNow = poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    const state = await api.state.ifChanged();
    if (!state) return;
    this.current = state.current;
    redraw(
      this.list,
      projectList(state, (name, payload) => this.act(name, payload)),
    );
    this.drawLength(state.length);
    this.drawDownload(state.download);
    this.lab.drawEngine(state.engine);
  }

  // ---- actions

  // The reply of an action. Actions are sent one after the other; the same one is not sent twice at a time.
  request(name, payload = {}) {
    const key = JSON.stringify([name, payload]);
    if (!this.running.has(key)) {
      const reply = this.lastAction.then(() => api[name](payload));
      this.lastAction = reply
        .catch(() => {})
        .then(() => {
          this.running.delete(key);
          this.pollNow();
        });
      this.running.set(key, reply);
    }
    return this.running.get(key);
  }

  // Perform an action and show its outcome below an element; null if it failed.
  act(name, payload, place = this.list) {
    const request = this.request(name, payload).finally(() => place.after(this.notice));
    return perform(request, this.notice);
  }

  showMessage(text, isError, place) {
    place.after(this.notice);
    showNotice(this.notice, text, isError);
  }

  // ---- the open project's length of answers, and the download of a model

  /** @param {lab.LengthView | null} length */
  drawLength(length) {
    this.lengthCard.hidden = !length;
    if (!length) return;
    const accept = (event) => this.pressLength(event.target, 'accept_length');
    const measure = (event) => this.pressLength(event.target, 'measure_length');
    redraw(this.lengthCard, lengthContent(length, { accept, measure }));
  }

  async pressLength(button, name) {
    button.disabled = true;
    if (!(await this.act(name, { shown_project: this.current }, this.lengthCard))) button.disabled = false;
  }

  /** @param {lab.DownloadView | null} download */
  drawDownload(download) {
    const { downloadCard } = this;
    downloadCard.hidden = !download;
    if (!download) return;
    const hasFocus = downloadCard.contains(document.activeElement);
    downloadCard.replaceChildren(downloadContent(download, (name) => this.act(name, {}, downloadCard)));
    if (hasFocus) downloadCard.querySelector('button')?.focus();
  }
}

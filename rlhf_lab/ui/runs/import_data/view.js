// Section "Import": choose a file or Hub data set of preferences, preview it, map columns, import it; undo an import.
import { requests } from '../../shared/api.js';
import { actionButton, asked, controlsOf, html, redraw, showNotice } from '../../shared/dom.js';
import { field } from '../../shared/fields.js';
import { displayName, formatBytes, momentText } from '../../shared/format.js';
import { poll } from '../../shared/poll.js';
import { operatorOnly, uploadFile } from '../../shared/session.js';
import { operatorHint } from '../elements.js';
import { PreviewCard } from './preview.js';
import { runMetricsCard } from './run_metrics.js';
import { canBeUndone, contentsText, tooLargeText } from './texts.js';

const api = requests('import_data');
const POLL_MS = 4000;
const READ_MS = 6 * 60_000; // the lab stops reading after five minutes
const SOURCES = [
  ['human', 'votes of people'],
  ['simulated', 'simulated votes'],
];

export default class ImportData {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.fields = /** @type {Record<string, any>} */ ({}); // the controls of the form by name
    this.file = null; // {path, name} of the uploaded file
    this.project = /** @type {number | null} */ (null); // of the preview
    this.isUploading = false;
    this.isChanging = false; // something is being imported or undone
    this.requestCount = 0;
    this.list = /** @type {lab.ImportList | null} */ (null); // of the imports
    this.notice = html`<p class="lab-notice lab-text" role="status" hidden data-do="data-notice"></p>`;
    this.imports = html`<section class="lab-card past" aria-label="what was imported" hidden></section>`;
    this.preview = new PreviewCard(
      data,
      () => this.look(),
      (ticks) => this.save(ticks),
    );
    const form = this.form();
    this.fields = controlsOf(form, 'data-');
    // the notice is below the buttons, so that it does not move them
    root.append(
      operatorHint('Only the operator can import and undo imports.'),
      operatorOnly(form, this.preview.card),
      this.notice,
      this.imports,
      operatorOnly(runMetricsCard(api, data)),
    );
    poll(root, () => this.updateList(), POLL_MS);
  }

  // ---- what to import

  form() {
    const { suffixes, max_bytes: maxBytes, lab_command: command } = this.data;
    const upload = (event) => this.upload(event.target.files[0]);
    // The preview says which votes the project already has; this depends on their source and annotator.
    const lookAgain = () => this.preview.preview && this.look();
    const annotator = { placeholder: 'imported', maxlength: 60, onchange: lookAgain };
    return html`<section class="lab-card ask" aria-label="what to import">
      <h3>Import preferences</h3>
      <div class="lab-row">
        <span class="muted lab-grow">
          JSON Lines, JSON, CSV or Parquet, also .gz: chosen and rejected, votes of several people, scores, chats,
          transcripts.
        </span>
      </div>
      <div class="lab-row" style="align-items: end">
        ${actionButton('data-choose', 'Choose a file', () => this.fields.file.click(), '')}
        <input type="file" hidden accept=${suffixes.join(',')} data-do="data-file" onchange=${upload} />
        <span class="muted" data-do="data-file-name"></span>
        <span class="muted">or from the Hub</span>
        <input
          class="lab-input" type="text" placeholder="OWNER/NAME" aria-label="data set on the Hub" data-do="data-hub"
        />
        ${field('data-split', 'split', { value: 'train', size: 12 })}
        ${field('data-config', 'configuration', { placeholder: 'if it has several', size: 14 })}
        ${actionButton('data-hub-look', 'Preview', () => this.lookAtDataset())}
      </div>
      <div class="lab-row">
        ${field('data-source', 'whose votes', { choices: SOURCES, onchange: lookAgain })}
        ${field('data-annotator', 'annotator, where the file names none', annotator)}
      </div>
      <p class="muted">Files up to ${formatBytes(maxBytes)} here; larger ones with: ${command} import FILE</p>
    </section>`;
  }

  // Without a Hub name the uploaded file is previewed; an upload also starts a preview by itself.
  lookAtDataset() {
    if (this.isUploading) return;
    if (this.fields.hub.value.trim() || !this.file) this.setFile(null);
    this.look();
  }

  // What is on screen is of another file.
  setFile(file) {
    this.file = file;
    this.fields['file-name'].textContent = file?.name ?? '';
    this.preview.clear();
  }

  /** @param {File | undefined} file */
  async upload(file) {
    if (!file) return;
    this.fields.hub.value = '';
    if (file.size > this.data.max_bytes) {
      this.showMessage(tooLargeText(file, `${this.data.lab_command} import`), true);
      return;
    }
    this.showMessage('Sending the file …');
    this.isUploading = true;
    try {
      this.setFile(await uploadFile(file, file.name));
    } catch (error) {
      this.showMessage(error.message, true);
      return;
    } finally {
      this.fields.file.value = '';
      this.isUploading = false;
    }
    this.look();
  }

  /** @returns {any} */
  input() {
    const { hub, split, config, source, annotator } = this.fields;
    const data = this.file ?? { dataset: hub.value, split: split.value, config: config.value };
    return { ...data, ...this.preview.chosen(), source: source.value, default_annotator: annotator.value };
  }

  // ---- requests

  showMessage(text, isError = false) {
    showNotice(this.notice, text, isError);
  }

  // The reply to a request; null after an error, which is shown, or if another request was sent in between. While
  // something is being imported or undone, nothing else is sent.
  async send(request, waitingText, isChange = false) {
    if (this.isChanging) return null;
    this.isChanging = isChange;
    this.requestCount += 1;
    const number = this.requestCount;
    this.showMessage(waitingText);
    const reply = await request().catch((error) => ({ error }));
    if (number !== this.requestCount) return null;
    this.isChanging = false;
    this.showMessage(reply.error?.message, Boolean(reply.error)); // the form stays, to be mended
    return reply.error ? null : reply;
  }

  async look() {
    const reply = await this.send(() => api.preview(this.input(), READ_MS), 'Reading it …');
    if (reply) this.project = reply.project;
    if (reply?.question) this.preview.ask(reply.question);
    else if (reply) this.preview.show(reply.preview);
  }

  async save(ticks) {
    const request = { ...this.input(), ...ticks, project: this.project };
    const reply = await this.send(() => api.save(request, READ_MS), 'Importing …', true);
    if (reply?.question) this.preview.ask(reply.question);
    else if (reply) {
      this.setFile(null);
      this.showMessage(reply.message);
      this.updateListSoon();
    }
  }

  // ---- earlier imports, each of which can be undone

  async updateList() {
    const list = await api.imports.ifChanged();
    if (!list) return;
    this.list = list;
    this.drawImports();
  }

  // After a change; an error is shown after the next regular request.
  updateListSoon() {
    this.updateList().catch(() => {});
  }

  drawImports() {
    const { imports } = this.list;
    this.imports.hidden = !imports.length;
    redraw(this.imports, html`<h3>Imported so far</h3><ul>${imports.map((item) => this.importRow(item))}</ul>`);
  }

  /** @param {lab.ImportRecord} item */
  importRow(item) {
    const by = item.who && `, by ${displayName(item.who)}`;
    const undone = html`<span class="muted">${item.votes_left ? ' (only partly undone)' : ' (undone)'}</span>`;
    return html`<li data-import=${item.id}>
      <div class="what">
        <p class="name" dir="auto">${item.name}</p>
        <p class="muted">${momentText(item.created_at)}${by}</p>
      </div>
      <p class="figure">${contentsText(item)}${item.taken_back_at !== null && undone}</p>
      ${canBeUndone(item) && this.undoButton(item)}
    </li>`;
  }

  /** @param {lab.ImportRecord} item */
  undoButton(item) {
    const attributes = { 'data-id': item.id, 'aria-label': `Undo import of ${item.name}` };
    return operatorOnly(actionButton('data-back', 'Undo import', () => this.undo(item), 'small', attributes));
  }

  /** @param {lab.ImportRecord} item */
  async undo(item) {
    const payload = { import_id: item.id, project: this.list.project };
    const summary = await this.send(() => api.summarize_undo(payload), 'Counting what would be removed …');
    if (summary === null || !(await asked('data-back', summary, 'Undo import'))) return;
    const message = await this.send(() => api.undo(payload), 'Undoing the import …', true);
    if (message === null) return;
    this.showMessage(message);
    this.updateListSoon();
  }
}

// Section "Backup": download the whole lab as one file; upload a backup, which replaces the lab at its next start.
import { requests } from '../../shared/api.js';
import { actionButton, html, showNotice } from '../../shared/dom.js';
import { operatorOnly, uploadFile } from '../../shared/session.js';
import { offerDownload, operatorHint } from '../elements.js';

const api = requests('backup');
const WHOLE_LAB_MS = 15 * 60_000; // time limit of requests that read or write the whole lab

export default class Backup {
  constructor(root, { piece_bytes: pieceBytes }) {
    this.root = root;
    this.pieceBytes = pieceBytes;
    this.notice = html`<p class="lab-notice lab-text" role="status" hidden data-do="backup-notice"></p>`;
    this.question = html`<div class="sure" hidden data-do="backup-question"></div>`;
    this.fileInput = html`<input
      type="file" hidden accept=".zip" data-do="backup-file" onchange=${() => this.restore(this.fileInput.files[0])}
    />`;
    root.append(
      operatorHint('Only the operator makes and restores backups.'),
      operatorOnly(
        html`<section class="lab-card" aria-label="backup of the whole lab">
          <p class="muted">
            All projects with their labels, reward models, runs and checkpoints in one file, for another computer
            or a newer version of the lab. It contains names, notes and the keys of the lab: keep it private.
          </p>
          <div class="lab-row">
            ${actionButton('backup-create', 'Download a backup', () => this.create())}
            ${actionButton('backup-choose', 'Restore a backup', () => this.fileInput.click())}
            ${this.fileInput}
          </div>
          ${this.question}
        </section>`,
      ),
      this.notice,
    );
    this.showState().catch(() => {});
  }

  // Run `work` with disabled buttons, and show its error.
  async busy(work) {
    const setDisabled = (isDisabled) => {
      for (const node of this.root.querySelectorAll('button')) node.disabled = isDisabled;
    };
    setDisabled(true);
    try {
      await work();
    } catch (error) {
      showNotice(this.notice, error.message, true);
    } finally {
      setDisabled(false);
      this.fileInput.value = '';
    }
  }

  create() {
    return this.busy(async () => {
      showNotice(this.notice, 'Writing the backup …');
      offerDownload(this.notice, await api.create({}, WHOLE_LAB_MS), 'backup-link');
    });
  }

  restore(file) {
    if (!file) return undefined;
    this.question.hidden = true;
    return this.busy(async () => {
      for (let offset = 0; offset < file.size; offset += this.pieceBytes) {
        showNotice(this.notice, `Sending the backup: ${Math.floor((100 * offset) / file.size)} %`);
        const piece = await uploadFile(file.slice(offset, offset + this.pieceBytes), 'piece');
        await api.append({ path: piece.path, offset });
      }
      showNotice(this.notice, 'Checking the backup …');
      const summary = await api.check({}, WHOLE_LAB_MS);
      showNotice(this.notice, '');
      const confirm = () => this.decide(api.confirm, '');
      this.showQuestion(
        html`<p>
          ${summary} At the next start of the lab it replaces everything that is here now. The replaced lab is kept in a
          folder of the home.
        </p>`,
        actionButton('backup-confirm', 'Restore it at the next start', confirm, 'small danger'),
      );
      this.question.querySelector('button').focus();
    });
  }

  showQuestion(text, confirmButton = null) {
    const discard = () => this.decide(api.discard, 'Nothing will be restored.');
    this.question.hidden = false;
    this.question.replaceChildren(
      text,
      html`<div class="lab-row">
        ${confirmButton} ${actionButton('backup-discard', 'Discard the upload', discard)}
      </div>`,
    );
  }

  decide(request, message) {
    return this.busy(async () => {
      await request();
      this.question.hidden = true;
      showNotice(this.notice, message);
      await this.showState();
    });
  }

  // Show whether a confirmed backup waits for the next start; any operator may have confirmed it.
  async showState() {
    if (!(await api.is_confirmed())) return;
    this.showQuestion(html`<p data-do="backup-waits">The backup is checked. Restart the lab to use it.</p>`);
  }
}

// Section "Backup": download the whole lab as one file; upload a backup, which replaces the lab at its next start.
import { el, showNotice } from '../../shared/dom.js';
import { formatBytes } from '../../shared/format.js';
import { requests, unwrap } from '../../shared/poll.js';
import { operatorNotice, operatorOnly, uploadFile } from '../../shared/session.js';

const WHOLE_LAB_MS = 15 * 60_000; // time limit of actions that read or write the whole lab

async function upload(piece) {
  const reply = await uploadFile(piece, 'piece').catch((error) => ({
    ok: false,
    status: error.message,
  }));
  if (!reply.ok) throw new Error(`The backup could not be sent (${reply.status}). Try again.`);
  return (await reply.json())[0];
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-backup');
  const { send, receive } = requests((payload) => trigger('action', payload));

  const notice = el('p.lab-notice.lab-text', { role: 'status', hidden: true, 'data-do': 'backup-notice' });
  const fileInput = el('input', {
    type: 'file',
    hidden: true,
    accept: '.zip',
    'data-do': 'backup-file',
    onchange: (event) => restore(event.target.files[0]),
  });
  const createButton = el(
    'button.lab-button.small',
    { type: 'button', 'data-do': 'backup-create', onclick: create },
    'Download a backup',
  );
  const chooseButton = el(
    'button.lab-button.small',
    { type: 'button', 'data-do': 'backup-choose', onclick: () => fileInput.click() },
    'Restore a backup',
  );
  const question = el('div.sure', { hidden: true, 'data-do': 'backup-question' });
  const card = el(
    'section.lab-card',
    { 'aria-label': 'backup of the whole lab' },
    el(
      'p.muted',
      {},
      'All projects with their labels, reward models, runs and checkpoints in one file, for another computer ' +
        'or a newer version of the lab. It contains names, notes and the keys of the lab: keep it private.',
    ),
    el('div.lab-row', {}, createButton, chooseButton, fileInput),
    question,
  );
  root.append(
    operatorNotice(
      "Only the operator makes and restores backups. Open the operator's link, or enter the operator's " +
        'secret under Project.',
    ),
    operatorOnly(card),
    notice,
  );
  const showMessage = (text, isError = false) => showNotice(notice, text, isError);

  // Run `work` with disabled buttons, and show its error.
  async function busy(work) {
    createButton.disabled = chooseButton.disabled = true;
    try {
      await work();
    } catch (error) {
      showMessage(error.message, true);
    } finally {
      createButton.disabled = chooseButton.disabled = false;
      fileInput.value = '';
    }
  }

  function create() {
    return busy(async () => {
      showMessage('Writing the backup …');
      const { download } = await send('create', {}, WHOLE_LAB_MS);
      const link = el(
        'a.lab-button.small',
        { href: `gradio_api/file=${encodeURI(download.path)}`, download: download.name, 'data-do': 'backup-link' },
        'Save it',
      );
      notice.replaceChildren(`${download.name}, ${formatBytes(download.bytes)}. `, link);
      link.click();
    });
  }

  function restore(file) {
    if (!file) return undefined;
    question.hidden = true;
    return busy(async () => {
      for (let offset = 0; offset < file.size; offset += props.data.piece_bytes) {
        showMessage(`Sending the backup: ${Math.floor((100 * offset) / file.size)} %`);
        await send('append', { path: await upload(file.slice(offset, offset + props.data.piece_bytes)), offset });
      }
      showMessage('Checking the backup …');
      const { summary } = await send('check', {}, WHOLE_LAB_MS);
      showMessage('');
      ask(summary);
    });
  }

  function ask(summary) {
    question.hidden = false;
    question.replaceChildren(
      el(
        'p',
        {},
        `${summary} At the next start of the lab it replaces everything that is here now. The replaced lab is kept ` +
          'in a folder of the home.',
      ),
      el(
        'div.lab-row',
        {},
        el(
          'button.lab-button.small.danger',
          { type: 'button', 'data-do': 'backup-confirm', onclick: () => decide('confirm') },
          'Restore it at the next start',
        ),
        el(
          'button.lab-button.small',
          { type: 'button', 'data-do': 'backup-discard', onclick: () => decide('discard') },
          'Do not restore it',
        ),
      ),
    );
    question.querySelector('button').focus();
  }

  const decide = (action) =>
    busy(async () => {
      const { message } = await send(action);
      question.hidden = true;
      showMessage(action === 'confirm' ? '' : message);
      await showState();
    });

  // Show whether a confirmed backup waits for the next start; any operator may have confirmed it.
  async function showState() {
    const state = await unwrap(server.get_state({}));
    if (!state.is_confirmed) return;
    question.hidden = false;
    question.replaceChildren(
      el('p', { 'data-do': 'backup-waits' }, 'The backup is checked. Restart the lab to use it.'),
      el(
        'div.lab-row',
        {},
        el(
          'button.lab-button.small',
          { type: 'button', 'data-do': 'backup-discard', onclick: () => decide('discard') },
          'Do not restore it',
        ),
      ),
    );
  }
  showState().catch(() => {});

  watch('value', () => receive(props.value));
}

// The dialog that ends a class and begins the next one, for the operator.
import { requests } from '../shared/api.js';
import { actionButton, html, openDialog, perform } from '../shared/dom.js';
import { invitationCard, loadInvitation } from './cards.js';
import { stateSentences } from './figures.js';

const api = requests('people');

export async function openNextClass() {
  const state = await api
    .class_state()
    .catch((error) => openDialog('next class', html`<p>${error.message}</p>`) && null);
  if (!state) return;
  const offered = choices(state);
  const boxes = Object.fromEntries(offered.map(([name]) => [name, html`<input type="checkbox" name=${name} />`]));
  const result = html`<p class="result" role="status"></p>`;
  const close = () => dialog.close();
  const begin = actionButton('class-begin', 'Begin', () => perform(next(), result, [begin]), 'lab-main');
  const dialog = openDialog(
    'next class',
    html`<h2>Next class</h2>
      ${stateSentences(state).map((sentence) => html`<p>${sentence}</p>`)}
      ${offered.map(([name, label, note]) => {
        return html`<label>${boxes[name]} ${label} <span class="muted">${note}</span></label>`;
      })}
      ${result}
      <div class="lab-row">${begin} ${actionButton('class-close', 'Close', close, '')}</div>`,
  );
  for (const box of Object.values(boxes)) box.checked = true;

  async function next() {
    const chosen = Object.entries(boxes).map(([name, box]) => [name, box.checked]);
    const { message } = await api.next_class(Object.fromEntries(chosen));
    const invitation = await loadInvitation().catch(() => null);
    dialog.replaceChildren(
      html`<p class="result" role="status">${message}</p>
        ${invitation && invitationCard(invitation, '')}
        <div class="lab-row">${actionButton('class-close', 'Close', close, '')}</div>`,
    );
  }
}

// [name in the request, label, what it means] of each choice that this lab has.
/** @param {lab.ClassState} state */
const choices = ({ has_code: hasCode, runs, training }) => [
  ['new_project', 'New project', 'Same model, prompts and settings, no labels. The old project is kept under Project.'],
  ...(hasCode ? [['new_code', 'New join code', 'Labellers are logged out.']] : []),
  ...(runs.length || training
    ? [
        [
          'stop_training',
          'Stop training',
          'Otherwise the new class gets no reward model until it ends. A stopped run can be resumed.',
        ],
      ]
    : []),
];

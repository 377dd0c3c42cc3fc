// Section "Copy on the Hub": set the repository and token with which the lab saves itself, take over from another lab,
// or stop saving.
import { el, showNotice } from '../../shared/dom.js';
import { formatDuration } from '../../shared/format.js';
import { poll, requests, unwrap } from '../../shared/poll.js';
import { operatorNotice, operatorOnly } from '../../shared/session.js';

const CHECK_MS = 5 * 60_000; // for requests to the Hub, which may be slow
const field = (name, label, attributes) => {
  const input = el('input.lab-input', {
    type: 'text',
    id: `lab-mirror-${name}`,
    spellcheck: 'false',
    'data-do': `mirror-${name}`,
    ...attributes,
  });
  return { input, row: el('label.field', { for: input.id }, el('span', {}, label), input) };
};
const button = (name, label, style, onclick) =>
  el(`button.lab-button.small${style}`, { type: 'button', 'data-do': `mirror-${name}`, onclick }, label);

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-hub-mirror');
  const { send, receive } = requests((payload) => trigger('action', payload));
  let state = null;

  const notice = el('p.lab-notice.lab-text', { role: 'status', hidden: true, 'data-do': 'mirror-message' });
  const status = el('p', { 'data-do': 'mirror-state' }, 'Loading …');
  const variableNote = el('p.muted', { hidden: true, 'data-do': 'mirror-variable' });
  const repository = field('repository', 'Repository', { placeholder: 'OWNER/NAME', autocomplete: 'off' });
  const token = field('token', 'Token', { type: 'password', autocomplete: 'new-password' });
  const saveButton = el(
    'button.lab-button.small',
    { type: 'submit', 'data-do': 'mirror-set-up' },
    'Save to this repository',
  );
  const offButton = button('turn-off', 'Stop saving', '', () =>
    ask(`Stop saving to ${state.repository}? The copy there stays as it is.`, 'Stop saving', () => act('turn_off')),
  );
  const takeOverButton = button('take-over', 'Take over this repository', '.danger', () =>
    ask(
      `The next save replaces what the other lab has saved to ${state.repository}. Stop the other lab first.`,
      'Take it over',
      () => act('take_over'),
    ),
  );
  const form = el(
    'form.fields',
    {
      onsubmit: (event) => {
        event.preventDefault();
        setUp();
      },
    },
    repository.row,
    token.row,
    el('div.lab-row', {}, saveButton, offButton),
  );
  const question = el('div.sure', { hidden: true, role: 'group', 'data-do': 'mirror-question' });
  const diskNote = props.data.is_disk_wiped
    ? el(
        'p.muted',
        {},
        'A restart wipes the disk of this Space, and with it what is entered here. Set RLHF_LAB_MIRROR and ' +
          'HF_TOKEN in the settings of the Space instead (docs/SPACES.md).',
      )
    : '';
  const card = el(
    'section.lab-card',
    { 'aria-label': 'copy on the Hub' },
    el('h2', {}, 'Copy on the Hub'),
    el(
      'p.muted',
      {},
      'The lab can save itself about every minute to a private dataset on huggingface.co. A lab that is ' +
        'started elsewhere with the same repository and an empty home continues from there. Make a token with ' +
        'write access on huggingface.co under Settings → Access Tokens.',
    ),
    status,
    variableNote,
    diskNote,
    form,
    el('div.lab-row', {}, takeOverButton),
    question,
  );
  root.append(
    operatorNotice(
      "Only the operator changes the copy on the Hub. Open the operator's link, or enter the operator's " +
        'secret under Project.',
    ),
    operatorOnly(card),
    notice,
  );
  const showMessage = (text, isError = false) => showNotice(notice, text, isError);

  function statusText() {
    if (!state.repository) return 'The lab is not saved to the Hub.';
    if (state.problem) return `Not saved to ${state.repository}. ${state.problem}`;
    return state.age_s === null
      ? `Saving to ${state.repository} for the first time …`
      : `Saved to ${state.repository} ${formatDuration(state.age_s)} ago.`;
  }

  function variableText() {
    if (state.is_set_by_variable) {
      return (
        `The environment variable RLHF_LAB_MIRROR names ${state.repository}. The form has no effect while it ` +
        'is set.'
      );
    }
    return state.has_token_variable
      ? 'The environment variable HF_TOKEN contains a token. It is used instead of one that is entered here.'
      : '';
  }

  function draw() {
    status.textContent = statusText();
    status.classList.toggle('bad', Boolean(state.problem));
    variableNote.textContent = variableText();
    variableNote.hidden = !variableNote.textContent;
    form.hidden = state.is_set_by_variable;
    token.row.hidden = state.has_token_variable;
    token.input.placeholder = state.has_token ? 'stored; enter another one to replace it' : 'hf_…';
    offButton.hidden = !state.repository;
    takeOverButton.hidden = !state.has_conflict;
  }

  function ask(text, label, confirm) {
    const close = () => {
      question.hidden = true;
    };
    question.replaceChildren(
      el('p', {}, text),
      el(
        'div.lab-row',
        {},
        button('sure', label, '.danger', () => {
          close();
          confirm();
        }),
        button('leave', 'Cancel', '', close),
      ),
    );
    question.hidden = false;
    question.querySelector('button').focus();
  }

  // Send an action, with disabled buttons until the reply has arrived. Returns whether it succeeded.
  async function act(action, fields = {}, limit = undefined) {
    const buttons = [saveButton, offButton, takeOverButton];
    for (const one of buttons) one.disabled = true;
    try {
      showMessage((await send(action, fields, limit)).message);
      return true;
    } catch (error) {
      showMessage(error.message, true);
      return false;
    } finally {
      for (const one of buttons) one.disabled = false;
      await load().catch(() => {});
    }
  }

  async function setUp() {
    showMessage('Asking the Hub …');
    if (await act('set_up', { repository: repository.input.value, token: token.input.value }, CHECK_MS)) {
      token.input.value = '';
    }
  }

  async function load() {
    const isFirst = state === null;
    const hadProblem = Boolean(state?.problem);
    state = await unwrap(server.get_state({}));
    // A message such as "The Hub accepts …" does not stay beside a later problem.
    if (state.problem && !hadProblem && !notice.classList.contains('bad')) showMessage('');
    if (isFirst) repository.input.value = state.is_set_by_variable ? '' : state.repository;
    draw();
  }

  watch('value', () => receive(props.value));
  poll(root, load, 3000);
}

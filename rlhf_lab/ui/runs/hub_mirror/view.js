// Section "Copy on the Hub": set the repository and token with which the lab saves itself, take over from another lab,
// or stop saving.
import { requests } from '../../shared/api.js';
import { actionButton, asked, controlsOf, html, perform, showNotice } from '../../shared/dom.js';
import { poll } from '../../shared/poll.js';
import { operatorOnly } from '../../shared/session.js';
import { operatorHint } from '../elements.js';
import { statusText, variableText } from './status.js';

const api = requests('hub_mirror');
const POLL_MS = 3000;
const CHECK_MS = 5 * 60_000; // for requests to the Hub, which may be slow
// What the page asks before an action, and the button that confirms.
const QUESTIONS = {
  turn_off: (repository) => [`Stop saving to ${repository}? The copy there stays as it is.`, 'Stop saving'],
  take_over: (repository) => [
    `The next save replaces what the other lab has saved to ${repository}. Stop the other lab first.`,
    'Take it over',
  ],
};

export default class HubMirror {
  constructor(root, { is_disk_wiped: isDiskWiped }) {
    this.root = root;
    this.state = /** @type {lab.MirrorStatus | null} */ (null);
    this.fields = /** @type {Record<string, any>} */ ({}); // the elements by name
    root.append(
      operatorHint('Only the operator changes the copy on the Hub.'),
      operatorOnly(this.card(isDiskWiped)),
      html`<p class="lab-notice lab-text" role="status" hidden data-do="mirror-message"></p>`,
    );
    this.fields = controlsOf(root, 'mirror-');
    poll(root, () => this.load(), POLL_MS);
  }

  card(isDiskWiped) {
    return html`<section class="lab-card" aria-label="copy on the Hub">
      <h2>Copy on the Hub</h2>
      <p class="muted">
        The lab can save itself about every minute to a private dataset on huggingface.co. A lab that is started
        elsewhere with the same repository and an empty home continues from there. Make a token with write access on
        huggingface.co under Settings → Access Tokens.
      </p>
      <p data-do="mirror-state">Loading …</p>
      <p class="muted" hidden data-do="mirror-variable"></p>
      ${isDiskWiped && diskNote()}
      <form class="fields" data-do="mirror-form" onsubmit=${(event) => this.setUp(event)}>
        <label class="field" for="lab-mirror-repository">
          <span>Repository</span>
          <input
            class="lab-input" type="text" id="lab-mirror-repository" spellcheck="false" placeholder="OWNER/NAME"
            autocomplete="off" data-do="mirror-repository"
          />
        </label>
        <label class="field" for="lab-mirror-token">
          <span>Token</span>
          <input
            class="lab-input" type="password" id="lab-mirror-token" spellcheck="false" autocomplete="new-password"
            data-do="mirror-token"
          />
        </label>
        <div class="lab-row">
          <button type="submit" class="lab-button small" data-do="mirror-set-up">Save to this repository</button>
          ${actionButton('mirror-turn-off', 'Stop saving', () => this.ask('turn_off'))}
        </div>
      </form>
      <div class="lab-row">
        ${actionButton('mirror-take-over', 'Take over this repository', () => this.ask('take_over'), 'small danger')}
      </div>
    </section>`;
  }

  /** @param {'turn_off' | 'take_over'} action */
  async ask(action) {
    if (await asked('mirror', ...QUESTIONS[action](this.state.repository))) this.act(api[action]());
  }

  async setUp(event) {
    event.preventDefault();
    const { message, repository, token } = this.fields;
    showNotice(message, 'Asking the Hub …');
    if (await this.act(api.set_up({ repository: repository.value, token: token.value }, CHECK_MS))) token.value = '';
  }

  // Show the reply to an action, with disabled buttons until it has arrived; null if it failed.
  async act(request) {
    const buttons = ['set-up', 'turn-off', 'take-over'].map((name) => this.fields[name]);
    const reply = await perform(request, this.fields.message, buttons);
    await this.load().catch(() => {});
    return reply;
  }

  async load() {
    const before = this.state;
    const state = await api.state();
    this.state = state;
    const { message, repository } = this.fields;
    // A message such as "The Hub accepts …" does not stay beside a later problem.
    if (state.problem && !before?.problem && !message.classList.contains('bad')) showNotice(message, '');
    if (!before) repository.value = state.is_set_by_variable ? '' : state.repository;
    this.draw(state);
  }

  /** @param {lab.MirrorStatus} state */
  draw(state) {
    const { fields } = this;
    fields.state.textContent = statusText(state);
    fields.state.classList.toggle('bad', Boolean(state.problem));
    fields.variable.textContent = variableText(state);
    fields.variable.hidden = !fields.variable.textContent;
    fields.form.hidden = state.is_set_by_variable;
    fields.token.parentElement.hidden = state.has_token_variable;
    fields.token.placeholder = state.has_token ? 'stored; enter another one to replace it' : 'hf_…';
    fields['turn-off'].hidden = !state.repository;
    fields['take-over'].hidden = !state.has_conflict;
  }
}

const diskNote = () =>
  html`<p class="muted">
    A restart wipes the disk of this Space, and with it what is entered here. Set RLHF_LAB_MIRROR and HF_TOKEN in the
    settings of the Space instead (docs/SPACES.md).
  </p>`;

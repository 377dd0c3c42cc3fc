// Demo mode: visitors start their own short run, see its place in the queue, and stop it. Hidden from the operator.
import { requests } from '../../shared/api.js';
import { actionButton, fillProposed, html, setText, showNotice } from '../../shared/dom.js';
import { resetText } from '../../shared/format.js';
import { poll } from '../../shared/poll.js';
import { showRun } from '../../shared/session.js';

const api = requests('demo_run');
const ESTIMATE_DELAY_MS = 400;

export default class DemoRun {
  /** @param {any} root @param {{ fields: any[], rules: string }} data */
  constructor(root, { fields, rules }) {
    this.root = root;
    this.rules = rules;
    this.isSending = false; // a start or stop
    this.ownRun = null; // of the last state
    this.estimateTimer = undefined;
    this.inputs = Object.fromEntries(fields.map((field) => [field.name, this.input(field)]));
    this.proposed = Object.fromEntries(fields.map(({ name, value }) => [name, String(value)]));
    this.pollNow = () => {};
    const label = ({ name, label: text, low, high }) =>
      html`<label><span class="muted">${text} (${low} to ${high})</span>${this.inputs[name]}</label>`;
    root.append(
      html`<div class="lab-card">
        <h2>Start a run of your own</h2>
        <div class="lab-row fields">
          ${fields.map(label)}
          ${actionButton('demo-start', 'Start PPO', () => this.startRun(), 'lab-main', { disabled: true })}
        </div>
        <p class="muted" data-do="demo-estimate"></p>
        <div class="lab-row">
          <p role="status" data-do="demo-status">Loading the queue …</p>
          ${actionButton('demo-stop', 'Stop my run', () => this.send(api.stop()), 'danger')}
        </div>
        <p class="lab-notice bad" role="alert" hidden data-do="demo-error"></p>
        <p class="muted" data-do="demo-reset">${rules}</p>
      </div>`,
    );
    this.estimate();
    this.pollNow = poll(root, async () => this.draw(await api.state()), 1500);
  }

  input({ name, low, high, value }) {
    return html`<input
      class="lab-input" type="number" min=${low} max=${high} step="1" value=${value} data-do="demo-${name}"
      oninput=${() => this.estimate()}
    />`;
  }

  control(name) {
    return this.root.querySelector(`[data-do=demo-${name}]`);
  }

  values() {
    return /** @type {any} */ (
      Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.valueAsNumber]))
    );
  }

  async startRun() {
    const started = await this.send(api.start(this.values()));
    if (!started || started.runs_before) return; // otherwise the run in progress stays in view
    showRun(started.run);
  }

  // The reply of a request; null if it failed, then the error is shown.
  async send(request) {
    this.isSending = true;
    this.control('start').disabled = this.control('stop').disabled = true;
    showNotice(this.control('error'), '');
    try {
      return await request;
    } catch (error) {
      showNotice(this.control('error'), error.message, true);
      return null;
    } finally {
      this.isSending = false;
      this.pollNow();
    }
  }

  estimate() {
    clearTimeout(this.estimateTimer);
    this.estimateTimer = setTimeout(async () => {
      const reply = await api.estimate(this.values()).catch(() => null);
      this.control('estimate').textContent = reply?.sentence ?? '';
    }, ESTIMATE_DELAY_MS);
  }

  /** @param {lab.DemoState} state */
  draw(state) {
    if (this.ownRun !== null && state.own_run === null) this.estimate(); // a run has ended, so its times are known
    this.ownRun = state.own_run;
    const hasRun = state.own_run !== null;
    fillProposed(this.inputs, this.proposed, state);
    this.root.querySelector('h2').textContent = hasRun ? 'Your run' : 'Start a run of your own';
    setText(this.control('status'), state.status_text);
    this.root.querySelector('.fields').hidden = this.control('estimate').hidden = hasRun;
    this.control('stop').hidden = !hasRun;
    this.control('reset').textContent = `${this.rules} ${resetText(state)}`;
    if (this.isSending) return;
    this.control('start').disabled = !state.can_start;
    this.control('stop').disabled = false;
  }
}

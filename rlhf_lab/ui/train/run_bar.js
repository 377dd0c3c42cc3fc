// The bar above the curves: which run, its progress and controls. Its details stand below the first curves: the
// settings that can be changed, what the run learns from, two self-checks, the best checkpoint.
import { actionButton, asked, html, optionList, perform, selectField } from '../shared/dom.js';
import { formatNumber, timeLeftText } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { openTab, operatorOnly, setItem, WANTED_MODEL } from '../shared/session.js';
import { LiveSetting } from './live_setting.js';
import { openReplay, replayButton } from './replay.js';
import { droppedText } from './sample_texts.js';

export const ACTIVE = ['queued', 'running', 'paused'];
const RECORDED = 'recorded'; // in the list of runs: the recording that every lab has
const STATUS_STYLES = { running: 'accent', paused: 'warn', failed: 'bad', done: 'good', interrupted: 'warn' };

export class RunBar {
  /**
   * @param {{
   *   control: (fields: lab.RunControl) => Promise<any>,
   *   onControl: () => void,
   *   onPick: (run: number) => void,
   * }} actions
   *   onControl: the lab has answered a control
   */
  constructor({ control, onControl, onPick }) {
    this.control = control;
    this.onControl = onControl;
    this.state = /** @type {lab.FeedReply | null} */ (null); // as last drawn
    this.isSending = false; // until the run's new state is drawn
    this.sentAction = ''; // what is being sent
    this.settings = {
      beta: new LiveSetting('beta', (value) => this.send({ action: 'set', setting: 'beta', value })),
      lr: new LiveSetting('lr', (value) => this.send({ action: 'set', setting: 'lr', value })),
    };
    const use = ({ target }) => this.send({ action: 'switch', reward_model: Number(target.value) });
    this.reward = selectField('switch', 'reward model in use', use, [], null, { class: 'lab-input reward' });
    this.rewardRow = html`<div class="lab-row knobs">
      <span class="muted">${term('reward model')}</span>${this.reward}
    </div>`;
    this.buttons = {
      pause: this.button('pause', 'Pause'),
      resume: this.button('resume', 'Resume', 'lab-main'),
      stop: actionButton('stop', 'Stop', () => this.stop(), 'small danger'),
    };
    const pick = ({ target }) => {
      if (target.value !== RECORDED) return onPick(Number(target.value));
      target.value = this.state.run.id; // until the recording is there, and when it has ended
      return perform(openReplay(null), this.error);
    };
    this.picker = selectField('pick', 'run', pick, [], null, { class: 'lab-input picker' });
    this.replay = replayButton(() => this.state.run.id, 'Replay');
    this.error = html`<p class="lab-notice bad" role="alert" hidden data-do="error"></p>`;
    this.brake = html`<p class="lab-notice" role="status" hidden data-do="brake"></p>`;
    this.details = this.buildDetails();
    this.node = this.build();
  }

  button(action, label, style = '') {
    return actionButton(action, label, () => this.send({ action }), `small ${style}`);
  }

  build() {
    const { pause, resume, stop } = this.buttons;
    return html`<div class="lab-card bar">
      <div class="lab-row">
        ${this.picker}
        <span class="lab-badge" data-status></span>
        <span class="lab-grow progress">
          <span class="muted"><span data-step></span><span role="status" data-asked></span></span>
          <div class="lab-bar" role="progressbar" aria-label="progress of the run" aria-valuemin="0"><i></i></div>
        </span>
        ${this.replay} ${operatorOnly(pause, resume, stop)}
      </div>
      ${this.error}${this.brake}
    </div>`;
  }

  buildDetails() {
    const { beta, lr } = this.settings;
    return html`<div class="lab-card bar details">
      <div class="lab-row settings">${operatorOnly(beta.label, lr.label, this.rewardRow)}</div>
      <div class="lab-row">
        <span class="lab-badge ratio">${term('first ratio', 'first ratio = 1')}<span></span></span>
        <span class="lab-badge kl">${term('KL at the first step', 'KL at the first step = 0')}<span></span></span>
        <span class="muted lab-grow source"></span>
      </div>
      <p class="muted" data-do="best"></p>
    </div>`;
  }

  part(selector) {
    return this.node.querySelector(selector) ?? this.details.querySelector(selector);
  }

  // ---- controls

  async send(fields) {
    this.error.hidden = true;
    this.isSending = true;
    this.sentAction = fields.action;
    this.drawButtons();
    let message = '';
    try {
      await this.control({ run: this.state.run.id, ...fields });
    } catch (error) {
      message = error.message;
    }
    this.error.hidden = !message;
    this.error.textContent = message;
    this.settings[fields.setting]?.answered(message);
    if (message) {
      this.isSending = false;
      this.drawButtons();
    }
    this.onControl();
  }

  async stop() {
    const { id: run } = this.state.run;
    const question = droppedText(this.state);
    if (!question || (await asked('stop', question, 'Stop now'))) this.send({ run, action: 'stop' });
  }

  drawButtons() {
    const { pause, resume, stop } = this.buttons;
    const { run, pending_changes: pending } = this.state;
    const isActive = ACTIVE.includes(run.status);
    pause.hidden = !isActive || run.status === 'paused';
    resume.hidden = run.status === 'done' || (isActive && run.status !== 'paused');
    stop.hidden = !isActive;
    this.replay.hidden = isActive || !run.step;
    pause.disabled = this.isSending || pending.includes('pause') || pending.includes('stop');
    resume.disabled = this.isSending || pending.includes('resume');
    stop.disabled = this.isSending || pending.includes('stop');
    this.part('.settings').hidden = run.status === 'done';
    const sent = this.isSending && ['pause', 'resume', 'stop'].includes(this.sentAction) ? [this.sentAction] : [];
    const requested = [...new Set([...pending, ...sent])];
    this.part('[data-asked]').textContent = requested.length ? `requested: ${requested.join(', ')}` : '';
  }

  // ---- drawing

  /** @param {lab.FeedReply} reply @param {lab.StaticState} fixed */
  draw(reply, fixed) {
    this.state = reply;
    this.isSending = false;
    if (reply.static) this.drawLists(fixed);
    const { run } = reply;
    if (document.activeElement !== this.picker) this.picker.value = run.id;
    this.picker.title = this.picker.selectedOptions[0]?.textContent ?? ''; // long names are truncated
    if (document.activeElement !== this.reward) this.reward.value = run.reward_model;
    this.drawProgress(reply);
    this.drawButtons();
    for (const setting of Object.values(this.settings)) setting.draw(run, fixed.adapted_settings, reply.in_use);
    const { max_first_ratio_deviation: deviation, first_step_kl: firstKl } = reply.checks;
    drawCheck(this.part('.ratio'), deviation, 1e-5);
    this.part('.ratio').hidden = run.step > 0 && deviation === null; // an offline method has no ratio
    drawCheck(this.part('.kl'), firstKl, 1e-3);
    this.drawBrake(reply);
    const best = this.part('[data-do=best]');
    best.hidden = !reply.best_text;
    best.textContent = reply.best_text;
  }

  /** @param {lab.FeedReply} reply */
  drawBrake({ brake, run }) {
    this.brake.hidden = !brake;
    if (!brake) return;
    const isHeld = brake.state === 'declined' && run.status === 'paused';
    const text = isHeld ? `${brake.text} The run is paused. Resume continues it.` : brake.text;
    if (this.brake.dataset.text !== text) {
      this.brake.replaceChildren(html`${term('blind answers', 'Blind answers')}: ${text} ${offer(brake, run)}`);
    }
    this.brake.dataset.text = text;
    this.brake.dataset.state = brake.state;
    this.brake.classList.toggle('bad', brake.state === 'declined');
    this.brake.classList.toggle('good', brake.state === 'preferred');
  }

  /** @param {lab.StaticState} fixed */
  drawLists(fixed) {
    const { run } = this.state;
    this.picker.replaceChildren(
      ...optionList(fixed.runs.map(([id, name, status]) => [id, `${id} · ${name} (${status})`])),
      ...optionList([[RECORDED, 'Watch a recorded run …']]),
    );
    this.reward.replaceChildren(...optionList(fixed.reward_models));
    this.rewardRow.hidden = fixed.reward_models.length < 2 || run.reward_model === null;
    this.part('.source').textContent = [fixed.label_source, fixed.tracking].filter(Boolean).join('; ');
    for (const { name, label } of Object.values(this.settings)) label.hidden = !fixed.live_settings.includes(name);
  }

  /** @param {lab.FeedReply} reply */
  drawProgress({ run, eta_s: eta }) {
    const badge = this.part('[data-status]');
    badge.textContent = badge.dataset.status = run.status;
    badge.className = `lab-badge ${STATUS_STYLES[run.status] || ''}`;
    const isGoing = run.status === 'running' && run.step;
    const step = this.part('[data-step]');
    const left = isGoing ? timeLeftText(eta, run.step / run.total_steps, 'about ') : '';
    step.textContent = `step ${run.step} of ${run.total_steps}${left}`;
    step.dataset.step = run.step;
    window.dispatchEvent(new CustomEvent('lab-step', { detail: { run: run.id, step: run.step } })); // for the header
    const progress = this.part('[role=progressbar]');
    progress.setAttribute('aria-valuemax', run.total_steps);
    progress.setAttribute('aria-valuenow', run.step);
    progress.firstChild.style.width = `${run.total_steps ? (100 * run.step) / run.total_steps : 0}%`;
  }
}

function drawCheck(badge, value, limit) {
  const isKnown = value !== null;
  const isOk = isKnown && Math.abs(value) <= limit;
  badge.classList.toggle('good', isKnown && isOk);
  badge.classList.toggle('bad', isKnown && !isOk);
  badge.dataset.check = isKnown ? (isOk ? 'ok' : 'failed') : '';
  badge.lastElementChild.textContent = isKnown
    ? ` ${isOk ? '✓' : '✗'} (max deviation ${formatNumber(Math.abs(value), 2)})`
    : ': measured at the first step';
}

// The checkpoint whose texts people prefer, one press away.
function offer({ state, step }, run) {
  if (state !== 'declined' || step === null) return null;
  return actionButton('brake-chat', `Chat with step ${step}`, () => {
    setItem(WANTED_MODEL, `${run.id}/${step}`);
    openTab('Chat');
  });
}

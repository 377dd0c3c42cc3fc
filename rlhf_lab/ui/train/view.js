// A live run: its bar (run_bar.js), curves with a verdict each (curves.js), samples (sample_viewer.js) at the step of
// one slider, and the token view. A recorded run (replay.js) is drawn in the same way.
import { requests } from '../shared/api.js';
import { onThemeChange } from '../shared/charts.js';
import { actionButton, html, setText } from '../shared/dom.js';
import { poll } from '../shared/poll.js';
import { getItem, openTab, operatorOnly, setItem, WANTED_RUN, WANTED_TEXT } from '../shared/session.js';
import { Curves } from './curves.js';
import { closeReplay, currentReplay, REPLAY, ReplayBand, replayButton } from './replay.js';
import { ACTIVE, RunBar } from './run_bar.js';
import { activityText, nearest } from './sample_texts.js';
import { SampleViewer } from './sample_viewer.js';
import { TokenView } from './token_view.js';

const api = requests('train');

/** @param {lab.SampleRow} row @param {number} model the reward model that the run uses */
function askWhichLabels({ prompt, turns, text }, model) {
  setItem(WANTED_TEXT, JSON.stringify({ prompt, turns, text, model, back: { tab: 'Train', scroll: window.scrollY } }));
  openTab('Reward model');
}

export default class TrainScreen {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.chosenRun = /** @type {number | null} */ (null); // by a person; null: the newest active run
    this.activity = null; // {text, startedAt}: what happens now, and when it started by this page's clock
    this.replay = currentReplay(); // on screen
    this.tokenView = new TokenView(
      (query) => this.source.tokens(query),
      () => this.replay?.tokenSteps() ?? null,
    );
    this.wantedToken = /** @type {null | { run: number, step: number, selected: number[] }} */ (null);
    this.pollNow = () => {};
    this.forget();
    root.append(html`<div class="lab-card lab-empty">Loading the runs …</div>`);
    window.addEventListener('lab-run', () => this.takeWanted());
    window.addEventListener(REPLAY, () => this.useReplay());
    onThemeChange(() => this.parts?.curves.restyle());
    this.pollNow = poll(root, () => this.update(), 1000);
    this.takeWanted();
  }

  // What another screen asked for (showRun).
  takeWanted() {
    const [run, step, row, token] = (getItem(WANTED_RUN) || '').split('/').map(Number);
    if (!run) return;
    setItem(WANTED_RUN, '');
    this.wantedToken = step ? { run, step, selected: [row, token] } : null;
    this.selectRun(run);
  }

  // What answers the requests: a recording, or the lab.
  get source() {
    return this.replay ?? api;
  }

  // A replay has begun, moved on or ended.
  useReplay() {
    const replay = currentReplay();
    if (replay !== this.replay) {
      this.forget();
      this.replay = replay;
    }
    this.pollNow();
  }

  // Nothing of a run is known or shown.
  forget() {
    this.parts?.curves.remove();
    this.parts = /** @type {null | { bar: RunBar, curves: Curves, samples: SampleViewer, activity: any }} */ (null);
    this.run = /** @type {lab.RunState | null} */ (null);
    this.static = /** @type {lab.StaticState | null} */ (null);
    this.known = { epoch: null, after_step: -1, static_id: null, revision: null }; // of the last reply
    this.activity = null;
  }

  // ---- polling

  selectRun(run) {
    closeReplay();
    this.chosenRun = run;
    this.pollNow();
  }

  // If no run was chosen: stay on a run that is active or being read, otherwise follow the next run that trains.
  requestedRun() {
    const stays = this.run && (ACTIVE.includes(this.run.status) || !this.parts.samples.followsLatest);
    return this.chosenRun ?? (stays ? this.run.id : null);
  }

  async update() {
    const { chosenRun, source } = this;
    const { state, elsewhere } = await source.points({ run: this.requestedRun(), ...this.known });
    if (chosenRun !== this.chosenRun || source !== this.source) {
      setTimeout(this.pollNow, 0); // another run was chosen in the meantime
      return;
    }
    if (elsewhere) {
      this.drawEmpty(elsewhere);
      return;
    }
    try {
      if (state) this.apply(state);
    } catch (error) {
      this.forget(); // otherwise the lab would only send what has changed since
      throw error;
    }
    this.drawActivity();
    this.parts.samples.load();
    this.tokenView.load(this.run.step);
  }

  /** @param {lab.FeedReply} reply */
  apply(reply) {
    const isNewRun = this.run?.id !== reply.run.id;
    if (isNewRun) this.forget();
    const { epoch, last_step: afterStep, static_id: staticId, revision } = reply;
    this.run = reply.run;
    this.static = reply.static || this.static;
    this.known = { epoch, after_step: afterStep, static_id: staticId, revision };
    if (isNewRun) this.build();
    const { bar, curves, samples } = this.parts;
    bar.draw(reply, this.static);
    for (const node of [this.tokenView.node, samples.node.querySelector('[data-do=to-tokens]')]) {
      node.hidden = !this.static.has_rollouts;
    }
    this.activity = {
      text: reply.status_text,
      startedAt: reply.elapsed_s === null ? null : performance.now() - 1000 * reply.elapsed_s,
    };
    if (curves.draw(reply, this.static)) Object.assign(this.known, { epoch: null, revision: null });
    samples.addSteps(epoch, reply.sample_steps, reply.reset);
    if (this.wantedToken?.run === this.run.id) this.showToken(this.wantedToken);
    curves.mark(this.static.events, samples.step);
  }

  showToken({ run, step, selected }) {
    this.wantedToken = null;
    this.parts.samples.goTo(nearest(this.parts.samples.steps, step));
    this.tokenView.show(run, step, selected);
    this.tokenView.open();
  }

  // ---- elements: built once per run, then updated

  build() {
    const runId = this.run.id;
    const samples = new SampleViewer(runId, (query) => this.source.samples(query), {
      onStep: (step) => {
        curves.mark(this.static.events, step);
        this.tokenView.show(runId, step);
      },
      onTokens: () => this.tokenView.open(),
      // scores of a live run are those of its own heads, which Reward model does not have
      onWhy: this.replay || this.run.reward_model === null ? null : (row) => askWhichLabels(row, this.run.reward_model),
    });
    const bar = new RunBar({
      control: (fields) => api.control(fields),
      onPick: (run) => this.selectRun(run),
      onControl: () => {
        this.known.revision = null;
        this.pollNow();
      },
    });
    const curves = new Curves(
      this.data,
      (metric) => this.source.metric_points({ run: runId, metric }),
      (step) => samples.goTo(nearest(samples.steps, step)),
      bar.details,
    );
    const activity = html`<p class="lab-notice" hidden><span role="status"></span><span></span></p>`;
    this.parts = { bar, curves, samples, activity };
    this.root.dataset.run = runId;
    delete this.root.dataset.elsewhere;
    const band = this.replay && new ReplayBand(this.replay).node;
    this.root.classList.toggle('replaying', Boolean(band));
    this.root.replaceChildren(
      html`${band ?? bar.node}${activity}
        <div class="columns">${samples.node}${curves.node}</div>
        ${this.tokenView.node}`,
    );
    band?.focus();
  }

  drawActivity() {
    if (!this.parts || !this.activity) return;
    const { text, startedAt } = this.activity;
    const { activity } = this.parts;
    const { status } = this.run;
    const shown = activityText(status, text, startedAt === null ? null : (performance.now() - startedAt) / 1000);
    activity.hidden = !text;
    activity.classList.toggle('bad', status === 'failed');
    setText(activity.firstChild, text);
    setText(activity.lastChild, shown.slice(text.length)); // the clock, which is not read aloud each second
  }

  /** @param {lab.RunElsewhere[]} elsewhere */
  drawEmpty(elsewhere) {
    const shown = JSON.stringify(elsewhere);
    if (this.root.dataset.elsewhere === shown) return;
    this.forget();
    delete this.root.dataset.run;
    this.root.dataset.elsewhere = shown;
    const message = elsewhere.length
      ? 'This project has no run yet.'
      : 'No run yet. The curves and samples of a run appear here while it trains.';
    this.root.classList.remove('replaying');
    this.root.replaceChildren(
      html`<div class="lab-card lab-empty">
        <p>${message}</p>
        <p class="offer">${replayButton(() => null, 'Watch a recorded run', 'lab-main')}</p>
        ${elsewhere.map((run) => this.runElsewhere(run))}
      </div>`,
    );
  }

  /** @param {lab.RunElsewhere} run */
  runElsewhere({ id, name, project, status }) {
    const stop = async (event) => {
      event.target.disabled = true;
      await api.control({ action: 'stop', run: id }).catch(() => {});
      event.target.disabled = false;
      this.pollNow();
    };
    return html`<p class="lab-row lab-notice" data-elsewhere=${id}>
      <span class="lab-grow">Run ${id} (${name}) of the project "${project}" is ${status}.</span>
      ${actionButton('elsewhere-open', 'Open its project …', () => openTab('Project'))}
      ${operatorOnly(actionButton('elsewhere-stop', 'Stop it', stop, 'small danger'))}
    </p>`;
  }
}

// A live run: curves with a verdict each, samples (sample_viewer.js), one step slider for both, token view, and the
// run's controls.
import { makeChart, onThemeChange } from '../shared/charts.js';
import { createSampleViewer } from './sample_viewer.js';
import { createTokenView } from './token_view.js';
import { el } from '../shared/dom.js';
import { formatDuration, formatNumber, timeLeftText } from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { openTab, operatorOnly } from '../shared/session.js';

const ACTIVE = ['queued', 'running', 'paused'];
const STATUS_STYLES = { running: 'accent', paused: 'warn', failed: 'bad', done: 'good', interrupted: 'warn' };
const TERM_PREFIX = 'objective/reward/';
const MAX_POINTS = 2500; // of a curve in the page; a longer one is requested again, thinned
const initialState = () => ({
  run: null,
  static: null,
  staticId: null,
  epoch: null,
  lastStep: -1,
  revision: null,
  pending: [],
  inUse: {},
  charts: {},
  extraCharts: {},
  samples: null,
});

function drawCheck(badge, label, value, limit, title) {
  const known = value !== null && value !== undefined;
  const isOk = known && Math.abs(value) <= limit;
  badge.className = `lab-badge ${known ? (isOk ? 'good' : 'bad') : ''}`;
  badge.title = title;
  badge.dataset.check = known ? (isOk ? 'ok' : 'failed') : '';
  badge.textContent = known
    ? `${label} ${isOk ? '✓' : '✗'} (max deviation ${formatNumber(Math.abs(value), 2)})`
    : `${label}: measured at the first step`;
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-train');
  const CURVES = props.data.curves;
  let state = initialState();
  let chosenRun = null; // chosen by a person; null: the newest active run
  let activity = null; // {text, startedAt}: what happens now, and when it started by this page's clock
  let nodes = {};
  const tokenView = createTokenView((question) => server.tokens(question));
  const allCharts = () => [...Object.values(state.charts), ...Object.values(state.extraCharts)];
  const markAll = () => {
    for (const chart of allCharts()) chart.mark(state.static.events, state.samples.currentStep());
  };
  const goToStep = (x) => state.samples.goTo(state.samples.nearest(x));

  // ---- actions

  function sendControl(name, fields = {}) {
    nodes.error.hidden = true;
    for (const button of [nodes.pause, nodes.resume, nodes.stop]) button.disabled = true;
    trigger('control', { request_id: Date.now(), action: name, run: state.run.id, ...fields });
    setTimeout(() => {
      if (state.run) updateButtons(state.run, state.pending);
    }, 4000); // in case the reply is lost
  }

  const button = (name, label, classes = '') =>
    el(
      `button.lab-button.small${classes}`,
      { type: 'button', 'data-do': name, onclick: () => sendControl(name) },
      label,
    );

  function settingField(name) {
    const submit = () => {
      if (input.value.trim()) sendControl('set', { setting: name, value: input.value });
    };
    const restoreIfEmpty = () => {
      if (!input.value.trim()) {
        delete input.dataset.dirty;
        input.value = settingText(name);
      }
    };
    const input = el('input.lab-input.knob', {
      type: 'text',
      inputmode: 'decimal',
      'aria-label': name,
      'data-do': `knob-${name}`,
      onkeydown: (e) => {
        if (e.key === 'Enter') {
          submit();
          e.target.blur();
        }
      },
      oninput: () => {
        input.dataset.dirty = '1';
      },
      onblur: restoreIfEmpty,
    });
    const setBy = el('span.muted', { 'data-do': `set-by-${name}` });
    const automatic = el(
      'button.lab-button.small',
      {
        type: 'button',
        'data-do': `automatic-${name}`,
        'aria-label': `automatic ${name}`,
        title: `Let the run adapt ${name} again.`,
        onclick: () => sendControl('set', { setting: name, value: 'automatic' }),
      },
      'Automatic',
    );
    const label = el(
      'label.lab-row.knobs',
      {},
      el('span.muted', {}, name),
      input,
      el(
        'button.lab-button.small',
        { type: 'button', 'data-do': `set-${name}`, 'aria-label': `set ${name}`, onclick: submit },
        'Set',
      ),
      automatic,
      setBy,
    );
    return { input, automatic, setBy, label };
  }

  const isByHand = (name) => state.run.set_by_hand.includes(name);
  const isAutomatic = (name) => state.static.adapted_settings.includes(name) && !isByHand(name);

  // The value in force at the newest step of a setting that the run adapts, otherwise the value that was set.
  function settingText(name) {
    const value = isAutomatic(name) ? state.inUse[name] : null;
    if (!value) return String(value ?? state.run[name]);
    if (name === 'beta' && value < 1e-4) return '0'; // far below the KL budget beta is about 1e-11
    return value < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3))); // both fit into the field
  }

  function drawSetting(name) {
    const { input, automatic, setBy } = nodes[name];
    if (document.activeElement !== input && !input.dataset.dirty) input.value = settingText(name);
    automatic.hidden = !isByHand(name);
    setBy.textContent = isByHand(name) ? 'set by hand' : isAutomatic(name) ? 'automatic' : '';
    setBy.title = isByHand(name)
      ? `${name} keeps this value until you set another one or choose Automatic.`
      : `The run adapts ${name}; the field shows the value of the newest step. A value that you set stays.`;
  }

  // ---- elements: built once per run, then updated

  function buildScreen() {
    state.samples = createSampleViewer(
      state.run.id,
      (question) => server.samples(question),
      (step) => {
        markAll();
        tokenView.show(state.run.id, step);
      },
      tokenView.open,
    );
    nodes = {
      activity: el('p.lab-notice', { role: 'status', hidden: true }),
      grid: el('div.grid', { role: 'group', 'aria-label': 'curves' }),
      more: el('div.more'),
      explanation: el(
        'p.muted',
        {},
        'The sentence under each curve describes the mean of its last 5 steps (fewer before step 10), ' +
          'because single steps are noisy. "Since the start" compares it with the first 5 steps, "now" with ' +
          'the 5 steps before. Changes within the noise of the curve do not count; if the newest step ' +
          'does not confirm a change, it is called "up and down".',
      ),
      none: el('div.lab-card.lab-empty', {}, 'The curves start with the first step.'),
    };
    const barNode = buildBar();
    root.replaceChildren(
      barNode,
      nodes.activity,
      el(
        'div.columns',
        {},
        el('div.curves', {}, nodes.none, nodes.grid, nodes.explanation, nodes.more),
        state.samples.node,
      ),
      tokenView.node,
    );
    for (const curve of CURVES) state.charts[curve.metric] = makeChart(nodes.grid, curve, props.data, goToStep);
    buildMoreMetrics();
  }

  function buildBar() {
    nodes.picker = el('select.lab-input.picker', {
      'aria-label': 'run',
      'data-do': 'pick',
      onchange: (e) => selectRun(Number(e.target.value)),
    });
    nodes.status = el('span.lab-badge', { 'data-status': '' });
    nodes.step = el('span.muted', { 'data-step': '' });
    nodes.progressFill = el('i');
    nodes.progress = el(
      'div.lab-bar',
      { role: 'progressbar', 'aria-label': 'progress of the run', 'aria-valuemin': 0 },
      nodes.progressFill,
    );
    nodes.pause = button('pause', 'Pause');
    nodes.resume = button('resume', 'Resume', '.lab-main');
    nodes.stop = button('stop', 'Stop', '.danger');
    nodes.beta = settingField('beta');
    nodes.lr = settingField('lr');
    nodes.reward = el('select.lab-input.reward', {
      'aria-label': 'reward model in use',
      'data-do': 'switch',
      onchange: (e) => sendControl('switch', { reward_model: Number(e.target.value) }),
    });
    nodes.rewardRow = el('label.lab-row.knobs', {}, el('span.muted', {}, 'reward model'), nodes.reward);
    nodes.ratio = el('span.lab-badge');
    nodes.kl = el('span.lab-badge');
    nodes.labelSource = el('span.muted.lab-grow');
    nodes.pending = el('span.muted', { role: 'status', 'data-asked': '' });
    nodes.error = el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'error' });
    nodes.settings = el(
      'div.lab-row',
      {},
      operatorOnly(nodes.beta.label, nodes.lr.label, nodes.rewardRow),
      nodes.pending,
    );
    return el(
      'div.lab-card.bar',
      {},
      el(
        'div.lab-row',
        {},
        nodes.picker,
        nodes.status,
        el('span.lab-grow.progress', {}, nodes.step, nodes.progress),
        operatorOnly(nodes.pause, nodes.resume, nodes.stop),
      ),
      nodes.settings,
      el('div.lab-row', {}, nodes.ratio, nodes.kl, nodes.labelSource),
      nodes.error,
    );
  }

  function updateButtons(run, pending) {
    const isActive = ACTIVE.includes(run.status);
    nodes.pause.hidden = !isActive || run.status === 'paused';
    nodes.resume.hidden = run.status === 'done' || (isActive && run.status !== 'paused');
    nodes.stop.hidden = !isActive;
    nodes.pause.disabled = pending.includes('pause') || pending.includes('stop');
    nodes.resume.disabled = pending.includes('resume');
    nodes.stop.disabled = pending.includes('stop');
    nodes.settings.hidden = run.status === 'done';
    nodes.pending.textContent = pending.length ? `requested: ${pending.join(', ')}` : '';
  }

  function drawBar(run, reply) {
    if (reply.static) {
      nodes.picker.replaceChildren(
        ...state.static.runs.map(([id, name, status]) => el('option', { value: id }, `${id} · ${name} (${status})`)),
      );
      nodes.reward.replaceChildren(
        ...state.static.reward_models.map(([id, label]) => el('option', { value: id }, label)),
      );
      nodes.rewardRow.hidden = state.static.reward_models.length < 2 || run.reward_model === null;
      nodes.labelSource.textContent = state.static.label_source;
      for (const name of ['beta', 'lr']) nodes[name].label.hidden = !state.static.live_settings.includes(name);
      for (const node of [tokenView.node, state.samples.node.querySelector('[data-do=to-tokens]')]) {
        node.hidden = !state.static.has_rollouts;
      }
    }
    if (document.activeElement !== nodes.picker) nodes.picker.value = run.id;
    nodes.picker.title = nodes.picker.selectedOptions[0]?.textContent ?? ''; // long names are truncated
    if (document.activeElement !== nodes.reward) nodes.reward.value = run.reward_model;
    nodes.status.textContent = run.status;
    nodes.status.className = `lab-badge ${STATUS_STYLES[run.status] || ''}`;
    nodes.status.dataset.status = run.status;
    const left =
      run.status === 'running' && run.step ? timeLeftText(reply.eta_s, run.step / run.total_steps, 'about ') : '';
    nodes.step.textContent = `step ${run.step} of ${run.total_steps}${left}`;
    nodes.step.dataset.step = run.step;
    window.dispatchEvent(new CustomEvent('lab-step', { detail: { run: run.id, step: run.step } })); // for the header
    nodes.progress.setAttribute('aria-valuemax', run.total_steps);
    nodes.progress.setAttribute('aria-valuenow', run.step);
    nodes.progressFill.style.width = `${run.total_steps ? (100 * run.step) / run.total_steps : 0}%`;
    state.pending = reply.pending_changes;
    updateButtons(run, state.pending);
    state.inUse = reply.in_use;
    for (const name of ['beta', 'lr']) drawSetting(name);
    drawCheck(
      nodes.ratio,
      'first ratio = 1',
      reply.checks.max_first_ratio_deviation,
      1e-5,
      'The first update of every step starts from the policy that wrote the texts: all ratios must be 1.',
    );
    // an offline method has no ratio
    nodes.ratio.hidden = run.step > 0 && reply.checks.max_first_ratio_deviation === null;
    drawCheck(
      nodes.kl,
      'KL at the first step = 0',
      reply.checks.first_step_kl,
      1e-3,
      'The policy starts as a copy of the reference: its first texts must have KL 0.',
    );
  }

  function updateActivity() {
    if (!nodes.activity || !activity) return;
    const time =
      activity.startedAt === null ? '' : ` (for ${formatDuration((performance.now() - activity.startedAt) / 1000)})`;
    const text = `${activity.text}${time}`;
    if (nodes.activity.textContent !== text) nodes.activity.textContent = text;
  }

  // ---- other metrics

  function buildMoreMetrics() {
    nodes.moreSelect = el('select.lab-input', {
      'aria-label': 'another metric',
      'data-do': 'more',
      onchange: (e) => addMetric(e.target.value),
    });
    nodes.moreGrid = el('div.grid');
    nodes.more.replaceChildren(
      el(
        'details',
        { 'data-do': 'more-fold' },
        el('summary.muted', {}, 'More metrics'),
        el('div.lab-row', { style: 'margin:10px 0' }, nodes.moreSelect),
        nodes.moreGrid,
      ),
    );
  }

  async function addMetric(metric) {
    nodes.moreSelect.value = '';
    if (!metric || state.extraCharts[metric]) return;
    const description = props.data.descriptions[metric] || '';
    state.extraCharts[metric] = makeChart(
      nodes.moreGrid,
      { metric, title: metric, unit: '', description },
      props.data,
      goToStep,
    );
    if (description) state.extraCharts[metric].showVerdict('info', description);
    await refreshMetric(metric);
  }

  async function refreshMetric(metric) {
    const requestedState = state;
    const reply = await unwrap(server.metric_points({ run: state.run.id, metric }));
    if (state !== requestedState) return;
    requestedState.extraCharts[metric].points(reply.points, true);
    requestedState.extraCharts[metric].mark(requestedState.static.events, requestedState.samples.currentStep());
  }

  // ---- polling

  function selectRun(run) {
    chosenRun = run;
    pollNow();
  }

  // elsewhere: the active runs of other projects.
  function drawEmpty(elsewhere) {
    const shown = JSON.stringify(elsewhere);
    if (root.dataset.elsewhere === shown) return;
    for (const chart of allCharts()) chart.drop();
    state = initialState();
    nodes = {};
    activity = null;
    delete root.dataset.run;
    const message = elsewhere.length
      ? 'This project has no run yet.'
      : 'No run yet. The curves and samples of a run appear here while it trains.';
    root.replaceChildren(el('div.lab-card.lab-empty', {}, message, elsewhere.map(runElsewhere)));
    root.dataset.elsewhere = shown;
  }

  function runElsewhere(run) {
    return el(
      'p.lab-row.lab-notice',
      { 'data-elsewhere': run.id },
      el('span.lab-grow', {}, `Run ${run.id} (${run.name}) of the project "${run.project}" is ${run.status}.`),
      el(
        'button.lab-button.small',
        { type: 'button', 'data-do': 'elsewhere-open', onclick: () => openTab('Project') },
        'Open its project …',
      ),
      operatorOnly(
        el(
          'button.lab-button.small.danger',
          {
            type: 'button',
            'data-do': 'elsewhere-stop',
            onclick: () => trigger('control', { request_id: Date.now(), action: 'stop', run: run.id }),
          },
          'Stop it',
        ),
      ),
    );
  }

  async function update() {
    const { epoch, lastStep: afterStep, staticId, revision } = state;
    const requestedRun = chosenRun;
    // If no run was chosen: stay on a run that is active or being read, otherwise follow the next run that trains.
    const staysOnRun = state.run && (ACTIVE.includes(state.run.status) || !state.samples.followsLatest());
    const reply = await unwrap(
      server.points({
        run: requestedRun ?? (staysOnRun ? state.run.id : null),
        epoch,
        after_step: afterStep,
        static_id: staticId,
        revision,
      }),
    );
    if (requestedRun !== chosenRun) {
      setTimeout(pollNow, 0);
      return;
    } // another run was chosen in the meantime
    if (!reply.unchanged && !reply.run) {
      drawEmpty(reply.elsewhere);
      return;
    }
    if (!reply.unchanged) applyReply(reply);
    state.samples.load();
    tokenView.refresh();
  }

  function applyReply(reply) {
    if (!state.run || state.run.id !== reply.run.id) {
      for (const chart of allCharts()) chart.drop();
      state = initialState();
      root.dataset.run = reply.run.id;
    }
    const isNewRun = !state.run;
    state.run = reply.run;
    state.epoch = reply.epoch;
    state.lastStep = reply.last_step;
    state.revision = reply.revision;
    if (reply.static) {
      state.static = reply.static;
      state.staticId = reply.static_id;
    }
    delete root.dataset.elsewhere;
    if (isNewRun) buildScreen();
    drawBar(reply.run, reply);
    activity = {
      text: reply.status_text,
      startedAt: reply.elapsed_s === null ? null : performance.now() - 1000 * reply.elapsed_s,
    };
    nodes.activity.hidden = !reply.status_text;
    nodes.activity.classList.toggle('bad', reply.run.status === 'failed');
    updateActivity();
    drawCurves(reply);
    state.samples.addSteps(reply.epoch, reply.sample_steps, reply.reset);
    markAll();
  }

  function drawCurves(reply) {
    nodes.none.hidden = reply.last_step > 0;
    nodes.more.hidden = nodes.explanation.hidden = reply.last_step <= 0;
    for (const curve of CURVES) {
      const chart = state.charts[curve.metric];
      chart.points(reply.points[curve.metric] || [], reply.reset);
      const verdict = reply.verdicts[curve.metric];
      if (verdict) chart.showVerdict(verdict.level, verdict.message);
      if (chart.pointCount > MAX_POINTS) {
        state.epoch = null;
        state.revision = null;
      } // request all points again, thinned
    }
    if (nodes.moreSelect.options.length !== state.static.other_metrics.length + 1) {
      nodes.moreSelect.replaceChildren(
        el('option', { value: '' }, 'choose a metric …'),
        ...state.static.other_metrics.map((name) => el('option', { value: name }, name)),
      );
    }
    let previous = state.charts['objective/scores'];
    for (const [metric, weight] of state.static.reward_terms) {
      previous = state.extraCharts[metric] ??= makeTermChart(metric, weight, previous);
    }
    for (const metric of Object.keys(state.extraCharts)) refreshMetric(metric).catch(() => {});
  }

  // The curve of a reward term is placed beside the score, of which it is a part.
  function makeTermChart(metric, weight, previous) {
    const description = props.data.descriptions[`${TERM_PREFIX}<term>`] || '';
    const chart = makeChart(
      nodes.grid,
      { metric, title: `Reward term: ${metric.slice(TERM_PREFIX.length)}`, unit: '', description },
      props.data,
      goToStep,
    );
    previous.figure.after(chart.figure);
    chart.showVerdict('info', `Mean of the sampled texts. Its weight in the score is ${formatNumber(weight)}.`);
    return chart;
  }

  let pollNow = () => {};
  watch('value', () => {
    const reply = props.value;
    if (!nodes.error || !reply) return;
    nodes.error.hidden = !reply.error;
    nodes.error.textContent = reply.error || '';
    for (const name of ['beta', 'lr']) {
      const { input } = nodes[name];
      input.toggleAttribute('aria-invalid', Boolean(reply.error && reply.setting === name));
      if (!reply.error && reply.setting === name) delete input.dataset.dirty;
    }
    state.revision = null;
    pollNow();
  });
  window.addEventListener('lab-run', (event) => selectRun(event.detail));
  onThemeChange(() => {
    for (const chart of allCharts()) chart.restyle();
  });
  root.append(el('div.lab-card.lab-empty', {}, 'Loading the runs …'));
  const clock = setInterval(() => {
    if (document.body.contains(root)) updateActivity();
    else clearInterval(clock);
  }, 1000);
  pollNow = poll(root, update, 1000);
}

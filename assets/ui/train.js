// A run, live: curves, what each says, samples beside them (samples.js), one scrubber for both, and the run's controls.
const { el } = Lab;
const root = element.querySelector('.lab-train');
const CURVES = props.data.curves;
const GOING = ['queued', 'running', 'paused'];
const MOODS = { running: 'accent', paused: 'warn', failed: 'bad', done: 'good', interrupted: 'warn' };
const MOST = 2500;  // points a curve may hold in the page before it is sent again, thinned
const fresh = () => ({ run: null, frame: null, frameId: null, line: null, since: -1, seen: null, asked: [], charts: {}, extra: {}, samples: null });
let state = fresh();
let wanted = null;  // the run a person chose; null: the newest that goes on
let waiting = null; // {words, since}: what happens and when it began, by this page's clock
let parts = {};
const scope = LabMicroscope((question) => server.tokens(question));
const charts = () => [...Object.values(state.charts), ...Object.values(state.extra)];
const markAll = () => { for (const chart of charts()) chart.mark(state.frame.events, state.samples.step()); };
const pick = (x) => state.samples.goTo(state.samples.nearest(x));

// ---- what the person does

function control(name, more = {}) {
  parts.error.hidden = true;
  for (const button of [parts.pause, parts.resume, parts.stop]) button.disabled = true;
  trigger('control', { at: Date.now(), do: name, run: state.run.id, ...more });
  setTimeout(() => { if (state.run) controls(state.run, state.asked); }, 4000);  // should the answer get lost
}

const button = (name, words, kind = '') => el(`button.lab-button.small${kind}`, { type: 'button', 'data-do': name, onclick: () => control(name) }, words);

function knob(name) {
  const set = () => { if (input.value.trim()) control('set', { name, value: input.value }); };
  const leave = () => { if (!input.value.trim()) { delete input.dataset.dirty; input.value = String(state.run[name]); } };  // what is in force
  const input = el('input.lab-input.knob', { type: 'text', inputmode: 'decimal', 'aria-label': name, 'data-do': `knob-${name}`,
    onkeydown: (e) => { if (e.key === 'Enter') { set(); e.target.blur(); } }, oninput: () => { input.dataset.dirty = '1'; }, onblur: leave });
  const label = el('label.lab-row.knobs', {}, el('span.muted', {}, name), input,
    el('button.lab-button.small', { type: 'button', 'data-do': `set-${name}`, 'aria-label': `set ${name}`, onclick: set }, 'Set'));
  return { input, label };
}

// ---- the frame: built once a run, then only filled

function frame() {
  state.samples = LabSamples(state.run.id, (question) => server.samples(question), (step) => { markAll(); scope.show(state.run.id, step); }, scope.open);
  parts = { doing: el('p.lab-notice', { role: 'status', hidden: true }), grid: el('div.grid', { role: 'group', 'aria-label': 'curves' }), more: el('div.more'),
    told: el('p.muted', {}, 'The sentence under a curve speaks of the mean of its last 5 steps (fewer before step 10), so that the noise of one step does not count; rising or falling it calls a curve whose newest step says so too.'),
    none: el('div.lab-card.lab-empty', {}, 'The curves begin with the first step.') };
  const bar = barFrame();
  root.replaceChildren(bar, parts.doing, el('div.columns', {}, el('div.curves', {}, parts.none, parts.grid, parts.told, parts.more), state.samples.box), scope.fold);
  for (const curve of CURVES) state.charts[curve.metric] = LabCharts.make(parts.grid, curve, props.data, pick);
  moreFrame();
}

function barFrame() {
  parts.picker = el('select.lab-input.picker', { 'aria-label': 'run', 'data-do': 'pick', onchange: (e) => show(Number(e.target.value)) });
  parts.status = el('span.lab-badge', { 'data-status': '' });
  parts.step = el('span.muted', { 'data-step': '' });
  parts.fill = el('i');
  parts.progress = el('div.lab-bar', { role: 'progressbar', 'aria-label': 'progress of the run', 'aria-valuemin': 0 }, parts.fill);
  parts.pause = button('pause', 'Pause'); parts.resume = button('resume', 'Resume', '.lab-main'); parts.stop = button('stop', 'Stop', '.danger');
  parts.beta = knob('beta'); parts.lr = knob('lr');
  parts.reward = el('select.lab-input.reward', { 'aria-label': 'reward model in use', 'data-do': 'switch',
    onchange: (e) => control('switch', { reward_model: Number(e.target.value) }) });
  parts.rewardRow = el('label.lab-row.knobs', {}, el('span.muted', {}, 'reward model'), parts.reward);
  parts.ratio = el('span.lab-badge'); parts.kl = el('span.lab-badge');
  parts.about = el('span.muted.lab-grow'); parts.asked = el('span.muted', { role: 'status', 'data-asked': '' });
  parts.error = el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'error' });
  parts.knobs = el('div.lab-row', {}, Lab.operator(parts.beta.label, parts.lr.label, parts.rewardRow), parts.asked);
  return el('div.lab-card.bar', {},
    el('div.lab-row', {}, parts.picker, parts.status, el('span.lab-grow.progress', {}, parts.step, parts.progress), Lab.operator(parts.pause, parts.resume, parts.stop)),
    parts.knobs, el('div.lab-row', {}, parts.ratio, parts.kl, parts.about), parts.error);
}

function controls(run, asked) {
  const going = GOING.includes(run.status);
  parts.pause.hidden = !going || run.status === 'paused';
  parts.resume.hidden = run.status === 'done' || (going && run.status !== 'paused');
  parts.stop.hidden = !going;
  parts.pause.disabled = asked.includes('pause') || asked.includes('stop');
  parts.resume.disabled = asked.includes('resume');
  parts.stop.disabled = asked.includes('stop');
  parts.knobs.hidden = run.status === 'done';
  parts.asked.textContent = asked.length ? `asked for: ${asked.join(', ')}` : '';
}

function bar(run, reply) {
  if (reply.frame) {
    parts.picker.replaceChildren(...state.frame.runs.map(([id, name, status]) => el('option', { value: id }, `${id} · ${name} (${status})`)));
    parts.reward.replaceChildren(...state.frame.models.map(([id, words]) => el('option', { value: id }, words)));
    parts.rewardRow.hidden = state.frame.models.length < 2;
    parts.about.textContent = state.frame.about;
  }
  if (document.activeElement !== parts.picker) parts.picker.value = run.id;
  parts.picker.title = parts.picker.selectedOptions[0]?.textContent ?? '';  // a long name is cut
  if (document.activeElement !== parts.reward) parts.reward.value = run.reward_model;
  parts.status.textContent = run.status; parts.status.className = `lab-badge ${MOODS[run.status] || ''}`; parts.status.dataset.status = run.status;
  const left = run.status === 'running' && run.step ? Lab.left(reply.eta_s, run.step / run.total, 'about ') : '';
  parts.step.textContent = `step ${run.step} of ${run.total}${left}`; parts.step.dataset.step = run.step;
  parts.progress.setAttribute('aria-valuemax', run.total); parts.progress.setAttribute('aria-valuenow', run.step);
  parts.fill.style.width = `${run.total ? 100 * run.step / run.total : 0}%`;
  state.asked = reply.asked;
  controls(run, state.asked);
  for (const name of ['beta', 'lr']) {
    const { input } = parts[name];
    if (document.activeElement !== input && !input.dataset.dirty) input.value = String(run[name]);
  }
  check(parts.ratio, 'first ratio = 1', reply.checks.first_ratio, 1e-5, 'The first update of every step starts from the policy that wrote the texts: all ratios must be 1.');
  check(parts.kl, 'KL at the first step = 0', reply.checks.start_kl, 1e-3, 'The policy begins as the reference: its first texts must have KL 0.');
}

function check(badge, words, value, limit, about) {
  const known = value !== null && value !== undefined, fine = known && Math.abs(value) <= limit;
  badge.className = `lab-badge ${known ? (fine ? 'good' : 'bad') : ''}`;
  badge.title = about;
  badge.dataset.check = known ? (fine ? 'ok' : 'failed') : '';
  badge.textContent = known ? `${words} ${fine ? '✓' : '✗'} (max deviation ${Lab.number(Math.abs(value), 2)})` : `${words}: measured at the first step`;
}

function tellDoing() {
  if (!parts.doing || !waiting) return;
  const time = waiting.since === null ? '' : ` (for ${Lab.duration((performance.now() - waiting.since) / 1000)})`;
  const words = `${waiting.words}${time}`;
  if (parts.doing.textContent !== words) parts.doing.textContent = words;
}

// ---- any other metric

function moreFrame() {
  parts.moreSelect = el('select.lab-input', { 'aria-label': 'another metric', 'data-do': 'more', onchange: (e) => another(e.target.value) });
  parts.moreGrid = el('div.grid');
  parts.more.replaceChildren(el('details', { 'data-do': 'more-fold' }, el('summary.muted', {}, 'More metrics'),
    el('div.lab-row', { style: 'margin:10px 0' }, parts.moreSelect), parts.moreGrid));
}

async function another(metric) {
  parts.moreSelect.value = '';
  if (!metric || state.extra[metric]) return;
  const about = props.data.abouts[metric] || '';
  state.extra[metric] = LabCharts.make(parts.moreGrid, { metric, title: metric, unit: '', about }, props.data, pick);
  if (about) state.extra[metric].say('info', about);
  await refreshExtra(metric);
}

async function refreshExtra(metric) {
  const mine = state, reply = await Lab.answer(server.more({ run: state.run.id, metric }));
  if (state !== mine) return;
  mine.extra[metric].points(reply.points, true);
  mine.extra[metric].mark(mine.frame.events, mine.samples.step());
}

// ---- the loop

function show(run) { wanted = run; tick(); }

function noRun() {
  for (const chart of charts()) chart.drop();
  state = fresh(); parts = {}; waiting = null;
  delete root.dataset.run;
  root.replaceChildren(el('div.lab-card.lab-empty', {}, 'No run yet. When one trains, its curves and its texts appear here while it learns.'));
}

async function update() {
  const { line, since, frameId, seen } = state;
  const asked = wanted;
  // Nobody chose: stay with a run that goes on or is being read, otherwise follow whatever trains next.
  const stay = state.run && (GOING.includes(state.run.status) || !state.samples.follows());
  const reply = await Lab.answer(server.points({ run: asked ?? (stay ? state.run.id : null), line, since, frame: frameId, seen }));
  if (asked !== wanted) { setTimeout(tick, 0); return; }  // another run was chosen meanwhile
  if (!reply.same && !reply.run) { noRun(); return; }
  if (!reply.same) take(reply);
  state.samples.fetch();
  scope.again();
}

function take(reply) {
  if (!state.run || state.run.id !== reply.run.id) {
    for (const chart of charts()) chart.drop();
    state = fresh();
    root.dataset.run = reply.run.id;
  }
  const first = !state.run;
  state.run = reply.run; state.line = reply.line; state.since = reply.to; state.seen = reply.seen;
  if (reply.frame) { state.frame = reply.frame; state.frameId = reply.frame_id; }
  if (first) frame();
  bar(reply.run, reply);
  waiting = { words: reply.doing, since: reply.for_s === null ? null : performance.now() - 1000 * reply.for_s };
  parts.doing.hidden = !reply.doing;
  parts.doing.classList.toggle('bad', reply.run.status === 'failed');
  tellDoing();
  curves(reply);
  state.samples.take(reply.line, reply.sampled, reply.reset);
  markAll();
}

function curves(reply) {
  parts.none.hidden = reply.to > 0;
  parts.more.hidden = parts.told.hidden = reply.to <= 0;
  for (const curve of CURVES) {
    const chart = state.charts[curve.metric];
    chart.points(reply.points[curve.metric] || [], reply.reset);
    if (reply.verdicts[curve.metric]) chart.say(...reply.verdicts[curve.metric]);
    if (chart.held > MOST) { state.line = null; state.seen = null; }  // ask for everything again, thinned
  }
  if (parts.moreSelect.options.length !== state.frame.names.length + 1) {
    parts.moreSelect.replaceChildren(el('option', { value: '' }, 'choose a metric …'), ...state.frame.names.map((name) => el('option', { value: name }, name)));
  }
  for (const metric of Object.keys(state.extra)) refreshExtra(metric).catch(() => {});
}

let tick = () => {};
watch('value', () => {
  const said = props.value;
  if (!parts.error || !said) return;
  parts.error.hidden = !said.error; parts.error.textContent = said.error || '';
  for (const name of ['beta', 'lr']) {
    const { input } = parts[name];
    input.toggleAttribute('aria-invalid', Boolean(said.error && said.name === name));
    if (!said.error && said.name === name) delete input.dataset.dirty;
  }
  state.seen = null;
  tick();
});
window.addEventListener('lab-run', (event) => show(event.detail));
new MutationObserver(() => { for (const chart of charts()) chart.restyle(); }).observe(document.body, { attributes: true, attributeFilter: ['class'] });
root.append(el('div.lab-card.lab-empty', {}, 'Looking for runs …'));
const clock = setInterval(() => { if (document.body.contains(root)) tellDoing(); else clearInterval(clock); }, 1000);
tick = Lab.poll(root, update, 1000);

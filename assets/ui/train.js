// A run, live: curves, what each says, samples beside them, one scrubber for both, and the run's controls.
const { el } = Lab;
const root = element.querySelector('.lab-train');
const P = window.Plotly;
const CURVES = props.data.curves;
const state = { run: null, since: -1, seen: null, wanted: null, step: null, follow: true, steps: [], events: [], charts: {}, samples: {}, extra: null };
const parts = {};

// ---- the frame, built once a run is there

function frame() {
  parts.bar = el('div.lab-card.bar');
  parts.doing = el('p.lab-notice', { role: 'status', hidden: true });
  parts.grid = el('div.grid', { role: 'group', 'aria-label': 'curves' });
  parts.more = el('div.more');
  parts.side = el('aside.side', { 'aria-label': 'samples' });
  root.replaceChildren(parts.bar, parts.doing, el('div.columns', {}, el('div.curves', {}, parts.grid, parts.more), parts.side));
  state.charts = {};
  for (const curve of CURVES) chart(curve.metric, curve.title, curve.unit, curve.about, parts.grid);
  moreBox();
  sideFrame();
}

function chart(metric, title, unit, about, into) {
  const plot = el('div.plot', { role: 'img', 'aria-label': `${title} over the steps` });
  const verdict = el('figcaption.verdict', { 'aria-live': 'off' }, ' ');
  const figure = el('figure.lab-card.chart', { 'data-metric': metric, hidden: true },
    el('div.lab-row', {}, el('h3', { title: about }, title), el('span.muted', {}, unit)), plot, verdict);
  into.append(figure);
  state.charts[metric] = { figure, plot, verdict, drawn: false, x: [], y: [] };
}

function styled() {
  const c = Lab.colours();
  return { 'font.color': c.ink, 'font.family': c.font, 'xaxis.gridcolor': c.line, 'yaxis.gridcolor': c.line,
    'yaxis.zerolinecolor': c.muted, 'hoverlabel.bgcolor': getComputedStyle(document.body).getPropertyValue('--lab-card').trim(),
    'font.size': document.body.classList.contains('projector') ? 16 : 12 };
}

function marks() {
  const c = Lab.colours();
  const shapes = [], annotations = [];
  const named = new Map();
  for (const event of state.events) {
    if (event.step === null) continue;
    shapes.push({ type: 'line', x0: event.step + 0.5, x1: event.step + 0.5, yref: 'paper', y0: 0, y1: 1, line: { color: c.warn, width: 1.5, dash: 'dot' } });
    named.set(event.step, [...(named.get(event.step) || []), event.words]);
  }
  for (const [step, words] of named) {
    annotations.push({ x: step + 0.5, yref: 'paper', y: 1, yanchor: 'top', xanchor: 'left', text: plain(words.join(', ')), showarrow: false,
      font: { size: 10, color: c.warn }, bgcolor: 'rgba(0,0,0,0)' });
  }
  if (state.step !== null) {
    shapes.push({ type: 'line', x0: state.step, x1: state.step, yref: 'paper', y0: 0, y1: 1, line: { color: c.accent, width: 2 } });
  }
  return { shapes, annotations };
}

// Plotly reads a little markup in texts.
const plain = (words) => words.slice(0, 40).replace(/&/g, '&amp;').replace(/</g, '&lt;');

function restyle() {
  for (const item of Object.values(state.charts)) {
    if (item.drawn) { P.relayout(item.plot, { ...styled(), ...marks() }); P.restyle(item.plot, { 'line.color': Lab.colours().accent }); }
  }
}

function drawPoints(metric, points, reset) {
  const item = state.charts[metric];
  if (!item || !points) return;
  const x = points.map((p) => p[0]), y = points.map((p) => p[1]);
  if (!item.drawn) {
    item.figure.hidden = false;
    item.x = x; item.y = y; item.drawn = true;
    const c = Lab.colours();
    P.newPlot(item.plot, [{ x: item.x, y: item.y, mode: 'lines+markers', line: { color: c.accent, width: 2 }, marker: { size: 4 }, hovertemplate: '%{y:.4g}<extra></extra>' }],
      { ...structuredClone(props.data.layout), ...marks() }, props.data.config);
    P.relayout(item.plot, styled());
    item.plot.on('plotly_click', (event) => goTo(nearest(event.points[0].x), false));
    return;
  }
  if (reset) {
    P.restyle(item.plot, { x: [x], y: [y] }, [0]);
  } else if (x.length) {
    P.extendTraces(item.plot, { x: [x], y: [y] }, [0]);
  }
}

// ---- the bar above: which run, how far, its controls

function control(name, more = {}) { trigger('control', { at: Date.now(), do: name, run: state.run.id, ...more }); }

function bar(run, reply) {
  const going = ['queued', 'running', 'paused'].includes(run.status);
  const mood = { running: 'accent', paused: 'warn', failed: 'bad', done: 'good', interrupted: 'warn' }[run.status] || '';
  const picker = el('select.lab-input', { 'aria-label': 'run', 'data-do': 'pick', onchange: (e) => show(Number(e.target.value)) },
    reply.runs.map(([id, name, status]) => el('option', { value: id, selected: id === run.id }, `${id} · ${name} (${status})`)));
  const share = run.total ? run.step / run.total : 0;
  const fill = el('i'); fill.style.width = `${100 * share}%`;
  const left = reply.eta_s === null ? '' : ` · ${Lab.duration(reply.eta_s)} left`;
  const button = (name, words, kind = '') => el(`button.lab-button.small${kind}`, { type: 'button', 'data-do': name, onclick: () => control(name) }, words);
  const editing = parts.bar.contains(document.activeElement) && ['INPUT', 'SELECT'].includes(document.activeElement.tagName);
  if (editing) { state.barDue = [run, reply]; return; }
  const knob = (name) => {
    const input = el('input.lab-input.knob', { type: 'text', inputmode: 'decimal', value: String(run[name]), 'aria-label': name, 'data-do': `knob-${name}`,
      onkeydown: (e) => { if (e.key === 'Enter') { control('set', { name, value: e.target.value }); e.target.blur(); } },
      onblur: () => { if (state.barDue) { const due = state.barDue; state.barDue = null; setTimeout(() => bar(...due), 50); } } });
    return el('label.lab-row', {}, el('span.muted', {}, name), input,
      el('button.lab-button.small', { type: 'button', 'data-do': `set-${name}`, onclick: () => control('set', { name, value: input.value }) }, 'Set'));
  };
  parts.bar.replaceChildren(...[
    el('div.lab-row', {},
      picker, el(`span.lab-badge.${mood}`, { 'data-status': run.status }, run.status),
      el('span.lab-grow.progress', {},
        el('span.muted', { 'data-step': run.step }, `step ${run.step} of ${run.total}${left}`),
        el('div.lab-bar', { role: 'progressbar', 'aria-label': 'progress of the run', 'aria-valuemin': 0, 'aria-valuemax': run.total, 'aria-valuenow': run.step }, fill)),
      going && run.status !== 'paused' ? button('pause', 'Pause') : null,
      run.status === 'paused' || (!going && run.status !== 'done') ? button('resume', 'Resume', '.lab-main') : null,
      going ? button('stop', 'Stop', '.danger') : null),
    el('div.lab-row', { style: 'margin-top:10px' },
      run.status === 'done' ? null : knob('beta'), run.status === 'done' ? null : knob('lr'),
      check('first ratios = 1', reply.checks.first_ratio, 1e-5), check('KL at the first step = 0', reply.checks.start_kl, 1e-3),
      el('span.muted.lab-grow', {}, `${run.algorithm} on reward model ${run.reward_model}, which learnt from ${run.source}`)),
    state.error ? el('p.lab-notice.bad', { role: 'alert', style: 'margin-top:8px' }, state.error) : null,
  ].filter(Boolean));
}

function check(words, value, limit) {
  if (value === null || value === undefined) return el('span.lab-badge', { title: 'measured at the first step' }, `${words} …`);
  const fine = Math.abs(value) <= limit;
  return el(`span.lab-badge.${fine ? 'good' : 'bad'}`, { title: `largest deviation ${value}`, 'data-check': fine ? 'ok' : 'failed' }, `${fine ? '✓' : '✗'} ${words}`);
}

// ---- samples and the scrubber

function sideFrame() {
  parts.scrub = el('input', { type: 'range', min: 0, max: 0, step: 1, value: 0, 'aria-label': 'step of the samples', 'data-do': 'scrub',
    oninput: (e) => goTo(state.steps[Number(e.target.value)], Number(e.target.value) === state.steps.length - 1) });
  parts.at = el('strong', { 'data-at': '' }, '');
  parts.latest = el('button.lab-button.small', { type: 'button', 'data-do': 'latest', onclick: () => goTo(state.steps.at(-1), true) }, 'Latest');
  parts.rows = el('div.rows', { 'aria-live': 'off' });
  parts.side.replaceChildren(
    el('div.lab-row', {}, el('h2', {}, 'Samples'), parts.at, el('span.lab-grow'), parts.latest),
    el('div.scrub', {}, parts.scrub),
    el('p.muted', {}, 'Same prompts, same seeds as at the start; changed words are marked.'), parts.rows);
}

const nearest = (x) => state.steps.reduce((best, s) => (Math.abs(s - x) < Math.abs(best - x) ? s : best), state.steps[0] ?? 0);

function goTo(step, follow) {
  if (step === undefined || step === null) return;
  state.follow = follow;
  state.step = step;
  scrubber();
  markAll();
  fetchSamples(step);
}

function scrubber() {
  parts.scrub.max = Math.max(0, state.steps.length - 1);
  parts.scrub.value = Math.max(0, state.steps.indexOf(state.step));
  parts.scrub.setAttribute('aria-valuetext', `step ${state.step}`);
  parts.at.textContent = state.step === null ? '' : state.step === 0 ? 'step 0: the base model' : `step ${state.step}`;
  parts.at.dataset.at = state.step ?? '';
  parts.latest.disabled = state.follow;
}

function markAll() {
  const found = marks();
  for (const item of Object.values(state.charts)) if (item.drawn) P.relayout(item.plot, found);
}

async function fetchSamples(step) {
  const run = state.run.id;
  const key = `${run}/${step}`;
  if (!state.samples[key]) {
    try { state.samples[key] = await Lab.answer(server.samples({ run, step })); } catch (error) { return; }
  }
  if (state.run && state.run.id === run && state.step === step) drawSamples(state.samples[key]);
}

function difference(now, before, what) {
  if (now === null) return null;
  const change = before === null || before === undefined ? null : now - before;
  const mood = change === null || Math.abs(change) < 0.05 ? '' : change > 0 ? 'good' : 'bad';
  return el(`span.lab-badge.${mood}`, { title: `${what} now${before === null ? '' : `, ${Lab.number(before)} at the start`}` },
    `${what} ${Lab.number(now)}${change === null ? '' : ` (${change >= 0 ? '+' : ''}${Lab.number(change, 2)})`}`);
}

function drawSamples(reply) {
  const base = reply.step === 0;
  parts.rows.replaceChildren(...(reply.rows.length ? reply.rows.map((row) => el('article.lab-card.sample', {},
    el('p.muted.lab-text', { dir: 'auto' }, row.prompt),
    el('div.pair', {},
      base ? null : el('div.before', {}, el('span.tag', {}, 'base'), el('p.lab-text', { dir: 'auto' }, row.base ?? '–')),
      el('div.now', {}, el('span.tag', {}, base ? 'base' : `step ${reply.step}`), base || row.base === null ? el('p.lab-text', { dir: 'auto' }, row.text) : Lab.marked(row.base, row.text))),
    el('div.lab-row', {}, difference(row.score, row.base_score, 'score'), difference(row.gold, row.base_gold, 'gold')))) :
    [el('p.lab-empty', {}, 'No samples were kept at this step.')]));
  parts.rows.dataset.shown = reply.step;
}

// ---- any other metric

function moreBox() {
  parts.moreSelect = el('select.lab-input', { 'aria-label': 'another metric', 'data-do': 'more', onchange: (e) => another(e.target.value) },
    el('option', { value: '' }, 'another metric …'));
  parts.moreGrid = el('div.grid');
  parts.more.replaceChildren(el('div.lab-row', { style: 'margin:12px 0' }, parts.moreSelect), parts.moreGrid);
}

async function another(metric) {
  if (!metric) return;
  parts.moreSelect.value = '';
  if (!state.charts[metric]) chart(metric, metric, '', '', parts.moreGrid);
  await refreshExtra(metric);
}

async function refreshExtra(metric) {
  const reply = await Lab.answer(server.more({ run: state.run.id, metric }));
  drawPoints(metric, reply.points, true);
}

// ---- the loop

function show(run) {
  state.wanted = run; state.seen = null; state.since = -1; state.step = null; state.follow = true; state.error = '';
  tick();
}

async function update() {
  const reply = await Lab.answer(server.points({ run: state.wanted, shown: state.run ? state.run.id : null, since: state.since, seen: state.seen }));
  if (reply.same) return;
  if (!reply.run) {
    state.run = null; state.seen = null;
    root.replaceChildren(el('div.lab-card.lab-empty', {}, 'No run yet. When one trains, its curves and its texts appear here while it learns.'));
    return;
  }
  const changedRun = !state.run || state.run.id !== reply.run.id;
  state.run = reply.run; state.seen = reply.seen; state.since = reply.to; state.events = reply.events; state.steps = reply.sample_steps;
  if (changedRun) { state.step = null; state.follow = true; frame(); root.dataset.run = reply.run.id; }
  bar(reply.run, reply);
  parts.doing.hidden = !reply.doing;
  parts.doing.textContent = reply.doing;
  parts.doing.classList.toggle('bad', reply.run.status === 'failed');
  for (const curve of CURVES) drawPoints(curve.metric, reply.points[curve.metric], reply.reset);
  for (const [metric, [level, words]] of Object.entries(reply.verdicts)) {
    const line = state.charts[metric]?.verdict;
    if (line) { line.textContent = words; line.dataset.level = level; }
  }
  const names = reply.run.names.filter((name) => !CURVES.some((curve) => curve.metric === name));
  if (parts.moreSelect.options.length !== names.length + 1) {
    parts.moreSelect.replaceChildren(el('option', { value: '' }, 'another metric …'), ...names.map((name) => el('option', { value: name }, name)));
  }
  for (const metric of Object.keys(state.charts)) if (!CURVES.some((curve) => curve.metric === metric)) refreshExtra(metric);
  if (state.steps.length && (state.follow || !state.steps.includes(state.step))) goTo(state.steps.at(-1), true);
  else { scrubber(); markAll(); }
}

let tick = () => {};
watch('value', () => {
  const said = props.value;
  state.error = said && said.error ? said.error : '';
  state.seen = null;
  tick();
});
window.addEventListener('lab-run', (event) => show(event.detail));
new MutationObserver(restyle).observe(document.body, { attributes: true, attributeFilter: ['class'] });
root.append(el('div.lab-card.lab-empty', {}, 'Looking for runs …'));
tick = Lab.poll(root, update, 1000);

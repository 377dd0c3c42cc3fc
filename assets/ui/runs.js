// Screen "Runs & data": the list of runs, chosen runs beside each other, exports.
const { el } = Lab;
const root = element.querySelector('.lab-runs');
const COLOURS = props.data.most;
let state = null;          // the list on screen
let seen = '';
let chosen = null;         // run id -> colour number; null until the first list is there
let editing = null;        // {run, what: 'name' | 'delete'}: the list is not redrawn under a person's hands
let metric = 'objective/scores';
let picture = null;        // what the charts show
let pictured = '';         // its revision
let waiting = 0;           // when the action that has not been answered was sent
const part = (what, run) => root.querySelector(`[data-do="${what}"]${run === undefined ? '' : `[data-run="${run}"]`}`);

const list = el('section.list', { 'aria-label': 'runs of this project' }, el('div.lab-card.lab-empty', { role: 'status' }, 'Looking for runs …'));
const notice = el('p.lab-notice', { role: 'status', hidden: true, 'data-do': 'runs-notice' });
const compare = el('section.lab-card.compare', { 'aria-label': 'compare runs', hidden: true });
const take = el('section.lab-card.take', { 'aria-label': 'export', hidden: true });
root.append(Lab.only('Only the operator changes runs, trains, exports and imports here; you can look and compare.'), notice, list, compare, take);
take.addEventListener('change', () => { if (part('export-link')) say(''); });

const say = (words, bad = false) => Lab.tell(notice, words, bad);

function send(name, more) {
  waiting = Date.now();
  if (name === 'export') take.after(notice); else list.before(notice);  // near what was pressed
  say('');
  trigger(name, { at: waiting, ...more });
}

// ---- colours and choice

const colour = (slot) => getComputedStyle(root).getPropertyValue(`--series-${slot + 1}`).trim();

function choose(id, on) {
  if (!on) chosen.delete(id);
  else if (chosen.size < COLOURS) {
    const used = new Set(chosen.values());
    chosen.set(id, [...Array(COLOURS).keys()].find((slot) => !used.has(slot)));
  } else {
    list.before(notice);
    say(`At most ${COLOURS} runs can be compared at once. Leave one out first.`, true);
  }
  drawList();
  look();
}

// ---- the list

const MOODS = { running: 'accent', queued: '', paused: 'warn', interrupted: 'warn', failed: 'bad', stopped: 'warn', done: 'good' };

function spark(values) {
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('viewBox', '0 0 100 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('class', 'spark');
  svg.setAttribute('aria-hidden', 'true');
  const there = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  if (there.length < 2) return svg;
  const low = Math.min(...there.map(([, v]) => v)), high = Math.max(...there.map(([, v]) => v));
  const line = document.createElementNS(space, 'polyline');
  line.setAttribute('points', there.map(([i, v]) => `${(100 * i / (values.length - 1)).toFixed(1)},${(25 - 22 * (v - low) / (high - low || 1)).toFixed(1)}`).join(' '));
  svg.append(line);
  return svg;
}

function when(seconds) {
  const date = new Date(1000 * seconds), today = new Date().toDateString() === date.toDateString();
  const time = date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  return today ? time : `${date.toLocaleDateString([], { day: 'numeric', month: 'short' })}, ${time}`;
}

function edit(run, what) { editing = { run, what }; drawList(); part(what === 'name' ? 'run-name' : 'run-delete-sure', run)?.focus(); }
function leave() { const { run, what } = editing || {}; editing = null; drawList(); if (run) part(what === 'name' ? 'run-rename' : 'run-delete', run)?.focus(); }

function nameCell(run) {
  if (editing?.run === run.id && editing.what === 'name') {
    return el('td.name', {}, Lab.nameField(run.name, `new name of run ${run.id}`, 'run-name', { 'data-run': run.id },
      (name) => send('control', { do: 'rename', run: run.id, name }), leave));
  }
  return el('td.name', {}, el('span.muted', {}, `${run.id}`), ' ',
    Lab.operator(el('button.plain', { type: 'button', title: 'rename', 'aria-label': `rename run ${run.id}, ${run.name}`, 'data-do': 'run-rename', 'data-run': run.id, onclick: () => edit(run.id, 'name') }, run.name)),
    run.message && run.status === 'failed' ? el('p.muted.message', {}, run.message) : null);
}

function actions(run) {
  if (editing?.run === run.id && editing.what === 'delete') {
    return Lab.deleteField(`Delete run ${run.id} for good?`, 'run-delete', { 'data-run': run.id },
      () => send('control', { do: 'delete', run: run.id }), leave);
  }
  return el('div.lab-row', {},
    el('button.lab-button.small', { type: 'button', 'data-do': 'run-watch', 'data-run': run.id, title: 'its curves and samples, under Train', onclick: () => watchRun(run.id) }, 'Watch'),
    Lab.operator(run.resumable ? el('button.lab-button.small', { type: 'button', 'data-do': 'run-resume', 'data-run': run.id, onclick: () => send('control', { do: 'resume', run: run.id }) }, 'Resume') : null,
    el('button.lab-button.small.danger', { type: 'button', 'data-do': 'run-delete', 'data-run': run.id, disabled: run.going, title: run.going ? 'stop it under Train first' : 'asks first',
      onclick: () => edit(run.id, 'delete') }, 'Delete')));
}

function watchRun(id) {
  window.dispatchEvent(new CustomEvent('lab-run', { detail: id }));
  [...document.querySelectorAll('button[role=tab]')].find((tab) => tab.textContent.trim() === 'Train')?.click();
}

function row(run) {
  const slot = chosen.get(run.id);
  const box = el('input', { type: 'checkbox', checked: slot !== undefined, 'aria-label': `compare run ${run.id}, ${run.name}`, 'data-do': 'run-choose', 'data-run': run.id,
    onchange: (event) => choose(run.id, event.target.checked) });
  const pick = el('td.pick', {}, el('label', {}, box, el('i.swatch', { 'data-slot': slot === undefined ? null : slot + 1 })));
  const bar = el('i');
  bar.style.width = `${100 * run.step / Math.max(1, run.total)}%`;
  const figure = (words, value) => el('td.figure', { 'data-words': words }, Lab.number(value));
  return el('tr', { 'data-run': run.id }, pick, nameCell(run), el('td.figure', { 'data-words': 'algorithm' }, run.algorithm),
    el('td', {}, el(`span.lab-badge${MOODS[run.status] ? `.${MOODS[run.status]}` : ''}`, { title: run.message || null }, run.status)),
    el('td.step', {}, el('div', {}, `${run.step} of ${run.total}`), el('div.lab-bar', { role: 'progressbar', 'aria-label': `steps of run ${run.id}`, 'aria-valuemin': 0, 'aria-valuemax': run.total, 'aria-valuenow': run.step }, bar)),
    el('td.curve', { title: 'the reward model\'s score over the steps' }, spark(run.spark)),
    figure('score', run.score), figure('KL', run.kl), figure('gold', run.gold),
    el('td.muted.when', { title: new Date(1000 * run.created).toLocaleString() }, when(run.created)), el('td.actions', {}, actions(run)));
}

function drawList() {
  if (!state) return;
  const focus = list.contains(document.activeElement) ? [document.activeElement.dataset.do, document.activeElement.dataset.run] : null;
  if (!state.runs.length) {
    list.replaceChildren(el('div.lab-card.lab-empty', { role: 'status' }, el('p', {}, 'This project has no run yet.'),
      el('p', {}, 'Label pairs under Label, then start PPO under Train; every run stays here, with its numbers, samples and checkpoints.')));
    return;
  }
  const head = ['', 'run', 'algorithm', 'status', 'step', 'score over steps', 'score (sd)', 'KL (nats)', 'gold (points)', 'made', ''];
  const table = el('table', {}, el('thead', {}, el('tr', {}, head.map((words) => el('th', { scope: 'col' }, words)))),
    el('tbody', {}, state.runs.map(row)));
  list.replaceChildren(el('div.lab-card', {}, el('div.lab-row', {}, el('h2', {}, `Runs of ${state.name}`),
    el('span.muted', {}, `tick up to ${COLOURS} to compare; score, KL and gold are means of the last ${props.data.window} steps, of fewer before step ${2 * props.data.window}`)), table,
    state.more ? el('p.muted', {}, `${state.more} older runs are not listed; python -m rlhf_lab runs lists all.`) : null));
  if (focus && focus[0]) part(focus[0], focus[1])?.focus();
}

// ---- beside each other

function drawCompare() {
  compare.hidden = !state || !state.runs.length;
  if (compare.hidden) return;
  if (!compare.firstChild) {
    const title = (words, about) => el('div.lab-row', {}, el('h3', {}, words), el('span.muted', {}, about));
    compare.append(
      el('div.lab-row', {}, el('h2', {}, 'Beside each other'),
        el('select.lab-input', { 'aria-label': 'metric', 'data-do': 'runs-metric', onchange: (event) => { metric = event.target.value; look(); } }),
        el('span.muted.about')),
      el('ul.legend', { 'aria-label': 'legend' }),
      el('p.muted.none', { hidden: true }, 'Tick runs in the list to draw them here.'),
      el('div.drawn', {},
        el('div.plot.wide', { role: 'img', 'aria-label': 'metric over the steps' }),
        el('div.two', {},
          el('figure', {}, title('Score against √KL', 'what the run is paid for'), el('div.plot.score', { role: 'img', 'aria-label': 'reward model\'s score over the square root of KL' })),
          el('figure.gold', {}, title('Gold against √KL', 'what it stands for'), el('div.plot.gold', { role: 'img', 'aria-label': 'gold score over the square root of KL' }))),
        el('p.muted.how', {}, `Distance from the base grows to the right; the large dot is the end. A dot is the mean of a few steps in a row (point at it to see which), at most ${props.data.buckets} a run. Where the score still rises and gold falls, the policy exploits the reward model (over-optimisation, Gao et al. 2022).`)),
      el('div.differs', {}));
  }
}

// Plotly reads a little markup in texts.
const plain = (words) => String(words).slice(0, 60).replace(/&/g, '&amp;').replace(/</g, '&lt;');

function draw(plot, traces, xaxis, yaxis, revision, ticks = {}) {
  const P = window.Plotly, c = Lab.colours(), card = getComputedStyle(document.body).getPropertyValue('--lab-card').trim();
  const axis = (base, title) => ({ ...base, title: { text: title, standoff: 6 }, gridcolor: c.line, zerolinecolor: c.line, color: c.muted, automargin: true });
  const base = structuredClone(props.data.layout);
  const size = document.body.classList.contains('projector') ? 16 : 12;
  const layout = { ...base, margin: { t: 8, r: 12, b: 40, l: 50 }, font: { color: c.ink, family: c.font, size }, uirevision: revision,
    hoverlabel: { bgcolor: card, bordercolor: c.line, font: { color: c.ink } }, xaxis: { ...axis(base.xaxis, xaxis), ...ticks }, yaxis: axis(base.yaxis, yaxis) };
  P.react(plot, traces, layout, { ...props.data.config, displayModeBar: matchMedia('(hover: none)').matches ? false : 'hover' });
}

function frontier(which) {
  return picture.runs.filter((run) => run[which].length).map((run) => ({
    x: run[which].map((p) => p[0]), y: run[which].map((p) => p[1]), name: plain(run.name), mode: 'lines+markers',
    line: { color: colour(chosen.get(run.id)), width: 2 }, marker: { size: run[which].map((_, i, all) => (i === all.length - 1 ? 9 : 5)), color: colour(chosen.get(run.id)) },
    customdata: run[which].map((p) => (p[2] === p[3] ? `step ${p[2]}` : `steps ${p[2]}–${p[3]}`)),
    hovertemplate: `${run.id} ${plain(run.name)}<br>%{customdata}<br>√KL %{x:.3g}, ${which} %{y:.3g}<extra></extra>` }));
}

function drawCharts() {
  if (!picture || !state || !compare.firstChild) return;
  const runs = picture.runs.filter((run) => chosen.has(run.id));
  const none = !runs.length;
  compare.querySelector('.none').hidden = !none;
  compare.querySelector('.drawn').hidden = none;
  compare.querySelector('.legend').replaceChildren(...runs.map((run) => el('li', {}, el('i.swatch', { 'data-slot': chosen.get(run.id) + 1 }), `${run.id} ${run.name}`)));
  drawMetrics();
  drawDiffers();
  if (none) return;
  picture.runs = runs;
  const [words, unit] = props.data.titles[picture.metric] || [picture.metric, ''];
  compare.querySelector('.plot.wide').setAttribute('aria-label', `${words} over the steps of ${runs.length} runs`);
  draw(compare.querySelector('.plot.wide'), runs.map((run) => ({ x: run.points.map((p) => p[0]), y: run.points.map((p) => p[1]), name: plain(run.name),
    mode: run.points.length > 150 ? 'lines' : 'lines+markers', connectgaps: false, line: { color: colour(chosen.get(run.id)), width: 2 }, marker: { size: 4, color: colour(chosen.get(run.id)) },
    hovertemplate: `${run.id} ${plain(run.name)}<br>step %{x}: %{y:.4g}<extra></extra>` })), 'step', `${words}${unit ? ` (${unit})` : ''}`, picture.metric,
    { dtick: LabCharts.whole(0, Math.max(...runs.flatMap((run) => run.points.map((p) => p[0])), 0)) });
  const gold = frontier('gold');  // where there is none the other has its room
  compare.querySelector('figure.gold').hidden = !gold.length;
  compare.querySelector('.two').classList.toggle('alone', !gold.length);
  draw(compare.querySelector('.plot.score'), frontier('score'), '√KL (√nats)', 'score (sd)', 'score');
  if (gold.length) draw(compare.querySelector('.plot.gold'), gold, '√KL (√nats)', 'gold (judge\'s points)', 'gold');
}

function drawMetrics() {
  const select = part('runs-metric'), names = picture.names.includes(metric) ? picture.names : [metric, ...picture.names];
  if (select.dataset.names !== names.join() && select !== document.activeElement) {
    select.dataset.names = names.join();
    select.replaceChildren(...names.map((name) => el('option', { value: name, selected: name === metric }, props.data.titles[name] ? `${props.data.titles[name][0]} (${name})` : name)));
  }
  compare.querySelector('.about').textContent = props.data.abouts[picture.metric] || '';
}

function drawDiffers() {
  const into = compare.querySelector('.differs'), runs = picture.runs, rows = picture.differs;
  if (runs.length < 2) { into.replaceChildren(); return; }
  const words = rows.length ? 'Only the settings that are not the same everywhere.' : 'Nothing: the same settings, labels, seed, device and versions. Their numbers should be the same too.';
  into.replaceChildren(el('div.lab-row', {}, el('h3', {}, 'What differs'), el('span.muted', {}, words)),
    rows.length ? el('div.scroll', { tabindex: '0', role: 'group', 'aria-label': 'what differs' }, el('table', {},
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'setting'), runs.map((run) => el('th', { scope: 'col' }, el('i.swatch', { 'data-slot': chosen.get(run.id) + 1 }), `${run.id} ${run.name}`)))),
      el('tbody', {}, rows.map((item) => el('tr', {}, el('th', { scope: 'row', title: item.about || null }, item.name), item.values.map((value) => el('td', {}, value))))))) : '');
}

// ---- exports

const ask = (name, question) => { send('export', { what: name, ...question }); say('Writing the file …'); };
const drawTake = () => { if (LabTake.draw(take, state, ask) && part('export-link')) say(''); };  // what was offered is no longer what stands here

function offer(file) {
  const link = el('a.lab-button.small', { href: `gradio_api/file=${encodeURI(file.path)}`, download: file.name, 'data-do': 'export-link' }, 'Save it');
  notice.hidden = false;
  notice.replaceChildren(`${file.name}, ${Lab.bytes(file.bytes)}. `, link);
  link.click();
}

// ---- what the server says

async function look() {
  const reply = await Lab.answer(server.look({ seen }));
  if (!reply.same) {
    const other = !state || state.project !== reply.project;
    seen = reply.seen;
    state = reply;
    if (other) { chosen = new Map(); state.runs.slice(0, 3).forEach((run, i) => chosen.set(run.id, i)); editing = null; }
    for (const id of [...chosen.keys()]) if (!state.runs.some((run) => run.id === id)) chosen.delete(id);
    if (!editing) drawList();
    drawTake();
  }
  drawCompare();
  if (compare.hidden) return;
  const shown = await Lab.answer(server.compare({ runs: [...chosen.keys()], metric, seen: pictured }));
  if (shown.same) return;
  pictured = shown.seen;
  picture = shown;
  drawCharts();
}

watch('value', () => {
  const said = props.value;
  if (!said || said.at !== waiting) return;
  if (said.error) say(said.error, true);
  else if (said.offer) offer(said.offer);
  else say(said.done);
  look();
});

new MutationObserver(() => { if (compare.offsetParent !== null) drawCharts(); }).observe(document.body, { attributes: true, attributeFilter: ['class'] });
const again = Lab.poll(root, look, 2000);
new IntersectionObserver((entries) => { if (entries.some((e) => e.isIntersecting)) { drawCharts(); again(); } }).observe(root);

// Screen "Reward model": how good it is, how it learns, what it likes. Each part is drawn anew only when its own data changed.
const { el, percent, between, many } = Lab;
const root = element.querySelector('.lab-reward');
const P = window.Plotly;
let state = null;       // what changes: models, training, labels
let chosen = null;      // the model a person looks at; null: the newest
let report = null;      // what never changes about that model
let source = null;      // the labels a person chose; null: those there are more of
let draft = null;       // {prompt, text} as typed
let question = null;    // {at, job, since} of the text being explained
let verdict = null;     // its answer
let refused = '';       // why the last training was not begun
let tick = () => {};

const plain = (words) => String(words).replace(/&/g, '&amp;').replace(/</g, '&lt;');  // plotly reads a little markup
const looked = () => (state && (state.models.find((m) => m.id === chosen) || state.models[0])) || null;

// ---- charts: `figure` says what is drawn now; drawing it again keeps a person's zoom

const charts = new Map();  // name → {node, figure}

function paint({ node, figure }) {
  const c = Lab.colours(), body = getComputedStyle(document.body), { traces, more } = figure(c);
  const size = document.body.classList.contains('projector') ? 16 : 12;
  const axis = { gridcolor: c.line, zerolinecolor: c.line, color: c.muted };
  const layout = { ...structuredClone(props.data.layout), height: more.height || 200, barmode: 'overlay', hovermode: 'closest', uirevision: 'keep',
    margin: { t: 8, r: 10, b: 40, l: 60 }, font: { color: c.ink, family: c.font, size },
    hoverlabel: { bgcolor: body.getPropertyValue('--lab-card').trim(), bordercolor: c.line, font: { color: c.ink } } };
  layout.xaxis = { ...layout.xaxis, ...axis, rangemode: 'normal', title: { text: more.x || '', standoff: 6 }, ...(more.xaxis || {}) };
  layout.yaxis = { ...layout.yaxis, ...axis, title: { text: more.beside || '', standoff: 6 }, ...(more.y || {}) };
  node.style.height = `${layout.height}px`;  // plotly's own would not grow back after a resize
  P.react(node, traces, layout, { ...props.data.config, displayModeBar: matchMedia('(hover: none)').matches ? false : 'hover' });
}

function chart(name, label, figure) {
  const node = el('div.plot', { role: 'img', 'aria-label': label });
  charts.set(name, { node, figure });
  requestAnimationFrame(() => { if (node.isConnected) paint(charts.get(name)); });
  return node;
}

function sweep() {
  for (const [name, { node }] of charts) if (!node.isConnected) { P.purge(node); charts.delete(name); }
}

// ---- parts

function bar() {
  const { human, simulated, goals, every } = state.labels;
  const shown = source || (simulated > human ? 'simulated' : 'human');
  const from = el('select.lab-input', { 'aria-label': 'labels to learn from', 'data-do': 'source', onchange: (e) => { source = e.target.value; tick(); } },
    el('option', { value: 'human' }, `people's labels (${human})`), el('option', { value: 'simulated' }, `simulated labels (${simulated})`));
  from.value = shown;
  const have = shown === 'human' ? human : simulated, goal = goals[shown];
  const next = state.job ? state.job.words : have >= goal ? 'It is due and begins by itself.' : `It also trains by itself, every ${every} labels: next at ${goal}, ${many(goal - have, 'label')} to go.`;
  const failure = refused || state.failed;
  return el('div.lab-card', {}, el('div.lab-row', {}, Lab.operator(
    el('button.lab-button.lab-main', { type: 'button', 'data-do': 'train', disabled: state.job !== null, onclick: train }, state.job ? (state.job.begun ? 'Training …' : 'Waiting …') : 'Train now'),
    el('span.muted', {}, 'from'), from, el('span.muted.lab-grow', { 'data-do': 'next' }, next))),
  Lab.only('Only the operator trains reward models here; you can look, and ask about texts of your own.'),
  failure ? el('p.lab-notice.bad', { role: 'alert', 'data-do': 'train-error' }, `${refused ? '' : 'The last training failed. '}${failure}`) : null);
}

function train() {
  refused = '';
  trigger('train', { at: Date.now(), source: source || (state.labels.simulated > state.labels.human ? 'simulated' : 'human') });
}

function training() {
  const lossOf = () => state.job?.loss || [];
  const card = el('div.lab-card.training', { 'data-do': 'training' },
    el('div.lab-row', {}, el('h2'), el('span.muted.lab-grow', { role: 'status' })),
    el('div.lab-bar', { role: 'progressbar', 'aria-label': 'training of the reward model', 'aria-valuemin': 0, 'aria-valuemax': 100 }, el('i')),
    el('p.muted.note'),
    el('p.muted', {}, 'Loss, update by update; 0.69 is guessing. Each fold learns without some of the prompts and is tested on them; the last fit learns from all.'));
  card.append(chart('training', 'loss of the training that goes on, over its updates', (c) => ({
    traces: [{ y: lossOf(), x: lossOf().map((_, i) => i + 1), mode: 'lines', line: { color: c.accent, width: 2 }, hovertemplate: '%{y:.3f}<extra></extra>' }],
    more: { x: 'update of this fold', beside: 'loss', height: 160, xaxis: { dtick: LabCharts.whole(1, lossOf().length) }, y: { rangemode: 'tozero' } } })));
  return card;
}

function advance() {
  const card = root.querySelector('.training');
  if (!card || !state.job) return;
  const job = state.job, share = Math.round(100 * job.progress);
  const left = Lab.left(job.eta_s, job.progress, 'about ');
  card.querySelector('[role=status]').textContent = job.begun ? `${job.stage === 'final' ? 'last fit, on all labels' : job.stage || 'reading the texts'} · ${share} %${left}`
    : job.words;
  card.querySelector('h2').textContent = job.begun ? 'Learning from the labels' : 'Waiting to learn from the labels';
  card.querySelector('.lab-bar').setAttribute('aria-valuenow', share);
  card.querySelector('.lab-bar > i').style.width = `${share}%`;
  card.querySelector('.note').textContent = job.note;
  card.querySelector('.plot').hidden = job.loss.length < 2;
  if (job.loss.length > 1) paint(charts.get('training'));
}

function intro() {
  const left = Math.max(0, state.labels.goals.human - state.labels.human);
  return el('div.lab-card.lab-empty', { 'data-do': 'empty' },
    el('p', {}, 'A reward model reads a text and gives it a score. It learns the scores from pairs: the text that was preferred shall score higher.'),
    el('p', {}, left > 0 ? [`${many(left, 'more label')} under Label and it trains by itself`, Lab.orJudge(';'), '.'] : 'There are enough labels; training begins in a moment.'));
}

function scale(model) {
  const at = (share) => `${Math.max(0, Math.min(100, 100 * share))}%`;
  const band = el('i.band'), point = el('i.point'), chance = el('i.chance');
  band.style.left = at(model.low); band.style.width = at(model.high - model.low);
  point.style.left = at(model.accuracy); chance.style.left = at(0.5);
  return el('div.interval', { role: 'img', 'aria-label': `accuracy ${percent(model.accuracy)}, 95 % interval ${between(model.low, model.high)}` },
    el('div.track', {}, band, chance, point), el('div.ends', { 'aria-hidden': 'true' }, el('span', {}, '0 %'), el('span', {}, '50 %: guessing'), el('span', {}, '100 %')));
}

function headline() {
  const model = looked(), seen = state.foresight[model.kind], measured = model.accuracy !== null;
  const gap = measured && report ? report.train_accuracy - model.accuracy : 0;
  const wide = measured && Lab.isWide(model);
  return el('div.lab-card.headline', {},
    el('div', {}, el(`div.big${wide ? '.range' : ''}`, { 'data-accuracy': model.accuracy ?? '' }, measured ? Lab.accuracy(model) : percent(null)), measured ? scale(model) : null),
    el('div', {},
      el('h2', {}, measured ? 'of unseen pairs ranked as labelled' : 'Accuracy not measured'),
      wide ? el('p.warn', {}, `Too few labels for one figure: ${percent(model.accuracy)} came out right, and that may be luck.`) : null,
      el('p.muted', {}, measured && report ? `95 % interval ${between(model.low, model.high)}; cross-validated on ${many(model.labels, 'label')}${report.ties ? `, ${many(report.ties, 'tie')} (or both bad) not counted` : ''}, ${report.folds} folds that never split a prompt.`
        : measured ? '' : 'Too few labels or prompts to keep some of them unseen: label on.'),
      el('p.muted', {}, `Reward model ${model.id}, learnt from ${model.source === 'people' ? "people's labels" : `labels ${model.source}`}.${report ? ` Of its own labels it ranks ${percent(report.train_accuracy)} right.` : ''}`),
      gap > 0.15 ? el('p.muted.warn', {}, `${many(Math.round(100 * gap), 'point')} more on its own labels than on unseen ones: it learns them by heart. More labels help.`) : null,
      el('p', { 'data-do': 'foresight' }, seen.decided
        ? `Predict, then reveal: of ${many(seen.decided, 'vote')} on pairs that the reward model of the moment had not learnt from, it ranked ${seen.right} right before they were cast (${percent(seen.right / seen.decided)}, 95 % interval ${between(seen.low, seen.high)}).`
        : 'Predict, then reveal: vote on, and here stands how many of the new votes it ranked right before they were cast.',
      seen.chosen_decided ? ` Apart from these, on pairs chosen for what they teach (harder than most): ${seen.chosen_right} of ${seen.chosen_decided}.` : '')));
}

function curve() {
  const known = state.models.filter((m) => m.accuracy !== null).slice().reverse();
  const groups = [...new Set(known.map((m) => m.source))];
  const names = ['accent', 'right', 'good'];
  const card = el('div.lab-card', {}, el('div.lab-row', {}, el('h3', {}, 'Accuracy against labels'),
    groups.length > 1 ? groups.map((name, i) => el('span.lab-badge', {}, el(`i.swatch.line-${names[i % 3]}`), name)) : el('span.muted', {}, 'with 95 % intervals')));
  if (known.length < 2) { card.append(el('p.muted', {}, 'A curve from the second reward model on: it shows whether more labels still help.')); return card; }
  card.append(chart('curve', 'accuracy of the reward models against their number of labels', (c) => ({
    traces: groups.map((name, i) => {
      const mine = known.filter((m) => m.source === name).sort((a, b) => a.labels - b.labels);
      return { x: mine.map((m) => m.labels), y: mine.map((m) => m.accuracy), mode: 'lines+markers', line: { color: c[names[i % 3]], width: 2 }, marker: { size: 7 },
        error_y: { type: 'data', symmetric: false, array: mine.map((m) => m.high - m.accuracy), arrayminus: mine.map((m) => m.accuracy - m.low), thickness: 1.2, width: 4 },
        text: mine.map((m) => plain(`model ${m.id}, ${m.source}: ${percent(m.accuracy)} (${between(m.low, m.high)}) at ${m.labels} labels`)), hovertemplate: '%{text}<extra></extra>' };
    }),
    more: { x: 'labels', beside: 'accuracy', xaxis: { dtick: LabCharts.whole(Math.min(...known.map((m) => m.labels)), Math.max(...known.map((m) => m.labels))) }, y: { range: [Math.min(0.4, ...known.map((m) => m.low - 0.02)), 1.02], tickformat: '.0%' } } })));
  return card;
}

function histogram() {
  const card = el('div.lab-card', {}, el('div.lab-row', {}, el('h3', {}, 'Scores of the labelled texts'),
    el('span.lab-badge', {}, el('i.swatch.up'), 'preferred'), el('span.lab-badge', {}, el('i.swatch.down'), 'not preferred')));
  if (!report.chosen.length) { card.append(el('p.muted', {}, 'No scores were kept.')); return card; }
  const all = [...report.chosen, ...report.rejected], size = Math.max(0.1, Math.round((Math.max(...all) - Math.min(...all)) / 1.6) / 10);
  const one = (x, color, name) => ({ type: 'histogram', x, marker: { color }, opacity: 0.6, xbins: { start: -50, end: 50, size }, autobinx: false, hovertemplate: `${name}: %{y} between %{x}<extra></extra>` });
  card.append(chart('histogram', 'histogram of the scores of preferred and of other texts', (c) => ({
    traces: [one(report.chosen, c.left, 'preferred'), one(report.rejected, c.right, 'not preferred')], more: { x: 'score, in sd of base samples', beside: 'texts', y: { dtick: report.chosen.length <= 12 ? 1 : null } } })));
  return card;
}

function table() {
  const look = (m) => el('button.lab-button.small', { type: 'button', 'data-do': `look-${m.id}`, 'aria-label': `look at reward model ${m.id}`, 'aria-pressed': m.id === looked().id ? 'true' : 'false',
    onclick: () => { chosen = m.id; tick(); } }, String(m.id));
  const newest = looked().id === state.models[0].id;
  return el('div.lab-card', {}, el('div.lab-row', {}, el('h3', {}, 'All reward models'), el('span.muted', {}, newest ? 'press a number to look at an older one' : `you look at number ${looked().id}`),
    newest ? null : el('button.lab-button.small', { type: 'button', 'data-do': 'newest', onclick: () => { chosen = null; tick(); } }, 'Back to the newest')),
  el('div.scroll.lab-scroll', { tabindex: 0, role: 'group', 'aria-label': 'list of reward models' }, el('table', {}, el('thead', {}, el('tr', {}, ['', 'accuracy', '95 % interval', 'labels', 'from', 'trained'].map((name) => el('th', { scope: 'col' }, name)))),
    el('tbody', {}, state.models.map((m) => el(`tr${m.id === looked().id ? '.open' : ''}`, {}, el('td', {}, look(m)),
      el('td', {}, percent(m.accuracy)), el('td', {}, between(m.low, m.high) || '–'), el('td', {}, String(m.labels)), el('td', {}, m.source), el('td', {}, new Date(1000 * m.when).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' }))))))));
}

// ---- words

function words() {
  const texts = report.texts;
  draft = draft || (texts[0] ? { ...texts[0] } : { prompt: '', text: '' });
  const field = (name) => el('textarea.lab-input', { rows: 4, dir: 'auto', 'data-do': `explain-${name}`, oninput: (e) => { draft[name] = e.target.value; pick.value = ''; } });
  const prompt = field('prompt'), text = field('text');
  const fill = () => { prompt.value = draft.prompt; text.value = draft.text; };
  const short = (words_) => (words_.length > 60 ? `${words_.slice(0, 60)}…` : words_);
  const pick = el('select.lab-input.pick', { 'aria-label': 'text to look into', 'data-do': 'explain-pick', onchange: () => { if (pick.value !== '') { draft = { ...texts[Number(pick.value)] }; fill(); explain(); } } },
    el('option', { value: '' }, 'a text of my own'), texts.map((item, i) => el('option', { value: i }, `${item.what}: ${short(item.text)}`)));
  pick.value = String(texts.findIndex((item) => item.text === draft.text && item.prompt === draft.prompt));
  if (pick.selectedIndex < 0) pick.value = '';
  fill();
  return el('div.lab-card.words', {},
    el('div.lab-row', {}, el('h3', {}, 'Which words raise or lower the score?'), pick),
    el('div.twice', {}, el('label', {}, el('span.muted', {}, 'prompt'), prompt), el('label', {}, el('span.muted', {}, 'text; change a word and see'), text)),
    el('div.lab-row', {}, el('button.lab-button.small', { type: 'button', 'data-do': 'explain', onclick: explain }, 'Show words')),
    el('div.tokens', { 'data-do': 'tokens' }));
}

function explain() {
  verdict = null;
  question = { at: Date.now() };
  trigger('explain', { at: question.at, model: looked().id, prompt: draft.prompt, text: draft.text });
  verdictNow();
}

function waited() {
  return `${question.begun ? 'The engine reads the text' : 'Waiting for the engine; a run in progress lets it in between, a sleeping engine loads the model first'} (${Lab.duration((Date.now() - question.at) / 1000)}) …`;
}

function verdictNow() {
  const out = root.querySelector('[data-do=tokens]');
  if (!out) return;
  if (!verdict) { out.replaceChildren(question ? el('p.muted', { role: 'status' }, waited()) : ''); return; }
  if (verdict.failed) { out.replaceChildren(el('p.lab-notice.bad', { role: 'alert' }, verdict.failed)); return; }
  const total = el('strong', {}, `Score ${Lab.number(verdict.score, 2)} sd`);
  if (!verdict.token_scores) {
    out.replaceChildren(el('p', { role: 'status' }, total, '. This reward model reads the last token only, so no word has a score of its own; train one with pooling "mean" to see words.'));
    return;
  }
  const most = Math.max(0.5, ...verdict.token_scores.slice(0, -1).map(Math.abs));  // the end speaks of the whole text, and louder
  const tell = el('p.muted.tell', { 'aria-live': 'polite' }, HINT);
  const say = (event) => { const node = event.target.closest?.('.token'); tell.textContent = node ? node.title : HINT; };
  const legend = el('div.legend', { 'aria-hidden': 'true' }, el('span', {}, `lowers ${Lab.difference(-most, 2)}`), el('i'), el('span', {}, `raises ${Lab.difference(most, 2)}`));
  out.replaceChildren(el('p', { role: 'status' }, total, el('span.muted', {}, ': the mean over its word pieces; 0 is the average text of the base model')), legend,
    el('p.lab-text.pieces.lab-scroll', { dir: 'auto', onmouseover: say, onmouseout: () => { tell.textContent = HINT; }, onfocusin: say, onfocusout: () => { tell.textContent = HINT; } },
      verdict.tokens.map((token, i) => piece(token, verdict.token_scores[i], most, i === verdict.tokens.length - 1))), tell);
}

const HINT = 'Hover over a word or reach it with Tab for its number.';

function piece(token, value, most, last) {
  const name = token.trim() || (last ? 'the end, which has read the whole text' : 'space');
  const words_ = `“${name}”: ${Lab.difference(value, 2)} sd`;
  const node = el(`span.token.${value >= 0 ? 'up' : 'down'}`, { tabindex: 0, title: words_, 'aria-label': words_ }, token === '' && last ? '⏎' : token);
  node.style.setProperty('--strength', Math.min(1, Math.abs(value) / most).toFixed(2));
  return node;
}

// ---- drawing

const parts = {
  bar: [() => [state.labels, state.job && [state.job.begun, state.job.words], state.failed, refused, source], bar],
  training: [() => state.job && state.job.id, training],
  intro: [() => !state.models.length && !state.job && state.labels, intro],
  headline: [() => looked() && [looked(), state.foresight, !!report], headline],
  curve: [() => looked() && state.models.map((m) => [m.id, m.accuracy]), curve],
  histogram: [() => report && report.id, histogram],
  words: [() => report && [state.project, report.id], words],
  calibration: [() => report && report.calibration.length && report.id, () => LabReward.calibration(report, chart)],
  losses: [() => report && report.id, () => LabReward.losses(report, chart)],
  length: [() => report && report.id, () => LabReward.length(report)],
  disagreements: [() => report && report.disagreements.length && report.id, () => LabReward.disagreements(report)],
  table: [() => looked() && [state.models, looked().id], table],
};
const holders = Object.fromEntries(Object.keys(parts).map((name) => [name, el(`div.part.${name}-part`, { hidden: true })]));

function draw() {
  for (const [name, [key, build]] of Object.entries(parts)) {
    const holder = holders[name], known = key() || null, now = JSON.stringify(known);
    if (holder.dataset.key === now) continue;
    const inside = holder.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    holder.dataset.key = now;
    holder.hidden = known === null;
    holder.replaceChildren(...(known === null ? [] : [build()]));
    if (inside) holder.querySelector(`[data-do="${inside}"]`)?.focus();  // what was focused stays so
  }
  sweep();
  advance();
}

async function update() {
  const reply = await Lab.answer(server.state({}));
  if (!state) root.replaceChildren(...Object.values(holders));
  if (state && state.project !== reply.project) { chosen = null; draft = null; refused = ''; }
  if (reply.job || (state && JSON.stringify(reply.labels) !== JSON.stringify(state.labels))) refused = '';
  state = reply;
  const model = looked();
  if (!model || !report || report.id !== model.id) {
    report = null; verdict = null; question = null;
    if (model) report = await Lab.answer(server.report({ model: model.id }));
    draw();
    verdictNow();
    return;
  }
  draw();
  if (!question || verdict) return;
  if (question.job) {
    const mine = question, answer = await Lab.answer(server.explained({ job: mine.job }));
    if (question !== mine) return;
    mine.begun = answer.begun;
    if (!answer.waiting) { verdict = answer; question = null; }
  }
  verdictNow();
}

watch('value', () => {
  const said = props.value;
  if (!said) return;
  if (question && said.at === question.at) {
    if (said.error) { verdict = { failed: said.error }; question = null; verdictNow(); } else question.job = said.job;
  } else if (said.error) { refused = said.error; }
  tick();
});
new MutationObserver(() => { for (const one of charts.values()) if (one.node.isConnected) paint(one); }).observe(document.body, { attributes: true, attributeFilter: ['class'] });
root.append(el('div.lab-card.lab-empty', { role: 'status' }, 'Looking for reward models …'));
tick = Lab.poll(root, update, 1000);

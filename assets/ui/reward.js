// Screen "Reward model": how good it is, how it learns, what it likes.
const { el } = Lab;
const root = element.querySelector('.lab-reward');
const P = window.Plotly;
let chosen = null;      // the model a person looks at; null: the newest
let shown = '';         // what is drawn, as JSON
let state = null;
let question = null;    // {job} of the text being explained
let draft = null;       // {prompt, text} as typed
let verdict = null;     // the answer
const plots = [];

const percent = (x) => (x === null || x === undefined ? '–' : `${Math.round(100 * x)} %`);
const between = (low, high) => (low === null || low === undefined ? '' : `95 %: ${Math.round(100 * low)}–${Math.round(100 * high)} %`);

function plot(into, traces, more = {}) {
  const c = Lab.colours();
  const node = el('div.plot', { role: 'img', 'aria-label': more.label || '' });
  into.append(node);
  const layout = structuredClone(props.data.layout);
  Object.assign(layout, { height: more.height || 190, barmode: 'overlay', font: { color: c.ink, family: c.font, size: 12 }, uirevision: more.label });
  layout.xaxis = { ...layout.xaxis, title: { text: more.x || '', standoff: 4 }, gridcolor: c.line, color: c.muted, rangemode: 'normal' };
  layout.yaxis = { ...layout.yaxis, gridcolor: c.line, color: c.muted, ...(more.yaxis || {}) };
  requestAnimationFrame(() => P.newPlot(node, traces, layout, props.data.config));
  plots.push(node);
}

// ---- parts

function intro() {
  const left = state.labels.left;
  return el('div.lab-card.lab-empty', {},
    el('p', {}, 'A reward model reads a text and gives it a score. It learns the scores from pairs: the text you prefer shall score higher.'),
    el('p', {}, left > 0 ? `${left} more label${left === 1 ? '' : 's'} under Label and it trains by itself; or let a simulated judge label 40 there.` : 'There are enough labels; training begins in a moment.'));
}

function training(job) {
  const bar = el('i'); bar.style.width = `${100 * job.progress}%`;
  const card = el('div.lab-card', { 'data-do': 'training' },
    el('div.lab-row', {}, el('h2', {}, 'Learning from the labels'), el('span.muted.lab-grow', { role: 'status' }, `${job.stage}${job.eta_s === null ? '' : ` · about ${Lab.duration(job.eta_s)} left`}`)),
    el('div.lab-bar', { role: 'progressbar', 'aria-label': 'training of the reward model', 'aria-valuenow': Math.round(100 * job.progress) }, bar),
    job.note ? el('p.muted', {}, job.note) : null);
  if (job.loss.length > 1) plot(card, [{ y: job.loss, x: job.loss.map((_, i) => i + 1), mode: 'lines', line: { color: Lab.colours().accent, width: 2 } }], { label: 'loss', x: 'update', height: 150 });
  return card;
}

function headline(model) {
  const gap = model.accuracy === null ? 0 : model.train_accuracy - model.accuracy;
  const seen = model.foresight;
  return el('div.lab-card.headline', {},
    el('div.big', { 'data-accuracy': model.accuracy ?? '' }, percent(model.accuracy)),
    el('div', {},
      el('h2', {}, 'of unseen pairs ranked as labelled'),
      el('p.muted', {}, model.folds ? `${between(model.low, model.high)}; cross-validated on ${model.labels} labels (${model.ties} ties) in ${model.folds} folds that never split a prompt.` : 'Not cross-validated: too few labels or prompts.'),
      el('p.muted', {}, `Learnt from ${model.source === 'people' ? "people's labels" : `labels ${model.source}`}; ${percent(model.train_accuracy)} of its own labels.${gap > 0.2 ? ' The gap says that it learns them by heart: more labels help.' : ''}`),
      el('p', { 'data-do': 'foresight' }, seen.decided
        ? `Predict, then reveal: of the ${seen.decided} vote${seen.decided === 1 ? '' : 's'} cast since, it had ranked ${seen.right} right before seeing them (${percent(seen.right / seen.decided)}, ${between(seen.low, seen.high)}).`
        : 'Predict, then reveal: vote on, and here stands how many of your new votes it ranked right before seeing them.')));
}

function curve() {
  const known = state.models.filter((m) => m.accuracy !== null).slice().reverse();
  const card = el('div.lab-card', {}, el('h3', {}, 'Accuracy against labels'));
  if (known.length < 2) { card.append(el('p.muted', {}, 'A curve from the second reward model on.')); return card; }
  const c = Lab.colours(), groups = [...new Set(known.map((m) => m.source))];
  plot(card, groups.map((source, i) => {
    const mine = known.filter((m) => m.source === source);
    return { name: source, x: mine.map((m) => m.labels), y: mine.map((m) => m.accuracy), mode: 'lines+markers', line: { color: [c.accent, c.right, c.good][i % 3] },
      error_y: { type: 'data', symmetric: false, array: mine.map((m) => m.high - m.accuracy), arrayminus: mine.map((m) => m.accuracy - m.low), thickness: 1 }, hovertemplate: `${source.replace(/</g, '&lt;')}: %{y:.0%} at %{x} labels<extra></extra>` };
  }), { label: 'accuracy against labels', x: 'labels', yaxis: { range: [0.4, 1.02], tickformat: '.0%' } });
  return card;
}

function histogram(model) {
  const c = Lab.colours();
  const card = el('div.lab-card', {}, el('div.lab-row', {}, el('h3', {}, 'Scores of the labelled texts'), el('span.muted', {}, 'sd of base samples'),
    el('span.lab-badge', {}, el('i.swatch.chosen'), 'chosen'), el('span.lab-badge', {}, el('i.swatch.rejected'), 'rejected')));
  plot(card, [
    { type: 'histogram', x: model.chosen, marker: { color: c.left }, opacity: 0.6, xbins: { size: 0.4 }, hovertemplate: 'chosen: %{y}<extra></extra>' },
    { type: 'histogram', x: model.rejected, marker: { color: c.right }, opacity: 0.6, xbins: { size: 0.4 }, hovertemplate: 'rejected: %{y}<extra></extra>' },
  ], { label: 'histogram of the scores of chosen and rejected texts', x: 'score' });
  return card;
}

function length(model) {
  const r = model.length_correlation;
  const words = r === null || r === undefined ? 'not measured' : Math.abs(r) < 0.2 ? `${Lab.number(r, 2)}: it hardly looks at length.`
    : Math.abs(r) < 0.5 ? `${Lab.number(r, 2)}: it likes ${r > 0 ? 'longer' : 'shorter'} texts a little.`
      : `${Lab.number(r, 2)}: it mostly rewards ${r > 0 ? 'long' : 'short'} texts. If you do not, label pairs where the ${r > 0 ? 'shorter' : 'longer'} one is better.`;
  return el('div.lab-card', {}, el('h3', {}, 'Does length decide?'), el('p', { 'data-do': 'length' }, `Correlation of score and length: ${words}`));
}

function words(model) {
  draft = draft || state.example || { prompt: '', text: '' };
  const prompt = el('textarea.lab-input', { rows: 4, 'aria-label': 'prompt', 'data-do': 'explain-prompt', oninput: (e) => { draft.prompt = e.target.value; } });
  const text = el('textarea.lab-input', { rows: 4, 'aria-label': 'text', 'data-do': 'explain-text', oninput: (e) => { draft.text = e.target.value; } });
  prompt.value = draft.prompt; text.value = draft.text;
  const out = el('div.tokens', { 'data-do': 'tokens', 'aria-live': 'polite' });
  const card = el('div.lab-card.words', {},
    el('h3', {}, 'Which words raise or lower the score?'),
    el('div.twice', {}, el('label', {}, el('span.muted', {}, 'prompt'), prompt), el('label', {}, el('span.muted', {}, 'text'), text)),
    el('div.lab-row', {},
      el('button.lab-button.small', { type: 'button', 'data-do': 'explain', onclick: () => { verdict = null; question = { asked: Date.now() }; drawTokens(); trigger('explain', { at: question.asked, model: model.id, prompt: draft.prompt, text: draft.text }); } }, 'Show'),
      el('span.muted', {}, el('i.swatch.up'), ' raises, ', el('i.swatch.down'), ' lowers; hover or focus a word for its number')),
    out);
  return card;
}

function drawTokens() {
  const out = root.querySelector('[data-do=tokens]');
  if (!out) return;
  if (!verdict) { out.replaceChildren(question ? el('p.muted', {}, 'The engine reads the text …') : ''); return; }
  if (verdict.failed) { out.replaceChildren(el('p.lab-notice.bad', { role: 'alert' }, verdict.failed)); return; }
  if (!verdict.token_scores) {
    out.replaceChildren(el('p', {}, `Score ${Lab.number(verdict.score)} sd. This reward model reads the last token only, so no word has a score of its own.`));
    return;
  }
  const most = Math.max(0.5, ...verdict.token_scores.map(Math.abs));
  out.replaceChildren(el('p', {}, el('strong', {}, `Score ${Lab.number(verdict.score)} sd`), el('span.muted', {}, ': the mean of the words below; 0 is the average base sample')),
    el('p.lab-text', { dir: 'auto' }, verdict.tokens.map((token, i) => {
      const value = verdict.token_scores[i];
      const node = el(`span.token.${value >= 0 ? 'up' : 'down'}`, { tabindex: 0, title: `${token.trim() || 'end of the text'}: ${value >= 0 ? '+' : ''}${Lab.number(value, 2)} sd` }, token === '' ? ' (end)' : token);
      node.style.setProperty('--strength', `${Math.round(80 * Math.min(1, Math.abs(value) / most))}%`);
      return node;
    })));
}

function table() {
  return el('div.lab-card', {}, el('h3', {}, 'All reward models'),
    el('div.scroll', {}, el('table', {}, el('thead', {}, el('tr', {}, ['id', 'trained', 'labels', 'from', 'accuracy'].map((name) => el('th', {}, name)))),
      el('tbody', {}, state.models.map((m) => el(`tr${m.id === state.model.id ? '.open' : ''}`, {},
        el('td', {}, el('button.lab-button.small', { type: 'button', 'data-do': `look-${m.id}`, 'aria-pressed': m.id === state.model.id ? 'true' : 'false', onclick: () => { chosen = m.id; verdict = null; question = null; tick(); } }, String(m.id))),
        el('td', {}, new Date(1000 * m.when).toLocaleString()), el('td', {}, String(m.labels)), el('td', {}, m.source),
        el('td', {}, `${percent(m.accuracy)} (${between(m.low, m.high)})`)))))));
}

function bar() {
  const source = el('select.lab-input', { 'aria-label': 'labels to learn from', 'data-do': 'source' },
    el('option', { value: 'human' }, `people's labels (${state.labels.human})`), el('option', { value: 'simulated' }, `simulated labels (${state.labels.simulated})`));
  if (state.labels.simulated > state.labels.human) source.value = 'simulated';
  return el('div.lab-card', {}, el('div.lab-row', {},
    el('button.lab-button.lab-main', { type: 'button', 'data-do': 'train', disabled: state.job !== null, onclick: () => trigger('train', { at: Date.now(), source: source.value }) }, 'Train now'),
    el('span.muted', {}, 'from'), source,
    el('span.muted.lab-grow', {}, `It trains by itself as labels come; next at ${state.labels.goal} labels by people (${state.labels.left} to go).`)),
    el('p.lab-notice.bad', { role: 'alert', 'data-do': 'train-error', hidden: !state.failed }, state.failed || ''));
}

// ---- drawing

function draw() {
  for (const node of plots.splice(0)) P.purge(node);
  const parts = [bar()];
  if (state.job) parts.push(training(state.job));
  if (state.model) {
    parts.push(headline(state.model), el('div.pairs', {}, curve(), histogram(state.model)), words(state.model), length(state.model), table());
  } else if (!state.job) parts.push(intro());
  root.replaceChildren(...parts);
  drawTokens();
}

async function update() {
  const reply = await Lab.answer(server.state({ model: chosen }));
  const example = reply.example;
  const key = JSON.stringify({ ...reply, example: null });
  state = reply;
  if (question && question.job && !verdict) {
    const answer = await Lab.answer(server.explained({ job: question.job }));
    if (!answer.waiting) { verdict = answer; question = null; drawTokens(); }
  }
  if (key === shown) return;
  if (root.contains(document.activeElement) && document.activeElement.tagName === 'TEXTAREA' && state.model) return;  // do not draw under somebody who types
  shown = key;
  if (!draft && example) draft = { ...example };
  draw();
}

let tick = () => {};
watch('value', () => {
  const said = props.value;
  if (!said) return;
  if (said.job && question) { question.job = said.job; tick(); return; }
  if (said.error && question) { verdict = { failed: said.error }; question = null; drawTokens(); return; }
  const notice = root.querySelector('[data-do=train-error]');
  if (notice && said.error) { notice.hidden = false; notice.textContent = said.error; }
  tick();
});
new MutationObserver(() => { if (state) draw(); }).observe(document.body, { attributes: true, attributeFilter: ['class'] });
root.append(el('div.lab-card.lab-empty', {}, 'Looking for reward models …'));
tick = Lab.poll(root, update, 1000);

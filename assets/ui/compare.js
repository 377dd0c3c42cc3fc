// Screen "Compare": columns of texts by the base and checkpoints; same prompt, same random numbers, changed words marked.
const { el } = Lab;
const root = element.querySelector('.lab-compare');
let options = null;
let drawn = '';
let asked = null;        // the question whose answers are awaited: {labels, jobs, prompt, …}
const history = [];      // the last answered ones, newest first
const form = {};
const results = el('div.results', { 'aria-live': 'polite' });

const select = (name, label, items, value) => {
  const node = el('select.lab-input', { 'aria-label': label, 'data-do': name }, items.map(([id, words]) => el('option', { value: id }, words)));
  if (value !== undefined) node.value = value;
  return node;
};
const number = (name, label, value, hint = '') => el('label.field', {}, el('span.muted', {}, label),
  form[name] = el('input.lab-input', { type: 'text', inputmode: 'decimal', value, 'data-do': name, 'aria-label': label, title: hint }));

function steps(which) {
  const chosen = form[`model${which}`].value;
  const run = chosen.startsWith('run/') ? chosen.split('/')[1] : null;
  const known = run ? options.steps[run] || [] : [];
  form[`step${which}`].replaceChildren(el('option', { value: 'latest' }, 'latest step'), ...known.map((step) => el('option', { value: step }, `step ${step}`)));
  form[`step${which}`].hidden = !run;
}

function picker(which, value) {
  form[`model${which}`] = select(`model-${which}`, `model ${which}`, [...(which > 1 ? [['', 'nothing']] : []), ...options.models], value);
  form[`step${which}`] = el('select.lab-input', { 'aria-label': `step of model ${which}`, 'data-do': `step-${which}` });
  form[`model${which}`].addEventListener('change', () => steps(which));
  const node = el('label.field', {}, el('span.muted', {}, which === 1 ? 'this' : 'beside'), el('div.lab-row', {}, form[`model${which}`], form[`step${which}`]));
  steps(which);
  return node;
}

function draw() {
  const kept = { prompt: form.prompt ? form.prompt.value : null, picks: [1, 2, 3].map((i) => form[`model${i}`]?.value) };
  const newest = options.models[1] ? options.models[1][0] : '';
  form.prompt = el('textarea.lab-input', { rows: 2, 'aria-label': 'prompt', 'data-do': 'prompt' });
  form.prompt.value = kept.prompt ?? options.prompts[0] ?? '';
  form.reward = select('reward', 'reward model that scores', [...options.rewards, ['', 'no scores']], options.rewards.length ? options.rewards[0][0] : '');
  form.judge = select('judge-gold', 'judge', [['', 'no judge'], ...props.data.judges.map(([name]) => [name, `judge ${name}`])], '');
  root.replaceChildren(
    el('div.lab-card.form', {},
      el('label.field', {}, el('span.muted', {}, 'Prompt'), form.prompt),
      el('div.lab-row', {},
        el('button.lab-button.small', { type: 'button', 'data-do': 'another', onclick: () => { form.prompt.value = options.prompts[Math.floor(Math.random() * options.prompts.length)] || ''; } }, 'Another prompt'),
        el('span.muted', {}, 'from those that nothing was trained on')),
      el('div.fields', {}, picker(1, kept.picks[0] || 'base'), picker(2, kept.picks[1] ?? newest), picker(3, kept.picks[2] ?? '')),
      el('div.fields', {}, number('samples', 'samples each', '2', '1 to 16'), number('seed', 'seed', '0'), number('temperature', 'temperature', '1'),
        number('tokens', 'longest, in tokens', '64'), el('label.field', {}, el('span.muted', {}, 'scored by'), form.reward), el('label.field', {}, el('span.muted', {}, 'gold'), form.judge)),
      el('div.lab-row', {},
        el('button.lab-button.lab-main', { type: 'button', 'data-do': 'write', onclick: write }, 'Write'),
        el('button.lab-button.small', { type: 'button', title: 'another seed', 'data-do': 'dice', onclick: () => { form.seed.value = Math.floor(Math.random() * 1e6); write(); } }, 'Other seed'),
        el('span.muted', {}, 'The same seed gives every model the same random numbers.')),
      el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'compare-error' })),
    results);
  if (options.models.length === 1) root.querySelector('.form').append(el('p.muted', {}, 'No run has a checkpoint yet; the base can be sampled already.'));
}

function name(which) {
  const model = form[`model${which}`].value;
  if (!model) return null;
  if (model === 'base') return ['base', 'base model'];
  const step = form[`step${which}`].value;
  return [`run/${model.split('/')[1]}/${step}`, `run ${model.split('/')[1]}, ${step === 'latest' ? 'latest step' : `step ${step}`}`];
}

function write() {
  const columns = [1, 2, 3].map(name).filter(Boolean);
  root.querySelector('[data-do=compare-error]').hidden = true;
  asked = { labels: columns.map((c) => c[1]), prompt: form.prompt.value, judge: form.judge.value, seed: form.seed.value, at: Date.now(), jobs: null, columns: [] };
  show();
  trigger('write', { at: asked.at, prompt: form.prompt.value, models: columns.map((c) => c[0]), samples: form.samples.value, seed: form.seed.value,
    temperature: form.temperature.value, tokens: form.tokens.value, reward: form.reward.value });
}

// ---- what was written

function cell(item, column, i) {
  const answer = item.columns[column];
  const first = item.columns[0];
  if (!answer || answer.waiting) return el('div.text.muted', { role: 'status' }, i ? '' : answer && answer.begun ? 'The engine writes …' : 'Waiting for the engine; a run in progress lets it in between …');
  if (answer.failed) return el('div.text', {}, i ? '' : el('p.lab-notice.bad', { role: 'alert' }, answer.failed));
  const text = answer.texts[i], base = first && first.texts ? first.texts[i] : null;
  const score = answer.scores[i], gold = answer.gold[i];
  return el('div.text', {},
    column && base !== null ? Lab.marked(base, text) : el('p.lab-text', { dir: 'auto' }, text),
    el('div.lab-row', {}, score === undefined ? null : el('span.lab-badge', {}, `score ${Lab.number(score)}`),
      gold === undefined ? null : el('span.lab-badge', {}, `gold ${Lab.number(gold)}`),
      answer.scores.length > 2 && score === Math.max(...answer.scores) ? el('span.lab-badge.good', {}, `best of ${answer.scores.length} by its score`) : null));
}

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

function block(item) {
  const rows = Math.max(1, ...item.columns.map((answer) => (answer && answer.texts ? answer.texts.length : 0)));
  const grid = el('div.grid', {});
  grid.style.setProperty('--columns', item.labels.length);
  item.labels.forEach((label, c) => {
    const scores = item.columns[c]?.scores || [];
    grid.append(el('h3', {}, label, scores.length > 1 ? el('span.muted', {}, ` mean score ${Lab.number(mean(scores))}`) : null));
  });
  for (let i = 0; i < rows; i++) item.labels.forEach((_, c) => grid.append(cell(item, c, i)));
  return el('section.lab-card', { 'data-do': 'answer' }, el('p.muted.lab-text', { dir: 'auto' }, `${item.prompt}  (seed ${item.seed})`), grid);
}

function show() {
  results.replaceChildren(...[asked, ...history].filter(Boolean).map(block));
}

async function follow() {
  if (!asked || !asked.jobs) return;
  const reply = await Lab.answer(server.answers({ jobs: asked.jobs, judge: asked.judge }));
  const before = JSON.stringify(asked.columns);
  asked.columns = reply.columns;
  if (asked.columns.every((answer) => !answer.waiting)) { history.unshift(asked); history.splice(5); asked = null; }
  if (before !== JSON.stringify(reply.columns)) show();
}

watch('value', () => {
  const said = props.value;
  if (!said || !asked || said.at !== asked.at) return;
  if (said.error) {
    asked = null; show();
    const notice = root.querySelector('[data-do=compare-error]');
    notice.hidden = false; notice.textContent = said.error;
    return;
  }
  asked.jobs = said.jobs;
  follow();
});

let rounds = 0;
root.append(el('div.lab-card.lab-empty', {}, 'Looking for models …'));
Lab.poll(root, async () => {
  await follow();
  if (rounds++ % 6 && options) return;
  const reply = await Lab.answer(server.options({}));
  const key = JSON.stringify([reply.project, reply.models, reply.rewards]);
  const stepsOnly = options;
  options = reply;
  if (key !== drawn && !(stepsOnly && root.contains(document.activeElement) && ['TEXTAREA', 'INPUT', 'SELECT'].includes(document.activeElement.tagName))) { drawn = key; draw(); }
}, 700);

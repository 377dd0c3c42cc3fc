// Screen "Compare": columns of texts by the base and checkpoints; same prompt, same random numbers, changed words marked.
const { el } = Lab;
const root = element.querySelector('.lab-compare');
const COLUMNS = [1, 2, 3];
const NUMBERS = ['samples', 'seed', 'temperature', 'tokens'];
const KEPT = 5;          // answers that stay in view
const form = {};         // the form's elements by name
let options = null;
let asked = null;        // the question whose answers are awaited: {labels, jobs, prompt, …, columns}
const answers = [];      // the last answered ones, newest first
const results = el('div.results');
let blind = null;        // the card of the blind test
const narrow = matchMedia('(max-width: 640px)');
let fetched = 0;         // when the choices were asked for
let seen = '';           // which of them are on screen

// ---- the form: built once; what can be chosen is refreshed in place, so that nothing a person entered is lost

const select = (name, label, onchange) => (form[name] = el('select.lab-input', { 'aria-label': label, 'data-do': name,
  onchange: () => { keep(name); onchange?.(); } }));
const keep = (name) => { form[name].dataset.chosen = '1'; };
const field = (label, ...inside) => el('div.field', {}, el('span.muted', { 'aria-hidden': 'true' }, label), ...inside);
const number = (name, label, value, hint) => field(label, form[name] = el('input.lab-input', { type: 'text', inputmode: 'decimal', value, 'data-do': name, 'aria-label': label, title: hint,
  onkeydown: (event) => { if (event.key === 'Enter') write(); } }));

function fill(node, items, fallback) {
  const before = node.value, key = JSON.stringify(items);
  if (node.lastItems !== key) node.replaceChildren(...items.map(([id, words]) => el('option', { value: id }, words)));
  node.lastItems = key;
  const known = items.map(([id]) => String(id));
  node.value = node.dataset.chosen && known.includes(before) ? before : String(fallback);
}

// The run in a column; null for the base, its best of n and an empty one.
function runOf(which) {
  const model = form[`model-${which}`].value;
  return model.startsWith('run/') ? model.split('/')[1] : null;
}

const runsChosen = () => [...new Set(COLUMNS.map(runOf).filter(Boolean))];
const runsKnown = () => runsChosen().every((run) => options.learnt[run]);  // what the runs in the columns learnt from

function steps(which) {
  const run = runOf(which), node = form[`step-${which}`];
  if (node.dataset.run !== String(run)) { delete node.dataset.chosen; node.dataset.run = run; }
  fill(node, [['latest', 'latest step'], ...(run ? options.steps[run] || [] : []).map((step) => [step, `step ${step}`])], 'latest');
  node.hidden = !run;
}

function build() {
  form.prompt = el('textarea.lab-input', { rows: 2, dir: 'auto', 'aria-label': 'prompt', 'data-do': 'prompt' });
  const pickers = COLUMNS.map((which) => {
    const node = field(['first column', 'second column', 'third column'][which - 1], el('div.models', {}, select(`model-${which}`, `model ${which}`, () => { steps(which); scorers(); look(); }), select(`step-${which}`, `step of model ${which}`)));
    return node;
  });
  form.note = el('p.muted', { hidden: true });
  form.error = el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'compare-error' });
  const judge = field('gold: a judge’s own score', select('judge', 'judge'));
  root.replaceChildren(
    el('div.lab-card.form', {},
      field('Prompt', form.prompt),
      el('div.lab-row', {},
        form.another = el('button.lab-button.small', { type: 'button', 'data-do': 'another', onclick: another }, 'Another prompt'),
        form.source = el('span.muted', {}, 'from those that nothing was trained on')),
      form.fold = el('details.fold', { oninput: sum, ontoggle: sum }, form.chosen = el('summary'), el('div.inside', {},
        el('div.fields.wide', {}, pickers),
        el('div.fields', {}, number('samples', 'samples each', '2', '1 to 16'), number('seed', 'seed', '0', '0 or more'), number('temperature', 'temperature', '1', '0.05 to 5; small: always the likeliest words'),
          number('tokens', 'max_new_tokens', '64', 'the longest a text may get, in tokens: 1 to 512')),
        el('div.fields.wide', {}, field('scored by', select('reward', 'reward model that scores')), judge))),
      el('div.lab-row', {},
        form.write = el('button.lab-button.lab-main', { type: 'button', 'data-do': 'write', onclick: () => write() }, 'Write'),
        form.dice = el('button.lab-button.small', { type: 'button', title: 'write again with another seed', 'data-do': 'dice', onclick: () => { form.seed.value = Math.floor(Math.random() * 1e6); sum(); write(); } }, 'Another seed'),
        el('span.muted.lab-grow.hint', {}, 'The same seed gives every model the same random numbers; words that differ from the first column are marked.')),
      form.note, form.error),
    results);
  blind = LabBlind({ root, ask: (question) => server.tested(question), asked: said,
    acts: { begin: (words) => trigger('begin', words), prefer: (words) => trigger('prefer', words), manage: (words) => trigger('manage', words) } });
  form.fold.open = !narrow.matches;  // on a phone the texts come first
  narrow.addEventListener('change', () => { form.fold.open = !narrow.matches; });
  show();
}

// The models of the columns, and how they are to write.
const said = () => ({ models: COLUMNS.map(named).filter(Boolean).map((column) => column[0]), seed: form.seed.value, temperature: form.temperature.value,
  tokens: form.tokens.value, reward: form.reward.value });

// What the folded form says of itself.
function sum() {
  const models = COLUMNS.map(named).filter(Boolean).map(([, words]) => words);
  form.chosen.replaceChildren(el('strong', {}, models.join(' against ')),
    el('span.muted', {}, `: ${Lab.many(Number(form.samples.value), 'text')} each, seed ${form.seed.value}, temperature ${form.temperature.value}, ${form.tokens.value} tokens, ${form.reward.value ? 'scored by ' : ''}${form.reward.selectedOptions[0].textContent}`));
}

let offered = '';        // the prompt we put there

function refill() {
  const run = options.models.find(([id]) => id.startsWith('run/')), newest = run ? run[0] : '';
  for (const which of COLUMNS) {
    fill(form[`model-${which}`], [...(which > 1 ? [['', 'nothing']] : []), ...options.models], which === 1 ? 'base' : which === 2 ? newest : '');
    steps(which);
  }
  scorers();
  sum();
  ready();
  form.another.disabled = !options.prompts.length;
  form.source.textContent = options.prompts.length ? 'from those that nothing was trained on' : 'this project keeps no prompts aside; type one';
  form.note.hidden = Boolean(run);
  form.note.textContent = 'No run has done a step yet: start one under Train to see before and after. The base can be sampled already.';
  if (!form.prompt.value || form.prompt.value === offered) { if (!options.prompts.includes(offered)) offered = options.prompts[0] || ''; form.prompt.value = offered; }
}

// Until a person chooses, what the run on the right learnt from scores; without a run the newest reward model.
function scorers() {
  const run = COLUMNS.map(runOf).filter(Boolean).at(-1) || '';
  const [reward, judge] = options.learnt[run] || options.newest || ['', ''];
  fill(form.reward, [...options.rewards, ['', 'no scores']], reward);
  fill(form.judge, [['', 'no judge'], ...props.data.judges.map(([name]) => [name, `judge ${name}`])], judge);
}

// Which of the runs asked about learnt from another reward model than the one that scores.
function strangers(reward) {
  return runsChosen().filter((run) => reward && String(options.learnt[run]?.[0] ?? reward) !== reward)
    .map((run) => ` Run ${run} learnt from reward model ${options.learnt[run][0]}.`).join('');
}

function another() {
  const others = options.prompts.filter((prompt) => prompt !== form.prompt.value);
  offered = others[Math.floor(Math.random() * others.length)] ?? form.prompt.value;
  form.prompt.value = offered;
}

// ---- asking

function named(which) {
  const model = form[`model-${which}`].value;
  if (!model) return null;
  if (!model.startsWith('run/')) return [model, form[`model-${which}`].selectedOptions[0].textContent];
  const run = model.split('/')[1], step = form[`step-${which}`].value;
  const last = (options.steps[run] || []).at(-1);
  if (step === 'latest' && last !== undefined) return [`run/${run}/${last}`, `run ${run}, step ${last} (latest)`];  // so that it can be found again
  return [`run/${run}/${step}`, `run ${run}, ${step === 'latest' ? 'latest step' : `step ${step}`}`];
}

function write() {
  if (asked || !runsKnown()) return;
  const columns = COLUMNS.map(named).filter(Boolean);
  for (const which of COLUMNS) keep(`model-${which}`);  // what was asked about stays chosen
  refuse('');
  if (narrow.matches) form.fold.open = false;  // the texts come below
  asked = { labels: columns.map((c) => c[1]), prompt: form.prompt.value, judge: form.judge.value, reward: form.reward.value, seed: form.seed.value,
    temperature: form.temperature.value, strangers: strangers(form.reward.value), at: Date.now(), jobs: null, columns: [] };
  show();
  trigger('write', { at: asked.at, prompt: form.prompt.value, samples: form.samples.value, ...said() });
}

function cancel() {
  if (asked && asked.jobs) trigger('cancel', { jobs: asked.jobs });
  asked = null;
  show();
}

function refuse(words, field) {
  form.error.hidden = !words;
  form.error.textContent = words;
  for (const name of ['prompt', ...NUMBERS]) form[name].toggleAttribute('aria-invalid', name === field);
  if (field && field !== 'prompt') form.fold.open = true;
  if (field) form[field].focus();
}

// ---- what was written

function waiting(answer) {
  const what = answer && answer.begun ? 'The engine writes' : 'Waiting for the engine; a run in progress lets it in between, a sleeping engine loads the model first';
  return `${what} (${Lab.duration((Date.now() - asked.at) / 1000)}) …`;
}

function cell(item, column, i) {
  const answer = item.columns[column], first = item.columns[0];
  if (!answer || answer.waiting) return el('div.text', {}, i ? '' : el('p.muted.waits', { 'data-column': column }, waiting(answer)));
  if (answer.failed) return el('div.text', {}, i ? '' : el('p.lab-notice.bad', { role: 'alert' }, answer.failed));
  const text = answer.texts[i], base = first && first.texts ? first.texts[i] : undefined;
  if (text === undefined) return el('div.text', {});
  const score = answer.scores[i], gold = answer.gold[i], n = answer.best_of, among = answer.scores.length;
  return el('div.text', { 'data-column-name': item.labels[column] }, answer.note && !i ? el('p.muted', {}, answer.note) : null,
    text === '' ? el('p.muted', {}, '(it wrote nothing)') : column && n === 1 && first.best_of === 1 && base !== undefined ? Lab.marked(base, text, 'p.lab-text.lab-scroll') : el('p.lab-text.lab-scroll', { dir: 'auto' }, text),
    el('div.lab-row.badges', {}, score === undefined ? null : el('span.lab-badge', { title: 'reward model, in sd of base samples' }, `score ${Lab.number(score)}`),
      gold === undefined ? null : el('span.lab-badge', { title: `what the judge ${item.judge} says itself` }, `gold ${Lab.number(gold)}`),
      n > 1 ? el('span.lab-badge.accent', {}, `best of ${n} by its score`) : null,
      n === 1 && among > 2 && score === Math.max(...answer.scores) ? el('span.lab-badge.good', {}, `highest of ${among}`) : null));
}

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

function means(answer) {
  if (!answer || !answer.texts || answer.texts.length < 2) return '';
  return [['score', answer.scores], ['gold', answer.gold]].filter(([, all]) => all.length).map(([what, all]) => `mean ${what} ${Lab.number(mean(all))}`).join(', ');
}

function block(item) {
  const rows = Math.max(1, ...item.columns.map((answer) => (answer && answer.texts ? answer.texts.length : 0)));
  const grid = el('div.grid');
  grid.style.setProperty('--columns', item.labels.length);
  item.labels.forEach((label, c) => grid.append(el('div.head', {}, el('h3', {}, label), el('span.muted', {}, means(item.columns[c])))));
  const failures = new Set(item.columns.map((answer) => answer && answer.failed));
  if (item.columns.length && failures.size === 1 && !failures.has(undefined)) grid.replaceChildren(el('p.lab-notice.bad.all', { role: 'alert' }, ...failures));
  else for (let i = 0; i < rows; i++) item.labels.forEach((_, c) => grid.append(cell(item, c, i)));
  return el('section.lab-card', { 'data-do': item === asked ? 'awaited' : 'answer', 'aria-label': 'answers' },
    el('p.lab-text.asked.lab-scroll', { dir: 'auto' }, item.prompt),
    el('div.lab-row', {}, el('span.muted', {}, `seed ${item.seed}, temperature ${item.temperature}${item.reward ? `, scored by reward model ${item.reward}.${item.strangers}` : ''}`),
      item === asked ? el('button.lab-button.small', { type: 'button', 'data-do': 'cancel', onclick: cancel }, 'Cancel') : null), grid);
}

function show() {
  const blocks = [asked, ...answers].filter(Boolean).map(block);
  results.replaceChildren(...(blocks.length ? blocks : [el('div.lab-card.lab-empty', {}, 'Press Write: what the models make of the prompt stands here, side by side. The last five answers stay while the page is open.')]));
  form.write.textContent = asked ? 'Writing …' : 'Write';
  ready();
}

const ready = () => { form.write.disabled = form.dice.disabled = Boolean(asked) || !runsKnown(); };

async function follow() {
  if (!asked || !asked.jobs) { clock(); return; }
  const mine = asked;
  const reply = await Lab.answer(server.answers({ jobs: mine.jobs, judge: mine.judge }));
  if (asked !== mine) return;
  const changed = JSON.stringify(mine.columns) !== JSON.stringify(reply.columns);
  mine.columns = reply.columns;
  if (mine.columns.every((answer) => !answer.waiting)) { answers.unshift(mine); answers.splice(KEPT); asked = null; }
  if (changed) show(); else clock();
}

function clock() {
  if (!asked) return;
  for (const node of results.querySelectorAll('.waits')) node.textContent = waiting(asked.columns[Number(node.dataset.column)]);
}

watch('value', () => {
  const said = props.value;
  if (blind?.take(said)) { fetched = Date.now(); return; }  // it brought the list of tests: what others share may be older
  if (!said || !asked || said.at !== asked.at) return;
  if (said.error) { asked = null; show(); refuse(said.error, said.field); return; }
  asked.jobs = said.jobs;
  follow();
});

// What can be chosen, with what is known of the runs in the columns.
async function look() {
  fetched = Date.now();
  const first = !options, runs = first ? [] : runsChosen();
  if (!first) ready();
  const reply = await Lab.answer(server.options({ seen, runs }));
  if (reply.same) { blind.offered(); return; }
  // What another project's models wrote is not this one's to show.
  const other = !first && options.project !== reply.project;
  if (other) { answers.length = 0; asked = null; }
  options = reply;
  seen = reply.seen;
  if (first) build();
  else if (other) show();
  blind.offered(reply.tests, other);
  refill();
}

root.append(el('div.lab-card.lab-empty', { role: 'status' }, 'Looking for models …'));
Lab.poll(root, async () => {
  if (options) { blind.follow(); await follow(); }
  if (options && Date.now() - fetched < 4000 && runsKnown()) return;
  await look();
  if (!runsKnown()) await look();
}, 700);

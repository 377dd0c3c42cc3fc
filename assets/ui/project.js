// Screen "Project": projects, a new one, the operator's secret, home and engine.
const { el, bytes } = Lab;
const root = element.querySelector('.lab-project');
const OWN = 'own', OTHER = 'other';
let state = null, drawn = '';
let sent = null;           // the act that has not been answered: {at, do, then}
const later = [];          // acts that wait for it
let confirming = false;    // "really stop the engine?" is on screen
let checked = null;        // the check that is shown, of `model`
const part = (what, more = '') => root.querySelector(`[data-do="${what}"]${more}`);

const notice = el('p.lab-notice', { role: 'status', hidden: true, 'data-do': 'project-notice' });
const list = el('section', { 'aria-label': 'projects' }, el('div.lab-card.lab-empty', { role: 'status' }, 'Looking for projects …'));
const fetching = el('section.lab-card.fetching', { 'aria-label': 'download', hidden: true });
const make = el('section.lab-card.make.lab-operating', { 'aria-label': 'new project' });
const lab = el('section.lab-card.lab-itself', { 'aria-label': 'this lab' });
root.append(Lab.only('Only the operator opens, makes and changes projects here; you can look.'), notice, list, fetching, make, lab);

// The answer stands below what was pressed.
function say(words, bad = false, after = list) {
  after.after(notice);
  Lab.tell(notice, words, bad);
}

// One act at a time: the server's answers carry the time they answer to.
function ask(act, more, then) {
  later.push({ do: act, more, then });
  next();
}
function next() {
  if (sent || !later.length) return;
  const { do: act, more, then } = later.shift();
  sent = { at: Date.now(), do: act, then };
  const mine = sent;
  setTimeout(() => { if (sent === mine) { sent = null; then({ error: 'The lab did not answer within a minute. Is app.py still running? Try again.' }); next(); } }, 60000);
  trigger(act === 'secret' ? 'secret' : 'act', { at: sent.at, do: act, ...more });
}
watch('value', () => {
  const said = props.value;
  if (!said || !sent || said.at !== sent.at) return;
  const { then } = sent;
  sent = null;
  then(said);
  next();
  look();
});
const teller = (after) => (said) => say(said.error || said.done || '', !!said.error, after());
const tell = teller(() => list);

const millions = (n) => (n < 1e9 ? `${Lab.number(n / 1e6)} million` : `${Lab.number(n / 1e9)} billion`);

// ---- the list

let editing = null;        // {project, what}: whose name is being written, or who is about to be deleted

const of = (id) => `[data-project="${id}"]`;
function edit(id, what) { editing = { project: id, what }; drawList(); part(what === 'name' ? 'project-name' : 'project-delete-sure', of(id))?.focus(); }
function leave() { const { project, what } = editing; editing = null; drawList(); part(what === 'name' ? 'project-rename' : 'project-delete', of(project))?.focus(); }
const edits = (project, what) => editing?.project === project.id && editing.what === what;

function nameCell(project) {
  const about = { 'data-project': project.id };
  if (edits(project, 'name')) {
    return el('td.name', {}, Lab.nameField(project.name, `new name of project ${project.id}`, 'project-name', about, (name) => ask('rename', { project: project.id, name }, tell), leave));
  }
  return el('td.name', {}, el('span.muted', {}, `${project.id} `), Lab.operator(el('button.plain', { type: 'button', title: 'rename', 'aria-label': `rename project ${project.id}, ${project.name}`,
    'data-do': 'project-rename', ...about, onclick: () => edit(project.id, 'name') }, project.name)));
}

function actions(project) {
  const about = { type: 'button', 'data-project': project.id }, button = (what, name, words, onclick) => el(`button.lab-button.small${name}`, { ...about, 'data-do': what, 'aria-label': `${words} ${project.name}`, onclick }, words);
  if (project.id === state.current) return el('span.now', {}, 'in use');
  if (edits(project, 'delete')) {
    const held = [Lab.many(project.human, 'label'), Lab.many(project.models, 'reward model'), Lab.many(project.runs, 'run')].join(', ');
    return Lab.deleteField(`Delete it for good, with its texts, ${held}?`, 'project-delete', { 'data-project': project.id }, () => ask('delete', { project: project.id }, tell), leave);
  }
  return el('div.lab-row', {}, Lab.operator(
    button('project-open', '', 'Open', (event) => { event.target.disabled = true; ask('open', { project: project.id }, tell); }),
    button('project-delete', '.danger', 'Delete', () => edit(project.id, 'delete'))));
}

function row(project) {
  const figure = (words, value, more) => el('td.figure', { 'data-words': words }, value, more ? el('span.muted', {}, ` ${more}`) : null);
  return el('tr', { 'data-project': project.id, class: project.id === state.current ? 'open' : null },
    nameCell(project), el('td.model', {}, project.model), el('td', {}, project.set),
    figure('prompts', project.train + project.eval, `(${project.eval} of them to evaluate)`), figure('pairs', project.pairs),
    figure('labels', project.human, project.simulated ? `+ ${project.simulated} simulated` : ''), figure('reward models', project.models), figure('runs', project.runs),
    el('td.actions', {}, actions(project)));
}

function drawList() {
  const focus = list.contains(document.activeElement) ? { ...document.activeElement.dataset } : null;
  const head = ['project', 'model', 'prompts of', 'prompts', 'pairs', 'labels by people', 'reward models', 'runs', ''];
  list.replaceChildren(el('div.lab-card', {}, el('div.lab-row', {}, el('h2', {}, 'Projects'),
    el('span.muted', {}, 'A project is a model with its prompts, labels, reward models and runs. Opening one opens it for everybody at this lab.')),
  el('table', {}, el('thead', {}, el('tr', {}, head.map((words) => el('th', { scope: 'col' }, words)))), el('tbody', {}, state.projects.map(row)))));
  if (focus) part(focus.do, of(focus.project))?.focus();
}

function drawFetching() {
  const now = state.download;
  fetching.hidden = !now;
  if (!now) return;
  const share = now.total ? Math.round(100 * now.held / now.total) : 0, running = now.status === 'running';
  const words = running ? `${bytes(now.held)} of ${bytes(now.total)}${Lab.left(now.eta_s, now.total ? now.held / now.total : 0)}` : now.words;
  const bar = el('i');
  bar.style.width = `${share}%`;
  const focused = fetching.contains(document.activeElement);
  fetching.replaceChildren(el('div.lab-row', {}, el('h3', {}, running ? `Downloading ${now.model}` : now.model), el('span.muted.lab-grow', { role: 'status' }, words),
    running ? Lab.operator(el('button.lab-button.small', { type: 'button', 'data-do': 'project-cancel', onclick: () => ask('cancel', {}, teller(() => fetching)) }, 'Cancel')) : null),
  running ? el('div.lab-bar', { role: 'progressbar', 'aria-label': 'download', 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': share }, bar) : '');
  if (focused) part('project-cancel')?.focus();
}

// ---- a new project

const field = (words, about, ...controls) => el('label.field', {}, el('span.words', {}, words), ...controls, about ? el('span.muted', {}, about) : null);
function choice(what, label, items, onchange) {
  return el('select.lab-input', { 'data-do': what, 'aria-label': label, onchange }, items.map(([value, words]) => el('option', { value }, words)));
}
const model = () => (part('new-model').value === OTHER ? part('new-other').value.trim() : part('new-model').value);
const prompts = () => (part('new-set').value === OWN ? { text: part('new-text').value, file: part('new-text').dataset.file || '' } : {});

function buildMake() {
  const other = el('input.lab-input', { type: 'text', 'data-do': 'new-other', 'aria-label': 'Hub id or folder', placeholder: 'owner/name on the Hub, or a folder on the lab\'s machine', hidden: true, oninput: forget });
  const text = el('textarea.lab-input', { 'data-do': 'new-text', 'aria-label': 'own prompts', rows: 6, placeholder: 'A prompt a line.', 
    oninput: () => { if (!text.value.trim()) { delete text.dataset.file; part('new-file-name').textContent = ''; } previewSoon(); } });
  const file = el('input.file', { type: 'file', 'data-do': 'new-file', tabindex: '-1', 'aria-hidden': 'true', accept: props.data.kinds.join(','), onchange: () => { load(file.files[0]); file.value = ''; } });
  const own = el('div.own', { hidden: true }, text,
    el('div.lab-row', {}, el('button.lab-button.small', { type: 'button', 'data-do': 'new-file-choose', onclick: () => file.click() }, 'Choose a file …'), file, el('span.muted', { 'data-do': 'new-file-name' }),
      el('span.muted', {}, `${props.data.kinds.join(', ')}; .jsonl and .csv need a column "prompt"`)),
    el('div', { 'data-do': 'new-preview', role: 'status' }));
  make.append(el('h2', {}, 'New project'),
    el('div.fields', {},
      field('Model', '', choice('new-model', 'model', [...props.data.models, [OTHER, 'another: a Hub id or a folder …']], () => { other.hidden = part('new-model').value !== OTHER; forget(); if (!other.hidden) other.focus(); }), other),
      field('Prompts', '', choice('new-set', 'prompts', [...props.data.sets, [OWN, 'my own …']], () => { own.hidden = part('new-set').value !== OWN; if (!own.hidden) text.focus(); })),
      field('Name', '', el('input.lab-input', { type: 'text', maxlength: 80, placeholder: 'made from model and prompts', 'data-do': 'new-name' })),
      field('Seed', '', el('input.lab-input', { type: 'text', inputmode: 'numeric', value: '0', 'data-do': 'new-seed' }))),
    own,
    el('div.lab-row', {}, el('button.lab-button', { type: 'button', 'data-do': 'new-check', onclick: check }, 'Check the model'),
      el('button.lab-button.lab-main', { type: 'button', 'data-do': 'new-create', onclick: () => create() }, 'Create and open'),
      el('span.muted', {}, 'The check reads only what the model says of itself; nothing is loaded.')),
    el('div', { 'data-do': 'new-check-result', role: 'status' }));
}

const formEnd = () => part('new-check-result');

// The form as it was at first: what stood in it has become a project.
function empty() {
  for (const what of ['new-model', 'new-set']) part(what).selectedIndex = 0;
  for (const what of ['new-name', 'new-text', 'new-other']) part(what).value = '';
  part('new-seed').value = '0';
  part('new-other').hidden = true;
  make.querySelector('.own').hidden = true;
  delete part('new-text').dataset.file;
  part('new-file-name').textContent = '';
  part('new-preview').replaceChildren();
  forget();
}

function forget() { checked = null; part('new-check-result').replaceChildren(); }
function busy(now) { for (const what of ['new-check', 'new-create']) part(what).disabled = now; }

let timer = null;
function previewSoon() {
  clearTimeout(timer);
  part('new-preview').replaceChildren();
  if (part('new-text').value.trim()) timer = setTimeout(preview, 600);
}
function preview() {
  say('', false, formEnd());
  ask('preview', prompts(), (said) => {
    const into = part('new-preview');
    if (said.error) { into.replaceChildren(el('p.lab-notice.bad', {}, said.error)); return; }
    const { count, eval: held, first } = said.preview;
    into.replaceChildren(el('p.muted', {}, `${count} prompts: ${count - held} to train on, ${held} kept for evaluation. The first:`),
      el('ol.first', {}, first.map((words) => el('li.lab-text', { dir: 'auto' }, words.length > 160 ? `${words.slice(0, 160)} …` : words))));
  });
}
async function load(file) {
  if (!file) return;
  if (file.size > props.data.most_bytes) { say(`${file.name} has ${bytes(file.size)}; at most ${bytes(props.data.most_bytes)} of prompts can be read. Give a part of it.`, true, formEnd()); return; }
  const words = await file.text();
  part('new-text').value = words;
  part('new-text').dataset.file = file.name;
  part('new-file-name').textContent = file.name;
  preview();
}

function check() {
  const wanted = model();
  if (!wanted) { part('new-other').focus(); return; }
  busy(true);
  part('new-check-result').replaceChildren(el('p.muted', {}, 'Looking at the model; the Hub may take some seconds …'));
  ask('check', { model: wanted }, (said) => {
    busy(false);
    if (model() !== wanted) return;
    checked = said.check || null;
    part('new-check-result').replaceChildren(said.error ? el('p.lab-notice.bad', {}, said.error) : verdict(said.check));
  });
}

const VERDICTS = { fits: 'good', tight: 'warn', 'does not fit': 'bad' };
function verdict(found) {
  const mood = VERDICTS[found.verdict];
  return el('div.verdict', { 'data-verdict': found.verdict },
    el('div.lab-row', {}, el(`span.lab-badge.${mood}`, {}, found.verdict),
      el('strong', {}, `about ${bytes(found.need)} of ${bytes(found.free)} free memory on this machine (${found.where})`),
      el('span.muted', {}, `${found.architecture}, ${millions(found.parameters)} parameters${found.download ? `, ${bytes(found.download)} to download` : ', all files are here'}`)),
    el('p', {}, found.advice),
    el('details', {}, el('summary.muted', {}, 'How this was estimated'), el('table', {}, el('tbody', {},
      found.parts.map(([name, size, formula]) => el('tr', {}, el('th', { scope: 'row' }, name), el('td.figure', {}, bytes(size)), el('td.muted', {}, formula))))),
    el('p.muted', {}, 'For texts of 128 tokens and the presets; longer ones need more. On a CPU it came within 5 % of what a model of 135 million parameters took; on a GPU nobody has compared it yet.')));
}

function create(sure = false) {
  const wanted = model();
  if (!wanted) { part('new-other').focus(); return; }
  busy(true);
  say('Creating the project …', false, formEnd());
  ask('create', { model: wanted, set: part('new-set').value, name: part('new-name').value, seed: part('new-seed').value.trim(), sure, ...prompts() }, (said) => {
    busy(false);
    if (said.doubt) { doubt(said); return; }
    say(said.error || said.done, !!said.error, formEnd());
    if (!said.error) empty();
    notice.scrollIntoView({ block: 'nearest' });
  });
}

function doubt(said) {
  say('', false, formEnd());
  part('new-check-result').replaceChildren(verdict(said.check), el('div.lab-notice.lab-row', { role: 'alert' }, said.doubt,
    el('button.lab-button.small', { type: 'button', 'data-do': 'new-sure', onclick: () => create(true) }, 'Create it all the same')));
}

// ---- the lab itself

const ENGINE = {
  absent: ['rests', 'It starts by itself as soon as there is something to do.'],
  starting: ['starts', 'It loads the model; some seconds.'],
  alive: ['runs', 'The process that trains and writes. It outlives this page.'],
  dead: ['is lost or silent', 'Stopping it ends what is left of it; it is started again when there is something to do.'],
};

function buildLab() {
  const guard = el('form.lab-row', { onsubmit: (event) => { event.preventDefault(); enter(); } },
    el('label', { for: 'lab-secret' }, 'Operator\'s secret'), el('input.lab-input', { type: 'password', id: 'lab-secret', autocomplete: 'current-password', 'data-do': 'secret' }),
    el('button.lab-button.small', { type: 'submit', 'data-do': 'secret-enter' }, 'Enter'),
    el('span.muted', {}, 'Only the operator trains, deletes, exports and changes projects. This browser keeps the secret.'));
  const fold = el('details.lab-operating', { 'data-do': 'lab-about', ontoggle: () => { if (fold.open) about(); } },
    el('summary', {}, 'Folder, disk and the engine\'s log'), el('div.inside', {}, el('p.muted', {}, 'Counting …')));
  lab.append(el('h2', {}, 'This lab'), props.data.guarded ? guard : '', el('div.engine'), fold);
}
function enter() {
  const secret = part('secret').value;
  ask('secret', { secret }, (said) => {
    if (said.door) { location.assign(`enter?key=${encodeURIComponent(secret)}${location.hash}`); return; }  // it leads back to this screen
    teller(() => lab.querySelector('form'))(said);
    if (!said.error) part('secret').value = '';
  });
}

const engine = () => lab.querySelector('.engine');

function drawEngine() {
  const [words, more] = ENGINE[state.engine.state] || [state.engine.state, ''];
  const stop = (what, label) => el('button.lab-button.small.danger', { type: 'button', 'data-do': what, disabled: !state.engine.stoppable,
    onclick: () => { if (what === 'stop-engine') { confirming = true; drawEngine(); part('stop-engine-sure').focus(); } else { confirming = false; ask('stop-engine', {}, teller(engine)); drawEngine(); say('Stopping the engine; up to 20 s …', false, engine()); } } }, label);
  const focus = lab.contains(document.activeElement) ? document.activeElement.dataset.do : null;
  engine().replaceChildren(el('div.lab-row', {}, el('strong', {}, `The engine ${words}.`), el('span.muted.lab-grow', {}, more),
    Lab.operator(...(confirming && state.engine.stoppable ? [el('span', {}, 'Runs stop at their last checkpoint and go on when it is back. Stop it?'), stop('stop-engine-sure', 'Stop'),
      el('button.lab-button.small', { type: 'button', 'data-do': 'stop-engine-leave', onclick: () => { confirming = false; drawEngine(); part('stop-engine').focus(); } }, 'Leave it')] : [stop('stop-engine', 'Stop engine')]))));
  if (focus) part(focus)?.focus();
}

function about() {
  const into = part('lab-about').querySelector('.inside');
  ask('about', {}, (said) => {
    if (said.error) { into.replaceChildren(el('p.lab-notice.bad', {}, said.error)); return; }
    const { path, used, free, log } = said.about;
    into.replaceChildren(el('p', {}, 'Everything is kept in ', el('code', {}, path)),
      el('table', {}, el('tbody', {}, [...used, ['free on this disk', free]].map(([words, size]) => el('tr', {}, el('th', { scope: 'row' }, words), el('td.figure', {}, bytes(size)))))),
      el('div.lab-row', {}, el('h3', {}, 'The engine\'s last lines'), el('button.lab-button.small', { type: 'button', 'data-do': 'lab-log-again', onclick: about }, 'Look again')),
      log ? el('pre.log', { tabindex: '0' }, log) : el('p.muted', {}, 'Nothing yet: it has not been started in this home.'));
    into.querySelector('.log')?.scrollTo(0, 1e6);
  });
}

async function look() {
  const reply = await Lab.answer(server.look({}));
  const key = JSON.stringify(reply);
  if (key === drawn) return;
  drawn = key;
  state = reply;
  if (!editing) drawList();
  drawFetching();
  drawEngine();
}

buildMake();
buildLab();
Lab.poll(root, look, 2000);

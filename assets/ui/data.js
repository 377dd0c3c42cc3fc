// Part "Import preferences": choose a file or a Hub data set, look at what was understood, map columns, take it in; take it back.
const { el, many } = Lab;
const root = element.querySelector('.lab-data');
let file = null;        // {path, name} of what was uploaded
let sending = false;    // a file is on its way
let preview = null, waiting = 0, doing = '';
const mapping = {};
let choices = '';       // what the votes' words mean, as a person wrote it

const notice = el('p.lab-notice.lab-text', { role: 'status', hidden: true, 'data-do': 'data-notice' });
const choose = el('input', { type: 'file', hidden: true, accept: props.data.kinds.join(','), 'data-do': 'data-file', onchange: (event) => upload(event.target.files[0]) });
const hub = el('input.lab-input', { type: 'text', placeholder: 'OWNER/NAME', 'aria-label': 'data set on the Hub', 'data-do': 'data-hub' });
const split = el('input.lab-input', { type: 'text', value: 'train', 'aria-label': 'split', size: 12 });
const named = el('span.muted', {});
// Whose votes they are decides which of them the project has already.
const again = () => { if (preview) look(); };
const source = el('select.lab-input', { 'data-do': 'data-source', onchange: again }, el('option', { value: 'human' }, 'votes of people'), el('option', { value: 'simulated' }, 'simulated votes'));
const annotator = el('input.lab-input', { type: 'text', maxlength: 60, placeholder: 'imported', 'data-do': 'data-annotator', onchange: again });
const ask = el('section.lab-card.ask', { 'aria-label': 'what to import' },
  el('div.lab-row', {}, el('span.muted.lab-grow', {}, 'JSON Lines, JSON, CSV or Parquet, also .gz: chosen and rejected, votes of several people, scores, chats, transcripts.')),
  el('div.lab-row', {}, el('button.lab-button', { type: 'button', 'data-do': 'data-choose', onclick: () => choose.click() }, 'Choose a file'), choose, named,
    el('span.muted', {}, 'or from the Hub'), hub, split,
    el('button.lab-button.small', { type: 'button', 'data-do': 'data-hub-look', onclick: lookAtIt }, 'Look at it')),
  el('div.lab-row', {}, el('label', {}, el('span.muted', {}, 'whose votes'), source), el('label', {}, el('span.muted', {}, 'annotator, where the file names none'), annotator)),
  el('p.muted', {}, `Files up to ${Lab.bytes(props.data.most)} here; larger ones with: python -m rlhf_lab import FILE`));
const found = el('section.lab-card.found', { 'aria-label': 'what was understood', hidden: true });
const past = el('section.lab-card.past', { 'aria-label': 'what was imported', hidden: true });
const refused = Lab.only("Only the operator imports and takes back. Open the operator's link, or enter the operator's secret under Project.");
root.append(refused, Lab.operator(ask, found), notice, past);  // below the buttons: what it says moves none of them

const say = (words, bad = false) => Lab.tell(notice, words, bad);

// With nothing named on the Hub it is about the file, which is looked at by itself as soon as it has been sent.
function lookAtIt() {
  if (sending) return;
  if (hub.value.trim() || !file) { file = null; named.textContent = ''; forget(); }
  look();
}

async function upload(chosen) {
  if (!chosen) return;
  hub.value = '';
  if (chosen.size > props.data.most) { say(`${chosen.name} has ${Lab.bytes(chosen.size)}. Import it with: python -m rlhf_lab import FILE`, true); return; }
  say('Sending the file …');
  sending = true;
  const form = new FormData();
  form.append('files', chosen);
  try {
    const reply = await fetch('gradio_api/upload', { method: 'POST', body: form });
    if (!reply.ok) throw new Error(`the page answered ${reply.status}`);
    file = { path: (await reply.json())[0], name: chosen.name };
  } catch (error) {
    say(`The file could not be sent (${error.message}). Try again.`, true);
    return;
  } finally { choose.value = ''; sending = false; }
  named.textContent = chosen.name;
  forget();
  look();
}
function forget() {
  for (const key of Object.keys(mapping)) delete mapping[key];
  choices = '';
}

function question() {
  const where = file ? { path: file.path, name: file.name } : { hub: hub.value, split: split.value };
  return { ...where, map: mapping, choices, source: source.value, annotator: annotator.value };
}
const WAITING = { import: 'Importing …', preview: 'Looking at it …', ask: 'Counting what would go …', back: 'Taking it back …' };
function act(what, more) {
  waiting = Date.now();
  doing = what;
  say(WAITING[what]);
  trigger('act', { at: waiting, do: what, ...more });
}
const send = (what, more = {}) => act(what, { ...question(), ...more });
function look() { send('preview'); }

const tick = (name, words) => el('label.tick', {}, el('input', { type: 'checkbox', 'data-do': `data-${name}` }), words);
const ticked = (name) => found.querySelector(`[data-do=data-${name}]`).checked;

// What each column means; `said` is what is known of it. Open where nothing can be read before a person has said it.
function mapper(columns, said, open) {
  return el('details', { open }, el('summary', {}, 'Which column means what'),
    el('div.fields', {}, props.data.meanings.map((meaning) => el('label', {}, el('span.muted', {}, meaning.replace('_', ' ')),
      meaning === 'annotators'
        ? el('input.lab-input', { type: 'text', value: said.annotators?.replaceAll(', ', '+') || '', placeholder: 'columns, joined by +', 'data-map': meaning, onchange: (event) => { mapping[meaning] = event.target.value; } })
        : el('select.lab-input', { 'data-map': meaning, onchange: (event) => { mapping[meaning] = event.target.value; } },
          ['', ...columns].map((name) => el('option', { value: name, selected: (said[meaning] || '') === name }, name || '–')))))),
    el('label', {}, el('span.muted', {}, "what the votes' words mean, as in 0=first,1=second,2=tie "), el('input.lab-input', { type: 'text', value: choices, 'data-do': 'data-choices', oninput: (event) => { choices = event.target.value; } })),
    el('button.lab-button.small', { type: 'button', 'data-do': 'data-again', onclick: look }, 'Look again'));
}

function draw(unknown) {
  found.hidden = !preview && !unknown;
  if (unknown) { found.replaceChildren(mapper(unknown, mapping, true)); return; }
  if (!preview) return;
  const columns = [...new Set([...Object.values(preview.mapping), ...preview.unused])].filter((name) => !name.includes(', '));
  const votes = Object.entries(preview.choices).map(([name, n]) => `${n} ${name.replace('_', ' ')}`).join(', ');
  found.replaceChildren(...[
    el('div.lab-row', {}, el('h3', {}, preview.name), el('span.muted', { 'data-do': 'data-counts' }, `${many(preview.rows, 'row')}, ${many(preview.votes, 'vote')} on ${many(preview.prompts, 'prompt')} (${preview.shape}); ${votes || 'no votes'}${preview.people ? `; ${many(preview.people, 'annotator')}` : ''}`)),
    preview.doubts ? el('p.lab-notice', { 'data-do': 'data-doubts' }, preview.doubts) : null,
    mapper(columns, preview.mapping, false),
    preview.problems.length ? el('pre.problems', { role: 'alert', 'data-do': 'data-problems' }, `${many(preview.broken, 'row')} cannot be used:\n${preview.problems.join('\n')}`) : null,
    el('div.scroll', { tabindex: '0', role: 'group', 'aria-label': 'the first rows' }, el('table', {},
      el('thead', {}, el('tr', {}, ['row', 'prompt', 'first', 'second', 'vote', 'annotator'].map((name) => el('th', { scope: 'col' }, name)))),
      el('tbody', {}, preview.first.map((row) => el('tr', {}, el('td', {}, String(row.row)),
        ...[row.prompt, row.first, row.second].map((text) => el('td', {}, el('p.lab-text', { dir: 'auto' }, text))), el('td', {}, row.choice.replace('_', ' ')), el('td', {}, row.annotator)))))),
    el('div.lab-row', {}, tick('use_prompts', 'sample from new prompts too'), tick('drop_duplicates', 'leave out other answers of the same person about the same two texts'), tick('skip_broken', 'leave out rows that cannot be used')),
    el('div.lab-row', {}, el('button.lab-button.lab-main', { type: 'button', 'data-do': 'data-import', disabled: !preview.votes, onclick: () => send('import', {
      use_prompts: ticked('use_prompts'), drop_duplicates: ticked('drop_duplicates'), skip_broken: ticked('skip_broken') }) }, 'Import into this project'),
    el('span.muted', {}, 'If one row cannot be used none is imported, unless such rows are left out.'))].filter(Boolean));
}

// What was imported, each with its way back; `leaving` is {id, words} of the one that is asked about.
let state = null, leaving = null, asked = 0;
const count = (left, all, word) => `${left === all ? '' : `${left.toLocaleString('en')} of `}${all.toLocaleString('en')} ${word}${all === 1 ? '' : 's'}`;
function line(one) {
  const left = one.votes_left || one.pairs_left, name = { 'data-import': one.id };
  const about = [new Date(one.created_at * 1000).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' }), one.who && `by ${Lab.person(one.who)}`].filter(Boolean).join(', ');
  const here = one.votes || one.pairs ? `${count(one.votes_left, one.votes, 'vote')}, ${count(one.pairs_left, one.pairs, 'new pair')}` : 'nothing new in it';
  const back = (what) => { asked = one.id; act(what, { import: one.id, project: state.project }); };
  return el('li', name, el('div.what', {}, el('p.name', { dir: 'auto' }, one.name), el('p.muted', {}, about)),
    el('p.figure', {}, here, one.taken_back_at ? el('span.muted', {}, one.votes_left ? ' (only partly taken back)' : ' (taken back)') : null),
    leaving?.id === one.id
      ? el('div.sure', {}, el('p', {}, leaving.words), el('div.lab-row', {},
        el('button.lab-button.small.danger', { type: 'button', 'data-do': 'data-back-sure', onclick: () => { leaving = null; back('back'); drawPast(); } }, 'Take back'),
        el('button.lab-button.small', { type: 'button', 'data-do': 'data-back-leave', onclick: () => { leaving = null; drawPast(); past.querySelector(`[data-import="${one.id}"] button`)?.focus(); } }, 'Keep')))
      : left && !(one.taken_back_at && !one.votes_left) ? Lab.operator(el('button.lab-button.small', { type: 'button', 'data-do': 'data-back', 'aria-label': `Take back ${one.name}`, onclick: () => back('ask') }, 'Take back')) : null);
}
function drawPast() {
  past.hidden = !state.imports.length;
  past.replaceChildren(el('h3', {}, 'Imported so far'), el('ul', {}, state.imports.map(line)));
}
const refresh = Lab.poll(root, async () => {
  const reply = await Lab.answer(server.look({ seen: state?.seen }));
  if (reply.same) return;
  if (reply.project !== state?.project) leaving = null;
  const held = past.contains(document.activeElement) && { ...document.activeElement.dataset, id: document.activeElement.closest('li')?.dataset.import };
  state = reply;
  drawPast();
  if (held) past.querySelector(`[data-import="${held.id}"] [data-do=${held.do}]`)?.focus();
}, 4000);

watch('value', () => {
  const said = props.value;
  if (!said || said.at !== waiting) return;
  if (said.error) {
    say(said.error, true);
    if (doing === 'preview') { preview = null; draw(said.columns); }  // what is shown would be another file's
    return;
  }
  if (doing === 'ask' || doing === 'back') {
    say(said.done || '');
    leaving = said.goes ? { id: asked, words: said.goes } : null;
    drawPast();
    past.querySelector('[data-do=data-back-sure]')?.focus();
    refresh();
    return;
  }
  if (doing === 'import') { preview = null; file = null; named.textContent = ''; say(said.done); refresh(); } else { preview = said.preview; say(''); }
  draw();
});

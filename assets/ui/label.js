// Screen "Label". A vote names the pair that was on screen. The next pair is at hand and is drawn at once; it takes no answer
// before the vote on the last one is stored.
const { el } = Lab;
const root = element.querySelector('.lab-label');
const who = Lab.annotator();
const UNREAD_MS = 300, PATIENCE_MS = 5000, TRIES = 4;
let shown = null;      // the state on screen
let locked = true;     // an answer is awaited
let unsaved = null;    // the last vote
let awaited = null;    // its uuid, until the lab has answered it
let tries = 0;
let since = 0;         // when the pair came on screen
let timer = null;
let readable = false;  // before that nobody can have read the pair, and an answer is the second half of a double click
let reads = null;

let strength = '';     // how much better, where somebody says so
let differ = false;    // differing words marked
let note = '';

const ACTIONS = {
  left: ['1', 'ArrowLeft'], right: ['2', 'ArrowRight'], tie: ['0', '='], both_bad: ['x'], skip: ['s'], undo: ['u'], redo: ['r'],
};
const KEYS = Object.fromEntries(Object.entries(ACTIONS).flatMap(([name, keys]) => keys.map((key) => [key, name])));
const STRENGTHS = ['slightly', 'clearly', 'much'];
const STACKED = matchMedia('(max-width: 640px)');  // the texts stand one above the other: label.css
const WORDS = { left: 'left is better', right: 'right is better', tie: 'equally good', both_bad: 'both bad', skip: 'skipped' };

function send(name, more = {}) {
  if (locked) return;
  lock(true);
  clearTimeout(timer);
  timer = setTimeout(() => unanswered(name), PATIENCE_MS * 2 ** tries);
  trigger(name, { annotator: who, ...more });
}

// A vote is sent again as it was, which counts once, less and less often. Given up, its pair comes on screen again.
function unanswered(name) {
  lock(false);
  tries += 1;
  if (name === 'vote' && tries < TRIES) { recast(unsaved); return; }
  answered();
  if (name === 'vote' || !shown || !shown.pair) send('opened');
}

function cast(vote) {
  unsaved = vote;
  awaited = vote.uuid;
  Lab.keep('vote', JSON.stringify(vote));
  send('vote', vote);
}

function recast(vote) {
  tell('Your last answer is not stored yet; it is sent again …');
  cast(vote);
}

function answered() {
  awaited = null;
  tries = 0;
  Lab.keep('vote', '');
}

function lock(now) { locked = now; ready(); }

// Whether the pair on screen takes an answer.
function ready() {
  if (shown?.pair && readable && !locked) root.dataset.open = shown.pair.id;
  else delete root.dataset.open;
}

function act(name) {
  if (element.offsetParent === null || shown?.you.role === 'viewer') return;
  if (name === 'undo' || name === 'redo') { send(name, { made: shown?.project.made }); return; }
  if (!('open' in root.dataset)) return;
  const card = root.querySelector(`.side.${name}`);
  cast({ pair_id: shown.pair.id, choice: name, uuid: Lab.uuid(), ms: Math.round(performance.now() - since),
    strength: card ? strength : '', note, by: shown.you.name || who, made: shown.project.made });
  if (shown.after) draw({ ...shown, pair: shown.after, after: null, notice: '' });
  else card?.classList.add('chosen');
}

function button(name, words, key, extra = '') {
  return el(`button.lab-button${extra}`, { type: 'button', 'data-do': name, 'aria-keyshortcuts': ACTIONS[name].join(' '),
    onclick: () => act(name) }, words, el('kbd', { 'aria-hidden': 'true' }, key));
}

function body(text, other) {
  if (differ) return Lab.marked(other, text, 'p.lab-text.lab-scroll');
  if (shown.pair.markdown && Lab.markdown) return Lab.markdown(text);
  return el('p.lab-text.lab-scroll', { dir: 'auto', tabindex: '0' }, text);
}

// beside, above: what to call it where the texts stand side by side, and on a phone one above the other.
function side(name, text, other, beside, above, key) {
  const words = el('span', {}, el('span.beside', {}, beside), el('span.above', {}, above), ' is better');
  return el(`article.lab-card.side.${name}`, { 'aria-label': `${beside} text` }, body(text, other), button(name, words, key));
}

function sides() {
  const { left, right } = shown.pair;
  return el('div.sides', { role: 'group', 'aria-labelledby': 'lab-question' },
    side('left', left, right, 'Left', 'First', '1'), side('right', right, left, 'Right', 'Second', '2'));
}

// What may be said besides, small: how much better, which words differ, why.
function more() {
  const choice = (word) => el(`button.lab-more${strength === word ? '.on' : ''}`, { type: 'button', 'data-strength': word,
    'aria-pressed': String(strength === word), onclick: () => { strength = strength === word ? '' : word; redraw(); } }, word);
  const field = el('input.lab-input.note', { type: 'text', maxlength: 1000, placeholder: 'note (optional)', 'aria-label': 'note on this pair',
    oninput: () => { note = field.value; } });
  field.value = note;
  return el('div.more', {},
    el('span.muted', { role: 'group', 'aria-label': 'how much better, optional' }, 'If you like: how much better? ', el('span.strengths', {}, STRENGTHS.map(choice))),
    el(`button.lab-more${differ ? '.on' : ''}`, { type: 'button', 'data-do': 'differ', 'aria-pressed': String(differ),
      onclick: () => { differ = !differ; root.querySelector('.sides').replaceWith(sides()); redraw(); } }, 'mark differences'),
    field);
}

function redraw() { root.querySelector('.more')?.replaceWith(more()); }

// The list of earlier labels; another answer, strength or note replaces what was said.
async function list(details) {
  const place = details.querySelector('.earlier');
  try {
    const { votes } = await Lab.answer(server.earlier({ annotator: who }));
    place.replaceChildren(...(votes.length ? votes.map(line) : [el('p.muted', {}, 'No labels yet.')]));
  } catch (error) { place.replaceChildren(el('p.lab-notice.bad', {}, String(error.message))); }
}

function line(vote) {
  const pick = (label, options, now) => el('select.lab-input', { 'aria-label': label, onchange: look },
    options.map(([value, words]) => el('option', { value, selected: value === now }, words)));
  const words = STACKED.matches ? { ...WORDS, left: 'first is better', right: 'second is better' } : WORDS;
  const choice = pick('your answer', Object.entries(words), vote.choice);
  const much = pick('how much better', [['', 'how much: not said'], ...STRENGTHS.map((word) => [word, `${word} better`])], vote.strength);
  const why = el('input.lab-input.note', { type: 'text', maxlength: 1000, placeholder: 'note (optional)', 'aria-label': 'note on this pair', value: vote.note, oninput: look });
  const change = el('button.lab-button.small', { type: 'button', 'data-do': 'amend', disabled: true,
    onclick: () => send('amend', { vote_id: vote.id, uuid: Lab.uuid(), made: shown.project.made, ...said() }) }, 'Change');
  const said = () => ({ choice: choice.value, strength: much.hidden ? '' : much.value, note: why.value.trim() });
  function look() {
    much.hidden = !['left', 'right'].includes(choice.value);  // a tie is no better by anything
    change.disabled = Object.entries(said()).every(([name, value]) => vote[name] === value);
  }
  look();
  const text = (which) => el(`p.lab-text.lab-scroll${vote.choice === which ? '.picked' : ''}`, { dir: 'auto' }, vote[which]);
  return el('article', { 'data-vote': vote.id }, el('p.muted.lab-text', { dir: 'auto' }, vote.prompt), el('div.two', {}, text('left'), text('right')),
    el('div.lab-row', {}, choice, much, why, change));
}

function earlier() {
  return el('details.history', { ontoggle: (event) => { if (event.target.open) list(event.target); } },
    el('summary.muted', {}, 'Your earlier labels: look again, change an answer'), el('div.earlier.lab-scroll', {}));
}

function crowd(n) { return el('span.lab-badge', { 'data-here': n, hidden: n < 2 }, `${n} people here`); }

function goal(state) {
  const words = state.left > 0
    ? `${state.left} more by people and ${state.models ? 'the reward model learns again' : 'a reward model learns from them'}`
    : state.learning;
  const share = state.goal ? Math.min(1, state.labels / state.goal) : 0;
  return el('div.goal', {},
    el('div.lab-row', {},
      el('strong', { 'data-count': state.labels }, `${Lab.many(state.labels, 'label')} by people`),
      state.simulated ? el('span.lab-badge', {}, `${state.simulated} simulated, kept apart`) : null,
      crowd(state.here),
      state.you.name ? el('span.lab-badge', { 'data-you': state.you.name }, `you are ${Lab.person(state.you.name)}`) : null,
      el('span.muted.lab-grow', { 'aria-live': 'polite' }, words)),
    el('div.lab-bar', { role: 'progressbar', 'aria-label': 'labels until the next reward model', 'aria-valuemin': 0,
      'aria-valuemax': state.goal, 'aria-valuenow': state.labels }, (() => { const i = el('i'); i.style.width = `${100 * share}%`; return i; })()));
}

function helpers() {
  const judges = props.data.judges;
  const fitting = judges.find((judge) => judge.set === (shown && shown.project.set)) || judges[0];
  const choice = el('select.lab-input', { 'aria-label': 'simulated judge' },
    judges.map((judge) => el('option', { value: judge.name, title: judge.about, selected: judge === fitting }, judge.name)));
  return el('details.talks.lab-operating', {},
    el('summary.muted', {}, 'For talks: let a simulated judge label, or begin again'),
    el('div.lab-row', { style: 'margin-top:10px' },
      choice,
      el('button.lab-button.small', { type: 'button', 'data-do': 'judge', onclick: () => send('judge', { judge: choice.value, count: 40 }) }, 'Judge labels 40 more (simulated)'),
      el('button.lab-button.small', { type: 'button', 'data-do': 'reset', onclick: () => {
        if (confirm('Begin a fresh project? The labels so far stay in the old one.')) send('reset');
      } }, 'Reset demo')));
}

function tell(words) {
  const place = root.querySelector('.said');
  place?.replaceChildren(...(words ? [el('p.lab-notice', { role: 'status' }, words)] : []));
}

// What differs between two answers about the same pair: counts, the pair after it, a word on what was done.
function update(state) {
  shown = state;
  tell(state.notice);
  root.querySelector('.goal').replaceWith(goal(state));
  const history = root.querySelector('details.history');
  if (history?.open) list(history);
}

function draw(state) {
  const open = ['details.talks', 'details.history'].filter((name) => root.querySelector(name)?.open);
  const same = shown?.pair?.id === state.pair?.id, back = state.pair && unsaved?.pair_id === state.pair.id;
  shown = state;
  if (!same) { strength = back ? unsaved.strength : ''; note = back ? unsaved.note : ''; }
  const parts = [], viewer = state.you.role === 'viewer';
  if (state.guideline) parts.push(el('p.guideline.lab-scroll.lab-text', { dir: 'auto' }, state.guideline));
  if (state.pair) {
    parts.push(
      el('section.prompt.lab-scroll', { 'aria-label': 'prompt' }, el('span.muted', {}, 'Prompt'), el('p.lab-text', { dir: 'auto' }, state.pair.prompt)),
      el('h2', { id: 'lab-question' }, 'Which continuation is better?'), sides(),
      el('div.others', {}, button('tie', 'Equally good', '0'), button('both_bad', 'Both bad', 'X'),
        button('skip', 'Skip', 'S'), button('undo', 'Undo', 'U'), button('redo', 'Redo', 'R')), more());
  } else {
    parts.push(el('div.lab-card.lab-empty', { role: 'status' }, state.waiting,
      viewer ? el('p', {}, el('a.lab-button.lab-main', { href: 'join' }, 'Join to label')) : null));
    if (!viewer) parts.push(el('div.others', {}, button('undo', 'Undo', 'U')));
  }
  parts.push(el('div.said'), goal(state));  // what is said there moves no button
  if (!viewer) parts.push(earlier());
  if (!viewer) parts.push(helpers());
  root.replaceChildren(...parts);
  tell(state.notice);
  root.dataset.pair = state.pair ? state.pair.id : '';
  if (!same) {
    readable = false;
    clearTimeout(reads);
    reads = setTimeout(() => { readable = true; ready(); }, UNREAD_MS);
    since = performance.now();
  }
  ready();
  for (const name of open) { const found = root.querySelector(name); if (found) found.open = true; }
  if (!state.pair) timer = setTimeout(() => { lock(false); send('opened'); }, viewer ? 15000 : 1500);
}

// The counts: answers may overtake each other, and those counted last stay on screen.
const figures = ({ counted, labels, simulated, goal, left, models, learning }) => ({ counted, labels, simulated, goal, left, models, learning });

const still = ({ pair, you, guideline, project }) => JSON.stringify([pair, you, guideline, project]);

function take() {
  const value = props.value;
  if (!value?.project || (awaited && value.vote !== awaited)) return;  // the late answer to something before the vote
  clearTimeout(timer);
  // Gradio loads the page anew when the way to the server is cut: a vote of the page before may be lost.
  const cut = shown === null && Lab.kept('vote') ? JSON.parse(Lab.kept('vote')) : null;
  const overtaken = shown && shown.project.made === value.project.made && shown.counted > value.counted;
  const state = overtaken ? { ...value, ...figures(shown) } : value;
  if (shown?.pair && still(shown) === still(state)) update(state);
  else draw(state);
  answered();
  lock(false);
  if (cut && state.you.role !== 'viewer' && cut.by === (state.you.name || who)) recast(cut);
}

function onKey(event) {
  if (!document.body.contains(root)) { document.removeEventListener('keydown', onKey); return; }
  if (!Lab.isOurKey(event) || element.offsetParent === null) return;
  const name = KEYS[event.key] || KEYS[event.key.toLowerCase()];
  if (!name) return;
  if (event.key.startsWith('Arrow') && event.composedPath()[0].closest?.('[role=tab], [role=tablist], summary')) return;
  event.preventDefault();
  act(name);
}

Lab.poll(root, async () => {
  const now = await Lab.answer(server.here({ annotator: who }));
  if (!shown) return;
  // Another project was opened meanwhile, or who labelled here may not any more.
  if (now.open !== shown.project.made || JSON.stringify(now.you) !== JSON.stringify(shown.you)) { send('opened'); return; }
  Object.assign(shown, { here: now.here }, now.counted > shown.counted ? figures(now) : {});
  root.querySelector('.goal')?.replaceWith(goal(shown));
}, 5000);
watch('value', take);
document.addEventListener('keydown', onKey);
locked = false;
send('opened');

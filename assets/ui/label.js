// Screen "Label". The vote names the pair that is on screen; until the answer is there, a second press does nothing.
const { el } = Lab;
const root = element.querySelector('.lab-label');
const who = Lab.annotator();
let shown = null;      // the state on screen
let locked = true;     // an answer is awaited
let since = 0;         // when the pair came on screen
let timer = null;

const ACTIONS = {
  left: ['1', 'ArrowLeft'], right: ['2', 'ArrowRight'], tie: ['0', '='], both_bad: ['x'], skip: ['s'], undo: ['u'],
};
const KEYS = Object.fromEntries(Object.entries(ACTIONS).flatMap(([name, keys]) => keys.map((key) => [key, name])));

function send(name, more = {}) {
  if (locked) return;
  locked = true;
  clearTimeout(timer);
  timer = setTimeout(() => { locked = false; if (!shown || !shown.pair) send('opened'); }, 5000);  // the answer never came
  trigger(name, { annotator: who, ...more });
}

function act(name) {
  if (element.offsetParent === null) return;
  if (name === 'undo') { send('undo'); return; }
  if (!shown || !shown.pair) return;
  const card = root.querySelector(`.side.${name}`);
  if (card && !locked) card.classList.add('chosen');
  send('vote', { pair_id: shown.pair.id, choice: name, uuid: Lab.uuid(), ms: Math.round(performance.now() - since) });
}

function button(name, words, key, extra = '') {
  return el(`button.lab-button${extra}`, { type: 'button', 'data-do': name, 'aria-keyshortcuts': ACTIONS[name].join(' '),
    onclick: () => act(name) }, words, el('kbd', { 'aria-hidden': 'true' }, key));
}

function side(name, text, words, key) {
  return el(`article.lab-card.side.${name}`, { 'aria-label': `${words} text` },
    el('p.lab-text', { dir: 'auto', tabindex: '0' }, text), button(name, `${words} is better`, key));
}

function goal(state) {
  const words = state.left > 0
    ? `${state.left} more label${state.left === 1 ? '' : 's'} and the reward model ${state.models ? 'learns again' : 'can learn'}`
    : 'The reward model is learning from your labels';
  const share = state.goal ? Math.min(1, state.labels / state.goal) : 0;
  return el('div.goal', {},
    el('div.lab-row', {},
      el('strong', { 'data-count': state.labels }, `${state.labels} label${state.labels === 1 ? '' : 's'} by people`),
      state.simulated ? el('span.lab-badge', {}, `${state.simulated} simulated, kept apart`) : null,
      el('span.muted.lab-grow', { 'aria-live': 'polite' }, words)),
    el('div.lab-bar', { role: 'progressbar', 'aria-label': 'labels until the next reward model', 'aria-valuemin': 0,
      'aria-valuemax': state.goal, 'aria-valuenow': state.labels }, (() => { const i = el('i'); i.style.width = `${100 * share}%`; return i; })()));
}

function helpers() {
  const judges = props.data.judges;
  const fitting = judges.find((judge) => judge.set === (shown && shown.project.set)) || judges[0];
  const choice = el('select.lab-input', { 'aria-label': 'simulated judge' },
    judges.map((judge) => el('option', { value: judge.name, title: judge.about, selected: judge === fitting }, judge.name)));
  return el('details', {},
    el('summary.muted', {}, 'For talks: let a simulated judge label, or begin again'),
    el('div.lab-row', { style: 'margin-top:10px' },
      choice,
      el('button.lab-button.small', { type: 'button', 'data-do': 'judge', onclick: () => send('judge', { judge: choice.value, count: 40 }) }, 'Judge labels 40 more (simulated)'),
      el('button.lab-button.small', { type: 'button', 'data-do': 'reset', onclick: () => {
        if (confirm('Begin a fresh project? The labels so far stay in the old one.')) send('reset');
      } }, 'Reset demo')));
}

function draw(state) {
  const open = root.querySelector('details')?.open;
  shown = state;
  const parts = [];
  if (state.notice) parts.push(el('p.lab-notice', { role: 'status' }, state.notice));
  if (state.pair) {
    parts.push(
      el('section.prompt', { 'aria-label': 'prompt' }, el('span.muted', {}, 'Prompt'), el('p.lab-text', { dir: 'auto' }, state.pair.prompt)),
      el('h2', { id: 'lab-question' }, 'Which continuation is better?'),
      el('div.sides', { role: 'group', 'aria-labelledby': 'lab-question' },
        side('left', state.pair.left, 'Left', '1'), side('right', state.pair.right, 'Right', '2')),
      el('div.others', {}, button('tie', 'Equally good', '0'), button('both_bad', 'Both bad', 'X'),
        button('skip', 'Skip', 'S'), button('undo', 'Undo', 'U')));
  } else {
    parts.push(el('div.lab-card.lab-empty', { role: 'status' }, state.waiting),
      el('div.others', {}, button('undo', 'Undo', 'U')));
  }
  parts.push(goal(state), helpers());
  root.replaceChildren(...parts);
  root.dataset.pair = state.pair ? state.pair.id : '';
  if (open) root.querySelector('details').open = true;
  since = performance.now();
  if (!state.pair) timer = setTimeout(() => { locked = false; send('opened'); }, 1500);
}

function take() {
  clearTimeout(timer);
  locked = false;
  const value = props.value;
  if (value && value.project) draw(value);
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

root.append(el('div.lab-card.lab-empty', { role: 'status' }, 'Opening …'));
watch('value', take);
document.addEventListener('keydown', onKey);
locked = false;
send('opened');

// What begins a new run. Every setting stands in the fold below; choosing a preset fills it.
const { el } = Lab;
const root = element.querySelector('.lab-start');
const place = el('div', {}, el('div.lab-card.lab-empty', {}, 'Looking for reward models …'));
let drawn = '';       // the state on screen, as JSON
let shown = null;     // the same, as an object
let opened = false;   // a person asked for another run
let picked = false;   // a person chose the reward model; else the one that the lab chose is meant
let filled = false;   // those of a preset were asked for
let filling = false;  // the settings of a preset are on their way
let timer = null;
let algorithm = 'ppo';  // what the fold below says
const starts = () => `Start ${algorithm.replace('_', ' ').toUpperCase()}`;
const part = (what) => root.querySelector(`[data-do=${what}]`);

function ready(now) {
  const button = part('start');
  clearTimeout(timer);
  if (button) button.disabled = !now;
  if (!now) timer = setTimeout(() => ready(true), 4000);  // the answer got lost: let the person try
}

function begin() {
  ready(false);
  part('start-error').hidden = true;
  trigger('start', { at: Date.now(), reward_model: part('start-reward').value, name: part('start-name').value });
}

function fill(name) {
  ready(false);
  filled = filling = true;
  trigger('preset', { preset: name });
}

function empty(state) {
  const words = state.learning
    ? `${state.learning}${state.training === null ? '' : ` ${Lab.percent(state.training)} done; this takes some seconds.`}`
    : state.missing > 0
      ? [`Label ${Lab.many(state.missing, 'more pair')} under Label`, Lab.orJudge(), '; the reward model then trains by itself.']
      : 'There are enough labels; the reward model is about to be trained.';
  return el('div.lab-card.lab-empty', { role: 'status' }, el('p', {}, 'PPO needs a reward model, and a reward model needs labels.'), el('p', {}, words));
}

function note() {
  const chosen = shown.models.find(([id]) => String(id) === part('start-reward').value);
  const wait = shown.going.length ? ` Run ${shown.going.join(', ')} is going on; this one waits for its turn.`
    : ' It trains in the background: close this page, come back, it is all there.';
  const [newest] = shown.models[0];
  const newer = chosen && chosen[0] === shown.chosen && newest !== shown.chosen ? ` Reward model ${newest} is newer, but a simulated judge taught it.` : '';
  const learning = shown.learning && chosen ? ` ${shown.learning} A run started now learns from reward model ${chosen[0]} and can be switched to that one later.` : '';
  part('start-note').textContent = `${chosen ? chosen[2] : ''}${newer}${learning}${wait}`;
}

function form(state) {
  const reward = el('select.lab-input', { 'aria-label': 'reward model', 'data-do': 'start-reward', onchange: () => { picked = true; note(); } },
    state.models.map(([id, words]) => el('option', { value: id }, `reward model ${words}`)));
  const preset = el('select.lab-input', { 'aria-label': 'preset', 'data-do': 'start-preset', onchange: (e) => fill(e.target.value) },
    props.data.presets.map((item) => el('option', { value: item.name, selected: item.name === state.preset }, item.words)));
  const how = el('select.lab-input', { 'aria-label': 'algorithm', 'data-do': 'start-algorithm', onchange: (e) => { ready(false); trigger('algorithm', { algorithm: e.target.value }); } },
    props.data.algorithms.map((item) => el('option', { value: item, selected: item === algorithm }, item)));
  const name = el('input.lab-input', { type: 'text', maxlength: 80, placeholder: 'name (optional)', 'aria-label': 'name of the run', 'data-do': 'start-name',
    onkeydown: (e) => { if (e.key === 'Enter' && !part('start').disabled) begin(); } });
  return el('div.lab-card', {}, Lab.operator(
    el('div.lab-row', {}, el('h2', {}, state.runs ? 'Another run' : 'Start a run'), reward, how, preset),
    el('div.lab-row', {}, name,
      el('button.lab-button.lab-main', { type: 'button', 'data-do': 'start', onclick: begin }, starts()),
      state.runs ? el('button.lab-button.small', { type: 'button', 'data-do': 'start-close', onclick: () => { opened = false; draw(state); } }, 'Close') : null,
      el('p.muted.note', { 'data-do': 'start-note' })),
    el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'start-error' })));
}

// With a run on screen the form folds into one button.
const folded = (state) => el('div.lab-row', {}, Lab.operator(el('button.lab-button.small', { type: 'button', 'data-do': 'start-open', 'aria-expanded': 'false',
  onclick: () => { opened = true; draw(state); part('start')?.focus(); } }, 'Start another run …')));

function draw(state) {
  // how far a reward model is, it says only where there is none yet
  const key = JSON.stringify([{ ...state, training: state.models.length ? null : state.training }, opened, Lab.operates()]);
  if (key === drawn) return;
  const other = shown !== null && shown.project !== state.project;
  drawn = key;
  shown = state;
  const open = opened || state.runs === 0;
  document.body.classList.toggle('lab-start-open', open && state.models.length > 0);
  if (!open || other) picked = false;
  if (!open) { place.replaceChildren(folded(state)); return; }
  if (!state.models.length) { place.replaceChildren(empty(state)); return; }
  redraw(state, other);
}

// The form anew (a reward model was added, a run has ended), with what the person had entered.
function redraw(state, other) {
  const whats = [...(picked ? ['start-reward'] : []), 'start-preset', 'start-name'];
  const kept = other ? {} : Object.fromEntries(whats.map((what) => [what, part(what)?.value]));
  const focus = root.contains(document.activeElement) ? document.activeElement.dataset.do : null;
  const error = part('start-error')?.textContent || '';
  place.replaceChildren(form(state));
  for (const [what, value] of Object.entries(kept)) if (value !== undefined) part(what).value = value;
  if (!picked || !part('start-reward').value) part('start-reward').value = state.chosen;
  if (error) { part('start-error').hidden = false; part('start-error').textContent = error; }
  if (focus) part(focus)?.focus();
  note();
  if (Lab.operates() && (!filled || kept['start-preset'] === undefined)) fill(kept['start-preset'] ?? state.preset);
  else ready(!filling);
}

watch('value', () => {
  const said = props.value;
  if (!said) return;
  ready(true);
  if (said.filled) {
    filling = false;
    algorithm = said.algorithm;
    if (part('start')) { part('start').textContent = starts(); part('start-algorithm').value = algorithm; }
    return;
  }
  const notice = part('start-error');
  if (notice) { notice.hidden = !said.error; notice.textContent = said.error || ''; }
  if (!said.run) return;
  opened = false;
  window.dispatchEvent(new CustomEvent('lab-run', { detail: said.run }));
});
// A greyed setting says why, however late its fold was opened.
document.addEventListener('mouseover', (event) => {
  const node = event.target.closest?.('#start-settings [id^="start-"]'), only = node && props.data.only[node.id.slice('start-'.length)];
  if (only) node.title = only.includes(algorithm) ? '' : `${algorithm} does not read this setting, only ${only.join(', ')}; it stays at its default.`;
});
root.append(Lab.only('Only the operator starts and steers runs here; you can watch.'), place);
Lab.poll(root, async () => draw(await Lab.answer(server.options({}))), 2000);

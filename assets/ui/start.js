// What begins a new run. Every setting stands in the fold below; choosing a preset fills it.
const { el } = Lab;
const root = element.querySelector('.lab-start');
let drawn = '';
let busy = false;
let opened = false;

function begin() {
  if (busy) return;
  busy = true;
  setTimeout(() => { busy = false; }, 4000);
  trigger('start', { at: Date.now(), reward_model: root.querySelector('[data-do=start-reward]').value,
    name: root.querySelector('[data-do=start-name]').value });
}

function empty(state) {
  return el('div.lab-card.lab-empty', {},
    el('p', {}, 'PPO needs a reward model, and a reward model needs labels.'),
    el('p', {}, state.missing > 0
      ? `Label ${state.missing} more pair${state.missing === 1 ? '' : 's'} under Label, or let a simulated judge label 40 there; the reward model then trains by itself.`
      : 'The reward model is being trained from your labels; this takes a few seconds.'));
}

function form(state) {
  const presets = props.data.presets;
  const reward = el('select.lab-input.lab-grow', { 'aria-label': 'reward model', 'data-do': 'start-reward' },
    state.models.map(([id, words]) => el('option', { value: id }, `reward model ${words}`)));
  const preset = el('select.lab-input', { 'aria-label': 'preset', 'data-do': 'start-preset', onchange: (e) => trigger('preset', { preset: e.target.value }) },
    presets.map((item) => el('option', { value: item.name, selected: item.name === state.preset }, item.words)));
  const name = el('input.lab-input', { type: 'text', maxlength: 80, placeholder: 'name (optional)', 'aria-label': 'name of the run', 'data-do': 'start-name' });
  return el('div.lab-card', {},
    el('div.lab-row', {},
      el('h2', {}, state.going.length ? 'Another run' : 'Start a run'),
      reward, preset, name,
      el('button.lab-button.lab-main', { type: 'button', 'data-do': 'start', onclick: begin }, 'Start PPO')),
    el('p.muted', { style: 'margin-top:6px' }, state.going.length
      ? `Run ${state.going.join(', ')} is going on; a new one waits for its turn.`
      : 'It trains in the background: close this page, come back, it is all there.'),
    el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'start-error' }));
}

// With a run on screen the form folds into one button.
function folded(state) {
  return el('div.lab-row', {}, el('button.lab-button.small', { type: 'button', 'data-do': 'start-open', 'aria-expanded': 'false',
    onclick: () => { opened = true; draw(state); } }, 'Start another run …'));
}

function draw(state) {
  const key = JSON.stringify([state, opened]);
  if (key === drawn) return;
  drawn = key;
  const open = opened || state.runs === 0;
  document.body.classList.toggle('lab-start-open', open && state.models.length > 0);
  if (!open) { root.replaceChildren(folded(state)); return; }
  const name = root.querySelector('[data-do=start-name]')?.value || '';
  const old = Object.fromEntries(['start-reward', 'start-preset'].map((what) => [what, root.querySelector(`[data-do=${what}]`)?.value]));
  root.replaceChildren(state.models.length ? form(state) : empty(state));
  if (!state.models.length) return;
  root.querySelector('[data-do=start-name]').value = name;
  const preset = root.querySelector('[data-do=start-preset]');
  if (old['start-preset']) preset.value = old['start-preset'];
  else trigger('preset', { preset: state.preset });
}

watch('value', () => {
  const said = props.value;
  busy = false;
  if (!said) return;
  const notice = root.querySelector('[data-do=start-error]');
  if (notice) { notice.hidden = !said.error; notice.textContent = said.error || ''; }
  if (said.run) opened = false;
  if (said.run) window.dispatchEvent(new CustomEvent('lab-run', { detail: said.run }));
});
root.append(el('div.lab-card.lab-empty', {}, 'Looking for reward models …'));
Lab.poll(root, async () => draw(await Lab.answer(server.options({}))), 2000);

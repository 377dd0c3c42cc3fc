// The strip above every screen: what the lab is doing now.
const { el } = Lab;
const root = element.querySelector('.lab-header');

function place({ engine: { device, memory_mb: mb } }) {
  return [device, mb ? Lab.bytes(2 ** 20 * mb) : ''].filter(Boolean).join(' · ');
}

function job(state) {
  if (!state.job) return null;
  const share = Math.round(100 * state.job.progress), percent = state.job.percent ? ` ${Lab.percent(state.job.progress)}` : '';
  const left = Lab.left(state.job.eta_s, state.job.progress);
  const bar = el('i');
  bar.style.width = `${share}%`;
  return el('div.job', { title: `${state.job.words}${percent}${left}` },
    el('div.what', {}, el('span', {}, `${state.job.words}${percent}`), el('span.left', {}, left)),
    el('div.lab-bar', { role: 'progressbar', 'aria-label': state.job.words, 'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': share }, bar));
}

// Larger type, dark: kept by this tab of the browser.
function look(name, on) {
  document.body.classList.toggle(name, on);
  Lab.keep(name, on ? 'on' : 'off');
  window.dispatchEvent(new Event('resize'));
}

const screens = () => [...document.querySelectorAll('[role=tab]')];

// A click may come before Gradio listens, so it is asked again until it has been heard.
function reopen(tries) {
  const tab = screens().find((one) => Lab.inAddress(one) === Lab.screen());
  if (tab?.getAttribute('aria-selected') === 'true') { tab.scrollIntoView({ block: 'nearest', inline: 'center' }); return; }
  tab?.click();
  if (tries) setTimeout(() => reopen(tries - 1), 100);
}

// Whether this visitor operates the lab. The server does not see the secret that a browser keeps (screen Project) until it is shown it.
let secret = null, proof = null, shown = 0, tries = 0;
function standing(operates) {
  const kept = localStorage.getItem('rlhf-lab-operator');
  if (kept !== secret) { secret = kept; proof = null; tries = 0; }
  if (!operates && secret && !proof && tries < 4) { tries += 1; shown = Date.now(); trigger('prove', { at: shown }); }  // Gradio may not have read it yet
  settle(operates || (secret ? proof : false));
}
function settle(now) { if (now !== null && now !== Lab.operates()) Lab.setOperates(now); }

// What stands behind an accuracy: its interval, or why it is one; a phone has no room for that.
function why(reward) {
  if (Lab.isWide(reward)) return el('span.why', {}, ' (few labels)');
  return reward.low === null ? '' : ` (${Lab.between(reward.low, reward.high)})`;
}

function draw(state) {
  const accuracy = state.reward
    ? [`accuracy ${Lab.accuracy(state.reward)}${state.reward.simulated ? ', simulated' : ''}`, why(state.reward)]
    : ['no reward model yet'];
  const works = state.job && state.engine.works;  // then the work says what it does, and the strip stays one line
  root.replaceChildren(el('div.strip', {}, [
    el('span.name', {}, 'RLHF Lab'),
    el('span.what', {}, `${state.project} · ${state.model}`),
    el('span.lab-badge.machine', { title: `${state.engine.words}. ${state.engine.about}` }, el(`i.dot.${state.engine.mood}`), works ? place(state) : `${state.engine.words}${place(state) && ` · ${place(state)}`}`),
    el('span.lab-badge', {}, `${Lab.many(state.labels, 'label')}${state.simulated ? ` + ${state.simulated} simulated` : ''}`),
    el('span.lab-badge', { title: state.reward && `cross-validated accuracy of reward model ${state.reward.id}, the newest that ${state.reward.simulated ? 'a simulated judge taught; people taught none' : 'people taught'}, with its 95 % interval` }, ...accuracy),
    job(state),
    el('span.lab-grow'), el('span.buttons', {},
    el('button.lab-button.small.projector', { type: 'button', title: 'larger type for the back of the room', 'aria-pressed': document.body.classList.contains('projector') ? 'true' : 'false',
      onclick: () => { look('projector', !document.body.classList.contains('projector')); draw(state); } }, 'Projector'),
    el('button.lab-button.small', { type: 'button', title: 'light or dark',
      onclick: () => { look('dark', !document.body.classList.contains('dark')); draw(state); } }, document.body.classList.contains('dark') ? 'Light' : 'Dark')),
  ]));
  if (state.warning) root.append(el('p.lab-notice.bad', { role: 'alert' }, state.warning));
}

for (const name of ['projector', 'dark']) if (Lab.kept(name)) look(name, Lab.kept(name) === 'on');
reopen(300);
window.addEventListener('hashchange', () => reopen(50));
watch('value', () => {
  if (!props.value || props.value.at !== shown) return;
  proof = props.value.operates;
  settle(proof);
});
Lab.poll(root, async () => {
  const state = await Lab.answer(server.status({ annotator: Lab.annotator() }));
  standing(state.operates);
  draw(state);
}, 1500);

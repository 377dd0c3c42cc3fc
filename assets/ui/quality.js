// Part "Quality of the labels": agreement, people one by one, whom to learn from, labels to look at again.
const { el } = Lab;
const root = element.querySelector('.lab-quality');
let state = null, seen = '', source = null, waiting = 0;
const weights = new Map();   // annotator -> 0 (left out) … most; whoever is not there weighs 1
let project = null;

const notice = el('p.lab-notice', { role: 'status', hidden: true, 'data-do': 'quality-notice' });
const head = el('section.lab-card.head', { 'aria-label': 'agreement' }, el('p.muted', { role: 'status' }, 'Looking at the votes …'));
const crowd = el('section.lab-card.crowd', { 'aria-label': 'annotators', hidden: true });
const models = el('section.lab-card.models', { 'aria-label': 'reward models', hidden: true });
const again = el('section.lab-card.again', { 'aria-label': 'labels to look at again', hidden: true });
root.append(notice, head, crowd, models, again);

function say(words, bad = false) {
  notice.hidden = !words;
  notice.textContent = words || '';
  notice.classList.toggle('bad', bad);
  notice.setAttribute('role', bad ? 'alert' : 'status');
}
function send(more) { waiting = Date.now(); say(''); trigger('act', { at: waiting, ...more }); }

const percent = (found) => Lab.percent(found[0]);
const between = (found) => (found[0] === null ? '' : `95 %: ${Lab.between(found[1], found[2])}, of ${found[3]}`);

function meaning(alpha) {
  if (alpha === null) return 'Alpha needs pairs with votes of two people or more, and votes that differ. Ask for more votes for each pair under People, Labelling rules.';
  if (alpha >= 0.8) return 'They agree well.';
  if (alpha >= 0.67) return 'They agree enough for careful conclusions.';
  if (alpha >= 0.2) return 'They agree somewhat: a matter of taste, or a guideline that leaves much open.';
  return 'They hardly agree more than by chance: look at the guideline, and at the people below.';
}

// What may be looked at over time: its words, and how a value of it is said.
const TRENDS = {
  others: ['agreement with others', Lab.percent], self: ['agreement with themselves', Lab.percent], alpha: ['alpha', (v) => Lab.number(v, 2)],
  left: ['share of left', Lab.percent], ties: ['share of ties', Lab.percent], seconds: ['seconds a vote', (v) => Lab.number(v, 1)],
};
let trend = 'others';   // what the table shows over time

// A small picture of one of them, from 0 to 1; of seconds, to the largest.
function spark(time, key, whose) {
  const [name, say] = TRENDS[key], values = time.map((one) => one[key]), words = `${name}${whose} over time`;
  const most = key === 'seconds' ? Math.max(...values, 1e-9) : 1;
  const space = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(space, 'svg');
  svg.setAttribute('viewBox', '0 0 100 28');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('class', 'spark');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `${words}: ${values.map((v) => (v === null ? 'unknown' : say(v))).join(', ')}`);
  const there = values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
  if (there.length < 2) return svg;
  const line = document.createElementNS(space, 'polyline');
  line.setAttribute('points', there.map(([i, v]) => `${(100 * i / (values.length - 1)).toFixed(1)},${(26 - 24 * Math.max(0, v) / most).toFixed(1)}`).join(' '));
  svg.append(line);
  return svg;
}

function drawHead() {
  const pick = el('select.lab-input', { 'aria-label': 'whose votes', 'data-do': 'quality-source', onchange: (event) => { source = event.target.value; weights.clear(); look(); } },
    [['human', 'votes of people'], ['simulated', 'simulated votes']].map(([value, words]) => el('option', { value, selected: value === state.source }, words)));
  if (!state.votes) { head.replaceChildren(el('div.lab-row', {}, pick), el('p.muted', {}, 'There are no such votes yet.')); return; }
  const picture = (key) => el('figure', { 'data-trend': key }, el('figcaption.muted', {}, `${TRENDS[key][0]} over time`), spark(state.time, key, ''));
  head.replaceChildren(
    el('div.lab-row', {}, pick, el('span.muted', {}, `${state.votes} votes`)),
    el('div.figures', {},
      el('div', {}, el('div.big', { 'data-do': 'quality-alpha' }, Lab.number(state.alpha, 3)), el('span.muted', {}, "Krippendorff's alpha: 1 is perfect, 0 is chance")),
      el('div', {}, el('div.big', { 'data-do': 'quality-agreement' }, percent(state.agreement)), el('span.muted', {}, `of two votes on a pair say the same (${between(state.agreement) || 'no pair has two'})`))),
    el('p', {}, meaning(state.alpha)),
    el('div.trends', {}, Object.keys(TRENDS).filter((key) => state.time.some((one) => one[key] !== null)).map(picture)));
}

function weigh(name) {
  const value = weights.get(name) ?? 1;
  return Lab.operator(el('select.lab-input', { 'aria-label': `weight of ${Lab.person(name)}`, 'data-do': 'quality-weight', 'data-name': name,
    onchange: (event) => { weights.set(name, Number(event.target.value)); drawTrain(); } },
  [[0, 'left out'], [1, 'counts once'], ...[2, 3, 5, props.data.heaviest].map((n) => [n, `counts ${n} times`])].map(([n, words]) => el('option', { value: n, selected: n === value }, words))));
}

// What stands out, in words; nothing where the interval is wide enough for chance.
function remarks(person) {
  const found = [];
  if (person.left[0] !== null && person.left[1] > 0.5) found.push('prefers the left side');
  if (person.left[0] !== null && person.left[2] < 0.5) found.push('prefers the right side');
  if (person.ties[1] > 0.5) found.push('mostly ties');
  if (person.seconds !== null && person.seconds < 1 && person.votes >= 10) found.push('votes within a second');
  if (person.without !== null && state.alpha !== null && person.without - state.alpha > 0.03) found.push('the others agree better without');
  return found.join(', ');
}

function trendChoice() {
  return el('select.lab-input', { 'aria-label': 'what to show over time', 'data-do': 'quality-trend', onchange: (event) => { trend = event.target.value; drawCrowd(); } },
    Object.entries(TRENDS).filter(([key]) => key !== 'alpha').map(([key, [name]]) => el('option', { value: key, selected: key === trend }, `${name} over time`)));
}

function drawCrowd() {
  crowd.hidden = !state.people.length;
  if (crowd.hidden) return;
  const words = ['annotator', 'votes', 'agree with others', 'with themselves', 'left', 'ties', 'seconds', 'alpha without', trendChoice(), 'in the next reward model'];
  const cell = (found, name) => el('td.figure', { 'data-words': name, title: between(found) || null }, percent(found));
  crowd.replaceChildren(...[el('div.lab-row', {}, el('h3', {}, 'One by one'), el('span.muted', {}, 'point at a figure for its interval')),
    el('div.scroll', { tabindex: '0', role: 'group', 'aria-label': 'annotators and their figures' }, el('table', {},
      el('thead', {}, el('tr', {}, words.map((one) => el('th', { scope: 'col' }, one)))),
      el('tbody', {}, state.people.map((person) => el('tr', { 'data-name': person.name },
        el('th', { scope: 'row', title: person.name }, Lab.person(person.name), el('p.muted', {}, remarks(person))), el('td.figure', {}, String(person.votes)),
        cell(person.others, 'others'), cell(person.self, 'self'), cell(person.left, 'left'), cell(person.ties, 'ties'),
        el('td.figure', {}, Lab.number(person.seconds, 2)), el('td.figure', {}, Lab.number(person.without, 3)),
        el('td', {}, spark(person.time, trend, ` of ${Lab.person(person.name)}`)), el('td', {}, weigh(person.name))))))),
    state.more ? el('p.muted', {}, `${state.more} with fewer votes are not listed; they count once.`) : null,
    el('div.lab-row.train', {})].filter(Boolean));
  drawTrain();
}

function drawTrain() {
  const row = crowd.querySelector('.train');
  if (!row) return;
  const out = state.people.filter((person) => weights.get(person.name) === 0).length;
  row.replaceChildren(
    Lab.operator(el('button.lab-button.small', { type: 'button', 'data-do': 'quality-train', disabled: state.training || null, onclick: () => send({ do: 'train', source: state.source, weights: Object.fromEntries(weights) }) },
      'Train a reward model like this')),
    el('span.muted', {}, state.training ? 'One is being trained; wait for it.' : `${out ? `Without ${out} of ${state.people.length}.` : 'Everybody is in.'} Train it with and without somebody and compare below: each group gets a reward model of its own.`));
}

function drawModels() {
  models.hidden = !state.models.length;
  if (models.hidden) return;
  models.replaceChildren(el('div.lab-row', {}, el('h3', {}, 'Reward models and whose labels they learnt from'), el('span.muted', {}, 'start PPO on any of them under Train')),
    el('div.scroll', { tabindex: '0', role: 'group', 'aria-label': 'reward models' }, el('table', {},
      el('thead', {}, el('tr', {}, ['reward model', 'labels', 'learnt from', 'unseen pairs ranked as labelled'].map((one) => el('th', { scope: 'col' }, one)))),
      el('tbody', {}, state.models.map((one) => el('tr', {}, el('th', { scope: 'row' }, String(one.id)), el('td.figure', {}, String(one.labels)),
        el('td', {}, `${one.people.map(([name, weight]) => `${Lab.person(name)}${weight === 1 ? '' : ` ×${weight}`}`).join(', ')}${one.all > one.people.length ? ` and ${one.all - one.people.length} more` : ''}`, one.chosen ? el('span.lab-badge', {}, 'chosen people') : null),
        el('td.figure', {}, one.accuracy === null || one.accuracy === undefined ? 'not measured' : `${Lab.percent(one.accuracy)} (${Lab.between(one.low, one.high)})`)))))));
}

function drawAgain() {
  const found = state.doubts;
  again.hidden = !found || !found.labels.length;
  if (again.hidden) return;
  again.replaceChildren(el('div.lab-row', {}, el('h3', {}, `A second look at ${state.source === 'human' ? "people's" : 'simulated'} labels`), el('span.muted.lab-grow', {},
    `Labels that reward model ${found.model} finds least likely, trained without them. Some are slips; some are what it has not learnt yet.`)),
  el('ol', {}, found.labels.map((one) => {
    const side = (text, mine) => el('div.text.lab-scroll', { 'data-chosen': mine ? '1' : null }, mine ? el('span.lab-badge.accent', {}, 'chosen') : null, el('p.lab-text', { dir: 'auto' }, text.trim()));
    return el('li', { 'data-vote': one.vote }, el('p.lab-text.asked.lab-scroll', { dir: 'auto' }, one.prompt),
      el('div.two', {}, side(one.first, one.choice === 'first'), side(one.second, one.choice === 'second')),
      el('div.lab-row', {}, el('span.muted.lab-grow', {}, `${Lab.person(one.annotator)}; the model gives this label ${Lab.percent(one.probability)}`),
        one.open ? el('span.muted', {}, 'set aside') : state.source === 'simulated' ? null  // a judge would say it again
          : Lab.operator(el('button.lab-button.small', { type: 'button', 'data-do': 'quality-again', title: 'sets the vote aside and asks this annotator again', onclick: () => send({ do: 'again', vote: one.vote }) }, 'Ask again'))));
  })));
}

async function look() {
  const reply = await Lab.answer(server.look({ seen, source }));
  if (reply.same) return;
  const focus = root.contains(document.activeElement) ? [document.activeElement.dataset.do, document.activeElement.dataset.name] : null;
  if (project !== reply.project) weights.clear();
  state = reply;
  seen = reply.seen;
  project = reply.project;
  drawHead(); drawCrowd(); drawModels(); drawAgain();
  if (focus && focus[0]) [...root.querySelectorAll(`[data-do="${focus[0]}"]`)].find((node) => node.dataset.name === focus[1])?.focus();
}

watch('value', () => {
  const said = props.value;
  if (!said || said.at !== waiting) return;
  say(said.error || said.done, Boolean(said.error));
  look();
});
Lab.poll(root, look, 4000);

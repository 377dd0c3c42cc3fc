// Screen "People": who is here, the leaderboard, the invitation, and the labelling rules (operator).
const { el } = Lab;
const root = element.querySelector('.lab-people');
let state = null;
let drawnRules = '';
let said = null;
let invite;            // what whoever operates the lab is told of the way in; undefined until they are
let sorted = 'labels';

const WORDS = { viewer: 'You may look around, but not label.', labeller: 'You may label.', operator: 'You may do everything here: label, train, change projects and rules.' };
const RULES = { overlap: 'Votes wanted for each pair', repeats: 'Share of pairs shown a second time (0 to 0.5)', hold_s: 'Keep a pair for one person (seconds)', sampling: 'Which pairs are shown',
  texts: 'Who writes the texts', markdown: 'Show Markdown', guideline: 'Guideline' };

const CHOICES = { random: 'any', information: 'whose answers would teach the most', uncertainty: 'where the reward model is least sure', diversity: 'least like the pairs there are',
  base: 'the base model', policy: 'the newest checkpoint of a run' };

// What this visitor may do; whoever shows the operator's secret does everything, and stays who they are.
const role = () => (Lab.operates() ? 'operator' : state.you.role === 'viewer' ? 'viewer' : 'labeller');

const share = (part, whole) => (whole ? `${Lab.percent(part / whole)} of ${whole}` : '–');

function who() {
  const names = state.here.filter((name) => !Lab.isVisitor(name)), others = state.here.length - names.length;
  const list = [...names, ...(others ? [`${others} who gave no name`] : [])].join(', '), n = state.here.length;
  const mine = state.you.name && !Lab.isVisitor(state.you.name) ? `, ${state.you.name}` : '';
  return el('section.lab-card', { 'aria-label': 'who is here' },
    el('h2', { 'data-here': n }, n === 1 && state.here[0] === state.you.name ? 'Only you have this page open' : n === 1 ? 'One person has this page open' : `${n} people have this page open`),
    n > 1 || names.length ? el('p.muted', {}, list) : null,
    el('p', {}, WORDS[role()].replace('You', () => `You${mine}${mine && ','}`)),
    role() === 'viewer' ? el('p', {}, el('a.lab-button', { href: 'join' }, 'Join to label')) : null,
    Lab.only('Only the operator makes the labelling rules and takes people out of the lab.'));
}

const ORDER = { labels: (one) => [one.labels], themselves: (one) => [one.same / one.repeated, one.repeated], others: (one) => [one.agreed / one.shared, one.shared] };

// The highest first; whoever has no figure comes last, and among equals who has more pairs behind it.
function inOrder() {
  const figures = (one) => ORDER[sorted](one).map((figure) => (Number.isNaN(figure) ? -1 : figure));
  const before = (a, b) => { const i = a.findIndex((figure, k) => figure !== b[k]); return i < 0 ? 0 : b[i] - a[i]; };
  return [...state.board].sort((a, b) => before(figures(a), figures(b)));
}

function board() {
  if (!state.board.length) return el('section.lab-card', {}, el('h2', {}, 'Labels'), el('p.muted', {}, 'Nobody has labelled in this project yet.'));
  const head = [['labels', 'Labels', 'skips left out'], ['themselves', 'Agrees with themselves', 'on pairs shown twice, sides swapped'],
    ['others', 'Agrees with others', 'on pairs others judged too']];
  return el('section.lab-card', { 'aria-label': 'leaderboard' }, el('h2', {}, 'Labels'),
    el('div.scroll', {}, el('table', {},
      el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Name'), head.map(([key, name, title]) =>
        el('th', { scope: 'col', 'aria-sort': key === sorted ? 'descending' : 'none' },
          el('button', { type: 'button', 'data-sort': key, title: `${title}; press to put the highest first`, onclick: () => { sorted = key; draw(); } }, name))))),
      el('tbody', {}, inOrder().map((one) => el(one.annotator === state.you.name ? 'tr.me' : 'tr', { 'data-name': one.annotator },
        el('th', { scope: 'row', dir: 'auto', title: one.annotator }, Lab.person(one.annotator)), el('td', {}, one.labels),
        el('td', {}, share(one.same, one.repeated)), el('td', {}, share(one.agreed, one.shared))))))));
}

function picture() {
  const NS = 'http://www.w3.org/2000/svg';
  const svg = document.createElementNS(NS, 'svg');
  svg.setAttribute('viewBox', `0 0 ${invite.size} ${invite.size}`);
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `QR code of ${invite.link}`);
  svg.classList.add('qr');
  const path = document.createElementNS(NS, 'path');
  path.setAttribute('d', invite.path);
  svg.append(path);
  return svg;
}

function invitation() {
  if (invite === undefined) return null;
  if (!invite) {
    return el('section.lab-card', {}, el('h2', {}, 'Others'),
      el('p.muted', {}, 'Phones and other computers cannot reach this lab. Start it with ', el('code', {}, 'python app.py --host 0.0.0.0'), ' and others in your network join with a code.'));
  }
  const [address] = invite.link.split('?');  // enough to type; to copy there is all of it
  return el('section.lab-card.invite', { 'aria-label': 'invitation' }, picture(), el('div', {},
    el('h2', {}, 'Join to label'), el('p.code', { 'data-code': invite.code }, invite.code),
    el('p.lab-text', {}, address, el('span.muted', {}, invite.link.slice(address.length)))));
}

function field(item) {
  const id = `lab-rule-${item.name}`, value = state.rules[item.name];
  const common = { id, name: item.name, 'aria-describedby': `${id}-help` };
  let input;
  if (item.type === 'bool') input = el('input', { ...common, type: 'checkbox', checked: value });
  else if (item.choices) input = el('select.lab-input', common, item.choices.map((c) => el('option', { value: c, selected: c === value }, CHOICES[c] || c)));
  else if (item.name === 'guideline') { input = el('textarea.lab-input', { ...common, rows: 3 }); input.value = value; }
  else input = el('input.lab-input', { ...common, type: 'number', min: item.low, max: item.high, step: item.type === 'int' ? 1 : 'any', value });
  return el(item.name === 'guideline' ? 'div.rule.wide' : 'div.rule', {}, el('label', { for: id }, RULES[item.name] || item.name), input,
    el('p.muted', { id: `${id}-help` }, item.help));
}

function rules() {
  const form = el('form', { onsubmit: (event) => {
    event.preventDefault();
    const values = Object.fromEntries(props.data.fields.map((item) => {
      const input = form.elements[item.name];
      return [item.name, item.type === 'bool' ? input.checked : input.value];
    }));
    said = Date.now();
    trigger('rules', { at: said, rules: values });
  } }, Lab.operator(el('div.rules', {}, props.data.fields.map(field)), el('button.lab-button.lab-main', { type: 'submit' }, 'Use these rules')),
  el('p.told', { role: 'status' }));
  return el('details.lab-card', { open: root.querySelector('details')?.open }, el('summary', {}, 'Labelling rules of this project'), form);
}

function draw() {
  const rule = Lab.operates();
  const key = JSON.stringify([state.rules, rule]);
  const keep = key === drawnRules ? root.querySelector('details') : null;  // a form somebody is filling in stays
  drawnRules = key;
  const held = document.activeElement?.dataset.sort;  // the head of a column that is in focus stays so
  const form = rule ? keep || rules() : null;
  for (const child of [...root.children]) if (child !== keep) child.remove();  // it is never taken out: it would lose the focus
  root.prepend(...(invite ? [invitation(), who(), board()] : [who(), invitation(), board()]).filter(Boolean));
  if (held) root.querySelector(`[data-sort=${held}]`)?.focus();
  if (form && form !== keep) root.append(form);
}

watch('value', () => {
  const reply = props.value;
  if (reply && 'invite' in reply && Lab.operates()) { invite = reply.invite; draw(); }
  const place = root.querySelector('.told');
  if (!reply || !place || reply.at !== said) return;
  place.textContent = reply.error || reply.done;
  place.classList.toggle('bad', Boolean(reply.error));
});

Lab.poll(root, async () => {
  state = await Lab.answer(server.look({ annotator: Lab.annotator() }));
  if (!Lab.operates()) invite = undefined;
  else if (invite === undefined) trigger('invite', { at: Date.now(), origin: location.origin + location.pathname });
  draw();
}, 4000);

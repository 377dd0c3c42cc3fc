// Part "Somebody leaves" of the screen People, for the operator: a person's name goes, and their votes if so wished.
const { el } = Lab;
const root = element.querySelector('.lab-leaving');
let drawn = null;
let said = null;

const told = el('p.told', { role: 'status' });
const choice = el('select.lab-input', { id: 'lab-leaving-name', 'data-do': 'leaving-name', onchange: () => ask() });
const votes = el('input', { type: 'checkbox', 'data-do': 'leaving-votes', onchange: () => ask() });
const place = el('div');

// The button, or in its place whether it is meant so.
function ask(sure = false) {
  const name = choice.value;
  const words = `Take ${name} out of every project for good, ${votes.checked ? 'with all votes' : 'and keep the votes without a name'}?`;
  place.replaceChildren(sure && name
    ? Lab.deleteField(words, 'leaving', {}, () => { said = Date.now(); trigger('leave', { at: said, name, votes: votes.checked }); }, () => ask())
    : Lab.operator(el('button.lab-button.danger', { type: 'button', 'data-do': 'leaving', disabled: !name, onclick: () => ask(true) }, 'Take out …')));
}

const part = el('details.lab-card.lab-operating', { ontoggle: () => look() }, el('summary', {}, 'Take somebody out of this lab'),
  el('p.muted', {}, 'Where somebody asks for it, or chose a name that cannot stay: the name goes from votes, blind tests and reward models of every project, and whoever entered by it joins again. '
    + 'What a reward model has learnt, it keeps; what was exported before is not changed.'),
  el('div.lab-row', {}, el('label', { for: 'lab-leaving-name' }, 'Name'), choice, el('label', {}, votes, ' take their votes and notes back too')), place, told);

function draw(names) {
  const key = JSON.stringify(names);
  if (key === drawn) return;
  drawn = key;
  const kept = choice.value;
  choice.replaceChildren(el('option', { value: '' }, names.length ? 'choose …' : 'nobody has a name here'), ...names.map((name) => el('option', { value: name }, name)));
  choice.value = names.includes(kept) ? kept : '';
  if (choice.value !== kept || !place.firstChild) ask();
}

// Whom there is to choose is told to whoever shows the secret, so by an event, and only while somebody looks.
function look() {
  if (!part.open || root.offsetParent === null || document.hidden) return;
  if (Lab.operates() && !document.body.classList.contains('lab-offline')) trigger('known', { at: Date.now() });
}

watch('value', () => {
  const reply = props.value;
  if (reply?.names) draw(reply.names);
  if (!reply || reply.at !== said || reply.names) return;
  told.textContent = reply.error || reply.done;
  told.classList.toggle('bad', Boolean(reply.error));
  look();
});

root.append(part);
setInterval(look, 4000);

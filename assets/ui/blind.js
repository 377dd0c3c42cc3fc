// A blind test on the screen "Compare": which of two texts is better, and whose they were when all are judged.
// ask({test, annotator}) -> ui/screens/blind_test.py's state; acts: begin, prefer, and manage for a name or an end; asked(): what the form above says.
window.LabBlind = window.LabBlind || (({ root, ask, acts, asked }) => {
  const { el } = Lab;
  let state = null, wanted = null, tests = [], drawn = '', sent = null, answered = 0, fetching = false, editing = '', listed = '';
  const narrow = matchMedia('(max-width: 640px)');

  const pairs = el('input.lab-input', { type: 'text', inputmode: 'numeric', value: '20', 'aria-label': 'pairs', 'data-do': 'blind-pairs' });
  const begin = el('button.lab-button', { type: 'button', 'data-do': 'blind-begin', onclick: start }, 'Begin a blind test');
  const picker = el('select.lab-input', { 'aria-label': 'blind test', 'data-do': 'blind-pick', onchange: () => { wanted = Number(picker.value); state = null; leave(); look(); } });
  const controls = el('div.lab-row.controls');
  const notice = el('p.lab-notice', { hidden: true, 'data-do': 'blind-notice' });
  const stage = el('div.stage');
  const others = el('span.muted', { 'data-do': 'blind-others', title: 'done: no pair is left for them to judge' });
  const card = el('section.lab-card.blind', { 'aria-label': 'blind test' },
    el('div.lab-row', {}, el('h2', {}, 'Blind test'), el('span.lab-grow'), controls),
    notice, stage,
    el('p.muted.about', {}, 'Both models of the first two columns write to prompts that nothing was trained on; you say which text is better, and learn whose it was when all are judged. The reward model can be fooled by what PPO found; you are asked instead. Nothing learns from these answers.'),
    Lab.only('Only the operator begins and changes blind tests here; you can judge their pairs.'),
    el('div.lab-row.new', {}, Lab.operator(el('label.lab-row', {}, el('span.muted', {}, 'pairs'), pairs), begin)));

  // Begun, on a phone, it comes before everything else.
  let begun = false;
  function place() {
    const first = begun && narrow.matches, held = card.contains(document.activeElement) ? document.activeElement : null;
    if ((root.firstElementChild === card) === first) return;
    root[first ? 'prepend' : 'append'](card);
    held?.focus({ preventScroll: true });
  }

  function act(name, more) {
    if (sent) return;
    sent = Date.now();
    const mine = sent;
    Lab.tell(notice, '');
    busy();
    acts[name]({ at: sent, annotator: Lab.annotator(), ...more });
    setTimeout(() => { if (sent === mine) { sent = null; busy(); look(); } }, 6000);  // the answer got lost
  }

  function start() { act('begin', { ...asked(), pairs: pairs.value }); }
  function prefer(side) { if (state?.pair) act('prefer', { test: state.id, position: state.pair.position, prefer: side }); }
  function stop() { act('prefer', { test: state.id, prefer: 'stop' }); }
  function busy() { for (const button of card.querySelectorAll('button')) button.disabled = Boolean(sent); }

  // What an act was answered with; true: it was one of ours.
  function take(said) {
    if (!said || !sent || said.at !== sent) return false;
    sent = null; answered += 1;
    if (said.error) { Lab.tell(notice, said.error, true); if (said.field === 'pairs') pairs.focus(); look(); } else { tests = said.tests || tests; wanted = said.test.id; see(said.test); pick(); Lab.tell(notice, said.done || ''); if (narrow.matches && !said.done) card.scrollIntoView(); }
    busy();
    return true;
  }

  async function look() {
    if (fetching) return;
    fetching = true;
    const before = answered, about = wanted;
    try {
      const reply = await Lab.answer(ask({ test: about, annotator: Lab.annotator() }));
      if (before === answered && !sent && about === wanted) see(reply);
    } catch (error) { /* asked again with the next look */ } finally { fetching = false; }
    if (about !== wanted && !state) await look();  // another test was picked meanwhile
  }

  function see(reply) {
    state = reply;
    if (reply.id === null) wanted = null;  // somebody deleted it: the next look shows the newest
    else if (reply.pair) wanted = reply.id;  // a newer test does not take the place of what somebody judges
    if (reply.pair || reply.waiting) { begun = true; place(); }
    others.textContent = company(reply.others);
    const key = JSON.stringify({ ...reply, losing: '', others: null });  // what others say must not draw anew what somebody reads
    if (key === drawn) return;
    drawn = key;
    stage.replaceChildren(...parts());
    pick();
    busy();
  }

  // "3 others: 2 done, 1 at it"; "" where there are none.
  function company({ done = 0, at_it: going = 0 } = {}) {
    const parts = [done && `${done} done`, going && `${going} at it`].filter(Boolean);
    return parts.length ? `${Lab.many(done + going, 'other')}: ${parts.join(', ')}` : '';
  }

  function pick() {
    if (!editing && controls.contains(picker) !== Boolean(tests.length)) controls.replaceChildren(...(tests.length ? [picker, Lab.operator(small('rename'), small('delete'))] : []));
    const key = JSON.stringify(tests);
    if (key !== listed) picker.replaceChildren(...tests.map(([id, words]) => el('option', { value: id }, `test ${id}: ${words}`)));
    listed = key;
    if (state?.id) picker.value = state.id;
  }

  const small = (what) => el(`button.lab-button.small${what === 'delete' ? '.danger' : ''}`, { type: 'button', 'data-do': `blind-${what}`, title: what === 'delete' ? 'asks first' : null, onclick: () => edit(what) }, what === 'delete' ? 'Delete' : 'Rename');

  async function edit(what) {
    if (!state?.id) return;
    await look();  // how many have answered by now
    if (!state?.id) return;
    const id = state.id, name = tests.find(([one]) => one === id)?.[1] ?? '', change = (more) => act('manage', { test: id, do: what, ...more });
    Lab.tell(notice, '');
    editing = what;
    controls.replaceChildren(what === 'rename' ? Lab.nameField(name, `new name of test ${id}`, 'blind-name', {}, (words) => change({ name: words }), leave)
      : Lab.deleteField(`Delete test ${id} for good, ${state.losing}?`, 'blind-delete', {}, () => change({}), leave));
    controls.querySelector('input, button').focus();
  }

  function leave() {
    const what = editing;
    editing = '';
    if (what) controls.replaceChildren();
    pick();
    if (what) controls.querySelector(`[data-do=blind-${what}]`)?.focus();
  }

  function parts() {
    if (state.id === null) return [];
    if (state.failed) return [el('p.lab-notice.bad', { role: 'alert' }, `It could not be written: ${state.failed} Begin another one.`)];
    if (state.waiting) return [el('p.muted', { role: 'status' }, `The engine writes for ${state.names.join(' and ')} …`)];
    if (state.pair) return judging(state.pair);
    if (state.closed) return [el('p.muted', {}, state.closed), beside()];
    return result();
  }

  const beside = () => el('div.lab-row.beside', {}, state.left_out ? el('span.muted', { 'data-do': 'blind-left-out' }, state.left_out) : null, others);
  const choice = (side, words, key) => el('button.lab-button', { type: 'button', 'data-do': `blind-${side}`, onclick: () => prefer(side) }, words, el('kbd', {}, key));

  function judging(pair) {
    const side = (name, words, key) => el(`div.lab-card.side.${name}`, {}, el('p.lab-text.lab-scroll', { dir: 'auto' }, pair[name] || '(nothing)'), choice(name, words, key));
    return [
      el('div.lab-row', {}, el('strong', { 'data-judged': state.judged }, `${state.judged + 1} of ${state.count}`), el('span.muted', {}, state.names.join(' against '), state.alike ? `; ${Lab.many(state.alike, 'pair')} alike left out` : ''), beside()),
      el('p.lab-text.asked.lab-scroll', { dir: 'auto' }, pair.prompt),
      el('div.sides', {}, side('left', 'This one', '1'), side('right', 'This one', '2')),
      el('div.lab-row', {}, choice('tie', 'No difference', '0'), el('span.lab-grow'),
        el('button.lab-button.small', { type: 'button', 'data-do': 'blind-stop', title: 'the rest is left out, and whose texts they were is told', onclick: stop }, 'Stop here and tell')),
    ];
  }

  function result() {
    const rows = state.rows.map((row) => el('tr', {}, el('td', {}, el('p.lab-text', { dir: 'auto' }, row.prompt)),
      ...['first', 'second'].map((which) => el('td', {}, el('p.lab-text', { dir: 'auto' }, row[which]), row.choice === which ? el('span.lab-badge.good', {}, 'you chose this') : row.choice === 'tie' && which === 'second' ? el('span.lab-badge', {}, 'no difference') : null))));
    const head = el('tr', {}, el('th', {}, 'prompt'), ...state.names.map((name) => el('th', {}, name)));
    return [
      el('div.told', { 'data-do': 'blind-result', role: 'status' }, ...state.lines.map((line, i) => el(i ? 'p' : 'p.main', {}, line))),
      beside(),
      rows.length ? el('details', {}, el('summary.muted', {}, 'The pairs, with their names'), el('div.lab-scroll', {}, el('table', {}, el('thead', {}, head), el('tbody', {}, ...rows)))) : null,
    ].filter(Boolean);
  }

  document.addEventListener('keydown', (event) => {
    const side = { 1: 'left', ArrowLeft: 'left', 2: 'right', ArrowRight: 'right', 0: 'tie', '=': 'tie' }[event.key];
    if (!side || !state?.pair || stage.offsetParent === null || !Lab.isOurKey(event)) return;
    event.preventDefault();
    prefer(side);
  });

  // With every look at what can be compared. there: the project's tests, if they are others than before.
  function offered(there = tests, other = false) {
    if (other) { begun = false; place(); leave(); wanted = null; state = null; drawn = ''; stage.replaceChildren(); Lab.tell(notice, ''); }
    tests = there;
    pick();
    look();
  }

  root.append(card);
  narrow.addEventListener('change', place);
  return { card, take, offered, follow: () => { if (state?.waiting) look(); } };
});

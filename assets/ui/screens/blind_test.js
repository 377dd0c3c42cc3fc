// The blind test on the screen "Compare": which of two texts is better. The models are named when all pairs are judged.
// fetchState({test_id, annotator}) -> the test's state (ui/screens/blind_test.py); trigger: sends an event; getRequest(): the form's models and settings.
window.LabBlindTest = window.LabBlindTest || (({ root, fetchState, trigger, getRequest }) => {
  const { el } = Lab;
  let state = null, selectedId = null, tests = [], drawnKey = '', pendingId = null, pendingName = '', isResend = false, replyCount = 0, isFetching = false, editing = '', listedKey = '';
  const narrowScreen = matchMedia('(max-width: 640px)');
  const REPLY_TIMEOUT_MS = 6000, KEPT = 'rlhf-lab-blind-answer', STORED = 'Your last answer is stored now.';

  const pairCount = el('input.lab-input', { type: 'text', inputmode: 'numeric', value: '20', 'aria-label': 'pairs', 'data-do': 'blind-pairs' });
  const beginButton = el('button.lab-button', { type: 'button', 'data-do': 'blind-begin', onclick: startTest }, 'Begin a blind test');
  const estimate = el('span.muted', { 'data-do': 'blind-estimate' });
  const picker = el('select.lab-input', { 'aria-label': 'blind test', 'data-do': 'blind-pick', onchange: () => { selectedId = Number(picker.value); state = null; stopEditing(); refresh(); } });
  const controls = el('div.lab-row.controls');
  const notice = el('p.lab-notice', { hidden: true, 'data-do': 'blind-notice' });
  const stage = el('div.stage');
  const others = el('span.muted', { 'data-do': 'blind-others', title: 'done: no pair is left for them to judge' });
  const card = el('section.lab-card.blind', { 'aria-label': 'blind test' },
    el('div.lab-row', {}, el('h2', {}, 'Blind test'), el('span.lab-grow'), controls),
    notice, stage,
    el('p.muted.about', {}, 'Both models of the first two columns write to prompts that nothing was trained on; you say which text is better, and learn whose it was when all are judged. The reward model can be fooled by what PPO found; you are asked instead. Nothing learns from these answers.'),
    Lab.operatorNotice('Only the operator begins and changes blind tests here; you can judge their pairs.'),
    el('div.lab-row.new', {}, Lab.operatorOnly(el('label.lab-row', {}, el('span.muted', {}, 'pairs'), pairCount), beginButton), estimate));

  // Once started, it comes first on a phone.
  let hasStarted = false;
  function placeCard() {
    const goesFirst = hasStarted && narrowScreen.matches, focused = card.contains(document.activeElement) ? document.activeElement : null;
    if ((root.firstElementChild === card) === goesFirst) return;
    root[goesFirst ? 'prepend' : 'append'](card);
    focused?.focus({ preventScroll: true });
  }

  // onNoReply(): says what became of it. Gradio may reload the page when the connection is lost, so the words are kept for the tab.
  function send(name, fields, onNoReply) {
    if (pendingId) return;
    pendingId = Date.now();
    pendingName = name;
    const requestId = pendingId;
    showNoReply('');
    updateButtons();
    trigger(name, { request_id: pendingId, annotator: Lab.annotator(), ...fields });
    setTimeout(() => { if (pendingId === requestId) { pendingId = null; onNoReply(); updateButtons(); refresh(); } }, REPLY_TIMEOUT_MS);
  }

  function showNoReply(text) { Lab.setItem('blind-notice', text); Lab.showNotice(notice, text); }

  function startTest() { send('start_test', { ...getRequest(), pairs: pairCount.value }, () => showNoReply('The lab does not reply, so the blind test may not have begun. Before you begin it again, look whether it is in the list of tests.')); }

  // An answer is kept by this browser until the lab has replied. When the lab can be reached again and still asks for that pair, it is sent again.
  function answer(side) {
    if (!state?.pair || pendingId) return;
    localStorage.setItem(KEPT, JSON.stringify({ by: state.annotator, test_id: state.id, pair: state.pair, choice: side }));
    isResend = false;
    sendAnswer(side);
  }
  function sendAnswer(side) { send('answer', { test_id: state.id, position: state.pair.position, choice: side }, showKept); }
  const keptAnswer = () => JSON.parse(localStorage.getItem(KEPT) || 'null');
  function forgetAnswer() { localStorage.removeItem(KEPT); }

  function showKept() {
    if (!keptAnswer()) return;
    Lab.showNotice(notice, 'Your last answer is not stored yet. The lab does not reply. Your answer is kept, also if you close the page, and sent again until it is stored.');
    notice.append(' ', el('button.lab-button.small.lab-offline-too', { type: 'button', 'data-do': 'blind-discard', onclick: discardAnswer }, 'Discard it'));
  }

  function discardAnswer() {
    forgetAnswer();
    pendingId = null;
    updateButtons();
    showNoReply('It is no longer sent. If the lab had received it already, it counts.');
  }

  // The pair on screen is that of the kept answer: the lab never stored it.
  function resendAnswer() {
    const kept = keptAnswer();
    if (!kept || pendingId || kept.test_id !== state.id || kept.by !== state.annotator) return;
    if (['position', 'left', 'right'].every((key) => kept.pair[key] === state.pair?.[key])) { isResend = true; sendAnswer(kept.choice); showKept(); return; }
    forgetAnswer();
    Lab.showNotice(notice, STORED);
  }

  function updateButtons() { for (const button of card.querySelectorAll('button:not(.lab-offline-too)')) button.disabled = Boolean(pendingId); }

  // Returns whether the reply belongs to an event of the blind test.
  function handleReply(reply) {
    if (!reply || !pendingId || reply.request_id !== pendingId) return false;
    pendingId = null; replyCount += 1;
    const message = reply.message || (pendingName === 'answer' && isResend ? STORED : '');
    if (pendingName === 'answer') forgetAnswer();
    if (reply.error) { Lab.showNotice(notice, reply.error, true); if (reply.field === 'pairs') pairCount.focus(); refresh(); } else { tests = reply.tests || tests; selectedId = reply.test.id; show(reply.test); updatePicker(); Lab.showNotice(notice, message); if (narrowScreen.matches && !reply.message) card.scrollIntoView(); }
    updateButtons();
    return true;
  }

  async function refresh() {
    if (isFetching) return;
    isFetching = true;
    const replyCountBefore = replyCount, requestedId = selectedId;
    try {
      const reply = await Lab.unwrap(fetchState({ test_id: requestedId, annotator: Lab.annotator() }));
      if (replyCountBefore === replyCount && !pendingId && requestedId === selectedId) { show(reply); resendAnswer(); }
    } catch (error) { /* the next poll tries again */ } finally { isFetching = false; }
    if (requestedId !== selectedId && !state) await refresh();  // another test was selected meanwhile
  }

  function show(reply) {
    state = reply;
    if (reply.id === null) selectedId = null;  // it was deleted: the next poll shows the newest
    else if (reply.pair) selectedId = reply.id;  // a newer test does not replace the one being judged
    if (reply.pair || reply.is_waiting) { hasStarted = true; placeCard(); }
    others.textContent = othersText(reply.others_progress);
    const key = JSON.stringify({ ...reply, deletion_note: '', others_progress: null });  // the progress of others does not redraw a text that is being read
    if (key === drawnKey) return;
    drawnKey = key;
    stage.replaceChildren(...content());
    updatePicker();
    updateButtons();
  }

  // "3 others: 2 done, 1 at it", or "".
  function othersText({ finished = 0, in_progress: inProgress = 0 } = {}) {
    const parts = [finished && `${finished} done`, inProgress && `${inProgress} at it`].filter(Boolean);
    return parts.length ? `${Lab.plural(finished + inProgress, 'other')}: ${parts.join(', ')}` : '';
  }

  function updatePicker() {
    if (!editing && controls.contains(picker) !== Boolean(tests.length)) controls.replaceChildren(...(tests.length ? [picker, Lab.operatorOnly(editButton('rename'), editButton('delete'))] : []));
    const key = JSON.stringify(tests);
    if (key !== listedKey) picker.replaceChildren(...tests.map(([id, name]) => el('option', { value: id }, `test ${id}: ${name}`)));
    listedKey = key;
    if (state?.id) picker.value = state.id;
  }

  const editButton = (action) => el(`button.lab-button.small${action === 'delete' ? '.danger' : ''}`, { type: 'button', 'data-do': `blind-${action}`, title: action === 'delete' ? 'asks first' : null, onclick: () => startEditing(action) }, action === 'delete' ? 'Delete' : 'Rename');

  async function startEditing(action) {
    if (!state?.id) return;
    await refresh();  // get the current number of answers
    if (!state?.id) return;
    const id = state.id, name = tests.find(([one]) => one === id)?.[1] ?? '', 
      sendEdit = (fields) => send('edit_test', { test_id: id, action, ...fields }, () => showNoReply(`The lab does not reply, so test ${id} may not be ${action === 'rename' ? `called "${fields.name}"` : 'deleted'} yet. Look at it, and ${action} it again if it is not.`));
    Lab.showNotice(notice, '');
    editing = action;
    controls.replaceChildren(action === 'rename' ? Lab.nameField(name, `new name of test ${id}`, 'blind-name', {}, (newName) => sendEdit({ name: newName }), stopEditing)
      : Lab.deleteConfirmation(`Delete test ${id} for good, ${state.deletion_note}?`, 'blind-delete', {}, () => sendEdit({}), stopEditing));
    controls.querySelector('input, button').focus();
  }

  function stopEditing() {
    const action = editing;
    editing = '';
    if (action) controls.replaceChildren();
    updatePicker();
    if (action) controls.querySelector(`[data-do=blind-${action}]`)?.focus();
  }

  function content() {
    if (state.id === null) return [];
    if (state.failure) return [el('p.lab-notice.bad', { role: 'alert' }, `It could not be written: ${state.failure} Begin another one.`)];
    if (state.is_waiting) return [el('p.muted', { role: 'status' }, `The engine writes for ${state.model_names.join(' and ')} …`)];
    if (state.pair) return judgingView(state.pair);
    if (state.closed_text) return [el('p.muted', {}, state.closed_text), footnote()];
    return resultView();
  }

  const footnote = () => el('div.lab-row.beside', {}, state.skipped_note ? el('span.muted', { 'data-do': 'blind-left-out' }, state.skipped_note) : null, others);
  const choiceButton = (side, label, key) => el('button.lab-button', { type: 'button', 'data-do': `blind-${side}`, onclick: () => answer(side) }, label, el('kbd', {}, key));

  function judgingView(pair) {
    const side = (name, label, key) => el(`div.lab-card.side.${name}`, {}, el('p.lab-text.lab-scroll', { dir: 'auto' }, pair[name] || '(nothing)'), choiceButton(name, label, key));
    return [
      el('div.lab-row', {}, el('strong', { 'data-judged': state.judged_count }, `${state.judged_count + 1} of ${state.pair_count}`), el('span.muted', {}, state.model_names.join(' against '), state.identical_count ? `; ${Lab.plural(state.identical_count, 'pair')} alike left out` : ''), footnote()),
      Lab.prompt(pair.turns, '.asked.lab-scroll'),
      el('div.sides', {}, side('left', 'This one', '1'), side('right', 'This one', '2')),
      el('div.lab-row', {}, choiceButton('tie', 'No difference', '0'), el('span.lab-grow'),
        el('button.lab-button.small', { type: 'button', 'data-do': 'blind-stop', title: 'the rest is left out, and whose texts they were is told', onclick: () => answer('stop') }, 'Stop here and tell')),
    ];
  }

  function resultView() {
    const rows = state.rows.map((row) => el('tr', {}, el('td', {}, Lab.prompt(row.turns)),
      ...['first', 'second'].map((which) => el('td', {}, el('p.lab-text', { dir: 'auto' }, row[which]), row.choice === which ? el('span.lab-badge.good', {}, 'you chose this') : row.choice === 'tie' && which === 'second' ? el('span.lab-badge', {}, 'no difference') : null))));
    const head = el('tr', {}, el('th', {}, 'prompt'), ...state.model_names.map((name) => el('th', {}, name)));
    return [
      el('div.result', { 'data-do': 'blind-result', role: 'status' }, ...state.sentences.map((line, i) => el(i ? 'p' : 'p.main', {}, line))),
      footnote(),
      rows.length ? el('details', {}, el('summary.muted', {}, 'The pairs, with their names'), el('div.lab-scroll', {}, el('table', {}, el('thead', {}, head), el('tbody', {}, ...rows)))) : null,
    ].filter(Boolean);
  }

  document.addEventListener('keydown', (event) => {
    const side = { 1: 'left', ArrowLeft: 'left', 2: 'right', ArrowRight: 'right', 0: 'tie', '=': 'tie' }[event.key];
    if (!side || !state?.pair || root.querySelector('.tournament[open] .sides') || stage.offsetParent === null || !Lab.isShortcut(event)) return;
    event.preventDefault();
    answer(side);
  });

  // Called with every poll of the screen. newTests: the project's tests, if they have changed.
  function setTests(newTests = tests, projectChanged = false) {
    if (projectChanged) { hasStarted = false; placeCard(); stopEditing(); selectedId = null; state = null; drawnKey = ''; stage.replaceChildren(); Lab.showNotice(notice, ''); }
    tests = newTests;
    updatePicker();
    refresh();
  }

  root.append(card);
  selectedId = keptAnswer()?.test_id ?? null;
  Lab.showNotice(notice, Lab.getItem('blind-notice'));
  narrowScreen.addEventListener('change', placeCard);
  return { handleReply, setTests, pairs: () => pairCount.value, setEstimate: (sentence) => { estimate.textContent = sentence; }, refreshIfWaiting: () => { if (state?.is_waiting) refresh(); } };
});

// The tournament on the screen "Compare": blind pairs of up to eight models, and their ranking.
// fetchState({tournament_id, annotator}) -> state (ui/screens/tournament.py); trigger: sends an event; getRequest(): the form's settings;
// chosenModels(): [[model, label]] of the columns.
window.LabTournament = window.LabTournament || (({ root, fetchState, trigger, getRequest, chosenModels }) => {
  const { el } = Lab;
  const MAX_CONTESTANTS = 8, REPLY_TIMEOUT_MS = 8000;
  let state = null, selectedId = null, drawnKey = '', pendingId = null, isFetching = false, contestants = null, replyCount = 0;

  const field = (name, value) => el('input.lab-input', { type: 'text', inputmode: 'numeric', value, 'aria-label': name, 'data-do': `tournament-${name}` });
  const promptCount = field('prompts', '24');
  const chips = el('div.lab-row.chips', { 'data-do': 'tournament-contestants' });
  const beginButton = el('button.lab-button', { type: 'button', 'data-do': 'tournament-begin', onclick: start }, 'Begin a tournament');
  const addButton = el('button.lab-button.small', { type: 'button', 'data-do': 'tournament-add', onclick: addChosen }, 'Add the models chosen above');
  const notice = el('p.lab-notice', { hidden: true, 'data-do': 'tournament-notice' });
  const stage = el('div.stage'), ranking = el('div.ranking'), controls = el('div.lab-row.controls');
  const note = el('span.muted', { 'data-do': 'tournament-note' });
  const fold = el('details.lab-card.tournament', { ontoggle: () => { drawnKey = ''; refresh(); } },
    el('summary', {}, el('strong', {}, 'Tournament'), el('span.muted', {}, ' ranks several models by blind choices')),
    el('div.inside', {}, controls, notice, stage, ranking,
      el('p.muted.about', {}, 'Up to eight models answer the same prompts. You say which of two texts is better and do not see whose they are; the next pair is the one that tells most about the ranking. Several people can judge at once. Nothing learns from these answers.'),
      Lab.operatorNotice('Only the operator begins and deletes tournaments here; you can judge their pairs.'),
      Lab.operatorOnly(el('div.new', {}, chips, el('div.lab-row', {}, addButton, el('label.lab-row', {}, el('span.muted', {}, 'prompts'), promptCount), beginButton)))));

  function send(name, fields) {
    if (pendingId) return;
    const requestId = pendingId = Date.now();
    Lab.showNotice(notice, '');
    updateButtons();
    trigger(name, { request_id: requestId, annotator: Lab.annotator(), ...fields });
    setTimeout(() => {
      if (pendingId !== requestId) return;
      pendingId = null;
      Lab.showNotice(notice, 'The lab does not reply. If your answer was not stored, its pair is shown again.', true);
      updateButtons();
      refresh();
    }, REPLY_TIMEOUT_MS);
  }

  function start() {
    const { seed, max_new_tokens, reward_model_id } = getRequest();
    send('start_tournament', { contestants: contestants.map(([model]) => model), prompts: promptCount.value, seed, max_new_tokens, reward_model_id });
  }
  const answer = (choice) => { if (state?.pair) send('judge_pair', { tournament_id: state.id, token: state.pair.token, choice }); };
  const next = () => send('judge_pair', { tournament_id: state.id });

  function updateButtons() {
    for (const button of fold.querySelectorAll('button')) button.disabled = Boolean(pendingId);
    beginButton.disabled ||= (contestants || []).length < 2;
    addButton.disabled ||= (contestants || []).length >= MAX_CONTESTANTS;
  }

  // ---- contestants

  const canCompete = ([model]) => !model.startsWith('base/best/') || model === 'base/best/4';
  function addChosen() {
    for (const one of chosenModels().filter(canCompete)) if (contestants.length < MAX_CONTESTANTS && !contestants.some(([model]) => model === one[0])) contestants.push(one);
    drawContestants();
  }
  function drawContestants() {
    chips.replaceChildren(...contestants.map(([model, label], i) => el('span.lab-badge', {}, label,
      el('button.remove', { type: 'button', 'aria-label': `remove ${label}`, onclick: () => { contestants.splice(i, 1); drawContestants(); } }, '×'))));
    updateButtons();
  }
  // The models that a tournament is proposed with, until somebody changes them. areRewardModels: best of 4 can be sampled.
  function setProposal(areRewardModels) {
    if (contestants) return;
    contestants = chosenModels().filter(canCompete);
    if (areRewardModels && !contestants.some(([model]) => model === 'base/best/4')) contestants.splice(1, 0, ['base/best/4', 'base, best of 4']);
    drawContestants();
  }

  // ---- state

  // Returns whether the reply belongs to an event of the tournament.
  function handleReply(reply) {
    if (!reply || !pendingId || reply.request_id !== pendingId) return false;
    pendingId = null; replyCount += 1;
    if (reply.error) { Lab.showNotice(notice, reply.error, true); if (reply.field === 'prompts') promptCount.focus(); refresh(); }
    else { selectedId = reply.tournament.id; show(reply.tournament); }
    updateButtons();
    return true;
  }

  async function refresh() {
    if (isFetching || !fold.open) return;
    isFetching = true;
    const repliesBefore = replyCount, requestedId = selectedId;
    try {
      const reply = await Lab.unwrap(fetchState({ tournament_id: requestedId, annotator: Lab.annotator() }));
      if (repliesBefore === replyCount && !pendingId && requestedId === selectedId) show(reply);
    } catch (error) { /* the next poll tries again */ } finally { isFetching = false; }
  }

  function show(reply) {
    state = reply;
    if (reply.id === null) selectedId = null;
    note.textContent = reply.answers_note ? `${reply.answers_note} so far` : '';
    const key = JSON.stringify([reply.id, reply.ids, reply.is_waiting, Math.round(100 * (reply.progress || 0)), reply.failure, reply.pair, reply.own_count, reply.can_judge]);
    if (key !== drawnKey) { stage.replaceChildren(...content()); drawControls(); }
    drawnKey = key;
    drawRanking();
    updateButtons();
  }

  function drawControls() {
    if (!state.ids.length) { controls.replaceChildren(); return; }
    const picker = el('select.lab-input', { 'aria-label': 'tournament', 'data-do': 'tournament-pick', onchange: () => { selectedId = Number(picker.value); refresh(); } }, ...state.ids.map((id) => el('option', { value: id }, `tournament ${id}`)));
    picker.value = state.id;
    const remove = el('button.lab-button.small.danger', { type: 'button', 'data-do': 'tournament-delete', title: 'asks first', onclick: () => {
      const id = state.id;
      controls.replaceChildren(Lab.deleteConfirmation(`Delete tournament ${id} for good, with its texts and answers?`, 'tournament-delete', {}, () => send('delete_tournament', { tournament_id: id }), drawControls));
    } }, 'Delete');
    controls.replaceChildren(picker, Lab.operatorOnly(remove));
  }

  function content() {
    if (state.id === null) return [];
    if (state.failure) return [el('p.lab-notice.bad', { role: 'alert' }, `It could not be written: ${state.failure}`)];
    if (state.is_waiting) return [el('p.muted', { role: 'status' }, `The engine writes the texts: ${Math.round(100 * state.progress)} % …`)];
    if (!state.can_judge) return [el('p.muted', {}, 'To judge, enter with the join code.')];
    if (state.pair) return judgingView(state.pair);
    return [el('div.lab-row', {}, el('button.lab-button.lab-main', { type: 'button', 'data-do': 'tournament-next', onclick: next }, state.own_count ? 'More pairs' : 'Judge pairs'),
      el('span.muted', {}, state.own_count ? 'No pair is left for you at this moment.' : ''))];
  }

  const choiceButton = (choice, label, key, classes = '') => el(`button.lab-button${classes}`, { type: 'button', 'data-do': `tournament-${choice}`, onclick: () => answer(choice) }, label, el('kbd', {}, key));
  function judgingView(pair) {
    const side = (name, key) => el(`div.lab-card.side.${name}`, {}, el('p.lab-text.lab-scroll', { dir: 'auto' }, pair[name] || '(nothing)'), choiceButton(name, 'This one', key));
    return [
      el('div.lab-row', {}, el('strong', { 'data-judged': state.own_count }, `Your answer ${state.own_count + 1}`), note),
      Lab.prompt(pair.turns, '.asked.lab-scroll'),
      el('div.sides', {}, side('left', '1'), side('right', '2')),
      el('div.lab-row.others', {}, choiceButton('tie', 'No difference', '0'), choiceButton('both_bad', 'Both bad', 'X'), choiceButton('skip', 'Skip', 'S')),
    ];
  }

  // ---- ranking

  const rankingFold = el('details', {}, el('summary', {}, 'Ranking so far'));
  const tables = el('div.tables');
  rankingFold.append(tables);
  const cell = (text, title = null) => el('td', { title }, text);
  const signed = (value) => (value === null ? '–' : Lab.number(value));
  function drawRanking() {
    if (!state.ranking) { ranking.replaceChildren(); return; }
    if (!ranking.contains(rankingFold)) ranking.replaceChildren(rankingFold);
    const { rows, wins } = state.ranking, key = JSON.stringify(state.ranking);
    if (tables.dataset.key === key) return;
    tables.dataset.key = key;
    const head = (...names) => el('thead', {}, el('tr', {}, ...names.map((name) => el('th', { scope: 'col' }, name))));
    const hasGold = rows.some((row) => row.gold !== null);
    const scoreText = (row) => (row.is_reference ? '0 (what the others are measured from)' : `${signed(row.score)} (${signed(row.low)} to ${signed(row.high)})`);
    const standings = rows.map((row, i) => el('tr', {}, el('th', { scope: 'row' }, `${i + 1}. ${row.name}`), cell(scoreText(row)), cell(signed(row.kl)), cell(signed(row.reward)), hasGold ? cell(signed(row.gold)) : null));
    const share = (i, j) => { const total = wins[i][j] + wins[j][i]; return i === j ? cell('') : total ? cell(`${Math.round(100 * wins[i][j] / total)} %`, `${wins[i][j]} of ${total} answers, ties count half`) : cell('–', 'no answer yet'); };
    const matrix = rows.map((row, i) => el('tr', {}, el('th', { scope: 'row' }, row.name), ...rows.map((_, j) => share(i, j))));
    tables.replaceChildren(
      el('div.lab-scroll', { tabindex: '0', role: 'group', 'aria-label': 'ranking' }, el('table', { 'data-do': 'tournament-ranking' }, head('model', 'score (95 % interval)', 'KL', 'reward', ...(hasGold ? ['gold'] : [])), el('tbody', {}, ...standings))),
      el('p.muted', {}, 'Score 0 is as good as the base model, +1 is liked better than it in 73 % of pairs, +2 in 88 %. Models whose intervals overlap a lot may be equally good. KL, reward and gold are means over the texts of this tournament.'),
      el('h3', {}, 'How often the row is liked better than the column'),
      el('div.lab-scroll', { tabindex: '0', role: 'group', 'aria-label': 'win rates' }, el('table', { 'data-do': 'tournament-matrix' }, head('', ...rows.map((row) => row.name)), el('tbody', {}, ...matrix))));
  }

  document.addEventListener('keydown', (event) => {
    const choice = { 1: 'left', ArrowLeft: 'left', 2: 'right', ArrowRight: 'right', 0: 'tie', '=': 'tie', x: 'both_bad', s: 'skip' }[event.key.toLowerCase()] || { ArrowLeft: 'left', ArrowRight: 'right' }[event.key];
    if (!choice || !fold.open || !state?.pair || fold.offsetParent === null || !Lab.isShortcut(event)) return;
    event.preventDefault();
    answer(choice);
  });

  // Called with every poll of the screen.
  function update(areRewardModels, projectChanged = false) {
    if (projectChanged) { selectedId = null; state = null; drawnKey = ''; contestants = null; stage.replaceChildren(); ranking.replaceChildren(); controls.replaceChildren(); Lab.showNotice(notice, ''); }
    setProposal(areRewardModels);
    refresh();
  }

  root.append(fold);
  return { handleReply, update, refreshIfWaiting: () => { if (state?.is_waiting) refresh(); } };
});

// The tournament on the screen "Compare": blind pairs of up to eight models, and their ranking.
// fetchState({tournament_id, annotator}) -> state (api.py); trigger: sends an event; getRequest():
// the form's settings; chosenModels(): [[model, label]] of the columns.
import { createBlindPairs } from '../blind_pairs.js';
import { deleteConfirmation, el, tableHead } from '../../shared/dom.js';
import { plural } from '../../shared/format.js';
import { getItem, operatorNotice, operatorOnly, setItem } from '../../shared/session.js';

const fixed = (value) => (value === null ? '–' : value.toFixed(2).replace('-', '−'));
const signed = (value) => (value > 0 ? `+${fixed(value)}` : fixed(value));

// The score of a row of the ranking with its 95 % interval; null stands for what the answers do not determine.
export function scoreText({ is_reference: isReference, score, low, high }) {
  if (isReference) return '0 (reference)';
  if (score === null) return 'not compared';
  if (low === null && high === null) return 'too few answers';
  if (high === null) return `above ${signed(low)}`;
  if (low === null) return `below ${signed(high)}`;
  return `${signed(score)} (${signed(low)} to ${signed(high)})`;
}

export function createTournament({ root, fetchState, trigger, getRequest, chosenModels }) {
  const MAX_CONTESTANTS = 8;
  let drawnKey = '';
  let contestants = null;

  const field = (name, value) =>
    el('input.lab-input', {
      type: 'text',
      inputmode: 'numeric',
      value,
      'aria-label': name,
      'data-do': `tournament-${name}`,
    });
  const promptCount = field('prompts', '24');
  const chips = el('div.lab-row.chips', { 'data-do': 'tournament-contestants' });
  const beginButton = el(
    'button.lab-button',
    { type: 'button', 'data-do': 'tournament-begin', onclick: start },
    'Start a tournament',
  );
  const addButton = el(
    'button.lab-button.small',
    { type: 'button', 'data-do': 'tournament-add', onclick: addChosen },
    'Add the models chosen above',
  );
  const estimate = el('span.muted', { 'data-do': 'tournament-estimate' });
  const notice = el('p.lab-notice', { hidden: true, 'data-do': 'tournament-notice' });
  const stage = el('div.stage');
  const ranking = el('div.ranking');
  const controls = el('div.lab-row.controls');
  const note = el('span.muted', { 'data-do': 'tournament-note' });
  const fold = el(
    'details.lab-card.tournament.blind-pairs',
    {
      open: getItem('tournament-open') === 'true',
      ontoggle: () => {
        setItem('tournament-open', fold.open);
        drawnKey = '';
        refresh();
      },
    },
    el(
      'summary',
      {},
      el('strong', {}, 'Tournament'),
      el('span.muted', {}, ' ranks several models by blind comparisons'),
    ),
    el(
      'div.inside',
      {},
      controls,
      notice,
      stage,
      ranking,
      el(
        'p.muted.about',
        {},
        'Up to eight models answer the same prompts. You choose the better of two texts without knowing ' +
          'which models wrote them; the next pair is the one that is most informative about the ranking. ' +
          'Several people can judge at the same time. Nothing is trained on these answers.',
      ),
      operatorNotice('Only the operator can start and delete tournaments; you can judge their pairs.'),
      operatorOnly(
        el(
          'div.new',
          {},
          el('strong', {}, 'New tournament'),
          chips,
          el(
            'div.lab-row',
            {},
            addButton,
            el('label.lab-row', {}, el('span.muted', {}, 'prompts'), promptCount),
            beginButton,
            estimate,
          ),
        ),
      ),
    ),
  );

  const pairs = createBlindPairs({
    name: 'tournament',
    idName: 'tournament_id',
    answerEvent: 'judge_pair',
    card: fold,
    stage,
    notice,
    trigger,
    fetchState,
    show,
    choiceByKey: { x: 'both_bad', s: 'skip' },
    updateButtons,
    isShown: () => fold.open,
  });
  const { send, refresh, showNoReply, choiceButton } = pairs;

  const settings = () => ({ contestants: (contestants || []).map(([model]) => model), prompts: promptCount.value });
  function start() {
    const { seed, max_new_tokens, reward_model_id } = getRequest();
    send('start_tournament', { ...settings(), seed, max_new_tokens, reward_model_id }, () =>
      showNoReply(
        'The lab does not reply, so the tournament may not have started. Check the list of tournaments ' +
          'before you start it again.',
      ),
    );
  }
  const next = () =>
    send('judge_pair', { tournament_id: pairs.state.id }, () =>
      showNoReply('The lab does not reply. Press the button again.'),
    );

  function updateButtons() {
    beginButton.disabled ||= (contestants || []).length < 2;
    addButton.disabled ||= (contestants || []).length >= MAX_CONTESTANTS;
  }

  // ---- contestants

  const canCompete = ([model]) => !model.startsWith('base/best/') || model === 'base/best/4';
  function addChosen() {
    for (const one of chosenModels().filter(canCompete)) {
      if (contestants.length < MAX_CONTESTANTS && !contestants.some(([model]) => model === one[0])) {
        contestants.push(one);
      }
    }
    drawContestants();
  }
  function drawContestants() {
    chips.replaceChildren(
      ...contestants.map(([, label], i) =>
        el(
          'span.lab-badge',
          {},
          label,
          el(
            'button.remove',
            {
              type: 'button',
              'aria-label': `remove ${label}`,
              onclick: () => {
                contestants.splice(i, 1);
                drawContestants();
              },
            },
            '×',
          ),
        ),
      ),
    );
    pairs.drawButtons();
  }
  // The proposed models of a tournament, until a person changes them. areRewardModels: whether there are reward models,
  // which best of 4 needs.
  function setProposal(areRewardModels) {
    if (contestants) return;
    contestants = chosenModels().filter(canCompete);
    if (areRewardModels && !contestants.some(([model]) => model === 'base/best/4')) {
      contestants.splice(1, 0, ['base/best/4', 'base, best of 4']);
    }
    drawContestants();
  }

  // ---- state

  // Returns whether the reply belongs to an event of the tournament.
  function handleReply(reply) {
    if (!pairs.handleReply(reply)) return false;
    if (reply.field === 'prompts') promptCount.focus();
    return true;
  }

  function show() {
    const { state } = pairs;
    note.textContent = state.answers_note ? `${state.answers_note} so far` : '';
    // answers of others must not redraw a text that is being read
    const key = JSON.stringify({ ...state, answers_note: '', ranking: null });
    if (key !== drawnKey) {
      stage.replaceChildren(...content(state));
      drawControls();
    }
    drawnKey = key;
    drawRanking(state.ranking);
    pairs.drawButtons();
  }

  function drawControls() {
    const { id, ids } = pairs.state;
    if (!ids.length) {
      controls.replaceChildren();
      return;
    }
    const picker = el(
      'select.lab-input',
      {
        'aria-label': 'tournament',
        'data-do': 'tournament-pick',
        onchange: () => {
          pairs.selectedId = Number(picker.value);
          refresh();
        },
      },
      ...ids.map((one) => el('option', { value: one }, `tournament ${one}`)),
    );
    picker.value = id;
    const remove = el(
      'button.lab-button.small.danger',
      {
        type: 'button',
        'data-do': 'tournament-delete',
        title: 'asks first',
        onclick: () => {
          controls.replaceChildren(
            deleteConfirmation(
              `Delete tournament ${id} permanently, with its texts and answers?`,
              'tournament-delete',
              {},
              () =>
                send('delete_tournament', { tournament_id: id }, () =>
                  showNoReply(
                    `The lab does not reply, so tournament ${id} may not be deleted yet. Check it, and ` +
                      'delete it again if necessary.',
                  ),
                ),
              drawControls,
            ),
          );
        },
      },
      'Delete',
    );
    controls.replaceChildren(picker, operatorOnly(remove));
  }

  function content(state) {
    if (state.id === null) return [];
    if (state.failure) {
      return [el('p.lab-notice.bad', { role: 'alert' }, `Its texts could not be written: ${state.failure}`)];
    }
    if (state.is_waiting) {
      return [
        el('p.muted', { role: 'status' }, `The engine is writing the texts: ${Math.round(100 * state.progress)} % …`),
      ];
    }
    if (!state.can_judge) return [el('p.muted', {}, 'To judge, log in with the join code.')];
    if (state.pair) return judgingView(state);
    return [
      el(
        'div.lab-row',
        {},
        el(
          'button.lab-button.lab-main',
          { type: 'button', 'data-do': 'tournament-next', onclick: next },
          state.own_count ? 'More pairs' : 'Judge pairs',
        ),
        el('span.muted', {}, state.pause_note || (state.own_count ? 'No pair is left for you at this moment.' : '')),
      ),
    ];
  }

  const judgingView = (state) =>
    pairs.view(
      [el('strong', { 'data-judged': state.own_count }, `Your answer ${state.own_count + 1}`), note],
      [choiceButton('both_bad', 'Both bad', 'X'), choiceButton('skip', 'Skip', 'S')],
    );

  // ---- ranking

  const rankingFold = el('details', {}, el('summary'));
  const tables = el('div.tables');
  rankingFold.append(tables);
  const cell = (text, title = null) => el('td', { title }, text);
  function drawRanking(standings) {
    if (!standings) {
      ranking.replaceChildren();
      return;
    }
    if (!ranking.contains(rankingFold)) ranking.replaceChildren(rankingFold);
    const { rows, wins } = standings;
    rankingFold.querySelector('summary').textContent = `Ranking after ${plural(standings.answers, 'answer')}`;
    const key = JSON.stringify(standings);
    if (tables.dataset.key === key) return;
    tables.dataset.key = key;
    const hasGold = rows.some((row) => row.gold !== null);
    const scores = rows.map((row, i) =>
      el(
        'tr',
        {},
        el('th', { scope: 'row' }, row.score === null ? row.name : `${i + 1}. ${row.name}`),
        el('td.score', {}, scoreText(row)),
        cell(fixed(row.kl)),
        cell(fixed(row.reward)),
        hasGold ? cell(fixed(row.gold)) : null,
      ),
    );
    const share = (i, j) => {
      const total = wins[i][j] + wins[j][i];
      return i === j
        ? cell('')
        : total
          ? cell(
              `${Math.round((100 * wins[i][j]) / total)}\u00a0%`,
              `${wins[i][j]} of ${total} answers, ties count half`,
            )
          : cell('–', 'no answer yet');
    };
    const matrix = rows.map((row, i) =>
      el('tr', {}, el('th', { scope: 'row' }, row.name), ...rows.map((_, j) => share(i, j))),
    );
    tables.replaceChildren(
      el(
        'div.lab-scroll',
        { tabindex: '0', role: 'group', 'aria-label': 'ranking' },
        el(
          'table',
          { 'data-do': 'tournament-ranking' },
          tableHead(['model', 'score (95 % interval)', 'KL', 'reward', ...(hasGold ? ['gold'] : [])]),
          el('tbody', {}, ...scores),
        ),
      ),
      el(
        'p.muted',
        {},
        'A model with score 0 is as good as the base model; with +1 it is preferred to the base in 73 % of ' +
          'pairs, with +2 in 88 %. Models with strongly overlapping intervals may be equally good. More prompts ' +
          'make the intervals narrower; more people who judge the same pairs hardly do. "Above" and "below": the ' +
          'model has not lost (or not won) a comparison yet, so its score has no limit on the other side. "Not ' +
          'compared": no answers connect the model to the base model yet, so it has no place. KL, reward and gold ' +
          'are means over the texts of this tournament. While somebody judges, the ranking stays as it was, so that ' +
          'it does not say which models the answers were about. New answers are added when nobody has judged for ten ' +
          'minutes, or no pair is left.',
      ),
      el('h3', {}, 'How often the row is preferred to the column'),
      el(
        'div.lab-scroll',
        { tabindex: '0', role: 'group', 'aria-label': 'win rates' },
        el(
          'table',
          { 'data-do': 'tournament-matrix' },
          tableHead(['', ...rows.map((row) => row.name)]),
          el('tbody', {}, ...matrix),
        ),
      ),
    );
  }

  // Called with every poll of the screen.
  function update(areRewardModels, projectChanged = false) {
    if (projectChanged) {
      pairs.reset();
      drawnKey = '';
      contestants = null;
      ranking.replaceChildren();
      controls.replaceChildren();
    }
    setProposal(areRewardModels);
    refresh();
  }

  root.append(fold);
  return {
    handleReply,
    update,
    settings,
    setEstimate: (sentence) => {
      estimate.textContent = sentence;
    },
    refreshIfWaiting: () => {
      if (pairs.state?.is_waiting) refresh();
    },
  };
}

// The blind test on the screen "Compare": which of two texts is better. The models are named when all pairs are judged,
// in a lab of several people when the operator ends the test.
// fetchState({test_id, annotator}) -> the test's state (ui/compare/blind_test/api.py); trigger: sends an event;
// getRequest(): the form's models and settings.
import { createBlindPairs } from '../blind_pairs.js';
import { deleteConfirmation, el, nameField, promptView, showNotice } from '../../shared/dom.js';
import { plural } from '../../shared/format.js';
import { operatorNotice, operatorOnly } from '../../shared/session.js';

export function createBlindTest({ root, fetchState, trigger, getRequest }) {
  let tests = [];
  let drawnKey = '';
  let editing = '';
  let listedKey = '';
  const narrowScreen = matchMedia('(max-width: 640px)');

  const pairCount = el('input.lab-input', {
    type: 'text',
    inputmode: 'numeric',
    value: '20',
    'aria-label': 'pairs',
    'data-do': 'blind-pairs',
  });
  const beginButton = el(
    'button.lab-button',
    { type: 'button', 'data-do': 'blind-begin', onclick: startTest },
    'Start a blind test',
  );
  const estimate = el('span.muted', { 'data-do': 'blind-estimate' });
  const picker = el('select.lab-input', {
    'aria-label': 'blind test',
    'data-do': 'blind-pick',
    onchange: () => {
      pairs.selectedId = Number(picker.value);
      pairs.state = null;
      stopEditing();
      refresh();
    },
  });
  const controls = el('div.lab-row.controls');
  const notice = el('p.lab-notice', { hidden: true, 'data-do': 'blind-notice' });
  const stage = el('div.stage');
  const others = el('span.muted', { 'data-do': 'blind-others', title: 'done: they have judged all pairs' });
  const card = el(
    'section.lab-card.blind.blind-pairs',
    { 'aria-label': 'blind test' },
    el('div.lab-row', {}, el('h2', {}, 'Blind test'), el('span.lab-grow'), controls),
    notice,
    stage,
    el(
      'p.muted.about',
      {},
      'The models of the first two columns answer held-out prompts. You choose the better text without ' +
        'knowing which model wrote it; the result is shown when all pairs are judged, in a lab of several people ' +
        'when the operator ends the test. PPO may exploit errors ' +
        'of the reward model, so a human judgement is the better test. Nothing is trained on these answers.',
    ),
    operatorNotice('Only the operator can start and change blind tests; you can judge their pairs.'),
    el(
      'div.lab-row.new',
      {},
      operatorOnly(el('label.lab-row', {}, el('span.muted', {}, 'pairs'), pairCount), beginButton),
      estimate,
    ),
  );

  // A test that was started in this page is shown first on a phone.
  let hasStarted = false;
  function placeCard() {
    const goesFirst = hasStarted && narrowScreen.matches;
    const focused = card.contains(document.activeElement) ? document.activeElement : null;
    if ((root.firstElementChild === card) === goesFirst) return;
    root[goesFirst ? 'prepend' : 'append'](card);
    focused?.focus({ preventScroll: true });
  }

  const pairs = createBlindPairs({
    name: 'blind',
    idName: 'test_id',
    answerEvent: 'answer',
    card,
    stage,
    notice,
    trigger,
    fetchState,
    show,
    mayUseKeys: () => !root.querySelector('.tournament[open] .sides'),
  });
  const { send, refresh, showNoReply } = pairs;

  function startTest() {
    send('start_test', { ...getRequest(), pairs: pairCount.value }, () =>
      showNoReply(
        'The lab does not reply, so the blind test may not have started. Check the list of tests before you ' +
          'start it again.',
      ),
    );
  }

  // Returns whether the reply belongs to an event of the blind test.
  function handleReply(reply) {
    if (!pairs.handleReply(reply)) return false;
    if (reply.field === 'pairs') pairCount.focus();
    if (reply.error) return true;
    tests = reply.tests || tests;
    updatePicker();
    if (narrowScreen.matches && !reply.message) card.scrollIntoView();
    return true;
  }

  function show() {
    const { state } = pairs;
    if (state.pair || state.is_waiting) {
      hasStarted = true;
      placeCard();
    }
    others.textContent = othersText(state.others_progress);
    // progress of others must not redraw a text that is being read
    const key = JSON.stringify({ ...state, deletion_note: '', others_progress: null });
    if (key === drawnKey) return;
    drawnKey = key;
    stage.replaceChildren(...content(state));
    updatePicker();
    pairs.drawButtons();
  }

  // The progress of other people as a text; '' if there are none.
  function othersText({ finished = 0, in_progress: inProgress = 0 } = {}) {
    const parts = [finished && `${finished} done`, inProgress && `${inProgress} in progress`].filter(Boolean);
    return parts.length ? `${plural(finished + inProgress, 'other')}: ${parts.join(', ')}` : '';
  }

  function updatePicker() {
    if (!editing && controls.contains(picker) !== Boolean(tests.length)) {
      controls.replaceChildren(
        ...(tests.length ? [picker, operatorOnly(editButton('rename'), editButton('delete'))] : []),
      );
    }
    const key = JSON.stringify(tests);
    if (key !== listedKey) {
      picker.replaceChildren(...tests.map(([id, name]) => el('option', { value: id }, `test ${id}: ${name}`)));
    }
    listedKey = key;
    if (pairs.state?.id) picker.value = pairs.state.id;
  }

  const editButton = (action) =>
    el(
      `button.lab-button.small${action === 'delete' ? '.danger' : ''}`,
      {
        type: 'button',
        'data-do': `blind-${action}`,
        title: action === 'delete' ? 'asks first' : null,
        onclick: () => startEditing(action),
      },
      action === 'delete' ? 'Delete' : 'Rename',
    );

  async function startEditing(action) {
    if (!pairs.state?.id) return;
    await refresh(); // get the current number of answers
    if (!pairs.state?.id) return;
    const { id, deletion_note: deletionNote } = pairs.state;
    const name = tests.find(([one]) => one === id)?.[1] ?? '';
    const sendEdit = (fields) =>
      send('edit_test', { test_id: id, action, ...fields }, () =>
        showNoReply(
          `The lab does not reply, so test ${id} may not be ` +
            `${{ rename: `called "${fields.name}"`, end: 'ended', delete: 'deleted' }[action]} yet. Check it, and ` +
            `${action} it ` +
            'again if necessary.',
        ),
      );
    showNotice(notice, '');
    editing = action;
    controls.replaceChildren(
      action === 'rename'
        ? nameField(
            name,
            `new name of test ${id}`,
            'blind-name',
            {},
            (newName) => sendEdit({ name: newName }),
            stopEditing,
          )
        : deleteConfirmation(
            action === 'end'
              ? `End test ${id} for everybody? Then its result is shown, and nobody can judge its pairs.`
              : `Delete test ${id} permanently, ${deletionNote}?`,
            `blind-${action}`,
            {},
            () => sendEdit({}),
            stopEditing,
            action === 'end' ? 'End it' : 'Delete',
          ),
    );
    controls.querySelector('input, button').focus();
  }

  function stopEditing() {
    const action = editing;
    editing = '';
    if (action) controls.replaceChildren();
    updatePicker();
    if (action) controls.querySelector(`[data-do=blind-${action}]`)?.focus();
  }

  function content(state) {
    if (state.id === null) return [];
    if (state.failure) {
      return [
        el(
          'p.lab-notice.bad',
          { role: 'alert' },
          `Its texts could not be written: ${state.failure} Start another one.`,
        ),
      ];
    }
    if (state.is_waiting) {
      return [el('p.muted', { role: 'status' }, `The engine is sampling from ${state.model_names.join(' and ')} …`)];
    }
    if (state.pair) return judgingView(state);
    if (state.closed_text) return [el('p.muted', {}, state.closed_text), footnote(state)];
    return resultView(state);
  }

  const footnote = (state) =>
    el(
      'div.lab-row.beside',
      {},
      state.skipped_note ? el('span.muted', { 'data-do': 'blind-left-out' }, state.skipped_note) : null,
      others,
      state.result_waits
        ? operatorOnly(
            el(
              'button.lab-button.small',
              { type: 'button', 'data-do': 'blind-end', title: 'asks first', onclick: () => startEditing('end') },
              'End the test for everybody',
            ),
          )
        : null,
    );
  function judgingView(state) {
    return pairs.view(
      [
        el('strong', { 'data-judged': state.judged_count }, `${state.judged_count + 1} of ${state.pair_count}`),
        el(
          'span.muted',
          {},
          state.model_names.join(' against '),
          state.identical_count ? `; ${plural(state.identical_count, 'pair')} with equal texts left out` : '',
        ),
        footnote(state),
      ],
      [
        el('span.lab-grow'),
        el(
          'button.lab-button.small',
          {
            type: 'button',
            'data-do': 'blind-stop',
            title: state.result_waits
              ? 'leave out the remaining pairs'
              : 'leave out the remaining pairs and show which model wrote each text',
            onclick: () => pairs.answer('stop'),
          },
          state.result_waits ? 'Leave out the others' : 'Stop and show the result',
        ),
      ],
    );
  }

  function resultView(state) {
    const rows = state.rows.map((row) =>
      el(
        'tr',
        {},
        el('td', {}, promptView(row.turns)),
        ...['first', 'second'].map((which) =>
          el(
            'td',
            {},
            el('p.lab-text', { dir: 'auto' }, row[which]),
            row.choice === which
              ? el('span.lab-badge.good', {}, 'you chose this')
              : row.choice === 'tie' && which === 'second'
                ? el('span.lab-badge', {}, 'no difference')
                : null,
          ),
        ),
      ),
    );
    const head = el('tr', {}, el('th', {}, 'prompt'), ...state.model_names.map((name) => el('th', {}, name)));
    return [
      el(
        'div.result',
        { 'data-do': 'blind-result', role: 'status' },
        ...state.sentences.map((line, i) => el(i ? 'p' : 'p.main', {}, line)),
      ),
      footnote(state),
      rows.length
        ? el(
            'details',
            {},
            el('summary.muted', {}, 'The pairs, with the names of the models'),
            el('div.lab-scroll', {}, el('table', {}, el('thead', {}, head), el('tbody', {}, ...rows))),
          )
        : null,
    ].filter(Boolean);
  }

  // Called with every poll of the screen. newTests: the project's tests, if they have changed.
  function setTests(newTests = tests, projectChanged = false) {
    if (projectChanged) {
      hasStarted = false;
      placeCard();
      stopEditing();
      pairs.reset();
      drawnKey = '';
    }
    tests = newTests;
    updatePicker();
    refresh();
  }

  root.append(card);
  narrowScreen.addEventListener('change', placeCard);
  return {
    handleReply,
    setTests,
    pairs: () => pairCount.value,
    setEstimate: (sentence) => {
      estimate.textContent = sentence;
    },
    refreshIfWaiting: () => {
      if (pairs.state?.is_waiting) refresh();
    },
  };
}

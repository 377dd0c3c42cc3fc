// Screen "Label". A vote names the pair that was on screen. The next pair is shown immediately, but accepts no answer
// until the vote on the last one is stored.
import { renderMarkdown } from './markdown.js';
import { markedDiff } from '../shared/diff.js';
import { el, fitTextHeights, isShortcut, promptSection, promptView, stackedScreen, withCut } from '../shared/dom.js';
import {
  displayName,
  formatAccuracy,
  formatDifference,
  formatInterval,
  isWideInterval,
  plural,
} from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import {
  annotatorName,
  forgetRequest,
  getItem,
  keepRequest,
  keptRequests,
  newUuid,
  setItem,
} from '../shared/session.js';

const MIN_READ_MS = 300;
const REPLY_TIMEOUT_MS = 5000;
const MAX_DOUBLINGS = 3;
const SHORTCUTS = {
  left: ['1', 'ArrowLeft'],
  right: ['2', 'ArrowRight'],
  tie: ['0', '='],
  both_bad: ['x'],
  skip: ['s'],
  undo: ['u'],
  redo: ['r'],
};
const ACTION_BY_KEY = Object.fromEntries(
  Object.entries(SHORTCUTS).flatMap(([name, keys]) => keys.map((key) => [key, name])),
);
const INSTANT_POLL_MS = 80;
const MAX_INSTANT_POLLS = 60;
const MAX_GUESSES = 10;
const STRENGTHS = ['slightly', 'clearly', 'much'];
const CHOICE_LABELS = {
  left: 'left is better',
  right: 'right is better',
  tie: 'equally good',
  both_bad: 'both bad',
  skip: 'skipped',
};

// Actions that must not be sent twice: the button's label, and the part of the page's state that the action changes.
const SENT_ONCE = {
  undo: ['Undo', (state) => state.pair?.id],
  redo: ['Redo', (state) => state.pair?.id],
  judge: ['Judge labels 40 more', (state) => state.simulated],
  reset: ['Start a new project', (state) => state.project.project_created_at],
};

// The action of SENT_ONCE that has no reply yet, also after Gradio reloaded the page because the connection was lost.
function unansweredOnce() {
  return JSON.parse(getItem('once') || 'null');
}

function presenceBadge(n) {
  return el('span.lab-badge', { 'data-here': n, hidden: n < 2 }, `${n} people here`);
}

function progress(state) {
  const text =
    state.labels_to_next > 0
      ? `${state.labels_to_next} more by people and ` +
        (state.has_model ? 'the reward model is trained again' : 'a reward model is trained')
      : state.training_text;
  const share = state.next_training_at ? Math.min(1, state.labels / state.next_training_at) : 0;
  return el(
    'div.goal',
    {},
    el(
      'div.lab-row',
      {},
      el('strong', { 'data-count': state.labels }, `${plural(state.labels, 'label')} by people`),
      state.simulated ? el('span.lab-badge', {}, `${state.simulated} simulated, kept apart`) : null,
      presenceBadge(state.people_here),
      state.you.name
        ? el('span.lab-badge', { 'data-you': state.you.name }, `you are ${displayName(state.you.name)}`)
        : null,
      state.you.name ? el('a', { href: 'leave', 'data-do': 'log-out' }, 'Log out') : null,
      el('span.muted.lab-grow', { 'aria-live': 'polite' }, text),
    ),
    el(
      'div.lab-bar',
      {
        role: 'progressbar',
        'aria-label': 'labels until the next reward model',
        'aria-valuemin': 0,
        'aria-valuemax': state.next_training_at,
        'aria-valuenow': state.labels,
      },
      (() => {
        const i = el('i');
        i.style.width = `${100 * share}%`;
        return i;
      })(),
    ),
  );
}

function scoreBar(label, score) {
  const bar = el('i');
  bar.style.left = `${50 + 50 * Math.max(-1, Math.min(0, score / 3))}%`;
  bar.style.width = `${50 * Math.min(1, Math.abs(score) / 3)}%`;
  return el(
    'span.score',
    {},
    el('span.muted', {}, label),
    el('span.track', { 'aria-hidden': 'true' }, bar),
    el('b', {}, formatDifference(Number(score.toFixed(1)))),
  );
}

// Replies may arrive in another order; the newest counts stay on screen.
const COUNT_KEYS = [
  'counted_at',
  'labels',
  'simulated',
  'next_training_at',
  'labels_to_next',
  'has_model',
  'training_text',
  'active_run',
];
const counts = (reply) => Object.fromEntries(COUNT_KEYS.map((key) => [key, reply[key]]));
const pairKey = ({ pair, you, guideline, project }) => JSON.stringify([pair, you, guideline, project]);

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-label');
  const annotator = annotatorName();
  let current = null; // the state on screen
  let awaitsReply = true; // while true, no event is sent
  let lastVote = null; // the last vote sent
  let pending = null; // the vote or change that has no reply yet
  let attempts = 0; // how often a reply did not arrive
  let shownAt = 0; // when the pair came on screen
  let replyTimer = null;
  let isReadable = false; // false shortly after a pair appears: an answer could be the second half of a double click
  let readableTimer = null;
  let instant = null; // the newest figures of the instant reward model
  let instantUuid = ''; // the vote that these figures must include, and whose prediction is shown
  let instantPolls = 0;
  let guesses = []; // whether the last predictions were right, oldest first
  let countedUuid = ''; // the vote of the last prediction

  let strength = ''; // how much better, optional
  let marksDifferences = false; // whether differing words are marked
  let note = '';
  let disputes = { count: 0, pairs: [] }; // pairs that wait for an expert's decision; empty for all who are no experts

  function send(name, fields = {}) {
    if (awaitsReply) return;
    setAwaitsReply(true);
    clearTimeout(replyTimer);
    replyTimer = setTimeout(() => onTimeout(), REPLY_TIMEOUT_MS * 2 ** Math.min(attempts, MAX_DOUBLINGS));
    trigger(name, { annotator, ...fields });
  }

  // A vote or change is sent again, with growing timeouts, until it is stored (the server counts it once) or the person
  // discards it. Other actions are not repeated: the page only requests the lab's state, which shows their result.
  function onTimeout() {
    setAwaitsReply(false);
    attempts += 1;
    if (pending) {
      resend(pending);
      return;
    }
    const unanswered = unansweredOnce();
    if (unanswered) {
      showMessage(
        `The lab does not reply to "${SENT_ONCE[unanswered.name][0]}". It is not sent again automatically. ` +
          'When the lab replies, the page says whether it was done.',
      );
    }
    send('opened');
  }

  const person = () => current.you.name || annotator;
  const identity = () => ({ by: person(), project_created_at: current.project.project_created_at });

  function sendKept(request) {
    if (awaitsReply) return;
    pending = request;
    keepRequest(request);
    send(request.name, request);
  }

  function sendOnce(name, fields = {}) {
    if (awaitsReply || !current) return;
    setItem('once', JSON.stringify({ name, before: SENT_ONCE[name][1](current), by: person() }));
    send(name, fields);
  }

  function outcomeOfOnce({ name, before, by }, state) {
    const [label, value] = SENT_ONCE[name];
    if (by !== (state.you.name || annotator)) return '';
    if (value(state) === before) return `"${label}" is not done. Press it again if you still want it.`;
    return `The lab did not reply to "${label}", but something has changed since: check before you press it again.`;
  }

  function resend(request) {
    showUnstored(
      request,
      `The lab does not reply. The page keeps your ${request.name === 'vote' ? 'answer' : 'change'}, also if ` +
        'you close it, and sends it again until it is stored.',
    );
    sendKept(request);
  }

  function showUnstored(request, explanation) {
    const what = request.name === 'vote' ? 'Your last answer' : 'Your change of an earlier answer';
    showMessage(`${what} is not stored yet. ${explanation}`, discardButton(request));
  }

  function discardButton(request) {
    return el(
      'button.lab-button.small.lab-offline-too',
      { type: 'button', 'data-do': 'discard-vote', onclick: () => discard(request) },
      'Discard it',
    );
  }

  function discard(request) {
    forgetRequest(request.uuid);
    if (pending?.uuid === request.uuid) {
      clearTimeout(replyTimer);
      clearPending();
      setAwaitsReply(false);
    }
    showMessage(
      'It is no longer sent. If the lab has already received it, it ' +
        `counts${request.name === 'vote' ? '; Undo removes it' : ''}.`,
    );
  }

  function clearPending() {
    if (pending) forgetRequest(pending.uuid);
    pending = null;
    attempts = 0;
    setItem('once', '');
  }

  function setAwaitsReply(awaits) {
    awaitsReply = awaits;
    updateReady();
  }

  // data-open: whether the pair on screen accepts an answer.
  function updateReady() {
    if (current?.pair && isReadable && !awaitsReply) root.dataset.open = current.pair.id;
    else delete root.dataset.open;
  }

  function handleAction(name) {
    if (element.offsetParent === null || current?.you.role === 'viewer') return;
    if (name === 'undo' || name === 'redo') {
      sendOnce(name, identity());
      return;
    }
    if (!('open' in root.dataset)) return;
    const card = root.querySelector(`.side.${name}`);
    lastVote = {
      name: 'vote',
      pair_id: current.pair.id,
      choice: name,
      uuid: newUuid(),
      duration_ms: Math.round(performance.now() - shownAt),
      strength: card ? strength : '',
      note,
      ...identity(),
    };
    sendKept(lastVote);
    expectPrediction(name === 'skip' ? '' : lastVote.uuid);
    if (current.next_pair) draw({ ...current, pair: current.next_pair, next_pair: null, notice: '' });
    else card?.classList.add('chosen');
  }

  function button(name, label, key, extra = '') {
    return el(
      `button.lab-button${extra}`,
      {
        type: 'button',
        'data-do': name,
        'aria-keyshortcuts': SHORTCUTS[name].join(' '),
        onclick: () => handleAction(name),
      },
      label,
      el('kbd', { 'aria-hidden': 'true' }, key),
    );
  }

  function textBody(text, other) {
    if (marksDifferences) return markedDiff(other, text, 'p.lab-text.lab-scroll');
    if (current.pair.markdown) return renderMarkdown(text);
    return el('p.lab-text.lab-scroll', { dir: 'auto', tabindex: '0' }, text);
  }

  // wide, narrow: names of the text when both are side by side, and when they are stacked on a phone.
  function side(name, text, other, wide, narrow, key) {
    const label = el('span', {}, el('span.beside', {}, wide), el('span.above', {}, narrow), ' is better');
    return el(
      `article.lab-card.side.${name}`,
      { 'aria-label': `${wide} text` },
      withCut(textBody(text, other), current.pair.cut[name]),
      button(name, label, key),
    );
  }

  function sides() {
    const { left, right } = current.pair;
    return el(
      'div.sides',
      { role: 'group', 'aria-labelledby': 'lab-question' },
      side('left', left, right, 'Left', 'First', '1'),
      side('right', right, left, 'Right', 'Second', '2'),
    );
  }

  // Optional inputs: how much better a text is, marked differences, a note.
  function optionalControls() {
    const choice = (word) =>
      el(
        `button.lab-more${strength === word ? '.on' : ''}`,
        {
          type: 'button',
          'data-strength': word,
          'aria-pressed': String(strength === word),
          onclick: () => {
            strength = strength === word ? '' : word;
            redrawOptional();
          },
        },
        word,
      );
    const field = el('input.lab-input.note', {
      type: 'text',
      maxlength: 1000,
      placeholder: 'note (optional)',
      'aria-label': 'note on this pair',
      oninput: () => {
        note = field.value;
      },
    });
    field.value = note;
    return el(
      'div.more',
      {},
      el(
        'span.muted',
        { role: 'group', 'aria-label': 'how much better, optional' },
        'Optional: how much better? ',
        el('span.strengths', {}, STRENGTHS.map(choice)),
      ),
      el(
        `button.lab-more${marksDifferences ? '.on' : ''}`,
        {
          type: 'button',
          'data-do': 'differ',
          'aria-pressed': String(marksDifferences),
          onclick: () => {
            marksDifferences = !marksDifferences;
            root.querySelector('.sides').replaceWith(sides());
            redrawOptional();
            fitTexts();
          },
        },
        'mark differences',
      ),
      field,
    );
  }

  function redrawOptional() {
    root.querySelector('.more')?.replaceWith(optionalControls());
  }

  // The list of earlier labels, each of which can be changed.
  async function loadHistory(details) {
    const container = details.querySelector('.earlier');
    try {
      const { votes } = await unwrap(server.recent_votes({ annotator }));
      container.replaceChildren(...(votes.length ? votes.map(historyRow) : [el('p.muted', {}, 'No labels yet.')]));
    } catch (error) {
      container.replaceChildren(el('p.lab-notice.bad', {}, String(error.message)));
    }
  }

  // For an expert: makes the pair a gold pair, which is shown to others to measure how often they give this answer.
  function goldButton(vote) {
    if (!('gold' in vote) || !['left', 'right'].includes(vote.choice)) return null;
    return el(
      `button.lab-more${vote.gold ? '.on' : ''}`,
      {
        type: 'button',
        'data-do': 'gold',
        'aria-pressed': String(vote.gold),
        title:
          'A gold pair has a known answer: yours. It is occasionally shown to other people, who cannot ' +
          'distinguish it from other pairs.',
        onclick: () => send('gold', { vote_id: vote.id, is_gold: !vote.gold, ...identity() }),
      },
      'gold pair',
    );
  }

  function historyRow(vote) {
    const select = (label, options, selected) =>
      el(
        'select.lab-input',
        { 'aria-label': label, onchange: update },
        options.map(([value, label]) => el('option', { value, selected: value === selected }, label)),
      );
    const labels = stackedScreen.matches
      ? { ...CHOICE_LABELS, left: 'first is better', right: 'second is better' }
      : CHOICE_LABELS;
    const choice = select('your answer', Object.entries(labels), vote.choice);
    const strengthSelect = select(
      'how much better',
      [['', 'strength: not given'], ...STRENGTHS.map((word) => [word, `${word} better`])],
      vote.strength,
    );
    const noteInput = el('input.lab-input.note', {
      type: 'text',
      maxlength: 1000,
      placeholder: 'note (optional)',
      'aria-label': 'note on this pair',
      value: vote.note,
      oninput: update,
    });
    const changeButton = el(
      'button.lab-button.small',
      {
        type: 'button',
        'data-do': 'amend',
        disabled: true,
        onclick: () => sendKept({ name: 'amend', vote_id: vote.id, uuid: newUuid(), ...values(), ...identity() }),
      },
      'Change',
    );
    const values = () => ({
      choice: choice.value,
      strength: strengthSelect.hidden ? '' : strengthSelect.value,
      note: noteInput.value.trim(),
    });
    function update() {
      strengthSelect.hidden = !['left', 'right'].includes(choice.value); // a tie has no strength
      changeButton.disabled = Object.entries(values()).every(([name, value]) => vote[name] === value);
    }
    update();
    const text = (which) =>
      withCut(
        el(`p.lab-text.lab-scroll${vote.choice === which ? '.picked' : ''}`, { dir: 'auto' }, vote[which]),
        vote.cut[which],
      );
    return el(
      'article',
      { 'data-vote': vote.id },
      promptView(vote.turns, '.muted.brief'),
      el('div.two', {}, text('left'), text('right')),
      el(
        'div.lab-row',
        {},
        choice,
        strengthSelect,
        noteInput,
        changeButton,
        goldButton(vote),
        vote.adjudication ? el('span.lab-badge', {}, 'decided as an expert') : null,
      ),
    );
  }

  // Experts decide pairs that people disagree about; how they voted is not shown.
  function disputedSection() {
    const section = el(
      'details.disputed',
      { hidden: !disputes.count || current.pair?.adjudication },
      el('summary.muted', {}, `People disagree about ${plural(disputes.count, 'pair')}`),
      el(
        'p.muted',
        {},
        'Your answer as an expert becomes the label of the pair. The other answers are kept, but you do not see them.',
      ),
      el(
        'button.lab-button.small',
        {
          type: 'button',
          'data-do': 'adjudicate',
          onclick: () => {
            send('adjudicate', identity());
            element.scrollIntoView();
          },
        },
        'Decide them',
      ),
      el(
        'ul',
        {},
        disputes.pairs.map((pair) => el('li', { 'data-pair': pair.id }, promptView(pair.turns, '.muted.brief'))),
      ),
    );
    section.open = root.querySelector('.disputed')?.open || false;
    return section;
  }

  function decisionBanner() {
    return el(
      'p.lab-notice.decision',
      { role: 'status' },
      'You decide this pair as an expert: your answer becomes its label. ',
      el(
        'button.lab-button.small',
        {
          type: 'button',
          'data-do': 'stop-adjudicating',
          onclick: () => send('adjudicate', { stop: true, ...identity() }),
        },
        'Back to labelling',
      ),
    );
  }

  async function loadDisputes() {
    const reply = await unwrap(server.disputed({ annotator })).catch(() => null);
    if (!reply || JSON.stringify(reply) === JSON.stringify(disputes)) return;
    disputes = reply;
    root.querySelector('.disputed')?.replaceWith(disputedSection());
  }

  function historySection() {
    return el(
      'details.history',
      {
        ontoggle: (event) => {
          if (event.target.open) loadHistory(event.target);
        },
      },
      el('summary.muted', {}, 'Your earlier labels: read them again or change an answer'),
      el('div.earlier.lab-scroll', {}),
    );
  }

  function judgeControls() {
    const judges = props.data.judges;
    const defaultJudge =
      judges.find((judge) => judge.prompt_set === (current && current.project.prompt_set)) || judges[0];
    const choice = el(
      'select.lab-input',
      { 'aria-label': 'simulated judge' },
      judges.map((judge) =>
        el('option', { value: judge.name, title: judge.description, selected: judge === defaultJudge }, judge.name),
      ),
    );
    return el(
      'details.talks.lab-operating',
      {},
      el('summary.muted', {}, 'Demonstration: let a simulated judge label, or start again'),
      el(
        'div.lab-row',
        { style: 'margin-top:10px' },
        choice,
        el(
          'button.lab-button.small',
          { type: 'button', 'data-do': 'judge', onclick: () => sendOnce('judge', { judge: choice.value, count: 40 }) },
          'Judge labels 40 more (simulated)',
        ),
        el(
          'button.lab-button.small',
          {
            type: 'button',
            'data-do': 'reset',
            onclick: ({ target }) => askForNewProject(target.parentElement),
          },
          'Start a new project',
        ),
      ),
    );
  }

  // A run may have begun since the last look at the lab.
  async function askForNewProject(controls) {
    const { active_run: run } = await unwrap(server.presence({ annotator })).catch(() => current ?? {});
    if (run) askAboutRun(controls, run);
    else if (confirm('Start a new project? The labels so far are kept in the old one.')) sendOnce('reset');
  }

  // The question before a new project while a run goes on, which replaces the controls until it is answered.
  function askAboutRun(controls, run) {
    const answer = (name, label, act) =>
      el(
        'button.lab-button.small',
        {
          type: 'button',
          'data-do': name,
          onclick: () => {
            question.replaceWith(controls);
            act();
          },
        },
        label,
      );
    const question = el(
      'div.lab-row.lab-notice',
      { role: 'alertdialog', 'aria-label': 'new project' },
      el(
        'span',
        {},
        `Run ${run.id} (${run.name}) is ${run.status}. A new project is shown to everybody; labels and runs stay in ` +
          'the old one, which you can open again under Project.',
      ),
      answer('reset-keep', 'Start the project, keep the run', () => sendOnce('reset')),
      answer('reset-stop', 'Stop the run, start the project', () => sendOnce('reset', { stop_run: run.id })),
      answer('reset-leave', 'Cancel', () => {}),
    );
    controls.replaceWith(question);
    question.querySelector('button').focus();
  }

  // The instant reward model's prediction of the last vote, and how often it is right. Nothing about the pair on screen
  // is revealed.
  function instantPanel() {
    return el(
      'section.instant',
      { 'aria-label': 'instant reward model', 'data-right': instant?.right ?? '' },
      el('div.guess', { 'aria-live': 'polite' }, guessParts()),
      el('div.accuracy', {}, accuracyParts()),
    );
  }

  function guessParts() {
    const sentence = (text) => [
      el('span', {}, el('strong', {}, 'Instant reward model'), ' ', el('span.muted', {}, text)),
    ];
    if (!instant) return sentence('');
    const { needed, decided, waiting, prediction } = instant;
    const answers = decided + waiting;
    if (instant.right === null && answers < needed) {
      return sentence(
        `is trained on every answer, and starts after ${needed} answers that prefer one text: ${answers} so far.`,
      );
    }
    if (instant.right === null && waiting) {
      return sentence('waits until the engine has processed the texts of your answers.');
    }
    if (instantUuid && instant.pending) return sentence('is being trained on your answer …');
    if (!instantUuid || !prediction) return sentence('predicts your next answer.');
    const sideNames = stackedScreen.matches ? ['first', 'second'] : ['left', 'right'];
    const [first, second] = prediction.decided ? ['your choice', 'other'] : sideNames;
    // [on a wide screen, on a phone]
    const verdict = !prediction.decided
      ? ['Your last answer had no winner. Its scores:', 'No winner. The scores:']
      : prediction.expected
        ? ['✓ The instant reward model expected your last answer', '✓ The instant model expected it']
        : ['✗ The instant reward model did not expect your last answer', '✗ The instant model did not expect it'];
    return [
      el(
        `strong.verdict${prediction.expected === null ? '' : prediction.expected ? '.good' : '.bad'}`,
        { 'data-expected': String(prediction.expected) },
        el('span.beside', {}, verdict[0]),
        el('span.above', {}, verdict[1]),
      ),
      el(
        'span.scores',
        { title: 'Scores before it was trained on your answer: 0 is an average text, most are between −2 and 2.' },
        scoreBar(first, prediction.scores[0]),
        scoreBar(second, prediction.scores[1]),
      ),
    ];
  }

  function accuracyParts() {
    if (!instant || instant.right === null) return [];
    const accuracy = instant.right / instant.decided;
    const { low, high, decided } = instant;
    const span = el('i.span');
    const mark = el('i.mark');
    span.style.left = `${100 * low}%`;
    span.style.width = `${100 * (high - low)}%`;
    mark.style.left = `${100 * accuracy}%`;
    const figure = { accuracy, low, high };
    const answers = `${decided}${instant.simulated ? ' simulated' : ''} answers`;
    return [
      el(
        'span.figure',
        {},
        el('b', {}, formatAccuracy(figure)),
        el('span.muted', {}, ' right'),
        isWideInterval(figure) ? null : el('span.muted.beside', {}, ` (95 % sure: ${formatInterval(low, high)})`),
      ),
      el('span.range', { 'aria-hidden': 'true' }, span, mark),
      el(
        'span.muted',
        {
          title:
            'Leave-one-out: each answer is predicted by a model that was fitted without the answers to its ' +
            'prompt and about its texts. If most answers share a prompt, those about other texts stay in. Guessing ' +
            'is right in half of the cases. The interval is for new prompts, with as many answers to learn from.',
        },
        el('span.beside', {}, `tested on ${answers} that were hidden from it`),
        el('span.above', {}, `of ${answers}`),
      ),
      ...(guesses.length > 1
        ? [
            el(
              'span.guesses',
              {
                title: 'Its latest predictions of your answers, made before it was trained on them',
                role: 'img',
                'aria-label':
                  `${guesses.filter(Boolean).length} of your last ${guesses.length} answers predicted ` + 'correctly',
              },
              el('span.muted', {}, 'last ones '),
              guesses.map((right) => el(`i${right ? '.right' : ''}`)),
            ),
          ]
        : []),
    ];
  }

  function drawInstant() {
    const panel = root.querySelector('.instant');
    if (!panel) return;
    panel.dataset.right = instant?.right ?? '';
    panel.querySelector('.guess').replaceChildren(...guessParts());
    panel.querySelector('.accuracy').replaceChildren(...accuracyParts());
  }

  async function loadInstant() {
    const uuid = instantUuid;
    // the next poll tries again
    const reply = await unwrap(server.instant({ annotator, vote_uuid: uuid })).catch(() => null);
    if (!reply || uuid !== instantUuid || reply.project_created_at !== current?.project.project_created_at) return;
    if (reply.prediction?.decided && countedUuid !== uuid) {
      guesses = [...guesses, reply.prediction.expected].slice(-MAX_GUESSES);
      countedUuid = uuid;
    }
    const isSame = JSON.stringify(reply) === JSON.stringify(instant);
    instant = reply;
    if (!isSame) drawInstant();
    if (reply.pending && instantPolls++ < MAX_INSTANT_POLLS) setTimeout(loadInstant, INSTANT_POLL_MS);
  }

  // uuid: the vote whose prediction is shown after the model has learnt from it; '' for none.
  function expectPrediction(uuid) {
    instantUuid = uuid;
    instantPolls = 0;
    if (instant) instant = { ...instant, pending: !!uuid, prediction: null };
    drawInstant();
  }

  function showMessage(text, ...controls) {
    const container = root.querySelector('.message');
    container?.replaceChildren(
      ...(text ? [el('p.lab-notice', { role: 'status' }, text, controls.length ? ' ' : '', controls)] : []),
    );
  }

  // A reply about the same pair changes only counts, the next pair and the message.
  function updateSamePair(state) {
    current = state;
    showMessage(state.notice);
    root.querySelector('.goal').replaceWith(progress(state));
    const history = root.querySelector('details.history');
    if (history?.open) loadHistory(history);
  }

  function draw(state) {
    const openSections = ['details.talks', 'details.history'].filter((name) => root.querySelector(name)?.open);
    const isSamePair = current?.pair?.id === state.pair?.id;
    const isUnsavedPair = state.pair && lastVote?.pair_id === state.pair.id;
    current = state;
    if (!isSamePair) {
      strength = isUnsavedPair ? lastVote.strength : '';
      note = isUnsavedPair ? lastVote.note : '';
    }
    const sections = [];
    const isViewer = state.you.role === 'viewer';
    if (state.guideline) sections.push(el('p.guideline.lab-scroll.lab-text', { dir: 'auto' }, state.guideline));
    if (state.pair?.adjudication) sections.push(decisionBanner());
    if (state.pair) {
      sections.push(
        promptSection(state.pair.turns),
        el('h2', { id: 'lab-question' }, 'Which text is better?'),
        sides(),
        el(
          'div.others',
          {},
          button('tie', 'Equally good', '0'),
          button('both_bad', 'Both bad', 'X'),
          button('skip', 'Skip', 'S'),
          button('undo', 'Undo', 'U'),
          button('redo', 'Redo', 'R'),
        ),
        instantPanel(),
        optionalControls(),
      );
    } else {
      sections.push(
        el(
          'div.lab-card.lab-empty',
          { role: 'status' },
          state.waiting_text,
          isViewer ? el('p', {}, el('a.lab-button.lab-main', { href: 'join' }, 'Join to label')) : null,
        ),
      );
      if (!isViewer) sections.push(el('div.others', {}, button('undo', 'Undo', 'U')));
      sections.push(instantPanel());
    }
    sections.push(el('div.message')); // below the buttons, so that a message does not move them
    if (state.quality_note) sections.push(el('p.lab-notice', { 'data-do': 'quality-note' }, state.quality_note));
    if (state.length_note) {
      const link = el('a', { href: '#project' }, 'Decide under Project');
      sections.push(el('p.muted', { 'data-do': 'length-note' }, `${state.length_note} `, link));
    }
    sections.push(progress(state));
    if (!isViewer) sections.push(disputedSection(), historySection());
    if (!isViewer) sections.push(judgeControls());
    root.replaceChildren(...sections);
    showMessage(state.notice);
    fitTexts();
    root.dataset.pair = state.pair ? state.pair.id : '';
    if (!isSamePair) {
      isReadable = false;
      clearTimeout(readableTimer);
      readableTimer = setTimeout(() => {
        isReadable = true;
        updateReady();
      }, MIN_READ_MS);
      shownAt = performance.now();
    }
    updateReady();
    for (const name of openSections) {
      const section = root.querySelector(name);
      if (section) section.open = true;
    }
    if (!state.pair) {
      replyTimer = setTimeout(
        () => {
          setAwaitsReply(false);
          send('opened');
        },
        isViewer ? 15000 : 1500,
      );
    }
  }

  // Lets the header show these counts immediately.
  function publishCounts() {
    const {
      project: { project_created_at },
      counted_at,
      labels,
      simulated,
    } = current;
    window.dispatchEvent(
      new CustomEvent('lab-counts', { detail: { project_created_at, counted_at, labels, simulated } }),
    );
  }

  function applyReply() {
    const reply = props.value;
    // a late reply to an event before the vote
    if (!reply?.project || (pending && reply.vote_uuid !== pending.uuid)) return;
    const once = unansweredOnce();
    const isResumed = pending && attempts;
    if (once && current && !attempts && !reply.notice) return; // a late reply to an event before it
    clearTimeout(replyTimer);
    const changesLabels = !!reply.notice; // undo, redo, another answer, or a vote that did not count
    const isOtherVisit =
      !current ||
      current.project.project_created_at !== reply.project.project_created_at ||
      JSON.stringify(current.you) !== JSON.stringify(reply.you);
    const isOvertaken =
      current &&
      current.project.project_created_at === reply.project.project_created_at &&
      current.counted_at > reply.counted_at;
    const state = isOvertaken ? { ...reply, ...counts(current) } : reply;
    if (isResumed && !state.notice) state.notice = 'Your last answer is stored now.';
    if (once && !state.notice) state.notice = outcomeOfOnce(once, state);
    if (current?.pair && pairKey(current) === pairKey(state)) updateSamePair(state);
    else draw(state);
    publishCounts();
    if (changesLabels) expectPrediction('');
    loadInstant();
    clearPending();
    setAwaitsReply(false);
    if (isOtherVisit || isResumed) resumeKept();
  }

  // Send the requests of an earlier visit to this project that were not stored (the tab was closed, or Gradio reloaded
  // it), one after the other. Answers of another person are not sent, but kept until that person is here again.
  function resumeKept() {
    const unconfirmed = keptRequests(current.project.project_created_at);
    const own = unconfirmed.find((request) => request.by === person());
    if (!unconfirmed.length) return;
    if (own && current.you.role !== 'viewer') {
      attempts = 1;
      resend(own);
      return;
    }
    const [request] = unconfirmed;
    const name = displayName(request.by);
    if (current.you.role === 'viewer') {
      showUnstored(
        request,
        `It is the answer of ${name}, and you are logged out. Log in with the password, account or ` +
          `operator's link of ${name} to send it. With the join code you get a new name, and the answer is not ` +
          'sent.',
      );
    } else {
      showMessage(
        `An answer of ${name} in this browser is not stored yet. It is kept, and sent when ${name} labels here again.`,
        discardButton(request),
      );
    }
  }

  function fitTexts() {
    fitTextHeights(root, root.querySelector('.others'), root.querySelector('.instant'));
  }

  function onKey(event) {
    if (!document.body.contains(root)) {
      document.removeEventListener('keydown', onKey);
      return;
    }
    if (!isShortcut(event) || element.offsetParent === null) return;
    const name = ACTION_BY_KEY[event.key] || ACTION_BY_KEY[event.key.toLowerCase()];
    if (!name) return;
    if (event.key.startsWith('Arrow') && event.composedPath()[0].closest?.('[role=tab], [role=tablist], summary')) {
      return;
    }
    event.preventDefault();
    handleAction(name);
  }

  poll(
    root,
    async () => {
      const reply = await unwrap(server.presence({ annotator }));
      if (!current) return;
      // Another project was opened, or the visitor's rights have changed.
      if (
        reply.project_created_at !== current.project.project_created_at ||
        JSON.stringify(reply.you) !== JSON.stringify(current.you)
      ) {
        send('opened');
        return;
      }
      Object.assign(
        current,
        { people_here: reply.people_here },
        reply.counted_at > current.counted_at ? counts(reply) : {},
      );
      root.querySelector('.goal')?.replaceWith(progress(current));
      publishCounts();
      loadInstant();
    },
    5000,
  );
  // The screen Chat made a pair, which is leased to this person: it comes next.
  function showNewPair() {
    if (awaitsReply) setTimeout(showNewPair, 200);
    else send('opened');
  }
  window.addEventListener('lab-pair', showNewPair);
  poll(root, loadDisputes, 5000);
  watch('value', applyReply);
  document.addEventListener('keydown', onKey);
  window.addEventListener('resize', fitTexts);
  new ResizeObserver(fitTexts).observe(document.querySelector('.lab-header'));
  window.addEventListener('online', () => {
    if (awaitsReply) onTimeout();
  });
  new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) fitTexts();
  }).observe(root);
  awaitsReply = false;
  send('opened');
}

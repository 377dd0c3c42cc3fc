// Screen "Chat": a conversation with a model, whose answers appear while they are sampled; the base model answers
// beside it on request.
import { conversationView, el, fillProposed, withCut } from '../shared/dom.js';
import { plural } from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { annotatorName } from '../shared/session.js';

const POLL_MS = 250;
const OPTIONS_MS = 4000;
const NUMBERS = ['temperature', 'top_p', 'max_new_tokens', 'seed'];
const labelled = (label, ...controls) =>
  el('div.field', {}, el('span.muted', { 'aria-hidden': 'true' }, label), ...controls);

function setOptions(node, items, fallback) {
  const previous = node.value;
  const key = JSON.stringify(items);
  if (node.lastItems === key) return;
  node.lastItems = key;
  node.replaceChildren(...items.map(([id, label]) => el('option', { value: id }, label)));
  node.value = items.some(([id]) => String(id) === previous) ? previous : String(fallback);
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-chat');
  const fields = {};
  let options = null;
  let revision = '';
  let optionsRequestedAt = 0;
  const proposed = { temperature: '', max_new_tokens: '128' };
  let turns = []; // the conversation before the answers on screen
  let exchange = null; // the answers on screen: {id, sentAt, models, labels, jobs, answers, firstAt}
  let pairRequest = 0; // id of the request to make a pair, until its reply

  const isWaiting = () =>
    Boolean(exchange) && (!exchange.answers.length || exchange.answers.some((answer) => answer.is_waiting));
  const select = (name, label, onchange) =>
    (fields[name] = el('select.lab-input', { 'aria-label': label, 'data-do': `chat-${name}`, onchange }));
  const number = (name, label, value, hint) =>
    labelled(
      label,
      (fields[name] = el('input.lab-input', {
        type: 'text',
        inputmode: 'decimal',
        value,
        'aria-label': label,
        title: hint,
        'data-do': `chat-${name}`,
      })),
    );
  const button = (name, text, action, classes = '') =>
    (fields[name] = el(
      `button.lab-button${classes}`,
      { type: 'button', 'data-do': `chat-${name}`, onclick: action },
      text,
    ));

  function buildForm() {
    fields.stage = el('div.stage', { 'data-do': 'chat-stage' });
    fields.error = el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'chat-error' });
    fields.message = el('textarea.lab-input', {
      rows: 2,
      dir: 'auto',
      'aria-label': 'message',
      'data-do': 'chat-message',
      oninput: drawButtons,
      onkeydown: (event) => {
        if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          ask();
        }
      },
    });
    fields.beside = el('input', { type: 'checkbox', 'data-do': 'chat-beside' });
    root.replaceChildren(
      el(
        'div.lab-card.form',
        {},
        el(
          'div.lab-row.who',
          {},
          labelled(
            'Model',
            el(
              'div.models',
              {},
              select('model', 'model', () => loadOptions()),
              select('step', 'step of the model'),
            ),
          ),
          (fields.besideLabel = el('label.lab-row.beside', {}, fields.beside, 'also show the base model')),
          el('span.lab-grow'),
          button('begin', 'New conversation', begin, '.small'),
        ),
        el(
          'details.sampling',
          {},
          el('summary.muted', {}, 'Sampling settings'),
          el(
            'div.fields',
            {},
            number('temperature', 'temperature', '', '0.05 to 5; low values give the likeliest words'),
            number(
              'top_p',
              'top-p',
              '1',
              '0.05 to 1: sample only from the likeliest tokens that together have this probability',
            ),
            number('max_new_tokens', 'longest response (tokens)', '128', '1 to 512'),
            number('seed', 'seed', '0', 'the same seed and settings give the same answer'),
          ),
        ),
      ),
      el(
        'div.lab-card.talk',
        {},
        fields.stage,
        fields.error,
        el(
          'div.send',
          {},
          fields.message,
          el('div.lab-row', {}, button('send', 'Send', ask, '.lab-main'), button('stop', 'Stop', stop)),
        ),
        (fields.hint = el('span.muted')),
      ),
    );
    draw();
  }

  const chosenRun = () => (fields.model.value.startsWith('run/') ? Number(fields.model.value.split('/')[1]) : null);

  function refillForm() {
    setOptions(fields.model, options.models, options.models[1]?.[0] ?? 'base');
    const run = chosenRun();
    const steps = options.run === run ? options.steps : [];
    setOptions(
      fields.step,
      [
        ['latest', 'latest step'],
        ...steps.map((step) => [step, `step ${step}${step === options.best ? ' (best)' : ''}`]),
      ],
      'latest',
    );
    fields.step.hidden = fields.besideLabel.hidden = run === null;
    fillProposed(fields, proposed, options);
    fields.hint.textContent = options.has_chat_template
      ? 'Enter sends the message, Shift+Enter starts a new line. The conversation is deleted an hour ' +
        'after the last message, unless you label two answers.'
      : 'This model was not trained to chat: it continues your text. Press Go on without a text for a longer ' +
        'continuation. The texts are deleted an hour after the last one, unless you label two of them.';
    fields.message.placeholder = options.has_chat_template ? 'Write a message' : 'Write the beginning of a text';
  }

  // [checkpoint, its name] of the models that answer; the first one's answer is part of the conversation.
  function chosenModels() {
    const run = chosenRun();
    const base = ['base', 'Base model'];
    if (run === null) return [base];
    const step =
      fields.step.value === 'latest' ? (options.run === run && options.steps.at(-1)) || 'latest' : fields.step.value;
    return [
      [`run/${run}/${step}`, `Run ${run}, ${step === 'latest' ? 'latest step' : `step ${step}`}`],
      ...(fields.beside.checked ? [base] : []),
    ];
  }

  // The conversation including the answer on screen, to which the next message is added.
  function turnsSoFar() {
    const answer = exchange?.answers[0]?.text;
    return answer || (exchange && !options.has_chat_template)
      ? [...turns, { role: 'assistant', content: answer || '' }]
      : turns;
  }

  function ask() {
    const text = fields.message.value;
    const isContinuing = !options.has_chat_template && turnsSoFar().length > 0;
    if (isWaiting() || (!text.trim() && !isContinuing)) return;
    const forgotten = exchange?.jobs || [];
    const models = chosenModels();
    const before = turns;
    turns = [...turnsSoFar(), { role: 'user', content: text }];
    exchange = {
      id: Date.now(),
      sentAt: performance.now(),
      before,
      text,
      previous: exchange,
      labels: models.map((model) => model[1]),
      jobs: null,
      answers: [],
      firstAt: [],
    };
    showError('');
    fields.message.value = '';
    draw();
    trigger('ask', {
      request_id: exchange.id,
      annotator: annotatorName(),
      turns,
      forget: forgotten,
      models: models.map((model) => model[0]),
      reward_model_id: '',
      ...Object.fromEntries(NUMBERS.map((name) => [name, fields[name].value])),
    });
  }

  function stop() {
    if (exchange?.jobs) trigger('stop_answers', { jobs: exchange.jobs, annotator: annotatorName() });
  }

  function begin() {
    if (exchange?.jobs) trigger('forget', { jobs: exchange.jobs, annotator: annotatorName() });
    turns = [];
    exchange = null;
    showError('');
    draw();
    fields.message.focus();
  }

  function makePair() {
    pairRequest = Date.now();
    drawAnswers();
    trigger('make_pair', { request_id: pairRequest, annotator: annotatorName(), jobs: exchange.jobs });
  }

  function showError(text, field = '') {
    fields.error.hidden = !text;
    fields.error.textContent = text || '';
    for (const name of ['message', ...NUMBERS]) fields[name].toggleAttribute('aria-invalid', name === field);
    if (NUMBERS.includes(field)) root.querySelector('details.sampling').open = true;
    if (field) fields[field].focus();
  }

  // ---- what is on screen

  function draw() {
    const system = options.system_prompt ? [{ role: 'system', content: options.system_prompt }] : [];
    fields.stage.replaceChildren(
      ...(turns.length
        ? [
            conversationView(
              [
                ...system,
                ...turns.map(({ role, content }) => ({ role, content: content.trim() })).filter((turn) => turn.content),
              ],
              '.history',
            ),
          ]
        : []),
      el('div.answers', { 'aria-live': 'polite', 'aria-busy': 'false' }),
    );
    drawAnswers();
  }

  function drawAnswers() {
    const container = fields.stage.querySelector('.answers');
    container.style.setProperty('--columns', exchange?.labels.length || 1);
    container.setAttribute('aria-busy', String(isWaiting()));
    container.replaceChildren(
      ...(exchange ? [...exchange.labels.map(answerView), pairControls()].filter(Boolean) : []),
    );
    drawButtons();
  }

  function answerView(label, i) {
    const answer = exchange.answers[i];
    const text = answer?.text || '';
    return el(
      'article.reply',
      { 'data-status': answer?.status || 'queued', 'aria-label': label },
      el('div.lab-row', {}, el('strong', {}, label), el('span.muted', {}, statusText(answer, i))),
      answer?.turns_left_out
        ? el(
            'p.muted',
            {},
            `The conversation is too long for the model: its oldest ${plural(answer.turns_left_out, 'turn')} ` +
              'are left out.',
          )
        : null,
      answer?.note ? el('p.muted', {}, answer.note) : null,
      answer?.error
        ? el('p.lab-notice.bad', { role: 'alert' }, answer.error)
        : withCut(
            el(
              'p.lab-text',
              { dir: 'auto' },
              text.trim() || (answer && !answer.is_waiting ? el('span.muted', {}, '(it wrote nothing)') : '…'),
            ),
            answer?.cut,
          ),
    );
  }

  function statusText(answer, i) {
    if (!answer || answer.status === 'queued') return 'waits for the engine';
    const first = exchange.firstAt[i] ? `, the first after ${exchange.firstAt[i].toFixed(1)} s` : '';
    const tokens = `${plural(answer.tokens, 'token')}${first}`;
    if (answer.status === 'cancelled') return `stopped after ${tokens}`;
    if (answer.status === 'running') return answer.tokens ? `writing: ${tokens}` : 'reads the conversation';
    return answer.status === 'done' ? tokens : '';
  }

  function pairControls() {
    if (!exchange || exchange.answers.length < 2 || isWaiting() || exchange.answers.some((answer) => answer.error)) {
      return null;
    }
    const areComplete = exchange.answers.every((answer) => answer.status === 'done');
    const areEqual = exchange.answers[0].text.trim() === exchange.answers[1].text.trim();
    const pairText = areEqual
      ? 'Both answers are the same, so there is nothing to label. Send the message again with another seed.'
      : 'This stores the conversation and both answers as a pair of the project, where others can see them, ' +
        'and shows the pair under Label.';
    return el(
      'div.lab-row.pair',
      {},
      el(
        'button.lab-button',
        {
          type: 'button',
          'data-do': 'chat-label',
          disabled: !areComplete || areEqual || Boolean(pairRequest),
          onclick: makePair,
        },
        'Label these two answers',
      ),
      el(
        'span.muted.lab-grow',
        {},
        areComplete ? pairText : 'Only answers that were not stopped can be labelled.',
      ),
    );
  }

  function drawButtons() {
    const waits = isWaiting();
    const isContinuing = !options.has_chat_template && turnsSoFar().length > 0;
    fields.send.disabled = waits || (!fields.message.value.trim() && !isContinuing);
    fields.send.textContent = isContinuing && !fields.message.value.trim() ? 'Go on' : 'Send';
    fields.stop.hidden = !waits;
    fields.stop.disabled = !exchange?.jobs;
    fields.begin.disabled = waits || !turns.length;
  }

  // ---- replies

  async function pollAnswers() {
    const current = exchange;
    if (!current?.jobs || !isWaiting()) return;
    const { answers } = await unwrap(server.answers({ jobs: current.jobs, annotator: annotatorName() }));
    if (exchange !== current) return;
    answers.forEach((answer, i) => {
      if (answer.tokens && !current.firstAt[i]) current.firstAt[i] = (performance.now() - current.sentAt) / 1000;
    });
    const hasChanged = JSON.stringify(answers) !== JSON.stringify(current.answers);
    current.answers = answers;
    if (hasChanged) drawAnswers();
  }

  async function loadOptions() {
    optionsRequestedAt = Date.now();
    const run = options ? chosenRun() : null;
    const reply = await unwrap(server.options({ revision, run }));
    if (reply.unchanged) return;
    const projectChanged = options && options.project !== reply.project;
    const isFirst = !options;
    options = reply;
    revision = reply.revision;
    if (isFirst) buildForm();
    if (projectChanged) begin();
    refillForm();
    drawButtons();
  }

  watch('value', () => {
    const reply = props.value;
    if (reply?.request_id && reply.request_id === pairRequest) {
      pairRequest = 0;
      drawAnswers();
      if (reply.error) {
        showError(reply.error);
        return;
      }
      window.dispatchEvent(new CustomEvent('lab-pair'));
      location.hash = 'label';
      return;
    }
    if (!exchange || reply?.request_id !== exchange.id) return;
    if (reply.error) {
      // nothing was sent: the conversation is as before
      fields.message.value = exchange.text;
      turns = exchange.before;
      exchange = exchange.previous;
      draw();
      showError(reply.error, reply.field);
      return;
    }
    exchange.jobs = reply.jobs;
    exchange.previous = null;
    drawButtons();
    pollAnswers();
  });

  root.append(el('div.lab-card.lab-empty', { role: 'status' }, 'Loading the models …'));
  poll(
    root,
    async () => {
      if (options) await pollAnswers();
      const lacksSteps = options && options.run !== chosenRun();
      if (!options || lacksSteps || Date.now() - optionsRequestedAt > OPTIONS_MS) await loadOptions();
    },
    POLL_MS,
  );
}

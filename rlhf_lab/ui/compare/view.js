// Screen "Compare": columns of texts from the base model and checkpoints, with the same prompt and random numbers;
// changed words are marked.
import { markedDiff } from '../shared/diff.js';
import { conversationField, el, fillProposed, promptView, withCut } from '../shared/dom.js';
import { formatDuration, formatNumber, plural } from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { annotatorName } from '../shared/session.js';
import { createBlindTest } from './blind_test/view.js';
import { createTournament } from './tournament/view.js';

const COLUMNS = [1, 2, 3];
const NUMBERS = ['samples', 'seed', 'temperature', 'max_new_tokens'];
const MAX_RESULTS = 5; // on screen
const labelled = (label, ...controls) =>
  el('div.field', {}, el('span.muted', { 'aria-hidden': 'true' }, label), ...controls);

function setOptions(node, items, fallback) {
  const previous = node.value;
  const key = JSON.stringify(items);
  if (node.lastItems !== key) node.replaceChildren(...items.map(([id, label]) => el('option', { value: id }, label)));
  node.lastItems = key;
  const ids = items.map(([id]) => String(id));
  node.value = node.dataset.chosen && ids.includes(previous) ? previous : String(fallback);
}

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

function meansText(answer) {
  if (!answer || !answer.texts || answer.texts.length < 2) return '';
  return [
    ['score', answer.scores],
    ['gold', answer.gold],
  ]
    .filter(([, values]) => values.length)
    .map(([name, values]) => `mean ${name} ${formatNumber(mean(values))}`)
    .join(', ');
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-compare');
  const fields = {}; // the form's elements by name
  let options = null;
  let pending = null; // the request being sampled: {id, labels, jobs, turns, …, columns}
  const finished = []; // the last finished requests, newest first
  const results = el('div.results');
  let blindTest = null;
  let tournament = null;
  const narrowScreen = matchMedia('(max-width: 640px)');
  let optionsRequestedAt = 0;
  let revision = ''; // of the options on screen

  // ---- the form: built once; its options are refreshed in place, so that no input is lost

  const select = (name, label, onchange) =>
    (fields[name] = el('select.lab-input', {
      'aria-label': label,
      'data-do': name,
      onchange: () => {
        markChosen(name);
        onchange?.();
      },
    }));
  const markChosen = (name) => {
    fields[name].dataset.chosen = '1';
  };
  const numberField = (name, label, value, hint) =>
    labelled(
      label,
      (fields[name] = el('input.lab-input', {
        type: 'text',
        inputmode: 'decimal',
        value,
        'data-do': name,
        'aria-label': label,
        title: hint,
        onkeydown: (event) => {
          if (event.key === 'Enter') sample();
        },
      })),
    );

  // The run of a column; null for the base model, its best of n, and no model.
  function runInColumn(column) {
    const model = fields[`model-${column}`].value;
    return model.startsWith('run/') ? model.split('/')[1] : null;
  }

  const selectedRuns = () => [...new Set(COLUMNS.map(runInColumn).filter(Boolean))];
  // whether the reward models of the selected runs are known
  const areRunsLoaded = () => selectedRuns().every((run) => options.scorer_by_run[run]);

  function fillSteps(column) {
    const run = runInColumn(column);
    const node = fields[`step-${column}`];
    if (node.dataset.run !== String(run)) {
      delete node.dataset.chosen;
      node.dataset.run = run;
    }
    setOptions(
      node,
      [
        ['latest', 'latest step'],
        ...(run ? options.steps_by_run[run] || [] : []).map((step) => [
          step,
          `step ${step}${step === options.best_by_run[run] ? ' (best)' : ''}`,
        ]),
      ],
      'latest',
    );
    node.hidden = !run;
  }

  function buildForm() {
    fields.prompt = el('textarea.lab-input', { rows: 2, dir: 'auto', 'aria-label': 'prompt', 'data-do': 'prompt' });
    fields.conversation = conversationField(fields.prompt, 'edit-prompt');
    const pickers = COLUMNS.map((column) => {
      return labelled(
        ['first column', 'second column', 'third column'][column - 1],
        el(
          'div.models',
          {},
          select(`model-${column}`, `model ${column}`, () => {
            fillSteps(column);
            setDefaultScorers();
            loadOptions();
          }),
          select(`step-${column}`, `step of model ${column}`),
        ),
      );
    });
    fields.note = el('p.muted', { hidden: true });
    fields.error = el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'compare-error' });
    const judge = labelled('gold: a judge’s own score', select('judge', 'judge'));
    root.replaceChildren(
      el(
        'div.lab-card.form',
        {},
        labelled('Prompt', fields.conversation.shown, fields.prompt),
        el(
          'div.lab-row',
          {},
          (fields.another = el(
            'button.lab-button.small',
            { type: 'button', 'data-do': 'another', onclick: suggestPrompt },
            'Another prompt',
          )),
          fields.conversation.edit,
          (fields.source = el('span.muted', {}, 'from the held-out prompts')),
        ),
        (fields.fold = el(
          'details.fold',
          { oninput: updateSummary, ontoggle: updateSummary },
          (fields.chosen = el('summary')),
          el(
            'div.inside',
            {},
            el('div.fields.wide', {}, pickers),
            el(
              'div.fields',
              {},
              numberField('samples', 'samples each', '2', '1 to 16'),
              numberField('seed', 'seed', '0', '0 or more'),
              numberField('temperature', 'temperature', '', '0.05 to 5; low values give the likeliest words'),
              numberField('max_new_tokens', 'maximum length (tokens)', '64', '1 to 512'),
            ),
            el('div.fields.wide', {}, labelled('scored by', select('reward', 'reward model for the scores')), judge),
          ),
        )),
        el(
          'div.lab-row',
          {},
          (fields.sample = el(
            'button.lab-button.lab-main',
            { type: 'button', 'data-do': 'write', onclick: () => sample() },
            'Write',
          )),
          (fields.newSeed = el(
            'button.lab-button.small',
            {
              type: 'button',
              title: 'write again with another seed',
              'data-do': 'dice',
              onclick: () => {
                fields.seed.value = Math.floor(Math.random() * 1e6);
                updateSummary();
                sample();
              },
            },
            'Another seed',
          )),
          (fields.estimate = el('span.muted', { 'data-do': 'estimate' })),
          el(
            'span.muted.lab-grow.hint',
            {},
            'The same seed gives every model the same random numbers; words that differ from the first ' +
              'column are marked.',
          ),
        ),
        fields.note,
        fields.error,
      ),
      results,
    );
    blindTest = createBlindTest({ root, fetchState: (query) => server.blind_test(query), trigger, getRequest });
    tournament = createTournament({
      root,
      fetchState: (query) => server.tournament(query),
      trigger,
      getRequest,
      chosenModels: () => COLUMNS.map(selectedModel).filter(Boolean),
    });
    fields.fold.open = !narrowScreen.matches; // on a phone the texts come first
    narrowScreen.addEventListener('change', () => {
      fields.fold.open = !narrowScreen.matches;
    });
    drawResults();
  }

  // The models of the columns and the sampling settings.
  const getRequest = () => ({
    models: COLUMNS.map(selectedModel)
      .filter(Boolean)
      .map((column) => column[0]),
    seed: fields.seed.value,
    temperature: fields.temperature.value,
    max_new_tokens: fields.max_new_tokens.value,
    reward_model_id: fields.reward.value,
  });

  // The estimated duration, shown while the form can be sent.
  let estimatedKey = '';
  async function updateEstimates() {
    const { models, max_new_tokens, reward_model_id } = getRequest();
    const query = {
      models,
      max_new_tokens,
      reward_model_id,
      samples: fields.samples.value,
      pairs: blindTest.pairs(),
      ...tournament.settings(),
    };
    const key = JSON.stringify([query, options.project, options.measured_at]);
    if (key === estimatedKey) return;
    estimatedKey = key;
    const reply = await server.estimates(query);
    if (key !== estimatedKey) return;
    fields.estimate.textContent = reply?.comparison || '';
    blindTest.setEstimate(reply?.blind_test || '');
    tournament.setEstimate(reply?.tournament || '');
  }

  // The form's settings as one line, shown when it is collapsed.
  function updateSummary() {
    const models = COLUMNS.map(selectedModel)
      .filter(Boolean)
      .map(([, label]) => label);
    fields.chosen.replaceChildren(
      el('strong', {}, models.join(' against ')),
      el(
        'span.muted',
        {},
        `: ${plural(Number(fields.samples.value), 'text')} each, seed ${fields.seed.value}, temperature ` +
          `${fields.temperature.value}, ${fields.max_new_tokens.value} tokens, ` +
          `${fields.reward.value ? 'scored by ' : ''}${fields.reward.selectedOptions[0].textContent}`,
      ),
    );
  }

  // The prompt that the page filled in.
  let suggestedPrompt = '';
  const proposed = { temperature: '', max_new_tokens: '64' };

  function refillForm() {
    const run = options.models.find(([id]) => id.startsWith('run/'));
    const newestRun = run ? run[0] : '';
    for (const column of COLUMNS) {
      setOptions(
        fields[`model-${column}`],
        [...(column > 1 ? [['', 'nothing']] : []), ...options.models],
        column === 1 ? 'base' : column === 2 ? newestRun : '',
      );
      fillSteps(column);
    }
    setDefaultScorers();
    fillProposed(fields, proposed, options);
    updateSummary();
    updateButtons();
    fields.another.disabled = !options.prompts.length;
    fields.source.textContent = options.prompts.length
      ? 'from the held-out prompts'
      : 'this project has no held-out prompts; type one';
    fields.note.hidden = Boolean(run);
    fields.note.textContent =
      'No run has completed a step yet. Start one under Train to compare before and after; until then you ' +
      'can sample from the base model.';
    if (!fields.prompt.value || fields.prompt.value === suggestedPrompt) {
      fillPrompt(options.prompts.includes(suggestedPrompt) ? suggestedPrompt : options.prompts[0] || '');
    }
  }

  // The default until a person chooses: the reward model of the rightmost run, or without a run the newest one.
  function setDefaultScorers() {
    const run = COLUMNS.map(runInColumn).filter(Boolean).at(-1) || '';
    const [reward, judge] = options.scorer_by_run[run] || options.default_scorer || ['', ''];
    setOptions(fields.reward, [...options.reward_models, ['', 'no scores']], reward);
    setOptions(fields.judge, [['', 'no judge'], ...props.data.judges.map(([name]) => [name, `judge ${name}`])], judge);
  }

  // Names the selected runs that learnt from a reward model other than the scoring one.
  function otherScorersNote(reward) {
    return selectedRuns()
      .filter((run) => reward && String(options.scorer_by_run[run]?.[0] ?? reward) !== reward)
      .map((run) => ` Run ${run} was trained on reward model ${options.scorer_by_run[run][0]}.`)
      .join('');
  }

  function suggestPrompt() {
    const others = options.prompts.filter((prompt) => prompt !== fields.prompt.value);
    fillPrompt(others[Math.floor(Math.random() * others.length)] ?? fields.prompt.value);
  }

  function fillPrompt(text) {
    suggestedPrompt = fields.prompt.value = text;
    fields.conversation.show(options.conversations[text]);
  }

  // ---- sampling

  function selectedModel(column) {
    const model = fields[`model-${column}`].value;
    if (!model) return null;
    if (!model.startsWith('run/')) return [model, fields[`model-${column}`].selectedOptions[0].textContent];
    const run = model.split('/')[1];
    const step = fields[`step-${column}`].value;
    const lastStep = (options.steps_by_run[run] || []).at(-1);
    if (step === 'latest' && lastStep !== undefined) {
      return [`run/${run}/${lastStep}`, `run ${run}, step ${lastStep} (latest)`];
    } // a fixed step, so that the result can be reproduced
    return [`run/${run}/${step}`, `run ${run}, ${step === 'latest' ? 'latest step' : `step ${step}`}`];
  }

  function sample() {
    if (pending || !areRunsLoaded()) return;
    const columns = COLUMNS.map(selectedModel).filter(Boolean);
    for (const column of COLUMNS) markChosen(`model-${column}`); // keep the selection that was sampled
    showError('');
    if (narrowScreen.matches) fields.fold.open = false; // the texts come below
    pending = {
      labels: columns.map((c) => c[1]),
      judge: fields.judge.value,
      reward: fields.reward.value,
      seed: fields.seed.value,
      temperature: fields.temperature.value,
      scorersNote: otherScorersNote(fields.reward.value),
      id: Date.now(),
      jobs: null,
      columns: [],
    };
    drawResults();
    trigger('sample', {
      request_id: pending.id,
      annotator: annotatorName(),
      prompt: fields.prompt.value,
      samples: fields.samples.value,
      ...getRequest(),
    });
  }

  function cancel() {
    if (pending && pending.jobs) trigger('cancel', { jobs: pending.jobs, annotator: annotatorName() });
    pending = null;
    drawResults();
  }

  function showError(text, field = '') {
    fields.error.hidden = !text;
    fields.error.textContent = text;
    for (const name of ['prompt', ...NUMBERS]) fields[name].toggleAttribute('aria-invalid', name === field);
    if (field && field !== 'prompt') fields.fold.open = true;
    if (field) fields[field].focus();
  }

  // ---- results

  function waitingText(answer) {
    const status =
      answer && answer.running
        ? 'The engine writes'
        : 'Waiting for the engine (it answers between the steps of a run; if it was stopped, it loads the model first)';
    return `${status} (${formatDuration((Date.now() - pending.id) / 1000)}) …`;
  }

  function textCell(item, column, i) {
    const answer = item.columns[column];
    const first = item.columns[0];
    if (!answer || answer.is_waiting) {
      return el('div.text', {}, i ? '' : el('p.muted.waits', { 'data-column': column }, waitingText(answer)));
    }
    if (answer.error) return el('div.text', {}, i ? '' : el('p.lab-notice.bad', { role: 'alert' }, answer.error));
    const text = answer.texts[i];
    const base = first && first.texts ? first.texts[i] : undefined;
    if (text === undefined) return el('div.text', {});
    const score = answer.scores[i];
    const gold = answer.gold[i];
    const bestOf = answer.best_of;
    const sampleCount = answer.scores.length;
    return el(
      'div.text',
      { 'data-column-name': item.labels[column] },
      answer.note && !i ? el('p.muted', {}, answer.note) : null,
      text === ''
        ? el('p.muted', {}, '(it wrote nothing)')
        : withCut(
            column && bestOf === 1 && first.best_of === 1 && base !== undefined
              ? markedDiff(base, text, 'p.lab-text.lab-scroll')
              : el('p.lab-text.lab-scroll', { dir: 'auto' }, text),
            answer.cut[i],
          ),
      el(
        'div.lab-row.badges',
        {},
        score === undefined
          ? null
          : el('span.lab-badge', { title: 'reward model, in sd of base samples' }, `score ${formatNumber(score)}`),
        gold === undefined
          ? null
          : el('span.lab-badge', { title: `score by the judge ${item.judge}` }, `gold ${formatNumber(gold)}`),
        bestOf > 1 ? el('span.lab-badge.accent', {}, `best of ${bestOf} by its score`) : null,
        bestOf === 1 && sampleCount > 2 && score === Math.max(...answer.scores)
          ? el('span.lab-badge.good', {}, `highest of ${sampleCount}`)
          : null,
      ),
    );
  }

  function resultCard(item) {
    const rows = Math.max(1, ...item.columns.map((answer) => (answer && answer.texts ? answer.texts.length : 0)));
    const grid = el('div.grid');
    grid.style.setProperty('--columns', item.labels.length);
    item.labels.forEach((label, c) =>
      grid.append(el('div.head', {}, el('h3', {}, label), el('span.muted', {}, meansText(item.columns[c])))),
    );
    const failures = new Set(item.columns.map((answer) => answer && answer.error));
    if (item.columns.length && failures.size === 1 && !failures.has(undefined)) {
      grid.replaceChildren(el('p.lab-notice.bad.all', { role: 'alert' }, ...failures));
    } else for (let i = 0; i < rows; i++) item.labels.forEach((_, c) => grid.append(textCell(item, c, i)));
    return el(
      'section.lab-card',
      { 'data-do': item === pending ? 'awaited' : 'answer', 'aria-label': 'answers' },
      item.turns ? promptView(item.turns, '.asked.lab-scroll') : null,
      el(
        'div.lab-row',
        {},
        el(
          'span.muted',
          {},
          `seed ${item.seed}, temperature ${item.temperature}` +
            (item.reward ? `, scored by reward model ${item.reward}.${item.scorersNote}` : ''),
        ),
        item === pending
          ? el('button.lab-button.small', { type: 'button', 'data-do': 'cancel', onclick: cancel }, 'Cancel')
          : null,
      ),
      grid,
    );
  }

  function drawResults() {
    const resultCards = [pending, ...finished].filter(Boolean).map(resultCard);
    results.replaceChildren(
      ...(resultCards.length
        ? resultCards
        : [
            el(
              'div.lab-card.lab-empty',
              {},
              'Press Write to see the texts of the models side by side. The last five results are kept while ' +
                'the page is open.',
            ),
          ]),
    );
    fields.sample.textContent = pending ? 'Writing …' : 'Write';
    updateButtons();
  }

  const updateButtons = () => {
    fields.sample.disabled = fields.newSeed.disabled = Boolean(pending) || !areRunsLoaded();
  };

  async function pollResults() {
    if (!pending || !pending.jobs) {
      updateWaitingTimes();
      return;
    }
    const request = pending;
    const reply = await unwrap(
      server.completions({ jobs: request.jobs, judge: request.judge, annotator: annotatorName() }),
    );
    if (pending !== request) return;
    const hasChanged = JSON.stringify(request.columns) !== JSON.stringify(reply.columns);
    request.columns = reply.columns;
    if (request.columns.every((answer) => !answer.is_waiting)) {
      finished.unshift(request);
      finished.splice(MAX_RESULTS);
      pending = null;
    }
    if (hasChanged) drawResults();
    else updateWaitingTimes();
  }

  function updateWaitingTimes() {
    if (!pending) return;
    for (const node of results.querySelectorAll('.waits')) {
      node.textContent = waitingText(pending.columns[Number(node.dataset.column)]);
    }
  }

  watch('value', () => {
    const reply = props.value;
    if (tournament?.handleReply(reply)) return;
    if (blindTest?.handleReply(reply)) {
      optionsRequestedAt = Date.now();
      return;
    } // its list of tests is newer than the cached options
    if (!reply || !pending || reply.request_id !== pending.id) return;
    if (reply.error) {
      pending = null;
      drawResults();
      showError(reply.error, reply.field);
      return;
    }
    Object.assign(pending, { jobs: reply.jobs, turns: reply.turns });
    drawResults();
    pollResults();
  });

  // The options of the form, with details of the runs in the columns.
  async function loadOptions() {
    optionsRequestedAt = Date.now();
    const isFirst = !options;
    const runs = isFirst ? [] : selectedRuns();
    if (!isFirst) updateButtons();
    const reply = await unwrap(server.options({ revision, runs }));
    if (reply.unchanged) {
      blindTest.setTests();
      tournament.update(options.reward_models.length > 0);
      return;
    }
    // Do not show results of another project.
    const projectChanged = !isFirst && options.project !== reply.project;
    if (projectChanged) {
      finished.length = 0;
      pending = null;
    }
    options = reply;
    revision = reply.revision;
    if (isFirst) buildForm();
    else if (projectChanged) drawResults();
    blindTest.setTests(reply.tests, projectChanged);
    refillForm();
    if (areRunsLoaded()) tournament.update(options.reward_models.length > 0, projectChanged);
  }

  root.append(el('div.lab-card.lab-empty', { role: 'status' }, 'Loading the models …'));
  poll(
    root,
    async () => {
      if (options) {
        blindTest.refreshIfWaiting();
        tournament.refreshIfWaiting();
        await updateEstimates();
        await pollResults();
      }
      if (options && Date.now() - optionsRequestedAt < 4000 && areRunsLoaded()) return;
      await loadOptions();
      if (!areRunsLoaded()) await loadOptions();
    },
    700,
  );
}

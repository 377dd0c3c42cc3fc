// The form that starts a run. All settings are in the section below; choosing a preset fills them in.
import { el } from '../../shared/dom.js';
import { formatPercent, plural } from '../../shared/format.js';
import { poll, unwrap } from '../../shared/poll.js';
import { isOperator, judgeHint, operatorNotice, operatorOnly } from '../../shared/session.js';

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-run-form');
  const container = el('div', {}, el('div.lab-card.lab-empty', {}, 'Loading the reward models …'));
  let drawnKey = ''; // the state on screen, as JSON
  let drawnState = null; // the state on screen, as an object
  let wasOpened = false; // whether a person opened the form
  let startsWithoutModel = false; // whether a person wants a run without a reward model, while there is none
  let hasChosenModel = false; // whether a person chose the reward model; otherwise the server's default is used
  let hasRequestedPreset = false; // whether the settings of a preset were requested
  let awaitsPreset = false; // whether these have not arrived yet
  let isReady = false; // whether no reply is awaited
  let timer = null;
  let algorithm = 'ppo'; // of the settings below
  let estimate = ''; // how long a run with these settings takes
  const startLabel = () => `Start ${algorithm.replace('_', ' ').toUpperCase()}`;
  const control = (name) => root.querySelector(`[data-do=${name}]`);

  function setReady(ready) {
    isReady = ready;
    clearTimeout(timer);
    updateStart();
    if (!isReady) timer = setTimeout(() => setReady(true), 4000); // the reply was lost: let the person try again
  }

  const selectedModel = () => drawnState.models.find(({ id }) => String(id) === control('start-reward').value);
  const learnsFromLabels = () => props.data.label_algorithms.includes(algorithm);

  function updateStart() {
    const button = control('start');
    if (button) button.disabled = !isReady || (learnsFromLabels() && !selectedModel() && !drawnState.labels_text);
    const isFilling = awaitsPreset && !isReady; // the preset's values would overwrite what is entered now
    const algorithmSelect = control('start-algorithm');
    if (algorithmSelect) algorithmSelect.disabled = isFilling;
    document.getElementById('start-settings')?.toggleAttribute('inert', isFilling);
  }

  function start() {
    setReady(false);
    control('start-error').hidden = true;
    trigger('start', {
      request_id: Date.now(),
      reward_model: control('start-reward').value,
      name: control('start-name').value,
    });
  }

  function requestPreset(name) {
    setReady(false);
    hasRequestedPreset = awaitsPreset = true;
    trigger('preset', { preset: name });
  }

  function noModelCard(state) {
    const text = state.training_text
      ? `${state.training_text}` +
        (state.training_progress === null ? '' : ` ${formatPercent(state.training_progress)} done.`)
      : state.labels_missing > 0
        ? [
            `Label ${plural(state.labels_missing, 'more pair')} under Label`,
            judgeHint(),
            '; the reward model is then trained automatically.',
          ]
        : 'There are enough labels; training of the reward model is about to start.';
    return el(
      'div.lab-card.lab-empty',
      { role: 'status' },
      el('p', {}, 'PPO needs a reward model, and a reward model needs labels.'),
      el('p', {}, text),
      operatorOnly(
        el(
          'p',
          {},
          el(
            'button.lab-button.small',
            {
              type: 'button',
              'data-do': 'start-terms',
              onclick: () => {
                startsWithoutModel = hasChosenModel = true;
                draw(state);
              },
            },
            'Start without a reward model …',
          ),
        ),
      ),
    );
  }

  // What the run learns from, depending on the algorithm and the chosen reward model.
  function sourceNote(selected) {
    if (!learnsFromLabels()) {
      return selected
        ? selected.note
        : 'Without a reward model the reward is the sum of the reward terms: write them under "All settings of ' +
            'the new run". Or choose dpo or sft, which learn from labels.';
    }
    if (selected) {
      return (
        `${selected.note} ${algorithm} reads these labels itself; the reward model is used only for the curve ` +
        'of the score.'
      );
    }
    const labels = drawnState.labels_text;
    return labels
      ? `${algorithm} learns from the project's ${labels}. Without a reward model or reward terms there is no ` +
          'curve of the score.'
      : `${algorithm} learns from labels, and no label here prefers a text yet. Label some pairs first.`;
  }

  function updateNote() {
    const selected = selectedModel();
    const schedule = drawnState.active_runs.length
      ? ` Run ${drawnState.active_runs.join(', ')} is in progress; this run waits until it has ended.`
      : ' Training continues in the background when this page is closed.';
    const newestId = drawnState.models[0]?.id;
    const newerNote =
      selected && selected.id === drawnState.default_id && newestId !== drawnState.default_id
        ? ` Reward model ${newestId} is newer, but was trained on the labels of a simulated judge.`
        : '';
    const trainingNote =
      drawnState.training_text && selected
        ? ` ${drawnState.training_text} A run started now learns from reward model ${selected.id} and can be ` +
          'switched to that one later.'
        : '';
    const algorithmNote = props.data.algorithm_notes[algorithm] ? ` ${props.data.algorithm_notes[algorithm]}` : '';
    control('start-note').textContent = `${sourceNote(selected)}${algorithmNote}${newerNote}${trainingNote}${schedule}`;
    updateStart();
  }

  function buildForm(state) {
    const reward = el(
      'select.lab-input',
      {
        'aria-label': 'reward model',
        'data-do': 'start-reward',
        onchange: () => {
          hasChosenModel = true;
          updateNote();
        },
      },
      [
        ...state.models.map(({ id, label }) => el('option', { value: id }, `reward model ${label}`)),
        el('option', { value: 0 }, 'no reward model'),
      ],
    );
    const preset = el(
      'select.lab-input',
      { 'aria-label': 'preset', 'data-do': 'start-preset', onchange: (e) => requestPreset(e.target.value) },
      props.data.presets.map((item) =>
        el('option', { value: item.name, selected: item.name === state.default_preset }, item.label),
      ),
    );
    const algorithmSelect = el(
      'select.lab-input',
      {
        'aria-label': 'algorithm',
        'data-do': 'start-algorithm',
        onchange: (e) => {
          setReady(false);
          trigger('algorithm', { algorithm: e.target.value });
        },
      },
      props.data.algorithms.map((item) => el('option', { value: item, selected: item === algorithm }, item)),
    );
    const name = el('input.lab-input', {
      type: 'text',
      maxlength: 80,
      placeholder: 'name (optional)',
      'aria-label': 'name of the run',
      'data-do': 'start-name',
      onkeydown: (e) => {
        if (e.key === 'Enter' && !control('start').disabled) start();
      },
    });
    return el(
      'div.lab-card',
      {},
      operatorOnly(
        el(
          'div.lab-row',
          {},
          el('h2', {}, state.run_count ? 'Another run' : 'Start a run'),
          reward,
          algorithmSelect,
          preset,
        ),
        el(
          'div.lab-row',
          {},
          name,
          el('button.lab-button.lab-main', { type: 'button', 'data-do': 'start', onclick: start }, startLabel()),
          state.run_count
            ? el(
                'button.lab-button.small',
                {
                  type: 'button',
                  'data-do': 'start-close',
                  onclick: () => {
                    wasOpened = false;
                    draw(state);
                  },
                },
                'Close',
              )
            : null,
          el('p.muted.note', { 'data-do': 'start-note' }),
        ),
        el('p.muted', { 'data-do': 'start-estimate' }, estimate),
        el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'start-error' }),
      ),
    );
  }

  function showEstimate(sentence) {
    estimate = sentence;
    const node = control('start-estimate');
    if (node) node.textContent = sentence;
  }

  // While a run is on screen the form is collapsed into one button.
  const collapsedForm = (state) =>
    el(
      'div.lab-row',
      {},
      operatorOnly(
        el(
          'button.lab-button.small',
          {
            type: 'button',
            'data-do': 'start-open',
            'aria-expanded': 'false',
            onclick: () => {
              wasOpened = true;
              draw(state);
              control('start')?.focus();
            },
          },
          'Start another run …',
        ),
      ),
    );

  function draw(state) {
    // training progress is shown only while there is no reward model
    const hasForm = state.models.length > 0 || startsWithoutModel;
    const key = JSON.stringify([
      { ...state, measured_at: 0, training_progress: hasForm ? null : state.training_progress },
      wasOpened,
      startsWithoutModel,
      isOperator(),
    ]);
    const hasNewSpeed = drawnState !== null && drawnState.measured_at !== state.measured_at;
    if (hasNewSpeed && isOperator() && !awaitsPreset) trigger('estimate', {});
    if (key === drawnKey) {
      drawnState = state;
      return;
    }
    const changed = (name) => drawnState !== null && drawnState[name] !== state[name];
    const projectChanged = ['project', 'temperature', 'max_new_tokens'].some(changed); // with its settings
    drawnKey = key;
    drawnState = state;
    const isOpen = wasOpened || state.run_count === 0;
    document.body.classList.toggle('lab-run-form-open', isOpen && hasForm);
    if (!isOpen || projectChanged) hasChosenModel = false;
    if (!isOpen) {
      container.replaceChildren(collapsedForm(state));
      return;
    }
    if (!hasForm) {
      container.replaceChildren(noModelCard(state));
      return;
    }
    rebuildForm(state, projectChanged);
  }

  // Rebuild the form (a reward model was added, a run has ended) and keep what the person entered.
  function rebuildForm(state, projectChanged) {
    const names = [...(hasChosenModel ? ['start-reward'] : []), 'start-preset', 'start-name'];
    const entered = projectChanged ? {} : Object.fromEntries(names.map((name) => [name, control(name)?.value]));
    const focus = root.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    const error = control('start-error')?.textContent || '';
    container.replaceChildren(buildForm(state));
    for (const [name, value] of Object.entries(entered)) if (value !== undefined) control(name).value = value;
    if (!hasChosenModel || !control('start-reward').value) control('start-reward').value = state.default_id ?? 0;
    if (error) {
      control('start-error').hidden = false;
      control('start-error').textContent = error;
    }
    if (focus) control(focus)?.focus();
    updateNote();
    if (isOperator() && (!hasRequestedPreset || entered['start-preset'] === undefined)) {
      requestPreset(entered['start-preset'] ?? state.default_preset);
    } else setReady(!awaitsPreset);
  }

  watch('value', () => {
    const reply = props.value;
    if (!reply) return;
    if (reply.estimate !== undefined) showEstimate(reply.estimate);
    if (reply.estimate !== undefined && !reply.filled_preset) return;
    setReady(true);
    if (reply.filled_preset) {
      awaitsPreset = false;
      algorithm = reply.algorithm;
      if (control('start')) {
        control('start').textContent = startLabel();
        control('start-algorithm').value = algorithm;
        updateNote();
      }
      return;
    }
    const notice = control('start-error');
    if (notice) {
      notice.hidden = !reply.error;
      notice.textContent = reply.error || '';
    }
    if (!reply.run) return;
    wasOpened = false;
    window.dispatchEvent(new CustomEvent('lab-run', { detail: reply.run }));
  });
  // The tooltip of a disabled setting says why it is disabled. Set on hover, because the section may be opened late.
  document.addEventListener('mouseover', (event) => {
    const node = event.target.closest?.('#start-settings [id^="start-"]');
    const algorithms = node && props.data.algorithms_by_setting[node.id.slice('start-'.length)];
    if (algorithms) {
      node.title = algorithms.includes(algorithm)
        ? ''
        : `${algorithm} does not read this setting, only ${algorithms.join(', ')}; it keeps its default.`;
    }
  });
  root.classList.toggle('lab-operating', props.data.is_demo); // visitors have another form: demo_run.js
  root.append(operatorNotice('Only the operator can start and control runs; you can watch.'), container);
  poll(root, async () => draw(await unwrap(server.options({}))), 2000);
}

// The card "Export" of the screen "Runs & data": labels, runs and reward models as files.
import { el } from '../shared/dom.js';
import { displayName } from '../shared/format.js';
import { operatorOnly } from '../shared/session.js';

const controlsOf = (card) => (name) => card.querySelector(`[data-do="${name}"]`);

function select(name, label, items) {
  return el(
    'label.field',
    {},
    el('span.muted', {}, label),
    el(
      'select.lab-input',
      { 'data-do': name },
      items.map(([value, text]) => el('option', { value }, text)),
    ),
  );
}

function exportRow(onExport, buttons, title, description, fields, getOptions, isEnabled, progress = null) {
  return el(
    'div.line',
    {},
    el('div', {}, el('h3', {}, title), el('p.muted', {}, description)),
    el(
      'div.lab-row',
      {},
      operatorOnly(
        ...fields,
        ...buttons.map(([name, label]) =>
          el(
            'button.lab-button.small',
            {
              type: 'button',
              'data-do': `export-${name}`,
              disabled: !isEnabled,
              onclick: () => onExport(name, getOptions()),
            },
            label,
          ),
        ),
      ),
      progress,
    ),
  );
}

// Offer all annotators and each annotator with labels of the chosen source.
function fillAnnotators(card, state, selected) {
  const control = controlsOf(card);
  const source = control('export-source').value;
  const names = Object.entries(state.annotators)
    .filter(([sourceName]) => source === 'all' || sourceName === source)
    .flatMap(([, sourceNames]) => sourceNames);
  control('export-annotator').replaceChildren(
    ...[['', 'everybody'], ...names.map((name) => [name, displayName(name)])].map(([value, label]) =>
      el('option', { value, selected: value === selected }, label),
    ),
  );
}

// Returns whether the card was redrawn. onExport(kind, options): called when a button was pressed. progress: an element
// beside the buttons of labels.
export function updateExportCard(card, state, onExport, progress) {
  const control = controlsOf(card);
  const key = JSON.stringify([
    state.project,
    state.labels,
    state.annotators,
    state.reward_models,
    state.runs.map((run) => [run.id, run.name, run.step > 0]),
  ]);
  if (key === card.dataset.drawn) return false;
  card.dataset.drawn = key;
  const selected = Object.fromEntries([...card.querySelectorAll('select')].map((box) => [box.dataset.do, box.value]));
  const { human, simulated } = state.labels;
  card.hidden = false;
  card.replaceChildren(
    el('h2', {}, 'Export'),
    exportRow(
      onExport,
      [
        ['labels', 'Labels'],
        ['dataset', 'Data set (zip)'],
      ],
      'Labels',
      `${human} by people, ${simulated} simulated. Prompt, chosen, rejected: the format that TRL reads. The ` +
        'data set has a card and a record of its provenance; load_dataset opens it.',
      [
        select('export-source', 'whose labels', [
          ['human', 'by people'],
          ['simulated', 'simulated'],
          ['all', 'all, each marked'],
        ]),
        select('export-annotator', 'labelled by', []),
        select('export-names', 'names', [
          ['with', 'with names'],
          ['without', 'without names'],
        ]),
        select('export-ties', 'ties', [
          ['keep', 'keep ties'],
          ['drop', 'drop ties'],
        ]),
        select('export-layout', 'rows', [
          ['training', 'for training, without ties'],
          ['votes', 'every vote with all columns'],
          ['explicit', 'TRL, explicit prompt'],
          ['implicit', 'TRL, implicit prompt'],
          ['explicit+chats', 'TRL, explicit, chats'],
          ['implicit+chats', 'TRL, implicit, chats'],
        ]),
        select('export-agreement', 'agreement', [
          ['0', 'any agreement'],
          ['0.5', 'half of the votes agree'],
          ['0.66', 'two thirds agree'],
          ['1', 'all agree'],
        ]),
        select('export-format', 'file format', [
          ['jsonl', 'JSON Lines'],
          ['jsonl.gz', 'JSON Lines, gzip'],
          ['json', 'JSON'],
          ['csv', 'CSV'],
          ['parquet', 'Parquet'],
        ]),
      ],
      () => ({
        source: control('export-source').value,
        annotators: [control('export-annotator').value].filter(Boolean),
        names: control('export-names').value === 'with',
        ties: control('export-ties').value,
        layout: control('export-layout').value,
        agreement: Number(control('export-agreement').value),
        format: control('export-format').value,
      }),
      human + simulated > 0,
      progress,
    ),
    exportRow(
      onExport,
      [
        ['run', 'Run (zip)'],
        ['adapter', 'Adapter (zip)'],
        ['model', 'Whole model (zip)'],
      ],
      'Run',
      'Metrics as CSV and TensorBoard, samples, manifest; or its latest checkpoint, as a LoRA adapter for ' +
        'PEFT or as a whole model that transformers, vLLM and llama.cpp load.',
      [
        select(
          'export-which-run',
          'run',
          state.runs.length ? state.runs.map((run) => [run.id, `${run.id} ${run.name}`]) : [['', 'no run yet']],
        ),
      ],
      () => ({ run: control('export-which-run').value }),
      state.runs.length > 0,
    ),
    exportRow(
      onExport,
      [['reward-model', 'Reward model (zip)']],
      'Reward model',
      'Adapter, head and report.',
      [
        select(
          'export-which-model',
          'reward model',
          state.reward_models.length ? state.reward_models : [['', 'none yet']],
        ),
      ],
      () => ({ reward_model: control('export-which-model').value }),
      state.reward_models.length > 0,
    ),
  );
  for (const [name, value] of Object.entries(selected)) {
    if (value && [...control(name).options].some((option) => option.value === value)) control(name).value = value;
  }
  if (!human && simulated && !selected['export-source']) control('export-source').value = 'simulated';
  fillAnnotators(card, state, selected['export-annotator']);
  control('export-source').onchange = () => fillAnnotators(card, state, '');
  return true;
}

// Section "Import preferences": choose a file or a Hub data set, preview it, map columns, import it; undo an import.
import { el, promptView, showNotice, tableHead } from '../../shared/dom.js';
import { displayName, formatBytes, momentText, plural } from '../../shared/format.js';
import { poll, unwrap } from '../../shared/poll.js';
import { operatorNotice, operatorOnly, uploadFile } from '../../shared/session.js';

const WAITING_TEXTS = {
  import: 'Importing …',
  preview: 'Reading it …',
  ask: 'Counting what would be removed …',
  back: 'Undoing the import …',
};
// The answer to each question: a later one of the same question ("numbers=…") replaces the earlier one.
export const withAnswer = (answers, answer) => {
  const question = (text) => text.split('=', 1)[0];
  return [...answers.filter((other) => question(other) !== question(answer)), answer];
};
const countText = (left, total, noun) =>
  `${left === total ? '' : `${left.toLocaleString('en')} of `}${total.toLocaleString('en')} ` +
  `${noun}${total === 1 ? '' : 's'}`;

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-import-data');
  let file = null; // {path, name} of the uploaded file
  let isUploading = false;
  let preview = null;
  let pendingId = 0;
  let pendingAction = '';
  const mapping = {};
  const ticks = {}; // what is ticked below the preview, which is drawn again after each question
  let choices = ''; // the values of votes as typed, "0=first,1=second"
  let answers = []; // to the importer's questions, "numbers=decimal"

  const notice = el('p.lab-notice.lab-text', { role: 'status', hidden: true, 'data-do': 'data-notice' });
  const fileInput = el('input', {
    type: 'file',
    hidden: true,
    accept: props.data.suffixes.join(','),
    'data-do': 'data-file',
    onchange: (event) => upload(event.target.files[0]),
  });
  const datasetInput = el('input.lab-input', {
    type: 'text',
    placeholder: 'OWNER/NAME',
    'aria-label': 'data set on the Hub',
    'data-do': 'data-hub',
  });
  const splitInput = el('input.lab-input', { type: 'text', value: 'train', 'aria-label': 'split', size: 12 });
  const configInput = el('input.lab-input', {
    type: 'text',
    'aria-label': 'configuration',
    placeholder: 'if it has several',
    'data-do': 'data-config',
    size: 14,
  });
  const fileName = el('span.muted', {});
  // The preview says which votes the project already has; this depends on their source and annotator.
  const previewAgain = () => {
    if (preview) requestPreview();
  };
  const sourceSelect = el(
    'select.lab-input',
    { 'data-do': 'data-source', onchange: previewAgain },
    el('option', { value: 'human' }, 'votes of people'),
    el('option', { value: 'simulated' }, 'simulated votes'),
  );
  const annotatorInput = el('input.lab-input', {
    type: 'text',
    maxlength: 60,
    placeholder: 'imported',
    'data-do': 'data-annotator',
    onchange: previewAgain,
  });
  const form = el(
    'section.lab-card.ask',
    { 'aria-label': 'what to import' },
    el(
      'div.lab-row',
      {},
      el(
        'span.muted.lab-grow',
        {},
        'JSON Lines, JSON, CSV or Parquet, also .gz: chosen and rejected, votes of several people, scores, ' +
          'chats, transcripts.',
      ),
    ),
    el(
      'div.lab-row',
      { style: 'align-items: end' },
      el(
        'button.lab-button',
        { type: 'button', 'data-do': 'data-choose', onclick: () => fileInput.click() },
        'Choose a file',
      ),
      fileInput,
      fileName,
      el('span.muted', {}, 'or from the Hub'),
      datasetInput,
      el('label', {}, el('span.muted', {}, 'split '), splitInput),
      el('label', {}, el('span.muted', {}, 'configuration '), configInput),
      el('button.lab-button.small', { type: 'button', 'data-do': 'data-hub-look', onclick: previewDataset }, 'Preview'),
    ),
    el(
      'div.lab-row',
      {},
      el('label', {}, el('span.muted', {}, 'whose votes'), sourceSelect),
      el('label', {}, el('span.muted', {}, 'annotator, where the file names none'), annotatorInput),
    ),
    el(
      'p.muted',
      {},
      `Files up to ${formatBytes(props.data.max_bytes)} here; larger ones with: ${props.data.lab_command} import FILE`,
    ),
  );
  const previewCard = el('section.lab-card.found', { 'aria-label': 'preview', hidden: true });
  const importsCard = el('section.lab-card.past', { 'aria-label': 'what was imported', hidden: true });
  const onlyOperator = operatorNotice(
    "Only the operator can import and undo imports. Open the operator's link, or enter the operator's secret " +
      'under Project.',
  );
  // the notice is below the buttons, so that it does not move them
  root.append(onlyOperator, operatorOnly(form, previewCard), notice, importsCard);

  const showMessage = (text, isError = false) => showNotice(notice, text, isError);

  // Without a Hub name the uploaded file is previewed; an upload also starts a preview by itself.
  function previewDataset() {
    if (isUploading) return;
    if (datasetInput.value.trim() || !file) {
      file = null;
      fileName.textContent = '';
      resetMapping();
    }
    requestPreview();
  }

  async function upload(selectedFile) {
    if (!selectedFile) return;
    datasetInput.value = '';
    if (selectedFile.size > props.data.max_bytes) {
      showMessage(
        `${selectedFile.name} has ${formatBytes(selectedFile.size)}. Import it with: ` +
          `${props.data.lab_command} import FILE`,
        true,
      );
      return;
    }
    showMessage('Sending the file …');
    isUploading = true;
    try {
      const reply = await uploadFile(selectedFile, selectedFile.name);
      if (!reply.ok) throw new Error(`the page answered ${reply.status}`);
      file = { path: (await reply.json())[0], name: selectedFile.name };
    } catch (error) {
      showMessage(`The file could not be sent (${error.message}). Try again.`, true);
      return;
    } finally {
      fileInput.value = '';
      isUploading = false;
    }
    fileName.textContent = selectedFile.name;
    resetMapping();
    requestPreview();
  }
  function resetMapping() {
    for (const key of Object.keys(mapping)) delete mapping[key];
    for (const key of Object.keys(ticks)) delete ticks[key];
    choices = '';
    answers = [];
    preview = null; // what is on screen is of another file
    drawPreview();
  }

  function request() {
    const input = file
      ? { path: file.path, name: file.name }
      : { dataset: datasetInput.value, split: splitInput.value, config: configInput.value };
    const votes = { column_mapping: mapping, choices, answers, source: sourceSelect.value };
    return { ...input, ...votes, annotator: annotatorInput.value };
  }
  function send(action, fields) {
    pendingId = Date.now();
    pendingAction = action;
    showMessage(WAITING_TEXTS[action]);
    trigger('action', { request_id: pendingId, action, ...fields });
  }
  const sendWithInput = (action, fields = {}) => send(action, { ...request(), ...fields });
  function requestPreview() {
    sendWithInput('preview');
  }

  const checkbox = (name, label) =>
    el(
      'label.tick',
      {},
      el('input', {
        type: 'checkbox',
        'data-do': `data-${name}`,
        checked: ticks[name],
        onchange: (event) => {
          ticks[name] = event.target.checked;
        },
      }),
      label,
    );

  // A field for the column of one meaning. current: the known mapping.
  function meaningField(meaning, columns, current) {
    const onchange = (event) => {
      mapping[meaning] = event.target.value;
    };
    const names = columns.includes(current[meaning]) || !current[meaning] ? columns : [current[meaning], ...columns];
    const noColumn = meaning === 'prompt' ? 'text at the beginning of both responses' : 'no column';
    const field =
      meaning === 'annotators'
        ? el('input.lab-input', {
            type: 'text',
            value: current.annotators?.replaceAll(', ', '+') || '',
            placeholder: 'columns, joined by +',
            'data-map': meaning,
            onchange,
          })
        : el(
            'select.lab-input',
            { 'data-map': meaning, onchange },
            ['', ...names].map((name) =>
              el('option', { value: name, selected: (current[meaning] || '') === name }, name || '–'),
            ),
            el('option', { value: '', selected: mapping[meaning] === '' }, noColumn),
          );
    return el('label', {}, el('span.muted', {}, meaning.replaceAll('_', ' ')), field);
  }
  // The fields for the meaning of each column. isOpen: the data cannot be read without one.
  function mappingForm(columns, current, isOpen) {
    const fields = (meanings) =>
      el(
        'div.fields',
        {},
        meanings.map((name) => meaningField(name, columns, current)),
      );
    const further = props.data.further_meanings;
    return el(
      'details',
      { open: isOpen },
      el('summary', {}, 'Which column means what'),
      fields(props.data.main_meanings),
      el(
        'details',
        { open: further.some((name) => current[name]), 'data-do': 'data-further' },
        el('summary', {}, 'Further columns'),
        fields(further),
      ),
      el(
        'label',
        {},
        el('span.muted', {}, "what the votes' words mean, as in 0=first,1=second,2=tie "),
        el('input.lab-input', {
          type: 'text',
          value: choices,
          'data-do': 'data-choices',
          oninput: (event) => {
            choices = event.target.value;
          },
        }),
      ),
      el('button.lab-button.small', { type: 'button', 'data-do': 'data-again', onclick: requestPreview }, 'Look again'),
    );
  }
  const answerButton = ([answer, meaning]) =>
    el(
      'button.lab-button.small',
      {
        type: 'button',
        'data-answer': answer,
        onclick: () => {
          answers = withAnswer(answers, answer);
          requestPreview();
        },
      },
      meaning,
    );
  const forgetButton = () =>
    el(
      'button.lab-button.small',
      {
        type: 'button',
        'data-do': 'data-forget',
        onclick: () => {
          answers = [];
          requestPreview();
        },
      },
      'Ask me again',
    );

  // A question that only the person can answer. It is above the fields, which on a phone are longer than the screen.
  function drawQuestion({ error, columns, answers: offered }) {
    const card = el('p.lab-notice.bad', { role: 'alert', 'data-do': 'data-question' }, error);
    const buttons = Object.entries(offered).map(answerButton);
    const current = { ...preview?.mapping, ...mapping };
    const fields = mappingForm(columns, current, !buttons.length || previewCard.querySelector('details')?.open);
    previewCard.hidden = false;
    previewCard.replaceChildren(card, el('div.lab-row', {}, buttons, answers.length ? forgetButton() : []), fields);
    card.scrollIntoView({ block: 'nearest' });
  }

  function drawPreview() {
    previewCard.hidden = !preview;
    previewCard.replaceChildren();
    if (!preview) return;
    const choiceCounts = Object.entries(preview.choices)
      .map(([name, n]) => `${n} ${name.replace('_', ' ')}`)
      .join(', ');
    previewCard.replaceChildren(
      ...[
        el(
          'div.lab-row',
          {},
          el('h3', {}, preview.name),
          el(
            'span.muted',
            { 'data-do': 'data-counts' },
            `${plural(preview.rows, 'row')}, ${plural(preview.votes, 'vote')} on ` +
              `${plural(preview.prompts, 'prompt')} (${preview.layout}); ${choiceCounts || 'no votes'}` +
              (preview.people ? `; ${plural(preview.people, 'annotator')}` : ''),
          ),
        ),
        preview.unused.length
          ? el(
              'p.muted',
              { 'data-do': 'data-unused' },
              `Not used: ${preview.unused.slice(0, 12).join(', ')}${preview.unused.length > 12 ? ' …' : ''}`,
            )
          : null,
        preview.warnings ? el('p.lab-notice', { 'data-do': 'data-doubts' }, preview.warnings) : null,
        preview.left_out ? el('p.lab-notice', { 'data-do': 'data-left-out' }, preview.left_out) : null,
        answers.length ? forgetButton() : null,
        mappingForm(preview.columns, preview.mapping, false),
        preview.errors.length
          ? el(
              'pre.problems',
              { role: 'alert', 'data-do': 'data-problems' },
              `${plural(preview.error_count, 'row')} cannot be used:\n${preview.errors.join('\n')}`,
            )
          : null,
        el(
          'div.scroll',
          { tabindex: '0', role: 'group', 'aria-label': 'the first rows' },
          el(
            'table',
            {},
            tableHead(['row', 'prompt', 'first', 'second', 'vote', 'annotator']),
            el(
              'tbody',
              {},
              preview.first_rows.map((row) =>
                el(
                  'tr',
                  {},
                  el('td', {}, String(row.row)),
                  el('td', {}, promptView(row.turns, '.brief')),
                  ...[row.first, row.second].map((text) => el('td', {}, el('p.lab-text', { dir: 'auto' }, text))),
                  el('td', {}, row.choice.replace('_', ' ')),
                  el('td', {}, row.annotator),
                ),
              ),
            ),
          ),
        ),
        el(
          'div.lab-row',
          {},
          checkbox('use_prompts', 'also sample from the new prompts'),
          checkbox('drop_duplicates', 'leave out further answers of the same person to the same two texts'),
          checkbox('skip_broken', 'leave out rows that cannot be used'),
        ),
        el(
          'div.lab-row',
          {},
          el(
            'button.lab-button.lab-main',
            {
              type: 'button',
              'data-do': 'data-import',
              disabled: !preview.votes,
              onclick: () => sendWithInput('import', ticks),
            },
            'Import into this project',
          ),
          el('span.muted', {}, 'If a row cannot be used, nothing is imported, unless such rows are left out.'),
        ),
      ].filter(Boolean),
    );
  }

  // ---- earlier imports, each of which can be undone

  let state = null;
  let confirmingId = 0;
  let confirming = null; // {id, summary} of the import whose undo is to be confirmed
  function importRow(item) {
    const left = item.votes_left || item.pairs_left;
    const name = { 'data-import': item.id };
    const details = [momentText(item.created_at), item.imported_by && `by ${displayName(item.imported_by)}`]
      .filter(Boolean)
      .join(', ');
    const contents =
      item.votes || item.pairs
        ? `${countText(item.votes_left, item.votes, 'vote')}, ${countText(item.pairs_left, item.pairs, 'new pair')}`
        : 'contained nothing new';
    const undo = (action) => {
      confirmingId = item.id;
      send(action, { import: item.id, project: state.project });
    };
    return el(
      'li',
      name,
      el('div.what', {}, el('p.name', { dir: 'auto' }, item.name), el('p.muted', {}, details)),
      el(
        'p.figure',
        {},
        contents,
        item.taken_back_at ? el('span.muted', {}, item.votes_left ? ' (only partly undone)' : ' (undone)') : null,
      ),
      confirming?.id === item.id
        ? el(
            'div.sure',
            {},
            el('p', {}, confirming.summary),
            el(
              'div.lab-row',
              {},
              el(
                'button.lab-button.small.danger',
                {
                  type: 'button',
                  'data-do': 'data-back-sure',
                  onclick: () => {
                    confirming = null;
                    undo('back');
                    drawImports();
                  },
                },
                'Undo import',
              ),
              el(
                'button.lab-button.small',
                {
                  type: 'button',
                  'data-do': 'data-back-leave',
                  onclick: () => {
                    confirming = null;
                    drawImports();
                    importsCard.querySelector(`[data-import="${item.id}"] button`)?.focus();
                  },
                },
                'Keep',
              ),
            ),
          )
        : left && !(item.taken_back_at && !item.votes_left)
          ? operatorOnly(
              el(
                'button.lab-button.small',
                {
                  type: 'button',
                  'data-do': 'data-back',
                  'aria-label': `Undo import of ${item.name}`,
                  onclick: () => undo('ask'),
                },
                'Undo import',
              ),
            )
          : null,
    );
  }
  function drawImports() {
    importsCard.hidden = !state.imports.length;
    importsCard.replaceChildren(el('h3', {}, 'Imported so far'), el('ul', {}, state.imports.map(importRow)));
  }
  const refresh = poll(
    root,
    async () => {
      const reply = await unwrap(server.get_state({ revision: state?.revision }));
      if (reply.unchanged) return;
      if (reply.project !== state?.project) confirming = null;
      const focused = importsCard.contains(document.activeElement) && {
        ...document.activeElement.dataset,
        id: document.activeElement.closest('li')?.dataset.import,
      };
      state = reply;
      drawImports();
      if (focused) importsCard.querySelector(`[data-import="${focused.id}"] [data-do=${focused.do}]`)?.focus();
    },
    4000,
  );

  watch('value', () => {
    const reply = props.value;
    if (!reply || reply.request_id !== pendingId) return;
    if (reply.error) {
      showMessage(reply.columns ? '' : reply.error, true); // the form stays, to be mended
      if (reply.columns) drawQuestion(reply);
      return;
    }
    if (pendingAction === 'ask' || pendingAction === 'back') {
      showMessage(reply.message || '');
      confirming = reply.deletion_summary ? { id: confirmingId, summary: reply.deletion_summary } : null;
      drawImports();
      importsCard.querySelector('[data-do=data-back-sure]')?.focus();
      refresh();
      return;
    }
    if (pendingAction === 'import') {
      preview = null;
      file = null;
      fileName.textContent = '';
      showMessage(reply.message);
      refresh();
    } else {
      preview = reply.preview;
      showMessage('');
    }
    drawPreview();
  });
}

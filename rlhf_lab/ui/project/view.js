// Screen "Project": the list of projects, a new one, the operator's secret, the lab's folder and engine.
import { deleteConfirmation, el, nameField, promptView, showNotice, tableHead } from '../shared/dom.js';
import { formatBytes, formatNumber, plural, timeLeftText } from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { operatorNotice, operatorOnly } from '../shared/session.js';

const OWN = 'own';
const OTHER = 'other';
const millions = (n) => (n < 1e9 ? `${formatNumber(n / 1e6)} million` : `${formatNumber(n / 1e9)} billion`);
const inProject = (id) => `[data-project="${id}"]`;

// By mode: the control that starts the editing, and the control that then gets the focus.
const EDIT_CONTROLS = {
  name: ['project-rename', 'project-name'],
  temperature: ['project-temperature', 'project-new-temperature'],
  length: ['project-length', 'project-new-length'],
  delete: ['project-delete', 'project-delete-sure'],
};

// The settings that the project adds to its prompts.
function chatSettings(project) {
  const lines = [
    ['system prompt', project.system_prompt],
    ['template', project.template_arguments],
  ].filter(([, value]) => value);
  return lines.map(([label, value]) =>
    el('div.muted.chat-setting', { dir: 'auto', title: value }, `${label}: ${value}`),
  );
}

const labelledField = (label, hint, ...controls) =>
  el('label.field', {}, el('span.words', {}, label), ...controls, hint ? el('span.muted', {}, hint) : null);

function selectField(name, label, items, onchange) {
  return el(
    'select.lab-input',
    { 'data-do': name, 'aria-label': label, onchange },
    items.map(([value, text]) => el('option', { value }, text)),
  );
}

const VERDICT_STYLES = { fits: 'good', tight: 'warn', 'does not fit': 'bad' };

function checkResult(check) {
  const style = VERDICT_STYLES[check.verdict];
  return el(
    'div.verdict',
    { 'data-verdict': check.verdict },
    el(
      'div.lab-row',
      {},
      el(`span.lab-badge.${style}`, {}, check.verdict),
      el(
        'strong',
        {},
        `about ${formatBytes(check.required_bytes)} of ${formatBytes(check.free_bytes)} free memory on this ` +
          `machine (${check.device})`,
      ),
      el(
        'span.muted',
        {},
        `${check.architecture}, ${millions(check.parameters)} parameters` +
          (check.download_bytes ? `, ${formatBytes(check.download_bytes)} to download` : ', all files are here'),
      ),
    ),
    el('p', {}, check.advice),
    el(
      'details',
      {},
      el('summary.muted', {}, 'How this was estimated'),
      el(
        'table',
        {},
        el(
          'tbody',
          {},
          check.components.map(([name, size, formula]) =>
            el(
              'tr',
              {},
              el('th', { scope: 'row' }, name),
              el('td.figure', {}, formatBytes(size)),
              el('td.muted', {}, formula),
            ),
          ),
        ),
      ),
      el(
        'p.muted',
        {},
        `For texts of ${check.tokens} tokens with their prompts, and the presets; longer texts need more. On a CPU ` +
          'the estimate was within 5 % of the measured memory of a model with 135 million parameters. It has not ' +
          'been compared on a GPU.',
      ),
    ),
  );
}

const percent = (share) => `${Math.round(100 * share)} %`;

// The measured lengths of the open project's answers, and the proposed setting with a button that accepts it.
function lengthResult(length, accept) {
  const { rows, proposal } = length;
  const isSame = (row, other) =>
    other && row.max_new_tokens === other.max_new_tokens && row.adds_instruction === other.adds_instruction;
  const group = (addsInstruction) => {
    const own = rows.filter((row) => row.adds_instruction === addsInstruction);
    if (!own.length) return [];
    const title = addsInstruction ? `With the instruction “${length.instruction}”` : 'As the project is';
    return [
      el('tr', {}, el('th.group', { colspan: 4, scope: 'rowgroup' }, title)),
      ...own.map((row) =>
        el(
          `tr${isSame(row, proposal) ? '.open' : ''}`,
          {},
          el('td.limit', {}, `${row.max_new_tokens} `, isSame(row, proposal) ? el('strong', {}, 'proposed') : null),
          el(
            'td.figure',
            {},
            percent(row.share),
            el('span.muted', {}, ` (${percent(row.low).slice(0, -2)} to ${percent(row.high)})`),
          ),
          el('td.figure', {}, row.mean_tokens.toFixed(0)),
          el('td.figure', {}, `${row.seconds.toFixed(2)} s`),
        ),
      ),
    ];
  };
  const decision = !proposal
    ? el('p', {}, 'With no measured setting do 90 % of the texts end. Choose a length yourself, in the list above.')
    : length.is_new
      ? el(
          'div.lab-row',
          {},
          operatorOnly(
            el(
              'button.lab-button.lab-main',
              { type: 'button', 'data-do': 'length-accept', onclick: accept },
              proposal.text,
            ),
          ),
          el(
            'span.muted',
            {},
            `${percent(proposal.share)} of the texts are complete then. New texts are written this way, and ` +
              'unlabelled pairs are written again; labelled ones stay. Nothing changes before you decide.',
          ),
        )
      : null;
  return [
    el('h3', {}, 'How long are the answers?'),
    el(
      'p.muted',
      {},
      `${length.texts} answers of the model were measured, with random numbers that are the same in all rows. An ` +
        'answer is complete if it ends before the limit; the range is where the share probably is for other prompts ' +
        '(95 %). ' +
        `${length.note}`,
    ),
    el(
      'table',
      {},
      tableHead(['tokens at most', 'complete', 'mean tokens', 'per pair']),
      el('tbody', {}, group(false), group(true)),
    ),
    decision,
  ].filter(Boolean);
}

const ENGINE_TEXTS = {
  absent: ['rests', 'It starts automatically when there is work to do.'],
  starting: ['starts', 'It is loading the model. This takes seconds, on a busy machine minutes.'],
  alive: ['runs', 'The process that trains and samples. It continues when this page is closed.'],
  dead: ['is lost or silent', 'Stopping it ends the remaining process; it is restarted when there is work to do.'],
};

// Sends a form, because an address with the secret would stay in the history. The login leads back to this screen.
function logInAsOperator(secret) {
  const form = el(
    'form',
    { method: 'post', action: `enter${location.hash}`, hidden: true },
    el('input', { type: 'hidden', name: 'key', value: secret }),
  );
  document.body.append(form);
  form.submit();
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-project');
  let state = null;
  let drawnKey = '';
  let pending = null; // the action that has no reply yet: {id, onReply}
  const queue = []; // actions that wait for it
  let confirmsStop = false; // whether "stop the engine?" is on screen
  const control = (name, suffix = '') => root.querySelector(`[data-do="${name}"]${suffix}`);

  const notice = el('p.lab-notice', { role: 'status', hidden: true, 'data-do': 'project-notice' });
  const list = el(
    'section',
    { 'aria-label': 'projects' },
    el('div.lab-card.lab-empty', { role: 'status' }, 'Loading the projects …'),
  );
  const downloadCard = el('section.lab-card.fetching', { 'aria-label': 'download', hidden: true });
  const lengthCard = el('section.lab-card.length', { 'aria-label': 'length of the answers', hidden: true });
  const form = el('section.lab-card.make.lab-operating', { 'aria-label': 'new project' });
  const labCard = el('section.lab-card.lab-itself', { 'aria-label': 'this lab' });
  root.append(
    operatorNotice('Only the operator can open, create and change projects; you can view them.'),
    notice,
    list,
    lengthCard,
    downloadCard,
    form,
    labCard,
  );

  // Show a message below the section of the pressed button.
  function showMessage(text, isError = false, after = list) {
    after.after(notice);
    showNotice(notice, text, isError);
  }

  // Actions are sent one at a time; a reply carries the id of its request.
  function send(action, fields, onReply) {
    queue.push({ action, fields, onReply });
    sendNext();
  }
  function sendNext() {
    if (pending || !queue.length) return;
    const { action, fields, onReply } = queue.shift();
    pending = { id: Date.now(), onReply };
    const sentRequest = pending;
    setTimeout(() => {
      if (pending === sentRequest) {
        pending = null;
        onReply({ error: 'The lab did not answer within a minute. Is it still running? Try again.' });
        sendNext();
      }
    }, 60000);
    trigger(action === 'operator_secret' ? 'operator_secret' : 'action', { request_id: pending.id, action, ...fields });
  }
  watch('value', () => {
    const reply = props.value;
    if (!reply || !pending || reply.request_id !== pending.id) return;
    const { onReply } = pending;
    pending = null;
    onReply(reply);
    sendNext();
    update();
  });
  const messageShower = (after) => (reply) => showMessage(reply.error || reply.message || '', !!reply.error, after());
  const showReply = messageShower(() => list);

  // ---- the list

  let editing = null; // {project, mode: a key of EDIT_CONTROLS}: which row shows a field or a question

  function startEditing(id, mode) {
    editing = { project: id, mode };
    drawList();
    control(EDIT_CONTROLS[mode][1], inProject(id))?.focus();
  }
  function stopEditing() {
    const { project, mode } = editing;
    editing = null;
    drawList();
    control(EDIT_CONTROLS[mode][0], inProject(project))?.focus();
  }
  const isEditing = (project, mode) => editing?.project === project.id && editing.mode === mode;

  function nameCell(project) {
    const attributes = { 'data-project': project.id };
    if (isEditing(project, 'name')) {
      return el(
        'td.name',
        {},
        nameField(
          project.name,
          `new name of project ${project.id}`,
          'project-name',
          attributes,
          (name) => send('rename', { project: project.id, name }, showReply),
          stopEditing,
        ),
      );
    }
    return el(
      'td.name',
      {},
      el('span.muted', {}, `${project.id} `),
      operatorOnly(
        el(
          'button.plain',
          {
            type: 'button',
            title: 'rename',
            'aria-label': `rename project ${project.id}, ${project.name}`,
            'data-do': 'project-rename',
            ...attributes,
            onclick: () => startEditing(project.id, 'name'),
          },
          project.name,
        ),
      ),
      chatSettings(project),
    );
  }

  // A number that applies to new texts. mode: of the editing, and the action; field: the project's value.
  function settingCell(project, mode, field, label) {
    const attributes = { 'data-project': project.id };
    const [shown, edited] = EDIT_CONTROLS[mode];
    const text = String(project[field]);
    const save = (value) => send(mode, { project: project.id, [field]: value }, showReply);
    return el(
      'td.figure',
      { 'data-words': label },
      isEditing(project, mode)
        ? nameField(text, `new ${label} of project ${project.id}`, edited, attributes, save, stopEditing)
        : operatorOnly(
            el(
              'button.plain',
              {
                type: 'button',
                title: 'change it for new texts',
                'aria-label': `change ${label} ${text} of project ${project.id}`,
                'data-do': shown,
                ...attributes,
                onclick: () => startEditing(project.id, mode),
              },
              text,
            ),
          ),
    );
  }

  function actions(project) {
    const attributes = { type: 'button', 'data-project': project.id };
    const button = (action, classes, label, onclick) =>
      el(
        `button.lab-button.small${classes}`,
        { ...attributes, 'data-do': action, 'aria-label': `${label} ${project.name}`, onclick },
        label,
      );
    if (project.id === state.current) return el('span.now', {}, 'in use');
    if (isEditing(project, 'delete')) {
      const contents = [
        plural(project.human_labels, 'label'),
        plural(project.model_count, 'reward model'),
        plural(project.run_count, 'run'),
      ].join(', ');
      return deleteConfirmation(
        `Delete it permanently, with its texts, ${contents}?`,
        'project-delete',
        { 'data-project': project.id },
        () => send('delete', { project: project.id }, showReply),
        stopEditing,
      );
    }
    return el(
      'div.lab-row',
      {},
      operatorOnly(
        button('project-open', '', 'Open', (event) => {
          event.target.disabled = true;
          send('open', { project: project.id }, showReply);
        }),
        button('project-delete', '.danger', 'Delete', () => startEditing(project.id, 'delete')),
      ),
    );
  }

  function row(project) {
    const figureCell = (label, value, note) =>
      el('td.figure', { 'data-words': label }, value, note ? el('span.muted', {}, ` ${note}`) : null);
    return el(
      'tr',
      { 'data-project': project.id, class: project.id === state.current ? 'open' : null },
      nameCell(project),
      el('td.model', {}, project.model),
      el('td.prompt-set', {}, project.prompt_set),
      settingCell(project, 'temperature', 'temperature', 'temperature'),
      settingCell(project, 'length', 'max_new_tokens', 'longest text in tokens'),
      figureCell('prompts', project.train_count + project.eval_count, `(${project.eval_count} of them to evaluate)`),
      figureCell('pairs', project.pair_count),
      figureCell(
        'labels',
        project.human_labels,
        project.simulated_labels ? `+ ${project.simulated_labels} simulated` : '',
      ),
      figureCell('reward models', project.model_count),
      figureCell('runs', project.run_count),
      el('td.actions', {}, actions(project)),
    );
  }

  function drawList() {
    const focus = list.contains(document.activeElement) ? { ...document.activeElement.dataset } : null;
    const head = [
      'project',
      'model',
      'prompt set',
      'temperature',
      'longest text',
      'prompts',
      'pairs',
      'labels by people',
      'reward models',
      'runs',
      '',
    ];
    list.replaceChildren(
      el(
        'div.lab-card',
        {},
        el(
          'div.lab-row',
          {},
          el('h2', {}, 'Projects'),
          el(
            'span.muted',
            {},
            'A project is a model with its prompts, labels, reward models and runs. A project is opened for ' +
              'everybody who uses this lab.',
          ),
        ),
        el('table', {}, tableHead(head), el('tbody', {}, state.projects.map(row))),
      ),
    );
    if (focus) control(focus.do, inProject(focus.project))?.focus();
  }

  function drawLength() {
    const { length } = state;
    lengthCard.hidden = !length;
    if (!length) return;
    const accept = (event) => {
      event.target.disabled = true;
      send(
        'accept-length',
        {},
        messageShower(() => lengthCard),
      );
    };
    lengthCard.replaceChildren(
      ...(length.is_measuring
        ? [el('p.muted', { role: 'status' }, 'The engine is measuring how long the answers are; up to half a minute …')]
        : lengthResult(length, accept)),
    );
  }

  function drawDownload() {
    const download = state.download;
    downloadCard.hidden = !download;
    if (!download) return;
    const share = download.total_bytes ? Math.round((100 * download.downloaded_bytes) / download.total_bytes) : 0;
    const isRunning = download.status === 'running';
    const fraction = download.total_bytes ? download.downloaded_bytes / download.total_bytes : 0;
    const text =
      download.status === 'checking'
        ? 'is being checked …'
        : isRunning
          ? `${formatBytes(download.downloaded_bytes)} of ` +
            `${formatBytes(download.total_bytes)}${timeLeftText(download.eta_s, fraction)}`
          : download.message;
    const bar = el('i');
    bar.style.width = `${share}%`;
    const hasFocus = downloadCard.contains(document.activeElement);
    downloadCard.replaceChildren(
      el(
        'div.lab-row',
        {},
        el('h3', {}, isRunning ? `Downloading ${download.model}` : download.model),
        el('span.muted.lab-grow', { role: 'status' }, text),
        isRunning
          ? operatorOnly(
              el(
                'button.lab-button.small',
                {
                  type: 'button',
                  'data-do': 'project-cancel',
                  onclick: () =>
                    send(
                      'cancel',
                      {},
                      messageShower(() => downloadCard),
                    ),
                },
                'Cancel',
              ),
            )
          : null,
        download.can_retry
          ? operatorOnly(
              el(
                'button.lab-button.small',
                {
                  type: 'button',
                  'data-do': 'project-retry',
                  onclick: () =>
                    send(
                      'retry',
                      {},
                      messageShower(() => downloadCard),
                    ),
                },
                'Try again',
              ),
            )
          : null,
      ),
      isRunning
        ? el(
            'div.lab-bar',
            {
              role: 'progressbar',
              'aria-label': 'download',
              'aria-valuemin': 0,
              'aria-valuemax': 100,
              'aria-valuenow': share,
            },
            bar,
          )
        : '',
    );
    if (hasFocus) (control('project-cancel') || control('project-retry'))?.focus();
  }

  // ---- a new project

  const selectedModel = () =>
    control('new-model').value === OTHER ? control('new-other').value.trim() : control('new-model').value;
  const ownPrompts = () =>
    control('new-set').value === OWN
      ? { text: control('new-text').value, file: control('new-text').dataset.file || '' }
      : {};

  function buildForm() {
    const other = el('input.lab-input', {
      type: 'text',
      'data-do': 'new-other',
      'aria-label': 'Hub id or folder',
      placeholder: "owner/name on the Hub, or a folder on the lab's machine",
      hidden: true,
      oninput: clearCheck,
    });
    const text = el('textarea.lab-input', {
      'data-do': 'new-text',
      'aria-label': 'own prompts',
      rows: 6,
      placeholder: 'One prompt per line.',
      oninput: () => {
        if (!text.value.trim()) {
          delete text.dataset.file;
          control('new-file-name').textContent = '';
        }
        previewLater();
      },
    });
    const file = el('input.file', {
      type: 'file',
      'data-do': 'new-file',
      tabindex: '-1',
      'aria-hidden': 'true',
      accept: props.data.suffixes.join(','),
      onchange: () => {
        loadFile(file.files[0]);
        file.value = '';
      },
    });
    const own = el(
      'div.own',
      { hidden: true },
      text,
      el(
        'div.lab-row',
        {},
        el(
          'button.lab-button.small',
          { type: 'button', 'data-do': 'new-file-choose', onclick: () => file.click() },
          'Choose a file …',
        ),
        file,
        el('span.muted', { 'data-do': 'new-file-name' }),
        el('span.muted', {}, `${props.data.suffixes.join(', ')}; .jsonl and .csv need a column "prompt"`),
      ),
      el('div', { 'data-do': 'new-preview', role: 'status' }),
    );
    form.append(
      el('h2', {}, 'New project'),
      el(
        'div.fields',
        {},
        labelledField(
          'Model',
          '',
          selectField('new-model', 'model', [...props.data.models, [OTHER, 'another: a Hub id or a folder …']], () => {
            other.hidden = control('new-model').value !== OTHER;
            clearCheck();
            if (!other.hidden) other.focus();
          }),
          other,
        ),
        labelledField(
          'Prompts',
          '',
          selectField(
            'new-set',
            'prompts',
            [['', 'chosen for the model'], ...props.data.prompt_sets, [OWN, 'my own …']],
            () => {
              own.hidden = control('new-set').value !== OWN;
              if (!own.hidden) text.focus();
            },
          ),
        ),
        labelledField(
          'Name',
          '',
          el('input.lab-input', {
            type: 'text',
            maxlength: 80,
            placeholder: 'default: model and prompts',
            'data-do': 'new-name',
          }),
        ),
        labelledField(
          'Temperature',
          '',
          el('input.lab-input', {
            type: 'text',
            inputmode: 'decimal',
            placeholder: 'automatic',
            title: '0.05 to 5; lower: more similar texts, higher: more varied texts. Empty: chosen for the model',
            'data-do': 'new-temperature',
          }),
        ),
        labelledField(
          'Longest text',
          '',
          el('input.lab-input', {
            type: 'text',
            inputmode: 'numeric',
            placeholder: '64 tokens',
            title: 'A text that has not ended by then is cut off. Longer texts take longer to write and to train on.',
            'data-do': 'new-length',
          }),
        ),
        labelledField(
          'Seed',
          '',
          el('input.lab-input', {
            type: 'text',
            inputmode: 'numeric',
            value: '0',
            title: 'In a lab of several people 0 is a random seed, so that nobody can compute the texts.',
            'data-do': 'new-seed',
          }),
        ),
      ),
      own,
      el(
        'details.chat-settings',
        {},
        el('summary', {}, 'System prompt and chat template'),
        el(
          'div.inside',
          {},
          labelledField(
            'System prompt',
            '',
            el('textarea.lab-input', {
              rows: 3,
              maxlength: 10000,
              placeholder: 'none',
              'data-do': 'new-system-prompt',
            }),
          ),
          labelledField(
            'Template arguments',
            '',
            el('input.lab-input', {
              type: 'text',
              placeholder: 'automatic: thinking is off',
              title: 'Values for the chat template of the model, as JSON. Example: {"enable_thinking": true}',
              'data-do': 'new-template-arguments',
            }),
          ),
          el(
            'p.muted',
            {},
            'The model reads the system prompt before every conversation: for pairs, training and ' +
              'comparisons alike. A conversation with its own system message keeps it. ' +
              'If the chat template has no system role, the system prompt is placed at the beginning of the ' +
              'first user message. Both settings are fixed: to change them, create a new project.',
          ),
        ),
      ),
      el(
        'div.lab-row',
        {},
        el('button.lab-button', { type: 'button', 'data-do': 'new-check', onclick: checkModel }, 'Check the model'),
        el(
          'button.lab-button.lab-main',
          { type: 'button', 'data-do': 'new-create', onclick: () => createProject() },
          'Create and open',
        ),
        el('span.muted', {}, 'The check reads the files that describe the model; it does not load the model.'),
      ),
      el('div', { 'data-do': 'new-check-result', role: 'status' }),
    );
  }

  const formEnd = () => control('new-check-result');

  // Reset the form after its project was created.
  function resetForm() {
    for (const name of ['new-model', 'new-set']) control(name).selectedIndex = 0;
    for (const name of [
      'new-name',
      'new-text',
      'new-other',
      'new-temperature',
      'new-length',
      'new-system-prompt',
      'new-template-arguments',
    ]) {
      control(name).value = '';
    }
    control('new-seed').value = '0';
    control('new-other').hidden = true;
    form.querySelector('.own').hidden = true;
    delete control('new-text').dataset.file;
    control('new-file-name').textContent = '';
    control('new-preview').replaceChildren();
    clearCheck();
  }

  function clearCheck() {
    control('new-check-result').replaceChildren();
  }
  function setBusy(isBusy) {
    for (const name of ['new-check', 'new-create']) control(name).disabled = isBusy;
  }

  let timer = null;
  function previewLater() {
    clearTimeout(timer);
    control('new-preview').replaceChildren();
    if (control('new-text').value.trim()) timer = setTimeout(preview, 600);
  }
  function preview() {
    showMessage('', false, formEnd());
    send('preview', ownPrompts(), (reply) => {
      const container = control('new-preview');
      if (reply.error) {
        container.replaceChildren(el('p.lab-notice.bad', {}, reply.error));
        return;
      }
      const { count, eval_count: evalCount, first_prompts: firstPrompts } = reply.preview;
      container.replaceChildren(
        el(
          'p.muted',
          {},
          `${count} prompts: ${count - evalCount} to train on, ${evalCount} kept for evaluation. The first:`,
        ),
        el(
          'ol.first',
          {},
          firstPrompts.map((turns) =>
            el(
              'li',
              {},
              promptView(
                turns.map(({ role, content }) => ({
                  role,
                  content: content.length > 160 ? `${content.slice(0, 160)} …` : content,
                })),
                '.brief',
              ),
            ),
          ),
        ),
      );
    });
  }
  async function loadFile(file) {
    if (!file) return;
    if (file.size > props.data.max_bytes) {
      showMessage(
        `${file.name} has ${formatBytes(file.size)}; at most ${formatBytes(props.data.max_bytes)} of prompts ` +
          'can be read. Choose a smaller file.',
        true,
        formEnd(),
      );
      return;
    }
    const text = await file.text();
    control('new-text').value = text;
    control('new-text').dataset.file = file.name;
    control('new-file-name').textContent = file.name;
    preview();
  }

  function checkModel() {
    const model = selectedModel();
    if (!model) {
      control('new-other').focus();
      return;
    }
    setBusy(true);
    control('new-check-result').replaceChildren(
      el('p.muted', {}, 'Checking the model; the Hub may take some seconds …'),
    );
    send('check', { model, max_new_tokens: control('new-length').value.trim() }, (reply) => {
      setBusy(false);
      if (selectedModel() !== model) return;
      control('new-check-result').replaceChildren(
        reply.error ? el('p.lab-notice.bad', {}, reply.error) : checkResult(reply.check),
      );
      if (!reply.error) {
        control('new-check-result').append(
          el(
            'p',
            {},
            `Suits this model: prompts "${reply.prompt_set}", temperature ${reply.temperature}` +
              `${reply.template_arguments ? `, template arguments ${reply.template_arguments}` : ''}.`,
          ),
        );
      }
    });
  }

  function createProject(confirmed = false) {
    const model = selectedModel();
    if (!model) {
      control('new-other').focus();
      return;
    }
    setBusy(true);
    showMessage('Creating the project …', false, formEnd());
    send(
      'create',
      {
        model,
        prompt_set: control('new-set').value,
        name: control('new-name').value,
        temperature: control('new-temperature').value.trim(),
        max_new_tokens: control('new-length').value.trim(),
        seed: control('new-seed').value.trim(),
        system_prompt: control('new-system-prompt').value,
        template_arguments: control('new-template-arguments').value,
        confirmed,
        ...ownPrompts(),
      },
      (reply) => {
        setBusy(false);
        if (reply.warning) {
          askToConfirm(reply);
          return;
        }
        showMessage(reply.error || reply.message, !!reply.error, formEnd());
        if (!reply.error) resetForm();
        notice.scrollIntoView({ block: 'nearest' });
      },
    );
  }

  function askToConfirm(reply) {
    showMessage('', false, formEnd());
    control('new-check-result').replaceChildren(
      checkResult(reply.check),
      el(
        'div.lab-notice.lab-row',
        { role: 'alert' },
        reply.warning,
        el(
          'button.lab-button.small',
          { type: 'button', 'data-do': 'new-sure', onclick: () => createProject(true) },
          'Create it anyway',
        ),
      ),
    );
  }

  // ---- the lab itself

  function buildLab() {
    const secretForm = el(
      'form.lab-row',
      {
        onsubmit: (event) => {
          event.preventDefault();
          submitSecret();
        },
      },
      el('label', { for: 'lab-secret' }, "Operator's secret"),
      el('input.lab-input', {
        type: 'password',
        id: 'lab-secret',
        autocomplete: 'current-password',
        'data-do': 'secret',
      }),
      el('button.lab-button.small', { type: 'submit', 'data-do': 'secret-enter' }, 'Enter'),
      el(
        'span.muted',
        {},
        'Only the operator trains, deletes, exports and changes projects. This browser keeps the secret.',
      ),
    );
    const details = el(
      'details.lab-operating',
      {
        'data-do': 'lab-about',
        ontoggle: () => {
          if (details.open) loadAbout();
        },
      },
      el('summary', {}, "Folder, disk and the engine's log"),
      el('div.inside', {}, el('p.muted', {}, 'Counting …')),
    );
    labCard.append(el('h2', {}, 'This lab'), props.data.has_secret ? secretForm : '', el('div.engine'), details);
  }
  function submitSecret() {
    const secret = control('secret').value;
    send('operator_secret', { secret }, (reply) => {
      if (reply.redirect_to_login) {
        logInAsOperator(secret);
        return;
      }
      messageShower(() => labCard.querySelector('form'))(reply);
      if (!reply.error) control('secret').value = '';
    });
  }

  const engineNode = () => labCard.querySelector('.engine');

  function drawEngine() {
    const [stateText, explanation] = ENGINE_TEXTS[state.engine.state] || [state.engine.state, ''];
    const stopButton = (name, label) =>
      el(
        'button.lab-button.small.danger',
        {
          type: 'button',
          'data-do': name,
          disabled: !state.engine.stoppable,
          onclick: () => {
            if (name === 'stop-engine') {
              confirmsStop = true;
              drawEngine();
              control('stop-engine-sure').focus();
            } else {
              confirmsStop = false;
              send('stop-engine', {}, messageShower(engineNode));
              drawEngine();
              showMessage('Stopping the engine; up to 20 s …', false, engineNode());
            }
          },
        },
        label,
      );
    const focus = labCard.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    engineNode().replaceChildren(
      el(
        'div.lab-row',
        {},
        el('strong', {}, `The engine ${stateText}.`),
        el('span.muted.lab-grow', {}, explanation),
        operatorOnly(
          ...(confirmsStop && state.engine.stoppable
            ? [
                el(
                  'span',
                  {},
                  'Runs stop at their last checkpoint and continue when the engine is restarted. Stop it?',
                ),
                stopButton('stop-engine-sure', 'Stop'),
                el(
                  'button.lab-button.small',
                  {
                    type: 'button',
                    'data-do': 'stop-engine-leave',
                    onclick: () => {
                      confirmsStop = false;
                      drawEngine();
                      control('stop-engine').focus();
                    },
                  },
                  'Leave it',
                ),
              ]
            : [stopButton('stop-engine', 'Stop engine')]),
        ),
      ),
    );
    if (focus) control(focus)?.focus();
  }

  function loadAbout() {
    const container = control('lab-about').querySelector('.inside');
    send('about', {}, (reply) => {
      if (reply.error) {
        container.replaceChildren(el('p.lab-notice.bad', {}, reply.error));
        return;
      }
      const { path, note, usage, free, log } = reply.about;
      container.replaceChildren(
        el('p', {}, 'Everything is kept in ', el('code', {}, path)),
        note
          ? el(
              'p.muted',
              { 'data-do': 'lab-journal' },
              `${note} Nothing is lost; votes of many people at once take a little longer.`,
            )
          : '',
        el(
          'table',
          {},
          el(
            'tbody',
            {},
            [...usage, ['free on this disk', free]].map(([label, size]) =>
              el('tr', {}, el('th', { scope: 'row' }, label), el('td.figure', {}, formatBytes(size))),
            ),
          ),
        ),
        el(
          'div.lab-row',
          {},
          el('h3', {}, "The engine's last lines"),
          el(
            'button.lab-button.small',
            { type: 'button', 'data-do': 'lab-log-again', onclick: loadAbout },
            'Look again',
          ),
        ),
        log
          ? el('pre.log', { tabindex: '0' }, log)
          : el('p.muted', {}, 'Nothing yet: the engine has not been started in this home.'),
      );
      container.querySelector('.log')?.scrollTo(0, 1e6);
    });
  }

  async function update() {
    const reply = await unwrap(server.get_state({}));
    const key = JSON.stringify(reply);
    if (key === drawnKey) return;
    drawnKey = key;
    state = reply;
    if (!editing) drawList();
    drawLength();
    drawDownload();
    drawEngine();
  }

  buildForm();
  buildLab();
  poll(root, update, 2000);
}

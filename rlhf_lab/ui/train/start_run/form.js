// The elements of the form that starts a run.
import { actionButton, html, isKey } from '../../shared/dom.js';
import { field } from '../../shared/fields.js';
import { term } from '../../shared/glossary.js';
import { judgeHint, operatorOnly } from '../../shared/session.js';
import { missingModelText } from './texts.js';

/** While there is no reward model. @param {lab.StartOptions} state @param {() => void} startWithout */
export function missingModelCard(state, startWithout) {
  const isLabelling = !state.training_text && state.labels_missing > 0;
  return html`<div class="lab-card lab-empty" role="status">
    <p>${term('PPO')} needs a ${term('reward model')}, and a reward model needs labels.</p>
    <p>
      ${missingModelText(state)}${
        isLabelling ? [judgeHint(), '; the reward model is then trained automatically.'] : null
      }
    </p>
    ${operatorOnly(html`<p>${actionButton('start-terms', 'Start without a reward model …', startWithout)}</p>`)}
  </div>`;
}

/** While a run is on screen the form is collapsed into one button. @param {() => void} open */
export function collapsedForm(open) {
  const button = actionButton('start-open', 'Start another run …', open);
  button.setAttribute('aria-expanded', 'false');
  return html`<div class="lab-row">${operatorOnly(button)}</div>`;
}

/**
 * @param {lab.StartOptions} state
 * @param {{ presets: { name: string, label: string }[], algorithms: string[], text_file_suffixes: string[] }} data
 * @param {{ model: number, preset: string, algorithm: string, name: string, column: string }} chosen
 * @param {Record<'start' | 'close', () => void> &
 *   Record<'chooseModel' | 'choosePreset' | 'chooseAlgorithm' | 'enter', (value: any) => void> &
 *   Record<'type' | 'enterNumber', (control: string, value: string) => void> &
 *   { upload: (file: File | undefined) => void }} act
 */
export function startForm(state, data, chosen, act) {
  return html`<div class="lab-card">
    ${operatorOnly(
      html`<h2>${state.run_count ? 'Another run' : 'Start a run'}</h2>`,
      html`<div class="lab-row choices">${choices(state, data, chosen, act)}</div>`,
      html`<div class="lab-row">
        <input
          class="lab-input" type="text" maxlength="80" placeholder="name (optional)" aria-label="name of the run"
          data-do="start-name" value=${chosen.name} oninput=${(event) => act.enter({ name: event.target.value })}
          onkeydown=${(event) => isKey(event, 'Enter') && act.start()}
        />
        ${actionButton('start', '', act.start, 'lab-main')}
        ${state.run_count ? actionButton('start-close', 'Close', act.close) : null}
        <p class="muted note" data-do="start-note"></p>
      </div>`,
      pretrainingTexts(data, chosen, act),
      html`<p class="muted" data-do="start-estimate"></p>`,
      html`<p class="lab-notice bad" role="alert" hidden data-do="start-error"></p>`,
    )}
  </div>`;
}

function choices(state, data, chosen, act) {
  const models = state.models.map(({ id, label }) => [id, id > 0 ? `reward model ${label}` : label]);
  const presets = data.presets.map(({ name, label }) => [name, label]);
  const algorithms = data.algorithms.map((name) => [name, name]);
  return [
    select('start-reward', 'learns from', [...models, [0, 'no reward model']], chosen.model, act.chooseModel),
    select('start-algorithm', 'algorithm', algorithms, chosen.algorithm, act.chooseAlgorithm),
    select('start-preset', 'preset', presets, chosen.preset, act.choosePreset),
    number('start-steps', act),
    number('start-size', act),
  ];
}

// The view fills in label and value, which depend on the algorithm.
const number = (action, { type, enterNumber }) => {
  const oninput = (event) => type(action, event.target.value);
  return field(action, '', {
    type: 'number',
    min: 1,
    oninput,
    onchange: (event) => enterNumber(action, event.target.value),
  });
};

const select = (action, label, choices, value, onChoice) =>
  field(action, label, { choices, value, onchange: (event) => onChoice(event.target.value) });

// The texts that PPO-ptx mixes in, while its coefficient is not 0.
function pretrainingTexts(data, chosen, act) {
  const file = html`<input
    type="file" hidden accept=${data.text_file_suffixes.join(',')} data-do="start-ptx-file"
    onchange=${(event) => act.upload(event.target.files[0])}
  />`;
  return html`<div class="lab-row" hidden data-do="start-ptx">
    <span class="muted">Texts for PPO-ptx:</span>
    ${actionButton('start-ptx-choose', 'Choose a file', () => file.click())} ${file}
    <span data-do="start-ptx-name"></span>
    <input
      class="lab-input" type="text" placeholder="column of the texts" aria-label="column of the texts"
      title='default: the column "text", or the only one; a .txt file has one text per line' value=${chosen.column}
      data-do="start-ptx-column" oninput=${(event) => act.enter({ column: event.target.value })}
    />
  </div>`;
}

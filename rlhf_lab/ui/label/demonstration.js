// @ts-check
// For the operator: let a simulated judge label, or start a new project.
import { html } from '../shared/html.js';

// act(name, fields): send judge or reset. loadActiveRun(): a promise of the run that goes on, or null.
export function demonstrationView(judges, promptSet, act, loadActiveRun) {
  const preset = judges.find((judge) => judge.prompt_set === promptSet) || judges[0];
  const choice = html`<select class="lab-input" aria-label="simulated judge">
    ${judges.map(({ name, description }) => {
      return html`<option value=${name} title=${description} selected=${name === preset.name}>${name}</option>`;
    })}
  </select>`;
  const begin = async ({ target }) => {
    const run = await loadActiveRun();
    if (run) askAboutRun(target.parentElement, run, act);
    else if (confirm('Start a new project? The labels so far are kept in the old one.')) act('reset');
  };
  return html`<details class="talks lab-operating">
    <summary class="muted">Demonstration: let a simulated judge label, or start again</summary>
    <div class="lab-row" style="margin-top:10px">
      ${choice}
      ${button('judge', 'Judge labels 40 more (simulated)', () => act('judge', { judge: choice.value, count: 40 }))}
      ${button('reset', 'Start a new project', begin)}
    </div>
  </details>`;
}

const button = (name, label, onclick) =>
  html`<button type="button" class="lab-button small" data-do=${name} onclick=${onclick}>${label}</button>`;

// The question before a new project while a run goes on, which replaces the controls until it is answered.
function askAboutRun(controls, run, act) {
  const text =
    `Run ${run.id} (${run.name}) is ${run.status}. A new project is shown to everybody; labels and runs stay in ` +
    'the old one, which you can open again under Project.';
  const answer = (name, label, then) =>
    button(name, label, () => {
      question.replaceWith(controls);
      then();
    });
  const question = html`<div class="lab-row lab-notice" role="alertdialog" aria-label="new project">
    <span>${text}</span>
    ${answer('reset-keep', 'Start the project, keep the run', () => act('reset'))}
    ${answer('reset-stop', 'Stop the run, start the project', () => act('reset', { stop_run: run.id }))}
    ${answer('reset-leave', 'Cancel', () => {})}
  </div>`;
  controls.replaceWith(question);
  question.querySelector('button').focus();
}

// The table of projects, in which each can be opened, renamed, changed and deleted.
import { actionButton, asked, html, tableHead } from '../shared/dom.js';
import { operatorOnly } from '../shared/session.js';
import { chatSettings, contentsText } from './figures.js';

const COLUMNS =
  'project,model,prompt set,temperature,longest text,prompts,pairs,labels by people,reward models,runs,'.split(',');

// act(name, payload): performs an action of a project and shows its outcome; resolves to null if it failed.
/** @param {lab.ProjectState} state @param {(name: string, payload: any) => Promise<any>} act */
export const projectList = (state, act) =>
  html`<div class="lab-card">
    <div class="lab-row">
      <h2>Projects</h2>
      <span class="muted">
        A project is a model with its prompts, labels, reward models and runs. A project is opened for
        everybody who uses this lab.
      </span>
    </div>
    <table>
      ${tableHead(COLUMNS)}
      <tbody>${state.projects.map((project) => row(project, project.id === state.current, act))}</tbody>
    </table>
  </div>`;

/** @param {lab.ProjectRow} project */
function row(project, isOpen, act) {
  const change = (...setting) => operatorOnly(changeButton(project, act, ...setting));
  const settings = chatSettings(project).map(
    ({ title, text }) => html`<div class="muted chat-setting" dir="auto" title=${title}>${text}</div>`,
  );
  return html`<tr data-project=${project.id} class=${isOpen && 'open'}>
    <td class="name">
      <span class="muted">${project.id} </span>${change('name', 'name', 'rename', 'project-rename', 'project-name')}
      ${settings}
    </td>
    <td class="model">${project.model}</td>
    <td class="prompt-set">${project.prompt_set}</td>
    <td class="figure" data-words="temperature">
      ${change('temperature', 'temperature', 'set_temperature', 'project-temperature', 'project-new-temperature')}
    </td>
    <td class="figure" data-words="longest text in tokens">
      ${change('max_new_tokens', 'longest text in tokens', 'set_length', 'project-length', 'project-new-length')}
    </td>
    ${figure('prompts', project.train_count + project.eval_count, `(${project.eval_count} of them to evaluate)`)}
    ${figure('pairs', project.pair_count)}
    ${figure('labels', project.human_labels, project.simulated_labels ? `+ ${project.simulated_labels} simulated` : '')}
    ${figure('reward models', project.model_count)} ${figure('runs', project.run_count)}
    <td class="actions">${isOpen ? html`<span class="now">in use</span>` : actions(project, act)}</td>
  </tr>`;
}

// The name or a setting for new texts, which a press changes. key: of the project and of the action's payload; button,
// field: their data-do.
function changeButton(project, act, key, label, action, button, field) {
  const text = String(project[key]);
  const change = async () => {
    const value = await asked(field, `New ${label} of project ${project.id}`, 'Save', text);
    if (value !== null) act(action, { project: project.id, [key]: value });
  };
  const isName = key === 'name';
  return html`<button
    type="button" class="plain" title=${isName ? 'rename' : 'change it for new texts'} data-do=${button}
    aria-label=${isName ? `rename project ${project.id}, ${text}` : `change ${label} ${text} of project ${project.id}`}
    data-project=${project.id} onclick=${change}
  >${text}</button>`;
}

/** @param {lab.ProjectRow} project */
function actions(project, act) {
  const button = (name, style, label, onclick) =>
    actionButton(name, label, onclick, `small ${style}`, {
      'data-project': project.id,
      'aria-label': `${label} ${project.name}`,
    });
  const open = async ({ target }) => {
    target.disabled = true;
    if (!(await act('open_existing', { project: project.id }))) target.disabled = false;
  };
  const remove = async () => {
    const question = `Delete project "${project.name}" permanently, with its texts, ${contentsText(project)}?`;
    if (await asked('project-delete', question)) act('delete', { project: project.id });
  };
  return html`<div class="lab-row">
    ${operatorOnly(button('project-open', '', 'Open', open), button('project-delete', 'danger', 'Delete', remove))}
  </div>`;
}

const figure = (label, value, note = '') =>
  html`<td class="figure" data-words=${label}>${value}${note && html`<span class="muted"> ${note}</span>`}</td>`;

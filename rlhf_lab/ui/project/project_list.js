// The table of projects, in which each can be opened, renamed, changed and deleted.
import { actionButton, deleteConfirmation, html, nameField, redraw, tableHead } from '../shared/dom.js';
import { operatorOnly } from '../shared/session.js';
import { chatSettings, contentsText } from './figures.js';

const COLUMNS =
  'project,model,prompt set,temperature,longest text,prompts,pairs,labels by people,reward models,runs,'.split(',');

// By what is edited: the control that starts the editing, and the control that then gets the focus.
const EDIT_CONTROLS = {
  name: ['project-rename', 'project-name'],
  temperature: ['project-temperature', 'project-new-temperature'],
  max_new_tokens: ['project-length', 'project-new-length'],
  delete: ['project-delete', 'project-delete-sure'],
};

export class ProjectList {
  // act(name, payload): performs an action of a project and shows its outcome; resolves to null if it failed.
  constructor(act) {
    this.act = act;
    this.state = /** @type {lab.ProjectState | null} */ (null);
    this.editing = null; // {project: its id, field: a key of EDIT_CONTROLS}: which row shows a field or a question
    this.node = html`<section aria-label="projects">
      <div class="lab-card lab-empty" role="status">Loading the projects …</div>
    </section>`;
  }

  // What a person is editing is not redrawn.
  update(state) {
    this.state = state;
    if (!this.editing) this.draw();
  }

  draw() {
    redraw(
      this.node,
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
          <tbody>${this.state.projects.map((project) => this.row(project))}</tbody>
        </table>
      </div>`,
    );
  }

  focus(control, project) {
    this.node.querySelector(`[data-do="${control}"][data-project="${project}"]`)?.focus();
  }

  edit(project, field) {
    this.editing = { project: project.id, field };
    this.draw();
    this.focus(EDIT_CONTROLS[field][1], project.id);
  }

  stopEditing() {
    const { project, field } = this.editing;
    this.editing = null;
    this.draw();
    this.focus(EDIT_CONTROLS[field][0], project);
  }

  isEditing(project, field) {
    return this.editing?.project === project.id && this.editing.field === field;
  }

  /** @param {lab.ProjectRow} project */
  row(project) {
    const simulated = project.simulated_labels ? `+ ${project.simulated_labels} simulated` : '';
    return html`<tr data-project=${project.id} class=${project.id === this.state.current && 'open'}>
      <td class="name">${this.name(project)}</td>
      <td class="model">${project.model}</td>
      <td class="prompt-set">${project.prompt_set}</td>
      <td class="figure" data-words="temperature">
        ${this.setting(project, 'temperature', 'temperature', 'set_temperature')}
      </td>
      <td class="figure" data-words="longest text in tokens">
        ${this.setting(project, 'max_new_tokens', 'longest text in tokens', 'set_length')}
      </td>
      ${figure('prompts', project.train_count + project.eval_count, `(${project.eval_count} of them to evaluate)`)}
      ${figure('pairs', project.pair_count)}
      ${figure('labels', project.human_labels, simulated)}
      ${figure('reward models', project.model_count)}
      ${figure('runs', project.run_count)}
      <td class="actions">${this.actions(project)}</td>
    </tr>`;
  }

  /** @param {lab.ProjectRow} project */
  name(project) {
    const rename = (name) => this.act('rename', { project: project.id, name });
    if (this.isEditing(project, 'name')) {
      return this.field(project, 'name', project.name, `new name of project ${project.id}`, rename);
    }
    const label = `rename project ${project.id}, ${project.name}`;
    const settings = chatSettings(project).map(
      ({ title, text }) => html`<div class="muted chat-setting" dir="auto" title=${title}>${text}</div>`,
    );
    return html`<span class="muted">${project.id} </span>
      ${operatorOnly(this.editButton(project, 'name', project.name, 'rename', label))}${settings}`;
  }

  // A number that applies to new texts. field: of the project and of the action's payload.
  /** @param {lab.ProjectRow} project */
  setting(project, field, label, action) {
    const text = String(project[field]);
    const save = (value) => this.act(action, { project: project.id, [field]: value });
    if (this.isEditing(project, field)) {
      return this.field(project, field, text, `new ${label} of project ${project.id}`, save);
    }
    const description = `change ${label} ${text} of project ${project.id}`;
    return operatorOnly(this.editButton(project, field, text, 'change it for new texts', description));
  }

  field(project, field, text, label, save) {
    const attributes = { 'data-project': project.id };
    return nameField(text, label, EDIT_CONTROLS[field][1], attributes, save, () => this.stopEditing());
  }

  editButton(project, field, text, title, label) {
    return html`<button
      type="button" class="plain" title=${title} aria-label=${label} data-do=${EDIT_CONTROLS[field][0]}
      data-project=${project.id} onclick=${() => this.edit(project, field)}
    >${text}</button>`;
  }

  /** @param {lab.ProjectRow} project */
  actions(project) {
    if (project.id === this.state.current) return html`<span class="now">in use</span>`;
    if (this.isEditing(project, 'delete')) {
      return deleteConfirmation(
        `Delete it permanently, with its texts, ${contentsText(project)}?`,
        'project-delete',
        { 'data-project': project.id },
        () => this.act('delete', { project: project.id }),
        () => this.stopEditing(),
      );
    }
    const button = (name, style, label, onclick) =>
      actionButton(name, label, onclick, `small ${style}`, {
        'data-project': project.id,
        'aria-label': `${label} ${project.name}`,
      });
    return html`<div class="lab-row">
      ${operatorOnly(
        button('project-open', '', 'Open', (event) => this.open(project, event.target)),
        button('project-delete', 'danger', 'Delete', () => this.edit(project, 'delete')),
      )}
    </div>`;
  }

  async open(project, button) {
    button.disabled = true;
    if (!(await this.act('open_existing', { project: project.id }))) button.disabled = false;
  }
}

const figure = (label, value, note = '') =>
  html`<td class="figure" data-words=${label}>${value}${note && html`<span class="muted"> ${note}</span>`}</td>`;

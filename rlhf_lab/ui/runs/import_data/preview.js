// The card "preview" of the section "Import": the first rows, the meaning of the columns, and questions.
import { actionButton, html, promptView, textView } from '../../shared/dom.js';
import { control, labelled } from '../../shared/fields.js';
import { plural } from '../../shared/format.js';
import { scrollingTable } from '../elements.js';
import { countsText, unusedText, withAnswer } from './texts.js';

const TICKS = {
  use_prompts: 'also sample from the new prompts',
  drop_duplicates: 'leave out further answers of the same person to the same two texts',
  skip_broken: 'leave out rows that cannot be used',
};

export class PreviewCard {
  // onAgain: called for another preview, with other choices; onImport: called for the import.
  constructor(data, onAgain, onImport) {
    this.data = data;
    this.onAgain = onAgain;
    this.onImport = onImport;
    this.card = html`<section class="lab-card found" aria-label="preview" hidden></section>`;
    this.clear();
  }

  clear() {
    this.preview = /** @type {lab.Preview | null} */ (null);
    this.card.hidden = true;
    this.card.replaceChildren();
    this.mapping = {}; // the column of each meaning, as chosen
    this.ticks = {}; // what is ticked below the preview, which is drawn again after each question
    this.choices = ''; // the values of votes as typed, "0=first,1=second"
    this.answers = /** @type {string[]} */ ([]); // to the importer's questions, "numbers=decimal"
  }

  // What was chosen here, as fields of a request.
  chosen() {
    return { column_mapping: this.mapping, choices: this.choices, answers: this.answers };
  }

  // A question that only the person can answer. It is above the fields, which on a phone are longer than the screen.
  /** @param {lab.ImportQuestion} question */
  ask({ text, columns, answers }) {
    const notice = html`<p class="lab-notice bad" role="alert" data-do="data-question">${text}</p>`;
    const current = { ...this.preview?.mapping, ...this.mapping };
    const buttons = Object.entries(answers).map(([answer, meaning]) => this.answerButton(answer, meaning));
    const isOpen = !buttons.length || this.card.querySelector('details')?.open;
    this.card.hidden = false;
    this.card.replaceChildren(
      html`${notice}
        <div class="lab-row">${buttons} ${this.forgetButton()}</div>
        ${this.mappingForm(columns, current, isOpen)}`,
    );
    notice.scrollIntoView({ block: 'nearest' });
  }

  /** @param {lab.Preview} preview */
  show(preview) {
    this.preview = preview;
    const notice = (text, name) => text && html`<p class="lab-notice" data-do=${name}>${text}</p>`;
    const unused = unusedText(preview.unused);
    const problemsText = `${plural(preview.error_count, 'row')} cannot be used:\n${preview.errors.join('\n')}`;
    const problems = html`<pre class="problems" role="alert" data-do="data-problems">${problemsText}</pre>`;
    const save = () => this.onImport(this.ticks);
    const importButton = actionButton('data-import', 'Import into this project', save, 'lab-main', {
      disabled: !preview.votes,
    });
    this.card.hidden = false;
    this.card.replaceChildren(
      html`<div class="lab-row">
          <h3>${preview.name}</h3>
          <span class="muted" data-do="data-counts">${countsText(preview)}</span>
        </div>
        ${unused && html`<p class="muted" data-do="data-unused">${unused}</p>`}
        ${notice(preview.warnings, 'data-doubts')} ${notice(preview.left_out, 'data-left-out')} ${this.forgetButton()}
        ${this.mappingForm(preview.columns, preview.mapping, false)}
        ${preview.errors.length > 0 && problems}
        ${firstRows(preview)}
        <div class="lab-row">${Object.keys(TICKS).map((name) => this.tick(name))}</div>
        <div class="lab-row">
          ${importButton}
          <span class="muted">If a row cannot be used, nothing is imported, unless such rows are left out.</span>
        </div>`,
    );
  }

  tick(name) {
    const set = (event) => {
      this.ticks[name] = event.target.checked;
    };
    return html`<label class="tick">
      <input type="checkbox" data-do="data-${name}" checked=${Boolean(this.ticks[name])} onchange=${set} />
      ${TICKS[name]}
    </label>`;
  }

  setAnswers(answers) {
    this.answers = answers;
    this.onAgain();
  }

  answerButton(answer, meaning) {
    const give = () => this.setAnswers(withAnswer(this.answers, answer));
    return actionButton('data-answer', meaning, give, 'small', { 'data-answer': answer });
  }

  forgetButton() {
    return this.answers.length ? actionButton('data-forget', 'Change my answers', () => this.setAnswers([])) : null;
  }

  // The fields for the meaning of each column. isOpen: the data cannot be read without one.
  mappingForm(columns, current, isOpen) {
    const fields = (meanings) =>
      html`<div class="fields">${meanings.map((meaning) => this.meaningField(meaning, columns, current))}</div>`;
    const setChoices = (event) => {
      this.choices = event.target.value;
    };
    const { main_meanings: main, further_meanings: further } = this.data;
    return html`<details open=${isOpen}>
      <summary>Which column means what</summary>
      ${fields(main)}
      <details open=${further.some((name) => current[name])} data-do="data-further">
        <summary>Further columns</summary>
        ${fields(further)}
      </details>
      <label>
        <span class="muted">what the votes' words mean, as in 0=first,1=second,2=tie </span>
        <input class="lab-input" type="text" value=${this.choices} data-do="data-choices" oninput=${setChoices} />
      </label>
      ${actionButton('data-again', 'Read the data again', () => this.onAgain())}
    </details>`;
  }

  // A field for the column of one meaning. current: the known mapping.
  meaningField(meaning, columns, current) {
    const choose = (event) => {
      this.mapping[meaning] = event.target.value;
    };
    const known = current[meaning] || '';
    const label = meaning.replaceAll('_', ' ');
    const attributes = { 'data-map': meaning, onchange: choose };
    if (meaning === 'annotators') {
      const value = known.replaceAll(', ', '+');
      return labelled(label, control(null, '', { value, placeholder: 'columns, joined by +', ...attributes }));
    }
    const names = columns.includes(known) || !known ? columns : [known, ...columns];
    const choices = [['', '–'], ...names.map((name) => [name, name])];
    const select = control(null, '', { choices, value: known, ...attributes });
    const noColumn = meaning === 'prompt' ? 'text at the beginning of both responses' : 'no column';
    select.append(html`<option value="" selected=${this.mapping[meaning] === ''}>${noColumn}</option>`);
    return labelled(label, select);
  }
}

/** @param {lab.Preview} preview */
function firstRows(preview) {
  const text = (value) => html`<td>${textView(value)}</td>`;
  const rows = preview.first_rows.map(
    (row) => html`<tr>
      <td>${row.row}</td>
      <td>${promptView(row.turns, 'brief')}</td>
      ${text(row.first)} ${text(row.second)}
      <td>${row.choice.replace('_', ' ')}</td>
      <td>${row.annotator}</td>
    </tr>`,
  );
  return scrollingTable('the first rows', ['row', 'prompt', 'first', 'second', 'vote', 'annotator'], rows);
}

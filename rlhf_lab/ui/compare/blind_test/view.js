// The blind test on the screen "Compare": which of two texts is better. The models are named when all pairs are judged,
// in a lab of several people when the operator ends the test.
import { requests } from '../../shared/api.js';
import { actionButton, asked, html, promptView, selectField } from '../../shared/dom.js';
import { setOptions, showNotice, tableHead, textView } from '../../shared/dom.js';
import { term } from '../../shared/glossary.js';
import { operatorNotice, operatorOnly } from '../../shared/session.js';
import { BlindPairs } from '../blind_pairs.js';
import { othersText } from '../texts.js';

const api = requests('blind_test');

const DONE = { rename: (name) => `called "${name}"`, end: () => 'ended', delete: () => 'deleted' };
const ABOUT =
  'The first two models chosen on this screen answer held-out prompts. You choose the better text without knowing ' +
  'which model wrote it. The result is shown when all pairs are judged; if several people use the lab, when the ' +
  'operator ends the test. PPO may exploit errors of the reward model, so a human judgement is the better test. ' +
  'Nothing is trained on these answers.';

export class BlindTest extends BlindPairs {
  // root: the element of the screen. getRequest(): the form's models and settings. onChange(): a test was changed, so
  // its list of tests is newer than the options of the screen.
  constructor({ root, getRequest, onChange }) {
    super({ name: 'blind', idName: 'test_id', unit: 'pairs', api });
    this.root = root;
    this.getRequest = getRequest;
    this.onChange = onChange;
    this.tests = /** @type {Array<[number, string]>} */ ([]);
    this.comesFirst = false; // above the form: once its texts are written or judged in this page
    this.pairCount = html`<input
      class="lab-input" type="text" inputmode="numeric" value="20" aria-label="pairs" data-do="blind-pairs"
    />`;
    this.picker = selectField('blind-pick', 'blind test', () => this.pick());
    this.others = html`<span class="muted" data-do="blind-others" title="done: they have judged all pairs"></span>`;
    this.card = this.buildCard();
    root.append(this.card);
  }

  buildCard() {
    const begin = actionButton('blind-begin', 'Start a blind test', () => this.begin(), '');
    const count = html`<label class="lab-row">${this.limit}${this.pairCount}</label>`;
    return html`<section class="lab-card blind blind-pairs" aria-label="blind test">
      <h2>${term('blind test', 'Blind test')}</h2>
      ${this.notice} ${this.stage} ${this.controls}
      <p class="muted about">${ABOUT}</p>
      ${operatorNotice('Only the operator can start and change blind tests; you can judge their pairs.')}
      <div class="lab-row new">${operatorOnly(count, begin)} ${this.estimate}</div>
      ${operatorOnly(this.size)}
    </section>`;
  }

  placeCard() {
    const { card, comesFirst, root } = this;
    if ((root.firstElementChild === card) === comesFirst) return;
    const focused = card.contains(document.activeElement) ? /** @type {any} */ (document.activeElement) : null;
    root[comesFirst ? 'prepend' : 'append'](card);
    focused?.focus({ preventScroll: true });
  }

  mayUseKeys() {
    return !this.root.querySelector('.tournament[open] .sides');
  }

  // ---- requests

  begin() {
    this.send(
      'start',
      { ...this.getRequest(), pairs: this.pairCount.value },
      'The lab does not reply, so the blind test may not have started. Check the list of tests before you start it ' +
        'again.',
    );
  }

  sendEdit(id, action, fields = {}) {
    this.send(
      'edit',
      { test_id: id, action, ...fields },
      `The lab does not reply, so test ${id} may not be ${DONE[action](fields.name)} yet. Check it, and ${action} it ` +
        'again if necessary.',
    );
  }

  takeReply(reply) {
    super.takeReply(reply);
    this.tests = reply.tests || this.tests;
    this.drawControls();
    this.onChange();
    if (reply.tests && !reply.message) this.card.scrollIntoView(); // a new one
  }

  async takeRefusal(error, isAnswer) {
    if (error.field === 'pairs') this.pairCount.focus();
    this.onChange();
    await super.takeRefusal(error, isAnswer);
  }

  // Called with every poll of the screen. tests: the project's, if they have changed.
  setTests(tests = this.tests, projectChanged = false) {
    if (projectChanged) {
      this.comesFirst = false;
      this.placeCard();
      this.reset();
    }
    this.tests = tests;
    this.drawControls();
    this.refresh();
  }

  // ---- which test, and its changes

  pick() {
    this.state = null;
    this.select(Number(this.picker.value));
  }

  drawControls() {
    const { controls, picker, tests } = this;
    if (controls.contains(picker) !== Boolean(tests.length)) {
      const buttons = [this.editButton('rename', 'Rename'), this.editButton('delete', 'Delete')];
      controls.replaceChildren(...(tests.length ? [picker, operatorOnly(...buttons)] : []));
    }
    const items = tests.map(([id, name]) => [id, `test ${id}: ${name}`]);
    setOptions(picker, items, this.state?.id || tests[0]?.[0], !this.state?.id);
  }

  editButton(action, label) {
    const style = action === 'delete' ? 'small danger' : 'small';
    const title = action === 'rename' ? null : 'asks first';
    return actionButton(`blind-${action}`, label, () => this.edit(action), style, { title });
  }

  async edit(action) {
    if (!this.state?.id) return;
    await this.refresh(); // get the current number of answers
    if (!this.state?.id) return;
    const { id, deletion_note: deletionNote } = this.state;
    const name = this.tests.find(([one]) => one === id)?.[1] ?? '';
    const questions = {
      rename: ['blind-name', `New name of test ${id}`, 'Save', name],
      end: [
        'blind-end',
        `End test ${id} for everybody? Then its result is shown, and nobody can judge its pairs.`,
        'End it',
      ],
      delete: ['blind-delete', `Delete test ${id} permanently, ${deletionNote}?`],
    };
    showNotice(this.notice, '');
    const answer = await asked(...questions[action]);
    if (answer !== null) this.sendEdit(id, action, action === 'rename' ? { name: answer } : {});
  }

  // ---- what is on screen

  draw() {
    if (this.state.pair || this.state.is_waiting) {
      this.comesFirst = true;
      this.placeCard();
    }
    super.draw();
  }

  drawOthers() {
    this.others.textContent = othersText(this.state.others_progress);
  }

  content() {
    const state = /** @type {lab.TestState} */ (this.state);
    if (state.id === null) return null;
    if (state.failure) {
      const text = `Its texts could not be written: ${state.failure} Start another one.`;
      return html`<p class="lab-notice bad" role="alert">${text}</p>`;
    }
    if (state.is_waiting) {
      return html`<p class="muted" role="status">The engine is sampling from ${state.model_names.join(' and ')} …</p>`;
    }
    if (state.pair) return this.judgingView(state);
    if (state.closed_text) return html`<p class="muted">${state.closed_text}</p>${this.footnote(state)}`;
    return html`<div class="result" data-do="blind-result" role="status">
        ${state.figure && html`<p class="figure"><b>${state.figure[0]}</b> ${state.figure[1]}</p>`}
        ${state.sentences.map((line, i) => html`<p class=${i ? null : 'main'}>${line}</p>`)}
      </div>
      ${this.footnote(state)} ${state.rows.length ? pairsTable(state) : null}`;
  }

  footnote(state) {
    const note = html`<span class="muted" data-do="blind-left-out">${state.left_out_note}</span>`;
    return html`<div class="lab-row beside">
      ${state.left_out_note ? note : null} ${this.others} ${state.result_waits && !state.pair && this.endButton()}
    </div>`;
  }

  endButton() {
    return operatorOnly(this.editButton('end', 'End the test for everybody'));
  }

  // The operator ends a test of several people at once, without leaving out own pairs first.
  judgingView(state) {
    const [label, title] = state.result_waits
      ? ['Skip the remaining pairs', 'show the result without them']
      : ['Stop and show the result', 'leave out the remaining pairs and show which model wrote each text'];
    const { judged_count: judged, pair_count: count } = state;
    const head = html`<strong data-judged=${judged}>${judged + 1} of ${count}</strong>
      <span class="muted">${state.model_names.join(' against ')}</span>${this.footnote(state)}`;
    const style = state.result_waits ? 'small lab-only' : 'small';
    const stop = html`<span class="lab-grow"></span>
      ${actionButton('blind-stop', label, () => this.answer('stop'), style, { title })}
      ${state.result_waits && this.endButton()}`;
    return this.pairView(head, stop);
  }
}

/** @param {lab.TestState} state */
function pairsTable({ rows, model_names: names }) {
  const badges = (row, side) => [
    row.choice === side && html`<span class="lab-badge good">you chose this</span>`,
    row.choice === 'tie' && side === 'second' && html`<span class="lab-badge">equally good</span>`,
    row.reward_choice === side && html`<span class="lab-badge accent">the reward model chose this</span>`,
  ];
  const cell = (row, side) =>
    html`<td>
      ${textView(row[side])}
      <div class="lab-row badges">${badges(row, side)}</div>
    </td>`;
  const body = rows.map(
    (row) => html`<tr><td>${promptView(row.turns)}</td>${cell(row, 'first')}${cell(row, 'second')}</tr>`,
  );
  return html`<details>
    <summary class="muted">The pairs, with the names of the models</summary>
    <div class="lab-scroll"><table>${tableHead(['prompt', ...names])}<tbody>${body}</tbody></table></div>
  </details>`;
}

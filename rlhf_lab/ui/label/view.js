// Screen "Label". A vote names the pair that was on screen. The next pair is shown immediately, but accepts no answer
// until the vote on the last one is stored.
import { answerEditor } from './answer_editor.js';
import { demonstrationView } from './demonstration.js';
import { loadHistory, noteField } from './history.js';
import { InstantPanel } from './instant_panel.js';
import { keptRequests } from './kept_requests.js';
import { renderMarkdown } from './markdown.js';
import { Sender } from './sender.js';
import { counts, disputesText, foreignText, goalText, outcomeOfOnce } from './texts.js';
import { SENT_ONCE, STRENGTHS, unansweredText, unstoredText } from './texts.js';
import { requests } from '../shared/api.js';
import { isMarked, markedDiff } from '../shared/diff.js';
import { actionButton, fitTextHeights, html, isShortcut, keepFocus, progressBar } from '../shared/dom.js';
import { promptSection, promptView, textView, withCut } from '../shared/dom.js';
import { displayName, plural } from '../shared/format.js';
import { poll } from '../shared/poll.js';
import { annotatorName, newUuid } from '../shared/session.js';

const api = requests('label');

const MIN_READ_MS = 300;
const TOO_FAST = 'That was too fast to read the new pair, so it did not count.';
const POLL_MS = 5000;
const SHORTCUTS = {
  left: ['1', 'ArrowLeft'],
  right: ['2', 'ArrowRight'],
  tie: ['0', '='],
  both_bad: ['x'],
  skip: ['s'],
  edit: ['e'],
  undo: ['u'],
  redo: ['r'],
};
const ACTION_BY_KEY = Object.fromEntries(
  Object.entries(SHORTCUTS).flatMap(([name, keys]) => keys.map((key) => [key, name])),
);
const pairKey = ({ pair, you, guideline, project }) => JSON.stringify([pair, you, guideline, project]);

export default class Label {
  constructor(root, { judges }) {
    this.root = root;
    this.judges = judges;
    this.current = /** @type {lab.LabelState | null} */ (null); // the state on screen
    this.sender = new Sender(api, this);
    this.instant = new InstantPanel(root, api, () => this.current?.project);
    this.lastVote = null; // the last vote sent
    this.shownAt = 0; // when the pair came on screen
    this.isReadable = false; // false shortly after a pair appears: an answer could be half of a double click
    this.readableTimer = /** @type {any} */ (null);
    this.ownNotice = ''; // what the page itself says about this pair
    this.strength = ''; // how much better, optional
    this.note = '';
    this.isEditing = false; // whether the choice of a text opens the editor
    this.marksDifferences = false; // whether differing words are marked
    this.disputes = /** @type {lab.Disputes} */ ({ count: 0, prompts: [] }); // for experts
    const { sender } = this;
    poll(root, () => this.updatePresence(), POLL_MS);
    poll(root, () => this.loadDisputes(), POLL_MS);
    const onKey = (event) => {
      if (document.body.contains(root)) this.onKey(event);
      else document.removeEventListener('keydown', onKey);
    };
    document.addEventListener('keydown', onKey);
    // The screen Chat made a pair, which is leased to this person: it comes next.
    window.addEventListener('lab-pair', () => this.whenFree(() => sender.send('opened')));
    window.addEventListener('online', () => sender.awaitsReply && sender.onTimeout());
    window.addEventListener('resize', () => this.fitTexts());
    new ResizeObserver(() => this.fitTexts()).observe(document.querySelector('.lab-header'));
    new IntersectionObserver((entries) => {
      if (entries.some((entry) => entry.isIntersecting)) this.fitTexts();
    }).observe(root);
    sender.send('opened');
  }

  // ---- what is sent

  person() {
    return this.current.you.name || annotatorName();
  }

  identity() {
    return { by: this.person(), project_created_at: this.current.project.project_created_at };
  }

  isVisible() {
    return this.root.offsetParent !== null;
  }

  sendOnce(name, fields = {}) {
    const { current } = this;
    if (current) this.sender.sendOnce({ name, before: SENT_ONCE[name][1](current), by: this.person() }, fields);
  }

  act(name) {
    const { current, root } = this;
    if (!this.isVisible() || !current || current.you.role === 'viewer') return;
    if (name === 'undo' || name === 'redo') this.sendOnce(name, this.identity());
    else if (name === 'edit') this.setEditing(!this.isEditing);
    else if ('open' in root.dataset && this.isEditing && current.pair[name]) this.openEditor(name);
    else if ('open' in root.dataset) this.vote(name);
    else if (current.pair && !this.isReadable && !root.querySelector('.message button')) {
      this.ownNotice = TOO_FAST;
      this.showMessage(TOO_FAST);
    }
  }

  // While a text is chosen for editing, the buttons and keys of both texts open the editor.
  setEditing(isEditing) {
    if (!this.current.pair || !this.current.may_edit || (isEditing && this.root.querySelector('.editor'))) return;
    this.isEditing = isEditing;
    this.root.querySelector('.sides').replaceWith(this.sides());
    this.redrawOptional();
    this.fitTexts();
  }

  openEditor(name) {
    const original = this.current.pair[name];
    const save = (text) => 'open' in this.root.dataset && this.vote(name, text);
    const editor = answerEditor(original, save, () => this.setEditing(false));
    this.root.querySelector(`.side.${name}`).replaceChildren(editor);
    editor.querySelector('textarea').focus();
  }

  vote(choice, edit = '') {
    const { current } = this;
    const card = this.root.querySelector(`.side.${choice}`);
    const duration = Math.round(performance.now() - this.shownAt);
    this.lastVote = {
      ...{ name: 'vote', pair_id: current.pair.id, choice, uuid: newUuid(), duration_ms: duration },
      ...{ strength: card ? this.strength : '', note: this.note, edit, ...this.identity() },
    };
    this.sender.sendKept(this.lastVote);
    this.instant.expect(choice === 'skip' ? '' : this.lastVote.uuid);
    Object.assign(current, { can_undo: true, can_redo: false });
    if (current.next_pair) this.draw({ ...current, pair: current.next_pair, next_pair: null, notice: '' });
    else card?.classList.add('chosen');
  }

  change(fields) {
    const request = { name: 'amend', uuid: newUuid(), ...fields, ...this.identity() };
    this.whenFree(() => this.sender.sendKept(request));
  }

  // Send something when no reply is awaited; until then the sender would drop it.
  whenFree(send) {
    if (this.sender.awaitsReply) setTimeout(() => this.whenFree(send), 200);
    else send();
  }

  onKey(event) {
    if (!isShortcut(event) || !this.isVisible()) return;
    const name = ACTION_BY_KEY[event.key] || ACTION_BY_KEY[event.key.toLowerCase()];
    if (!name) return;
    if (event.key.startsWith('Arrow') && event.composedPath()[0].closest?.('[role=tab], [role=tablist], summary')) {
      return;
    }
    event.preventDefault();
    this.act(name);
  }

  // ---- what the sender reports

  // data-open: whether the pair on screen accepts an answer.
  onReadyChange() {
    const { current, root } = this;
    if (current?.pair && this.isReadable && !this.sender.awaitsReply) root.dataset.open = current.pair.id;
    else delete root.dataset.open;
  }

  /** @param {lab.LabelState} reply */
  applyReply(reply, { isResumed, once }) {
    const { current } = this;
    const isSameProject = current?.project.project_created_at === reply.project.project_created_at;
    const changesLabels = Boolean(reply.notice); // undo, redo, another answer, or a vote that did not count
    const state = isSameProject && current.counted_at > reply.counted_at ? { ...reply, ...counts(current) } : reply;
    if (isResumed && !state.notice) state.notice = 'Your last answer is stored now.';
    const person = state.you.name || annotatorName();
    if (once && !state.notice) state.notice = outcomeOfOnce(once, state, person);
    if (current && pairKey(current) === pairKey(state)) this.updateSamePair(state);
    else this.draw(state);
    this.publishCounts();
    if (changesLabels) this.instant.expect('');
    this.instant.load();
    return !isSameProject || JSON.stringify(current.you) !== JSON.stringify(reply.you);
  }

  // Send the requests of an earlier visit to this project that were not stored (the tab was closed, or Gradio reloaded
  // it), one after the other. Answers of another person are not sent, but kept until that person is here again.
  resumeKept() {
    const unconfirmed = keptRequests(this.current.project.project_created_at);
    if (!unconfirmed.length) return;
    const isViewer = this.current.you.role === 'viewer';
    const own = unconfirmed.find((request) => request.by === this.person());
    if (own && !isViewer) {
      this.sender.attempts = 1;
      this.sender.resend(own);
      return;
    }
    this.showMessage(foreignText(unconfirmed[0], isViewer), this.discardButton(unconfirmed[0]));
  }

  showUnstored(request, refusal) {
    this.showMessage(unstoredText(request, refusal), this.discardButton(request));
  }

  showUnanswered(once) {
    this.showMessage(unansweredText(once));
  }

  showRefusal(text) {
    const container = this.root.querySelector('.message') || this.root;
    container.replaceChildren(html`<p class="lab-notice bad" role="alert">${text}</p>`);
  }

  showMessage(text, control = null) {
    const notice = html`<p class="lab-notice" role="status">${text}${control && [' ', control]}</p>`;
    this.root.querySelector('.message')?.replaceChildren(...(text ? [notice] : []));
  }

  discardButton(request) {
    const discard = () => {
      this.sender.discard(request);
      const undo = request.name === 'vote' ? '; Undo removes it' : '';
      this.showMessage(`It is no longer sent. If the lab has already received it, it counts${undo}.`);
    };
    return actionButton('discard-vote', 'Discard it', discard, 'small lab-offline-too');
  }

  // ---- what is polled

  async updatePresence() {
    const reply = await api.presence();
    const { current } = this;
    if (!current) return;
    const isSameProject = reply.project_created_at === current.project.project_created_at;
    if (!isSameProject || JSON.stringify(reply.you) !== JSON.stringify(current.you)) {
      this.sender.send('opened'); // another project was opened, or the visitor's rights have changed
      return;
    }
    const { people_here, shown_names, length_note } = reply;
    const newer = reply.counted_at > current.counted_at ? counts(reply) : {};
    Object.assign(current, { people_here, shown_names, length_note }, newer);
    this.redrawNotes();
    this.redrawNode('.goal', goalView(current));
    this.publishCounts();
    this.instant.load();
  }

  // Lets the header show these counts immediately.
  publishCounts() {
    const { project, counted_at, labels, simulated, guide_note } = this.current;
    const detail = { project_created_at: project.project_created_at, counted_at, labels, simulated, guide_note };
    window.dispatchEvent(new CustomEvent('lab-counts', { detail }));
  }

  async loadDisputes() {
    const reply = await api.disputed.ifChanged().catch(() => null);
    if (!reply) return;
    this.disputes = reply;
    this.root.querySelector('.disputed')?.replaceWith(this.disputedSection());
  }

  // ---- what is on screen

  // A reply about the same pair, or still about none, changes only counts, the next pair and the message.
  updateSamePair(state) {
    this.current = state;
    const isNews = state.notice || state.pair || this.root.querySelector('.message .bad');
    // otherwise the last message stays while no pair is ready
    if (isNews) this.showMessage(state.notice || this.ownNotice);
    this.disableButtons();
    this.redrawNotes();
    this.redrawNode('.goal', goalView(state));
    this.redrawNode('.waiting', waitingView(state));
    const history = this.root.querySelector('details.history');
    if (history?.open && (state.pair || state.notice)) this.loadHistory(history); // someone may be changing an answer
    if (!state.pair) this.awaitPair();
  }

  awaitPair() {
    this.sender.sendOpenedIn(this.current.you.role === 'viewer' ? 15_000 : 1500);
  }

  // Replace an element, unless it says the same already.
  redrawNode(selector, node) {
    const shown = this.root.querySelector(selector);
    if (shown && !shown.isEqualNode(node)) keepFocus(this.root, () => shown.replaceWith(node));
  }

  /** @param {lab.LabelState} state */
  draw(state) {
    const { root } = this;
    const open = ['details.talks', 'details.history'].filter((name) => root.querySelector(name)?.open);
    const isSamePair = this.current?.pair?.id === state.pair?.id;
    const isViewer = state.you.role === 'viewer';
    this.current = state;
    if (!isSamePair) this.beginPair(state.pair);
    root.replaceChildren(
      ...[
        state.guideline && html`<p class="guideline lab-scroll lab-text" dir="auto">${state.guideline}</p>`,
        state.pair?.adjudication && this.decisionBanner(),
        ...(state.pair ? this.pairSections(state.pair) : this.waitingSections(isViewer)),
        html`<div class="message"></div>`, // below the buttons, so that a message does not move them
        notesView(state),
        goalView(state),
        ...(isViewer ? [] : [this.disputedSection(), this.historySection(), this.demonstration()]),
      ].filter(Boolean),
    );
    this.showMessage(state.notice || this.ownNotice);
    this.disableButtons();
    this.fitTexts();
    root.dataset.pair = state.pair ? state.pair.id : '';
    this.onReadyChange();
    for (const section of open.map((name) => root.querySelector(name)).filter(Boolean)) section.open = true;
    if (!state.pair) this.awaitPair();
  }

  // Another pair comes on screen; if it is that of the last vote, with what was entered then.
  beginPair(pair) {
    const isLastVoted = pair && this.lastVote?.pair_id === pair.id;
    this.isEditing = false;
    this.ownNotice = '';
    this.strength = isLastVoted ? this.lastVote.strength : '';
    this.note = isLastVoted ? this.lastVote.note : '';
    this.shownAt = performance.now();
    this.isReadable = false;
    clearTimeout(this.readableTimer);
    this.readableTimer = setTimeout(() => {
      this.isReadable = true;
      this.onReadyChange();
    }, MIN_READ_MS);
  }

  pairSections(pair) {
    return [
      promptSection(pair.turns),
      html`<h2 id="lab-question">Which text is better?</h2>`,
      this.sides(),
      html`<div class="others">
        ${this.button('tie', 'Equally good', '0')}${this.button('both_bad', 'Both bad', 'X')}
        ${this.button('skip', 'Skip', 'S')}${this.button('undo', 'Undo', 'U')}${this.button('redo', 'Redo', 'R')}
      </div>`,
      this.instant.view(),
      this.optionalControls(),
    ];
  }

  waitingSections(isViewer) {
    const join = html`<p><a class="lab-button lab-main" href="join">Join to label</a></p>`;
    return [
      html`<div class="lab-card lab-empty" role="status">${waitingView(this.current)}${isViewer ? join : null}</div>`,
      isViewer ? null : html`<div class="others">${this.button('undo', 'Undo', 'U')}</div>`,
      this.instant.view(),
    ];
  }

  button(name, label, key) {
    const text = html`${label}<kbd aria-hidden="true">${key}</kbd>`;
    return actionButton(name, text, () => this.act(name), '', { 'aria-keyshortcuts': SHORTCUTS[name].join(' ') });
  }

  // The keys still say that there is nothing to undo.
  disableButtons() {
    const { can_undo: canUndo, can_redo: canRedo } = this.current;
    for (const button of this.root.querySelectorAll('[data-do=undo]')) button.disabled = !canUndo;
    for (const button of this.root.querySelectorAll('[data-do=redo]')) button.disabled = !canRedo;
  }

  sides() {
    return html`<div class="sides" role="group" aria-labelledby="lab-question">
      ${this.side('left', 'right', 'First', '1')}${this.side('right', 'left', 'Second', '2')}
    </div>`;
  }

  side(name, other, label, key) {
    const { pair } = this.current;
    const button = this.button(name, `${label}${this.isEditing ? ': edit it' : ' is better'}`, key);
    return html`<article class="lab-card side ${name}" aria-label="${label} text">
      ${withCut(this.textBody(pair[name], pair[other]), pair.cut[name])}${button}
    </article>`;
  }

  textBody(text, other) {
    if (this.marksDifferences) return markedDiff(other, text, 'lab-scroll');
    if (this.current.pair.markdown) return renderMarkdown(text);
    return Object.assign(textView(text, 'lab-scroll'), { tabIndex: 0 });
  }

  // Optional inputs: how much better a text is, marked differences, a note.
  optionalControls() {
    const toggle = (attributes, isOn, label, onclick) => {
      const button = html`<button
        type="button" class="lab-more${isOn ? ' on' : ''}" aria-pressed=${String(isOn)} onclick=${onclick}
      >
        ${label}
      </button>`;
      Object.assign(button.dataset, attributes);
      return button;
    };
    const choose = (word) => () => {
      this.strength = this.strength === word ? '' : word;
      this.redrawOptional();
    };
    const mark = () => {
      if (this.root.querySelector('.editor')) return; // it would lose the text
      this.marksDifferences = !this.marksDifferences;
      this.root.querySelector('.sides').replaceWith(this.sides());
      this.redrawOptional();
      this.fitTexts();
    };
    const edit = () => this.act('edit');
    const { left, right } = this.current.pair;
    const markLabel = this.marksDifferences && !isMarked(left, right) ? 'too different to mark' : 'mark differences';
    return html`<div class="more">
      <span class="muted" role="group" aria-label="how much better, optional">
        Optional: how much better?${' '}
        <span class="strengths">
          ${STRENGTHS.map((word) => toggle({ strength: word }, this.strength === word, word, choose(word)))}
        </span>
      </span>
      ${this.current.may_edit && toggle({ do: 'edit' }, this.isEditing, 'edit the better text (E)', edit)}
      ${toggle({ do: 'differ' }, this.marksDifferences, markLabel, mark)}
      ${noteField(this.note, ({ target }) => Object.assign(this, { note: target.value }))}
    </div>`;
  }

  redrawNotes() {
    this.redrawNode('.notes', notesView(this.current));
  }

  redrawOptional() {
    this.root.querySelector('.more')?.replaceWith(this.optionalControls());
  }

  historySection() {
    const load = ({ target }) => target.open && this.loadHistory(target);
    return html`<details class="history" ontoggle=${load}>
      <summary class="muted">Your earlier labels: read them again or change an answer</summary>
      <div class="earlier lab-scroll"></div>
    </details>`;
  }

  loadHistory(details) {
    const markGold = (fields) => {
      const request = { ...fields, ...this.identity() };
      this.whenFree(() => this.sender.send('gold', request));
    };
    loadHistory(details, api, (fields) => this.change(fields), markGold);
  }

  // Experts decide pairs that people disagree about; how they voted is not shown.
  disputedSection() {
    const decide = () => {
      this.sender.send('adjudicate', this.identity());
      this.root.scrollIntoView();
    };
    const isHidden = !this.disputes.count || Boolean(this.current?.pair?.adjudication);
    const isOpen = this.root.querySelector('.disputed')?.open || false;
    return html`<details class="disputed" hidden=${isHidden} open=${isOpen}>
      <summary class="muted">${disputesText(this.disputes)}</summary>
      <p class="muted">
        Your answer as an expert becomes the label of the pair. The other answers are kept, but you do not see them.
      </p>
      ${actionButton('adjudicate', 'Decide them', decide)}
      <ul>
        ${this.disputes.prompts.map((turns) => html`<li>${promptView(turns, 'muted brief')}</li>`)}
      </ul>
    </details>`;
  }

  decisionBanner() {
    const stop = () => this.sender.send('adjudicate', { stop: true, ...this.identity() });
    return html`<p class="lab-notice decision" role="status">
      You decide this pair as an expert: your answer becomes its label.${' '}
      ${actionButton('stop-adjudicating', 'Back to labelling', stop)}
    </p>`;
  }

  demonstration() {
    const { id, prompt_set: promptSet } = this.current.project;
    const judge = (fields) => this.sendOnce('judge', { ...fields, shown_project: id });
    return demonstrationView(this.judges, promptSet, judge);
  }

  fitTexts() {
    fitTextHeights(this.root, this.root.querySelector('.others'), this.root.querySelector('.instant'));
  }
}

/** @param {lab.LabelState} state */
function goalView(state) {
  const { you, people_here: here, shown_names: shown } = state;
  const name = displayName(shown[you.name] ?? you.name);
  return html`<div class="goal">
    <div class="lab-row">
      <strong data-count=${state.labels}>${plural(state.labels, 'label')} by people</strong>
      ${state.simulated ? html`<span class="lab-badge">${state.simulated} simulated, kept apart</span>` : null}
      <span class="lab-badge" data-here=${here} hidden=${here < 2}>${here} people here</span>
      ${you.name ? html`<span class="lab-badge" data-you=${you.name}>you are ${name}</span>` : null}
      ${you.name ? html`<a href="leave" data-do="log-out">Log out</a>` : null}
      <span class="muted lab-grow" aria-live="polite">${goalText(state)}</span>
    </div>
    ${progressBar('labels until the next reward model', state.labels, state.next_training_at)}
  </div>`;
}

const waitingView = ({ waiting_text: text }) => html`<span class="waiting">${text}</span>`;

const notesView = ({ quality_note: quality, length_note: length }) =>
  html`<div class="notes">
    ${quality && html`<p class="lab-notice" data-do="quality-note">${quality}</p>`}
    ${length && html`<p class="muted" data-do="length-note">${length} <a href="#project">Decide under Project</a></p>`}
  </div>`;

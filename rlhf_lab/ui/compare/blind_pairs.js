// Blind pairs on the screen "Compare", of a blind test or a tournament: the two texts with their buttons and keys,
// requests to the lab, and answers that the browser stores until the lab has confirmed them.
import { markedDiff } from '../shared/diff.js';
import { actionButton, fitTextHeights, html, isShortcut, promptView, showNotice } from '../shared/dom.js';
import { getItem, setItem } from '../shared/session.js';

const REPLY_TIMEOUT_MS = 6000;
const STORED = 'Your last answer is stored now.';
const KEPT = 'The page keeps your answer, also if you close it, and sends it again until it is stored.';
const CHOICE_BY_KEY = { 1: 'left', arrowleft: 'left', 2: 'right', arrowright: 'right', 0: 'tie', '=': 'tie' };
// What others do, which must not redraw a text that is being read.
const NOT_OF_PAIR = { deletion_note: null, others_progress: null, answers_note: null, ranking: null };

// A subclass creates the card, and draws by content(), drawControls() and drawOthers().
export class BlindPairs {
  // name: prefix of data-do and of storage keys; idName: a key in a request's payload; unit: what the operator's
  // number counts; api: get_state, answer and the operator's requests; choiceByKey: further keys.
  /** @param {{name: string, idName: string, unit: string, api: any, choiceByKey?: Record<string, string>}} options */
  constructor({ name, idName, unit, api, choiceByKey = {} }) {
    this.name = name;
    this.unit = unit;
    this.idName = idName;
    this.api = api;
    this.notice = html`<p class="lab-notice" hidden data-do="${name}-notice"></p>`;
    this.stage = html`<div class="stage"></div>`;
    this.controls = html`<div class="lab-row controls"></div>`;
    this.estimate = html`<span class="muted" data-do="${name}-estimate"></span>`;
    this.limit = html`<span class="muted">${unit}</span>`; // the label of the field
    this.size = html`<p class="muted" data-do="${name}-size"></p>`; // what so many pairs can show
    this.card = /** @type {any} */ (null);
    this.state = /** @type {any} */ (null); // the lab's, with the `pair` to judge
    this.selectedId = this.unconfirmedAnswer()?.[idName] ?? null;
    this.pending = /** @type {any} */ (null); // the request that waits for its reply
    this.refusal = ''; // why the lab has not stored the last answer
    this.replyCount = 0;
    this.isFetching = false;
    this.drawnKey = '';
    const choices = { ...CHOICE_BY_KEY, ...choiceByKey };
    document.addEventListener('keydown', (event) => {
      const choice = choices[event.key.toLowerCase()];
      if (!choice || !this.state?.pair || !this.stage.checkVisibility()) return;
      if (!this.mayUseKeys() || !isShortcut(event)) return;
      event.preventDefault();
      this.answer(choice);
    });
    window.addEventListener('resize', () => this.fitTexts());
    new ResizeObserver(() => this.fitTexts()).observe(this.stage); // when it comes on screen
    showNotice(this.notice, getItem(this.noticeKey()));
  }

  // How many there can be at most.
  setLimit(count) {
    this.limit.textContent = `${this.unit} (1 to ${count})`;
  }

  fitTexts() {
    fitTextHeights(this.stage, this.stage.querySelector('.choices'));
  }

  mayUseKeys() {
    return true;
  }

  // Whether the state is needed.
  isShown() {
    return true;
  }

  // ---- requests

  // The reply to a request; null if there is none. Nothing is sent while another request waits for its reply. noReply:
  // the message if the lab does not reply; '' for an answer, which is kept.
  async send(request, fields, noReply) {
    if (this.pending) return null;
    const sent = (this.pending = { request });
    this.showNoReply('');
    this.drawButtons();
    let reply = null;
    let error = null;
    try {
      reply = await this.api[request](fields, REPLY_TIMEOUT_MS);
    } catch (failure) {
      error = failure;
    }
    if (this.pending !== sent) return null; // the answer was discarded
    this.pending = null;
    if (reply) this.takeReply(reply);
    else if (error.isReply) await this.takeRefusal(error, Boolean(fields.choice));
    else this.takeNoReply(noReply);
    this.drawButtons();
    return reply;
  }

  takeReply(reply) {
    this.replyCount += 1;
    this.refusal = '';
    this.selectedId = reply.state.id;
    this.setState(reply.state);
    showNotice(this.notice, reply.message || '');
  }

  takeNoReply(text) {
    this.refusal = '';
    if (text) this.showNoReply(text);
    else this.showKept();
  }

  async takeRefusal(error, isAnswer) {
    this.replyCount += 1;
    this.refusal = isAnswer ? error.message : '';
    showNotice(this.notice, error.message, true);
    await this.refresh(false);
  }

  // The connection may be lost and the page reloaded, so the message is stored for this tab.
  showNoReply(text) {
    setItem(this.noticeKey(), text);
    showNotice(this.notice, text);
  }

  noticeKey() {
    return `${this.name}-notice`;
  }

  // mayResend: whether an answer that is not stored yet is sent again.
  async refresh(mayResend = true) {
    if (this.isFetching || !(this.isShown() || this.unconfirmedAnswer())) return;
    this.isFetching = true;
    const { replyCount, selectedId } = this;
    try {
      const state = await this.api.get_state({ [this.idName]: selectedId });
      if (replyCount === this.replyCount && !this.pending && selectedId === this.selectedId) {
        this.setState(state);
        this.settleAnswer(mayResend);
      }
    } catch (error) {
      /* the next poll tries again */
    } finally {
      this.isFetching = false;
    }
    if (selectedId !== this.selectedId && !this.state) await this.refresh(); // another one was selected meanwhile
  }

  refreshIfWaiting() {
    if (this.state?.is_waiting) this.refresh();
  }

  setState(state) {
    this.state = state;
    if (state.id === null)
      this.selectedId = null; // it was deleted: the next poll shows the newest
    else if (state.pair) this.selectedId = state.id; // a newer one does not replace the one being judged
    this.draw();
  }

  select(id) {
    this.selectedId = id;
    this.refusal = '';
    this.refresh();
  }

  // Another project is open.
  reset() {
    this.selectedId = this.state = null;
    this.drawnKey = '';
    this.stage.replaceChildren();
    showNotice(this.notice, '');
  }

  // ---- answers: this browser stores one until the lab has replied. If the lab can be reached again and still shows
  // that pair, the answer is sent again.

  storageKey() {
    return `rlhf-lab-${this.name}-answer`;
  }

  unconfirmedAnswer() {
    return JSON.parse(localStorage.getItem(this.storageKey()) || 'null');
  }

  forgetAnswer() {
    localStorage.removeItem(this.storageKey());
  }

  answer(choice) {
    const { id, annotator, pair } = this.state || {};
    if (!pair || this.pending) return;
    const stored = { by: annotator, [this.idName]: id, pair, choice };
    localStorage.setItem(this.storageKey(), JSON.stringify(stored));
    this.sendAnswer(choice);
  }

  async sendAnswer(choice, isResent = false) {
    const { id, pair } = this.state;
    const reply = await this.send('answer', { [this.idName]: id, token: pair.token, choice }, '');
    if (!reply) return;
    this.forgetAnswer();
    if (isResent) showNotice(this.notice, STORED);
  }

  // Send the unconfirmed answer again if its pair is still on screen, because then the lab never stored it; otherwise
  // forget it.
  settleAnswer(mayResend) {
    const unconfirmed = this.unconfirmedAnswer();
    if (!unconfirmed || this.pending) return;
    const { id, annotator, pair = null } = this.state;
    const isOfState = unconfirmed[this.idName] === id && unconfirmed.by === annotator;
    if (isOfState && JSON.stringify(unconfirmed.pair) === JSON.stringify(pair)) {
      if (mayResend) this.sendAnswer(unconfirmed.choice, true);
      this.showKept();
    } else if (isOfState || this.refusal) {
      this.forgetAnswer();
      showNotice(this.notice, this.refusal || STORED, Boolean(this.refusal));
      this.refusal = '';
    }
  }

  showKept() {
    if (!this.unconfirmedAnswer()) return;
    const reason = this.refusal || 'Your last answer is not stored yet, because the lab does not reply.';
    showNotice(this.notice, `${reason} ${KEPT}`);
    const discard = () => this.discardAnswer();
    this.notice.append(' ', actionButton(`${this.name}-discard`, 'Discard it', discard, 'small lab-offline-too'));
  }

  discardAnswer() {
    this.forgetAnswer();
    this.pending = null;
    this.refusal = '';
    this.drawButtons();
    this.showNoReply('It is no longer sent. If the lab has already received it, it counts.');
  }

  // ---- what is on screen

  draw() {
    this.drawOthers();
    const key = JSON.stringify({ ...this.state, ...NOT_OF_PAIR });
    if (key !== this.drawnKey) {
      this.drawnKey = key;
      this.stage.replaceChildren(this.content() ?? '');
      this.drawControls();
      this.fitTexts();
    }
    this.drawButtons();
  }

  /** @returns {any} an element, a fragment, or null */
  content() {
    return null;
  }

  drawControls() {}

  drawOthers() {}

  drawButtons() {
    for (const button of this.card.querySelectorAll('button:not(.lab-offline-too)')) {
      button.disabled = Boolean(this.pending);
    }
  }

  // The pair on screen. head, others: contents of the rows above and below it.
  pairView(head, others) {
    const { pair } = this.state;
    const side = (choice, other, label, key) =>
      html`<div class="lab-card side ${choice}">
        ${markedDiff(pair[other], pair[choice], 'lab-scroll')}
        ${this.choiceButton(choice, label, key)}
      </div>`;
    return html`<div class="lab-row">${head}</div>
      ${promptView(pair.turns, 'asked lab-scroll')}
      <div class="sides">
        ${side('left', 'right', 'First is better', '1')}${side('right', 'left', 'Second is better', '2')}
      </div>
      <div class="lab-row choices">${this.choiceButton('tie', 'Equally good', '0')} ${others}</div>`;
  }

  choiceButton(choice, label, key) {
    const text = html`${label}<kbd>${key}</kbd>`;
    return actionButton(`${this.name}-${choice}`, text, () => this.answer(choice), '');
  }
}

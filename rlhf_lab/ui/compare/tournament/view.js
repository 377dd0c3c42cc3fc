// The tournament on the screen "Compare": blind pairs of up to eight models, and their ranking.
import { requests } from '../../shared/api.js';
import { actionButton, asked, html, selectField } from '../../shared/dom.js';
import { term } from '../../shared/glossary.js';
import { getItem, operatorNotice, operatorOnly, setItem } from '../../shared/session.js';
import { BlindPairs } from '../blind_pairs.js';
import { RankingView } from './ranking.js';

const api = requests('tournament');

const MAX_CONTESTANTS = 8;
const ABOUT =
  ': up to eight models answer the same prompts. You choose the better of two texts without knowing which models ' +
  'wrote them; the next pair is the one that is most informative about the ranking. Several people can judge at the ' +
  'same time. Nothing is trained on these answers.';
const BEST_OF_4 = 'base/best/4';
const canCompete = ([model]) => !model.startsWith('base/best/') || model === BEST_OF_4;

export class Tournament extends BlindPairs {
  // root: the element of the screen. getRequest(): the form's settings. chosenModels(): [model, label] of the columns.
  constructor({ root, getRequest, chosenModels }) {
    const choiceByKey = { x: 'both_bad', s: 'skip' };
    super({ name: 'tournament', idName: 'tournament_id', unit: 'prompts', api, choiceByKey });
    this.getRequest = getRequest;
    this.chosenModels = chosenModels;
    this.contestants = /** @type {any[] | null} */ (null); // proposed until a person changes them
    this.promptCount = html`<input
      class="lab-input" type="text" inputmode="numeric" value="24" aria-label="prompts" data-do="tournament-prompts"
    />`;
    this.chips = html`<div class="lab-row chips" data-do="tournament-contestants"></div>`;
    this.beginButton = actionButton('tournament-begin', 'Start a tournament', () => this.begin(), '');
    this.addButton = actionButton('tournament-add', 'Add the models chosen above', () => this.addChosen());
    this.note = html`<span class="muted" data-do="tournament-note"></span>`;
    this.ranking = new RankingView();
    this.card = this.buildCard();
    root.append(this.card);
  }

  buildCard() {
    const isOpen = getItem('tournament-open') === 'true';
    return html`<details
      class="lab-card tournament blind-pairs" open=${isOpen} ontoggle=${() => this.rememberOpen()}
    >
      <summary>
        <strong>Tournament</strong><span class="muted"> ranks several models by blind comparisons</span>
      </summary>
      <div class="inside">
        ${this.controls} ${this.notice} ${this.stage} ${this.ranking.element}
        <p class="muted about">${term('tournament', 'Tournament')}${ABOUT}</p>
        ${operatorNotice('Only the operator can start and delete tournaments; you can judge their pairs.')}
        ${operatorOnly(this.newTournament())}
      </div>
    </details>`;
  }

  newTournament() {
    return html`<div class="new">
      <strong>New tournament</strong>
      ${this.chips}
      <div class="lab-row">
        ${this.addButton}
        <label class="lab-row">${this.limit}${this.promptCount}</label>
        ${this.beginButton} ${this.estimate}
      </div>
      ${this.size}
    </div>`;
  }

  rememberOpen() {
    setItem('tournament-open', this.card.open);
    this.drawnKey = '';
    this.refresh();
  }

  isShown() {
    return this.card.open;
  }

  // ---- requests

  settings() {
    return { contestants: (this.contestants || []).map(([model]) => model), prompts: this.promptCount.value };
  }

  begin() {
    const { max_new_tokens, reward_model_id } = this.getRequest();
    this.send(
      'start',
      { ...this.settings(), max_new_tokens, reward_model_id },
      'The lab does not reply, so the tournament may not have started. Check the list of tournaments before you ' +
        'start it again.',
    );
  }

  requestPair() {
    this.send('answer', { tournament_id: this.state.id }, 'The lab does not reply. Press the button again.');
  }

  async delete(id) {
    const question = `Delete tournament ${id} permanently, with its texts and answers?`;
    if (!(await asked('tournament-delete', question))) return;
    this.send(
      'delete',
      { tournament_id: id },
      `The lab does not reply, so tournament ${id} may not be deleted yet. Check it, and delete it again if necessary.`,
    );
  }

  async takeRefusal(error, isAnswer) {
    if (error.field === 'prompts') this.promptCount.focus();
    await super.takeRefusal(error, isAnswer);
  }

  // Called with every poll of the screen. areRewardModels: best of 4 needs one.
  update(areRewardModels, projectChanged = false) {
    if (projectChanged) {
      this.reset();
      this.contestants = null;
      this.ranking.draw(null);
      this.controls.replaceChildren();
    }
    if (!this.contestants) this.propose(areRewardModels);
    this.refresh();
  }

  // ---- contestants

  propose(areRewardModels) {
    this.contestants = this.chosenModels().filter(canCompete);
    if (areRewardModels && !this.contestants.some(([model]) => model === BEST_OF_4)) {
      this.contestants.splice(1, 0, [BEST_OF_4, 'base, best of 4']);
    }
    this.drawContestants();
  }

  addChosen() {
    for (const one of this.chosenModels().filter(canCompete)) {
      const isNew = !this.contestants.some(([model]) => model === one[0]);
      if (this.contestants.length < MAX_CONTESTANTS && isNew) this.contestants.push(one);
    }
    this.drawContestants();
  }

  remove(model) {
    this.contestants = this.contestants.filter(([one]) => one !== model);
    this.drawContestants();
  }

  drawContestants() {
    this.chips.replaceChildren(
      ...this.contestants.map(
        ([model, label]) =>
          html`<span class="lab-badge">
            ${label}<button
              type="button" class="remove" aria-label="remove ${label}" onclick=${() => this.remove(model)}
            >
              ×
            </button>
          </span>`,
      ),
    );
    this.drawButtons();
  }

  // ---- what is on screen

  drawButtons() {
    super.drawButtons();
    const { length } = this.contestants || [];
    this.beginButton.disabled ||= length < 2;
    this.addButton.disabled ||= length >= MAX_CONTESTANTS;
  }

  drawOthers() {
    const { answers_note: answersNote, ranking } = this.state;
    this.note.textContent = answersNote ? `${answersNote} so far` : '';
    this.ranking.draw(ranking);
  }

  drawControls() {
    const { id, ids } = /** @type {lab.TournamentState} */ (this.state);
    if (!ids.length) {
      this.controls.replaceChildren();
      return;
    }
    const pick = ({ target }) => this.select(Number(target.value));
    const items = ids.map((one) => [one, `tournament ${one}`]);
    const picker = selectField('tournament-pick', 'tournament', pick, items, id);
    const attributes = { title: 'asks first' };
    const remove = actionButton('tournament-delete', 'Delete', () => this.delete(id), 'small danger', attributes);
    this.controls.replaceChildren(picker, operatorOnly(remove));
  }

  content() {
    const state = /** @type {lab.TournamentState} */ (this.state);
    if (state.id === null) return null;
    if (state.failure) {
      return html`<p class="lab-notice bad" role="alert">Its texts could not be written: ${state.failure}</p>`;
    }
    if (state.is_waiting) {
      const percent = Math.round(100 * state.progress);
      return html`<p class="muted" role="status">The engine is writing the texts: ${percent} % …</p>`;
    }
    if (!state.can_judge) return html`<p class="muted">To judge, log in with the join code.</p>`;
    if (state.pair) {
      const head = html`<strong data-judged=${state.own_count}>Your answer ${state.own_count + 1}</strong>${this.note}`;
      return this.pairView(head, [
        this.choiceButton('both_bad', 'Both bad', 'X'),
        this.choiceButton('skip', 'Skip', 'S'),
      ]);
    }
    const note = state.pause_note || (state.own_count ? 'No pair is left for you at this moment.' : '');
    const label = state.own_count ? 'More pairs' : 'Judge pairs';
    return html`<div class="lab-row">
      ${actionButton('tournament-next', label, () => this.requestPair(), 'lab-main')}
      <span class="muted">${note}</span>
    </div>`;
  }
}

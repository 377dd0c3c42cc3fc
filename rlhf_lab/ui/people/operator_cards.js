// Cards for the operator alone: gold pairs and experts, and removing a person. They are loaded while they are open.
import { actionButton, asked, html, perform, setOptions, tableHead } from '../shared/dom.js';
import { displayName, formatInterval, formatPercent, plural } from '../shared/format.js';
import { isOperator, operatorOnly } from '../shared/session.js';
import { goldNames } from './figures.js';

const RULE_EFFECTS = { inform: 'gets a note', down_weight: 'votes count less', pause: 'pauses' };
const RETRIED = () => {}; // by the next poll of the screen
const HEAD = ['Name', 'Right', 'Accuracy (95 %)', 'Expert', 'Rule'];

const resultLine = () => html`<p class="result" role="status"></p>`;

export class GoldCard {
  /** @param {lab.PeopleRequests} api @param {() => Array<any>} leaderboard */
  constructor(api, leaderboard) {
    this.api = api;
    this.leaderboard = leaderboard;
    this.gold = /** @type {lab.GoldView | null} */ (null);
    this.drawn = '';
    this.content = html`<div></div>`;
    this.result = resultLine();
    this.node = html`<details class="lab-card gold lab-operating" ontoggle=${() => this.load().catch(RETRIED)}>
      <summary>Gold pairs and experts</summary>
      ${this.content}
      ${this.result}
    </details>`;
  }

  async load() {
    if (!this.node.open || !isOperator()) return;
    this.gold = await this.api.gold();
    this.draw();
  }

  async decide(control, decision) {
    const reply = await perform(this.api.decide(decision), this.result, [control]);
    this.gold = reply?.gold || this.gold;
    this.drawn = ''; // after an error the control shows again what is stored
    this.draw();
  }

  draw() {
    const names = goldNames(this.gold, this.leaderboard());
    const key = JSON.stringify([this.gold, names]);
    if (key === this.drawn) return;
    this.drawn = key;
    const count = this.gold.gold_pairs;
    this.content.replaceChildren(
      html`<p data-gold=${count}>${count ? goldText(count) : NO_GOLD_TEXT}</p>
        <p class="muted">
          Experts decide pairs that people disagree about, and choose gold pairs, both under Label. You can do this too.
        </p>
        ${names.length ? this.table(names) : html`<p class="muted">${NOBODY_TEXT}</p>`}`,
    );
  }

  table(names) {
    const rows = new Map(this.gold.people.map((row) => [row.annotator, row]));
    return html`<div class="scroll" tabindex="0" role="group" aria-label="accuracy on gold pairs">
      <table>
        ${tableHead(HEAD)}
        <tbody>${names.map((name) => this.row(name, rows.get(name)))}</tbody>
      </table>
    </div>`;
  }

  /** @param {string} name @param {lab.GoldRow | undefined} row */
  row(name, row) {
    const isExpert = this.gold.experts.includes(name);
    const change = (event) => this.decide(event.target, { name, is_expert: !isExpert });
    const expert = html`<input
      type="checkbox" checked=${isExpert} data-do="expert" aria-label="${displayName(name)} is an expert"
      onchange=${change}
    />`;
    const accuracy = row && `${formatPercent(row.right / row.answers)} (${formatInterval(row.low, row.high)})`;
    return html`<tr data-name=${name}>
      <th scope="row" dir="auto">${displayName(name)}</th>
      <td>${row ? `${row.right} of ${row.answers}` : '–'}</td>
      <td>${accuracy || '–'}</td>
      <td>${operatorOnly(expert)}</td>
      <td>${row?.below && this.endPause(name)}</td>
    </tr>`;
  }

  endPause(name) {
    const end = (event) => this.decide(event.target, { name, go_on: true });
    const title = 'Resets the count of gold answers.';
    return operatorOnly(
      html`<span class="lab-badge">below the bound: ${RULE_EFFECTS[this.gold.rule]}</span>
        ${actionButton('go-on', 'End pause', end, 'small', { title })}`,
    );
  }
}

const goldText = (count) =>
  `${plural(count, 'gold pair')} in this project. Only you see these figures. Reward models are not trained on votes ` +
  'on gold pairs, unless the rules above allow it.';
const NO_GOLD_TEXT =
  'There are no gold pairs yet. To create some, press "gold pair" under Label, in your earlier labels, next to an ' +
  'answer that is clearly right.';
const NOBODY_TEXT = 'Nobody with a name has labelled in this project yet.';

export class ErasureCard {
  /** @param {lab.PeopleRequests} api */
  constructor(api) {
    this.api = api;
    this.name = html`<select
      class="lab-input" id="lab-erase-name" data-do="erase-name" onchange=${() => this.drawButton()}
    ></select>`;
    this.votes = html`<input type="checkbox" data-do="erase-votes" />`;
    this.result = resultLine();
    this.button = actionButton('erase', 'Remove …', () => this.erase(), 'danger', { disabled: true });
    this.node = html`<details class="lab-card erasure lab-operating" ontoggle=${() => this.load().catch(RETRIED)}>
      <summary>Remove a person from this lab</summary>
      <p class="muted">
        The name is removed from votes, blind tests and reward models of every project, and the person has to join
        again. Trained reward models and exported files are not changed.
      </p>
      <div class="lab-row">
        <label for="lab-erase-name">Name</label>
        ${this.name}
        <label>${this.votes} also remove their votes and notes</label>
      </div>
      ${operatorOnly(this.button)}
      ${this.result}
    </details>`;
  }

  async load() {
    if (!this.node.open || !isOperator()) return;
    const names = await this.api.names();
    const placeholder = names.length ? 'choose …' : 'no named people yet';
    setOptions(this.name, [['', placeholder], ...names.map((name) => [name, name])], '');
    this.drawButton();
  }

  drawButton() {
    this.button.disabled = !this.name.value;
  }

  async erase() {
    const [name, deletesVotes] = [this.name.value, this.votes.checked];
    const consequence = deletesVotes ? 'with all votes' : 'and keep the votes without a name';
    const question = `Remove ${name} from every project permanently, ${consequence}?`;
    if (!(await asked('erase', question, 'Remove'))) return;
    await perform(this.api.erase({ name, delete_votes: deletesVotes }), this.result);
    await this.load().catch(RETRIED);
  }
}

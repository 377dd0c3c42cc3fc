// Screen "People": who is here, the leaderboard, the invitation; for the operator also the labelling rules, gold pairs
// and removing a person.
import { requests } from '../shared/api.js';
import { html, perform, redraw } from '../shared/dom.js';
import { poll } from '../shared/poll.js';
import { isOperator } from '../shared/session.js';
import { invitationCard, leaderboard, loadInvitation, presenceCard } from './cards.js';
import { ErasureCard, GoldCard } from './operator_cards.js';
import { rulesForm } from './rules_form.js';

const api = requests('people');
const POLL_MS = 4000;

export default class People {
  constructor(root, settings) {
    this.root = root;
    this.settings = settings; // {fields, gold_fields, page_command}
    this.state = /** @type {lab.PeopleState | null} */ (null);
    // The operator's invitation; undefined until it has arrived, null if others cannot reach this lab.
    this.invitation = /** @type {lab.Invitation | null | undefined} */ (undefined);
    this.drawnRules = this.drawnCards = '';
    this.cards = html`<div class="cards"></div>`;
    this.rules = html`<div class="cards"></div>`;
    this.gold = new GoldCard(api, () => this.state.leaderboard);
    this.erasure = new ErasureCard(api);
    root.append(this.cards, this.rules, this.gold.node, this.erasure.node);
    poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    this.state = (await api.state.ifChanged()) || this.state;
    if (!isOperator()) this.invitation = undefined;
    this.draw();
    if (isOperator()) await this.updateForOperator();
  }

  // A refusal is not shown: the page may not know yet that its visitor is no longer the operator.
  async updateForOperator() {
    try {
      this.invitation = await loadInvitation(api.invite);
      this.draw();
      await this.gold.load();
      await this.erasure.load();
    } catch (error) {
      if (!error.isReply) throw error;
    }
  }

  draw() {
    this.drawRules();
    const key = JSON.stringify([this.state, this.role(), this.invitation ?? String(this.invitation)]);
    if (key === this.drawnCards) return; // a link that is being copied stays selected
    this.drawnCards = key;
    const presence = presenceCard(this.state, this.role());
    const invitation =
      this.invitation === undefined ? [] : [invitationCard(this.invitation, this.settings.page_command)];
    redraw(
      this.cards,
      ...(this.invitation ? [...invitation, presence] : [presence, ...invitation]),
      leaderboard(this.state),
    );
  }

  // The role of this visitor. The operator's secret gives all rights and does not change the name.
  role() {
    if (isOperator()) return 'operator';
    return this.state.you.role === 'viewer' ? 'viewer' : 'labeller';
  }

  // The form is replaced only when the rules have changed, because a person may be filling it in.
  drawRules() {
    const key = JSON.stringify([this.state.rules, isOperator()]);
    if (key === this.drawnRules) return;
    this.drawnRules = key;
    const isOpen = Boolean(this.rules.querySelector('details')?.open);
    const send = (form, rules) =>
      perform(api.set_rules({ rules }), form.querySelector('.result'), [form.querySelector('button')]);
    const forms = isOperator() ? [rulesForm(this.settings, this.state.rules, send)] : [];
    this.rules.replaceChildren(...forms);
    for (const form of forms) form.open = isOpen;
  }
}

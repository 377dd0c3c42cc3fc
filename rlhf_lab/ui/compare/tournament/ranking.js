// The ranking of a tournament: scores with intervals, and how often each model was preferred to each other one.
import { html, tableHead } from '../../shared/dom.js';
import { formatFixed, plural } from '../../shared/format.js';
import { scoreText, winShare } from '../texts.js';

const ABOUT =
  'A model with score 0 is as good as the base model; with +1 it is preferred to the base in 73 % of pairs, with +2 ' +
  'in 88 %. Models with strongly overlapping intervals may be equally good. More prompts make the intervals ' +
  'narrower; more people who judge the same pairs hardly do. "Above": this model has not yet lost to the base model, ' +
  'or to a model that lost to the base, so its score has no upper limit. "Below": it has not yet won against the ' +
  'base model, or against one that won against the base. "Not compared": no answers connect the model ' +
  'to the base model yet, so it has no place. KL, reward and gold are means over the texts of this tournament.';
const ABOUT_ANSWERS =
  ' They are hidden until the answers are in the ranking. ' +
  'While somebody judges, the ranking stays as it was, so that it does not say which models the answers were about. ' +
  'New answers are added when nobody has judged for ten minutes, or no pair is left.';

export class RankingView {
  // takesAnswers: false for a ranking that does not change any more.
  constructor(takesAnswers = true) {
    this.about = takesAnswers ? ABOUT + ABOUT_ANSWERS : ABOUT;
    this.element = html`<div class="ranking"></div>`;
    this.summary = html`<summary></summary>`;
    this.tables = html`<div class="tables"></div>`;
    this.fold = html`<details>${this.summary}${this.tables}</details>`;
    this.drawnKey = '';
  }

  /** @param {lab.Ranking | null | undefined} ranking */
  draw(ranking) {
    if (!ranking) {
      this.element.replaceChildren();
      return;
    }
    if (!this.element.contains(this.fold)) this.element.replaceChildren(this.fold);
    const key = JSON.stringify(ranking);
    if (key === this.drawnKey) return;
    this.drawnKey = key;
    this.summary.textContent = `Ranking after ${plural(ranking.answers, 'answer')}`;
    this.tables.replaceChildren(
      html`${scoreTable(ranking)}
        <p class="muted">${this.about}</p>
        <h3>How often the row is preferred to the column</h3>
        ${winTable(ranking)}`,
    );
  }
}

const table = (label, name, head, body) =>
  html`<div class="lab-scroll" tabindex="0" role="group" aria-label=${label}>
    <table data-do="tournament-${name}">${tableHead(head)}<tbody>${body}</tbody></table>
  </div>`;

/** @param {lab.Ranking} ranking */
function scoreTable({ rows }) {
  const hasGold = rows.some((row) => row.gold !== null);
  const body = rows.map(
    (row, i) =>
      html`<tr>
        <th scope="row">${row.score === null ? row.name : `${i + 1}. ${row.name}`}</th>
        <td class="score">${scoreText(row)}</td>
        <td>${formatFixed(row.kl)}</td>
        <td>${formatFixed(row.reward)}</td>
        ${hasGold ? html`<td>${formatFixed(row.gold)}</td>` : null}
      </tr>`,
  );
  const head = ['model', 'score (95 % interval)', 'KL', 'reward', ...(hasGold ? ['gold'] : [])];
  return table('ranking', 'ranking', head, body);
}

/** @param {lab.Ranking} ranking */
function winTable({ rows, wins }) {
  const cell = (i, j) => {
    if (i === j) return html`<td></td>`;
    const [text, title] = winShare(wins[i][j], wins[j][i]);
    return html`<td title=${title}>${text}</td>`;
  };
  const body = rows.map((row, i) => html`<tr><th scope="row">${row.name}</th>${rows.map((_, j) => cell(i, j))}</tr>`);
  return table('win rates', 'matrix', ['', ...rows.map((row) => row.name)], body);
}

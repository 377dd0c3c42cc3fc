// The token view: tokens of the texts that a step learned from, coloured by a value, and the equations of the selected
// token.
import { actionButton, html, promptView, selectField, setOptions } from '../shared/dom.js';
import { formatNumber, plural } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { background, equationText, probabilityText, scoreText } from './token_texts.js';

const CLIPPED_TITLE =
  'After the last update of the step, the clipped term is the larger loss. The curve of the clip fraction is the ' +
  'mean over all updates of the step, the first of which clips nothing.';

export class TokenView {
  /**
   * @param {(query: { run: number, step: number }) => Promise<lab.TokenView>} fetchTokens
   * @param {(() => number[] | null) | null} steps those with tokens, if they are not all
   */
  constructor(fetchTokens, steps = null) {
    this.steps = steps;
    this.fetchTokens = fetchTokens;
    this.run = null;
    this.step = null;
    this.view = /** @type {lab.TokenView | null} */ (null);
    this.requestedKey = '';
    this.scrollsWhenLoaded = false;
    this.selected = [0, 0]; // row and token
    this.isPinned = false; // a pinned token stays selected when the mouse moves
    this.node = this.build();
    this.texts = this.node.querySelector('.texts');
    this.facts = this.node.querySelector('.facts');
    this.scaleSelect = this.node.querySelector('select');
  }

  build() {
    const stepButton = (name, label, sign, offset) =>
      actionButton(name, sign, () => this.move(offset), 'small', { 'aria-label': label });
    return html`<details class="lab-card token-view" data-do="token-view" ontoggle=${() => this.load()}>
      <summary>
        <h2>Token view</h2>
        <span class="muted">
          Texts that this step was trained on, with the values of every token and how they are computed.
        </span>
      </summary>
      <div class="lab-row">
        ${stepButton('token-back', 'previous step', '◀', -1)}
        <strong data-token-step></strong>
        ${stepButton('token-on', 'next step', '▶', 1)}
        <label class="lab-row shade">
          <span class="muted">colour</span>
          ${selectField('token-colour', 'colour the tokens by', () => this.colorTokens())}
        </label>
        <span class="muted legend"></span>
      </div>
      <div class="texts"><p class="lab-empty">Loading the tokens …</p></div>
      <div class="facts" aria-live="polite"></div>
    </details>`;
  }

  // Scrolls to the token view now, and once more when its content has arrived.
  open() {
    this.node.open = this.scrollsWhenLoaded = true;
    this.node.scrollIntoView({ block: 'start' });
  }

  move(offset) {
    const steps = this.steps?.() ?? null;
    this.step = steps ? steps[steps.indexOf(this.view.step) + offset] : this.step + offset;
    this.load();
  }

  // Show a step, with row and token `selected` fixed; it is fetched only while the section is open.
  show(run, step, selected = null) {
    if (selected) [this.selected, this.isPinned] = [selected, true];
    [this.run, this.step] = [run, Math.max(1, step)];
    this.load();
  }

  // Called with every poll, because a reply may be lost and the run goes on. lastStep: of the run, 0 if unknown.
  async load(lastStep = 0) {
    if (this.view?.run === this.run && lastStep > this.view.last_step) {
      this.view.last_step = lastStep;
      this.drawStepButtons();
    }
    const key = `${this.run}/${this.step}`;
    if (!this.node.open || this.run === null || this.requestedKey === key) return;
    this.requestedKey = key;
    let view;
    try {
      view = await this.fetchTokens({ run: this.run, step: this.step });
    } catch (error) {
      if (this.requestedKey === key) this.requestedKey = '';
      return;
    }
    if (this.requestedKey !== key) return;
    this.view = view;
    this.draw();
    if (this.scrollsWhenLoaded) this.node.scrollIntoView({ block: 'start' });
    this.scrollsWhenLoaded = false;
  }

  // ---- drawing

  drawStepButtons() {
    const { node, view } = this;
    const steps = this.steps?.() ?? [1, view.last_step];
    node.querySelector('[data-do=token-back]').disabled = view.step <= steps[0];
    node.querySelector('[data-do=token-on]').disabled = view.step >= steps.at(-1);
  }

  draw() {
    const { node, view, scaleSelect } = this;
    const stepLabel = node.querySelector('[data-token-step]');
    stepLabel.textContent = `step ${view.step}`;
    stepLabel.dataset.tokenStep = view.step;
    this.drawStepButtons();
    const scales = view.color_scales.map(({ column, name }) => [column, name]);
    setOptions(scaleSelect, scales, scales[0][0]);
    if (!view.rows.length) {
      const reason = view.tokens_per_step
        ? 'No tokens of this step were stored.'
        : 'This run stores no tokens: token_rows is 0 in its settings.';
      this.texts.replaceChildren(html`<p class="lab-empty">${reason}</p>`);
      this.facts.replaceChildren();
      node.querySelector('.legend').textContent = '';
      return;
    }
    this.texts.replaceChildren(...view.rows.map((row, i) => this.textCard(row, i)));
    this.colorTokens();
    const [row, token] = this.isPinned ? this.selected : view.notable;
    this.select(Math.min(row, view.rows.length - 1), token, this.isPinned);
  }

  textCard(row, rowIndex) {
    const token = (text, i) =>
      html`<span
        class="token${row.clipped[i] ? ' clipped' : ''}" role="button" tabindex="-1" data-token=${i}
        aria-label="token ${text.trim() || i + 1}" onmouseenter=${() => this.isPinned || this.select(rowIndex, i)}
        onclick=${() => this.select(rowIndex, i, !this.isPinned || !this.isSelected(rowIndex, i))}
      >${text || '·'}</span>`;
    const score = scoreText(row);
    return html`<article>
      ${promptView(row.turns, 'muted brief')}
      <p class="lab-text tokens" dir="auto" onkeydown=${(event) => this.handleKey(event, rowIndex)}>
        ${row.tokens.map(token)}
      </p>
      <div class="lab-row">
        ${score && html`<span class="lab-badge">${score}</span>`}
        <span class="lab-badge">${plural(row.tokens.length, 'token')}</span>
      </div>
    </article>`;
  }

  colorTokens() {
    const { view } = this;
    const scale = view.color_scales.find(({ column }) => column === this.scaleSelect.value);
    view.rows.forEach((row, rowIndex) =>
      row.colors[scale.column].forEach((color, i) => {
        this.tokenNode(rowIndex, i).style.background = background(color, scale);
      }),
    );
    const stop = ([value, color]) => {
      const swatch = html`<i class="swatch"></i>`;
      swatch.style.background = background(color, scale);
      return [swatch, formatNumber(value)];
    };
    const isClipping = view.rows.some((row) => row.clipped.some(Boolean));
    this.node
      .querySelector('.legend')
      .replaceChildren(
        scale.name,
        ...scale.legend.flatMap(stop),
        ...(isClipping ? [html`<span class="token clipped">clipped after the step</span>`] : []),
      );
  }

  // ---- the selected token

  tokenNode(rowIndex, i) {
    return this.texts.children[rowIndex].querySelector(`[data-token="${i}"]`);
  }

  isSelected(rowIndex, i) {
    return this.selected[0] === rowIndex && this.selected[1] === i;
  }

  handleKey(event, rowIndex) {
    const offset = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this.select(rowIndex, this.selected[1], !this.isPinned);
    }
    if (!offset) return;
    event.preventDefault();
    const last = this.view.rows[rowIndex].tokens.length - 1;
    this.select(rowIndex, Math.max(0, Math.min(last, this.selected[1] + offset)), true);
    this.tokenNode(...this.selected).focus();
  }

  select(rowIndex, i, pin = false) {
    const row = this.view.rows[rowIndex];
    const last = row.tokens.length - 1;
    const index = Math.min(i, last);
    this.selected = [rowIndex, index];
    this.isPinned = pin;
    this.texts.querySelectorAll('.tokens').forEach((line, at) => {
      for (const token of line.children) {
        token.classList.remove('seen', 'pinned');
        token.tabIndex = -1;
      }
      if (at !== rowIndex) line.firstElementChild.tabIndex = 0;
    });
    const token = this.tokenNode(rowIndex, index);
    token.classList.add('seen');
    token.classList.toggle('pinned', pin);
    token.tabIndex = 0;
    const lines = this.view.equations.map((line) => equationLine(line, row, this.view.constants, index));
    this.facts.replaceChildren(this.heading(row, index), html`<div class="lines">${lines}</div>`);
  }

  heading(row, i) {
    const word = row.tokens[i].trim();
    const percent = (column) => probabilityText(row.columns[column][i]);
    return html`<div class="lab-row">
      <strong class="lab-text word">${word ? `“${word}”` : 'a space, or a part of a character'}</strong>
      <span class="muted">token ${i + 1} of ${row.tokens.length}</span>
      <span class="lab-badge">probability when sampled ${percent('old_logprob')}</span>
      <span class="lab-badge">under the base model ${percent('ref_logprob')}</span>
      <span class="lab-badge accent">after the step ${percent('logprob')}</span>
      ${row.clipped[i] && html`<span class="lab-badge warn" title=${CLIPPED_TITLE}>clipped after the step</span>`}
      ${this.isPinned && html`<span class="muted">fixed; click it again to release</span>`}
    </div>`;
  }
}

function equationLine({ name, equation, symbols, about }, row, constants, i) {
  return html`<strong>${term(name)}</strong>
    <span class="sum">${equationText(equation, row.columns, constants, i)}</span>
    <span class="muted"><code>${symbols}</code> ${about}</span>`;
}

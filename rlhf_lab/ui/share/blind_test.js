// The blind test of a shared page: the reader judges pairs, sees the result, and can save the votes for the lab.
import { actionButton, html, promptView, redraw, textView } from '../shared/dom.js';
import { formatPercent, plural } from '../shared/format.js';

/** @typedef {import('./view.js').Recording} Recording */

const VOTES_FILE = 'votes-of-a-reader.jsonl';

/**
 * What the choices say. choices: 0 or 1 for a text, 2 for a tie. intervals: see `Recording`.
 * @param {{ policy: number }[]} pairs @param {number[]} choices @param {number[][][]} intervals
 */
export function resultText(pairs, choices, intervals) {
  const decided = choices.filter((choice) => choice < 2).length;
  const wins = choices.filter((choice, i) => choice === pairs[i].policy).length;
  if (!decided) return 'You had no preference in any pair.';
  const [low, high] = intervals[decided][wins];
  return (
    `You preferred the policy in ${wins} of ${plural(decided, 'decided pair')} (${formatPercent(wins / decided)}, ` +
    `95 % interval ${formatPercent(low)} to ${formatPercent(high)}).` +
    (low <= 0.5 && high >= 0.5 ? ' This may be chance.' : '')
  );
}

/** The votes as lines that `rlhf_lab import` reads. @param {Recording['pairs']} pairs @param {number[]} choices */
export function voteLines(pairs, choices, reader) {
  return choices
    .map((choice, i) => {
      const [chosen, rejected] = choice === 1 ? [...pairs[i].texts].reverse() : pairs[i].texts;
      return JSON.stringify({ prompt: pairs[i].prompt, chosen, rejected, tie: choice === 2, annotator: reader });
    })
    .map((line) => `${line}\n`)
    .join('');
}

const side = (name, text) => html`<div class="side"><span class="muted">${name}</span>${textView(text)}</div>`;

export class BlindTest {
  /** @param {Recording} recording */
  constructor(recording) {
    this.recording = recording;
    this.choices = /** @type {number[]} */ ([]);
    // Readers are told apart, and not known.
    this.reader = `reader ${crypto.getRandomValues(new Uint32Array(1))[0].toString(36)}`;
    this.node = html`<section class="lab-card blind" aria-label="blind test"></section>`;
    this.draw();
  }

  choose(choice) {
    this.choices.push(choice);
    this.draw();
  }

  draw() {
    const { pairs } = this.recording;
    const pair = pairs[this.choices.length];
    redraw(this.node, html`<h2>Which text do you prefer?</h2>`, ...(pair ? this.question(pair) : this.result()));
  }

  question({ turns, texts }) {
    const number = this.choices.length + 1;
    return [
      html`<p class="muted">
        Judge before you read on. Pair ${number} of ${this.recording.pairs.length}: one text is by the base model, one
        by the trained policy.
      </p>`,
      promptView(turns, 'asked'),
      html`<div class="pair">
        ${texts.map((text, i) => side(['First', 'Second'][i], text))}
      </div>`,
      html`<div class="lab-row">
        ${actionButton('first', 'First', () => this.choose(0), '')}
        ${actionButton('second', 'Second', () => this.choose(1), '')}
        ${actionButton('tie', 'Equally good', () => this.choose(2), '')}
      </div>`,
    ];
  }

  result() {
    const { pairs, intervals, title, blind_test: authors, has_tested_pairs: areTheSame } = this.recording;
    const save = () => {
      const link = document.createElement('a');
      const lines = voteLines(pairs, this.choices, `${this.reader} of ${title}`);
      link.href = `data:application/jsonl;charset=utf-8,${encodeURIComponent(lines)}`;
      link.download = VOTES_FILE;
      link.click();
    };
    return [
      html`<p role="status">${resultText(pairs, this.choices, intervals)}</p>`,
      ...(authors
        ? [html`<p>The blind test of the author’s lab, on ${areTheSame ? 'these' : 'other'} pairs: ${authors}</p>`]
        : []),
      html`<p class="muted">
        This saves the file ${VOTES_FILE} with your votes. Send it to the author, who can import it as labels.
      </p>`,
      html`<div class="lab-row">${actionButton('save-votes', 'Save the votes', save, '')}</div>`,
    ];
  }
}

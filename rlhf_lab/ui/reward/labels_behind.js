// The labels that raise and lower the score of a text, by the head that learns from every vote.
import { actionButton, html, promptView, textView } from '../shared/dom.js';
import { formatDifference, formatNumber } from '../shared/format.js';
import { isOperator } from '../shared/session.js';

const HEAD_HINT =
  'The instant reward model is fitted again after every vote. It is simpler than a trained one, so the two scores ' +
  'can differ. The number above a label says how much this label adds to the score.';
const WORD_HINT =
  'The instant reward model reads the mean of what the language model computes at each word, so its score is exactly ' +
  'the sum of what the words add. At a word, the language model has also read all words before it. The number above ' +
  'a label says how much of this comes from the label.';
const ADAPTER_HINT =
  ' The reward model shown here also has a trained adapter, which cannot be explained by single labels. These labels ' +
  'explain a head without it.';

// What is explained, and how. word: '' for the whole text.
export const hintText = ({ word, hasAdapter }, ignores) =>
  (word ? WORD_HINT : HEAD_HINT) + (ignores && ` It ignores ${ignores}.`) + (hasAdapter ? ADAPTER_HINT : '');

/**
 * @param {lab.InstantExplanation} explained
 * @param {{removed: {label: lab.LabelBehindScore, votes: number[]} | null, problem: string}} state removed: the last
 *   label that was removed, and the votes on its pair; problem: why a change failed
 * @param {{word: string, hasAdapter: boolean, showText: () => void}} about word: '' for the whole text
 * @param {{takeOut: (label: lab.LabelBehindScore) => void, putBack: () => void}} change
 */
export function labelsBehind({ score, low, high, labels, ignores }, { removed, problem }, about, change) {
  const rows = labels.map((label) => labelRow(label, takeOutText(label.votes), () => change.takeOut(label)));
  const interval = `; 95 % interval ${formatNumber(low, 2)} to ${formatNumber(high, 2)}`;
  const back = removed && labelRow(removed.label, putBackText(removed.votes.length), change.putBack);
  const { word } = about;
  const result = word
    ? `“${word}” adds ${formatDifference(score, 2)} to the score by the instant reward model, in its own sd`
    : `Score by the instant reward model, in its own sd: ${formatNumber(score, 2)}`;
  const whole = actionButton('explain-all', 'Whole text', about.showText);
  return html`<section class="behind" aria-label="labels behind this score">
    <div class="lab-row">
      <strong>Labels behind ${word ? `“${word}”` : 'this score'}</strong> ${word ? whole : null}
    </div>
    <p class="muted">${hintText(about, ignores)}</p>
    <p role="status" data-do="instant-score"><strong>${result}</strong>${interval}</p>
    ${problem ? html`<p class="lab-notice bad" role="alert">${problem}</p>` : null}
    ${back ? html`<p class="muted">${removedText(removed.votes.length)}</p><ul>${back}</ul>` : null}
    ${rows.length ? html`<ul>${rows}</ul>` : html`<p class="muted">No label changes it.</p>`}
  </section>`;
}

// All labels of a pair are taken out, because otherwise the others would go on to say the same.
export const takeOutText = (votes) => (votes > 1 ? `Remove all ${votes} labels of this pair` : 'Remove this label');
export const putBackText = (votes) => (votes > 1 ? `Restore all ${votes}` : 'Restore it');
export const removedText = (votes) =>
  votes > 1
    ? `Removed with all ${votes} labels of its pair; nothing learns from them now:`
    : 'Removed; nothing learns from it now:';
// Why labels are still missing: back of all were put back.
export const missingText = (back, all) =>
  back < all ? `Only ${back} of ${all} labels were restored: the others have been given again, or are gone.` : '';

/** @param {lab.LabelBehindScore} label @param {string} text of the button @param {() => void} press */
function labelRow({ vote, turns, chosen, rejected, is_tie: isTie, influence }, text, press) {
  const side = (name, words) => html`<div><span class="muted">${name}</span>${textView(words)}</div>`;
  const names = isTie ? ['equally good', 'and'] : ['preferred', 'over'];
  const button = html`<button
    type="button" class="lab-button small" data-do="take-out" data-vote=${vote} onclick=${press}
  >
    ${text}
  </button>`;
  return html`<li>
    <div class="lab-row">
      <span class="lab-badge ${influence > 0 ? 'good' : 'warn'}">${formatDifference(influence, 2)} sd</span>
      <span class="lab-grow"></span>${isOperator() ? button : null}
    </div>
    ${promptView(turns, 'muted brief')}
    <div class="sides">${side(names[0], chosen)}${side(names[1], rejected)}</div>
  </li>`;
}

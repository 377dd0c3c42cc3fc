// The card "What else the labels prefer": attributes of the texts, such as their length, which the scores may ignore.
import { actionButton, html } from '../shared/dom.js';
import { isOperator } from '../shared/session.js';
import { formatFixed, formatNumber } from '../shared/format.js';

const INTRO =
  'People do not only choose the better answer. They may also choose the longer or the shorter one, without meaning ' +
  'to. This is what the labels of this reward model say, and PPO will follow it unless the scores ignore it.';

// An odds ratio for people: beyond a factor of 100 its size is not known.
const oddsText = (odds) => (odds > 100 ? 'over 100' : odds < 0.01 ? 'under 0.01' : formatNumber(odds, 2));

const MAX_RATIO = 30; // of the bounds of an interval that says how much

/** What the labels say about an attribute. @param {lab.AttributeRow} row */
export function effectText({ step_text: step, odds, low, high }) {
  if (odds === null) return 'Not measured: the labelled texts do not differ in it, or it is not shown here.';
  const chance = low <= 1 && high >= 1 ? ' This may be chance.' : '';
  if (high > MAX_RATIO * low) {
    const direction = odds > 1 ? 'more' : 'less';
    return `${step} are ${direction} likely to be preferred; too few labels to say how much.${chance}`;
  }
  const interval = `${oddsText(low)} to ${oddsText(high)}`;
  return `${step} have ${oddsText(odds)} times the odds of being preferred (${interval}).${chance}`;
}

/** How the base's scores and lengths go together. @param {number | null} correlation */
export function correlationText(correlation) {
  if (correlation === null) return '';
  const verb = Math.abs(correlation) < 0.1 ? 'hardly correlate' : 'correlate';
  const figure = formatFixed(correlation);
  return `The scores of this reward model and the lengths of texts ${verb} (${figure}), over texts of the base model.`;
}

/**
 * @param {lab.RewardReport} report
 * @param {boolean} isBusy whether a reward model is being trained
 * @param {(name: string, ignore: boolean) => void} choose
 */
export function attributesCard({ attributes, length_correlation: correlation }, isBusy, choose) {
  return html`<div class="lab-card attributes">
    <h3>What else the labels prefer</h3>
    ${attributes.length ? html`<p class="muted">${INTRO}</p>` : null}
    <ul>
      ${attributes.map((row) => attributeItem(row, isBusy, choose))}
    </ul>
    <p data-do="length">${correlationText(correlation)}</p>
  </div>`;
}

/** @param {lab.AttributeRow} row */
function attributeItem(row, isBusy, choose) {
  const { name, label, low, high, is_ignored: isIgnored } = row;
  const isKnown = low !== null && (low > 1 || high < 1);
  const state = isIgnored ? html`<span class="lab-badge good">ignored</span>` : null;
  const buttonLabel = isIgnored ? 'Count it as labelled' : 'Ignore it';
  const toggle = () => choose(name, !isIgnored);
  const button = actionButton(`attribute-${name}`, buttonLabel, toggle, 'small', { disabled: isBusy });
  return html`<li>
    <span class="name"><strong>${label}</strong> ${state}</span>
    <span class=${isKnown ? null : 'muted'}>${effectText(row)}</span>
    ${isOperator() ? button : null}
  </li>`;
}

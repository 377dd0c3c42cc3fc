// The card "Would people choose what it prefers?": a blind test of the reward model, before PPO follows it.
import { actionButton, html } from '../shared/dom.js';
import { plural } from '../shared/format.js';
import { openTab, operatorNotice, operatorOnly } from '../shared/session.js';

/** @param {number} pairs */
export const aboutCheck = (pairs) =>
  `Before PPO follows this reward model, a check of about one minute: you see ${plural(pairs, 'pair')} without ` +
  'knowing which text is which. One is the best of four by this reward model, the other one is any text of the base ' +
  'model.';

/**
 * @param {lab.CheckView} check @param {string} error why it could not start
 * @param {() => void} begin
 */
export function checkCard({ pairs, note, test, text, is_open: isOpen, can_judge: canJudge }, error, begin) {
  const label = test === null ? 'Check it now' : 'Check again';
  const start = actionButton('check-begin', label, begin);
  const judge = actionButton('check-judge', 'Judge the pairs', () => openTab('Compare'));
  return html`<div class="lab-card check">
    <h3>Would people choose what it prefers?</h3>
    <p class="muted">${aboutCheck(pairs)} ${note}</p>
    ${text ? html`<p role="status" data-do="check-result">${text}</p>` : null}
    ${error ? html`<p class="lab-notice bad" role="alert">${error}</p>` : null}
    ${operatorNotice('Only the operator can start a check; you can judge its pairs under Compare.')}
    <div class="lab-row">${canJudge ? judge : isOpen ? null : operatorOnly(start)}</div>
  </div>`;
}

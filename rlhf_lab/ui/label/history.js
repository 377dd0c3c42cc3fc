// The list of earlier votes, each of which can be changed.
import { CHOICE_LABELS, STRENGTHS } from './texts.js';
import { actionButton, html, promptView, selectField, textView, withCut } from '../shared/dom.js';

export async function loadHistory(details, api, change, markGold) {
  const container = details.querySelector('.earlier');
  try {
    const votes = await api.recent_votes();
    container.replaceChildren(
      ...(votes.length
        ? votes.map((vote) => historyRow(vote, change, markGold))
        : [html`<p class="muted">No labels yet.</p>`]),
    );
  } catch (error) {
    container.replaceChildren(html`<p class="lab-notice bad">${error.message}</p>`);
  }
}

// change(fields): send another answer. markGold(fields): make the pair a gold pair, or an ordinary one again.
/** @param {lab.EarlierVote} vote */
function historyRow(vote, change, markGold) {
  const choice = selectField('amend-choice', 'your answer', update, Object.entries(CHOICE_LABELS), vote.choice);
  const strengths = [['', 'strength: not given'], ...STRENGTHS.map((word) => [word, `${word} better`])];
  const strength = selectField('amend-strength', 'how much better', update, strengths, vote.strength);
  const note = noteField(vote.note, update);
  const button = actionButton('amend', 'Change', () => change({ vote_id: vote.id, ...values() }));
  const values = () => ({
    choice: choice.value,
    strength: strength.hidden ? '' : strength.value,
    note: note.value.trim(),
  });
  function update() {
    strength.hidden = !['left', 'right'].includes(choice.value); // a tie has no strength
    button.disabled = Object.entries(values()).every(([name, value]) => vote[name] === value);
  }
  update();
  const text = (which) => {
    const style = vote.choice === which ? ' picked' : '';
    return withCut(textView(vote[which], `lab-scroll${style}`), vote.cut[which]);
  };
  return html`<article data-vote=${vote.id}>
    ${promptView(vote.turns, 'muted brief')}
    <div class="two">${text('left')}${text('right')}</div>
    <div class="lab-row">
      ${choice}${strength}${note}${button}${goldButton(vote, markGold)}
      ${vote.adjudication ? html`<span class="lab-badge">decided as an expert</span>` : null}
    </div>
  </article>`;
}

export function noteField(value, update) {
  const field = html`<input
    type="text" class="lab-input note" maxlength="1000" placeholder="note (optional)" aria-label="note on this pair"
    oninput=${update}
  />`;
  field.value = value;
  return field;
}

// For an expert: makes the pair a gold pair, which is shown to others to measure how often they give this answer.
function goldButton(vote, markGold) {
  if (!('gold' in vote) || !['left', 'right'].includes(vote.choice)) return null;
  const title =
    'A gold pair has a known answer: yours. It is occasionally shown to other people, who cannot distinguish it ' +
    'from other pairs.';
  return html`<button
    type="button" class="lab-more${vote.gold ? ' on' : ''}" data-do="gold" aria-pressed=${String(vote.gold)}
    title=${title} onclick=${() => markGold({ vote_id: vote.id, is_gold: !vote.gold })}
  >
    gold pair
  </button>`;
}

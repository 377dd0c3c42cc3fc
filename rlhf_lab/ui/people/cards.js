// What everybody sees of the people of a lab, and the operator's invitation.
import { requests } from '../shared/api.js';
import { html, svg } from '../shared/dom.js';
import { displayName, isVisitor } from '../shared/format.js';
import { term } from '../shared/glossary.js';
import { earlierName, operatorNotice } from '../shared/session.js';
import { presentText, presentTitle, share } from './figures.js';

const ROLE_TEXTS = {
  viewer: 'can view everything, but not label.',
  labeller: 'may label.',
  operator: 'can do everything: label, train, change projects and rules.',
};
const COLUMNS = [
  ['Labels', 'without skips'],
  ['Self-consistency', 'on pairs shown twice, sides swapped'],
  ['Agreement with others', 'on pairs that others also judged'],
];

/** @param {lab.PeopleState} state @param {string} role */
export function presenceCard({ present, you, shown_names: shown }, role) {
  const isNamed = you.name && !isVisitor(you.name);
  const isListed = present.length > 1 || present.some((name) => !isVisitor(name));
  return html`<section class="lab-card" aria-label="who is connected">
    <h2 data-here=${present.length}>${presentTitle(present, you.name)}</h2>
    ${isListed && html`<p class="muted">${presentText(present, shown)}</p>`}
    <p>You${isNamed && `, ${shown[you.name] ?? you.name},`} ${ROLE_TEXTS[role]}</p>
    ${role === 'viewer' && html`<p><a class="lab-button" href="join" data-do="people-join">Join to label</a></p>`}
    ${operatorNotice('Only the operator can change the labelling rules and remove people from the lab.')}
  </section>`;
}

// Those with the most labels first.
/** @param {lab.PeopleState} state */
export function leaderboard(state) {
  if (!state.leaderboard.length) {
    return html`<section class="lab-card">
      <h2>Labels</h2>
      <p class="muted">Nobody has labelled in this project yet.</p>
    </section>`;
  }
  const head = ([name, title]) => html`<th scope="col" title=${title}>${name}</th>`;
  return html`<section class="lab-card" aria-label="leaderboard">
    <h2>Labels</h2>
    <div class="scroll">
      <table>
        <thead><tr><th scope="col">Name</th>${COLUMNS.map(head)}</tr></thead>
        <tbody>${state.leaderboard.map((row) => leaderboardRow(row, state))}</tbody>
      </table>
    </div>
    <p class="muted">
      ${term('self-consistency', 'Self-consistency')} and ${term('agreement')} show how clear the task is.
    </p>
    ${
      !state.has_agreement &&
      html`<p class="muted">This project shows gold pairs, so only the operator sees how often people agree.</p>`
    }
  </section>`;
}

/** @param {lab.AnnotatorActivity} row @param {lab.PeopleState} state */
function leaderboardRow(row, { you, shown_names: shown }) {
  const isEarlier = row.annotator === earlierName();
  const isOwn = row.annotator === you.name;
  const name = displayName(shown[row.annotator] ?? row.annotator);
  return html`<tr class=${isOwn && 'me'} data-name=${row.annotator}>
    <th scope="row" dir="auto" title=${row.annotator}>
      ${isOwn && isVisitor(row.annotator) ? 'You' : isOwn ? `${name} (you)` : name}
      ${isEarlier && html`<span class="muted"> (you, before this lab was opened to others)</span>`}
    </th>
    <td>${row.labels}</td>
    <td>${share(row.same, row.repeated)}</td>
    <td>${share(row.agreed, row.shared)}</td>
  </tr>`;
}

// The invitation as seen from this page's address. api: another's `ifChanged` may already have got it.
/** @param {(query: lab.InvitationQuery) => Promise<lab.Invitation | null>} invite */
export const loadInvitation = (invite = requests('people').invite) =>
  invite({ origin: location.origin + location.pathname });

/** @param {lab.Invitation | null} invitation null: others cannot reach this lab @param {string} pageCommand */
export function invitationCard(invitation, pageCommand) {
  if (!invitation) {
    return html`<section class="lab-card">
      <h2>Others</h2>
      <p class="muted">
        Phones and other computers cannot reach this lab. Start it
        with <code>${pageCommand} --host 0.0.0.0</code> and others in your network join with a code.
      </p>
    </section>`;
  }
  const { code, link, qr } = invitation;
  const [address] = link.split('?'); // short enough to type; the whole link can be copied
  return html`<section class="lab-card invite" aria-label="invitation">
    ${qr && qrImage(qr, link)}
    <div>
      <h2>Join to label</h2>
      <p class="code" data-code=${code}>${code}</p>
      ${
        link
          ? html`<p class="lab-text">${address}<span class="muted">${link.slice(address.length)}</span></p>`
          : unknownAddress()
      }
    </div>
  </section>`;
}

const unknownAddress = () =>
  html`<p class="muted hint">
    This lab runs in a container and does not know the address of its computer in the network. Open this page by that
    address instead of localhost, for example http://192.168.1.20:7860/: then the link and the QR code for phones appear
    here. Or start the lab with --url and that address.
  </p>`;

/** @param {lab.QrCode} qr @param {string} link */
function qrImage({ size, path }, link) {
  const attributes = { viewBox: `0 0 ${size} ${size}`, role: 'img', 'aria-label': `QR code of ${link}`, class: 'qr' };
  return svg('svg', attributes, svg('path', { d: path }));
}

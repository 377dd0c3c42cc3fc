// The visitor of this page: name, rights, stored preferences, open tab.
import { showNotice } from './dom.js';
import { html } from './html.js';

// The annotator's name: signed by the server and sent with the page (also as a cookie, which a browser may refuse),
// otherwise generated here. The server accepts a generated name only in a single-user lab; in a multi-user lab it uses
// its session cookie.
const ANNOTATOR_KEY = 'rlhf-lab-annotator';
export function newUuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}
export function annotatorName() {
  const meta = /** @type {HTMLMetaElement | null} */ (document.querySelector('meta[name=lab-visitor]'));
  let name = meta?.content || localStorage.getItem(ANNOTATOR_KEY);
  if (!name) {
    name = `visitor-${newUuid().slice(0, 8)}`;
    localStorage.setItem(ANNOTATOR_KEY, name);
  }
  return name;
}

// The name under which this browser labelled while the lab was single-user; null if it is the present name.
export function earlierName() {
  const name = localStorage.getItem(ANNOTATOR_KEY);
  return name === annotatorName() ? null : name;
}

// The operator's secret, if this browser stores it (screen Project) and the lab has not refused it since the page was
// opened; '' otherwise.
const SECRET_KEY = 'rlhf-lab-operator-secret';
let refusedSecret = '';
export function operatorSecret() {
  const secret = localStorage.getItem(SECRET_KEY) || '';
  return secret === refusedSecret ? '' : secret;
}
export const storeOperatorSecret = (secret) => localStorage.setItem(SECRET_KEY, secret);
// The lab answers only a few requests with a secret that makes nobody the operator.
export function refuseOperatorSecret(secret) {
  refusedSecret = secret;
}
// The header of requests by which the lab recognises the operator.
export function operatorHeader() {
  const secret = operatorSecret();
  return secret ? { 'X-Lab-Operator': encodeURIComponent(secret) } : {};
}

// Controls for the operator alone are in operatorOnly(…): a fieldset disables them for mouse, keyboard and screen
// readers. operatorNotice(…) is shown to all others; elements of the class lab-operating are hidden from them.
const OPERATOR_ONLY = 'Only the operator may do this.';
let operator = !document.querySelector('meta[name=lab-guest]'); // as the page was served; the header updates it
document.body.classList.toggle('lab-guest', !operator);
export const isOperator = () => operator;
export const operatorOnly = (...children) =>
  html`<fieldset
    class="lab-operator" role="presentation" disabled=${!operator} title=${operator ? null : OPERATOR_ONLY}
  >${children}</fieldset>`;
export const operatorNotice = (text) => html`<p class="lab-notice lab-only">${text}</p>`;
export const judgeHint = (comma = ',') =>
  html`<span class="lab-operating">${comma} or let a simulated judge label 40 there</span>`; // on the screen Label
export function setOperator(now) {
  operator = now;
  document.body.classList.toggle('lab-guest', !now);
  for (const node of document.querySelectorAll('fieldset.lab-operator')) {
    const fieldset = /** @type {HTMLFieldSetElement} */ (node);
    fieldset.disabled = !now;
    fieldset.title = now ? '' : OPERATOR_ONLY;
  }
}

export function openTab(name) {
  /** @type {NodeListOf<HTMLElement>} */
  const tabs = document.querySelectorAll('button[role=tab]');
  [...tabs].find((tab) => tab.textContent.trim() === name)?.click();
}

// Sends a file of the operator, or a part of one; returns where the lab has it.
/** @param {Blob} file @param {string} name @returns {Promise<{ path: string, name: string }>} */
export async function uploadFile(file, name) {
  const body = new FormData();
  body.append('files', file, name);
  try {
    const reply = await fetch('gradio_api/upload', { method: 'POST', body, headers: operatorHeader() });
    if (!reply.ok) throw new Error(`the page answered ${reply.status}`);
    return { path: (await reply.json())[0], name };
  } catch (error) {
    throw new Error(`The file could not be sent (${error.message}). Try again.`);
  }
}

// Values that this browser tab stores across reloads; null if unset.
export function setItem(name, value) {
  sessionStorage.setItem(`rlhf-lab-${name}`, value);
}
export function getItem(name) {
  return sessionStorage.getItem(`rlhf-lab-${name}`);
}

export const WANTED_TEXT = 'reward-text'; // … and Reward model for the labels behind a text: JSON of its showWanted
export const WANTED_MODEL = 'chat-model'; // the item with which a screen asks Chat for a model: RUN/STEP
export const WANTED_RUN = 'shown-run'; // with which a screen asks Train for a run or a token: RUN[/STEP/ROW/TOKEN]

// Show a run under Train, or a token of one of its steps: [step, row, token]. Train may not have been drawn yet.
export function showRun(run, token = []) {
  setItem(WANTED_RUN, [run, ...token].join('/'));
  window.dispatchEvent(new CustomEvent('lab-run'));
  openTab('Train');
}

// The address contains the open tab, so that Back, a reload and a link lead to it; the header opens it.
export const slugOf = (name) => name.trim().toLowerCase().replace(/\W+/g, '-');
export const tabSlug = (tab) => slugOf(tab.textContent);
// The open tab. A short form in the address is enough (#runs, #data, #reward); an unknown one opens Label. Before
// Gradio has drawn the tabs, the address is returned unchanged.
export function currentTab() {
  const name = hashWords().join('-');
  const slugs = [...document.querySelectorAll('[role=tab]')].map(tabSlug);
  if (!slugs.length) return name || 'label';
  return (
    slugs.find((slug) => slug === name) ||
    (name && slugs.find((slug) => hashWords().every((word) => isShortFor(word, slug)))) ||
    'label'
  );
}
function hashWords() {
  let hash = location.hash.slice(1);
  try {
    hash = decodeURIComponent(hash);
  } catch (error) {
    /* a stray percent sign */
  }
  return hash
    .toLowerCase()
    .split(/[^a-z0-9]+/)
    .filter((word) => word && word !== 'and');
}
const isShortFor = (word, slug) =>
  word.length > 2 && slug.split('-').some((part) => part.startsWith(word.replace(/s$/, '')) || word.startsWith(part));
document.addEventListener(
  'click',
  (event) => {
    const tab = /** @type {any} */ (event.target).closest?.('[role=tab]');
    if (!tab) return;
    if (tabSlug(tab) !== currentTab()) location.hash = tabSlug(tab);
    if (tab.getAttribute('aria-selected') !== 'true') {
      document.querySelectorAll('.lab-notice.bad[data-notice]').forEach((notice) => showNotice(notice, ''));
    }
  },
  true,
);

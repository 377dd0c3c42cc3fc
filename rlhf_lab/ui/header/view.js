// The strip above every screen: project, engine and running job.
import { accuracyText, accuracyWord, downloadText, intervalText, labelsText, machineText } from './figures.js';
import { isUnsaved, runKey, runNews, savedText, unsavedText, withScreenFigures } from './figures.js';
import { Guide, isGuideHidden } from './guide.js';
import { Stage } from './stage.js';
import { invitationCard, loadInvitation } from '../people/cards.js';
import { openNextClass } from '../people/next_class.js';
import { requests } from '../shared/api.js';
import { actionButton, html, openDialog, progressBar, redraw } from '../shared/dom.js';
import { term, useDefinitions } from '../shared/glossary.js';
import { formatPercent, isWideInterval, resetText, timeLeftText } from '../shared/format.js';
import { poll } from '../shared/poll.js';
import { replayButton } from '../train/replay.js';
import {
  annotatorName,
  currentTab,
  getItem,
  isOperator,
  openTab,
  operatorSecret,
  refuseOperatorSecret,
  setItem,
  setOperator,
  tabSlug,
} from '../shared/session.js';

const api = requests('header');
const POLL_MS = 1500;

// Clicks are lost until Gradio listens to them, so this is tried again until the tab is open.
function openTabFromAddress(tries) {
  const tab = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('[role=tab]')]).find(
    (one) => tabSlug(one) === currentTab(),
  );
  if (tab?.getAttribute('aria-selected') === 'true') {
    tab.scrollIntoView({ block: 'nearest', inline: 'center' });
    return;
  }
  tab?.click();
  if (tries) setTimeout(() => openTabFromAddress(tries - 1), 100);
}

// On a phone the tabs scroll sideways; a sign at their end says that there are more.
function markMoreTabs() {
  const tabs = /** @type {HTMLElement | null} */ (document.querySelector('.tab-container[role=tablist]'));
  if (tabs) tabs.dataset.more = String(tabs.scrollLeft + tabs.clientWidth < tabs.scrollWidth - 30);
}

// Large type ("projector") and dark mode, stored by this browser tab.
function setDisplayMode(name, on) {
  document.body.classList.toggle(name, on);
  setItem(name, on ? 'on' : 'off');
  window.dispatchEvent(new Event('resize'));
}

export default class Header {
  constructor(root, data) {
    useDefinitions(data.definitions);
    for (const name of ['projector', 'dark']) if (getItem(name)) setDisplayMode(name, getItem(name) === 'on');
    openTabFromAddress(300);
    window.addEventListener('hashchange', () => openTabFromAddress(50));
    for (const event of ['scroll', 'resize']) window.addEventListener(event, markMoreTabs, true);
    window.addEventListener('pagehide', () => {
      const payload = JSON.stringify({ annotator: annotatorName() });
      navigator.sendBeacon('closed', new Blob([payload], { type: 'application/json' }));
    });
    this.root = root;
    this.data = data; // {definitions, charts, page_command}
    this.status = /** @type {lab.HeaderStatus | null} */ (null);
    this.counts = null; // as published by the screen Label
    this.step = null; // as published by the screen Train
    this.couldLabel = false; // while this page was open
    this.strip = html`<div class="strip"></div>`;
    this.guide = new Guide();
    this.replayOffer = replayButton(() => null, 'Watch a recorded run');
    this.notices = html`<div class="notices"></div>`;
    this.drawnKey = this.drawnNotices = '';
    const use = (published) => {
      Object.assign(this, published);
      this.draw();
    };
    window.addEventListener('lab-counts', (/** @type {any} */ { detail }) => use({ counts: detail }));
    window.addEventListener('lab-step', (/** @type {any} */ { detail }) =>
      use({ step: { ...detail, at: Date.now() } }),
    );
    const pollNow = poll(root, () => this.update(), POLL_MS);
    window.addEventListener('hashchange', () => {
      this.draw();
      pollNow(); // the guide depends on the tab
    });
  }

  async update() {
    const secret = operatorSecret();
    const before = this.status;
    this.status = await api.status({ guide: !isGuideHidden(), tab: currentTab() });
    const { is_operator: isNowOperator } = this.status;
    if (secret && !isNowOperator) refuseOperatorSecret(secret);
    if (isNowOperator !== isOperator()) setOperator(isNowOperator);
    const isNewReward = before && before.reward?.id !== this.status.reward?.id;
    if (isNewReward) window.dispatchEvent(new CustomEvent('lab-reward')); // for the form that starts a run
    this.draw();
  }

  draw() {
    if (!this.status) return;
    const status = withScreenFigures(this.status, this.counts, this.step, Date.now());
    if (!this.strip.isConnected) this.root.replaceChildren(this.strip, this.guide.node, this.notices);
    this.guide.draw(status.guide, !status.run && !status.demo && this.replayOffer);
    markMoreTabs();
    if (status.run?.is_training) setItem('known-run', status.run.id);
    if (currentTab() === 'train') this.seeRun();
    const news = runNews(status, Number(getItem('known-run')), getItem('seen-run'));
    this.couldLabel ||= status.may_label;
    const isOut = this.couldLabel && !status.may_label;
    const key = JSON.stringify({ ...status, counted_at: 0, classes: document.body.className, news, isOut });
    if (key === this.drawnKey) return;
    this.drawnKey = key;
    redraw(
      this.strip,
      html`${projectAndFigures(status)}
        <span class="lab-grow"></span>
        <span class="buttons">
          ${status.can_invite && actionButton('join', 'Join', () => openInvitation(this.data.page_command))}
          ${this.stageButton()} ${this.projectorButton()} ${this.themeButton()}
        </span>`,
    );
    this.drawNotices(status, news, isOut);
  }

  // They are replaced only when one has changed: a person may be about to press a button there.
  drawNotices(status, news, isOut) {
    const { demo, startup, mirror, warning, model } = status;
    const unsaved = mirror && isUnsaved(mirror) && unsavedText(mirror); // not its age, which changes with every reply
    const key = JSON.stringify([demo, startup, unsaved, warning, model, news, isOut]);
    if (key === this.drawnNotices) return;
    this.drawnNotices = key;
    const height = this.notices.offsetHeight;
    const own = [news && this.runNotice(news), isOut && outNotice()].filter(Boolean);
    redraw(this.notices, ...notices(status), ...own);
    if (this.notices.offsetHeight !== height) window.dispatchEvent(new Event('resize')); // texts fill what is left
  }

  // The visitor knows what the run does, or does not want to.
  seeRun() {
    setItem('seen-run', runKey(this.status.run));
  }

  runNotice(news) {
    const hide = () => {
      this.seeRun();
      this.draw();
    };
    return html`<p class="lab-notice lab-row run" role="status" data-do="run-notice">
      <span class="lab-grow">${news}</span>
      ${actionButton('watch-run', 'Show it', () => openTab('Train'), 'small lab-main')}
      ${actionButton('hide-run', '✕', hide)}
    </p>`;
  }

  stageButton() {
    const open = () => new Stage(this.data.charts, () => this.status);
    return actionButton('stage', 'Stage', open, 'small projector', {
      title: 'the run, labels and texts in large type over the whole window, for a projector',
    });
  }

  toggle(mode) {
    setDisplayMode(mode, !document.body.classList.contains(mode));
    this.draw();
  }

  projectorButton() {
    return actionButton('projector', 'Aa', () => this.toggle('projector'), 'small projector', {
      title: 'larger text on every screen',
      'aria-label': 'larger text',
      'aria-pressed': String(document.body.classList.contains('projector')),
    });
  }

  themeButton() {
    const label = document.body.classList.contains('dark') ? 'Light' : 'Dark';
    const attributes = { title: 'switch between light and dark' };
    return actionButton('theme', label, () => this.toggle('dark'), 'small', attributes);
  }
}

async function openInvitation(pageCommand) {
  const invitation = await loadInvitation().catch(() => null);
  const close = () => dialog.close();
  const next = () => {
    close();
    openNextClass();
  };
  const dialog = openDialog(
    'join',
    html`${invitationCard(invitation, pageCommand)}
      <div class="lab-row">
        ${actionButton('next-class', 'Next class …', next)} ${actionButton('join-close', 'Close', close)}
      </div>`,
  );
}

const outNotice = () =>
  html`<p class="lab-notice lab-row" role="alert" data-do="out-notice">
    <span class="lab-grow">You are no longer logged in. The join code may have changed.</span>
    <a class="lab-button small lab-main" href="join">Join again</a>
  </p>`;

/** @param {lab.HeaderStatus} status */
function projectAndFigures(status) {
  const { engine, reward } = status;
  const project = html`${status.project}<span class="of-model"> · ${status.model}</span>`;
  const machine = machineText(status);
  const isWorking = status.job && engine.is_working; // then only the job is described: the strip stays on one line
  return html`<span class="name">RLHF Lab</span>
    <span class="what" title="${status.project} · ${status.model}">${project}</span>
    <span class="lab-badge machine" title="${engine.label}. ${engine.description}">
      <i class="dot ${engine.style}"></i>
      ${(isWorking && machine) || [term('engine', engine.label), machine && ` · ${machine}`]}
    </span>
    <span class="lab-badge">${labelsText(status)}</span>
    <span class="lab-badge accuracy${reward ? '' : ' no-model'}">
      ${term(accuracyWord(status), accuracyText(status))}
      ${reward && !isWorking ? accuracyNote(reward) : null}
    </span>
    ${status.mirror && mirrorBadge(status.mirror)} ${status.job && jobView(status.job)}`;
}

// Why an interval is shown is hidden on a phone.
const accuracyNote = (reward) =>
  isWideInterval(reward) ? html`<span class="why"> (few labels)</span>` : intervalText(reward);

function mirrorBadge(mirror) {
  const isBad = isUnsaved(mirror);
  const title = isBad
    ? null
    : `If anything has changed, the lab is saved to ${mirror.repository} on the Hub, about once a minute. A ` +
      'restarted lab continues from there.';
  return html`<span class="lab-badge${isBad ? ' bad' : ''}" data-do="mirror" title=${title}>
    ${savedText(mirror)}
  </span>`;
}

function jobView(job) {
  const label = `${job.label}${job.show_percent ? ` ${formatPercent(job.progress)}` : ''}`;
  const timeLeft = timeLeftText(job.eta_s, job.progress);
  const [, run, state] = label.match(/^(run \d+, )?(.*)$/);
  return html`<div class="job" title="${label}${timeLeft}">
    <div class="what">
      <span>${run && html`<span class="run-name">${run}</span>`}${state}</span>
      <span class="left">${timeLeft}</span>
    </div>
    ${progressBar(job.label, Math.round(100 * job.progress))}
  </div>`;
}

/** @param {lab.HeaderStatus} status */
function notices({ demo, startup, mirror, warning, model }) {
  const unsaved = mirror && isUnsaved(mirror) ? unsavedText(mirror) : '';
  const demoText =
    'Demo: label, start a short run under Train, and watch. Labels, models and runs of visitors are removed ' +
    'from time to time.';
  return [
    demo &&
      html`<p class="lab-notice demo" data-do="demo-notice">
      ${demoText} ${resetText(demo)} ${replayButton(() => null, 'Watch a recorded run')}
    </p>`,
    startup && startupNotice(startup, model),
    unsaved && html`<p class="lab-notice bad" role="alert" data-do="mirror-notice">${unsaved}</p>`,
    warning && html`<p class="lab-notice bad" role="alert">${warning}</p>`,
  ].filter(Boolean);
}

// On a Space: the model that the settings name, until it has been downloaded.
/** @param {lab.HeaderStartup} startup @param {string} currentModel */
function startupNotice(startup, currentModel) {
  const name = startup.model || 'The project of the settings';
  if (startup.phase === 'failed') {
    return html`<p class="lab-notice bad startup" role="alert" data-do="startup-notice">
      ${name} is not available. ${startup.message} You can label texts of the ${currentModel}; the operator can retry
      under Project.
    </p>`;
  }
  const meanwhile = `Until then you can label texts of the ${currentModel}`;
  if (startup.phase === 'checking') {
    return html`<p class="lab-notice startup" role="status" data-do="startup-notice">
      ${name} is being checked. ${meanwhile}.
    </p>`;
  }
  const share = startup.total_bytes ? startup.downloaded_bytes / startup.total_bytes : 0;
  return html`<div class="lab-notice startup" data-do="startup-notice">
    <div class="lab-row">
      <strong>Downloading ${startup.model}</strong><span class="muted">${downloadText(startup)}</span>
    </div>
    ${progressBar(`download of ${startup.model}`, Math.round(100 * share))}
    <span class="muted">
      ${meanwhile}. Then the project of ${startup.model} opens for everybody; earlier labels are kept in their own
      project.
    </span>
  </div>`;
}

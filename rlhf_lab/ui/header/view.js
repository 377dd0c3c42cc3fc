// The strip above every screen: project, engine and running job.
import { el } from '../shared/dom.js';
import {
  formatAccuracy,
  formatBytes,
  formatDuration,
  formatInterval,
  formatPercent,
  isWideInterval,
  momentText,
  plural,
  resetText,
  timeLeftText,
} from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import {
  annotatorName,
  currentTab,
  getItem,
  isOperator,
  setItem,
  setOperator,
  setUploadToken,
  tabSlug,
} from '../shared/session.js';

function machineText({ engine: { device, memory_mib: memoryMib } }) {
  return [device, memoryMib ? formatBytes(2 ** 20 * memoryMib) : ''].filter(Boolean).join(' · ');
}

function jobStatus(state) {
  if (!state.job) return null;
  const share = Math.round(100 * state.job.progress);
  const percentText = state.job.show_percent ? ` ${formatPercent(state.job.progress)}` : '';
  const timeLeft = timeLeftText(state.job.eta_s, state.job.progress);
  const bar = el('i');
  bar.style.width = `${share}%`;
  return el(
    'div.job',
    { title: `${state.job.label}${percentText}${timeLeft}` },
    el('div.what', {}, el('span', {}, `${state.job.label}${percentText}`), el('span.left', {}, timeLeft)),
    el(
      'div.lab-bar',
      {
        role: 'progressbar',
        'aria-label': state.job.label,
        'aria-valuemin': 0,
        'aria-valuemax': 100,
        'aria-valuenow': share,
      },
      bar,
    ),
  );
}

// Projector mode (larger type) and dark mode, stored by this browser tab.
function setDisplayMode(name, on) {
  document.body.classList.toggle(name, on);
  setItem(name, on ? 'on' : 'off');
  window.dispatchEvent(new Event('resize'));
}

const screens = () => [...document.querySelectorAll('[role=tab]')];

// Clicks are lost until Gradio listens to them, so this is tried again until the tab is open.
function openTabFromAddress(tries) {
  const tab = screens().find((one) => tabSlug(one) === currentTab());
  if (tab?.getAttribute('aria-selected') === 'true') {
    tab.scrollIntoView({ block: 'nearest', inline: 'center' });
    return;
  }
  tab?.click();
  if (tries) setTimeout(() => openTabFromAddress(tries - 1), 100);
}

// Figures that the open screen publishes, because they are newer than the header's, which the server caches: Label
// publishes {project_created_at, counted_at, labels, simulated}, Train {run, step}.
const SCREEN_STEP_MS = 4000; // how long a published step is used

function applyOperator(now) {
  if (now !== null && now !== isOperator()) setOperator(now);
}

// The note after an accuracy: its interval, or why an interval is shown; hidden on a phone.
function accuracyNote(reward) {
  if (isWideInterval(reward)) return el('span.why', {}, ' (few labels)');
  return reward.low === null ? '' : ` (${formatInterval(reward.low, reward.high)})`;
}

// Whose labels the accuracy is about, where it is not obvious.
const labelSource = ({ reward, simulated }) => (reward.simulated ? ', simulated' : simulated ? ', people' : '');

// On a Space: the model that the settings name, until it has been downloaded.
function startupNotice({ startup, model: currentModel }) {
  const meanwhile = `Until then you can label texts of the ${currentModel}`;
  if (startup.phase === 'failed') {
    return el(
      'p.lab-notice.bad.startup',
      { role: 'alert', 'data-do': 'startup-notice' },
      `${startup.model || 'The project of the settings'} is not available. ${startup.message} You can label ` +
        `texts of the ${currentModel}; the operator can retry under Project.`,
    );
  }
  const share = startup.total_bytes ? startup.downloaded_bytes / startup.total_bytes : 0;
  if (startup.phase === 'checking') {
    return el(
      'p.lab-notice.startup',
      { role: 'status', 'data-do': 'startup-notice' },
      `${startup.model || 'The project of the settings'} is being checked. ${meanwhile}.`,
    );
  }
  const bar = el('i');
  bar.style.width = `${100 * share}%`;
  const sizes = startup.total_bytes
    ? `${formatBytes(startup.downloaded_bytes)} of ` +
      `${formatBytes(startup.total_bytes)}${timeLeftText(startup.eta_s, share)}`
    : '';
  return el(
    'div.lab-notice.startup',
    { role: 'status', 'data-do': 'startup-notice' },
    el('div.lab-row', {}, el('strong', {}, `Downloading ${startup.model}`), el('span.muted', {}, sizes)),
    el(
      'div.lab-bar',
      {
        role: 'progressbar',
        'aria-label': `download of ${startup.model}`,
        'aria-valuemin': 0,
        'aria-valuemax': 100,
        'aria-valuenow': Math.round(100 * share),
      },
      bar,
    ),
    el(
      'span.muted',
      {},
      `${meanwhile}. Then the project of ${startup.model} opens for everybody; earlier labels are kept in ` +
        'their own project.',
    ),
  );
}

// The age of the copy on the Hub, or since when nothing could be saved.
const isUnsaved = ({ problem, is_late: isLate }) => Boolean(problem) || isLate;

function mirrorBadge(mirror) {
  const since = mirror.saved_at === null ? 'yet' : `since ${momentText(mirror.saved_at)}`;
  if (isUnsaved(mirror)) return el('span.lab-badge.bad', { 'data-do': 'mirror' }, `Not saved ${since}`);
  const title =
    `The lab is saved to ${mirror.repository} on the Hub about every minute while anything changes. A ` +
    'restarted lab continues from there.';
  return el(
    'span.lab-badge',
    { 'data-do': 'mirror', title },
    mirror.saved_at === null ? 'Saving …' : `Saved ${formatDuration(mirror.age_s)} ago`,
  );
}

function mirrorNotice(mirror) {
  const since = mirror.saved_at === null ? 'yet' : `since ${momentText(mirror.saved_at)}`;
  const reason = mirror.problem || 'The Hub takes long to answer. It is retried automatically.';
  return el(
    'p.lab-notice.bad',
    { role: 'alert', 'data-do': 'mirror-notice' },
    `Not saved to the Hub ${since}. ${reason} Newer labels are on this machine only.`,
  );
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-header');

  let polled = null;
  let screenCounts = null;
  let screenStep = null;
  window.addEventListener('lab-counts', ({ detail }) => {
    screenCounts = detail;
    if (polled) draw(withScreenFigures(polled));
  });
  window.addEventListener('lab-step', ({ detail }) => {
    screenStep = { ...detail, at: Date.now() };
    if (polled) draw(withScreenFigures(polled));
  });
  function withScreenFigures(state) {
    const isNewer =
      screenCounts &&
      screenCounts.project_created_at === state.project_created_at &&
      screenCounts.counted_at > state.counted_at;
    const shown = isNewer ? { ...state, labels: screenCounts.labels, simulated: screenCounts.simulated } : state;
    const { job } = shown;
    if (
      !job ||
      !screenStep ||
      job.run !== screenStep.run ||
      job.step >= screenStep.step ||
      Date.now() - screenStep.at > SCREEN_STEP_MS
    ) {
      return shown;
    }
    return { ...shown, job: { ...job, label: job.label.replace(`step ${job.step} of`, `step ${screenStep.step} of`) } };
  }

  // Whether this visitor is the operator. A secret stored in this browser (screen Project) has to be sent to the server
  // first.
  let storedSecret = null;
  let verified = null;
  let lastRequestId = 0;
  let attempts = 0;
  function updateOperator(serverSaysOperator) {
    const secret = localStorage.getItem('rlhf-lab-operator');
    if (secret !== storedSecret) {
      storedSecret = secret;
      verified = null;
      attempts = 0;
    }
    if (!serverSaysOperator && storedSecret && !verified && attempts < 4) {
      attempts += 1;
      lastRequestId = Date.now();
      trigger('verify_operator', { request_id: lastRequestId });
    } // Gradio may not have read the secret yet
    applyOperator(serverSaysOperator || (storedSecret ? verified : false));
  }

  function draw(state) {
    // while a job runs only the job is described, so that the strip stays on one line
    const jobRunning = state.job && state.engine.is_working;
    const accuracy = state.reward
      ? [`accuracy ${formatAccuracy(state.reward)}${labelSource(state)}`, jobRunning ? '' : accuracyNote(state.reward)]
      : ['no reward model yet'];
    const projectText = `${state.project} · ${state.model}`;
    root.replaceChildren(
      el('div.strip', {}, [
        el('span.name', {}, 'RLHF Lab'),
        el('span.what', { title: projectText }, projectText),
        el(
          'span.lab-badge.machine',
          { title: `${state.engine.label}. ${state.engine.description}` },
          el(`i.dot.${state.engine.style}`),
          (jobRunning && machineText(state)) ||
            `${state.engine.label}${machineText(state) && ` · ${machineText(state)}`}`,
        ),
        el(
          'span.lab-badge',
          {},
          `${plural(state.labels, 'label')}${state.simulated ? ` + ${state.simulated} simulated` : ''}`,
        ),
        el(
          'span.lab-badge',
          {
            title:
              state.reward &&
              `cross-validated accuracy of reward model ${state.reward.id}, the newest that ` +
                (state.reward.simulated
                  ? 'was trained on simulated labels; none was trained on labels of people'
                  : 'was trained on labels of people') +
                ', with its 95 % interval',
          },
          ...accuracy,
        ),
        state.mirror && mirrorBadge(state.mirror),
        jobStatus(state),
        el('span.lab-grow'),
        el(
          'span.buttons',
          {},
          el(
            'button.lab-button.small.projector',
            {
              type: 'button',
              title: 'larger text, for a projector',
              'aria-pressed': document.body.classList.contains('projector') ? 'true' : 'false',
              onclick: () => {
                setDisplayMode('projector', !document.body.classList.contains('projector'));
                draw(state);
              },
            },
            'Projector',
          ),
          el(
            'button.lab-button.small',
            {
              type: 'button',
              title: 'switch between light and dark',
              onclick: () => {
                setDisplayMode('dark', !document.body.classList.contains('dark'));
                draw(state);
              },
            },
            document.body.classList.contains('dark') ? 'Light' : 'Dark',
          ),
        ),
      ]),
    );
    if (state.demo) {
      root.append(
        el(
          'p.lab-notice.demo',
          { 'data-do': 'demo-notice' },
          'Demo: label, start a short run under Train, and watch. Labels, models and runs of visitors are ' +
            `removed from time to time. ${resetText(state.demo)}`,
        ),
      );
    }
    if (state.startup) root.append(startupNotice(state));
    if (state.mirror && isUnsaved(state.mirror)) root.append(mirrorNotice(state.mirror));
    if (state.warning) root.append(el('p.lab-notice.bad', { role: 'alert' }, state.warning));
  }

  for (const name of ['projector', 'dark']) if (getItem(name)) setDisplayMode(name, getItem(name) === 'on');
  openTabFromAddress(300);
  window.addEventListener('hashchange', () => openTabFromAddress(50));
  watch('value', () => {
    if (!props.value || props.value.request_id !== lastRequestId) return;
    verified = props.value.is_operator;
    setUploadToken(props.value.upload_token || '');
    applyOperator(verified);
  });
  poll(
    root,
    async () => {
      const state = await unwrap(server.status({ annotator: annotatorName() }));
      updateOperator(state.is_operator);
      polled = state;
      draw(withScreenFigures(state));
    },
    1500,
  );
  window.addEventListener('pagehide', () => {
    const payload = JSON.stringify({ annotator: annotatorName() });
    navigator.sendBeacon('closed', new Blob([payload], { type: 'application/json' }));
  });
}

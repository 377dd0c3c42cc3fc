// The samples of a run, beside its curves: the texts of one step, and a slider that selects the step.
// fetchSamples({run, step}) -> {step, rows}; onStep(step) is called when another step is selected, onTokens() when the
// button Tokens is pressed.
import { markedDiff } from '../shared/diff.js';
import { el, promptView } from '../shared/dom.js';
import { formatDifference, formatNumber } from '../shared/format.js';
import { unwrap } from '../shared/poll.js';

export function createSampleViewer(run, fetchSamples, onStep, onTokens) {
  let steps = [];
  let step = null;
  let followsLatest = true; // show the newest step
  let epoch = null;
  let shownKey = null;
  let pendingKey = null;
  let isScheduled = false;
  const cache = {};

  const slider = el('input', {
    type: 'range',
    min: 0,
    max: 0,
    step: 1,
    value: 0,
    'aria-label': 'step of the samples',
    'data-do': 'scrub',
    oninput: () => {
      if (isScheduled) return;
      isScheduled = true;
      requestAnimationFrame(() => {
        isScheduled = false;
        const i = Number(slider.value);
        goTo(steps[i], i === steps.length - 1);
      });
    },
  });
  const stepLabel = el('strong', { 'data-at': '', 'aria-live': 'off' }, '');
  const latest = el(
    'button.lab-button.small',
    { type: 'button', 'data-do': 'latest', 'aria-pressed': 'true', onclick: () => goTo(steps.at(-1), true) },
    'Latest',
  );
  const rows = el('div.rows', {}, el('p.lab-empty', {}, 'The base model first writes samples for the fixed prompts.'));
  const node = el(
    'aside.side.lab-scroll',
    { 'aria-label': 'samples' },
    el(
      'div.lab-row',
      {},
      el('h2', {}, 'Samples'),
      stepLabel,
      el('span.lab-grow'),
      el('button.lab-button.small', { type: 'button', 'data-do': 'to-tokens', onclick: onTokens }, 'Tokens'),
      latest,
    ),
    el('div.scrub', {}, slider),
    el('p.muted', {}, 'Same prompts and seeds as at the start; changed words are marked.'),
    rows,
  );

  const nearest = (x) => steps.reduce((best, s) => (Math.abs(s - x) < Math.abs(best - x) ? s : best), steps[0] ?? null);

  function goTo(newStep, isLatest = false) {
    if (newStep === undefined || newStep === null) return;
    [step, followsLatest] = [newStep, isLatest];
    updateSlider();
    load();
    onStep(step);
  }

  // Add steps that have samples; with reset, replace all steps by these.
  function addSteps(newEpoch, newSteps, reset) {
    epoch = newEpoch;
    steps = reset ? newSteps : [...steps, ...newSteps];
    if (steps.length && (followsLatest || !steps.includes(step)) && (step !== steps.at(-1) || reset)) {
      goTo(steps.at(-1), true);
    }
    updateSlider();
  }

  function updateSlider() {
    slider.max = Math.max(0, steps.length - 1);
    slider.value = Math.max(0, steps.indexOf(step));
    slider.disabled = steps.length < 2;
    const label = step === null ? '' : step === 0 ? 'step 0: the base model' : `step ${step}`;
    slider.setAttribute('aria-valuetext', label);
    stepLabel.textContent = label;
    stepLabel.dataset.at = step ?? '';
    latest.setAttribute('aria-pressed', followsLatest);
    latest.disabled = !steps.length;
  }

  // Called with every poll until the samples have arrived, because a reply may be lost.
  async function load() {
    const key = `${epoch}/${step}`;
    if (step === null || shownKey === key || pendingKey === key) return;
    if (!cache[key]) {
      if (!shownKey) rows.replaceChildren(el('p.lab-empty', {}, 'Loading the texts of this step …'));
      pendingKey = key;
      try {
        cache[key] = await unwrap(fetchSamples({ run, step }));
      } catch (error) {
        return;
      } finally {
        pendingKey = null;
      }
    }
    if (key !== `${epoch}/${step}`) return;
    shownKey = key;
    draw(cache[key]);
  }

  function draw(reply) {
    const scrollTop = node.scrollTop;
    rows.replaceChildren(
      ...(reply.rows.length
        ? reply.rows.map((row) => sample(row, reply.step))
        : [el('p.lab-empty', {}, 'No samples were stored at this step.')]),
    );
    node.scrollTop = scrollTop;
  }

  function sample(row, sampleStep) {
    const showsBase = sampleStep !== 0 && row.base_text !== null;
    return el(
      'article.lab-card.sample',
      {},
      promptView(row.turns, '.muted'),
      el(
        'div.pair',
        {},
        showsBase
          ? el('div.before', {}, el('span.tag', {}, 'base'), el('p.lab-text', { dir: 'auto' }, row.base_text))
          : null,
        el(
          'div.now',
          {},
          el('span.tag', {}, sampleStep === 0 ? 'base' : `step ${sampleStep}`),
          showsBase ? markedDiff(row.base_text, row.text) : el('p.lab-text', { dir: 'auto' }, row.text),
        ),
      ),
      el(
        'div.lab-row',
        {},
        scoreBadge(row.score, showsBase ? row.base_score : null, 'score'),
        scoreBadge(row.gold, showsBase ? row.base_gold : null, 'gold'),
      ),
    );
  }

  function scoreBadge(value, baseValue, name) {
    if (value === null) return null;
    const change = baseValue === null || baseValue === undefined ? null : value - baseValue;
    const style = change === null || Math.abs(change) < 0.05 ? '' : change > 0 ? 'good' : 'bad';
    return el(
      `span.lab-badge${style && `.${style}`}`,
      { title: change === null ? `${name} now` : `${name} now; ${formatNumber(baseValue)} at the start` },
      `${name} ${formatNumber(value)}${change ? ` (${formatDifference(change, 2)})` : ''}`,
    );
  }

  return { node, goTo, addSteps, nearest, load, currentStep: () => step, followsLatest: () => followsLatest };
}

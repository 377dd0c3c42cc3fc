// Section "Quality of the labels": agreement, annotators, weights for the next reward model, doubtful labels.
import { el, promptView, showNotice, sparkline, tableHead } from '../../shared/dom.js';
import { displayName, formatInterval, formatNumber, formatPercent } from '../../shared/format.js';
import { poll, unwrap } from '../../shared/poll.js';
import { operatorOnly } from '../../shared/session.js';

const percentOf = (rate) => formatPercent(rate.share);
const intervalOf = (rate) =>
  rate.share === null ? '' : `95 %: ${formatInterval(rate.low, rate.high)}, of ${rate.count}`;

function alphaMeaning(alpha) {
  if (alpha === null) {
    return (
      'Alpha needs pairs with votes of two people or more, and votes that differ. Ask for more votes for each ' +
      'pair under People, Labelling rules.'
    );
  }
  if (alpha >= 0.8) return 'They agree well.';
  if (alpha >= 0.67) return 'They agree enough for tentative conclusions.';
  if (alpha >= 0.2) return 'They agree somewhat: the question is a matter of taste, or the guideline is not precise.';
  return 'They agree hardly more than by chance: check the guideline and the annotators below.';
}

// Metrics over time: label and number format.
const TREND_METRICS = {
  with_others: ['agreement with others', formatPercent],
  with_self: ['self-consistency', formatPercent],
  alpha: ['alpha', (v) => formatNumber(v, 2)],
  left: ['share of left', formatPercent],
  ties: ['share of ties', formatPercent],
  seconds: ['seconds a vote', (v) => formatNumber(v, 1)],
};

// From 0 to 1; seconds: from 0 to the largest value.
function trendSparkline(buckets, key, suffix) {
  const [name, format] = TREND_METRICS[key];
  const values = buckets.map((bucket) => bucket[key]);
  const label = `${name}${suffix} over time`;
  const maximum = key === 'seconds' ? Math.max(...values, 1e-9) : 1;
  return sparkline(values, (value) => 26 - (24 * Math.max(0, value)) / maximum, {
    role: 'img',
    'aria-label': `${label}: ${values.map((value) => (value === null ? 'unknown' : format(value))).join(', ')}`,
  });
}

const weightedName = ([name, weight]) => `${displayName(name)}${weight === 1 ? '' : ` ×${weight}`}`;

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-quality');
  let state = null;
  let revision = '';
  let source = null;
  let pendingId = 0;
  const weights = new Map(); // annotator -> 0 (left out) … props.data.heaviest; 1 where missing
  let project = null;

  const notice = el('p.lab-notice', { role: 'status', hidden: true, 'data-do': 'quality-notice' });
  const agreementCard = el(
    'section.lab-card.head',
    { 'aria-label': 'agreement' },
    el('p.muted', { role: 'status' }, 'Loading the votes …'),
  );
  const annotatorsCard = el('section.lab-card.crowd', { 'aria-label': 'annotators', hidden: true });
  const modelsCard = el('section.lab-card.models', { 'aria-label': 'reward models', hidden: true });
  const doubtsCard = el('section.lab-card.again', { 'aria-label': 'labels to check again', hidden: true });
  root.append(notice, agreementCard, annotatorsCard, modelsCard, doubtsCard);

  function send(fields) {
    pendingId = Date.now();
    showNotice(notice, '');
    trigger('action', { request_id: pendingId, ...fields });
  }

  let trend = 'with_others'; // the metric in the table

  function drawAgreement() {
    const sourceSelect = el(
      'select.lab-input',
      {
        'aria-label': 'whose votes',
        'data-do': 'quality-source',
        onchange: (event) => {
          source = event.target.value;
          weights.clear();
          update();
        },
      },
      [
        ['human', 'votes of people'],
        ['simulated', 'simulated votes'],
      ].map(([value, label]) => el('option', { value, selected: value === state.source }, label)),
    );
    if (!state.votes) {
      agreementCard.replaceChildren(
        el('div.lab-row', {}, sourceSelect),
        el('p.muted', {}, 'There are no such votes yet.'),
      );
      return;
    }
    const trendFigure = (key) =>
      el(
        'figure',
        { 'data-trend': key },
        el('figcaption.muted', {}, `${TREND_METRICS[key][0]} over time`),
        trendSparkline(state.time_buckets, key, ''),
      );
    agreementCard.replaceChildren(
      el('div.lab-row', {}, sourceSelect, el('span.muted', {}, `${state.votes} votes`)),
      el(
        'div.figures',
        {},
        el(
          'div',
          {},
          el('div.big', { 'data-do': 'quality-alpha' }, formatNumber(state.alpha, 3)),
          el('span.muted', {}, "Krippendorff's alpha: 1 is perfect, 0 is chance"),
        ),
        el(
          'div',
          {},
          el('div.big', { 'data-do': 'quality-agreement' }, percentOf(state.agreement)),
          el(
            'span.muted',
            {},
            intervalOf(state.agreement)
              ? `of two votes on the same pair agree (${intervalOf(state.agreement)})`
              : 'no pair has two votes, so their agreement is not known',
          ),
        ),
      ),
      el('p', {}, alphaMeaning(state.alpha)),
      el(
        'div.trends',
        {},
        Object.keys(TREND_METRICS)
          .filter((key) => state.time_buckets.some((bucket) => bucket[key] !== null))
          .map(trendFigure),
      ),
    );
  }

  function weightSelect(name) {
    const value = weights.get(name) ?? 1;
    return operatorOnly(
      el(
        'select.lab-input',
        {
          'aria-label': `weight of ${displayName(name)}`,
          'data-do': 'quality-weight',
          'data-name': name,
          onchange: (event) => {
            weights.set(name, Number(event.target.value));
            drawTrainRow();
          },
        },
        [
          [0, 'left out'],
          [1, 'counts once'],
          ...[2, 3, 5, props.data.heaviest].map((n) => [n, `counts ${n} times`]),
        ].map(([n, label]) => el('option', { value: n, selected: n === value }, label)),
      ),
    );
  }

  // Remarks on what is unusual about an annotator, if the interval rules out chance.
  function remarks(person) {
    const texts = [];
    if (person.left.share !== null && person.left.low > 0.5) texts.push('prefers the left side');
    if (person.left.share !== null && person.left.high < 0.5) texts.push('prefers the right side');
    if (person.ties.low > 0.5) texts.push('mostly ties');
    if (person.seconds !== null && person.seconds < 1 && person.votes >= 10) texts.push('votes within a second');
    if (person.alpha_without !== null && state.alpha !== null && person.alpha_without - state.alpha > 0.03) {
      texts.push('the others agree better without this person');
    }
    return texts.join(', ');
  }

  function trendSelect() {
    return el(
      'select.lab-input',
      {
        'aria-label': 'what to show over time',
        'data-do': 'quality-trend',
        onchange: (event) => {
          trend = event.target.value;
          drawAnnotators();
        },
      },
      Object.entries(TREND_METRICS)
        .filter(([key]) => key !== 'alpha')
        .map(([key, [name]]) => el('option', { value: key, selected: key === trend }, `${name} over time`)),
    );
  }

  function drawAnnotators() {
    annotatorsCard.hidden = !state.people.length;
    if (annotatorsCard.hidden) return;
    const header = [
      'annotator',
      'votes',
      'agree with others',
      'with themselves',
      'left',
      'ties',
      'seconds',
      'alpha without',
      trendSelect(),
      'in the next reward model',
    ];
    const rateCell = (rate, name) =>
      el('td.figure', { 'data-words': name, title: intervalOf(rate) || null }, percentOf(rate));
    annotatorsCard.replaceChildren(
      ...[
        el(
          'div.lab-row',
          {},
          el('h3', {}, 'Each annotator'),
          el('span.muted', {}, 'hover over a figure for its interval'),
        ),
        el(
          'div.scroll',
          { tabindex: '0', role: 'group', 'aria-label': 'annotators and their figures' },
          el(
            'table',
            {},
            tableHead(header),
            el(
              'tbody',
              {},
              state.people.map((person) =>
                el(
                  'tr',
                  { 'data-name': person.name },
                  el(
                    'th',
                    { scope: 'row', title: person.name },
                    displayName(person.name),
                    el('p.muted', {}, remarks(person)),
                  ),
                  el('td.figure', {}, String(person.votes)),
                  rateCell(person.with_others, 'others'),
                  rateCell(person.with_self, 'self'),
                  rateCell(person.left, 'left'),
                  rateCell(person.ties, 'ties'),
                  el('td.figure', {}, formatNumber(person.seconds, 2)),
                  el('td.figure', {}, formatNumber(person.alpha_without, 3)),
                  el('td', {}, trendSparkline(person.time_buckets, trend, ` of ${displayName(person.name)}`)),
                  el('td', {}, weightSelect(person.name)),
                ),
              ),
            ),
          ),
        ),
        state.unlisted_count
          ? el('p.muted', {}, `${state.unlisted_count} with fewer votes are not listed; their weight is 1.`)
          : null,
        el('div.lab-row.train', {}),
      ].filter(Boolean),
    );
    drawTrainRow();
  }

  function drawTrainRow() {
    const row = annotatorsCard.querySelector('.train');
    if (!row) return;
    const leftOutCount = state.people.filter((person) => weights.get(person.name) === 0).length;
    row.replaceChildren(
      operatorOnly(
        el(
          'button.lab-button.small',
          {
            type: 'button',
            'data-do': 'quality-train',
            disabled: state.training || null,
            onclick: () => send({ action: 'train', source: state.source, weights: Object.fromEntries(weights) }),
          },
          'Train a reward model with these weights',
        ),
      ),
      el(
        'span.muted',
        {},
        state.training
          ? 'One is being trained; wait for it.'
          : (leftOutCount ? `Without ${leftOutCount} of ${state.people.length}.` : 'All annotators are included.') +
              ' Train reward models with and without an annotator and compare them below.',
      ),
    );
  }

  function drawModels() {
    modelsCard.hidden = !state.reward_models.length;
    if (modelsCard.hidden) return;
    modelsCard.replaceChildren(
      el(
        'div.lab-row',
        {},
        el('h3', {}, 'Reward models and the annotators whose labels they were trained on'),
        el('span.muted', {}, 'start PPO on any of them under Train'),
      ),
      el(
        'div.scroll',
        { tabindex: '0', role: 'group', 'aria-label': 'reward models' },
        el(
          'table',
          {},
          tableHead(['reward model', 'labels', 'learnt from', 'held-out pairs ranked as labelled']),
          el(
            'tbody',
            {},
            state.reward_models.map((model) =>
              el(
                'tr',
                {},
                el('th', { scope: 'row' }, String(model.id)),
                el('td.figure', {}, String(model.labels)),
                el(
                  'td',
                  {},
                  `${model.people.map(weightedName).join(', ')}` +
                    (model.annotator_count > model.people.length
                      ? ` and ${model.annotator_count - model.people.length} more`
                      : ''),
                  model.has_selection ? el('span.lab-badge', {}, 'chosen people') : null,
                ),
                el(
                  'td.figure',
                  {},
                  model.accuracy === null || model.accuracy === undefined
                    ? 'not measured'
                    : `${formatPercent(model.accuracy)} (${formatInterval(model.low, model.high)})`,
                ),
              ),
            ),
          ),
        ),
      ),
    );
  }

  function drawDoubts() {
    const doubts = state.doubtful_labels;
    doubtsCard.hidden = !doubts || !doubts.labels.length;
    if (doubtsCard.hidden) return;
    doubtsCard.replaceChildren(
      el(
        'div.lab-row',
        {},
        el('h3', {}, `Unlikely labels: ${state.source === 'human' ? "people's" : 'simulated'} labels`),
        el(
          'span.muted.lab-grow',
          {},
          `Labels that reward model ${doubts.reward_model_id} finds least likely, without training on them. ` +
            'Some are mistakes of annotators, some are errors of the model.',
        ),
      ),
      el(
        'ol',
        {},
        doubts.labels.map((label) => {
          const side = (text, isChosen) =>
            el(
              'div.text.lab-scroll',
              { 'data-chosen': isChosen ? '1' : null },
              isChosen ? el('span.lab-badge.accent', {}, 'chosen') : null,
              el('p.lab-text', { dir: 'auto' }, text.trim()),
            );
          return el(
            'li',
            { 'data-vote': label.vote_id },
            promptView(label.turns, '.asked.lab-scroll'),
            el(
              'div.two',
              {},
              side(label.first, label.choice === 'first'),
              side(label.second, label.choice === 'second'),
            ),
            el(
              'div.lab-row',
              {},
              el(
                'span.muted.lab-grow',
                {},
                `${displayName(label.annotator)}; the model gives this label ${formatPercent(label.probability)}`,
              ),
              label.is_set_aside
                ? el('span.muted', {}, 'set aside')
                : state.source === 'simulated'
                  ? null // a judge would give the same answer
                  : operatorOnly(
                      el(
                        'button.lab-button.small',
                        {
                          type: 'button',
                          'data-do': 'quality-again',
                          title: 'set the vote aside and ask this annotator again',
                          onclick: () => send({ action: 'again', vote_id: label.vote_id }),
                        },
                        'Ask again',
                      ),
                    ),
            ),
          );
        }),
      ),
    );
  }

  async function update() {
    const reply = await unwrap(server.get_state({ revision, source }));
    if (reply.unchanged) return;
    if (reply.closed_text) {
      revision = '';
      for (const card of [annotatorsCard, modelsCard, doubtsCard]) card.hidden = true;
      agreementCard.replaceChildren(el('p.muted', {}, reply.closed_text));
      return;
    }
    const focus = root.contains(document.activeElement)
      ? [document.activeElement.dataset.do, document.activeElement.dataset.name]
      : null;
    if (project !== reply.project) weights.clear();
    state = reply;
    revision = reply.revision;
    project = reply.project;
    drawAgreement();
    drawAnnotators();
    drawModels();
    drawDoubts();
    if (focus && focus[0]) {
      [...root.querySelectorAll(`[data-do="${focus[0]}"]`)].find((node) => node.dataset.name === focus[1])?.focus();
    }
  }

  watch('value', () => {
    const reply = props.value;
    if (!reply || reply.request_id !== pendingId) return;
    showNotice(notice, reply.error || reply.message, Boolean(reply.error));
    update();
  });
  poll(root, update, 4000);
}

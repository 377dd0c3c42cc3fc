// Screen "Reward model": accuracy, training, what it rewards. A card is redrawn only when its own data has changed.
import { chartConfig, chartTheme, integerTick, onThemeChange, widthObserver } from '../shared/charts.js';
import {
  calibrationCard,
  disagreementsCard,
  hasCalibration,
  lengthCard,
  lossesCard,
  MIN_CALIBRATION_PAIRS,
  unseenPairs,
} from './reward_charts.js';
import { conversationField, el, palette, tableHead } from '../shared/dom.js';
import {
  formatAccuracy,
  formatDifference,
  formatDuration,
  formatInterval,
  formatNumber,
  formatPercent,
  isWideInterval,
  momentText,
  plotlyText,
  plural,
  timeLeftText,
} from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { annotatorName, isOperator, judgeHint, operatorNotice, operatorOnly } from '../shared/session.js';

function intervalBar(model) {
  const position = (share) => `${Math.max(0, Math.min(100, 100 * share))}%`;
  const band = el('i.band');
  const point = el('i.point');
  const chance = el('i.chance');
  band.style.left = position(model.low);
  band.style.width = position(model.high - model.low);
  point.style.left = position(model.accuracy);
  chance.style.left = position(0.5);
  return el(
    'div.interval',
    {
      role: 'img',
      'aria-label': `accuracy ${formatPercent(model.accuracy)}, 95 % interval ${formatInterval(model.low, model.high)}`,
    },
    el('div.track', {}, band, chance, point),
    el(
      'div.ends',
      { 'aria-hidden': 'true' },
      el('span', {}, '0 %'),
      el('span', {}, '50 %: guessing'),
      el('span', {}, '100 %'),
    ),
  );
}

const HINT = 'Hover over a word, or move to it with Tab, to see its value.';

function tokenNode(token, value, limit, isLast) {
  const name = token.trim() || (isLast ? 'the end, which has read the whole text' : 'space');
  const label = `“${name}”: ${formatDifference(value, 2)} sd`;
  const node = el(
    `span.token.${value >= 0 ? 'up' : 'down'}`,
    { tabindex: 0, title: label, 'aria-label': label },
    token === '' && isLast ? '⏎' : token,
  );
  node.style.setProperty('--strength', Math.min(1, Math.abs(value) / limit).toFixed(2));
  return node;
}

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-reward');
  const P = window.Plotly;
  let state = null; // models, training job, labels
  let chosenId = null; // the selected model; null: the newest
  let report = null; // the report of the shown model; it never changes
  let source = null; // the chosen label source; null: the one with more labels
  let draft = null; // {prompt, turns, text} as typed; turns: of a prompt that was not typed
  let pendingText = null; // {id, job, running} of the text being explained
  let explanation = null; // the result: {score, tokens, token_scores} or {failure}
  let trainError = ''; // why the last training did not start
  let estimates = {}; // how long a training takes, by the source of its labels
  let estimatedKey = ''; // the values that the estimates depend on, except the settings
  let pollNow = () => {};

  const shownModel = () => (state && (state.models.find((m) => m.id === chosenId) || state.models[0])) || null;

  // ---- charts: figure(palette) -> {traces, layout}; redrawing keeps the zoom

  const charts = new Map(); // name → {node, figure}

  function drawChart({ node, figure }) {
    const { traces, layout: extra } = figure(palette());
    const { font, axis, hoverlabel } = chartTheme();
    const layout = {
      ...structuredClone(props.data.layout),
      height: extra.height || 200,
      barmode: 'overlay',
      hovermode: 'closest',
      uirevision: 'keep',
      margin: { t: 8, r: 10, b: 40, l: 60 },
      font,
      hoverlabel,
    };
    layout.xaxis = {
      ...layout.xaxis,
      ...axis,
      rangemode: 'normal',
      title: { text: extra.xTitle || '', standoff: 6 },
      ...(extra.xaxis || {}),
    };
    layout.yaxis = { ...layout.yaxis, ...axis, title: { text: extra.yTitle || '', standoff: 6 }, ...(extra.y || {}) };
    node.style.height = `${layout.height}px`; // otherwise plotly's height would not grow again after a resize
    P.react(node, traces, layout, chartConfig(props.data.config));
  }

  function chart(name, label, figure) {
    const node = el('div.plot', { role: 'img', 'aria-label': label });
    charts.set(name, { node, figure });
    widthObserver.observe(node);
    requestAnimationFrame(() => {
      if (node.isConnected) drawChart(charts.get(name));
    });
    return node;
  }

  function purgeRemovedCharts() {
    for (const [name, { node }] of charts) {
      if (!node.isConnected) {
        P.purge(node);
        widthObserver.unobserve(node);
        charts.delete(name);
      }
    }
  }

  // ---- cards

  function nextTrainingText(selectedSource) {
    if (state.job) return state.job.status_text;
    const { goals, train_every: trainEvery } = state.labels;
    const count = state.labels[selectedSource];
    const goal = goals[selectedSource];
    const cancelled = state.cancelled ? 'The last training was cancelled; its labels are kept. ' : '';
    const dueText = cancelled ? 'The next one starts after a new label.' : 'It is due and starts automatically.';
    if (count >= goal) return cancelled + dueText;
    const next = `next at ${goal}, ${plural(goal - count, 'label')} to go.`;
    return `${cancelled}A new one is also trained after every ${trainEvery} labels: ${next}`;
  }

  function trainingBar() {
    const { human, simulated } = state.labels;
    const selectedSource = source || (simulated > human ? 'simulated' : 'human');
    const sourceSelect = el(
      'select.lab-input',
      {
        'aria-label': 'labels to learn from',
        'data-do': 'source',
        onchange: (e) => {
          source = e.target.value;
          pollNow();
        },
      },
      el('option', { value: 'human' }, `people's labels (${human})`),
      el('option', { value: 'simulated' }, `simulated labels (${simulated})`),
    );
    sourceSelect.value = selectedSource;
    const nextText = nextTrainingText(selectedSource);
    const errorText = trainError || state.failed;
    return el(
      'div.lab-card',
      {},
      props.data.is_demo ? visitorBar(nextText) : null,
      el(
        `div.lab-row${props.data.is_demo ? '.lab-operating' : ''}`,
        {},
        operatorOnly(
          el(
            'button.lab-button.lab-main',
            { type: 'button', 'data-do': 'train', disabled: state.job !== null, onclick: train },
            state.job ? (state.job.running ? 'Training …' : 'Waiting …') : 'Train now',
          ),
          el('span.muted', {}, 'from'),
          sourceSelect,
          el('span.muted.lab-grow', { 'data-do': 'next' }, nextText),
          state.job
            ? el('button.lab-button', { type: 'button', 'data-do': 'cancel', onclick: cancel }, 'Cancel')
            : null,
        ),
        !state.job && estimates[selectedSource]
          ? el('p.muted', { 'data-do': 'estimate' }, estimates[selectedSource])
          : null,
      ),
      props.data.is_demo
        ? null
        : operatorNotice('Only the operator can train reward models; you can view them and score texts of your own.'),
      errorText
        ? el(
            'p.lab-notice.bad',
            { role: 'alert', 'data-do': 'train-error' },
            `${trainError ? '' : 'The last training failed. '}${errorText}`,
          )
        : null,
    );
  }

  // Demo mode: visitors can train on people's labels with the default settings, before the automatic training.
  function visitorBar(nextText) {
    const missing = state.labels.visitor_goal - state.labels.human;
    return el(
      'div.lab-row.lab-visitor',
      {},
      el(
        'button.lab-button.lab-main',
        {
          type: 'button',
          'data-do': 'visitor-train',
          disabled: state.job !== null || missing > 0,
          onclick: trainAsVisitor,
        },
        state.job ? (state.job.running ? 'Training …' : 'Waiting …') : 'Train now',
      ),
      el(
        'span.muted.lab-grow',
        {},
        missing > 0 && !state.job ? `You can train it after ${plural(missing, 'more label')}. ${nextText}` : nextText,
      ),
    );
  }

  function trainAsVisitor() {
    trainError = '';
    trigger('visitor_train', { request_id: Date.now(), last_training: state.last_training });
  }

  function train() {
    trainError = '';
    trigger('train', {
      request_id: Date.now(),
      last_training: state.last_training,
      source: source || (state.labels.simulated > state.labels.human ? 'simulated' : 'human'),
    });
  }

  function cancel() {
    trainError = '';
    trigger('cancel', { request_id: Date.now(), job: state.job.id });
  }

  function trainingCard() {
    const lossOf = () => state.job?.loss || [];
    const card = el(
      'div.lab-card.training',
      { 'data-do': 'training' },
      el('div.lab-row', {}, el('h2'), el('span.muted.lab-grow', { role: 'status' })),
      el(
        'div.lab-bar',
        { role: 'progressbar', 'aria-label': 'training of the reward model', 'aria-valuemin': 0, 'aria-valuemax': 100 },
        el('i'),
      ),
      el('p.muted.note'),
      el(
        'p.muted',
        {},
        'Loss per update; 0.69 is guessing. The validation fit leaves out some prompts and is tested on ' +
          'them. If the adapter helps, a final fit uses all labels.',
      ),
    );
    card.append(
      chart('training', 'loss of the training in progress, by update', (c) => ({
        traces: [
          {
            y: lossOf(),
            x: lossOf().map((_, i) => i + 1),
            mode: 'lines',
            line: { color: c.accent, width: 2 },
            hovertemplate: '%{y:.3f}<extra></extra>',
          },
        ],
        layout: {
          xTitle: 'update of this fit',
          yTitle: 'loss',
          height: 160,
          xaxis: { dtick: integerTick(1, lossOf().length) },
          y: { rangemode: 'tozero' },
        },
      })),
    );
    return card;
  }

  function updateTraining() {
    const card = root.querySelector('.training');
    if (!card || !state.job) return;
    const job = state.job;
    const share = Math.round(100 * job.progress);
    const left = timeLeftText(job.eta_s, job.progress, 'about ');
    card.querySelector('[role=status]').textContent = job.running
      ? `${job.stage === 'final' ? 'last fit, on all labels' : job.stage || 'reading the texts'} · ${share} %${left}`
      : job.status_text;
    card.querySelector('h2').textContent = job.running ? 'Training on the labels' : 'Waiting for training to start';
    card.querySelector('.lab-bar').setAttribute('aria-valuenow', share);
    card.querySelector('.lab-bar > i').style.width = `${share}%`;
    card.querySelector('.note').textContent = job.note;
    card.querySelector('.plot').hidden = job.loss.length < 2;
    if (job.loss.length > 1) drawChart(charts.get('training'));
  }

  function introCard() {
    const labelsLeft = Math.max(0, state.labels.goals.human - state.labels.human);
    return el(
      'div.lab-card.lab-empty',
      { 'data-do': 'empty' },
      el(
        'p',
        {},
        'A reward model reads a text and gives it a score. It is trained on pairs so that the preferred text ' +
          'gets the higher score.',
      ),
      el(
        'p',
        {},
        labelsLeft > 0
          ? [`${plural(labelsLeft, 'more label')} under Label, then it is trained automatically`, judgeHint(';'), '.']
          : 'There are enough labels; training starts in a moment.',
      ),
    );
  }

  function accuracyCard() {
    const model = shownModel();
    const predictions = state.prediction_stats[model.source];
    const isMeasured = model.accuracy !== null;
    const gap = isMeasured && report ? report.train_accuracy - model.accuracy : 0;
    const isWide = isMeasured && isWideInterval(model);
    return el(
      'div.lab-card.headline',
      {},
      el(
        'div',
        {},
        el(
          `div.big${isWide ? '.range' : ''}`,
          { 'data-accuracy': model.accuracy ?? '' },
          isMeasured ? formatAccuracy(model) : formatPercent(null),
        ),
        isMeasured ? intervalBar(model) : null,
      ),
      el(
        'div',
        {},
        el('h2', {}, isMeasured ? 'of held-out pairs ranked as labelled' : 'Accuracy not measured'),
        isWide
          ? el(
              'p.warn',
              {},
              `Too few labels for a single figure: ${formatPercent(model.accuracy)} were ranked correctly, ` +
                'which may be chance.',
            )
          : null,
        el(
          'p.muted',
          {},
          isMeasured && report
            ? `95 % interval ${formatInterval(model.low, model.high)}; cross-validated on ` +
                `${plural(model.labels, 'label')}` +
                `${report.ties ? `, ${plural(report.ties, 'tie')} (or both bad) not counted` : ''}, ` +
                `${report.folds} folds that never split a prompt.`
            : isMeasured
              ? ''
              : 'Too few labels or prompts to hold some of them out. Label more pairs.',
        ),
        el(
          'p.muted',
          {},
          `Reward model ${model.id}, trained on ` +
            `${model.source_text === 'people' ? "people's labels" : `labels ${model.source_text}`}.` +
            (report ? ` It ranks ${formatPercent(report.train_accuracy)} of its training labels correctly.` : ''),
        ),
        state.instant?.source === model.source
          ? el(
              'p',
              { 'data-do': 'instant' },
              `The instant reward model, which is trained on every vote: ${formatAccuracy(state.instant)} of ` +
                `${plural(state.instant.decided, 'vote')} ranked correctly, each by a fit without its prompt.`,
            )
          : null,
        report?.note ? el('p.warn', { 'data-do': 'note' }, `${report.note}.`) : null,
        gap > 0.15
          ? el(
              'p.muted.warn',
              {},
              `${plural(Math.round(100 * gap), 'point')} more on its training labels than on held-out ones: ` +
                'it overfits. More labels help.',
            )
          : null,
        el(
          'p',
          { 'data-do': 'predictions' },
          predictions.decided
            ? `New votes: of ${plural(predictions.decided, 'vote')} on pairs that the reward model of that ` +
                `time was not trained on, it ranked ${predictions.right} correctly before they were cast ` +
                `(${formatPercent(predictions.right / predictions.decided)}, 95 % interval ` +
                `${formatInterval(predictions.low, predictions.high)}).`
            : 'New votes: none yet. This line will say how many of them the reward model ranked correctly ' +
                'before they were cast.',
          predictions.chosen_decided
            ? ' In addition, on pairs chosen because they are informative (harder than most): ' +
                `${predictions.chosen_right} of ${predictions.chosen_decided}.`
            : '',
        ),
        moreToCome(),
      ),
    );
  }

  const measuredModels = () => state.models.filter((m) => m.accuracy !== null);

  // A line about the parts that need more labels than there are; these have no card yet.
  function moreToCome() {
    const sentences = [];
    if (measuredModels().length < 2) {
      sentences.push('The next measured reward model adds a curve that shows whether more labels still help.');
    }
    if (report && !report.counts_hidden && !hasCalibration(report)) {
      sentences.push(
        `With ${MIN_CALIBRATION_PAIRS} unseen pairs (there are ${unseenPairs(report)}) its calibration is shown here.`,
      );
    }
    return sentences.length ? el('p.muted', { 'data-do': 'more-to-come' }, sentences.join(' ')) : null;
  }

  function learningCurve() {
    const measured = measuredModels().slice().reverse();
    const groups = [...new Set(measured.map((m) => m.source_text))];
    const colorNames = ['accent', 'right', 'good'];
    const card = el(
      'div.lab-card',
      {},
      el(
        'div.lab-row',
        {},
        el('h3', {}, 'Accuracy against labels'),
        groups.length > 1
          ? groups.map((name, i) => el('span.lab-badge', {}, el(`i.swatch.line-${colorNames[i % 3]}`), name))
          : el('span.muted', {}, 'with 95 % intervals'),
      ),
    );
    card.append(
      chart('curve', 'accuracy of the reward models against their number of labels', (c) => ({
        traces: groups.map((name, i) => {
          const models = measured.filter((m) => m.source_text === name).sort((a, b) => a.labels - b.labels);
          return {
            x: models.map((m) => m.labels),
            y: models.map((m) => m.accuracy),
            mode: 'lines+markers',
            line: { color: c[colorNames[i % 3]], width: 2 },
            marker: { size: 7 },
            error_y: {
              type: 'data',
              symmetric: false,
              array: models.map((m) => m.high - m.accuracy),
              arrayminus: models.map((m) => m.accuracy - m.low),
              thickness: 1.2,
              width: 4,
            },
            text: models.map((m) =>
              plotlyText(
                `model ${m.id}, ${m.source_text}: ${formatPercent(m.accuracy)} ` +
                  `(${formatInterval(m.low, m.high)}) at ${m.labels} labels`,
              ),
            ),
            hovertemplate: '%{text}<extra></extra>',
          };
        }),
        layout: {
          xTitle: 'labels',
          yTitle: 'accuracy',
          xaxis: {
            dtick: integerTick(Math.min(...measured.map((m) => m.labels)), Math.max(...measured.map((m) => m.labels))),
          },
          y: { range: [Math.min(0.4, ...measured.map((m) => m.low - 0.02)), 1.02], tickformat: '.0%' },
        },
      })),
    );
    return card;
  }

  function scoreHistogram() {
    const card = el(
      'div.lab-card',
      {},
      el(
        'div.lab-row',
        {},
        el('h3', {}, 'Scores of the labelled texts'),
        el('span.lab-badge', {}, el('i.swatch.up'), 'preferred'),
        el('span.lab-badge', {}, el('i.swatch.down'), 'not preferred'),
      ),
    );
    const scores = [...report.chosen_scores, ...report.rejected_scores].map(([score]) => score);
    const binSize = Math.max(0.1, Math.round((Math.max(...scores) - Math.min(...scores)) / 1.6) / 10);
    const trace = (counts, color, name) => ({
      type: 'histogram',
      x: counts.map(([score]) => score),
      y: counts.map(([, texts]) => texts),
      histfunc: 'sum',
      marker: { color },
      opacity: 0.6,
      xbins: { start: -50, end: 50, size: binSize },
      autobinx: false,
      hovertemplate: `${name}: %{y} between %{x}<extra></extra>`,
    });
    card.append(
      chart('histogram', 'histogram of the scores of preferred and of other texts', (c) => ({
        traces: [
          trace(report.chosen_scores, c.left, 'preferred'),
          trace(report.rejected_scores, c.right, 'not preferred'),
        ],
        layout: {
          xTitle: 'score (sd)',
          yTitle: 'texts',
          y: { dtick: report.chosen_scores.reduce((sum, [, texts]) => sum + texts, 0) <= 12 ? 1 : null },
        },
      })),
    );
    return card;
  }

  function modelTable() {
    const selectButton = (m) =>
      el(
        'button.lab-button.small',
        {
          type: 'button',
          'data-do': `look-${m.id}`,
          'aria-label': `look at reward model ${m.id}`,
          'aria-pressed': m.id === shownModel().id ? 'true' : 'false',
          onclick: () => {
            chosenId = m.id;
            pollNow();
          },
        },
        String(m.id),
      );
    const isNewest = shownModel().id === state.models[0].id;
    return el(
      'div.lab-card',
      {},
      el(
        'div.lab-row',
        {},
        el('h3', {}, 'All reward models'),
        el(
          'span.muted',
          {},
          isNewest ? 'press a number to view an older one' : `you are viewing number ${shownModel().id}`,
        ),
        isNewest
          ? null
          : el(
              'button.lab-button.small',
              {
                type: 'button',
                'data-do': 'newest',
                onclick: () => {
                  chosenId = null;
                  pollNow();
                },
              },
              'Back to the newest',
            ),
      ),
      el(
        'div.scroll.lab-scroll',
        { tabindex: 0, role: 'group', 'aria-label': 'list of reward models' },
        el(
          'table',
          {},
          tableHead(['', 'accuracy', '95 % interval', 'labels', 'from', 'trained']),
          el(
            'tbody',
            {},
            state.models.map((m) =>
              el(
                `tr${m.id === shownModel().id ? '.open' : ''}`,
                {},
                el('td', {}, selectButton(m)),
                el('td', {}, formatPercent(m.accuracy)),
                el('td', {}, formatInterval(m.low, m.high) || '–'),
                el('td', {}, String(m.labels)),
                el('td', {}, m.source_text),
                el('td', {}, momentText(m.created_at)),
              ),
            ),
          ),
        ),
      ),
    );
  }

  // ---- word scores

  function wordScores() {
    const texts = report.example_texts;
    draft = draft || (texts[0] ? { ...texts[0] } : { prompt: '', turns: null, text: '' });
    const textField = (name) =>
      el('textarea.lab-input', {
        rows: 4,
        dir: 'auto',
        'data-do': `explain-${name}`,
        oninput: (e) => {
          draft[name] = e.target.value;
          picker.value = '';
        },
      });
    const prompt = textField('prompt');
    const text = textField('text');
    const conversation = conversationField(prompt, 'explain-edit');
    prompt.addEventListener('input', () => {
      draft.turns = null;
    });
    const fill = () => {
      prompt.value = draft.prompt;
      text.value = draft.text;
      conversation.show(draft.turns);
    };
    const shorten = (words) => (words.length > 60 ? `${words.slice(0, 60)}…` : words);
    const picker = el(
      'select.lab-input.pick',
      {
        'aria-label': 'text to explain',
        'data-do': 'explain-pick',
        onchange: () => {
          if (picker.value !== '') {
            draft = { ...texts[Number(picker.value)] };
            fill();
            explain();
          }
        },
      },
      el('option', { value: '' }, 'a text of my own'),
      texts.map((item, i) => el('option', { value: i }, `${item.tag}: ${shorten(item.text)}`)),
    );
    picker.value = String(texts.findIndex((item) => item.text === draft.text && item.prompt === draft.prompt));
    if (picker.selectedIndex < 0) picker.value = '';
    fill();
    return el(
      'div.lab-card.words',
      {},
      el('div.lab-row', {}, el('h3', {}, 'Words that raise or lower the score'), picker),
      el(
        'div.twice',
        {},
        el('label', {}, el('span.muted', {}, 'prompt'), conversation.shown, prompt),
        el('label', {}, el('span.muted', {}, 'text; change a word to see the effect'), text),
      ),
      el(
        'div.lab-row',
        {},
        el('button.lab-button.small', { type: 'button', 'data-do': 'explain', onclick: explain }, 'Show words'),
        conversation.edit,
      ),
      el('div.tokens', { 'data-do': 'tokens' }),
    );
  }

  function explain() {
    explanation = null;
    pendingText = { id: Date.now() };
    trigger('explain', {
      request_id: pendingText.id,
      annotator: annotatorName(),
      model: shownModel().id,
      prompt: draft.prompt,
      text: draft.text,
    });
    drawExplanation();
  }

  function waitingText() {
    return (
      (pendingText.running
        ? 'The engine is scoring the text'
        : 'Waiting for the engine (it answers between the steps of a run; if it was stopped, it loads ' +
          'the model first)') + ` (${formatDuration((Date.now() - pendingText.id) / 1000)}) …`
    );
  }

  function drawExplanation() {
    const container = root.querySelector('[data-do=tokens]');
    if (!container) return;
    if (!explanation) {
      container.replaceChildren(pendingText ? el('p.muted', { role: 'status' }, waitingText()) : '');
      return;
    }
    if (explanation.failure) {
      container.replaceChildren(el('p.lab-notice.bad', { role: 'alert' }, explanation.failure));
      return;
    }
    const total = el('strong', {}, `Score ${formatNumber(explanation.score, 2)} sd`);
    if (!explanation.token_scores) {
      container.replaceChildren(
        el(
          'p',
          { role: 'status' },
          total,
          '. This reward model reads only the last token, so single words have no score. Train one with ' +
            'pooling "mean" to see them.',
        ),
      );
      return;
    }
    // without the end token, whose score is that of the whole text
    const limit = Math.max(0.5, ...explanation.token_scores.slice(0, -1).map(Math.abs));
    const hint = el('p.muted.tell', { 'aria-live': 'polite' }, HINT);
    const showHint = (event) => {
      const node = event.target.closest?.('.token');
      hint.textContent = node ? node.title : HINT;
    };
    const legend = el(
      'div.legend',
      { 'aria-hidden': 'true' },
      el('span', {}, `lowers ${formatDifference(-limit, 2)}`),
      el('i'),
      el('span', {}, `raises ${formatDifference(limit, 2)}`),
    );
    container.replaceChildren(
      el(
        'p',
        { role: 'status' },
        total,
        el('span.muted', {}, ': the mean over its word pieces; 0 is the average text of the base model'),
      ),
      legend,
      el(
        'p.lab-text.pieces.lab-scroll',
        {
          dir: 'auto',
          onmouseover: showHint,
          onmouseout: () => {
            hint.textContent = HINT;
          },
          onfocusin: showHint,
          onfocusout: () => {
            hint.textContent = HINT;
          },
        },
        explanation.tokens.map((token, i) =>
          tokenNode(token, explanation.token_scores[i], limit, i === explanation.tokens.length - 1),
        ),
      ),
      hint,
    );
  }

  // ---- drawing

  const cards = {
    bar: [
      () => [
        state.labels,
        state.job && [state.job.running, state.job.status_text],
        state.failed,
        state.cancelled,
        trainError,
        source,
        estimates,
      ],
      trainingBar,
    ],
    training: [() => state.job && state.job.id, trainingCard],
    intro: [() => !state.models.length && !state.job && state.labels, introCard],
    headline: [
      () => shownModel() && [shownModel(), state.prediction_stats, state.instant, !!report, measuredModels().length],
      accuracyCard,
    ],
    curve: [() => measuredModels().length > 1 && measuredModels().map((m) => [m.id, m.accuracy]), learningCurve],
    histogram: [() => report && report.chosen_scores.length && report.id, scoreHistogram],
    words: [() => report && [state.project, report.id], wordScores],
    calibration: [() => report && hasCalibration(report) && report.id, () => calibrationCard(report, chart)],
    losses: [() => report && !report.counts_hidden && report.id, () => lossesCard(report, chart)],
    length: [() => report && report.id, () => lengthCard(report)],
    disagreements: [() => report && report.disagreements.length && report.id, () => disagreementsCard(report)],
    table: [() => shownModel() && [state.models, shownModel().id], modelTable],
  };
  const containers = Object.fromEntries(
    Object.keys(cards).map((name) => [name, el(`div.part.${name}-part`, { hidden: true })]),
  );

  function draw() {
    for (const [name, [key, build]] of Object.entries(cards)) {
      const container = containers[name];
      const value = key() || null;
      const newKey = JSON.stringify(value);
      if (container.dataset.key === newKey) continue;
      const focused = container.contains(document.activeElement) ? document.activeElement.dataset.do : null;
      container.dataset.key = newKey;
      container.hidden = value === null;
      container.replaceChildren(...(value === null ? [] : [build()]));
      if (focused) container.querySelector(`[data-do="${focused}"]`)?.focus(); // keep the focus
    }
    purgeRemovedCharts();
    updateTraining();
  }

  function requestEstimates() {
    const key = JSON.stringify([state.project, state.labels, state.measured_at]);
    if (key === estimatedKey || !isOperator()) return;
    estimatedKey = key;
    trigger('estimate', {});
  }

  async function update() {
    const reply = await unwrap(server.state({}));
    if (!state) root.replaceChildren(...Object.values(containers));
    if (state && state.project !== reply.project) {
      chosenId = null;
      draft = null;
      trainError = '';
    }
    if (reply.job || (state && JSON.stringify(reply.labels) !== JSON.stringify(state.labels))) trainError = '';
    state = reply;
    requestEstimates();
    const model = shownModel();
    if (!model || !report || report.id !== model.id) {
      report = null;
      explanation = null;
      pendingText = null;
      if (model) report = await unwrap(server.report({ model: model.id }));
      draw();
      drawExplanation();
      return;
    }
    draw();
    if (!pendingText || explanation) return;
    if (pendingText.job) {
      const requested = pendingText;
      const answer = await unwrap(server.explanation({ job: requested.job, annotator: annotatorName() }));
      if (pendingText !== requested) return;
      requested.running = answer.running;
      if (!answer.is_waiting) {
        explanation = answer;
        pendingText = null;
      }
    }
    drawExplanation();
  }

  watch('value', () => {
    const reply = props.value;
    if (!reply) return;
    if (reply.estimates) {
      estimates = reply.estimates;
      draw();
      return;
    }
    if (pendingText && reply.request_id === pendingText.id) {
      if (reply.error) {
        explanation = { failure: reply.error };
        pendingText = null;
        drawExplanation();
      } else pendingText.job = reply.job;
    } else if (reply.error) {
      trainError = reply.error;
    }
    pollNow();
  });
  onThemeChange(() => {
    for (const one of charts.values()) if (one.node.isConnected) drawChart(one);
  });
  root.append(el('div.lab-card.lab-empty', { role: 'status' }, 'Loading the reward models …'));
  pollNow = poll(root, update, 1000);
}

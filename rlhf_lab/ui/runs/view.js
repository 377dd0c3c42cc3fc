// Screen "Runs & data": the list of runs, a comparison of chosen runs, exports.
import { chartConfig, chartTheme, integerTick, onThemeChange } from '../shared/charts.js';
import { updateExportCard } from './export_card.js';
import { deleteConfirmation, el, nameField, showNotice, sparkline, tableHead } from '../shared/dom.js';
import { formatBytes, formatNumber, momentText, plotlyText } from '../shared/format.js';
import { poll, unwrap } from '../shared/poll.js';
import { openTab, operatorNotice, operatorOnly } from '../shared/session.js';

const STATUS_STYLES = {
  running: 'accent',
  queued: '',
  paused: 'warn',
  interrupted: 'warn',
  failed: 'bad',
  stopped: 'warn',
  done: 'good',
};

function scoreSparkline(values) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known);
  const high = Math.max(...known);
  return sparkline(values, (value) => 25 - (22 * (value - low)) / (high - low || 1), { 'aria-hidden': 'true' });
}

function watchRun(id) {
  window.dispatchEvent(new CustomEvent('lab-run', { detail: id }));
  openTab('Train');
}

function whenCell(run) {
  const title = new Date(1000 * run.created_at).toLocaleString('en-GB');
  return el('td.muted.when', { title }, momentText(run.created_at));
}

const EXPORT_POLL_MS = 500;
const MAX_UNKNOWN_POLLS = 20;

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-runs');
  const MAX_RUNS = props.data.max_runs;
  let state = null; // the list on screen
  let revision = '';
  let slots = null; // run id -> color slot of the compared runs
  let knownRuns = new Set(); // ids of the runs listed so far
  let editing = null; // {run, mode: 'name' | 'delete'}; while it is set, the list is not redrawn
  let metric = 'objective/scores';
  let comparison = null; // the data of the charts
  let comparisonRevision = ''; // its revision
  let pendingId = 0; // request_id of the last action on a run
  const pendingExports = new Set(); // request_ids of exports whose file has not arrived yet
  const control = (name, run) =>
    root.querySelector(`[data-do="${name}"]${run === undefined ? '' : `[data-run="${run}"]`}`);

  const list = el(
    'section.list',
    { 'aria-label': 'runs of this project' },
    el('div.lab-card.lab-empty', { role: 'status' }, 'Loading the runs …'),
  );
  const notice = el('p.lab-notice', { role: 'status', hidden: true, 'data-do': 'runs-notice' });
  const compareCard = el('section.lab-card.compare', { 'aria-label': 'compare runs', hidden: true });
  const exportCard = el('section.lab-card.take', { 'aria-label': 'export', hidden: true });
  root.append(
    operatorNotice('Only the operator can change runs, train, export and import; you can view and compare.'),
    notice,
    list,
    compareCard,
    exportCard,
  );
  exportCard.addEventListener('change', () => {
    if (control('export-link')) showMessage('');
  });

  const showMessage = (text, isError = false) => showNotice(notice, text, isError);

  function send(name, fields) {
    const id = Date.now();
    if (name === 'export') {
      pendingExports.add(id);
      exportCard.after(notice);
    } else {
      pendingId = id;
      list.before(notice);
    } // near the pressed button
    showMessage('');
    trigger(name, { request_id: id, ...fields });
    return id;
  }

  // ---- compared runs and their colors

  const slotColor = (slot) =>
    getComputedStyle(root)
      .getPropertyValue(`--series-${slot + 1}`)
      .trim();

  function freeSlot() {
    const usedSlots = new Set(slots.values());
    return [...Array(MAX_RUNS).keys()].find((slot) => !usedSlots.has(slot));
  }

  function setChosen(id, isChosen) {
    if (!isChosen) slots.delete(id);
    else if (slots.size < MAX_RUNS) slots.set(id, freeSlot());
    else {
      list.before(notice);
      showMessage(`At most ${MAX_RUNS} runs can be compared at once. Leave one out first.`, true);
    }
    drawList();
    update();
  }

  // ---- the list

  function startEditing(run, mode) {
    editing = { run, mode };
    drawList();
    control(mode === 'name' ? 'run-name' : 'run-delete-sure', run)?.focus();
  }
  function stopEditing() {
    const { run, mode } = editing || {};
    editing = null;
    drawList();
    if (run) control(mode === 'name' ? 'run-rename' : 'run-delete', run)?.focus();
  }

  function nameCell(run) {
    if (editing?.run === run.id && editing.mode === 'name') {
      return el(
        'td.name',
        {},
        nameField(
          run.name,
          `new name of run ${run.id}`,
          'run-name',
          { 'data-run': run.id },
          (name) => send('control', { action: 'rename', run: run.id, name }),
          stopEditing,
        ),
      );
    }
    return el(
      'td.name',
      {},
      el('span.muted', {}, `${run.id}`),
      ' ',
      operatorOnly(
        el(
          'button.plain',
          {
            type: 'button',
            title: 'rename',
            'aria-label': `rename run ${run.id}, ${run.name}`,
            'data-do': 'run-rename',
            'data-run': run.id,
            onclick: () => startEditing(run.id, 'name'),
          },
          run.name,
        ),
      ),
      run.message && run.status === 'failed' ? el('p.muted.message', {}, run.message) : null,
    );
  }

  function actions(run) {
    if (editing?.run === run.id && editing.mode === 'delete') {
      return deleteConfirmation(
        `Delete run ${run.id} permanently?`,
        'run-delete',
        { 'data-run': run.id },
        () => send('control', { action: 'delete', run: run.id }),
        stopEditing,
      );
    }
    return el(
      'div.lab-row',
      {},
      el(
        'button.lab-button.small',
        {
          type: 'button',
          'data-do': 'run-watch',
          'data-run': run.id,
          title: 'its curves and samples, under Train',
          onclick: () => watchRun(run.id),
        },
        'Show',
      ),
      operatorOnly(
        run.is_resumable
          ? el(
              'button.lab-button.small',
              {
                type: 'button',
                'data-do': 'run-resume',
                'data-run': run.id,
                onclick: () => send('control', { action: 'resume', run: run.id }),
              },
              'Resume',
            )
          : null,
        el(
          'button.lab-button.small.danger',
          {
            type: 'button',
            'data-do': 'run-delete',
            'data-run': run.id,
            disabled: run.is_active,
            title: run.is_active ? 'stop it first under Train' : 'asks first',
            onclick: () => startEditing(run.id, 'delete'),
          },
          'Delete',
        ),
      ),
    );
  }

  function row(run) {
    const slot = slots.get(run.id);
    const box = el('input', {
      type: 'checkbox',
      checked: slot !== undefined,
      'aria-label': `compare run ${run.id}, ${run.name}`,
      'data-do': 'run-choose',
      'data-run': run.id,
      onchange: (event) => setChosen(run.id, event.target.checked),
    });
    const checkboxCell = el(
      'td.pick',
      {},
      el('label', {}, box, el('i.swatch', { 'data-slot': slot === undefined ? null : slot + 1 })),
    );
    const bar = el('i');
    bar.style.width = `${(100 * run.step) / Math.max(1, run.total_steps)}%`;
    const figure = (label, value) => el('td.figure', { 'data-words': label }, formatNumber(value));
    return el(
      'tr',
      { 'data-run': run.id },
      checkboxCell,
      nameCell(run),
      el('td.figure', { 'data-words': 'algorithm' }, run.algorithm),
      el(
        'td',
        {},
        el(
          `span.lab-badge${STATUS_STYLES[run.status] ? `.${STATUS_STYLES[run.status]}` : ''}`,
          { title: run.message || null },
          run.status,
        ),
      ),
      el(
        'td.step',
        {},
        el('div', {}, `${run.step} of ${run.total_steps}`),
        el(
          'div.lab-bar',
          {
            role: 'progressbar',
            'aria-label': `steps of run ${run.id}`,
            'aria-valuemin': 0,
            'aria-valuemax': run.total_steps,
            'aria-valuenow': run.step,
          },
          bar,
        ),
      ),
      el('td.curve', { title: 'the score over the steps' }, scoreSparkline(run.sparkline)),
      figure('score', run.score),
      figure('KL', run.kl),
      figure('gold', run.gold),
      whenCell(run),
      el('td.actions', {}, actions(run)),
    );
  }

  function drawList() {
    if (!state) return;
    const focus = list.contains(document.activeElement)
      ? [document.activeElement.dataset.do, document.activeElement.dataset.run]
      : null;
    if (!state.runs.length) {
      list.replaceChildren(
        el(
          'div.lab-card.lab-empty',
          { role: 'status' },
          el('p', {}, 'This project has no run yet.'),
          el(
            'p',
            {},
            'Label pairs under Label, then start PPO under Train; every run is listed here, with its ' +
              'metrics, samples and checkpoints.',
          ),
        ),
      );
      return;
    }
    const head = [
      '',
      'run',
      'algorithm',
      'status',
      'step',
      'score over steps',
      'score (sd)',
      'KL (nats)',
      'gold (points)',
      'created',
      '',
    ];
    const table = el('table', {}, tableHead(head), el('tbody', {}, state.runs.map(row)));
    list.replaceChildren(
      el(
        'div.lab-card',
        {},
        el(
          'div.lab-row',
          {},
          el('h2', {}, `Runs of ${state.name}`),
          el(
            'span.muted',
            {},
            `Select up to ${MAX_RUNS} runs to compare. Score, KL and gold are means over the last ` +
              `${props.data.window} steps (fewer before step ${2 * props.data.window}).`,
          ),
        ),
        table,
        state.unlisted_count
          ? el('p.muted', {}, `${state.unlisted_count} older runs are not listed; ${state.lab_command} runs lists all.`)
          : null,
      ),
    );
    if (focus && focus[0]) control(focus[0], focus[1])?.focus();
  }

  // ---- comparison

  function drawCompare() {
    compareCard.hidden = !state || !state.runs.length;
    if (compareCard.hidden) return;
    if (!compareCard.firstChild) {
      const heading = (title, description) =>
        el('div.lab-row', {}, el('h3', {}, title), el('span.muted', {}, description));
      compareCard.append(
        el(
          'div.lab-row',
          {},
          el('h2', {}, 'Comparison'),
          el('select.lab-input', {
            'aria-label': 'metric',
            'data-do': 'runs-metric',
            onchange: (event) => {
              metric = event.target.value;
              update();
            },
          }),
          el('span.muted.about'),
        ),
        el('ul.legend', { 'aria-label': 'legend' }),
        el('p.muted.none', { hidden: true }, 'Tick runs in the list to draw them here.'),
        el(
          'div.drawn',
          {},
          el('div.plot.wide', { role: 'img', 'aria-label': 'metric over the steps' }),
          el(
            'div.two',
            {},
            el(
              'figure',
              {},
              heading('Score against √KL', 'what the run maximises'),
              el('div.plot.score', { role: 'img', 'aria-label': 'score over the square root of KL' }),
            ),
            el(
              'figure.gold',
              {},
              heading('Gold against √KL', 'what the score is meant to measure'),
              el('div.plot.gold', { role: 'img', 'aria-label': 'gold score over the square root of KL' }),
            ),
          ),
          el(
            'p.muted.how',
            {},
            'Distance from the base grows to the right; the large dot is the end. A dot is the mean of a few ' +
              `steps in a row (point at it to see which), at most ${props.data.buckets} a run. Where the score ` +
              'still rises and gold falls, the policy exploits the reward model (over-optimisation, Gao et al. ' +
              '2022).',
          ),
        ),
        el('div.differs', {}),
      );
    }
  }

  function drawPlot(plot, traces, xaxis, yaxis, revision, ticks = {}) {
    const base = structuredClone(props.data.layout);
    const theme = chartTheme();
    const axis = (base, title) => ({ ...base, title: { text: title, standoff: 6 }, ...theme.axis, automargin: true });
    const layout = {
      ...base,
      margin: { t: 8, r: 12, b: 40, l: 50 },
      font: theme.font,
      uirevision: revision,
      hoverlabel: theme.hoverlabel,
      xaxis: { ...axis(base.xaxis, xaxis), ...ticks },
      yaxis: axis(base.yaxis, yaxis),
    };
    window.Plotly.react(plot, traces, layout, chartConfig(props.data.config));
  }

  function frontierTraces(name) {
    return comparison.runs
      .filter((run) => run[`${name}_frontier`].length)
      .map((run) => ({
        x: run[`${name}_frontier`].map((p) => p[0]),
        y: run[`${name}_frontier`].map((p) => p[1]),
        name: plotlyText(run.name, 60),
        mode: 'lines+markers',
        line: { color: slotColor(slots.get(run.id)), width: 2 },
        marker: {
          size: run[`${name}_frontier`].map((_, i, all) => (i === all.length - 1 ? 9 : 5)),
          color: slotColor(slots.get(run.id)),
        },
        customdata: run[`${name}_frontier`].map((p) => (p[2] === p[3] ? `step ${p[2]}` : `steps ${p[2]}–${p[3]}`)),
        hovertemplate:
          `${run.id} ${plotlyText(run.name, 60)}<br>%{customdata}<br>√KL %{x:.3g}, ${name} ` +
          '%{y:.3g}<extra></extra>',
      }));
  }

  function drawCharts() {
    if (!comparison || !state || !compareCard.firstChild) return;
    const runs = comparison.runs.filter((run) => slots.has(run.id));
    const isEmpty = !runs.length;
    compareCard.querySelector('.none').hidden = !isEmpty;
    compareCard.querySelector('.drawn').hidden = isEmpty;
    compareCard
      .querySelector('.legend')
      .replaceChildren(
        ...runs.map((run) =>
          el('li', {}, el('i.swatch', { 'data-slot': slots.get(run.id) + 1 }), `${run.id} ${run.name}`),
        ),
      );
    drawMetrics();
    drawDiffers();
    if (isEmpty) return;
    comparison.runs = runs;
    const [title, unit] = props.data.titles[comparison.metric] || [comparison.metric, ''];
    compareCard
      .querySelector('.plot.wide')
      .setAttribute('aria-label', `${title} over the steps of ${runs.length} runs`);
    drawPlot(
      compareCard.querySelector('.plot.wide'),
      runs.map((run) => ({
        x: run.points.map((p) => p[0]),
        y: run.points.map((p) => p[1]),
        name: plotlyText(run.name, 60),
        mode: run.points.length > 150 ? 'lines' : 'lines+markers',
        connectgaps: false,
        line: { color: slotColor(slots.get(run.id)), width: 2 },
        marker: { size: 4, color: slotColor(slots.get(run.id)) },
        hovertemplate: `${run.id} ${plotlyText(run.name, 60)}<br>step %{x}: %{y:.4g}<extra></extra>`,
      })),
      'step',
      `${title}${unit ? ` (${unit})` : ''}`,
      comparison.metric,
      { dtick: integerTick(0, Math.max(...runs.flatMap((run) => run.points.map((p) => p[0])), 0)) },
    );
    const goldTraces = frontierTraces('gold'); // without gold scores the other chart takes the full width
    compareCard.querySelector('figure.gold').hidden = !goldTraces.length;
    compareCard.querySelector('.two').classList.toggle('alone', !goldTraces.length);
    drawPlot(compareCard.querySelector('.plot.score'), frontierTraces('score'), '√KL (√nats)', 'score (sd)', 'score');
    if (goldTraces.length) {
      drawPlot(compareCard.querySelector('.plot.gold'), goldTraces, '√KL (√nats)', "gold (judge's points)", 'gold');
    }
  }

  function drawMetrics() {
    const select = control('runs-metric');
    const metrics = comparison.metrics.includes(metric) ? comparison.metrics : [metric, ...comparison.metrics];
    if (select.dataset.names !== metrics.join() && select !== document.activeElement) {
      select.dataset.names = metrics.join();
      select.replaceChildren(
        ...metrics.map((name) =>
          el(
            'option',
            { value: name, selected: name === metric },
            props.data.titles[name] ? `${props.data.titles[name][0]} (${name})` : name,
          ),
        ),
      );
    }
    compareCard.querySelector('.about').textContent = props.data.descriptions[comparison.metric] || '';
  }

  function drawDiffers() {
    const container = compareCard.querySelector('.differs');
    const runs = comparison.runs;
    const differences = comparison.setting_differences;
    if (runs.length < 2) {
      container.replaceChildren();
      return;
    }
    const note = differences.length
      ? 'Only settings that differ are listed.'
      : 'No differences: same settings, labels, seed, device and versions. The metrics should be the same too.';
    container.replaceChildren(
      el('div.lab-row', {}, el('h3', {}, 'What differs'), el('span.muted', {}, note)),
      differences.length
        ? el(
            'div.scroll',
            { tabindex: '0', role: 'group', 'aria-label': 'what differs' },
            el(
              'table',
              {},
              el(
                'thead',
                {},
                el(
                  'tr',
                  {},
                  el('th', { scope: 'col' }, 'setting'),
                  runs.map((run) =>
                    el(
                      'th',
                      { scope: 'col' },
                      el('i.swatch', { 'data-slot': slots.get(run.id) + 1 }),
                      `${run.id} ${run.name}`,
                    ),
                  ),
                ),
              ),
              el(
                'tbody',
                {},
                differences.map((item) =>
                  el(
                    'tr',
                    {},
                    el('th', { scope: 'row', title: item.about || null }, item.name),
                    item.values.map((value) => el('td', {}, value)),
                  ),
                ),
              ),
            ),
          )
        : '',
    );
  }

  // ---- exports

  const exportProgress = el('span.muted', {
    role: 'progressbar',
    'aria-label': 'labels written',
    'aria-valuemin': 0,
    'aria-valuemax': 100,
    hidden: true,
    'data-do': 'export-progress',
  });

  function requestExport(kind, options) {
    const id = send('export', { kind, ...options });
    if (kind === 'labels' || kind === 'dataset') followExport(id);
    else showMessage('Writing the file …');
  }

  function showExportFraction(fraction) {
    const percent = Math.floor(100 * fraction);
    exportProgress.hidden = false;
    exportProgress.textContent = `Writing the labels: ${percent} %`;
    exportProgress.setAttribute('aria-valuenow', percent);
  }

  // Show how much of an export is written, until its reply has arrived or the lab no longer knows it.
  async function followExport(id) {
    showExportFraction(0);
    for (let unknown = 0; unknown < MAX_UNKNOWN_POLLS; unknown += 1) {
      await new Promise((resolve) => {
        setTimeout(resolve, EXPORT_POLL_MS);
      });
      const reply = await unwrap(server.export_progress({ export: id })).catch(() => ({ fraction: null }));
      if (!pendingExports.has(id)) return;
      if (reply.fraction === null) continue;
      showExportFraction(reply.fraction);
      unknown = 0;
    }
    exportProgress.hidden = true;
    showMessage('The labels were not written, because the lab was stopped or restarted. Export them once more.', true);
  }

  const drawExportCard = () => {
    if (updateExportCard(exportCard, state, requestExport, exportProgress) && control('export-link')) showMessage('');
  }; // the offered file no longer matches this card

  function offerDownload(file) {
    const link = el(
      'a.lab-button.small',
      { href: `gradio_api/file=${encodeURI(file.path)}`, download: file.name, 'data-do': 'export-link' },
      'Save it',
    );
    notice.hidden = false;
    notice.replaceChildren(`${file.name}, ${formatBytes(file.bytes)}. ${file.note} `, link);
    link.click();
  }

  // ---- polling

  async function update() {
    const reply = await unwrap(server.get_state({ revision }));
    if (!reply.unchanged) {
      const projectChanged = !state || state.project !== reply.project;
      revision = reply.revision;
      state = reply;
      if (projectChanged) {
        slots = new Map();
        state.runs.slice(0, 3).forEach((run, i) => slots.set(run.id, i));
        editing = null;
      } else {
        for (const { id } of state.runs) if (!knownRuns.has(id) && slots.size < MAX_RUNS) slots.set(id, freeSlot());
      } // it started while the screen is open
      knownRuns = new Set(state.runs.map(({ id }) => id));
      for (const id of [...slots.keys()]) if (!state.runs.some((run) => run.id === id)) slots.delete(id);
      if (!editing) drawList();
      drawExportCard();
    }
    drawCompare();
    if (compareCard.hidden) return;
    const newComparison = await unwrap(
      server.compare({ runs: [...slots.keys()], metric, revision: comparisonRevision }),
    );
    if (newComparison.unchanged) return;
    comparisonRevision = newComparison.revision;
    comparison = newComparison;
    drawCharts();
  }

  watch('value', () => {
    const reply = props.value;
    if (!reply) return;
    if (pendingExports.delete(reply.request_id)) {
      exportProgress.hidden = !pendingExports.size;
      exportCard.after(notice);
    } else if (reply.request_id !== pendingId) return;
    if (reply.error) showMessage(reply.error, true);
    else if (reply.download) offerDownload(reply.download);
    else showMessage(reply.message);
    update();
  });

  onThemeChange(() => {
    if (compareCard.offsetParent !== null) drawCharts();
  });
  const pollNow = poll(root, update, 2000);
  new IntersectionObserver((entries) => {
    if (entries.some((e) => e.isIntersecting)) {
      drawCharts();
      pollNow();
    }
  }).observe(root);
}

// The token view: tokens of the texts that a step learnt from, colored by a value, and the equations of the selected
// token. fetchTokens({run, step}) -> token_view() of ui/train/token_view.py.
import { el, promptView } from '../shared/dom.js';
import { formatNumber, plural } from '../shared/format.js';
import { unwrap } from '../shared/poll.js';

const CLIPPED_TITLE =
  'After the last update of the step, the clipped term is the larger loss. The curve of the clip fraction is the ' +
  'mean over all updates of the step, the first of which clips nothing.';

export function createTokenView(fetchTokens) {
  let run = null;
  let step = null;
  let view = null;
  let requestedKey = '';
  let scale = null;
  let scrollWhenLoaded = false;
  let selected = [0, -1]; // row and token (-1: the last)
  let isPinned = false; // a pinned token stays selected when the mouse moves

  const stepLabel = el('strong', { 'data-token-step': '' });
  const previous = el(
    'button.lab-button.small',
    { type: 'button', 'data-do': 'token-back', 'aria-label': 'one step back', onclick: () => move(-1) },
    '◀',
  );
  const next = el(
    'button.lab-button.small',
    { type: 'button', 'data-do': 'token-on', 'aria-label': 'one step on', onclick: () => move(1) },
    '▶',
  );
  const scaleSelect = el('select.lab-input', {
    'aria-label': 'colour the tokens by',
    'data-do': 'token-colour',
    onchange: () => {
      scale = scaleSelect.value;
      colorTokens();
    },
  });
  const legend = el('span.muted.legend');
  const texts = el('div.texts', {}, el('p.lab-empty', {}, 'Loading the tokens …'));
  const facts = el('div.facts', { 'aria-live': 'polite' });
  const details = el(
    'details.lab-card.microscope',
    { 'data-do': 'microscope', ontoggle: () => load() },
    el(
      'summary',
      {},
      el('h2', {}, 'Token view'),
      el(
        'span.muted',
        {},
        'Texts that this step was trained on, with the values of every token and how they are computed.',
      ),
    ),
    el(
      'div.lab-row',
      {},
      previous,
      stepLabel,
      next,
      el('label.lab-row.shade', {}, el('span.muted', {}, 'colour'), scaleSelect),
      legend,
    ),
    texts,
    facts,
  );

  // Scroll to the token view when it is opened, and once more when its content has arrived.
  const scrollToTop = () => details.scrollIntoView({ block: 'start' });
  function move(offset) {
    step += offset;
    load();
  }

  // Show a step; it is fetched only while the section is open.
  function show(newRun, newStep) {
    [run, step] = [newRun, Math.max(1, newStep)];
    load();
  }

  // Called with every poll until the tokens have arrived, because a reply may be lost.
  async function load() {
    const key = `${run}/${step}`;
    if (!details.open || run === null || requestedKey === key) return;
    requestedKey = key;
    let reply;
    try {
      reply = await unwrap(fetchTokens({ run, step }));
    } catch (error) {
      if (requestedKey === key) requestedKey = '';
      return;
    }
    if (requestedKey !== key) return;
    view = reply;
    draw();
    if (scrollWhenLoaded) scrollToTop();
    scrollWhenLoaded = false;
  }

  function draw() {
    stepLabel.textContent = `step ${view.step}`;
    stepLabel.dataset.tokenStep = view.step;
    previous.disabled = view.step <= 1;
    next.disabled = view.step >= view.last_step;
    const columns = view.color_scales.map((item) => item.column);
    if (!columns.includes(scale)) scale = columns[0];
    scaleSelect.replaceChildren(...view.color_scales.map((item) => el('option', { value: item.column }, item.name)));
    scaleSelect.value = scale;
    if (!view.rows.length) {
      texts.replaceChildren(
        el(
          'p.lab-empty',
          {},
          view.tokens_per_step
            ? 'No tokens of this step were stored.'
            : 'This run stores no tokens: token_rows is 0 in its settings.',
        ),
      );
      facts.replaceChildren();
      legend.textContent = '';
      return;
    }
    texts.replaceChildren(...view.rows.map(textCard));
    colorTokens();
    select(Math.min(selected[0], view.rows.length - 1), selected[1], isPinned);
  }

  function textCard(row, rowIndex) {
    const line = el('p.lab-text.tokens', { dir: 'auto', onkeydown: (event) => handleKey(event, rowIndex) });
    row.tokens.forEach((token, i) =>
      line.append(
        el(
          `span.token${row.clipped[i] ? '.clipped' : ''}`,
          {
            role: 'button',
            tabindex: -1,
            'data-token': i,
            'aria-label': `token ${token.trim() || i + 1}`,
            onmouseenter: () => {
              if (!isPinned) select(rowIndex, i);
            },
            onclick: () => {
              const isSelected = isPinned && selected[0] === rowIndex && selected[1] === i;
              select(rowIndex, i, !isSelected);
            },
          },
          token || '·',
        ),
      ),
    );
    const scoreText =
      row.score === null
        ? null
        : row.shaped_score === row.score || row.shaped_score === null
          ? `score ${formatNumber(row.score)}`
          : `score ${formatNumber(row.score)}, after scaling, limit and penalties ${formatNumber(row.shaped_score)}`;
    return el(
      'article',
      {},
      promptView(row.turns, '.muted.brief'),
      line,
      el(
        'div.lab-row',
        {},
        scoreText ? el('span.lab-badge', {}, scoreText) : null,
        el('span.lab-badge', {}, plural(row.tokens.length, 'token')),
      ),
    );
  }

  function handleKey(event, rowIndex) {
    const offset = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      select(rowIndex, selected[1], !isPinned);
    }
    if (!offset) return;
    event.preventDefault();
    select(rowIndex, Math.max(0, Math.min(view.rows[rowIndex].tokens.length - 1, selected[1] + offset)), true);
    tokenNode(...selected).focus();
  }

  const tokenNode = (rowIndex, i) => texts.children[rowIndex].querySelector(`[data-token="${i}"]`);

  function colorTokens() {
    const {
      name,
      higher_is_better: higherIsBetter,
      legend: legendValues,
    } = view.color_scales.find((one) => one.column === scale);
    const [positive, negative] = higherIsBetter ? ['--lab-good', '--lab-bad'] : ['--lab-left', '--lab-right'];
    const background = (color) => {
      const base = color > 0 ? positive : negative;
      return `color-mix(in srgb, var(${base}) calc(${Math.abs(color)} * var(--lab-strongest)), transparent)`;
    };
    view.rows.forEach((row, rowIndex) =>
      row.colors[scale].forEach((color, i) => {
        tokenNode(rowIndex, i).style.background = background(color);
      }),
    );
    const legendItem = ([value, color]) => {
      const swatch = el('i.swatch');
      swatch.style.background = background(color);
      return [swatch, formatNumber(value)];
    };
    legend.replaceChildren(
      name,
      ...legendValues.flatMap(legendItem),
      ...(view.rows.some((row) => row.clipped.some(Boolean))
        ? [el('span.token.clipped', {}, 'clipped after the step')]
        : []),
    );
  }

  function select(rowIndex, i, pin = false) {
    const row = view.rows[rowIndex];
    const last = row.tokens.length - 1;
    const index = i < 0 ? last : Math.min(i, last);
    [selected, isPinned] = [[rowIndex, index], pin];
    for (const one of texts.querySelectorAll('.token')) {
      one.classList.remove('seen', 'pinned');
      one.tabIndex = -1;
    }
    texts.querySelectorAll('.tokens').forEach((line) => {
      line.firstChild.tabIndex = 0;
    });
    texts.children[rowIndex].querySelectorAll('.token').forEach((one) => {
      one.tabIndex = -1;
    });
    const one = tokenNode(rowIndex, index);
    one.classList.add('seen');
    one.classList.toggle('pinned', pin);
    one.tabIndex = 0;
    facts.replaceChildren(
      heading(row, index),
      el('div.lines', {}, ...view.equations.flatMap((line) => equation(line, row, index))),
    );
  }

  function heading(row, i) {
    const percentOf = (name) => {
      if (row.columns[name][i] === null) return 'unknown';
      const percent = 100 * Math.exp(row.columns[name][i]);
      return percent < 0.1 ? 'under 0.1 %' : `${formatNumber(percent, percent >= 99.95 ? 4 : 3)} %`;
    };
    return el(
      'div.lab-row',
      {},
      el(
        'strong.lab-text.word',
        {},
        row.tokens[i].trim() ? `“${row.tokens[i].trim()}”` : 'a space, or a part of a character',
      ),
      el('span.muted', {}, `token ${i + 1} of ${row.tokens.length}`),
      el('span.lab-badge', {}, `probability when sampled ${percentOf('old_logprob')}`),
      el('span.lab-badge', {}, `under the reference ${percentOf('ref_logprob')}`),
      el('span.lab-badge.accent', {}, `after the step ${percentOf('logprob')}`),
      row.clipped[i] ? el('span.lab-badge.warn', { title: CLIPPED_TITLE }, 'clipped after the step') : null,
      isPinned ? el('span.muted', {}, 'fixed; click it again to release') : null,
    );
  }

  // The values of tokens have the same number of decimals, so that sums can be checked; constants are shown as they
  // were set.
  const decimals = (value) =>
    value === null
      ? 'not finite'
      : (Math.abs(value) < 100 ? value.toFixed(4) : formatNumber(value, 6))
          .replace(/^-(0\.0+)$/, '$1')
          .replaceAll('-', '−');

  function equation(line, row, i) {
    let text = '';
    line.equation.split(/\{(\w+)\}/).forEach((piece, n) => {
      if (n % 2 === 0) {
        text += piece;
        return;
      }
      const value = piece in row.columns ? decimals(row.columns[piece][i]) : formatNumber(view.constants[piece], 4);
      text += value.startsWith('−') && !/(^|[=(,])\s*$/.test(text) ? `(${value})` : value;
    });
    return [
      el('strong', {}, line.name),
      el('span.sum', {}, text || '–'),
      el('span.muted', {}, el('code', {}, line.symbols), ` ${line.about}`),
    ];
  }

  return {
    node: details,
    show,
    refresh: load,
    open: () => {
      details.open = scrollWhenLoaded = true;
      scrollToTop();
    },
  };
}

// Live curves, one figure per metric. Points are appended, so that zoom is kept; markers and colors are applied again.
//   const chart = makeChart(container, {metric, title, unit, description}, {layout, config}, onStep)
//   chart.points([[step, value], …], reset); chart.mark(events, step); chart.showVerdict(level, message);
//   chart.restyle(); chart.drop()
import { el, palette } from './dom.js';
import { plotlyText } from './format.js';

const MAX_LABELS = 3; // only the newest markers get a label, each on its own line; more would overlap

// Colors and text size of the page's theme, as parts of a plotly layout.
export function chartTheme() {
  const c = palette();
  const size = document.body.classList.contains('projector') ? 16 : 12;
  return {
    font: { color: c.ink, family: c.font, size },
    axis: { gridcolor: c.line, zerolinecolor: c.line, color: c.muted },
    hoverlabel: { bgcolor: c.card, bordercolor: c.line, font: { color: c.ink } },
  };
}

// The same, as layout changes of a chart that is already drawn.
function themeChanges() {
  const { font, axis, hoverlabel } = chartTheme();
  return {
    font,
    'xaxis.gridcolor': axis.gridcolor,
    'yaxis.gridcolor': axis.gridcolor,
    'yaxis.zerolinecolor': axis.zerolinecolor,
    'xaxis.color': axis.color,
    'yaxis.color': axis.color,
    'xaxis.spikecolor': axis.color,
    'hoverlabel.bgcolor': hoverlabel.bgcolor,
    'hoverlabel.bordercolor': hoverlabel.bordercolor,
    'hoverlabel.font.color': hoverlabel.font.color,
  };
}

// On a device without a mouse nothing hovers, and plotly's tools would always cover the curve.
export const chartConfig = (base) => ({
  ...base,
  displayModeBar: matchMedia('(hover: none)').matches ? false : 'hover',
});

// Call `redraw` when the theme changes: its classes are on the body.
export const onThemeChange = (redraw) =>
  new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ['class'] });

// Plotly resizes a chart only with the window, not with its column.
export const widthObserver = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const drawnWidth = target._fullLayout?.width;
    if (target.clientWidth && drawnWidth && Math.abs(drawnWidth - target.clientWidth) > 1) {
      window.Plotly.Plots.resize(target);
    }
  }
});
// The tick distance of an axis of integers: 1 on a short axis, else null (plotly's choice).
export const integerTick = (from, to) => (to - from <= 8 ? 1 : null);

// The changes at one step as a short label. Numbers are never truncated.
const shorten = (labels) => {
  const joined = labels.join(', ');
  return labels.length > 1 && joined.length > 30 ? `${labels.length} changes` : joined;
};

// Vertical lines where settings were changed (between two steps), as layout of plotly.
function changeMarkers(events, last) {
  const colors = palette();
  const shapes = [];
  const annotations = [];
  const labelsByStep = new Map();
  for (const event of events) labelsByStep.set(event.step, [...(labelsByStep.get(event.step) || []), event.text]);
  const markers = [...labelsByStep];
  markers.forEach(([step, labels], i) => {
    const x = step + 0.5;
    shapes.push({
      type: 'line',
      x0: x,
      x1: x,
      yref: 'paper',
      y0: 0,
      y1: 1,
      line: { color: colors.warn, width: 1, dash: 'dot' },
    });
    if (i < markers.length - MAX_LABELS) return;
    const isRightHalf = x > last / 2; // the label stays inside the figure
    annotations.push({
      x,
      yref: 'paper',
      y: 1,
      yanchor: 'bottom',
      xanchor: isRightHalf ? 'right' : 'left',
      xshift: isRightHalf ? 3 : -3,
      yshift: 11 * (i % MAX_LABELS),
      text: plotlyText(shorten([...new Set(labels)]), 40),
      showarrow: false,
      font: { size: document.body.classList.contains('projector') ? 13 : 10, color: colors.warn },
      borderpad: 0,
    });
  });
  return { shapes, annotations, 'margin.t': markers.length ? 6 + 11 * Math.min(MAX_LABELS, markers.length) : 6 };
}

export function makeChart(container, curve, options, onStep) {
  const P = window.Plotly;
  // The line at the step of the samples is a separate element, so that moving it does not redraw the chart.
  const cursor = el('i.cursor', { hidden: true });
  const plot = el('div.plot', { role: 'img', 'aria-label': `${curve.title} over the steps` });
  const verdict = el('figcaption.verdict', {}, ' ');
  const figure = el(
    'figure.lab-card.chart',
    { 'data-metric': curve.metric, hidden: true },
    el(
      'div.lab-row',
      {},
      el('h3', { title: curve.description || curve.metric }, curve.title),
      el('span.muted', {}, curve.unit || ''),
    ),
    el('div.stage', {}, plot, cursor),
    verdict,
  );
  container.append(figure);
  let isDrawn = false;
  let pointCount = 0;
  let changes = [];
  let cursorStep = null;
  let markersKey = '';
  let lastStep = 0;
  let minY = Infinity;
  let maxY = -Infinity;

  // The x axis ends with the curve or the last marker, even if labels of markers need more room.
  const markersEnd = () => Math.max(0, ...changes.map(({ step }) => step + 0.6));

  // The y axis starts at 0 unless a value is negative.
  function fitAxes(x, y, reset) {
    lastStep = x.reduce((a, b) => Math.max(a, b), reset ? 0 : lastStep);
    const finite = y.filter(Number.isFinite);
    minY = Math.min(reset ? Infinity : minY, ...finite);
    maxY = Math.max(reset ? -Infinity : maxY, ...finite);
    plot.layout.xaxis.autorangeoptions = { minallowed: 0, maxallowed: Math.max(1, 1.04 * lastStep, markersEnd()) };
    plot.layout.yaxis.rangemode = minY < 0 ? 'normal' : 'nonnegative';
    // For a constant curve, plotly's own range would be 1 above and below.
    plot.layout.yaxis.autorangeoptions =
      minY === maxY
        ? {
            minallowed: Math.min(0, 1.25 * minY),
            maxallowed: Math.max(minY < 0 ? -0.25 * minY : 1.25 * minY, minY ? 0 : 1),
          }
        : {};
    const range = plot.layout.xaxis.autorange === false ? plot.layout.xaxis.range : [0, lastStep];
    plot.layout.xaxis.dtick = integerTick(...range);
  }

  function updateTicks() {
    const dtick = integerTick(...plot._fullLayout.xaxis.range);
    if ((plot.layout.xaxis.dtick ?? null) !== dtick) P.relayout(plot, { 'xaxis.dtick': dtick });
  }

  // Redraw the markers if they changed, or if a longer axis leaves room on their other side. Returns whether it redrew.
  function drawMarkers() {
    const layout = changeMarkers(changes, lastStep);
    if (markersEnd() > 1.04 * lastStep) layout['xaxis.autorangeoptions.maxallowed'] = markersEnd();
    const layoutKey = JSON.stringify(layout);
    const changed = layoutKey !== markersKey;
    markersKey = layoutKey;
    if (changed) P.relayout(plot, layout);
    return changed;
  }

  function drawFirst(x, y) {
    figure.hidden = false;
    isDrawn = true;
    const layout = structuredClone(options.layout);
    const colors = palette();
    P.newPlot(
      plot,
      [
        {
          x,
          y,
          mode: x.length > 300 ? 'lines' : 'lines+markers',
          connectgaps: false,
          line: { color: colors.accent, width: 2 },
          marker: { size: 4, color: colors.accent },
          hovertemplate: '%{y:.4g}<extra></extra>',
        },
      ],
      layout,
      chartConfig(options.config),
    );
    fitAxes(x, y, true);
    P.relayout(plot, themeChanges());
    drawMarkers();
    plot.on('plotly_relayout', updateTicks);
    plot.on('plotly_click', (event) => onStep(event.points[0].x));
    plot.on('plotly_afterplot', placeCursor);
    widthObserver.observe(plot);
  }

  function placeCursor() {
    const { xaxis, yaxis } = plot._fullLayout || {};
    const x = xaxis && cursorStep !== null ? xaxis.l2p(cursorStep) : -1;
    cursor.hidden = !(x >= 0 && x <= xaxis._length);
    if (cursor.hidden) return;
    cursor.style.left = `${xaxis._offset + x}px`;
    cursor.style.top = `${yaxis._offset}px`;
    cursor.style.height = `${yaxis._length}px`;
  }

  return {
    figure,
    plot,
    get pointCount() {
      return pointCount;
    },
    points(points, reset) {
      if (!points || (!points.length && !reset)) return;
      const x = points.map((p) => p[0]);
      const y = points.map((p) => p[1]);
      pointCount = reset ? x.length : pointCount + x.length;
      if (!isDrawn) {
        if (x.length) drawFirst(x, y);
        return;
      }
      fitAxes(x, y, reset);
      if (reset) P.restyle(plot, { x: [x], y: [y], mode: x.length > 300 ? 'lines' : 'lines+markers' }, [0]);
      else P.extendTraces(plot, { x: [x], y: [y] }, [0]);
      drawMarkers();
    },
    mark(events, step) {
      changes = events;
      cursorStep = step;
      if (isDrawn && !drawMarkers()) placeCursor();
    },
    showVerdict(level, message) {
      if (verdict.textContent !== message) verdict.textContent = message;
      verdict.dataset.level = level;
    },
    restyle() {
      if (!isDrawn) return;
      P.relayout(plot, themeChanges());
      drawMarkers();
      P.restyle(plot, { 'line.color': palette().accent, 'marker.color': palette().accent });
    },
    drop() {
      if (isDrawn) P.purge(plot);
      figure.remove();
    },
  };
}

// The charts of a screen, by name. figure(palette) -> {traces, layout}; drawing one again keeps its zoom.
import { countAxis, drawChart, onThemeChange, sizeObserver } from '../shared/charts.js';
import { html, palette } from '../shared/dom.js';

const LAYOUT = {
  height: 200,
  barmode: 'overlay',
  hovermode: 'closest',
  uirevision: 'keep',
  margin: { t: 8, r: 10, b: 40, l: 60 },
};

export class ChartSet {
  constructor({ layout, config }) {
    this.base = { layout, config };
    this.charts = new Map(); // name -> {node, figure}
    onThemeChange(() => {
      for (const [name, { node }] of this.charts) if (node.isConnected) this.draw(name);
    });
  }

  // The element of a new chart, which is drawn once it is on the page.
  create(name, label, figure) {
    const node = html`<div class="plot" role="img" aria-label=${label}></div>`;
    this.charts.set(name, { node, figure });
    sizeObserver.observe(node);
    requestAnimationFrame(() => {
      if (node.isConnected) this.draw(name);
    });
    return node;
  }

  draw(name) {
    const { node, figure } = this.charts.get(name);
    const { traces, layout } = figure(palette());
    const own = { ...LAYOUT, ...layout, xaxis: { rangemode: 'normal', ...layout.xaxis } };
    node.style.height = `${own.height}px`; // otherwise plotly's height would not grow again after a resize
    drawChart(node, traces, this.base, own);
  }

  removeUnused() {
    for (const [name, { node }] of this.charts) {
      if (node.isConnected) continue;
      window['Plotly'].purge(node);
      sizeObserver.unobserve(node);
      this.charts.delete(name);
    }
  }
}

// A loss by update, as a figure.
export const lossFigure = (losses, xTitle, height) => (colors) => ({
  traces: [
    {
      x: losses().map((_, i) => i + 1),
      y: losses(),
      mode: 'lines',
      line: { color: colors.accent, width: 2 },
      hovertemplate: '%{y:.3f}<extra></extra>',
    },
  ],
  layout: {
    xTitle,
    yTitle: 'loss',
    height,
    xaxis: countAxis(losses().length),
    yaxis: { rangemode: 'tozero' },
  },
});

// What all charts share: colours, size, ticks.
import { palette } from './dom.js';
import { plotlyText } from './format.js';

// plotly.js is large, so it is loaded with the first charts. Returns a promise that it has been.
let loading = /** @type {Promise<void> | null} */ (null);
export function loadPlotly(address) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement('script');
    const fail = () => {
      loading = null; // it is tried again
      reject(new Error('The charts could not be loaded.'));
    };
    Object.assign(script, { src: address, onload: () => resolve(), onerror: fail });
    document.head.append(script);
  });
  return loading;
}

// Colors of the page's theme, and the text size at an element, as parts of a plotly layout.
export function chartTheme(node) {
  const c = palette();
  const size = Math.round(0.75 * (parseFloat(getComputedStyle(node).fontSize) || 16));
  return {
    font: { color: c.ink, family: c.font, size },
    axis: { gridcolor: c.line, zerolinecolor: c.line, color: c.muted },
    hoverlabel: { bgcolor: c.card, bordercolor: c.line, font: { color: c.ink } },
  };
}

// On a device without a mouse nothing hovers, and plotly's tools would always cover the curve.
export const chartConfig = (base) => ({
  ...base,
  displayModeBar: matchMedia('(hover: none)').matches ? false : 'hover',
});

// Draw a chart, or draw it again. base: plotly's layout and config; own: titles of the axes, and changes of the layout.
export function drawChart(node, traces, base, { xTitle = '', yTitle = '', xaxis = {}, yaxis = {}, ...own }) {
  const layout = structuredClone(base.layout);
  const { font, axis, hoverlabel } = chartTheme(node);
  const title = (text) => ({ text: plotlyText(text), standoff: 6 });
  Object.assign(layout, own, { font, hoverlabel });
  layout.xaxis = { ...layout.xaxis, ...axis, title: title(xTitle), ...xaxis };
  layout.yaxis = { ...layout.yaxis, ...axis, title: title(yTitle), ...yaxis };
  window['Plotly'].react(node, traces, layout, chartConfig(base.config));
}

// Call `redraw` when the theme changes: its classes are on the body. Returns the observer.
export function onThemeChange(redraw) {
  const observer = new MutationObserver(redraw);
  observer.observe(document.body, { attributes: true, attributeFilter: ['class'] });
  return observer;
}

// Plotly resizes a chart only with the window, not with its column or with the caption below it.
export const sizeObserver = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const drawn = target['_fullLayout'];
    const isOther = (size, now) => now && Math.abs(size - now) > 1;
    if (drawn && (isOther(drawn.width, target.clientWidth) || isOther(drawn.height, target.clientHeight))) {
      window['Plotly'].Plots.resize(target);
    }
  }
});
// The tick distance of an axis of integers: 1 on a short axis, else null (plotly's choice).
export const integerTick = (from, to) => (to - from <= 8 ? 1 : null);
// An axis of counts, such as steps or labels. It begins at 0, so that few points that are close together look close.
export const countAxis = (last) => ({ rangemode: 'tozero', dtick: integerTick(0, last) });

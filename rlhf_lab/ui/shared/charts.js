// @ts-check
// What all charts share: colours, size, ticks.
import { palette } from './dom.js';

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
    const drawnWidth = target['_fullLayout']?.width;
    if (target.clientWidth && drawnWidth && Math.abs(drawnWidth - target.clientWidth) > 1) {
      window['Plotly'].Plots.resize(target);
    }
  }
});
// The tick distance of an axis of integers: 1 on a short axis, else null (plotly's choice).
export const integerTick = (from, to) => (to - from <= 8 ? 1 : null);

// Live curves, one metric a figure: points are appended, so that zoom survives; marks and colours are re-applied.
//   const chart = LabCharts.make(into, {metric, title, unit, about}, {layout, config}, onStep)
//   chart.points([[step, value], …], reset); chart.mark(events, step); chart.say(level, words); chart.restyle(); chart.drop()
window.LabCharts = window.LabCharts || (() => {
  const { el } = Lab;
  const LABELLED = 6;  // the newest marks carry their words; older ones would cover each other

  // Plotly reads a little markup in texts.
  const plain = (words) => String(words).slice(0, 40).replace(/&/g, '&amp;').replace(/</g, '&lt;');

  function styled() {
    const c = Lab.colours(), body = getComputedStyle(document.body);
    const size = document.body.classList.contains('projector') ? 16 : 12;
    return { font: { color: c.ink, family: c.font, size }, 'xaxis.gridcolor': c.line, 'yaxis.gridcolor': c.line, 'yaxis.zerolinecolor': c.line,
      'xaxis.color': c.muted, 'yaxis.color': c.muted, 'xaxis.spikecolor': c.muted,
      'hoverlabel.bgcolor': body.getPropertyValue('--lab-card').trim(), 'hoverlabel.bordercolor': c.line, 'hoverlabel.font.color': c.ink };
  }

  // Thin lines where something was changed (between two steps), a thicker one at the step whose samples are shown.
  function lines(events, step) {
    const c = Lab.colours(), shapes = [], annotations = [], named = new Map();
    for (const event of events) named.set(event.step, [...(named.get(event.step) || []), event.words]);
    const all = [...named];
    all.forEach(([at, words], i) => {
      const x = at + 0.5;
      shapes.push({ type: 'line', x0: x, x1: x, yref: 'paper', y0: 0, y1: 1, line: { color: c.warn, width: 1, dash: 'dot' } });
      if (i < all.length - LABELLED) return;
      annotations.push({ x, yref: 'paper', y: 1, yanchor: 'bottom', xanchor: 'left', xshift: -3, yshift: 11 * (i % 2), text: plain([...new Set(words)].join(', ')),
        showarrow: false, font: { size: 10, color: c.warn }, borderpad: 0 });
    });
    if (step !== null && step !== undefined) {
      shapes.push({ type: 'line', x0: step, x1: step, yref: 'paper', y0: 0, y1: 1, line: { color: c.accent, width: 2 }, opacity: 0.55 });
    }
    return { shapes, annotations, 'margin.t': all.length ? 28 : 6 };
  }

  function make(into, curve, base, onStep) {
    const P = window.Plotly;
    const plot = el('div.plot', { role: 'img', 'aria-label': `${curve.title} over the steps` });
    const verdict = el('figcaption.verdict', {}, ' ');
    const figure = el('figure.lab-card.chart', { 'data-metric': curve.metric, hidden: true },
      el('div.lab-row', {}, el('h3', { title: curve.about || curve.metric }, curve.title), el('span.muted', {}, curve.unit || '')), plot, verdict);
    into.append(figure);
    let drawn = false, held = 0, marked = { events: [], step: null }, key = '';

    function first(x, y) {
      figure.hidden = false;
      drawn = true;
      const layout = structuredClone(base.layout), colours = Lab.colours();
      P.newPlot(plot, [{ x, y, mode: x.length > 300 ? 'lines' : 'lines+markers', connectgaps: false, line: { color: colours.accent, width: 2 },
        marker: { size: 4, color: colours.accent }, hovertemplate: '%{y:.4g}<extra></extra>' }], layout, base.config);
      P.relayout(plot, { ...styled(), ...lines(marked.events, marked.step) });
      plot.on('plotly_click', (event) => onStep(event.points[0].x));
    }

    return {
      figure,
      plot,
      get held() { return held; },
      points(points, reset) {
        if (!points || (!points.length && !reset)) return;
        const x = points.map((p) => p[0]), y = points.map((p) => p[1]);
        held = reset ? x.length : held + x.length;
        if (!drawn) { if (x.length) first(x, y); return; }
        if (reset) P.restyle(plot, { x: [x], y: [y], mode: x.length > 300 ? 'lines' : 'lines+markers' }, [0]);
        else P.extendTraces(plot, { x: [x], y: [y] }, [0]);
      },
      mark(events, step) {
        marked = { events, step };
        const now = JSON.stringify(marked);
        if (drawn && now !== key) { key = now; P.relayout(plot, lines(events, step)); }
      },
      say(level, words) {
        if (verdict.textContent !== words) verdict.textContent = words;
        verdict.dataset.level = level;
      },
      restyle() {
        if (!drawn) return;
        P.relayout(plot, { ...styled(), ...lines(marked.events, marked.step) });
        P.restyle(plot, { 'line.color': Lab.colours().accent, 'marker.color': Lab.colours().accent });
      },
      drop() { if (drawn) P.purge(plot); figure.remove(); },
    };
  }

  return { make };
})();

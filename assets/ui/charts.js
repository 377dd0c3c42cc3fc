// Live curves, one metric a figure: points are appended, so that zoom survives; marks and colours are re-applied.
//   const chart = LabCharts.make(into, {metric, title, unit, about}, {layout, config}, onStep)
//   chart.points([[step, value], …], reset); chart.mark(events, step); chart.say(level, words); chart.restyle(); chart.drop()
window.LabCharts = window.LabCharts || (() => {
  const { el } = Lab;
  const LABELLED = 3;  // the newest marks carry their words, in a line of its own each; older ones would cover each other

  // Plotly reads a little markup in texts.
  const plain = (words) => String(words).slice(0, 40).replace(/&/g, '&amp;').replace(/</g, '&lt;');

  function styled() {
    const c = Lab.colours(), body = getComputedStyle(document.body);
    const size = document.body.classList.contains('projector') ? 16 : 12;
    return { font: { color: c.ink, family: c.font, size }, 'xaxis.gridcolor': c.line, 'yaxis.gridcolor': c.line, 'yaxis.zerolinecolor': c.line,
      'xaxis.color': c.muted, 'yaxis.color': c.muted, 'xaxis.spikecolor': c.muted,
      'hoverlabel.bgcolor': body.getPropertyValue('--lab-card').trim(), 'hoverlabel.bordercolor': c.line, 'hoverlabel.font.color': c.ink };
  }

  // The distance of ticks on an axis that counts: a few steps have no halves between them. null: plotly finds its own.
  const whole = (from, to) => (to - from <= 8 ? 1 : null);

  // What was changed at one place, short enough to stand over a curve: numbers are never cut.
  const brief = (words) => { const all = words.join(', '); return words.length > 1 && all.length > 30 ? `${words.length} changes` : all; };

  // Thin lines where something was changed (between two steps).
  function lines(events, last) {
    const c = Lab.colours(), shapes = [], annotations = [], named = new Map();
    for (const event of events) named.set(event.step, [...(named.get(event.step) || []), event.words]);
    const all = [...named];
    all.forEach(([at, words], i) => {
      const x = at + 0.5;
      shapes.push({ type: 'line', x0: x, x1: x, yref: 'paper', y0: 0, y1: 1, line: { color: c.warn, width: 1, dash: 'dot' } });
      if (i < all.length - LABELLED) return;
      const late = x > last / 2;  // the words stay inside the figure
      annotations.push({ x, yref: 'paper', y: 1, yanchor: 'bottom', xanchor: late ? 'right' : 'left', xshift: late ? 3 : -3, yshift: 11 * (i % LABELLED), text: plain(brief([...new Set(words)])),
        showarrow: false, font: { size: document.body.classList.contains('projector') ? 13 : 10, color: c.warn }, borderpad: 0 });
    });
    return { shapes, annotations, 'margin.t': all.length ? 6 + 11 * Math.min(LABELLED, all.length) : 6 };
  }

  function make(into, curve, base, onStep) {
    const P = window.Plotly;
    // The line at the step whose samples are shown is an element of its own: dragging it redraws no chart.
    const cursor = el('i.cursor', { hidden: true });
    const plot = el('div.plot', { role: 'img', 'aria-label': `${curve.title} over the steps` });
    const verdict = el('figcaption.verdict', {}, ' ');
    const figure = el('figure.lab-card.chart', { 'data-metric': curve.metric, hidden: true },
      el('div.lab-row', {}, el('h3', { title: curve.about || curve.metric }, curve.title), el('span.muted', {}, curve.unit || '')), el('div.stage', {}, plot, cursor), verdict);
    into.append(figure);
    let drawn = false, held = 0, marked = [], at = null, key = '', last = 0, low = Infinity, high = -Infinity;

    // The axis ends where the curve ends, however long the words of a mark are; below 0 there is nothing while no value is.
    function fit(x, y, reset) {
      last = x.reduce((a, b) => Math.max(a, b), reset ? 0 : last);
      const known = y.filter(Number.isFinite);
      low = Math.min(reset ? Infinity : low, ...known); high = Math.max(reset ? -Infinity : high, ...known);
      plot.layout.xaxis.autorangeoptions = { minallowed: 0, maxallowed: Math.max(1, 1.04 * last) };
      plot.layout.yaxis.rangemode = low < 0 ? 'normal' : 'nonnegative';
      // Around one value alone plotly would draw 1 up and down.
      plot.layout.yaxis.autorangeoptions = low === high ? { minallowed: Math.min(0, 1.25 * low), maxallowed: Math.max(low < 0 ? -0.25 * low : 1.25 * low, low ? 0 : 1) } : {};
      const range = plot.layout.xaxis.autorange === false ? plot.layout.xaxis.range : [0, last];
      plot.layout.xaxis.dtick = whole(...range);
    }

    function zoomed() {
      const dtick = whole(...plot._fullLayout.xaxis.range);
      if ((plot.layout.xaxis.dtick ?? null) !== dtick) P.relayout(plot, { 'xaxis.dtick': dtick });
    }

    // Marks are drawn anew where there are others, or where an axis that has grown leaves room on their other side.
    function remark() {
      const wanted = lines(marked, last), now = JSON.stringify(wanted), other = now !== key;
      key = now;
      if (other) P.relayout(plot, wanted);
      return other;
    }

    function first(x, y) {
      figure.hidden = false;
      drawn = true;
      const layout = structuredClone(base.layout), colours = Lab.colours();
      // Without a mouse there is no hovering: the tools would always cover the curve.
      const config = { ...base.config, displayModeBar: matchMedia('(hover: none)').matches ? false : 'hover' };
      P.newPlot(plot, [{ x, y, mode: x.length > 300 ? 'lines' : 'lines+markers', connectgaps: false, line: { color: colours.accent, width: 2 },
        marker: { size: 4, color: colours.accent }, hovertemplate: '%{y:.4g}<extra></extra>' }], layout, config);
      fit(x, y, true);
      P.relayout(plot, styled());
      remark();
      plot.on('plotly_relayout', zoomed);
      plot.on('plotly_click', (event) => onStep(event.points[0].x));
      plot.on('plotly_afterplot', place);
    }

    function place() {
      const { xaxis, yaxis } = plot._fullLayout || {};
      const x = xaxis && at !== null ? xaxis.l2p(at) : -1;
      cursor.hidden = !(x >= 0 && x <= xaxis._length);
      if (cursor.hidden) return;
      cursor.style.left = `${xaxis._offset + x}px`;
      cursor.style.top = `${yaxis._offset}px`;
      cursor.style.height = `${yaxis._length}px`;
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
        fit(x, y, reset);
        if (reset) P.restyle(plot, { x: [x], y: [y], mode: x.length > 300 ? 'lines' : 'lines+markers' }, [0]);
        else P.extendTraces(plot, { x: [x], y: [y] }, [0]);
        remark();
      },
      mark(events, step) {
        marked = events;
        at = step;
        if (drawn && !remark()) place();
      },
      say(level, words) {
        if (verdict.textContent !== words) verdict.textContent = words;
        verdict.dataset.level = level;
      },
      restyle() {
        if (!drawn) return;
        P.relayout(plot, styled());
        remark();
        P.restyle(plot, { 'line.color': Lab.colours().accent, 'marker.color': Lab.colours().accent });
      },
      drop() { if (drawn) P.purge(plot); figure.remove(); },
    };
  }

  return { make, whole };
})();

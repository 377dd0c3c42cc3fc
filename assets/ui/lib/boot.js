// Before Gradio runs. In another site's frame a browser may refuse storage, which Gradio uses unchecked: replace it by memory.
for (const name of ['localStorage', 'sessionStorage']) {
  try { window[name].length; } catch (error) {
    const items = new Map();
    Object.defineProperty(window, name, { value: {
      getItem: (key) => items.get(String(key)) ?? null, setItem: (key, value) => { items.set(String(key), String(value)); },
      removeItem: (key) => { items.delete(String(key)); }, clear: () => items.clear(), key: (i) => [...items.keys()][i] ?? null,
      get length() { return items.size; } } });
  }
}

// The clock of Gradio's progress display draws at 60 frames a second, for ever once the page's own "Loading" is gone: 5 % of a core.
// Once a second is enough, for the lab shows no such clock.
(() => {
  const nextFrame = window.requestAnimationFrame.bind(window);
  const isProgressClock = (callback) => callback.length === 0 && /performance\.now\(\).*\/\s*1(e3|000)\b/.test(Function.prototype.toString.call(callback));
  window.requestAnimationFrame = (callback) => (isProgressClock(callback) ? setTimeout(callback, 1000) : nextFrame(callback));
})();

// Shows the pair to label until Gradio has rendered the page, so that reading can begin. Its buttons are disabled.
(() => {
  const { el } = Lab;
  if (Lab.currentTab() !== 'label') return;
  const overlay = el('div.lab.lab-first', { 'aria-busy': 'true' });
  const dark = Lab.getItem('dark');
  overlay.classList.toggle('dark', dark ? dark === 'on' : matchMedia('(prefers-color-scheme: dark)').matches);
  overlay.classList.toggle('projector', Lab.getItem('projector') === 'on');

  // Removed once the screen Label has rendered, at the latest after 30 s.
  const isRendered = () => document.querySelector('.lab-label[data-pair]');
  const observer = new MutationObserver(() => { if (isRendered()) remove(); });
  function remove() { observer.disconnect(); overlay.remove(); }
  observer.observe(document, { subtree: true, attributes: true, attributeFilter: ['data-pair'] });
  setTimeout(remove, 30000);

  // wide, narrow: what the text is called side by side, and stacked on a phone.
  function side(name, text, wide, narrow) {
    const label = el('span', {}, el('span.beside', {}, wide), el('span.above', {}, narrow), ' is better');
    return el(`article.lab-card.side.${name}`, { 'aria-label': `${wide} text` }, el('p.lab-text.lab-scroll', { dir: 'auto' }, text),
      el('button.lab-button', { type: 'button', disabled: true }, label));
  }

  function show({ turns, left, right, guideline }) {
    overlay.replaceChildren(
      el('div.top', {}, el('span.name', {}, 'RLHF Lab'), el('span.muted', {}, 'getting ready …')),
      el('div.screen', {},
        guideline ? el('p.guideline.lab-scroll.lab-text', { dir: 'auto' }, guideline) : null,
        Lab.promptSection(turns),
        el('h2', {}, 'Which text is better?'),
        el('div.sides', {}, side('left', left, 'Left', 'First'), side('right', right, 'Right', 'Second')),
        el('div.others', {}, ['Equally good', 'Both bad', 'Skip', 'Undo', 'Redo'].map((label) => el('button.lab-button', { type: 'button', disabled: true }, label)))));
    if (isRendered()) return;
    document.body.append(overlay);
    Lab.fitTexts(overlay, overlay.querySelector('.others'));
  }

  fetch('first', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ annotator: Lab.annotator() }) })
    .then(async (reply) => { if (reply.status === 200) show(await reply.json()); }, () => {});
})();

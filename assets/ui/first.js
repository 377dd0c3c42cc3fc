// Until Gradio has drawn the page: the pair that is to be labelled, so that reading can begin. Its buttons wait.
(() => {
  const { el } = Lab;
  if (Lab.screen() !== 'label') return;
  const place = el('div.lab.lab-first', { 'aria-busy': 'true' });
  const dark = Lab.kept('dark');
  place.classList.toggle('dark', dark ? dark === 'on' : matchMedia('(prefers-color-scheme: dark)').matches);
  place.classList.toggle('projector', Lab.kept('projector') === 'on');

  // The screen has drawn itself, or will not any more.
  const drawn = () => document.querySelector('.lab-label[data-pair]');
  const watcher = new MutationObserver(() => { if (drawn()) end(); });
  function end() { watcher.disconnect(); place.remove(); }
  watcher.observe(document, { subtree: true, attributes: true, attributeFilter: ['data-pair'] });
  setTimeout(end, 30000);

  function side(name, text, beside, above) {
    const words = el('span', {}, el('span.beside', {}, beside), el('span.above', {}, above), ' is better');
    return el(`article.lab-card.side.${name}`, { 'aria-label': `${beside} text` }, el('p.lab-text.lab-scroll', { dir: 'auto' }, text),
      el('button.lab-button', { type: 'button', disabled: true }, words));
  }

  function draw({ prompt, left, right, guideline }) {
    place.replaceChildren(
      el('div.top', {}, el('span.name', {}, 'RLHF Lab'), el('span.muted', {}, 'getting ready …')),
      el('div.screen', {},
        guideline ? el('p.guideline.lab-scroll.lab-text', { dir: 'auto' }, guideline) : null,
        el('section.prompt.lab-scroll', { 'aria-label': 'prompt' }, el('span.muted', {}, 'Prompt'), el('p.lab-text', { dir: 'auto' }, prompt)),
        el('h2', {}, 'Which continuation is better?'),
        el('div.sides', {}, side('left', left, 'Left', 'First'), side('right', right, 'Right', 'Second'))));
    if (!drawn()) document.body.append(place);
  }

  fetch('first', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ annotator: Lab.annotator() }) })
    .then(async (reply) => { if (reply.status === 200) draw(await reply.json()); }, () => {});
})();

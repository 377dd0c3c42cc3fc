// Shows the pair to label until Gradio has rendered the page, so that reading can begin. Its buttons are disabled.
import { el, fitTextHeights, promptSection, withCut } from '../shared/dom.js';
import { annotatorName, currentTab, getItem } from '../shared/session.js';

// wide, narrow: names of the text when both are side by side, and when they are stacked on a phone.
function side(name, text, cut, wide, narrow) {
  const label = el('span', {}, el('span.beside', {}, wide), el('span.above', {}, narrow), ' is better');
  return el(
    `article.lab-card.side.${name}`,
    { 'aria-label': `${wide} text` },
    withCut(el('p.lab-text.lab-scroll', { dir: 'auto' }, text), cut[name]),
    el('button.lab-button', { type: 'button', disabled: true }, label),
  );
}

function newOverlay() {
  const overlay = el('div.lab.lab-first', { 'aria-busy': 'true' });
  const dark = getItem('dark');
  overlay.classList.toggle('dark', dark ? dark === 'on' : matchMedia('(prefers-color-scheme: dark)').matches);
  overlay.classList.toggle('projector', getItem('projector') === 'on');
  return overlay;
}

const isRendered = () => document.querySelector('.lab-label[data-pair]');

// Removed once the screen Label has rendered, at the latest after 30 s.
function removeWhenRendered(overlay) {
  const observer = new MutationObserver(() => {
    if (isRendered()) remove();
  });
  function remove() {
    observer.disconnect();
    overlay.remove();
  }
  observer.observe(document, { subtree: true, attributes: true, attributeFilter: ['data-pair'] });
  setTimeout(remove, 30000);
}

function show({ turns, left, right, cut, guideline }) {
  if (isRendered()) return;
  const overlay = newOverlay();
  overlay.replaceChildren(
    el('div.top', {}, el('span.name', {}, 'RLHF Lab'), el('span.muted', {}, 'getting ready …')),
    el(
      'div.screen',
      {},
      guideline ? el('p.guideline.lab-scroll.lab-text', { dir: 'auto' }, guideline) : null,
      promptSection(turns),
      el('h2', {}, 'Which text is better?'),
      el('div.sides', {}, side('left', left, cut, 'Left', 'First'), side('right', right, cut, 'Right', 'Second')),
      el(
        'div.others',
        {},
        ['Equally good', 'Both bad', 'Skip', 'Undo', 'Redo'].map((label) =>
          el('button.lab-button', { type: 'button', disabled: true }, label),
        ),
      ),
    ),
  );
  document.body.append(overlay);
  removeWhenRendered(overlay);
  fitTextHeights(overlay, overlay.querySelector('.others'));
}

async function requestFirstPair() {
  const reply = await fetch('first', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ annotator: annotatorName() }),
  });
  if (reply.status === 200) show(await reply.json());
}

if (currentTab() === 'label') requestFirstPair().catch(() => {}); // the screen itself shows errors

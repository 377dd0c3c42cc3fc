// Shows the pair to label until Gradio has rendered the page, so that reading can begin. Its buttons are disabled.
import { introduction, isFirstVisit, isGuideHidden } from '../header/guide.js';
import { fitTextHeights, promptSection, textView, withCut } from '../shared/dom.js';
import { html } from '../shared/html.js';
import { annotatorName, currentTab, getItem } from '../shared/session.js';

function side(name, text, cut, label) {
  return html`<article class="lab-card side ${name}" aria-label="${label} text">
    ${withCut(textView(text, 'lab-scroll'), cut[name])}
    <button type="button" class="lab-button" disabled>${label} is better</button>
  </article>`;
}

const isRendered = () => document.querySelector('.lab-label[data-pair]');

// Removed once the screen Label has rendered, at the latest after 30 s.
function removeWhenRendered(overlay) {
  const observer = new MutationObserver(() => isRendered() && remove());
  function remove() {
    observer.disconnect();
    overlay.remove();
  }
  observer.observe(document, { subtree: true, attributes: true, attributeFilter: ['data-pair'] });
  setTimeout(remove, 30000);
}

function show({ turns, left, right, cut, guideline }) {
  if (isRendered()) return;
  const dark = getItem('dark');
  const buttons = ['Equally good', 'Both bad', 'Skip', 'Undo', 'Redo'];
  const overlay = html`<div class="lab lab-first" aria-busy="true">
    <div class="top"><span class="name">RLHF Lab</span><span class="muted">getting ready …</span></div>
    ${!isGuideHidden() && html`<div class="guide muted">${isFirstVisit && introduction()}</div>`}
    <div class="screen">
      ${guideline ? html`<p class="guideline lab-scroll lab-text" dir="auto">${guideline}</p>` : null}
      ${promptSection(turns)}
      <h2>Which text is better?</h2>
      <div class="sides">
        ${side('left', left, cut, 'First')}${side('right', right, cut, 'Second')}
      </div>
      <div class="others">
        ${buttons.map((label) => html`<button type="button" class="lab-button" disabled>${label}</button>`)}
      </div>
    </div>
  </div>`;
  overlay.classList.toggle('dark', dark ? dark === 'on' : matchMedia('(prefers-color-scheme: dark)').matches);
  overlay.classList.toggle('projector', getItem('projector') === 'on');
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

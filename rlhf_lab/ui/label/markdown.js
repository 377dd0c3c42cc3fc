// Renders a small, safe subset of Markdown: paragraphs, headings, lists, **bold**, *italic*, `code`, fences. No links,
// images or HTML: all text is inserted through text nodes.
import { html } from '../shared/html.js';

const INLINE = /(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/;

function inline(line) {
  return line
    .split(INLINE)
    .filter(Boolean)
    .map((piece) => {
      if (!INLINE.test(piece) || piece.length <= 2) return piece;
      if (piece.startsWith('`')) return html`<code>${piece.slice(1, -1)}</code>`;
      if (piece.startsWith('**')) return html`<strong>${piece.slice(2, -2)}</strong>`;
      return html`<em>${piece.slice(1, -1)}</em>`;
    });
}

export function renderMarkdown(text) {
  const root = html`<div class="lab-text lab-markdown" dir="auto" tabindex="0"></div>`;
  let block = null;
  let fence = null;
  const begin = (tag) => {
    if (block?.localName !== tag) root.append((block = document.createElement(tag)));
    return block;
  };
  for (const line of text.split('\n')) {
    if (/^\s*```/.test(line)) {
      fence = fence ? null : document.createElement('code');
      if (fence) root.append(html`<pre>${fence}</pre>`);
      block = null;
      continue;
    }
    if (fence) {
      fence.append(`${line}\n`);
      continue;
    }
    const heading = line.match(/^#{1,6}\s+(.*)/);
    const bullet = line.match(/^\s*[-*+]\s+(.*)/);
    const number = line.match(/^\s*\d+[.)]\s+(.*)/);
    if (heading) root.append(html`<p><strong>${inline(heading[1])}</strong></p>`);
    if (heading || !line.trim()) block = null;
    else if (bullet || number) begin(bullet ? 'ul' : 'ol').append(html`<li>${inline((bullet || number)[1])}</li>`);
    else begin('p').append(...(block?.childNodes.length ? ['\n'] : []), ...inline(line));
  }
  return root;
}

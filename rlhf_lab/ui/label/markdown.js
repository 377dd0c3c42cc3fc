// Renders a small, safe subset of Markdown: paragraphs, headings, lists, **bold**, *italic*, `code`, fences. No links,
// images or HTML: all text is inserted through text nodes.
import { el } from '../shared/dom.js';

export function renderMarkdown(text) {
  const INLINE = /(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/;
  const inline = (line) =>
    line
      .split(INLINE)
      .filter(Boolean)
      .map((piece) => {
        if (INLINE.test(piece) && piece.length > 2) {
          if (piece.startsWith('`')) return el('code', {}, piece.slice(1, -1));
          if (piece.startsWith('**')) return el('strong', {}, piece.slice(2, -2));
          return el('em', {}, piece.slice(1, -1));
        }
        return piece;
      });
  const root = el('div.lab-text.lab-markdown', { dir: 'auto', tabindex: '0' });
  let block = null;
  let fence = null;
  const begin = (tag) => {
    if (!block || block.localName !== tag) {
      block = el(tag);
      root.append(block);
    }
    return block;
  };
  for (const line of text.split('\n')) {
    if (/^\s*```/.test(line)) {
      if (fence) fence = null;
      else {
        fence = el('code');
        root.append(el('pre', {}, fence));
      }
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
    if (!line.trim()) block = null;
    else if (heading) {
      root.append(el('p', {}, el('strong', {}, inline(heading[1]))));
      block = null;
    } else if (bullet || number) begin(bullet ? 'ul' : 'ol').append(el('li', {}, inline((bullet || number)[1])));
    else {
      const at = begin('p');
      if (at.childNodes.length) at.append('\n');
      at.append(...inline(line));
    }
  }
  return root;
}

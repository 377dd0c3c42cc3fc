// Elements from templates: html`<button class="lab-button" onclick=${send}>${label}</button>`.
//
// A value between tags becomes text, never markup; an element or a list of values is inserted; null and false leave it
// out. In an attribute a function becomes a listener, true an attribute without a value, and null or false leave the
// attribute out. White space around a line break is dropped.

const templates = new WeakMap(); // the strings of a template -> {content, holes: [[path of a node, attribute or null]]}
const MARK = /lab:(\d+);/;

/** @returns {any} an element, or a fragment of several */
export function html(strings, ...values) {
  if (!templates.has(strings)) templates.set(strings, parse(strings));
  const content = templates.get(strings).content.cloneNode(true);
  const nodes = [];
  const walker = document.createTreeWalker(content, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_COMMENT);
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    if (node instanceof Comment) node.replaceWith(...toNodes(values[Number(node.data.match(MARK)[1])]));
    else fillAttributes(node, values);
  }
  return content.childNodes.length === 1 ? content.firstChild : content;
}

function parse(strings) {
  const template = document.createElement('template');
  template.innerHTML = strings.reduce((markup, text, i) => {
    const isInsideTag = markup.lastIndexOf('<') > markup.lastIndexOf('>');
    return `${markup}${isInsideTag ? `lab:${i - 1};` : `<!--lab:${i - 1};-->`}${text}`;
  });
  const walker = document.createTreeWalker(template.content, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    text.data = text.data.replace(/^\s*\n\s*|\s*\n\s*$/g, '').replace(/\s*\n\s*/g, ' ');
    if (!text.data) text.remove();
  }
  return template;
}

function fillAttributes(node, values) {
  for (const { name, value } of [...node.attributes]) {
    const marks = value.split(MARK); // texts and numbers of values in turn
    if (marks.length === 1) continue;
    const only = marks.length === 3 && !marks[0] && !marks[2] ? values[marks[1]] : undefined;
    node.removeAttribute(name);
    if (only !== undefined) setAttribute(node, name, only);
    else setAttribute(node, name, marks.map((part, i) => (i % 2 ? values[part] : part)).join(''));
  }
}

function setAttribute(node, name, value) {
  if (typeof value === 'function') node.addEventListener(name.slice('on'.length), value);
  else if (value !== null && value !== false) node.setAttribute(name, value === true ? '' : value);
}

// Further attributes and listeners of an element, by name; returns it.
export function withAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  return node;
}

function toNodes(value) {
  return [value].flat(Infinity).filter((item) => item !== null && item !== undefined && item !== false);
}

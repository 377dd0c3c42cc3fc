// Shared by every widget: small DOM builder, polling, names, numbers, word differences. No library, no markup from data.
window.Lab = (() => {
  // An element: Lab.el('p.note', {title: 'x', onclick: f}, 'text', child, …). Strings become text, never markup.
  function el(what, attributes = {}, ...children) {
    const [tag, ...classes] = what.split('.');
    const node = document.createElement(tag || 'div');
    if (classes.length) node.className = classes.join(' ');
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? '' : value);
    }
    for (const child of children.flat()) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return node;
  }

  // Call `ask` every `ms` while the element is on screen; slower after failures; at once when the tab is shown again.
  function poll(element, ask, ms) {
    let failures = 0, busy = false, timer = null;
    const seen = () => !document.hidden && element.offsetParent !== null;
    async function tick() {
      if (busy || !seen()) return;
      busy = true;
      try {
        await ask();
        failures = 0;
      } catch (error) {
        failures += 1;
        if (failures === 3) offline(true);
      } finally {
        busy = false;
      }
      if (failures === 0) offline(false);
    }
    function loop() {
      if (!document.body.contains(element)) return;
      tick().finally(() => { timer = setTimeout(loop, ms * Math.min(8, 2 ** failures)); });
    }
    document.addEventListener('visibilitychange', () => { if (!document.hidden) tick(); });
    new IntersectionObserver((entries) => { if (entries.some((e) => e.isIntersecting)) tick(); }).observe(element);
    loop();
    return tick;
  }

  // What a server function answered; null (the server failed) and {error} become exceptions.
  async function answer(promise) {
    const reply = await promise;
    if (reply === null || reply === undefined) throw new Error('no answer');
    if (reply.error) throw new Error(reply.error);
    return reply;
  }

  let wasOffline = false;
  function offline(now) {
    if (now === wasOffline) return;
    wasOffline = now;
    document.body.classList.toggle('lab-offline', now);
  }

  // Who labels here: a name that the lab signed and sent with the page, as its cookie says too, which a browser may refuse.
  // Else whoever has entered is known by another cookie, and a lab of one's own believes the name that this browser made up.
  const NAME = 'rlhf-lab-annotator';
  function uuid() {
    if (crypto.randomUUID) return crypto.randomUUID();
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
  }
  function annotator() {
    let name = document.querySelector('meta[name=lab-visitor]')?.content || localStorage.getItem(NAME);
    if (!name) { name = `visitor-${uuid().slice(0, 8)}`; localStorage.setItem(NAME, name); }
    return name;
  }

  // What only the operator may do stands in `operator(…)`: a fieldset switches off whatever is in it, for mouse, keyboard and
  // readers of the screen. `only(…)` says who may; it is seen by everybody else, who see nothing of the class lab-operating.
  const NOT_YOURS = 'Only the operator may do this.';
  let operating = !document.querySelector('meta[name=lab-guest]');  // as the page came; the header tells what changes
  document.body.classList.toggle('lab-guest', !operating);
  const operates = () => operating;
  const operator = (...children) => el('fieldset.lab-operator', { role: 'presentation', disabled: !operating, title: operating ? null : NOT_YOURS }, ...children);
  const only = (words) => el('p.lab-notice.lab-only', {}, words);
  const orJudge = (comma = ',') => el('span.lab-operating', {}, `${comma} or let a simulated judge label 40 there`);  // under Label
  function setOperates(now) {
    operating = now;
    document.body.classList.toggle('lab-guest', !now);
    for (const part of document.querySelectorAll('fieldset.lab-operator')) { part.disabled = !now; part.title = now ? '' : NOT_YOURS; }
  }

  // An annotator for people's eyes: a judge is called one, and nobody is called by the number their browser made up.
  const isVisitor = (name) => name.startsWith('visitor-');
  const person = (name) => (isVisitor(name) ? `visitor ${name.slice(8, 12)}` : name.startsWith('judge:') ? `judge ${name.slice(6)} (simulated)` : name);

  // What this tab of the browser keeps over a reload; null where nothing was kept.
  function keep(name, value) { sessionStorage.setItem(`rlhf-lab-${name}`, value); }
  function kept(name) { return sessionStorage.getItem(`rlhf-lab-${name}`); }

  // The open screen stands in the address, from the first moment on: Back, a reload and a link find it again, the header opens it.
  const inAddress = (tab) => tab.textContent.trim().toLowerCase().replace(/\W+/g, '-');
  const screen = () => location.hash.slice(1) || 'label';
  document.addEventListener('click', (event) => {
    const tab = event.target.closest?.('[role=tab]');
    if (!tab) return;
    if (inAddress(tab) !== screen()) location.hash = inAddress(tab);
    if (tab.getAttribute('aria-selected') !== 'true') document.querySelectorAll('.lab-notice.bad[data-told]').forEach((notice) => tell(notice, ''));
  }, true);

  // What an act was answered with. A refusal goes with the next act or when somebody leaves the screen.
  function tell(notice, words, bad = false) {
    notice.hidden = !words;
    notice.textContent = words || '';
    notice.classList.toggle('bad', bad);
    notice.setAttribute('role', bad ? 'alert' : 'status');
    notice.dataset.told = '';
  }

  function number(value, digits = 3) {
    if (value === null || value === undefined || Number.isNaN(value)) return '–';
    const size = Math.abs(value);
    const words = size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
    return words.replaceAll('-', '−');
  }
  // A difference, the only number that carries a plus.
  const difference = (value, digits = 3) => `${value > 0 ? '+' : ''}${number(value, digits)}`;
  const percent = (share) => (share === null || share === undefined ? '–' : `${Math.round(100 * share)} %`);
  const between = (low, high) => (low === null || low === undefined ? '' : `${Math.round(100 * low)}–${percent(high)}`);
  const many = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
  function bytes(size) {
    if (size < 1e6) return `${Math.max(size ? 1 : 0, Math.round(size / 1e3))} kB`;
    return size < 1e9 ? `${number(size / 1e6, size < 1e7 ? 2 : 3)} MB` : `${number(size / 1e9)} GB`;
  }
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return '';
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  }

  // How long work still takes, as far as it is known; with nothing left to count it still writes what it made.
  function left(seconds, share, about = '') {
    if (share >= 1 || (seconds !== null && Math.round(seconds) <= 0)) return ' · finishing';
    return seconds === null ? '' : ` · ${about}${duration(seconds)} left`;
  }

  // The words of `after`, each with whether it is new with respect to `before` (longest common subsequence).
  function changed(before, after) {
    const a = before.split(/(\s+)/).filter((w) => w.trim()), b = after.split(/(\s+)/).filter((w) => w.trim());
    const n = a.length, m = b.length;
    if (n * m > 250000) return b.map((word) => ({ word, fresh: false }));
    const table = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
    for (let i = n - 1; i >= 0; i--) {
      for (let j = m - 1; j >= 0; j--) {
        table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
      }
    }
    const words = [];
    let i = 0, j = 0;
    while (j < m) {
      if (i < n && a[i] === b[j]) { words.push({ word: b[j], fresh: false }); i++; j++; }
      else if (i < n && table[i + 1][j] >= table[i][j + 1]) i++;
      else { words.push({ word: b[j], fresh: true }); j++; }
    }
    return words;
  }

  // A text with its new words marked, as an element.
  function marked(before, after, what = 'p.lab-text') {
    const node = el(what, { dir: 'auto' });
    for (const { word, fresh } of changed(before, after)) node.append(fresh ? el('mark', {}, word) : word, ' ');
    return node;
  }

  // In the place of a row's name: a field for another one.
  function nameField(value, label, what, about, keep, leave) {
    const input = el('input.lab-input', { type: 'text', maxlength: 80, value, 'aria-label': label, 'data-do': what, ...about,
      onkeydown: (event) => { if (event.key === 'Enter') { event.preventDefault(); done(); } else if (event.key === 'Escape') leave(); } });
    // Enter must not go on to the button that gets the focus next: it would open the field again.
    const done = () => { if (input.value !== value) keep(input.value); leave(); };
    return el('div.lab-row', {}, input,
      el('button.lab-button.small', { type: 'button', 'data-do': `${what}-keep`, onclick: done }, 'Save'),
      el('button.lab-button.small', { type: 'button', 'data-do': `${what}-leave`, onclick: leave }, 'Cancel'));
  }

  // In the place of a row's buttons: whether it is to go for good.
  function deleteField(words, what, about, go, leave) {
    return el('div.lab-row', {}, el('span', {}, words),
      el('button.lab-button.small.danger', { type: 'button', 'data-do': `${what}-sure`, ...about, onclick: () => { go(); leave(); } }, 'Delete'),
      el('button.lab-button.small', { type: 'button', 'data-do': `${what}-leave`, onclick: leave }, 'Keep'));
  }

  // Keys pressed while typing, with modifiers, or repeated are not for us.
  function isOurKey(event) {
    if (event.defaultPrevented || event.repeat || event.isComposing) return false;
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const target = event.composedPath()[0];
    return !(target instanceof Element && target.closest('input, textarea, select, [contenteditable]'));
  }

  function colours() {
    const style = getComputedStyle(document.body);
    const read = (name, other) => style.getPropertyValue(name).trim() || other;
    return {
      ink: read('--lab-ink', '#1f2430'), muted: read('--lab-muted', '#667085'), line: read('--lab-line', '#e4e7ec'),
      accent: read('--lab-accent', '#4f46e5'), good: read('--lab-good', '#15803d'), warn: read('--lab-warn', '#b45309'),
      bad: read('--lab-bad', '#b91c1c'), left: read('--lab-left', '#2563eb'), right: read('--lab-right', '#c2570c'),
      font: style.fontFamily,
    };
  }

  // An accuracy {accuracy, low, high}: an interval wider than a quarter stands in the place of the figure.
  const isWide = ({ low, high }) => low !== null && high - low > 0.25;
  const accuracy = (found) => (isWide(found) ? between(found.low, found.high) : percent(found.accuracy));

  return { el, poll, isWide, accuracy, answer, uuid, annotator, operates, operator, only, orJudge, setOperates, isVisitor, person, keep, kept, inAddress, screen, number, difference, percent, between, many, bytes, duration, left, changed, marked, nameField, deleteField, tell,
    isOurKey, colours };
})();

// The token microscope: the tokens of the texts a step learnt from, coloured by a number, and the equations of the one looked at.
// ask({run, step}) -> what ui/screens/token_view.py's looked_at says.
window.LabMicroscope = window.LabMicroscope || ((ask) => {
  const { el, number } = Lab;
  let run = null, step = null, held = null, wanted = '', shade = null;
  let bring = false;
  let at = [0, -1], pinned = false;  // the text and the token looked at (-1: the last), and whether it stays

  const which = el('strong', { 'data-token-step': '' });
  const back = el('button.lab-button.small', { type: 'button', 'data-do': 'token-back', 'aria-label': 'one step back', onclick: () => move(-1) }, '◀');
  const on = el('button.lab-button.small', { type: 'button', 'data-do': 'token-on', 'aria-label': 'one step on', onclick: () => move(1) }, '▶');
  const colour = el('select.lab-input', { 'aria-label': 'colour the tokens by', 'data-do': 'token-colour', onchange: () => { shade = colour.value; paint(); } });
  const legend = el('span.muted.legend');
  const texts = el('div.texts', {}, el('p.lab-empty', {}, 'The tokens are on their way …')), facts = el('div.facts', { 'aria-live': 'polite' });
  const fold = el('details.lab-card.microscope', { 'data-do': 'microscope', ontoggle: () => fetchIt() },
    el('summary', {}, el('h2', {}, 'Token microscope'), el('span.muted', {}, 'Texts that the step learnt from: what every token was worth, and why.')),
    el('div.lab-row', {}, back, which, on, el('label.lab-row.shade', {}, el('span.muted', {}, 'colour'), colour), legend),
    texts, facts);

  // Asked for, it comes to the top of the window, and once more when what it shows has come.
  const come = () => fold.scrollIntoView({ block: 'start' });
  function move(by) { step += by; fetchIt(); }

  // Look at this step; fetched when the fold is open.
  function show(which_run, which_step) {
    [run, step] = [which_run, Math.max(1, which_step)];
    fetchIt();
  }

  // Asked again with every look at the run until it is there: an answer may be lost on the way.
  async function fetchIt() {
    const mine = `${run}/${step}`;
    if (!fold.open || run === null || wanted === mine) return;
    wanted = mine;
    let reply;
    try { reply = await Lab.answer(ask({ run, step })); } catch (error) { if (wanted === mine) wanted = ''; return; }
    if (wanted !== mine) return;
    held = reply;
    draw();
    if (bring) come();
    bring = false;
  }

  function draw() {
    which.textContent = `step ${held.step}`; which.dataset.tokenStep = held.step;
    back.disabled = held.step <= 1; on.disabled = held.step >= held.steps;
    const names = held.shades.map((one) => one.column);
    if (!names.includes(shade)) shade = names[0];
    colour.replaceChildren(...held.shades.map((one) => el('option', { value: one.column }, one.name)));
    colour.value = shade;
    if (!held.rows.length) {
      texts.replaceChildren(el('p.lab-empty', {}, held.kept ? 'Nothing was kept of this step\'s tokens.' : 'This run keeps no tokens: token_rows is 0 in its settings.'));
      facts.replaceChildren(); legend.textContent = '';
      return;
    }
    texts.replaceChildren(...held.rows.map(text));
    paint();
    look(Math.min(at[0], held.rows.length - 1), at[1], pinned);
  }

  function text(row, nth) {
    const line = el('p.lab-text.tokens', { dir: 'auto', onkeydown: (event) => keys(event, nth) });
    row.tokens.forEach((token, i) => line.append(el(`span.token${row.clipped[i] ? '.clipped' : ''}`, { role: 'button', tabindex: -1, 'data-token': i, 'aria-label': `token ${token.trim() || i + 1}`,
      onmouseenter: () => { if (!pinned) look(nth, i); }, onclick: () => { const again = pinned && at[0] === nth && at[1] === i; look(nth, i, !again); } }, token || '·')));
    const paid = row.score === null ? null : row.earned === row.score || row.earned === null ? `score ${number(row.score)}` : `score ${number(row.score)}, counted as ${number(row.earned)}`;
    return el('article', {}, el('p.muted.lab-text', { dir: 'auto' }, row.prompt), line,
      el('div.lab-row', {}, paid ? el('span.lab-badge', {}, paid) : null, el('span.lab-badge', {}, Lab.many(row.tokens.length, 'token'))));
  }

  function keys(event, nth) {
    const by = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); look(nth, at[1], !pinned); }
    if (!by) return;
    event.preventDefault();
    look(nth, Math.max(0, Math.min(held.rows[nth].tokens.length - 1, at[1] + by)), true);
    token(...at).focus();
  }

  const token = (nth, i) => texts.children[nth].querySelector(`[data-token="${i}"]`);

  function paint() {
    const { name, valued, marks } = held.shades.find((one) => one.column === shade);
    const [above, below] = valued ? ['--lab-good', '--lab-bad'] : ['--lab-left', '--lab-right'];
    const mixed = (tint) => `color-mix(in srgb, var(${tint > 0 ? above : below}) calc(${Math.abs(tint)} * var(--lab-strongest)), transparent)`;
    held.rows.forEach((row, nth) => row.tints[shade].forEach((tint, i) => { token(nth, i).style.background = mixed(tint); }));
    const mark = ([value, tint]) => { const box = el('i.swatch'); box.style.background = mixed(tint); return [box, number(value)]; };
    legend.replaceChildren(name, ...marks.flatMap(mark),
      ...(held.rows.some((row) => row.clipped.some(Boolean)) ? [el('span.token.clipped', {}, 'clipped')] : []));
  }

  function look(nth, i, stay = false) {
    const row = held.rows[nth], last = row.tokens.length - 1, found = i < 0 ? last : Math.min(i, last);
    [at, pinned] = [[nth, found], stay];
    for (const one of texts.querySelectorAll('.token')) { one.classList.remove('seen', 'pinned'); one.tabIndex = -1; }
    texts.querySelectorAll('.tokens').forEach((line) => { line.firstChild.tabIndex = 0; });
    texts.children[nth].querySelectorAll('.token').forEach((one) => { one.tabIndex = -1; });
    const one = token(nth, found);
    one.classList.add('seen'); one.classList.toggle('pinned', stay); one.tabIndex = 0;
    facts.replaceChildren(heading(row, found), el('div.lines', {}, ...held.lines.flatMap((line) => equation(line, row, found))));
  }

  function heading(row, i) {
    const share = (name) => { if (row.columns[name][i] === null) return 'unknown'; const p = 100 * Math.exp(row.columns[name][i]); return p < 0.1 ? 'under 0.1 %' : `${number(p, p >= 99.95 ? 4 : 3)} %`; };
    return el('div.lab-row', {}, el('strong.lab-text.word', {}, row.tokens[i].trim() ? `“${row.tokens[i].trim()}”` : 'a blank or a part of a letter'), el('span.muted', {}, `token ${i + 1} of ${row.tokens.length}`),
      el('span.lab-badge', {}, `chance when written ${share('old_logprob')}`), el('span.lab-badge', {}, `of the reference ${share('ref_logprob')}`),
      el('span.lab-badge.accent', {}, `after the step ${share('logprob')}`), row.clipped[i] ? el('span.lab-badge.warn', {}, 'clipped') : null, pinned ? el('span.muted', {}, 'stays; click it again to go on') : null);
  }

  // A token's number with as many decimals as its neighbours, so that sums can be followed; a setting as it was set.
  const decimals = (value) => value === null ? 'not finite' : (Math.abs(value) < 100 ? value.toFixed(4) : number(value, 6)).replace(/^-(0\.0+)$/, '$1').replaceAll('-', '−');

  function equation(line, row, i) {
    let said = '';
    line.equation.split(/\{(\w+)\}/).forEach((part, n) => {
      if (n % 2 === 0) { said += part; return; }
      const words = part in row.columns ? decimals(row.columns[part][i]) : number(held.constants[part], 4);
      said += words.startsWith('−') && !/(^|[=(,])\s*$/.test(said) ? `(${words})` : words;
    });
    return [el('strong', {}, line.name), el('span.sum', {}, said || '–'), el('span.muted', {}, el('code', {}, line.symbols), ` ${line.about}`)];
  }

  return { fold, show, again: fetchIt, open: () => { fold.open = bring = true; come(); } };
});

// The samples of a run, beside its curves: the texts of one step, and the scrubber that chooses the step.
// ask({run, step}) -> {step, rows}; moved(step): another step is looked at; tokens(): the microscope is asked for.
window.LabSamples = window.LabSamples || ((run, ask, moved, tokens) => {
  const { el } = Lab;
  let steps = [], step = null, follow = true;  // follow: whatever step is the newest
  let line = null, shown = null, asking = null, due = false;
  const texts = {};

  const scrub = el('input', { type: 'range', min: 0, max: 0, step: 1, value: 0, 'aria-label': 'step of the samples', 'data-do': 'scrub',
    oninput: () => {
      if (due) return;
      due = true;
      requestAnimationFrame(() => { due = false; const i = Number(scrub.value); goTo(steps[i], i === steps.length - 1); });
    } });
  const at = el('strong', { 'data-at': '', 'aria-live': 'off' }, '');
  const latest = el('button.lab-button.small', { type: 'button', 'data-do': 'latest', 'aria-pressed': 'true', onclick: () => goTo(steps.at(-1), true) }, 'Latest');
  const rows = el('div.rows', {}, el('p.lab-empty', {}, 'The base model writes to the fixed prompts first.'));
  const box = el('aside.side.lab-scroll', { 'aria-label': 'samples' },
    el('div.lab-row', {}, el('h2', {}, 'Samples'), at, el('span.lab-grow'),
      el('button.lab-button.small', { type: 'button', 'data-do': 'to-tokens', onclick: tokens }, 'Tokens'), latest),
    el('div.scrub', {}, scrub),
    el('p.muted', {}, 'Same prompts, same seeds as at the start; changed words are marked.'), rows);

  const nearest = (x) => steps.reduce((best, s) => (Math.abs(s - x) < Math.abs(best - x) ? s : best), steps[0] ?? null);

  function goTo(chosen, newest = false) {
    if (chosen === undefined || chosen === null) return;
    [step, follow] = [chosen, newest];
    scrubber();
    fetchIt();
    moved(step);
  }

  // More steps have samples now, or (anew) these and no others.
  function take(of, more, anew) {
    line = of;
    steps = anew ? more : [...steps, ...more];
    if (steps.length && (follow || !steps.includes(step)) && (step !== steps.at(-1) || anew)) goTo(steps.at(-1), true);
    scrubber();
  }

  function scrubber() {
    scrub.max = Math.max(0, steps.length - 1);
    scrub.value = Math.max(0, steps.indexOf(step));
    scrub.disabled = steps.length < 2;
    const words = step === null ? '' : step === 0 ? 'step 0: the base model' : `step ${step}`;
    scrub.setAttribute('aria-valuetext', words);
    at.textContent = words;
    at.dataset.at = step ?? '';
    latest.setAttribute('aria-pressed', follow);
    latest.disabled = !steps.length;
  }

  // Asked again with every look at the run until they are there: an answer may be lost on the way.
  async function fetchIt() {
    const key = `${line}/${step}`;
    if (step === null || shown === key || asking === key) return;
    if (!texts[key]) {
      if (!shown) rows.replaceChildren(el('p.lab-empty', {}, 'The texts of this step are on their way …'));
      asking = key;
      try { texts[key] = await Lab.answer(ask({ run, step })); } catch (error) { return; } finally { asking = null; }
    }
    if (key !== `${line}/${step}`) return;
    shown = key;
    draw(texts[key]);
  }

  function draw(reply) {
    const top = box.scrollTop;
    rows.replaceChildren(...(reply.rows.length ? reply.rows.map((row) => sample(row, reply.step)) : [el('p.lab-empty', {}, 'No samples were kept at this step.')]));
    box.scrollTop = top;
  }

  function sample(row, of) {
    const beside = of !== 0 && row.base !== null;
    return el('article.lab-card.sample', {},
      el('p.muted.lab-text', { dir: 'auto' }, row.prompt),
      el('div.pair', {},
        beside ? el('div.before', {}, el('span.tag', {}, 'base'), el('p.lab-text', { dir: 'auto' }, row.base)) : null,
        el('div.now', {}, el('span.tag', {}, of === 0 ? 'base' : `step ${of}`), beside ? Lab.marked(row.base, row.text) : el('p.lab-text', { dir: 'auto' }, row.text))),
      el('div.lab-row', {}, difference(row.score, beside ? row.base_score : null, 'score'), difference(row.gold, beside ? row.base_gold : null, 'gold')));
  }

  function difference(now, before, what) {
    if (now === null) return null;
    const change = before === null || before === undefined ? null : now - before;
    const mood = change === null || Math.abs(change) < 0.05 ? '' : change > 0 ? 'good' : 'bad';
    return el(`span.lab-badge${mood && `.${mood}`}`, { title: change === null ? `${what} now` : `${what} now; ${Lab.number(before)} at the start` },
      `${what} ${Lab.number(now)}${change ? ` (${Lab.difference(change, 2)})` : ''}`);
  }

  return { box, goTo, take, nearest, fetch: fetchIt, step: () => step, follows: () => follow };
});

// The card "Take it with you" of the screen "Runs & data": labels, runs and reward models as files.
window.LabTake = window.LabTake || (() => {
  const { el } = Lab;
  const partOf = (take) => (what) => take.querySelector(`[data-do="${what}"]`);

  function options(what, label, items) {
    return el('select.lab-input', { 'aria-label': label, 'data-do': what }, items.map(([value, words]) => el('option', { value }, words)));
  }

  function exporter(ask, what, words, about, controls, question, able) {
    return el('div.line', {}, el('div', {}, el('h3', {}, words), el('p.muted', {}, about)),
      el('div.lab-row', {}, Lab.operator(...controls, ...what.map(([name, label]) => el('button.lab-button.small', { type: 'button', 'data-do': `export-${name}`, disabled: !able,
        onclick: () => ask(name, question()) }, label)))));
  }

  // Everybody, and by name each whose labels are of the chosen source.
  function nameAnnotators(take, state, kept) {
    const part = partOf(take), source = part('export-source').value, names = Object.entries(state.annotators).filter(([one]) => source === 'all' || one === source).flatMap(([, found]) => found);
    part('export-annotator').replaceChildren(...[['', 'everybody'], ...names.map((name) => [name, Lab.person(name)])].map(([value, words]) => el('option', { value, selected: value === kept }, words)));
  }

  // Whether anything had to be drawn anew. ask(what, question): somebody wants a file.
  function draw(take, state, ask) {
    const part = partOf(take);
    const key = JSON.stringify([state.project, state.labels, state.annotators, state.models, state.runs.map((run) => [run.id, run.name, run.step > 0])]);
    if (key === take.dataset.drawn) return false;
    take.dataset.drawn = key;
    const kept = Object.fromEntries([...take.querySelectorAll('select')].map((box) => [box.dataset.do, box.value]));
    const { human, simulated } = state.labels;
    take.hidden = false;
    take.replaceChildren(el('h2', {}, 'Take it with you'),
      exporter(ask, [['labels', 'Labels'], ['dataset', 'Data set (zip)']], 'Labels', `${human} by people, ${simulated} simulated. Prompt, chosen, rejected: the format that TRL reads. The data set has a card and its provenance, and load_dataset opens it.`,
        [options('export-source', 'whose labels', [['human', 'by people'], ['simulated', 'simulated'], ['all', 'all, each marked']]), options('export-annotator', 'annotator', []), options('export-names', 'names', [['with', 'with names'], ['without', 'without names']]), options('export-ties', 'ties', [['keep', 'keep ties'], ['drop', 'drop ties']]),
          options('export-layout', 'what is in a row', [['votes', 'every vote with all columns'], ['explicit', 'TRL, explicit prompt'], ['implicit', 'TRL, implicit prompt'], ['explicit+chats', 'TRL, explicit, chats'], ['implicit+chats', 'TRL, implicit, chats']]),
          options('export-agreement', 'agreement', [['0', 'any agreement'], ['0.5', 'half of the votes agree'], ['0.66', 'two thirds agree'], ['1', 'all agree']]),
          options('export-format', 'format', [['jsonl', 'JSON Lines'], ['jsonl.gz', 'JSON Lines, gzip'], ['json', 'JSON'], ['csv', 'CSV'], ['parquet', 'Parquet']])],
        () => ({ source: part('export-source').value, annotators: [part('export-annotator').value].filter(Boolean), names: part('export-names').value === 'with', ties: part('export-ties').value, layout: part('export-layout').value, agreement: Number(part('export-agreement').value), format: part('export-format').value }), human + simulated > 0),
      exporter(ask, [['run', 'Run (zip)'], ['adapter', 'Adapter (zip)']], 'Run', 'Metrics as CSV and TensorBoard, samples, manifest; or the LoRA adapter of its latest checkpoint, as PEFT loads it.',
        [options('export-which-run', 'run', state.runs.length ? state.runs.map((run) => [run.id, `${run.id} ${run.name}`]) : [['', 'no run yet']])],
        () => ({ run: part('export-which-run').value }), state.runs.length > 0),
      exporter(ask, [['reward-model', 'Reward model (zip)']], 'Reward model', 'Adapter, head and report.',
        [options('export-which-model', 'reward model', state.models.length ? state.models : [['', 'none yet']])],
        () => ({ reward_model: part('export-which-model').value }), state.models.length > 0));
    for (const [what, value] of Object.entries(kept)) if (value && [...part(what).options].some((option) => option.value === value)) part(what).value = value;
    if (!human && simulated && !kept['export-source']) part('export-source').value = 'simulated';
    nameAnnotators(take, state, kept['export-annotator']);
    part('export-source').onchange = () => nameAnnotators(take, state, '');
    return true;
  }

  return { draw };
})();

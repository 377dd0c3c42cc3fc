"""Screens that are drawn again and again: what a person reads, types or selects there stays. In a browser without a lab."""

from pathlib import Path

import pytest

import rlhf_lab.ui

STYLE = Path(rlhf_lab.ui.__file__).parent / "shared" / "page.css"
#: serve(replies): answers the requests of a screen; a reply is a function of the payload. text(selector): of an element.
PRELUDE = """
const serve = (replies) => {
  window.fetch = async (address, { body }) => {
    const answer = (await replies[String(address).replace('lab-api/', '')]?.(JSON.parse(body))) ?? { error: `No ${address}.` };
    return { json: async () => ('error' in answer ? answer : { reply: answer.reply, ...answer }) };
  };
};
const say = (reply) => ({ reply: structuredClone(reply) });
const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });
const until = async (condition) => { for (let i = 0; i < 400 && !condition(); i += 1) await pause(25); };
const find = (selector) => document.querySelector(selector);
const text = (selector) => find(selector)?.textContent;
const { html } = await import('/shared/html.js');
const { redraw } = await import('/shared/dom.js');
const show = (classes) => {
  const element = html`<div><div class=${`lab ${classes}`}></div></div>`;
  document.body.replaceChildren(html`<div class="lab-header">header</div>`, element);
  return element.firstChild;
};
const mutationsIn = (node) => {
  const seen = [];
  const watcher = new MutationObserver((records) => seen.push(...records));
  watcher.observe(node, { subtree: true, childList: true, characterData: true });
  return () => { seen.push(...watcher.takeRecords()); return seen.length; };
};
"""


@pytest.fixture
def run(module_page):
    """run(code): what an asynchronous function of this body returns."""
    yield lambda code: module_page.evaluate(f"async () => {{ {PRELUDE} {code} }}")
    module_page.evaluate("document.body.replaceChildren()")


def test_input_is_kept_while_no_pair_is_ready(run):
    code = """
      let asked = 0;
      const project = { project_created_at: 1, name: 'p', prompt_set: 'tales' };
      const you = { name: 'Ann', role: 'operator' };
      const counts = { counted_at: 1, labels: 1, simulated: 0, next_training_at: 9, labels_to_next: 8, has_model: false };
      const rest = { training_text: '', guide_note: '', people_here: 2, you, length_note: '', project_created_at: 1 };
      const names = { shown_names: {} };
      const state = {
        ...counts, ...rest, ...names, project, pair: null, next_pair: null, may_edit: true, can_undo: true, can_redo: false,
        guideline: '', quality_note: '', notice: '',
      };
      const turns = [{ role: 'user', content: 'Once' }];
      const vote = { id: 4, turns, left: 'a', right: 'b', cut: {}, choice: 'left', strength: '', note: '' };
      serve({
        'label/opened': () => say({ ...state, waiting_text: `The engine writes: ${asked += 1}` }),
        'label/undo': () => say({ ...state, waiting_text: '', notice: 'There is nothing to undo.' }),
        'label/presence': () => say({ ...counts, ...rest, ...names }),
        'label/disputed': () => say({ count: 0, prompts: [] }),
        'label/recent_votes': () => say([{ ...vote, adjudication: false }]),
      });
      const root = show('lab-label');
      const { default: Label } = await import('/label/view.js');
      const judge = (name) => ({ name, description: name, prompt_set: name === 'cheerful' ? 'tales' : '' });
      new Label(root, { judges: ['cheerful', 'polite'].map(judge) });
      await until(() => find('.history'));
      find('.history').open = find('.talks').open = true;
      await until(() => find('.earlier .note'));
      await until(() => { find('[data-do=undo]').click(); return text('.message'); });
      await pause(200); // the list of earlier answers is read again
      Object.assign(find('.earlier .note'), { value: 'a word' });
      find('.talks select').value = 'polite';
      find('[data-do=log-out]').focus();
      const before = asked;
      await until(() => asked >= before + 2);
      await pause(100);
      return [
        text('.lab-empty') === `The engine writes: ${asked}`, find('.earlier .note').value, find('.talks select').value,
        document.activeElement.dataset.do, text('.message'),
      ];"""
    assert run(code) == [True, "a word", "polite", "log-out", "There is nothing to undo."]


def test_a_change_made_while_a_vote_is_sent_follows_it(run):
    code = """
      const project = { project_created_at: 1, name: 'p', prompt_set: 'tales' };
      const you = { name: 'Ann', role: 'labeller' };
      const counts = { counted_at: 1, labels: 1, simulated: 0, next_training_at: 9, labels_to_next: 8, has_model: false };
      const people = { people_here: 1, shown_names: {}, you };
      const rest = { ...people, training_text: '', guide_note: '', length_note: '', project_created_at: 1 };
      const turns = [{ role: 'user', content: 'Once' }];
      const pair = (id) => ({ id, turns, left: `${id} a`, right: `${id} b`, cut: {}, markdown: false, adjudication: false });
      const state = {
        ...counts, ...rest, project, pair: pair(1), next_pair: pair(2), may_edit: false, can_undo: true, can_redo: false,
        guideline: '', quality_note: '', notice: '', waiting_text: '',
      };
      const sent = [];
      let release = null;
      const later = { ...state, pair: pair(2), next_pair: pair(3) };
      const log = (name, reply) => (payload) => { sent.push([name, payload.note]); return reply; };
      const vote = { id: 4, turns, left: 'a', right: 'b', cut: {}, choice: 'left', strength: '', note: '' };
      serve({
        'label/opened': () => say(state), 'label/presence': () => say({ ...counts, ...rest }),
        'label/disputed': () => say({ count: 0, prompts: [] }),
        'label/recent_votes': () => say([{ ...vote, adjudication: false }]),
        'label/vote': log('vote', new Promise((resolve) => { release = () => resolve(say(later)); })),
        'label/amend': log('amend', say({ ...later, notice: 'Your earlier answer was changed.' })),
      });
      localStorage.clear();
      const root = show('lab-label');
      const { default: Label } = await import('/label/view.js');
      new Label(root, { judges: [{ name: 'x', description: '', prompt_set: '' }] });
      await until(() => find('.lab-label').dataset.open === '1');
      find('[data-do=left]').click();
      find('.history').open = true;
      await until(() => find('.earlier .note'));
      const note = find('.earlier .note');
      note.value = 'a reason';
      note.dispatchEvent(new Event('input'));
      find('[data-do=amend]').click();
      await pause(300);
      const before = sent.map(([name]) => name);
      release();
      await until(() => sent.length > 1);
      await pause(100);
      return [before, sent.at(-1), text('.message')];"""
    assert run(code) == [["vote"], ["amend", "a reason"], "Your earlier answer was changed."]


def test_people_is_redrawn_only_after_a_change(run):
    code = """
      let asked = 0;
      let present = ['Ann'];
      const you = { name: '', role: 'viewer' };
      const row = { annotator: 'Ann', labels: 2, repeated: 0, same: 0, shared: 0, agreed: 0 };
      const state = { you, shown_names: {}, leaderboard: [row], has_agreement: true, rules: {} };
      serve({ 'people/state': () => (asked += 1) && say({ ...state, present }) });
      const { setOperator } = await import('/shared/session.js');
      setOperator(false);
      const { default: People } = await import('/people/view.js');
      new People(show('lab-people'), { fields: [], page_command: 'x' });
      await until(() => find('[data-do=people-join]'));
      const title = find('.lab-people h2');
      getSelection().selectAllChildren(title);
      find('[data-do=people-join]').focus();
      await pause(200);
      let before = asked;
      await until(() => asked > before);
      await pause(100);
      const kept = [find('.lab-people h2') === title, String(getSelection())];
      [before, present] = [asked, ['Ann', 'Bob']];
      await until(() => asked > before);
      await pause(100);
      return [...kept, text('.lab-people h2'), document.activeElement.dataset.do];"""
    assert run(code) == [True, "One person is connected", "2 people are connected", "people-join"]


def test_a_clock_is_not_read_aloud(run):
    code = """
      const { WordScores } = await import('/reward/words.js');
      const { trainingCard, updateTraining } = await import('/reward/training.js');
      document.body.append(html`<div class="tokens"></div>`);
      let running = false;
      const api = { explain: async () => ({ job: 1 }), explanation: async () => ({ is_waiting: true, running }) };
      const words = new WordScores(api, () => find('.tokens'));
      words.draft = { prompt: '', text: 'x' };
      await words.explain();
      await words.update();
      const charts = { create: () => html`<p class="plot"></p>`, draw() {} };
      const card = trainingCard(charts, () => []);
      const job = { running: true, stage: 'validation fit', loss: [], note: '', eta_s: 40, progress: 0.1 };
      updateTraining(card, job, charts);
      const counts = [find('.tokens [role=status]'), card.querySelector('[role=status]')].map(mutationsIn);
      words.pending.askedAt -= 7000;
      await words.update();
      updateTraining(card, { ...job, progress: 0.2, eta_s: 30 }, charts);
      const quiet = counts.map((count) => count());
      running = true;
      await words.update();
      return [quiet, counts[0]() > 0, text('.tokens'), card.querySelector('.lab-row').textContent];"""
    quiet, is_told, waiting, training = run(code)
    assert (quiet, is_told) == ([0, 0], True)
    assert waiting == "The engine is scoring the text (7 s) …"
    assert training.endswith("validation fit · 20 % · about 30 s left")


def test_header_notices_are_replaced_only_after_a_change(run):
    code = """
      let age = 0;
      const engine = { label: 'engine idle', style: 'rest', description: '', device: '', memory_mib: null };
      const status = {
        project: 'p', model: 'm', project_created_at: 1, counted_at: 1, labels: 0, simulated: 0, reward: null, job: null,
        engine: { ...engine, is_working: false }, run: null, demo: null, startup: null, warning: 'The disk is full.',
        is_operator: true, may_label: true, can_invite: false, guide: null,
      };
      const mirror = () => ({ repository: 'a/b', saved_at: 1, age_s: (age += 1), problem: '', is_late: false });
      serve({ 'header/status': () => say({ ...status, mirror: mirror() }) });
      const { default: Header } = await import('/header/view.js');
      const root = show('lab-header');
      document.querySelector('body > .lab-header').remove();
      new Header(root, { definitions: {}, charts: {}, page_command: 'x' });
      await until(() => find('.lab-header [role=alert]'));
      const notice = find('.lab-header [role=alert]');
      await until(() => age > 2);
      await pause(100);
      return [text('[data-do=mirror]').trim(), find('.lab-header [role=alert]') === notice];"""
    saved, is_same = run(code)
    assert saved.startswith("Saved 3 s ago")
    assert is_same


def test_header_shows_why_requests_are_refused(run, module_page):
    module_page.add_style_tag(path=STYLE)
    code = """
      const { poll } = await import('/shared/poll.js');
      const element = show('x');
      element.append(html`<p class="one">1</p>`, html`<p class="two">2</p>`);
      const shown = () => getComputedStyle(find('.lab-header'), '::after').content;
      let isBroken = true;
      const fail = async () => { if (isBroken) throw Object.assign(new Error('It is damaged.'), { isReply: true }); };
      const pollNow = poll(find('.one'), fail, 20);
      poll(find('.two'), async () => {}, 20);
      await pause(1500);
      const seen = [shown(), document.body.classList.contains('lab-offline')];
      find('.one').hidden = true; // another screen is open
      await pause(100);
      seen.push(shown());
      find('.one').hidden = false;
      isBroken = false;
      await pollNow();
      seen.push(shown());
      return seen;"""
    first, is_offline, hidden, last = run(code)
    assert first.strip('"') in ("It is damaged.", "attr(data-reason)")
    assert (is_offline, hidden, last) == (False, "none", "none")


#: The screen of one reward model, whose state and requests a test can change before `open()`.
REWARD_MODEL = """
  const stats = { right: 0, decided: 0, low: 0, high: 1, chosen_right: 0, chosen_decided: 0 };
  const model = { id: 3, labels: 9, accuracy: null, low: null, high: null, source: 'human', source_text: 'people' };
  const state = {
    project: 1, models: [{ ...model, created_at: 1 }], default_id: 3, job: null, last_training: 0, cancelled: false,
    failed: '', labels: { human: 9, simulated: 0, goals: { human: 20, simulated: 40 } }, instant: null,
    prediction_stats: { human: stats, simulated: stats }, estimates_key: '', scores_hidden: '',
  };
  const report = {
    id: 3, counts_hidden: true, ties: 0, folds: 0, train_accuracy: null, chosen_scores: [], rejected_scores: [],
    length_correlation: null, loss: [], note: '', example_texts: [], calibration: [], calibration_error: null,
    disagreements: [], attributes: [],
  };
  const check = { pairs: 8, note: 'A note.', test: null, text: '', is_open: false, can_judge: false };
  const requests = {
    'reward/state': () => say(state), 'reward/report': () => say(report), 'reward/check': () => say(check),
  };
  window.Plotly ??= { purge() {}, react() {} };
  const { setOperator } = await import('/shared/session.js');
  const open = async () => {
    serve(requests);
    const { default: RewardScreen } = await import('/reward/view.js');
    const data = { layout: {}, config: {}, is_demo: false };
    new RewardScreen(show('lab-reward'), data, { trigger() {}, watch() {} });
    await until(() => find('.check'));
  };
"""


def test_check_is_requested_again_after_a_lost_request(run):
    code = f"""
      {REWARD_MODEL}
      let checks = 0;
      requests['reward/check'] = () => ((checks += 1) > 1 ? say(check) : {{ error: 'Too many requests.' }});
      await open();
      return [checks, text('.check .muted')?.endsWith('A note.')];"""
    assert run(code) == [2, True]


def test_labellers_see_why_scores_are_hidden(run):
    code = f"""
      {REWARD_MODEL}
      state.scores_hidden = 'People are judging.';
      setOperator(false);
      await open();
      const shown = () => [text('[data-do=scores-hidden]') ?? '', !!find('[data-do=explain]')];
      const seen = [shown()];
      setOperator(true);
      await until(() => find('[data-do=explain]'));
      seen.push(shown());
      setOperator(false);
      await until(() => find('[data-do=scores-hidden]'));
      state.scores_hidden = '';
      await until(() => find('[data-do=explain]'));
      seen.push(shown());
      setOperator(true);
      return seen;"""
    assert run(code) == [["People are judging.", False], ["", True], ["", True]]


def test_a_demo_offers_chat_pairs_to_the_operator_only(run):
    code = """
      const options = {
        project: 1, temperature: 1, max_new_tokens: 8, models: [['base', 'base'], ['run/1', 'run 1']], system_prompt: '',
        has_chat_template: true, examples: [], run: 1, steps: [4], best: 4,
      };
      const answer = { status: 'done', is_waiting: false, tokens: 1, cut: null, turns_left_out: 0, note: '', error: '' };
      serve({
        'chat/options': () => say(options), 'chat/ask': () => say([1, 2]),
        'chat/answers': () => say(['a', 'b'].map((text) => ({ ...answer, text }))),
      });
      const { setOperator } = await import('/shared/session.js');
      const { default: Chat } = await import('/chat/view.js');
      const offered = async (isDemo, isOperator) => {
        setOperator(isOperator);
        new Chat(show('lab-chat'), { is_demo: isDemo });
        await until(() => find('[data-do=chat-message]'));
        const hint = text('.examples .muted');
        find('[data-do=chat-beside]').checked = true;
        find('[data-do=chat-message]').value = 'Hello';
        find('[data-do=chat-message]').dispatchEvent(new Event('input'));
        find('[data-do=chat-send]').click();
        await until(() => document.querySelectorAll('.reply[data-status=done]').length === 2);
        return [hint.endsWith('last message.'), Boolean(find('[data-do=chat-label]'))];
      };
      return [await offered(true, false), await offered(false, false), await offered(true, true)];"""
    assert run(code) == [[True, False], [False, True], [False, True]]


def test_a_name_being_typed_survives_a_redrawn_list(run):
    code = """
      const run = (id) => ({
        id, name: `run ${id}`, outside_file: '', algorithm: 'ppo', status: 'done', step: 4, total_steps: 4, message: '',
        created_at: 1, score: null, kl: null, gold: null, sparkline: [], is_resumable: false, is_active: false,
      });
      const overview = { project: 1, name: 'p', runs: [run(2), run(1)], lab_command: 'x', unlisted_count: 0 };
      serve({
        'runs/overview': () => say({ ...overview, reward_models: [], labels: {}, annotators: { human: [] } }),
        'runs/compare': () => say(null),
      });
      const { setOperator } = await import('/shared/session.js');
      setOperator(true);
      const { default: Runs } = await import('/runs/view.js');
      const data = { layout: {}, config: {}, max_runs: 6, window: 5, buckets: 9, titles: {} };
      new Runs(show('lab-runs'), data);
      await until(() => find('[data-do=run-rename]'));
      find('[data-do=run-rename][data-run="2"]').click();
      find('[data-do=run-name]').value = 'a longer name';
      find('[data-do=run-choose][data-run="1"]').click();
      await pause(100);
      return [find('[data-do=run-name]').value, find('[data-do=run-choose][data-run="1"]').checked];"""
    assert run(code) == ["a longer name", False]


def test_length_buttons_keep_the_focus(run):
    code = """
      const states = ['absent', 'starting', 'alive'];
      let asked = 0;
      const state = { current: 1, projects: [], download: null, length: { is_measuring: false, failure: 'It ended.' } };
      const engine = () => ({ state: states[Math.min(2, asked += 1)], stoppable: false });
      serve({ 'project/state': () => say({ ...state, engine: engine() }) });
      const { setOperator } = await import('/shared/session.js');
      setOperator(true);
      const { default: Project } = await import('/project/view.js');
      const data = { models: [], prompt_sets: [], suffixes: [], max_bytes: 1, has_secret: false };
      new Project(show('lab-project'), data);
      await until(() => find('[data-do=length-measure]'));
      await pause(100);
      find('[data-do=length-measure]').focus();
      const before = asked;
      await until(() => asked > before);
      await pause(100);
      return document.activeElement.dataset.do;"""
    assert run(code) == "length-measure"


def test_a_request_names_the_project_that_its_screen_shows(run):
    code = """
      const sent = [];
      const answer = (reply) => ({ shown_project: project }) => { sent.push(project); return say(reply); };
      serve({ 'shop/state': answer({ project: 7 }), 'shop/buy': answer(null), 'bank/pay': answer({ project: 'its name' }) });
      const { requests } = await import('/shared/api.js');
      const [shop, bank] = [requests('shop'), requests('bank')];
      await shop.buy();
      await shop.state.ifChanged();
      await shop.buy();
      await shop.buy({ shown_project: 3 });
      await bank.pay();
      await bank.pay();
      return sent;"""
    assert run(code) == [None, None, 7, 3, None, None]

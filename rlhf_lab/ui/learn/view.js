// The screen Learn: one idea a page, a picture that reacts, and a question that the page answers from what was done.
import { experimentPage } from './experiment_page.js';
import { TEXT_PAGES } from './text_pages.js';
import { FIRST_RANDOM, FIRST_WORLD, WORLD_PAGES } from './world_pages.js';
import { requests } from '../shared/api.js';
import { actionButton, html, isShortcut, perform, redraw, showNotice } from '../shared/dom.js';
import { formatNumber, plural } from '../shared/format.js';
import { poll } from '../shared/poll.js';
import { currentTab, showRun } from '../shared/session.js';

const api = requests('learn');
const POLL_MS = 4000;
const PROGRESS = 'rlhf-lab-learnt'; // names of the pages whose question was answered, in this browser
const RECORDED = {
  run: 'These numbers are recorded. They become those of your own run when one has trained with values and clipping.',
  labels: 'These labels are recorded. They become your own when a reward model has been trained here.',
  curves: 'These curves are recorded. They become those of your own run when one has both curves.',
  recording: 'These numbers are recorded.',
};

export default class Learn {
  constructor(root, { experiments }) {
    this.root = root;
    this.last = experimentPage(experiments, (name) => this.startExperiment(name));
    this.pages = /** @type {any[]} */ ([...WORLD_PAGES, ...TEXT_PAGES, this.last]);
    this.at = 0;
    this.world = { world: FIRST_WORLD, random: FIRST_RANDOM }; // of the pages about the cat
    this.material = /** @type {lab.LearnMaterial | null} */ (null);
    this.news = /** @type {lab.LearnMaterial | null} */ (null);
    this.states = {}; // of the pages, by name
    this.wasTouched = false; // whether something was done on the page that is open
    this.solved = new Set(readProgress());
    document.addEventListener('keydown', (event) => this.handleKey(event));
    this.pollNow = poll(root, () => this.update(), POLL_MS);
  }

  async update() {
    this.news = (await api.material.ifChanged()) ?? this.news;
    if (!this.material) this.draw();
    else if (this.pages[this.at] === this.last && this.news) {
      if (this.news.experiment?.step) showNotice(this.root.querySelector('.notice'), ''); // its run has started
      this.useNews();
      this.drawPicture();
    }
  }

  async startExperiment(name) {
    const notice = this.root.querySelector('.notice');
    if (await perform(api.start({ name }), notice)) await this.pollNow();
  }

  // Newer numbers appear when a page is turned, not under the hands of whoever is moving a slider.
  useNews() {
    if (!this.news) return;
    this.material = this.news;
    this.news = null;
    for (const { name } of TEXT_PAGES) delete this.states[name]; // their ranges depend on it
  }

  // What a page draws from: the cat's world, or the texts.
  sourceOf(page) {
    return WORLD_PAGES.includes(page) ? this.world : this.material;
  }

  stateOf(page) {
    return (this.states[page.name] ??= page.begin(this.sourceOf(page)));
  }

  /** @param {Record<string, any>} change of the page's state @param {Record<string, any>} shared of the world */
  set(change, shared = {}) {
    const page = this.pages[this.at];
    this.wasTouched = true;
    Object.assign(this.stateOf(page), change);
    Object.assign(this.world, shared);
    this.drawPicture();
  }

  go(offset) {
    const at = Math.max(0, Math.min(this.pages.length - 1, this.at + offset));
    if (at === this.at) return;
    this.at = at;
    this.world = { world: FIRST_WORLD, random: FIRST_RANDOM }; // each page begins with the same
    for (const { name } of WORLD_PAGES) delete this.states[name];
    this.wasTouched = false;
    this.draw();
    this.root.querySelector('h2').focus();
  }

  handleKey(event) {
    if (!isShortcut(event) || currentTab() !== 'learn' || !this.material) return;
    const offset = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!offset || event.target.closest('[role=tab]')) return;
    event.preventDefault();
    this.go(offset);
  }

  // ---- drawing

  draw() {
    this.useNews();
    const page = this.pages[this.at];
    redraw(
      this.root,
      html`<nav class="lab-row steps" aria-label="pages">
        ${this.turnButton('learn-back', '← Back', -1)}
        <span class="dots">${this.pages.map((one, i) => this.dot(one, i))}</span>
        ${this.turnButton('learn-next', 'Next →', 1)}
      </nav>`,
      html`<article class="lab-card page">
        <div class="words">
          <h2 tabindex="-1">${page.title}</h2>
          ${page.text.map((paragraph) => html`<p>${paragraph}</p>`)}
          ${page.formula && formulaLine(page)}
          <div class="question"></div>
          <p class="lab-notice notice" hidden></p>
        </div>
        <div class="tryout">
          <div class="sliders">${page.sliders(this.sourceOf(page)).map((slider) => this.slider(page, slider))}</div>
          <div class="facts" aria-live="polite"></div>
          <div class="picture"></div>
        </div>
      </article>`,
    );
    this.root.querySelector('[aria-current]').scrollIntoView({ block: 'nearest', inline: 'center' });
    this.drawPicture();
  }

  dot(page, i) {
    const isSolved = this.solved.has(page.name);
    return html`<button
      type="button" class="dot${isSolved ? ' solved' : ''}" data-do="learn-${page.name}"
      aria-label="${i + 1}. ${page.title}${isSolved ? ', answered' : ''}" aria-current=${i === this.at ? 'page' : null}
      onclick=${() => this.go(i - this.at)}
    >${isSolved ? '✓' : i + 1}</button>`;
  }

  turnButton(name, label, offset) {
    const title = 'the keys ← and → turn the pages, too';
    const button = actionButton(name, label, () => this.go(offset), offset > 0 ? 'lab-main' : '', { title });
    button.disabled = !this.pages[this.at + offset];
    return button;
  }

  slider(page, { name, label, min, max, step, show = formatNumber, isWorld, isShared }) {
    const value = isWorld ? this.world.world[name] : isShared ? this.world[name] : this.stateOf(page)[name];
    const output = html`<output>${show(value)}</output>`;
    const move = ({ target }) => {
      const now = Number(target.value);
      output.textContent = show(now);
      target.setAttribute('aria-valuetext', show(now));
      if (isWorld) this.set({}, { world: { ...this.world.world, [name]: now } });
      else if (isShared) this.set({}, { [name]: now });
      else this.set({ [name]: now });
    };
    return html`<label class="slider">
      <span>${label}</span>
      <input
        type="range" min=${min} max=${max} step=${step} value=${value} aria-valuetext=${show(value)}
        data-do="slide-${name}" oninput=${move}
      />
      ${output}
    </label>`;
  }

  drawPicture() {
    const page = this.pages[this.at];
    const [state, source] = [this.stateOf(page), this.sourceOf(page)];
    const act = { set: (change, shared) => this.set(change, shared) };
    redraw(this.root.querySelector('.picture'), ...page.picture(state, source, act), ...this.origin(page));
    this.root.querySelector('.facts').replaceChildren(...page.facts(state, source).map((fact) => html`<p>${fact}</p>`));
    this.drawQuestion(page, (this.wasTouched || page === this.last) && page.isSolved(state, source));
  }

  drawQuestion(page, isSolved) {
    if (isSolved && !this.solved.has(page.name)) {
      this.solved.add(page.name);
      localStorage.setItem(PROGRESS, JSON.stringify([...this.solved]));
      this.root.querySelector(`[data-do=learn-${page.name}]`).replaceWith(this.dot(page, this.at));
    }
    const praise = page.praise ?? '✓ That is it.';
    const answer = isSolved ? html`<strong class="right" role="status">${praise}</strong>` : null;
    this.root
      .querySelector('.question')
      .replaceChildren(html`<p><strong>Try it.</strong> ${page.question} ${answer}</p>`);
  }

  // Step, row and token of the run from which a page draws.
  shownToken(page) {
    const { step, notable } = this.material.view;
    return [step, notable[0], this.stateOf(page).selected ?? notable[1]];
  }

  // Where the numbers of a page come from.
  origin(page) {
    if (!page.uses) return [];
    const { recorded, view, curves } = this.material;
    const { run } = page.uses === 'curves' ? curves : view;
    if (recorded.includes(page.uses)) return [html`<p class="muted">${RECORDED[page.uses]}</p>`];
    if (page.uses === 'labels') {
      return [
        html`<p class="muted">
          ${plural(this.material.differences.length, 'label')} of this project, held out from training.
        </p>`,
      ];
    }
    const token = page.uses === 'run' ? this.shownToken(page) : [];
    return [
      html`<p class="muted lab-row">
        From run ${run}${page.uses === 'run' ? `, step ${view.step}` : ''}.
        ${actionButton('learn-run', 'Show it', () => showRun(run, token))}
      </p>`,
    ];
  }
}

const formulaLine = ({ formula, core }) =>
  html`<p class="formula"><code>${formula}</code> <span class="muted">in the code: ${core}</span></p>`;

function readProgress() {
  try {
    const names = JSON.parse(localStorage.getItem(PROGRESS) ?? '[]');
    return Array.isArray(names) ? names : [];
  } catch (error) {
    return []; // written by something else
  }
}

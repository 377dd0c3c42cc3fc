// The lab itself: the operator's secret, the engine, the lab's folder and log.
import { actionButton, asked, html, redraw } from '../shared/dom.js';
import { formatBytes } from '../shared/format.js';
import { operatorOnly, storeOperatorSecret } from '../shared/session.js';

const ENGINE_TEXTS = {
  absent: ['rests', 'It starts automatically when there is work to do.'],
  starting: ['starts', 'It is loading the model. This takes seconds, or minutes on a busy machine.'],
  alive: ['runs', 'The process that trains and samples. It continues when this page is closed.'],
  dead: ['is lost or silent', 'Stopping it ends the remaining process; it is restarted when there is work to do.'],
};

export class LabCard {
  // screen: sends requests and shows messages.
  constructor(screen, hasSecret) {
    this.screen = screen;
    this.engine = /** @type {lab.EngineView | null} */ (null);
    this.engineNode = html`<div class="engine"></div>`;
    this.summary = html`<div class="inside"><p class="muted">Counting …</p></div>`;
    this.node = html`<section class="lab-card lab-itself" aria-label="this lab">
      <h2>This lab</h2>
      ${hasSecret && this.secretForm()} ${this.engineNode}
      <details
        class="lab-operating" data-do="lab-about" ontoggle=${(event) => event.target.open && this.loadSummary()}
      >
        <summary>Folder, disk and the engine's log</summary>
        ${this.summary}
      </details>
    </section>`;
  }

  control(name) {
    return this.node.querySelector(`[data-do="${name}"]`);
  }

  // ---- the operator's secret

  secretForm() {
    return html`<form class="lab-row lab-only" onsubmit=${(event) => this.enterSecret(event)}>
      <label for="lab-secret">Operator's secret</label>
      <input class="lab-input" type="password" id="lab-secret" autocomplete="current-password" data-do="secret" />
      <button type="submit" class="lab-button small" data-do="secret-enter">Enter</button>
      <span class="muted">
        Only the operator trains, deletes, exports and changes projects. This browser keeps the secret.
      </span>
    </form>`;
  }

  async enterSecret(event) {
    event.preventDefault();
    const field = this.control('secret');
    const secret = field.value;
    const reply = await this.screen.act('enter_secret', { secret }, event.target);
    if (!reply) return;
    if (reply.redirect_to_login) {
      logInAsOperator(secret);
      return;
    }
    storeOperatorSecret(secret);
    field.value = '';
  }

  // ---- the engine

  drawEngine(engine = this.engine) {
    this.engine = engine;
    const [stateText, explanation] = ENGINE_TEXTS[engine.state];
    const disabled = !engine.stoppable;
    const stop = actionButton('stop-engine', 'Stop engine', () => this.stop(), 'small danger', { disabled });
    redraw(
      this.engineNode,
      html`<div class="lab-row">
        <strong>The engine ${stateText}.</strong>
        <span class="muted lab-grow">${explanation}</span>
        ${operatorOnly(stop)}
      </div>`,
    );
  }

  async stop() {
    const question = 'Runs stop at their last checkpoint and continue when the engine is restarted. Stop it?';
    if (!(await asked('stop-engine', question, 'Stop'))) return;
    this.screen.showMessage('Stopping the engine; up to 20 s …', false, this.engineNode);
    this.screen.act('stop_engine', {}, this.engineNode);
  }

  // ---- folder, disk and log

  async loadSummary() {
    const view = await this.screen.request('home_summary').then(
      (reply) => this.summaryView(reply),
      (error) => html`<p class="lab-notice bad">${error.message}</p>`,
    );
    this.summary.replaceChildren(view);
    this.summary.querySelector('.log')?.scrollTo(0, 1e6);
  }

  /** @param {lab.HomeSummary} home */
  summaryView({ path, note, usage, free, log }) {
    const sizes = [...usage, ['free on this disk', free]].map(
      ([label, size]) => html`<tr><th scope="row">${label}</th><td class="figure">${formatBytes(size)}</td></tr>`,
    );
    return html`<p>Everything is kept in <code>${path}</code></p>
      ${note && html`<p class="muted" data-do="lab-journal">${journalText(note)}</p>`}
      <table><tbody>${sizes}</tbody></table>
      <div class="lab-row">
        <h3>Last lines of the engine's log</h3>
        ${actionButton('lab-log-again', 'Reload', () => this.loadSummary())}
      </div>
      ${
        log
          ? html`<pre class="log" tabindex="0">${log}</pre>`
          : html`<p class="muted">Nothing yet: the engine has not been started in this home.</p>`
      }`;
  }
}

const journalText = (note) => `${note} Nothing is lost; votes of many people at once take a little longer.`;

// Sends a form, because an address with the secret would stay in the history. The login leads back to this screen.
function logInAsOperator(secret) {
  const form = html`<form method="post" action="enter${location.hash}" hidden>
    <input type="hidden" name="key" value=${secret} />
  </form>`;
  document.body.append(form);
  form.submit();
}

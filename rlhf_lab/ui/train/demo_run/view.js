// Demo mode: visitors start their own short run, see its place in the queue, and stop it. Hidden from the operator.
import { el, fillProposed, showNotice } from '../../shared/dom.js';
import { resetText } from '../../shared/format.js';
import { poll, unwrap } from '../../shared/poll.js';
import { annotatorName } from '../../shared/session.js';

const ESTIMATE_DELAY_MS = 400;

export default function mount({ element, props, server, trigger, watch }) {
  const root = element.querySelector('.lab-demo-run');
  let isBusy = false; // a start or stop has no reply yet
  let busyTimer = null;
  let estimateTimer = null;
  let ownRun = null; // of the last state
  const proposed = Object.fromEntries(props.data.fields.map(({ name, value }) => [name, String(value)]));
  let pollNow = () => {};

  const fields = props.data.fields.map((field) => {
    const input = el('input.lab-input', {
      type: 'number',
      min: field.low,
      max: field.high,
      step: 1,
      value: field.value,
      'data-do': `demo-${field.name}`,
      oninput: requestEstimate,
    });
    return {
      ...field,
      input,
      label: el('label', {}, el('span.muted', {}, `${field.label} (${field.low} to ${field.high})`), input),
    };
  });
  const startButton = el(
    'button.lab-button.lab-main',
    { type: 'button', disabled: true, 'data-do': 'demo-start', onclick: () => send('start', values()) },
    'Start PPO',
  );
  const stopButton = el(
    'button.lab-button.danger',
    { type: 'button', 'data-do': 'demo-stop', onclick: () => send('stop') },
    'Stop my run',
  );
  const form = el(
    'div.lab-row.fields',
    {},
    fields.map(({ label }) => label),
    startButton,
  );
  const estimate = el('p.muted', { 'data-do': 'demo-estimate' });
  const status = el('p', { role: 'status', 'data-do': 'demo-status' }, 'Loading the queue …');
  const notice = el('p.lab-notice.bad', { role: 'alert', hidden: true, 'data-do': 'demo-error' });
  const reset = el('p.muted', { 'data-do': 'demo-reset' }, props.data.rules);
  const title = el('h2', {}, 'Start a run of your own');
  root.append(el('div.lab-card', {}, title, form, estimate, el('div.lab-row', {}, status, stopButton), notice, reset));

  const values = () => Object.fromEntries(fields.map(({ name, input }) => [name, input.valueAsNumber]));

  function setBusy(now) {
    isBusy = now;
    clearTimeout(busyTimer);
    if (now) {
      busyTimer = setTimeout(() => {
        setBusy(false);
        pollNow();
      }, 4000);
    } // the reply was lost
    if (now) startButton.disabled = stopButton.disabled = true;
  }

  function send(name, payload = {}) {
    setBusy(true);
    showNotice(notice, '');
    trigger(name, { request_id: Date.now(), annotator: annotatorName(), ...payload });
  }

  function requestEstimate() {
    clearTimeout(estimateTimer);
    estimateTimer = setTimeout(async () => {
      estimate.textContent = (await unwrap(server.estimate(values()))).sentence;
    }, ESTIMATE_DELAY_MS);
  }

  function draw(state) {
    if (ownRun !== null && state.own_run === null) requestEstimate(); // a run has ended, so its times are known
    ownRun = state.own_run;
    fillProposed(Object.fromEntries(fields.map(({ name, input }) => [name, input])), proposed, state);
    title.textContent = ownRun === null ? 'Start a run of your own' : 'Your run';
    status.textContent = state.status_text;
    form.hidden = estimate.hidden = ownRun !== null;
    stopButton.hidden = ownRun === null;
    reset.textContent = `${props.data.rules} ${resetText(state)}`;
    if (isBusy) return;
    startButton.disabled = !state.can_start;
    stopButton.disabled = false;
  }

  watch('value', () => {
    const reply = props.value;
    if (!reply) return;
    setBusy(false);
    if (reply.error) showNotice(notice, reply.error, true);
    else draw(reply);
    // otherwise the run in progress stays in view
    if (reply.run && !reply.runs_before) window.dispatchEvent(new CustomEvent('lab-run', { detail: reply.run }));
    pollNow();
  });
  requestEstimate();
  pollNow = poll(root, async () => draw(await unwrap(server.state({ annotator: annotatorName() }))), 1500);
}

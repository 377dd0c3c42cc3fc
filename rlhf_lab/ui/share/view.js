// A recorded run as a page of its own, without a lab and without a network: ui/share/page.py puts this script, the
// modules that it imports and the data into one file.
import { BlindTest } from './blind_test.js';
import { RankingView } from '../compare/tournament/ranking.js';
import { definitionOf, term, useDefinitions } from '../shared/glossary.js';
import { formatAccuracy, formatInterval, isWideInterval, plural } from '../shared/format.js';
import { html } from '../shared/html.js';
import { stepChart } from '../shared/plot.js';
import { nearest } from '../train/sample_texts.js';
import { SampleViewer } from '../train/sample_viewer.js';
import { TokenView } from '../train/token_view.js';

/**
 * The data of the page, `Recording` of recording.py.
 * @typedef {{
 *   title: string, recorded_at: number, model: string, prompt_set: string, algorithm: string,
 *   feed: lab.FeedReply, curves: { metric: string, title: string, unit: string }[],
 *   samples: Record<string, lab.StepSamples>,
 *   tokens: Record<string, lab.TokenView>,
 *   settings: { name: string, value: string, is_changed: boolean, about: string }[],
 *   accuracy: number[] | null, labelled_by: string[], blind_test: string, definitions: Record<string, string>,
 *   has_tested_pairs: boolean, intervals: number[][][], ranking: lab.Ranking | null,
 *   pairs: { prompt: string, turns: { role: string, content: string }[], texts: [string, string], policy: number }[],
 * }} Recording
 */

let recording = /** @type {Recording} */ (/** @type {unknown} */ (null));

export default function mount() {
  recording = JSON.parse(document.getElementById('recording').textContent);
  document.body.classList.toggle('dark', matchMedia('(prefers-color-scheme: dark)').matches);
  useDefinitions(recording.definitions);
  document
    .querySelector('main')
    .append(heading(), blindTest(), results(), tournament(), curves(), texts(), notes(), settings());
}

function heading() {
  const { title, recorded_at: at, model, prompt_set: prompts, algorithm, feed } = recording;
  const day = new Date(1000 * at).toLocaleDateString('en', { year: 'numeric', month: 'long', day: 'numeric' });
  return html`<header class="lab-card">
    <h1>${title}</h1>
    <p>
      ${algorithm.toUpperCase()}, ${plural(feed.run.step, 'step')} of ${feed.run.total_steps}, model “${model}”, prompts
      “${prompts}”.
    </p>
    <p class="muted">
      A recording of ${day}, made with RLHF Lab. Nothing on this page changes, and it needs no network.
    </p>
  </header>`;
}

/** @param {number[]} shares */
const accuracyText = (shares) => formatAccuracy({ accuracy: shares[0], low: shares[1], high: shares[2] });

function results() {
  const { accuracy, labelled_by: names, feed } = recording;
  return html`<section class="lab-card" aria-label="results">
    <h2>What it learned from</h2>
    <p>${feed.static?.label_source}</p>
    ${
      accuracy &&
      html`<p>${term('reward model')}: it ranks ${accuracyText(accuracy)} of held-out labels correctly${
        isWideInterval({ low: accuracy[1], high: accuracy[2] })
          ? '; there are too few for a single figure'
          : ` (95 % interval ${formatInterval(accuracy[1], accuracy[2])})`
      }.</p>`
    }
    ${names.length ? html`<p>Labelled by ${names.join(', ')}.</p>` : null}
    ${feed.best_text && html`<p>${feed.best_text}</p>`}
  </section>`;
}

function tournament() {
  if (!recording.ranking) return '';
  const view = new RankingView(false);
  view.draw(recording.ranking);
  view.fold.open = true;
  return html`<section class="lab-card tournament" aria-label="tournament">
    <h2>${term('tournament', 'Tournament')}</h2>
    <p>The author’s lab compared this run with other models in blind pairs.</p>
    ${view.element}
  </section>`;
}

function curves() {
  const figures = recording.curves
    .filter(({ metric }) => recording.feed.points[metric]?.some(([, value]) => value !== null))
    .map((curve) => figure(curve));
  return html`<section class="curves" aria-label="curves">${figures}</section>`;
}

function figure({ metric, title, unit }) {
  const points = recording.feed.points[metric].filter(([, value]) => value !== null);
  const factor = unit === 'share' ? 100 : 1;
  const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => factor * value)];
  const verdict = recording.feed.verdicts[metric];
  return html`<figure class="lab-card chart">
    <figcaption>${term(title)} <span class="muted">${unit === 'share' ? '%' : unit}</span></figcaption>
    ${stepChart(title, steps, values, 'accent', { hasTitle: false })}
    ${verdict && html`<p class="verdict" data-level=${verdict.level}>${verdict.message}</p>`}
    <p class="muted definition">${definitionOf(metric)}</p>
  </figure>`;
}

function texts() {
  const tokenSteps = Object.keys(recording.tokens).map(Number);
  const tokens = new TokenView(
    async ({ step }) => recording.tokens[nearest(tokenSteps, step)],
    () => tokenSteps,
  );
  const steps = Object.keys(recording.samples).map(Number);
  const samples = new SampleViewer(recording.feed.run.id, async ({ step }) => recording.samples[step], {
    onStep: (step) => tokens.show(recording.feed.run.id, step),
    onTokens: () => tokens.open(),
  });
  samples.addSteps('recorded', steps, true);
  const hasTokens = tokenSteps.length > 0;
  return html`<section class="lab-train texts" aria-label="texts">
    ${samples.node} ${hasTokens && tokens.node}
  </section>`;
}

function blindTest() {
  if (!recording.pairs.length) return '';
  return new BlindTest(recording).node;
}

// Printed with the page: the report that somebody hands in.
function notes() {
  return html`<section class="lab-card own" aria-label="your notes">
    <h2>Your notes</h2>
    <div
      class="notes" contenteditable="true" role="textbox" aria-multiline="true" aria-label="your notes"
      data-placeholder="Write here, then print the page. Nothing is stored."
    ></div>
  </section>`;
}

function settings() {
  const row = ({ name, value, is_changed: isChanged, about }) =>
    html`<tr class=${isChanged ? 'changed' : ''}>
      <th scope="row"><code>${name}</code></th>
      <td>${value}</td>
      <td class="muted">${about}</td>
    </tr>`;
  return html`<details class="lab-card">
    <summary><h2>Settings</h2></summary>
    <p class="muted">Bold: not what the lab recommends for this algorithm.</p>
    <table>
      <tbody>${recording.settings.map(row)}</tbody>
    </table>
  </details>`;
}

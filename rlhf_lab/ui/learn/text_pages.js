// The pages of Learn about language: the numbers are those of the newest run, or of a recorded one.
import {
  clippedObjective,
  entropy,
  gae,
  isClipped,
  isNearBest,
  mean,
  pairLoss,
  probabilitiesAt,
  shapedRewards,
  sum,
  valueLosses,
  winProbability,
} from './formulas.js';
import { tokenLine } from './pictures.js';
import { html, textView } from '../shared/dom.js';
import { formatNumber, formatPercent, plural } from '../shared/format.js';
import { barChart, plot, rangeOf, stepChart } from '../shared/plot.js';

const number = (value) => formatNumber(Math.abs(value) < 1e-9 ? 0 : value, 3);
const shortToken = (token) => token.trim().slice(0, 8) || '·';
const SHOWN_TOKENS = 64;
const CURVE_POINTS = 80;

/** @param {(x: number) => number} f @param {[number, number]} range */
const curve = (f, [low, high]) =>
  Array.from({ length: CURVE_POINTS + 1 }, (_, i) => low + ((high - low) * i) / CURVE_POINTS).map((x) => [x, f(x)]);

const column = (row, name) => row.columns[name].map((value) => value ?? 0);
const shares = (values) => {
  const largest = Math.max(...values.map(Math.abs)) || 1;
  return values.map((value) => value / largest);
};
const rowOf = ({ view }) => view.rows[view.notable[0]];
const lastPromptText = (row) => row.turns.at(-1).content;

// ---- from the grid to text

const grounded = {
  name: 'text',
  title: 'From the grid to text',
  uses: 'run',
  text: [
    'A language model is a policy too. Its state is the prompt with all tokens (words or parts of words) so far. Its ' +
      'action is the next token, ' +
      'one of thousands. After the action the state is one token longer: here nothing is drunk.',
    'A text is a walk. Its reward comes at the very end: the score of a reward model, learned from people’s choices.',
  ],
  question: 'Go to the action that earns the score.',
  formula: 'log π(text) = Σₜ log π(tokenₜ | prompt, tokens before it)',
  core: 'core.logprobs.token_logprobs',
  sliders: ({ view }) => [
    {
      name: 'at', label: 'action', min: 0, max: rowOf({ view }).tokens.length - 1, step: 1,
      show: (value) => `${value + 1} of ${rowOf({ view }).tokens.length}`,
    }, // prettier-ignore
  ],
  begin: () => ({ at: 0 }),
  picture({ at }, material, act) {
    const row = rowOf(material);
    return [
      html`<p class="muted">The prompt</p>`,
      textView(lastPromptText(row)),
      html`<p class="muted">The tokens so far; the last one is the action.</p>`,
      tokenLine(row.tokens, { selected: at, until: at + 1, choose: (i) => act.set({ at: i }) }),
    ];
  },
  facts({ at }, material) {
    const row = rowOf(material);
    const isLast = at === row.tokens.length - 1;
    return [
      `The policy gave this token a probability of ${chance(Math.exp(column(row, 'old_logprob')[at]))}.`,
      isLast ? `The text is complete. Its score: ${number(row.shaped_score ?? 0)}.` : 'No score yet.',
    ];
  },
  isSolved: ({ at }, material) => at === rowOf(material).tokens.length - 1,
};

// ---- clipping

const allTokens = ({ view }) =>
  view.rows
    .flatMap((row) => column(row, 'ratio').map((ratio, i) => ({ ratio, advantage: column(row, 'advantage')[i] })))
    .filter(({ advantage }) => advantage !== 0);

const clippedTokens = (state, material) =>
  allTokens(material).filter(({ ratio, advantage }) => isClipped(ratio, advantage, 10 ** state.exponent));

// The probability of a token that was written, which is never 0.
const chance = (share) => (share < 0.005 ? 'below 1 %' : formatPercent(share));

function clipChart(sign, { exponent }, material) {
  const epsilon = 10 ** exponent;
  const tokens = allTokens(material).filter(({ advantage }) => advantage * sign > 0);
  const far = Math.max(...allTokens(material).map(({ ratio }) => Math.abs(ratio - 1)), 0.01) * 1.3;
  /** @type {[number, number]} */
  const x = [1 - far, 1 + far];
  const objective = (ratio) => clippedObjective(ratio, sign, epsilon);
  return plot({
    label: `objective by ratio for tokens of ${sign > 0 ? 'positive' : 'negative'} advantage`,
    x,
    y: rangeOf([sign * x[0], sign * x[1]]),
    xTitle: 'ratio w',
    yTitle: sign > 0 ? 'for A = 1' : 'for A = −1',
    lines: [
      { points: curve((ratio) => ratio * sign, x), kind: 'muted' },
      { points: curve(objective, x), kind: 'accent' },
    ],
    dots: tokens.map(({ ratio }) => ({
      x: ratio, y: objective(ratio), kind: isClipped(ratio, sign, epsilon) ? 'warn' : 'good',
    })), // prettier-ignore
    height: 132,
  });
}

const clipping = {
  name: 'clipping',
  title: 'Clipping: enough is enough',
  uses: 'run',
  text: [
    'PPO (proximal policy optimisation) uses old texts for several updates. A token’s ratio w says how much ' +
      'likelier it is now. Training raises w·A, but A describes the old policy and misleads far from it.',
    'PPO raises the smaller of w·A and w·A with w held within 1 ± ε (cliprange). A good token (A above 0) gains ' +
      'nothing above 1 + ε, a bad one below 1 − ε; the way back stays open.',
  ],
  question: 'Set ε so that some tokens, but under 10 %, are held back.',
  formula: 'min(w · A, clip(w, 1 − ε, 1 + ε) · A)',
  core: 'core.policy_losses.ppo_clip',
  sliders: () => [
    { name: 'exponent', label: 'ε', min: -3, max: -0.5, step: 0.05, show: (value) => number(10 ** value) },
  ],
  begin: () => ({ exponent: -3 }),
  picture: (state, material) => [
    clipChart(1, state, material),
    clipChart(-1, state, material),
    html`<p class="muted">
      Grey: w·A. Colour: the smaller of the two, which training raises. Dots: tokens; orange ones are past their bound.
    </p>`,
  ],
  facts(state, material) {
    const count = clippedTokens(state, material).length;
    return [`${count} of ${plural(allTokens(material).length, 'token')} held back.`];
  },
  isSolved(state, material) {
    const count = clippedTokens(state, material).length;
    return count > 0 && count < allTokens(material).length / 10;
  },
};

// ---- advantages

const advantagesOf = ({ lam }, material) => gae(column(rowOf(material), 'delta'), material.view.constants.gamma, lam);

const advantage = {
  name: 'gae',
  title: 'Whose merit was it?',
  uses: 'run',
  text: [
    'The value function, itself learned (next page), guesses before each token what the text will still earn. The ' +
      'surprise δ of a token is its reward plus how much the guess then rises. The advantage is this surprise plus ' +
      'later ones, the k-th multiplied by (γλ)ᵏ.',
    'λ = 1 adds them all: right on average, but noisy. A small λ trusts the guesses: calmer, but wrong wherever a ' +
      'guess is wrong.',
  ],
  question: 'Set λ so that the advantage of a token depends on one surprise only.',
  formula: 'Aₜ = δₜ + γλ Aₜ₊₁, δₜ = rₜ + γ Vₜ₊₁ − Vₜ',
  core: 'core.advantages.gae',
  sliders: () => [{ name: 'lam', label: 'λ', min: 0, max: 1, step: 0.05 }],
  begin: ({ view }) => ({ lam: view.constants.lam || 0.95, selected: Math.min(view.notable[1], SHOWN_TOKENS - 1) }),
  picture(state, material, act) {
    const row = rowOf(material);
    const values = advantagesOf(state, material);
    const tokens = row.tokens.slice(0, SHOWN_TOKENS);
    const deltas = column(row, 'delta');
    return [
      tokenLine(row.tokens, {
        shares: shares(values), selected: state.selected, choose: (selected) => act.set({ selected }),
      }), // prettier-ignore
      barChart(
        'surprise and advantage of each token',
        tokens.map((_, i) => (tokens.length > 12 && i % 8 ? '' : String(i + 1))),
        [
          { values: deltas.slice(0, SHOWN_TOKENS), kind: 'muted' },
          { values: values.slice(0, SHOWN_TOKENS), kind: 'accent' },
        ],
        { xTitle: 'token', yTitle: 'δ and A', height: 150 },
      ),
      html`<p class="muted">
        Grey: surprise δ. Colour: advantage. Green tokens have a positive one, red tokens a negative one.
      </p>`,
    ];
  },
  facts(state, material) {
    const { gamma } = material.view.constants;
    const { selected, lam } = state;
    const deltas = column(rowOf(material), 'delta').slice(selected);
    const terms = deltas.slice(0, 4).map((delta, l) => `${number((gamma * lam) ** l)} · ${number(delta)}`);
    const rest = deltas.length > 4 && lam > 0 ? ' + …' : '';
    return [
      `Token ${selected + 1}, “${shortToken(rowOf(material).tokens[selected])}”: ` +
        `A = ${(lam > 0 ? terms : terms.slice(0, 1)).join(' + ')}${rest} = ` +
        `${number(advantagesOf(state, material)[selected])}.`,
    ];
  },
  isSolved: ({ lam }) => lam === 0,
};

// ---- the value function

// The token whose value was most wrong.
function worstValue(material) {
  const row = rowOf(material);
  const errors = column(row, 'target').map((target, i) => Math.abs(target - column(row, 'value')[i]));
  const at = errors.indexOf(Math.max(...errors));
  return { at, old: column(row, 'value')[at], target: column(row, 'target')[at], token: row.tokens[at] };
}

function valueRange(material) {
  const { old, target } = worstValue(material);
  const far = Math.abs(target - old) * 1.4 || 1;
  return /** @type {[number, number]} */ ([old - far, old + far]);
}
const clipRange = (material) => 0.4 * Math.abs(worstValue(material).target - worstValue(material).old) || 0.4;

function lossesAt(value, material) {
  const { old, target } = worstValue(material);
  return valueLosses(value, old, target, clipRange(material));
}

const value = {
  name: 'value',
  title: 'A guess that learns, in small steps',
  uses: 'run',
  text: [
    'The value function’s guess has a target T: the old guess plus the advantage (with λ = 1, what the text really ' +
      'still earned). Training makes the value loss, half the squared distance to T, small: better guesses give ' +
      'better advantages.',
    'Like the policy, it should not jump. A second loss uses the guess held within c (cliprange_value) of the old ' +
      'one. The larger counts, so a step past c towards T gains nothing.',
  ],
  question: 'Move the guess to where the loss that counts is flat.',
  formula: '½ max((V − T)², (clip(V, V_old ± c) − T)²)',
  core: 'core.policy_losses.clipped_value_loss',
  sliders(material) {
    const [low, high] = valueRange(material);
    return [{ name: 'value', label: 'new guess V', min: low, max: high, step: (high - low) / 200, show: number }];
  },
  begin: (material) => ({ value: worstValue(material).old }),
  picture(state, material) {
    const range = valueRange(material);
    const loss = (x) => Math.max(...Object.values(lossesAt(x, material)));
    const { target, old } = worstValue(material);
    return [
      plot({
        label: 'value loss by the new guess',
        x: range,
        y: rangeOf(curve(loss, range).map(([, y]) => y)),
        xTitle: 'new guess V',
        yTitle: 'loss',
        lines: [
          { points: curve((x) => lossesAt(x, material).plain, range), kind: 'muted' },
          { points: curve(loss, range), kind: 'accent' },
        ],
        dots: [{ x: state.value, y: loss(state.value), kind: 'warn', r: 6 }],
        marks: [
          { x: old, kind: 'muted' },
          { x: target, kind: 'good' },
        ],
      }),
      html`<p class="muted">
        Grey line: the old guess. Green line: the target. Grey curve: the loss without a range. Colour: the loss that
        counts.
      </p>`,
    ];
  },
  facts(state, material) {
    const { plain, clipped } = lossesAt(state.value, material);
    const { at, token, old, target } = worstValue(material);
    return [
      `Token ${at + 1}, “${shortToken(token)}”: old guess ${number(old)}, target ${number(target)}, ` +
        `c in this picture ${number(clipRange(material))}.`,
      `Plain loss ${number(plain)}, loss with the range ${number(clipped)}; the larger one counts.`,
    ];
  },
  isSolved(state, material) {
    const { plain, clipped } = lossesAt(state.value, material);
    return clipped > plain && Math.abs(state.value - worstValue(material).old) > clipRange(material);
  },
};

// ---- the pairwise loss

const PAIR_RANGE = /** @type {[number, number]} */ ([-5, 5]);

const pairs = {
  name: 'pairs',
  title: 'A score from choices',
  uses: 'labels',
  text: [
    'People compare more easily than they score. The reward model gives each text a score. σ(x) = 1 / (1 + e⁻ˣ) ' +
      'turns the difference of two scores into the probability that the first is preferred.',
    'The loss is small if the choice was expected: near 0 if the model was sure and right, large if it was sure and ' +
      'wrong. Only differences count, so a score has no zero of its own.',
  ],
  question: 'Find the difference at which the model has no opinion.',
  formula: 'loss = −log σ(score of chosen − score of rejected)',
  core: 'core.preference.bradley_terry_loss',
  sliders: () => [{ name: 'difference', label: 'difference of the scores', min: -5, max: 5, step: 0.05 }],
  begin: () => ({ difference: 2 }),
  picture: ({ difference }, { differences }) => [
    plot({
      label: 'loss by the difference of the scores, and the labels',
      x: PAIR_RANGE,
      y: [0, 5.2],
      xTitle: 'score of the chosen text − score of the other',
      yTitle: 'loss',
      lines: [{ points: curve(pairLoss, PAIR_RANGE), kind: 'accent' }],
      dots: [
        ...differences
          .filter((d) => Math.abs(d) < 5)
          .map((d) => ({ x: d, y: pairLoss(d), kind: d > 0 ? 'good' : 'bad' })),
        { x: difference, y: pairLoss(difference), kind: 'warn', r: 6 },
      ],
    }),
    html`<p class="muted">
      Small dots: labels that the model had not seen. Green: it was right. Red: it was wrong. Large dot: your slider.
    </p>`,
  ],
  facts: ({ difference }, { differences }) => [
    `Probability of the choice ${formatPercent(winProbability(difference))}, loss ${number(pairLoss(difference))}.`,
    `Mean loss of the ${plural(differences.length, 'label')}: ${number(mean(differences.map(pairLoss)))}; without an ` +
      `opinion it would be ${number(Math.log(2))}.`,
  ],
  isSolved: ({ difference }) => Math.abs(difference) < 0.03,
};

// ---- the KL penalty

const superscript = (n) => [...String(n)].map((digit) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[Number(digit)]).join('');

// e to the power of these nats, in words; above a million as a power of ten.
const timesText = (nats) =>
  nats < Math.log(1e6)
    ? `${number(Math.exp(nats))} times`
    : `about 10${superscript(Math.round(nats / Math.LN10))} times`;

const kls = (material) => column(rowOf(material), 'kl');
const totalKl = (material) => sum(kls(material));
const scoreOf = (material) => rowOf(material).shaped_score ?? 0;
const largestBeta = (material) => 2 / Math.max(0.05, Math.abs(totalKl(material)));

const penalty = {
  name: 'kl',
  title: 'A leash of strength β',
  uses: 'run',
  text: [
    'A reward model knows only texts like its training texts. So the policy pays for leaving the base model (the ' +
      'policy before training): at each token β times (log π − log π_base).',
    'The sum of these differences, averaged over the policy’s texts, is the KL (Kullback–Leibler divergence), in ' +
      'nats (natural logarithms). 4 nats: e⁴ = 55 times as likely as under the base. Clipping limits drift from the ' +
      'old policy, β from the base.',
  ],
  question: 'Set β so that this text’s sum changes its reward by 1.',
  formula: 'rₜ = −β (log π − log π_base), and the score at the last token',
  core: 'core.kl.shape_rewards',
  sliders: (material) => [
    { name: 'beta', label: 'β', min: 0, max: largestBeta(material), step: largestBeta(material) / 200, show: number },
  ],
  begin: ({ view }) => ({ beta: view.constants.beta }),
  picture(state, material) {
    const rewards = shapedRewards(kls(material), scoreOf(material), state.beta);
    const { tokens } = rowOf(material);
    return [
      tokenLine(tokens, { shares: shares(kls(material).map((kl) => -kl)), selected: -1, choose: () => {} }),
      barChart(
        'reward of each token',
        tokens.map((_, i) => (i % 8 ? '' : String(i + 1))),
        [{ values: rewards, kind: 'accent' }],
        { xTitle: 'token', yTitle: 'reward', height: 150 },
      ),
      html`<p class="muted">Red tokens: likelier under the policy than under the base. Green: less likely.</p>`,
    ];
  },
  facts(state, material) {
    const kl = totalKl(material);
    return [
      `The sum of this text: ${number(kl)} nats. The policy makes it ${timesText(Math.abs(kl))} ` +
        `${kl >= 0 ? 'as likely as' : 'less likely than'} the base does.`,
      `Reward: ${number(scoreOf(material))} − ${number(state.beta)} · ${number(kl)} = ` +
        `${number(scoreOf(material) - state.beta * kl)}.`,
    ];
  },
  isSolved: (state, material) => Math.abs(Math.abs(state.beta * totalKl(material)) - 1) < 0.05,
};

// ---- entropy

const choices = {
  name: 'entropy',
  title: 'How open is the next word?',
  uses: 'recording',
  text: [
    'Entropy measures how undecided the policy is. If one token has all the probability, it is 0. If k tokens are ' +
      'equally likely, it is the logarithm of k. A low temperature favours the likeliest token; a high one evens out.',
    'Training for reward makes the policy surer, so the entropy falls. If it falls to nothing, all texts are alike ' +
      'and nothing new is tried. A bonus for entropy slows this.',
  ],
  question: 'Make the choice as open as one between two equally likely words.',
  formula: 'H = −Σ p log p',
  core: 'core.logprobs.logprobs_and_entropy',
  sliders: () => [{ name: 'temperature', label: 'temperature', min: 0.1, max: 3, step: 0.02 }],
  begin: () => ({ temperature: 1 }),
  picture({ temperature }, { distribution }) {
    const probabilities = probabilitiesAt(distribution.logprobs, temperature);
    return [
      textView(`${distribution.text} …`),
      barChart(
        'probability of the likeliest next tokens',
        distribution.tokens.map((token) => shortToken(token).slice(0, 6)),
        [{ values: probabilities, kind: 'accent' }],
        { xTitle: 'next token', yTitle: 'probability' },
      ),
      html`<p class="muted">The ${distribution.tokens.length} likeliest next tokens, as if there were no others.</p>`,
    ];
  },
  facts({ temperature }, { distribution }) {
    const nats = entropy(probabilitiesAt(distribution.logprobs, temperature));
    return [`Entropy ${number(nats)} nats: as open as ${number(Math.exp(nats))} equally likely tokens.`];
  },
  isSolved: ({ temperature }, { distribution }) =>
    Math.abs(Math.exp(entropy(probabilitiesAt(distribution.logprobs, temperature))) - 2) < 0.1,
};

// ---- score against gold

const atStep = ({ at }, { curves }) => ({
  step: curves.steps[at], score: curves.score[at], gold: curves.gold[at], kl: curves.kl[at],
}); // prettier-ignore

const curveChart = (name, kind, { at }, { curves }) =>
  stepChart(name, curves.steps, curves[name], kind, { marks: [curves.steps[at]], height: 132 });

const overoptimised = {
  name: 'gold',
  title: 'When the score lies',
  uses: 'curves',
  text: [
    'The score is only a model of what people want. Gold is the thing itself: here, the judge whose choices taught ' +
      'the reward model. At ' +
      'first both rise. Then the policy finds texts that the reward model overrates: the score keeps rising, ' +
      'and gold falls.',
    'This is over-optimisation. Remedies: a KL penalty, a KL budget (above it β grows), new labels, an early stop. ' +
      'Without gold, let people compare texts of two steps: the score cannot tell.',
  ],
  question: 'Choose a step after which gold no longer rises.',
  formula: 'J = E[score] − β · KL(policy, base)',
  core: 'core.kl.kl_estimate',
  sliders: ({ curves }) => [
    {
      name: 'at', label: 'step', min: 0, max: curves.steps.length - 1, step: 1,
      show: (at) => String(curves.steps[at]),
    }, // prettier-ignore
  ],
  begin: ({ curves }) => ({ at: curves.steps.length - 1 }),
  picture: (state, material) => [
    curveChart('score', 'accent', state, material),
    curveChart('gold', 'good', state, material),
  ],
  facts(state, material) {
    const { step, score, gold, kl } = atStep(state, material);
    return [
      `Step ${step}: score ${number(score)}, gold ${number(gold)}, KL ${number(kl)} nats.`,
      `Its texts are likelier than under the base by a (geometric) mean of ${timesText(Math.max(0, kl))}.`,
    ];
  },
  isSolved(state, { curves }) {
    return isNearBest(curves.gold, state.at);
  },
};

export const TEXT_PAGES = [grounded, clipping, advantage, value, pairs, penalty, choices, overoptimised];

// The pages of Learn about the cat: values, walks, and gradients from walks. They share one world and one policy.
import { effectiveSampleSize, mean, spread, totalSpread } from './formulas.js';
import { grid, histogram, PIECE_NAMES, tokenLine } from './pictures.js';
import {
  actionValues,
  ARROWS,
  exactGradient,
  gradientSample,
  isOver,
  PIECES,
  rewardsToGo,
  somePolicy,
  totalReturn,
  valuesOf,
  walkRatio,
  walks,
} from './world.js';
import { actionButton, html } from '../shared/dom.js';
import { formatNumber, plural } from '../shared/format.js';
import { barChart, plot, rangeOf } from '../shared/plot.js';

export const FIRST_WORLD = {
  rows: 3,
  columns: 4,
  start: 8,
  meat: 3,
  broom: 5,
  bathtub: 7,
  broomCost: 1,
  slip: 0.1,
  gamma: 0.9,
};
export const FIRST_RANDOM = 0.5;
const MANY_WALKS = 400;
const RATIO_WALKS = 200;
const SHOWN_STEPS = 16;
const MOVE_NAMES = ['up', 'right', 'down', 'left'];

const policyOf = ({ world, random, policy }) => policy ?? somePolicy(world, random);
const number = (value) => formatNumber(Math.abs(value) < 1e-9 ? 0 : value, 2);
const precise = (value) => formatNumber(value, 4);
// With the same decimals in a row, so that A = Q − V holds for the numbers shown, and probabilities add up to 1.
const decimals = (value, digits = 2) => `${value < -0.5 / 10 ** digits ? '−' : ''}${Math.abs(value).toFixed(digits)}`;

// The first walk from `seed` on that meets a condition and fits on the screen; otherwise the shortest.
function findWalk(shared, seed, suits) {
  const policy = policyOf(shared);
  const sampled = walks(shared.world, policy, MANY_WALKS, seed).filter((steps) => steps.length > 0);
  const fitting = sampled.find((steps) => steps.length <= SHOWN_STEPS && suits(steps));
  return fitting ?? sampled.reduce((shortest, steps) => (steps.length < shortest.length ? steps : shortest));
}

const shownSteps = (steps) => steps.slice(0, SHOWN_STEPS);
const stepNames = (steps) => steps.map(({ action }, i) => `${i + 1} ${ARROWS[action]}`);
const worldGrid = (shared, view) =>
  grid(shared.world, { values: valuesOf(shared.world, policyOf(shared)), policy: policyOf(shared) }, view);

const WORLD_SLIDERS = [
  { name: 'slip', label: 'how drunk the cat is', min: 0, max: 0.7, step: 0.05, isWorld: true },
  { name: 'random', label: 'moves chosen at random', min: 0, max: 1, step: 0.05, isShared: true },
];

// ---- the world

const PLACE_IT = 'Now press the cell where it should stand.';
const TAKEN = 'That cell is taken. Press another one.';

function moveOrSelect(shared, state, cell, act) {
  const { piece } = state;
  if (!piece) act.set({ selected: cell });
  else if (PIECES.some((other) => other !== piece && shared.world[other] === cell)) act.set({ isTaken: true });
  else act.set({ piece: '', isTaken: false }, { world: { ...shared.world, [piece]: cell } });
}

function pieceButtons(state, act) {
  return html`<div class="lab-row" role="group" aria-label="move a piece">
    <span class="muted">Move:</span>
    ${PIECES.map((piece) => {
      const button = actionButton(`piece-${piece}`, PIECE_NAMES[piece], () =>
        act.set({ piece: state.piece === piece ? '' : piece, isTaken: false }),
      );
      button.setAttribute('aria-pressed', String(state.piece === piece));
      return button;
    })}
    ${state.piece && html`<span class="muted" role="status">${state.isTaken ? TAKEN : PLACE_IT}</span>`}
  </div>`;
}

function cellTable({ world, random }, cell) {
  const policy = somePolicy(world, random);
  const v = valuesOf(world, policy);
  if (isOver(world, cell)) return html`<p class="muted">The walk ends here, so nothing more can be earned.</p>`;
  const q = actionValues(world, v, cell);
  const row = (name, values, digits = 2) =>
    html`<tr><th scope="row">${name}</th>${values.map((value) => html`<td>${decimals(value, digits)}</td>`)}</tr>`;
  const moves = ARROWS.map((arrow, i) => html`<th scope="col" aria-label=${MOVE_NAMES[i]}>${arrow}</th>`);
  return html`<table class="cell-values">
    <caption>The cell you chose: V = ${decimals(v[cell])}</caption>
    <thead><tr><th scope="col">move</th>${moves}</tr></thead>
    <tbody>
      ${row('policy π', policy[cell], 3)}${row('Q', q)}${row(
        'advantage A',
        q.map((value) => value - v[cell]),
      )}
    </tbody>
  </table>`;
}

const world = {
  name: 'world',
  title: 'A cat, a policy, and what a place is worth',
  text: [
    'The cat wants the meat (+100). The broom costs 1; the bathtub costs 10 and ends the walk. The policy gives ' +
      'every move a probability. A drunk cat may go elsewhere.',
    'V is what the policy earns from a cell on average; each move of delay takes a tenth off a reward. Q is the ' +
      'same if the first move is fixed. The advantage of that move is Q minus V.',
  ],
  question: 'Put the bathtub right beside the cat, then make it drunk until V is below 0.',
  formula: 'A(s, a) = Q(s, a) − V(s), for move a in cell s',
  core: 'core.advantages.gae',
  sliders: () => WORLD_SLIDERS,
  begin: (shared) => ({ selected: shared.world.start, piece: '', isTaken: false }),
  picture: (state, shared, act) => [
    worldGrid(shared, { selected: state.selected, choose: (cell) => moveOrSelect(shared, state, cell, act) }),
    pieceButtons(state, act),
    cellTable(shared, state.selected),
  ],
  facts: () => [],
  isSolved: (_, shared) => valuesOf(shared.world, policyOf(shared))[shared.world.start] < 0,
};

// ---- one walk

const anotherWalk = (act, state) =>
  actionButton('another-walk', 'Another walk', () => act.set({ seed: state.seed + 1, selected: 0 }));
const endsWithMeat = (steps) => steps.at(-1).reward === 100;

const trajectory = {
  name: 'trajectory',
  title: 'A walk and its return',
  text: [
    'A trajectory τ is one walk: states (cells), moves and rewards in turn. Its return adds the rewards. A reward ' +
      'that comes t moves later is multiplied by γ to the power t, so that a nearer reward counts more.',
    'The policy and the world decide which walks are likely. Training changes the policy only.',
  ],
  question: 'Set γ so that the meat at the end of the walk counts for less than a quarter.',
  formula: 'R(τ) = r₀ + γ r₁ + γ² r₂ + …',
  core: 'core.advantages.rewards_to_go',
  sliders: () => [{ name: 'gamma', label: 'γ', min: 0.5, max: 0.99, step: 0.01 }],
  begin: (shared) => ({ seed: 1, gamma: shared.world.gamma }),
  picture(state, shared, act) {
    const steps = findWalk(shared, state.seed, endsWithMeat);
    const shown = shownSteps(steps);
    return [
      grid(
        shared.world,
        { values: valuesOf({ ...shared.world, gamma: state.gamma }, policyOf(shared)), policy: policyOf(shared) },
        { selected: -1, path: steps.map(({ cell }) => cell), choose: () => {} },
      ),
      html`<p class="muted">Dots: the cells of the walk. Below: its moves; a drunk cat may go elsewhere.</p>`,
      barChart(
        'the discounted reward of each move',
        stepNames(shown),
        [{ values: shown.map(({ reward }, t) => state.gamma ** t * reward), kind: 'accent' }],
        { xTitle: 'move', yTitle: 'γᵗ · r', height: 125 },
      ),
      anotherWalk(act, state),
    ];
  },
  facts(state, shared) {
    const steps = findWalk(shared, state.seed, endsWithMeat);
    const last = state.gamma ** (steps.length - 1);
    return [
      `Return of this walk of ${steps.length} moves: ${number(totalReturn(steps, state.gamma))}.`,
      `Its last reward, ${number(steps.at(-1).reward)}, is multiplied by ${number(last)}.`,
    ];
  },
  isSolved(state, shared) {
    const steps = findWalk(shared, state.seed, endsWithMeat);
    return endsWithMeat(steps) && state.gamma ** (steps.length - 1) < 0.25;
  },
};

// ---- the gradient from walks

const walkCount = (state) => Math.round(10 ** state.exponent);

function estimate(state, shared) {
  const policy = policyOf(shared);
  const { gamma, start } = shared.world;
  const samples = walks(shared.world, policy, walkCount(state), state.seed).map((steps) => {
    const value = totalReturn(steps, gamma);
    return gradientSample(shared.world, policy, steps, () => value);
  });
  const exact = exactGradient(shared.world, policy);
  const estimated = exact.map((_, action) => mean(samples.map((sample) => sample[4 * start + action])));
  const error = Math.hypot(...estimated.map((value, a) => value - exact[a])) / Math.hypot(...exact);
  return { exact, estimated, error };
}

const gradient = {
  name: 'gradient',
  title: 'A gradient from walks alone',
  text: [
    'The parameters are numbers that set the policy’s probabilities. The policy gradient ∇J says how to change them ' +
      'to raise the mean return J fastest. Nobody can try all walks. But if p is a walk’s probability, ∇p = p ∇log p ' +
      'makes ∇J a mean (E) over walks: each pushes up the log-probability of its own moves, in proportion to its ' +
      'return.',
    'log p is a sum over moves; the world’s terms, without parameters, have gradient 0.',
  ],
  question: 'Use enough walks to bring the error below 50 %.',
  formula: '∇J = E[ R(τ) · Σₜ ∇ log π(aₜ | sₜ) ]',
  core: 'core.policy_losses.reinforce_loss',
  sliders: () => [
    {
      name: 'exponent', label: 'walks', min: 0, max: 4, step: 0.25,
      show: (value) => String(Math.round(10 ** value)),
    }, // prettier-ignore
  ],
  begin: () => ({ seed: 1, exponent: 1 }),
  picture(state, shared, act) {
    const { exact, estimated } = estimate(state, shared);
    return [
      barChart(
        'gradient by the four logits of the first cell: exact, and estimated from walks',
        ARROWS,
        [
          { values: exact, kind: 'muted' },
          { values: estimated, kind: 'accent' },
        ],
        { xTitle: 'move in the first cell', yTitle: 'gradient' },
      ),
      html`<p class="muted">
        Grey: exact. Colour: from ${plural(walkCount(state), 'walk')}. For the four moves in the first cell.
      </p>`,
      actionButton('another-walk', 'Other walks', () => act.set({ seed: state.seed + 1 })),
    ];
  },
  facts: (state, shared) => [`Error: ${number(100 * estimate(state, shared).error)} % of the exact gradient.`],
  isSolved: (state, shared) => estimate(state, shared).error < 0.5,
};

// ---- reward-to-go

// The move that last led onto the broom; -1 if none did. The bathtub may cost as much, so the cell decides.
const lastBroom = (shared, steps) => steps.findLastIndex((_, t) => steps[t + 1]?.cell === shared.world.broom);
const hasBroom = (shared) => (steps) => lastBroom(shared, steps) >= 0;

// How far the gradients of single walks are from their mean.
function gradientSpread(shared, weights) {
  const policy = policyOf(shared);
  const sampled = walks(shared.world, policy, MANY_WALKS, 1);
  return totalSpread(sampled.map((steps) => gradientSample(shared.world, policy, steps, weights(steps))));
}

// The cat's habits stay as they are, whatever the broom costs.
const withCost = (shared, { broomCost }) => ({
  ...shared,
  world: { ...shared.world, broomCost },
  policy: policyOf(shared),
});

const toGo = {
  name: 'to-go',
  title: 'A move cannot change the past',
  text: [
    'With the whole return, every move is praised or blamed for everything, even for what came before it. A move can ' +
      'only change what follows. So each move is weighted by its reward-to-go: the rewards from there on.',
    'The mean gradient stays the same. If the past weighs much, leaving it out makes the gradients of single walks ' +
      'spread less: make the broom expensive. An update adds a small multiple of the gradient to the parameters.',
  ],
  question: 'Choose the last move that is still blamed for the broom.',
  formula: 'Gₜ = rₜ + γ Gₜ₊₁',
  core: 'core.advantages.reinforce_weights',
  sliders: () => [{ name: 'broomCost', label: 'what the broom costs', min: 1, max: 60, step: 1 }],
  begin: () => ({ seed: 1, selected: 0, broomCost: 40 }),
  picture(state, shared, act) {
    const world = withCost(shared, state);
    const { gamma } = world.world;
    const steps = findWalk(world, state.seed, hasBroom(world));
    const shown = shownSteps(steps);
    const later = rewardsToGo(steps, gamma);
    return [
      tokenLine(
        shown.map(({ action, reward }) => `${ARROWS[action]} ${number(reward)}`),
        { selected: state.selected, choose: (selected) => act.set({ selected }), style: 'moves' },
      ),
      barChart(
        'the weight of each move: the whole return, and the reward-to-go',
        stepNames(shown),
        [
          { values: shown.map(() => totalReturn(steps, gamma)), kind: 'muted' },
          { values: shown.map((_, t) => gamma ** t * later[t]), kind: 'accent' },
        ],
        { xTitle: 'move', yTitle: 'weight' },
      ),
      html`<p class="muted">
        Above: each move and its reward. Grey: the whole return. Colour: the reward-to-go, seen from the start (γᵗ Gₜ).
      </p>`,
      anotherWalk(act, state),
    ];
  },
  facts(state, shared) {
    const world = withCost(shared, state);
    const { gamma } = world.world;
    const withReturn = gradientSpread(world, (steps) => {
      const value = totalReturn(steps, gamma);
      return () => value;
    });
    const later = gradientSpread(world, (steps) => {
      const values = rewardsToGo(steps, gamma);
      return (t) => gamma ** t * values[t];
    });
    return [
      `Spread of the gradient over ${MANY_WALKS} walks: ${number(withReturn)} with the whole return, ` +
        `${number(later)} with the reward-to-go.`,
    ];
  },
  isSolved(state, shared) {
    const world = withCost(shared, state);
    const broom = lastBroom(world, findWalk(world, state.seed, hasBroom(world)));
    return broom >= 0 && state.selected === broom;
  },
};

// ---- baseline

// A sample is linear in the baseline: what the walk says without one, and what each point of it takes away.
function baselineSamples(shared) {
  const policy = policyOf(shared);
  const { gamma, start } = shared.world;
  const action = policy[start].indexOf(Math.max(...policy[start]));
  const parts = walks(shared.world, policy, MANY_WALKS, 1).map((steps) => {
    const later = rewardsToGo(steps, gamma);
    const sample = (weight) => gradientSample(shared.world, policy, steps, weight)[4 * start + action];
    return [sample((t) => gamma ** t * later[t]), sample((t) => gamma ** t)];
  });
  return (b) => parts.map(([without, each]) => without - b * each);
}

function bestMoveGradient(shared) {
  const here = policyOf(shared)[shared.world.start];
  return exactGradient(shared.world, policyOf(shared))[here.indexOf(Math.max(...here))];
}

// Without the outermost values.
const central = (values) => [...values].sort((a, b) => a - b).slice(values.length / 50, -values.length / 50);
const BASELINES = Array.from({ length: 61 }, (_, i) => -20 + 2 * i);

const baseline = {
  name: 'baseline',
  title: 'Better than usual, not just good',
  text: [
    'If every walk ends well, every move is pushed up: single walks’ gradients (samples) are large and noisy. ' +
      'Subtract a baseline: the cell’s usual return. Then moves that do better are pushed up, worse ones down.',
    'The exact mean stays the same: the probabilities of a cell sum to 1, so pushing all moves alike changes ' +
      'nothing on average. The best baseline is near V; Gₜ has mean Q, so Gₜ − V is one sample of the advantage.',
  ],
  question: 'Find the baseline at which the samples spread least.',
  formula: '∇J = E[ Σₜ γᵗ (Gₜ − b(sₜ)) ∇ log π(aₜ | sₜ) ]',
  core: 'core.advantages.reinforce_weights',
  sliders: () => [{ name: 'baseline', label: 'baseline b', min: -20, max: 100, step: 2 }],
  begin: () => ({ baseline: 0 }),
  picture(state, shared) {
    const samplesAt = baselineSamples(shared);
    const samples = samplesAt(state.baseline);
    const range = rangeOf([...central(samplesAt(-20)), ...central(samplesAt(100))], 0.02);
    const marks = [
      { x: mean(samples), kind: 'good' },
      { x: bestMoveGradient(shared), kind: 'warn' },
    ];
    return [
      histogram('gradient samples of walks', samples, range, marks, 'gradient of the best move, one walk each'),
      html`<p class="muted">Green line: the mean of ${MANY_WALKS} walks. Orange line: the exact mean.</p>`,
    ];
  },
  facts(state, shared) {
    const samplesAt = baselineSamples(shared);
    const samples = samplesAt(state.baseline);
    return [
      `Spread ${precise(spread(samples))} (with b = 0: ${precise(spread(samplesAt(0)))}).`,
      `Mean of these walks ${number(mean(samples))} ± ${number(spread(samples) / Math.sqrt(MANY_WALKS))}; ` +
        `exact mean ${number(bestMoveGradient(shared))}, whatever b is.`,
      `V where the cat starts: ${number(valuesOf(shared.world, policyOf(shared))[shared.world.start])}.`,
    ];
  },
  isSolved(state, shared) {
    const samplesAt = baselineSamples(shared);
    return spread(samplesAt(state.baseline)) <= 1.03 * Math.min(...BASELINES.map((b) => spread(samplesAt(b))));
  },
};

// ---- importance weights

function ratios({ newRandom }, shared) {
  const old = somePolicy(shared.world, Math.max(0.1, shared.random));
  const policy = somePolicy(shared.world, newRandom);
  const sampled = walks(shared.world, old, RATIO_WALKS, 1);
  const weights = sampled.map((steps) => walkRatio(steps, policy, old));
  const returns = sampled.map((steps) => totalReturn(steps, shared.world.gamma));
  const estimated = mean(returns.map((value, i) => weights[i] * value));
  const exact = valuesOf(shared.world, policy)[shared.world.start];
  return { weights, estimated, exact };
}

const importance = {
  name: 'importance',
  title: 'Using old walks for a new policy',
  text: [
    'Walks are expensive. After an update, those we have come from the old policy. Weighted by how much likelier the ' +
      'new policy makes them, many walks still give the right mean; few may not.',
    'But the weight of a walk is a product over its moves. If the policies differ much, a few walks have nearly all ' +
      'the weight, and the rest is wasted. That is why one update must change the policy little.',
  ],
  question: `Change the new policy until the ${RATIO_WALKS} walks are worth fewer than 20.`,
  formula: 'w(τ) = Πₜ π(aₜ | sₜ) / π_old(aₜ | sₜ)',
  core: 'core.logprobs.finite_exponent',
  sliders: () => [{ name: 'newRandom', label: 'new policy: moves at random', min: 0, max: 1, step: 0.05 }],
  begin: (shared) => ({ newRandom: Math.max(0.1, shared.random) }),
  picture(state, shared) {
    const sorted = ratios(state, shared).weights.sort((a, b) => b - a);
    const points = sorted.map((weight, i) => [i + 1, weight]);
    return [
      plot({
        label: 'the weights of the walks, largest first',
        x: [1, RATIO_WALKS],
        y: [0, Math.max(2, sorted[0])],
        lines: [{ points, kind: 'accent' }],
        xTitle: 'walks, largest weight first',
        yTitle: 'weight',
        whole: 'x',
      }),
    ];
  },
  facts(state, shared) {
    const { weights, estimated, exact } = ratios(state, shared);
    return [
      `The ${RATIO_WALKS} walks are worth ${number(effectiveSampleSize(weights))} walks of the new policy.`,
      `Mean return of the new policy: ${number(estimated)} from old walks, ${number(exact)} exactly. ` +
        'If few walks have the weight, the estimate can even exceed 100, the largest reward.',
    ];
  },
  isSolved: (state, shared) => {
    const { weights } = ratios(state, shared);
    return effectiveSampleSize(weights) < 20;
  },
};

export const WORLD_PAGES = [world, trajectory, gradient, toGo, baseline, importance];

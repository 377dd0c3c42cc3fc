// The cat's world: a Markov decision process on a grid, solved exactly. A policy is a list of probabilities for each
// cell, in the order of MOVES. tests/javascript/test_learn_formulas.py compares every function with an independent
// computation.

/** @typedef {{ rows: number, columns: number, start: number, meat: number, broom: number, bathtub: number,
 *   broomCost: number, slip: number, gamma: number }} World */
/** @typedef {number[][]} Policy */
/** @typedef {{ cell: number, action: number, reward: number }} Step */

/** up, right, down, left */
export const MOVES = [
  [-1, 0],
  [0, 1],
  [1, 0],
  [0, -1],
];
export const ARROWS = ['↑', '→', '↓', '←'];
export const PIECES = ['start', 'meat', 'broom', 'bathtub'];
const MAX_STEPS = 400; // of a walk; at gamma 0.95, what comes later counts for less than 1e-8
const TOLERANCE = 1e-10;

export const cellCount = (world) => world.rows * world.columns;
export const isOver = (world, cell) => cell === world.meat || cell === world.bathtub;

/** What entering a cell earns. @param {World} world */
export function rewardAt(world, cell) {
  if (cell === world.meat) return 100;
  if (cell === world.bathtub) return -10;
  return cell === world.broom ? -world.broomCost : 0;
}

/** Where a move leads; into a wall, the cat stays. @param {World} world */
export function destination({ rows, columns }, cell, move) {
  const row = Math.floor(cell / columns) + MOVES[move][0];
  const column = (cell % columns) + MOVES[move][1];
  return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : cell;
}

// With probability `slip` the cat makes one of the three other moves, equally likely.
const moveChance = (world, action, move) => (move === action ? 1 - world.slip : world.slip / 3);

/**
 * Q of each action in a cell: the mean of reward + gamma · V(next cell).
 * @param {World} world @param {number[]} v
 */
export function actionValues(world, v, cell) {
  return MOVES.map((_, action) =>
    MOVES.reduce((sum, __, move) => {
      const next = destination(world, cell, move);
      return sum + moveChance(world, action, move) * (rewardAt(world, next) + world.gamma * v[next]);
    }, 0),
  );
}

// V from repeated sweeps; summarise(Q of a cell, cell) is its new value.
function solve(world, summarise) {
  let v = new Array(cellCount(world)).fill(0);
  for (let change = 1; change > TOLERANCE;) {
    const next = v.map((_, cell) => (isOver(world, cell) ? 0 : summarise(actionValues(world, v, cell), cell)));
    change = Math.max(...next.map((value, cell) => Math.abs(value - v[cell])));
    v = next;
  }
  return v;
}

const dot = (weights, values) => weights.reduce((sum, weight, i) => sum + weight * values[i], 0);

/** V of a policy. @param {World} world @param {Policy} policy */
export const valuesOf = (world, policy) => solve(world, (q, cell) => dot(policy[cell], q));

/** V of the best policy, by value iteration. @param {World} world */
export const bestValues = (world) => solve(world, (q) => Math.max(...q));

/**
 * The best policy, except that a share of the moves is chosen at random.
 * @param {World} world @param {number} random from 0 to 1 @returns {Policy}
 */
export function somePolicy(world, random) {
  const best = bestValues(world);
  return best.map((_, cell) => {
    const q = actionValues(world, best, cell);
    const chosen = q.indexOf(Math.max(...q));
    return q.map((__, action) => random / 4 + (action === chosen ? 1 - random : 0));
  });
}

/** A generator of numbers from 0 to 1 (mulberry32). @param {number} seed */
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function draw(chances, random) {
  let left = random();
  const index = chances.findIndex((chance) => (left -= chance) < 0);
  return index < 0 ? chances.length - 1 : index;
}

/**
 * One walk from the start.
 * @param {World} world @param {Policy} policy @param {() => number} random @returns {Step[]}
 */
export function walk(world, policy, random) {
  const steps = [];
  let cell = world.start;
  while (!isOver(world, cell) && steps.length < MAX_STEPS) {
    const action = draw(policy[cell], random);
    const move = draw(
      MOVES.map((_, i) => moveChance(world, action, i)),
      random,
    );
    const next = destination(world, cell, move);
    steps.push({ cell, action, reward: rewardAt(world, next) });
    cell = next;
  }
  return steps;
}

/** @param {World} world @param {Policy} policy */
export function walks(world, policy, count, seed) {
  const random = randomNumbers(seed);
  return Array.from({ length: count }, () => walk(world, policy, random));
}

/** G_t of every step: its reward and the discounted rewards after it. @param {Step[]} steps */
export function rewardsToGo(steps, gamma) {
  const result = new Array(steps.length);
  let later = 0;
  for (let t = steps.length - 1; t >= 0; t -= 1) result[t] = later = steps[t].reward + gamma * later;
  return result;
}

/** R(τ), the discounted return of the whole walk. @param {Step[]} steps */
export const totalReturn = (steps, gamma) => steps.reduce((sum, { reward }, t) => sum + gamma ** t * reward, 0);

/**
 * What one walk says about the gradient of the mean return by the logits of the policy, four for each cell:
 * Σ_t weight_t · (1[a = a_t] − π(a)), in the row of the cell at time t.
 * @param {World} world @param {Policy} policy @param {Step[]} steps @param {(t: number) => number} weight
 */
export function gradientSample(world, policy, steps, weight) {
  const sample = new Array(4 * cellCount(world)).fill(0);
  steps.forEach(({ cell, action }, t) => {
    for (let a = 0; a < 4; a += 1) sample[4 * cell + a] += weight(t) * ((a === action ? 1 : 0) - policy[cell][a]);
  });
  return sample;
}

/**
 * The exact gradient by the logits of the start cell: visits of the start cell, discounted, times π(a) · A(a) there.
 * @param {World} world @param {Policy} policy
 */
export function exactGradient(world, policy) {
  const v = valuesOf(world, policy);
  const q = actionValues(world, v, world.start);
  const visits = discountedVisits(world, policy);
  return q.map((value, action) => visits * policy[world.start][action] * (value - v[world.start]));
}

// Σ_t gamma^t · P(the cat is in the start cell at time t)
function discountedVisits(world, policy) {
  let here = new Array(cellCount(world)).fill(0);
  here[world.start] = 1;
  let visits = 0;
  for (let factor = 1; factor > TOLERANCE; factor *= world.gamma) {
    visits += factor * here[world.start];
    const next = new Array(here.length).fill(0);
    here.forEach((chance, cell) => {
      if (!chance || isOver(world, cell)) return;
      policy[cell].forEach((share, action) =>
        MOVES.forEach((_, move) => {
          next[destination(world, cell, move)] += chance * share * moveChance(world, action, move);
        }),
      );
    });
    here = next;
  }
  return visits;
}

/** The probability of a walk under one policy, divided by that under another. @param {Step[]} steps */
export const walkRatio = (steps, policy, sampledBy) =>
  steps.reduce((ratio, { cell, action }) => (ratio * policy[cell][action]) / sampledBy[cell][action], 1);

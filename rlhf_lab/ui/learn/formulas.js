// The formulas that the sliders move. Each is a function of rlhf_lab/core for one number, with which
// tests/javascript/test_learn_formulas.py compares it.

export const clip = (value, low, high) => Math.min(Math.max(value, low), high);

/** PPO's objective of a token (core.policy_losses.ppo_clip, without the sign). */
export const clippedObjective = (ratio, advantage, epsilon) =>
  Math.min(ratio * advantage, clip(ratio, 1 - epsilon, 1 + epsilon) * advantage);

/** Whether the clipped branch is the smaller one, so that the token has no gradient. */
export const isClipped = (ratio, advantage, epsilon) =>
  clip(ratio, 1 - epsilon, 1 + epsilon) * advantage < ratio * advantage;

/**
 * Generalised advantage estimates (core.advantages.gae): sums of the surprises δ, by powers of γλ.
 * @param {number[]} deltas
 */
export function gae(deltas, gamma, lam) {
  const result = new Array(deltas.length);
  let later = 0;
  for (let t = deltas.length - 1; t >= 0; t -= 1) result[t] = later = deltas[t] + gamma * lam * later;
  return result;
}

/** The two losses of a value, of which the larger counts (core.policy_losses.clipped_value_loss). */
export const valueLosses = (value, oldValue, target, range) => ({
  plain: 0.5 * (value - target) ** 2,
  clipped: 0.5 * (clip(value, oldValue - range, oldValue + range) - target) ** 2,
});

/** −log σ(chosen − rejected), for a pair whose scores differ so much (core.preference.bradley_terry_loss). */
export const pairLoss = (difference) => Math.log1p(Math.exp(-difference));
export const winProbability = (difference) => 1 / (1 + Math.exp(-difference));

/**
 * Rewards of tokens: the KL penalty on each, and the score on the last (core.kl.shape_rewards).
 * @param {number[]} kl
 */
export const shapedRewards = (kl, score, beta) =>
  kl.map((value, i) => -beta * value + (i === kl.length - 1 ? score : 0));

/** Probabilities at another temperature. @param {number[]} logprobs */
export function probabilitiesAt(logprobs, temperature) {
  const largest = Math.max(...logprobs);
  const weights = logprobs.map((value) => Math.exp((value - largest) / temperature));
  const total = sum(weights);
  return weights.map((weight) => weight / total);
}

/** In nats (core.logprobs.logprobs_and_entropy). @param {number[]} probabilities */
export const entropy = (probabilities) => -sum(probabilities.map((p) => (p > 0 ? p * Math.log(p) : 0)));

/** How many unweighted samples weighted ones are worth: (Σw)² / Σw². @param {number[]} weights */
export const effectiveSampleSize = (weights) => sum(weights) ** 2 / sum(weights.map((weight) => weight ** 2));

/** @param {number[]} values */
export const sum = (values) => values.reduce((total, value) => total + value, 0);
/** @param {number[]} values */
export const mean = (values) => sum(values) / values.length;
/** The standard deviation, of a population. @param {number[]} values */
export function spread(values) {
  const centre = mean(values);
  return Math.sqrt(mean(values.map((value) => (value - centre) ** 2)));
}

/** The square root of the summed variances of vectors. @param {number[][]} samples */
export function totalSpread(samples) {
  const means = samples[0].map((_, i) => mean(samples.map((sample) => sample[i])));
  return Math.sqrt(mean(samples.map((sample) => sum(sample.map((value, i) => (value - means[i]) ** 2)))));
}

// Whether a point lies between the first and the last value in the upper tenth of the range.
export function isNearBest(values, at) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isHigh = (value) => value >= high - 0.1 * (high - low);
  return values.findIndex(isHigh) <= at && at <= values.findLastIndex(isHigh);
}

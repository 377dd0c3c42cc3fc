// What the form that starts a run says, and the values that choosing another algorithm leaves in its fields.
import { formatPercent, plural } from '../../shared/format.js';

const TERMS_ALONE =
  'Without a reward model the reward is the sum of the reward terms: write them under "All settings of the new run". ' +
  'Or choose dpo or sft, which learn from labels.';

export const startLabel = (algorithm) => `Start ${algorithm.replace('_', ' ').toUpperCase()}`;

/** Why there is no reward model yet, and what leads to one. @param {lab.StartOptions} state */
export function missingModelText(state) {
  if (state.training_text) {
    const progress = state.training_progress;
    return state.training_text + (progress === null ? '' : ` ${formatPercent(progress)} done.`);
  }
  if (state.labels_missing > 0) return `Label ${plural(state.labels_missing, 'more pair')} under Label`;
  return 'There are enough labels; training of the reward model is about to start.';
}

/**
 * What the run learns from.
 * @param {lab.StartOptions} state @param {lab.RewardModelOption | undefined} model
 */
export function sourceText(state, model, algorithm, learnsFromLabels) {
  if (!learnsFromLabels) return model ? model.note : TERMS_ALONE;
  const modelUse = `${algorithm} learns directly from these labels; the reward model is used only for the score curve.`;
  if (model) return `${model.note} ${modelUse}`;
  return state.labels_text
    ? `${algorithm} learns from the project's ${state.labels_text}. Without a reward model or reward terms there is ` +
        'no score curve.'
    : `${algorithm} learns from labels, and no label here prefers a text yet. Label some pairs first.`;
}

/**
 * What to know about reward models and runs in progress.
 * @param {lab.StartOptions} state @param {lab.RewardModelOption | undefined} model
 */
export function progressText(state, model) {
  const { default_id: defaultId, default_reason: reason, training_text: training, active_runs: runs } = state;
  return [
    model?.id === defaultId && reason,
    training &&
      model?.id > 0 &&
      `${training} A run started now learns from reward model ${model.id} and can be switched to that one later.`,
    runs.length
      ? `Run ${runs.join(', ')} is in progress; this run waits until it has ended.`
      : 'Training continues in the background when this page is closed.',
  ]
    .filter(Boolean)
    .join(' ');
}

/** The label of the size of a step; with several rollouts in a step it is that of each. */
export const sizeLabel = ([name, label], { rollouts }) =>
  name === 'batch_size' && Number(rollouts) > 1 ? label.replace('step', 'rollout') : label;

/** The values `after`, except those that a person has changed: they differ from `before`. */
export const keepEdits = (shown, before, after) =>
  Object.fromEntries(
    Object.entries(after).map(([name, value]) => [name, shown[name] === before[name] ? value : shown[name]]),
  );

/**
 * The fields with these values. A setting that the algorithm does not read is disabled and has its default, as in
 * `recommended`. readers: the algorithms that read a setting, for those that not all read.
 */
export const fieldProperties = (values, recommended, algorithm, readers) =>
  Object.fromEntries(
    Object.entries(values).map(([name, value]) => {
      const isRead = readers[name]?.includes(algorithm) ?? true;
      return [name, { value: isRead ? value : recommended[name], interactive: isRead }];
    }),
  );

export const usesPretrainingTexts = ({ ptx_coef: coefficient }) => Number(String(coefficient).trim()) !== 0;

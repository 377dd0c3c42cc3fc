// What the header says about its figures, as text.
import { formatAccuracy, formatBytes, formatDuration, formatInterval, isWideInterval } from '../shared/format.js';
import { momentText, plural, timeLeftText } from '../shared/format.js';

const SCREEN_STEP_MS = 4000; // how long a step that the screen Train published is used

// The status with the figures that the open screen published, where they are newer: Label publishes counts
// {project_created_at, counted_at, labels, simulated, guide_note}, Train a step {run, step, at}. now, at: ms.
/** @param {lab.HeaderStatus} status @returns {lab.HeaderStatus} */
export function withScreenFigures(status, counts, step, now) {
  const areCountsNewer =
    counts && counts.project_created_at === status.project_created_at && counts.counted_at > status.counted_at;
  const { labels, simulated } = areCountsNewer ? counts : status;
  const { job } = status;
  const isStepNewer = job && step && job.run === step.run && job.step < step.step && now - step.at <= SCREEN_STEP_MS;
  const withStep = (text) => text.replace(`step ${job.step} of`, `step ${step.step} of`);
  let guide = status.guide;
  // A viewer is asked to join.
  const isAboutLabels = guide?.present === 'Label' && status.may_label;
  if (isAboutLabels && areCountsNewer) {
    const note = counts.guide_note || guide.note.replace(/^\d+ more labels? .*/, plural(labels, 'label'));
    guide = { ...guide, note };
  }
  if (guide?.present === 'Train' && isStepNewer) guide = { ...guide, note: withStep(guide.note) };
  return { ...status, labels, simulated, guide, job: isStepNewer ? { ...job, label: withStep(job.label) } : job };
}

/** @param {lab.HeaderStatus} status */
export const labelsText = ({ labels, simulated }) =>
  `${plural(labels, 'label')}${simulated ? ` + ${simulated} simulated` : ''}`;

// After the accuracy: at how many labels it was measured, where there are many more by now.
/** @param {lab.HeaderStatus} status */
export function measuredAtText({ reward, labels, simulated }) {
  const now = reward?.simulated ? simulated : labels;
  return reward && reward.accuracy !== null && now > (4 / 3) * reward.labels
    ? ` (at ${plural(reward.labels, 'label')})`
    : '';
}

/** @param {lab.HeaderStatus} status */
export function machineText({ engine: { device, memory_mib: memoryMib } }) {
  return [device, memoryMib ? formatBytes(2 ** 20 * memoryMib) : ''].filter(Boolean).join(' · ');
}

// The word that the text of the accuracy explains. A run that trains while people label has the instant reward model.
/** @param {lab.HeaderStatus} status */
export function accuracyWord({ reward, run }) {
  if (reward) return 'accuracy';
  return run?.is_training && run.is_live ? 'instant reward model' : 'reward model';
}

// The accuracy of the reward model, and whose labels it is about where that is not obvious.
/** @param {lab.HeaderStatus} status */
export function accuracyText(status) {
  const { reward, simulated } = status;
  const word = accuracyWord(status);
  if (!reward) return word === 'reward model' ? 'no reward model yet' : word;
  const source = reward.simulated ? ', simulated' : simulated ? ', people' : '';
  return `accuracy ${formatAccuracy(reward)}${source}`;
}

// The note after an accuracy: its interval, or '' where the interval is shown instead of it.
/** @param {lab.HeaderReward} reward */
export function intervalText(reward) {
  return isWideInterval(reward) || reward.low === null ? '' : ` (${formatInterval(reward.low, reward.high)})`;
}

/** @param {lab.MirrorView} mirror */
export const isUnsaved = ({ problem, is_late: isLate }) => Boolean(problem) || isLate;

// Since when nothing could be saved to the Hub, or the age of the copy there.
/** @param {lab.MirrorView} mirror */
export function savedText(mirror) {
  if (isUnsaved(mirror)) return `Not saved ${sinceText(mirror)}`;
  return mirror.saved_at === null ? 'Saving …' : `Saved ${formatDuration(mirror.age_s)} ago`;
}

/** @param {lab.MirrorView} mirror */
export function unsavedText(mirror) {
  const reason = mirror.problem || 'The Hub takes long to answer. It is retried automatically.';
  return `Not saved to the Hub ${sinceText(mirror)}. ${reason} Newer labels are on this machine only.`;
}

const sinceText = ({ saved_at: savedAt }) => (savedAt === null ? 'yet' : `since ${momentText(savedAt)}`);

/** @param {lab.HeaderStartup} startup */
export function downloadText({ downloaded_bytes: bytes, total_bytes: total, eta_s: seconds }) {
  if (!total) return '';
  return `${formatBytes(bytes)} of ${formatBytes(total)}${timeLeftText(seconds, bytes / total)}`;
}

// What a person who labels is told of the newest run. known: the last run that trained while this page was open; seen:
// the run, and whether it trained, as they saw it.
/** @param {lab.HeaderStatus} status @param {number} known @param {string | null} seen */
export function runNews({ run, is_operator: isOperator, may_label: mayLabel }, known, seen) {
  if (!run || isOperator || !mayLabel || seen === runKey(run)) return '';
  if (run.is_training) return 'Training has started.';
  return run.id === known ? 'Training has ended.' : '';
}
export const runKey = (run) => JSON.stringify(run);

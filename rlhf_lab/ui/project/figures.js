// Figures of the screen "Project" as text.
import { formatBytes, formatNumber, plural, timeLeftText } from '../shared/format.js';

export const parameterCount = (n) =>
  n < 1e9 ? `${formatNumber(n / 1e6)} million` : `${formatNumber(n / 1e9)} billion`;

export const percent = (share) => `${Math.round(100 * share)} %`;

/** @param {lab.LengthRow} row the probable range of its share of complete texts */
export const shareRange = ({ low, high }) => `${Math.round(100 * low)} to ${percent(high)}`;

/** @param {lab.LengthRow} row */
export const proposalText = ({ max_new_tokens: tokens, adds_instruction: addsInstruction }) =>
  `Use ${tokens} tokens${addsInstruction ? ' and add the instruction' : ''}`;

/** @param {lab.ProjectRow} project what is deleted with it */
export const contentsText = (project) =>
  [
    plural(project.human_labels, 'label'),
    plural(project.model_count, 'reward model'),
    plural(project.run_count, 'run'),
  ].join(', ');

/** @param {lab.DownloadView} download */
export function downloadText(download) {
  if (download.status === 'checking') return 'is being checked …';
  if (download.status !== 'running') return download.message;
  const { downloaded_bytes: downloaded, total_bytes: total, eta_s: seconds } = download;
  return `${formatBytes(downloaded)} of ${formatBytes(total)}${timeLeftText(seconds, total ? downloaded / total : 0)}`;
}

// The settings that a project adds to its prompts, as lines.
/** @param {lab.ProjectRow} project */
export const chatSettings = (project) =>
  [
    ['system prompt', project.system_prompt],
    ['template', project.template_arguments],
  ]
    .filter(([, value]) => value)
    .map(([label, value]) => ({ title: value, text: `${label}: ${value}` }));

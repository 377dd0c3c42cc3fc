// The copy on the Hub in words.
import { formatDuration } from '../../shared/format.js';

/** @param {lab.MirrorStatus} state */
export function statusText({ repository, problem, age_s: age }) {
  if (!repository) return 'The lab is not saved to the Hub.';
  if (problem) return `Not saved to ${repository}. ${problem}`;
  if (age === null) return `Saving to ${repository} for the first time …`;
  return `Saved to ${repository} ${formatDuration(age)} ago.`;
}

/** @param {lab.MirrorStatus} state */
export function variableText(state) {
  if (state.is_set_by_variable) {
    const { repository } = state;
    return `The environment variable RLHF_LAB_MIRROR names ${repository}. The form has no effect while it is set.`;
  }
  return state.has_token_variable
    ? 'The environment variable HF_TOKEN contains a token. It is used instead of one that is entered here.'
    : '';
}

// Numbers, counts and names as text.

// Without exponents: at most six decimals, and commas from 100,000 on.
export function formatNumber(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const rounded = Number(value.toPrecision(Math.abs(value) < 0.001 ? 2 : digits));
  const useGrouping = Math.abs(rounded) >= 1e5;
  const text = rounded.toLocaleString('en', { maximumFractionDigits: 6, useGrouping });
  return text === '-0' ? '0' : text.replace('-', '−');
}
// Only differences are shown with a plus sign; a number that is rounded to zero has no sign.
const withPlus = (value, text) => (value > 0 && Number(text) !== 0 ? `+${text}` : text);
export const formatDifference = (value, digits = 3) => withPlus(value, formatNumber(value, digits));
// With a fixed number of decimals.
export const formatFixed = (value, decimals = 2) =>
  value === null
    ? '–'
    : value
        .toFixed(decimals)
        .replace(/^-(0\.0+)$/, '$1')
        .replace('-', '−');
export const formatFixedDifference = (value) => withPlus(value, formatFixed(value));
export const formatPercent = (share) => (share === null || share === undefined ? '–' : `${Math.round(100 * share)} %`);
export const formatInterval = (low, high) =>
  low === null || low === undefined ? '' : `${Math.round(100 * low)}–${formatPercent(high)}`;
// A value of a metric; shares in percent, as the captions say them.
export const formatMetric = (value, unit, digits = 3) =>
  unit === 'share' && Number.isFinite(value) ? `${formatNumber(100 * value, digits)} %` : formatNumber(value, digits);
export const plural = (n, noun) => `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;

// An accuracy {accuracy, low, high}. If its interval is wider than 0.25, the interval is shown instead.
export const isWideInterval = ({ low, high }) => low !== null && high - low > 0.25;
export const formatAccuracy = (value) =>
  isWideInterval(value) ? formatInterval(value.low, value.high) : formatPercent(value.accuracy);
// With the interval in any case.
export const formatMeasured = (value) =>
  isWideInterval(value) || value.low === null
    ? formatAccuracy(value)
    : `${formatPercent(value.accuracy)} (${formatInterval(value.low, value.high)})`;

export function formatBytes(size) {
  if (size < 1e6) return `${Math.max(size ? 1 : 0, Math.round(size / 1e3))} kB`;
  return size < 1e9 ? `${formatNumber(size / 1e6, size < 1e7 ? 2 : 3)} MB` : `${formatNumber(size / 1e9)} GB`;
}

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return '';
  const rounded = Math.max(0, Math.round(seconds));
  if (rounded < 60) return `${rounded} s`;
  if (rounded < 3600) return `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
  return `${Math.floor(rounded / 3600)} h ${Math.floor((rounded % 3600) / 60)} min`;
}

// The remaining time of a job, if known. At a share of 1 the job still has to write its result.
export function timeLeftText(seconds, share, prefix = '') {
  if (share >= 1 || (seconds !== null && Math.round(seconds) <= 0)) return ' · finishing';
  if (seconds === null) return '';
  const unit = seconds < 60 ? 5 : seconds < 600 ? 30 : 60; // an estimate is not more exact
  const text = formatDuration(unit * Math.max(1, Math.round(seconds / unit))).replace(' 0 s', '');
  return ` · ${prefix}${text} left`;
}

// A timestamp (seconds since 1970) as the time of day, with the date unless it is today. In English in every browser,
// like all texts of the page.
export function momentText(seconds) {
  const at = new Date(1000 * seconds);
  const now = new Date();
  const year = at.getFullYear() === now.getFullYear() ? undefined : 'numeric';
  const day =
    at.toDateString() === now.toDateString()
      ? ''
      : `${at.toLocaleDateString('en', { weekday: 'short', day: 'numeric', month: 'short', year })}, `;
  return `${day}${at.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })}`;
}

// When a demo is reset, as a sentence. reset_at: seconds since 1970.
export function resetText({ reset_at: resetAt, is_reset_due: isDue }) {
  if (isDue) return 'The demo is reset when all work in progress has ended.';
  return `Next reset: ${momentText(resetAt)}.`;
}

// An annotator's name for display. Generated visitor names are shortened, simulated judges are marked.
export const isVisitor = (name) => name.startsWith('visitor-');
export const displayName = (name) =>
  isVisitor(name)
    ? `visitor ${name.slice(8, 12)}`
    : name.startsWith('judge:')
      ? `judge ${name.slice(6)} (simulated)`
      : name;

// Text for plotly, which interprets some markup.
export const plotlyText = (text, maxChars = Infinity) =>
  String(text).slice(0, maxChars).replace(/&/g, '&amp;').replace(/</g, '&lt;');

import assert from 'node:assert/strict';
import test from 'node:test';

import * as format from '../../rlhf_lab/ui/shared/format.js';

const CASES = [
  ['formatNumber', [0.123456], '0.123'],
  ['formatNumber', [-0.5], '−0.5'], // a minus sign, not a hyphen
  ['formatNumber', [0], '0'],
  ['formatNumber', [0.00091], '0.00091'],
  ['formatNumber', [-0.000012345], '−0.000012'],
  ['formatNumber', [-0.0000001], '0'],
  ['formatNumber', [1234567], '1,230,000'],
  ['formatNumber', [99999, 5], '99999'],
  ['formatNumber', [null], '–'],
  ['formatMetric', [0.0044, 'share', 2], '0.44 %'],
  ['formatMetric', [0.0044, 'nats', 2], '0.0044'],
  ['formatMetric', [null, 'share'], '–'],
  ['formatDifference', [0.25], '+0.25'],
  ['formatDifference', [-0.25], '−0.25'],
  ['formatDifference', [0], '0'],
  ['formatDifference', [1e-8], '0'], // rounded to zero
  ['formatDifference', [1234567], '+1,230,000'],
  ['formatFixed', [-0.004], '0.00'],
  ['formatFixed', [-0.0126, 3], '−0.013'],
  ['formatFixed', [null], '–'],
  ['formatFixedDifference', [0.004], '0.00'],
  ['formatFixedDifference', [0.005], '+0.01'],
  ['formatPercent', [0.666], '67 %'],
  ['formatPercent', [null], '–'],
  ['formatInterval', [0.514, 0.848], '51–85 %'],
  ['formatInterval', [null, null], ''],
  ['plural', [1, 'label'], '1 label'],
  ['plural', [0, 'label'], '0 labels'],
  ['plural', [25000, 'vote'], '25,000 votes'], // as `pluralize` of the lab
  ['formatAccuracy', [{ accuracy: 0.7, low: 0.6, high: 0.8 }], '70 %'],
  ['formatAccuracy', [{ accuracy: 0.7, low: 0.5, high: 0.8 }], '50–80 %'], // 0.3 wide
  ['formatAccuracy', [{ accuracy: 0.7, low: null, high: null }], '70 %'],
  ['formatMeasured', [{ accuracy: 0.7, low: 0.6, high: 0.8 }], '70 % (60–80 %)'],
  ['formatMeasured', [{ accuracy: 0.7, low: 0.5, high: 0.8 }], '50–80 %'],
  ['formatMeasured', [{ accuracy: null, low: null, high: null }], '–'],
  ['formatBytes', [0], '0 kB'],
  ['formatBytes', [1], '1 kB'], // not 0
  ['formatBytes', [1_540], '2 kB'],
  ['formatBytes', [1_540_000], '1.5 MB'],
  ['formatBytes', [123_456_789], '123 MB'],
  ['formatBytes', [2_500_000_000], '2.5 GB'],
  ['formatDuration', [59.4], '59 s'],
  ['formatDuration', [59.6], '1 min 0 s'],
  ['formatDuration', [3599.6], '1 h 0 min'],
  ['formatDuration', [3_725], '1 h 2 min'],
  ['formatDuration', [-3], '0 s'],
  ['formatDuration', [null], ''],
  ['timeLeftText', [599, 0.5], ' · 10 min left'],
  ['timeLeftText', [190, 0.5], ' · 3 min left'],
  ['timeLeftText', [196, 0.5], ' · 3 min 30 s left'],
  ['timeLeftText', [58, 0.5], ' · 1 min left'],
  ['timeLeftText', [1, 0.5], ' · 5 s left'],
  ['timeLeftText', [3_155, 0.5], ' · 53 min left'],
  ['timeLeftText', [5_430, 0.5], ' · 1 h 31 min left'],
  ['timeLeftText', [7, 0.5, 'about '], ' · about 5 s left'],
  ['timeLeftText', [null, 0.5], ''],
  ['timeLeftText', [null, 1], ' · finishing'],
  ['timeLeftText', [0.4, 0.5], ' · finishing'],
  ['displayName', ['visitor-0123456789'], 'visitor 0123'],
  ['displayName', ['judge:cheerful'], 'judge cheerful (simulated)'],
  ['displayName', ['Ann'], 'Ann'],
  ['plotlyText', ['a<b>&c'], 'a&lt;b>&amp;c'],
  ['plotlyText', ['abcdef', 3], 'abc'],
  ['resetText', [{ reset_at: 0, is_reset_due: true }], 'The demo is reset when all work in progress has ended.'],
];

test('numbers, durations and names as text', () => {
  for (const [name, values, expected] of CASES) assert.equal(format[name](...values), expected, `${name} of ${values}`);
});

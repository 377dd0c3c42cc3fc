// What the figures of the section "Quality of the labels" mean.

/** @param {number | null} alpha */
export function alphaMeaning(alpha) {
  if (alpha === null) {
    return (
      'Alpha needs pairs with votes of two people or more, and votes that differ. Ask for more votes for each ' +
      'pair under People, Labelling rules.'
    );
  }
  if (alpha >= 0.8) return 'They agree well.';
  if (alpha >= 0.67) return 'They agree enough for tentative conclusions.';
  if (alpha >= 0.2) return 'They agree somewhat: the question is a matter of taste, or the guideline is not precise.';
  return 'They agree hardly more than chance would: check the guideline and the annotators below.';
}

// What is unusual about an annotator, where the interval rules out chance. alpha: of everybody.
/** @param {lab.AnnotatorRow} person @param {number | null} alpha */
export function remarks(person, alpha) {
  const { left, ties, seconds, alpha_without: alphaWithout } = person;
  return [
    left.share !== null && left.low > 0.5 && 'prefers the left side',
    left.share !== null && left.high < 0.5 && 'prefers the right side',
    ties.low > 0.5 && 'mostly ties',
    seconds !== null && seconds < 1 && person.votes >= 10 && 'votes within a second',
    alphaWithout !== null &&
      alpha !== null &&
      alphaWithout - alpha > 0.03 &&
      'the others agree better without this person',
  ]
    .filter(Boolean)
    .join(', ');
}

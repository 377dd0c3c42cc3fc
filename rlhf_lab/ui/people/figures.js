// Figures of the screen "People".
import { formatPercent, isVisitor, plural } from '../shared/format.js';

export const share = (count, total) => (total ? `${formatPercent(count / total)} of ${total}` : '–');

// Everybody who is connected, visitors without a name as a number.
/** @param {string[]} present @param {Record<string, string>} shown names as they are shown, if not as stored */
export function presentText(present, shown = {}) {
  const names = present.filter((name) => !isVisitor(name)).map((name) => shown[name] ?? name);
  const others = present.length - names.length;
  return [...names, ...(others ? [`${others} without a name`] : [])].join(', ');
}

export function presentTitle(present, ownName) {
  if (present.length === 1) return present[0] === ownName ? 'Nobody else is connected' : 'One person is connected';
  return `${present.length} people are connected`;
}

// The people whose accuracy on gold pairs is shown, experts, and all voters with a name.
/** @param {lab.GoldView} gold @param {lab.AnnotatorActivity[]} leaderboard */
export function goldNames(gold, leaderboard) {
  const measured = new Set(gold.people.map((row) => row.annotator));
  const names = new Set([...measured, ...gold.experts, ...leaderboard.map((row) => row.annotator)]);
  return [...names].filter((name) => !isVisitor(name) || measured.has(name)).sort();
}

// What goes on now, sentence by sentence.
/** @param {lab.ClassState} state */
export function stateSentences({ project, labels, people, present, runs, training }) {
  const are = present === 1 ? 'is' : 'are';
  return [
    `"${project}" has ${plural(labels, 'label')} by ${peopleText(people)}. ${peopleText(present)} ${are} connected.`,
    ...runs.map(({ id, name, status, step, total_steps: total }) => {
      return `Run ${id} (${name}) is ${status}, at step ${step} of ${total}.`;
    }),
    ...(training ? [training] : []),
  ];
}

const peopleText = (count) => (count === 1 ? '1 person' : `${count} people`);

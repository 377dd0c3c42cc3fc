// The runs that are compared, as a Map from the id of a run to the number of its color.

/** @param {Map<number, number>} slots @param {number} max number of colors */
export function freeSlot(slots, max) {
  const used = new Set(slots.values());
  return [...Array(max).keys()].find((slot) => !used.has(slot));
}

// The compared runs after the list has changed: runs that are new in it are added while there is a color, runs that are
// gone are removed. knownIds: the list before; null for the first list of a project, which begins with three runs.
/** @param {Map<number, number>} slots @param {number[] | null} knownIds @param {number[]} ids @param {number} max */
export function nextSlots(slots, knownIds, ids, max) {
  if (!knownIds) return new Map(ids.slice(0, 3).map((id, slot) => [id, slot]));
  const next = new Map(slots);
  for (const id of ids) if (!knownIds.includes(id) && next.size < max) next.set(id, freeSlot(next, max));
  return new Map([...next].filter(([id]) => ids.includes(id)));
}

// What is worked out once, when a recording is opened: orders, steps, peaks, and who held what since when.

/** @import { Changes, Columns, Holdings, Part, Payload, Spans, StepWindow, Unit } from "./types.d.ts" */

/**
 * Whether a recording does not say what memory is for: it has times only, or another tool's sums.
 * @param {{ payload: Payload }} model
 */
export function untold({ payload }) {
  return Boolean(payload.meta.times_only || payload.meta.total_only);
}

/**
 * The number under which a column holds a word of one of the payload's lists; 0, "nothing", for one that it lacks.
 * @param {readonly string[]} list @param {string} word
 */
export function codeOf(list, word) {
  return list.indexOf(word) + 1;
}

/**
 * What has the same key together, in its order.
 * @template T, K
 * @param {Iterable<T>} all @param {(one: T) => K} keyOf
 */
export function grouped(all, keyOf) {
  /** @type {Map<K, T[]>} */
  const groups = new Map();
  for (const one of all) {
    const key = keyOf(one);
    const group = groups.get(key);
    if (group) group.push(one);
    else groups.set(key, [one]);
  }
  return groups;
}

/**
 * The events of each rank, in the order in which they ended.
 * @param {Payload} payload @param {Columns} columns
 */
export function byRank({ count, world_size: ranks }, { rank }) {
  /** @type {number[][]} */
  const lists = Array.from({ length: ranks }, () => []);
  for (let i = 0; i < count; i++) lists[rank[i]]?.push(i);
  return lists;
}

/**
 * Each event's predecessor on its own rank; -1 for a rank's first.
 * @param {number[][]} ofRank @param {number} count
 */
export function predecessors(ofRank, count) {
  const out = new Float64Array(count).fill(-1);
  for (const places of ofRank) for (let k = 1; k < places.length; k++) out[places[k]] = places[k - 1];
  return out;
}

/**
 * The events that were still under way when their rank's recording was cut off, as that of a rank in a hang is.
 * @param {Payload} payload @param {Columns} columns @param {number[][]} ofRank
 */
export function cutEvents({ ranks }, { t_end: end }, ofRank) {
  return new Set(ranks.flatMap(({ rank, cut }) => (ofRank[rank] ?? []).filter((i) => end[i] === cut)));
}

/**
 * The collectives that were seen to be waited for.
 * @param {Payload} payload @param {Columns} columns
 */
export function awaitedEvents({ kinds }, { kind, parent }) {
  const wait = codeOf(kinds, "wait");
  return new Set(parent.filter((_, i) => kind[i] === wait));
}

/**
 * The step that each event belongs to: its training step; what lies between two steps belongs to the one before.
 * @param {Columns} columns @param {number[][]} ofRank @param {number} count
 */
export function stepsOfEvents(columns, ofRank, count) {
  const out = new Float64Array(count);
  for (const places of ofRank) {
    let step = 0;
    for (const i of places) {
      step = columns.step[i] || step;
      out[i] = step;
    }
  }
  return out;
}

/**
 * The windows of a recording in the order of their steps. `belongs` holds each event's step, `cut` what never ended.
 * @param {Columns} columns @param {Float64Array} belongs @param {Set<number>} cut
 * @returns {StepWindow[]}
 */
export function stepWindows(columns, belongs, cut) {
  const { t_start: start, t_end: end, step } = columns;
  /** @type {Map<number, StepWindow>} */
  const windows = new Map();
  belongs.forEach((of, i) => {
    const window = windows.get(of) ?? { step: of, t0: Infinity, t1: -Infinity, first: i, last: i, events: 0 };
    windows.set(of, window);
    window.t0 = Math.min(window.t0, start[i]);
    // Between two steps anything may happen; the axis ends with the step itself.
    // What never ended was waited for until somebody gave up; seconds of it would leave no room for what was done.
    if (step[i] || !of) window.t1 = Math.max(window.t1, cut.has(i) ? start[i] : end[i]);
    window.last = i;
    window.events += 1;
  });
  const sorted = [...windows.values()].sort((a, b) => a.step - b.step);
  for (const window of sorted) window.t1 = Math.max(window.t1, window.t0 + 1000);
  // The bar of such a wait runs on to the edge of its step's view.
  for (const i of cut) {
    const window = windows.get(belongs[i]);
    if (window) window.t1 = Math.max(window.t1, Math.min(end[i], start[i] + 0.2 * (start[i] - window.t0)));
  }
  return sorted;
}

/**
 * Who held what since when, by rank, category and unit; nested, because a single joined key would be built ten
 * thousand times for a picture.
 * @param {Payload} payload @param {Columns} columns
 */
export function holdings(payload, columns) {
  /** @type {Holdings} */
  const holds = [];
  const hold = codeOf(payload.words, "hold");
  for (let i = 0; i < payload.count; i++) {
    if (!hold || columns.op[i] !== hold || !columns.unit[i] || !columns.category[i]) continue;
    const category = payload.categories[columns.category[i] - 1];
    const ofRank = holds[columns.rank[i]] ?? {};
    holds[columns.rank[i]] = ofRank;
    const units = ofRank[category] ?? new Map();
    ofRank[category] = units;
    const unit = payload.units[columns.unit[i] - 1].name;
    const changes = units.get(unit) ?? { at: [], spans: [] };
    units.set(unit, changes);
    changes.at.push(i);
    changes.spans.push(columns.spans[i] ? payload.spans[columns.spans[i] - 1] : []);
  }
  return holds;
}

/**
 * The elements held of all units together, change by change: where, and how many from then on.
 * @param {Map<string, Changes>} units
 */
export function runningSum(units) {
  /** @type {[place: number, more: number][]} */
  const changed = [];
  for (const { at, spans } of units.values()) {
    let before = 0;
    at.forEach((i, k) => {
      const now = size(spans[k]);
      changed.push([i, now - before]);
      before = now;
    });
  }
  return summedUp(changed);
}

/**
 * Changes at events, in whatever order, as a sum from one to the next.
 * @param {[place: number, more: number][]} changed
 */
export function summedUp(changed) {
  changed.sort((a, b) => a[0] - b[0]);
  let sum = 0;
  const sums = changed.map(([, more]) => {
    sum += more;
    return sum;
  });
  return { at: changed.map(([i]) => i), sums };
}

/**
 * Elements in `[start, stop, start, stop, ...]`.
 * @param {Spans} spans
 */
export function size(spans) {
  let sum = 0;
  for (let k = 0; k < spans.length; k += 2) sum += spans[k + 1] - spans[k];
  return sum;
}

/**
 * Who owns what of a unit, as far as a rank is concerned: of several replicas its own. Of a simulation only the first
 * ranks are known; what is nobody's is cut into equal parts, as it is for all of them.
 * @param {Unit} unit @param {number} rank who holds it where nobody owns a part @param {number} worldSize
 * @returns {Part[]}
 */
export function ownersOf({ owners, padded }, rank, worldSize) {
  if (!owners) return [[0, padded, rank]];
  const [first, ...others] = owners;
  const known = first.length;
  const share = padded / worldSize;
  const isBeginning = !others.length && known < worldSize && first[known - 1]?.[1] === known * share;
  if (!isBeginning) return owners.find((whole) => whole.some(([, , owner]) => owner === rank)) ?? first;
  /** @type {Part[]} */
  const rest = [];
  for (let owner = known; owner < worldSize; owner++) rest.push([owner * share, (owner + 1) * share, owner]);
  return [...first, ...rest];
}

/**
 * Where a rank's part lies in a unit: what it owns; where nobody owns a part, its share of equal parts among the group.
 * @param {Unit} unit @param {number} rank @param {number[] | null} group @param {number} worldSize
 * @returns {Spans}
 */
export function partOf(unit, rank, group, worldSize) {
  const all = unit.owners?.flat() ?? [];
  const owned = all.filter(([, , owner]) => owner === rank);
  if (owned.length) return owned.flatMap((part) => part.slice(0, 2));
  const place = group ? group.indexOf(rank) : rank;
  const share = unit.padded / (group?.length ?? worldSize);
  const [from, to] = [place * share, (place + 1) * share];
  // Of whole matrices, or of rows that are fewer than ranks, it has none: others' parts lie there.
  return all.some(([first, last]) => first < to && last > from) ? [0, 0] : [from, to];
}

/**
 * Whether all of `part` lies within what is held.
 * @param {Spans} held @param {Spans} part
 */
export function inside(held, part) {
  for (let k = 0; k < part.length; k += 2)
    if (!held.some((from, j) => j % 2 === 0 && from <= part[k] && held[j + 1] >= part[k + 1])) return false;
  return true;
}

/**
 * The collectives of each rank in the order in which they began, sends and receives left out.
 * @param {Payload} payload @param {Columns} columns @param {number[][]} ofRank
 */
export function flightsOf({ kinds }, { t_start: start, kind, parent }, ofRank) {
  const collective = codeOf(kinds, "collective");
  return ofRank.map((all) => {
    const places = all.filter((i) => kind[i] === collective && parent[i] < 0);
    places.sort((a, b) => start[a] - start[b]);
    return { places, starts: places.map((i) => start[i]) };
  });
}

/**
 * The sends and receives of each collective on its own rank, in the order in which they began.
 * @param {Payload} payload @param {Columns} columns
 */
export function partsByCollective({ kinds }, { parent, kind, seq }) {
  const collective = codeOf(kinds, "collective");
  const parts = [...kind.keys()].filter((k) => parent[k] >= 0 && kind[k] === collective);
  return grouped(
    parts.sort((a, b) => seq[a] - seq[b]),
    (k) => parent[k],
  );
}

/**
 * The collectives of all ranks by their group and number, which is what the same one has on every rank.
 * @param {Columns} columns
 */
export function matchedCollectives({ group, number, parent }) {
  const whole = [...number.keys()].filter((i) => number[i] && parent[i] < 0);
  return grouped(whole, (i) => `${group[i]}:${number[i]}`);
}

/**
 * @param {number[]} sizes  At least one.
 */
export function mean(sizes) {
  return sizes.reduce((sum, one) => sum + one, 0) / sizes.length;
}

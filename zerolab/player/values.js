// The state of the values that a rank holds: a gradient of its own batch or a mean, a parameter that is up to date or
// one that its owner has since updated. A recording says who holds what since when; this follows from what was sent.

import { codeOf, size } from "./derived.js";
import { lastAtMost } from "./model.js";

/**
 * @import { Beats } from "./beats.js"
 * @import { Model } from "./model.js"
 * @import { State, Unit, Worth } from "./types.d.ts"
 */

/** Worked out once: when each rank updated, and when each unit was reduced on it and its new values arrived. */
export class Values {
  /** @param {Model} model @param {Beats} beats */
  constructor(model, beats) {
    this.model = model;
    const { kind, t_start: start, t_end: end, rank, from_autograd: bucket } = model.columns;
    const optimizer = codeOf(model.payload.kinds, "optimizer");
    this.updates = model.ofRank.map((places) => places.filter((i) => kind[i] === optimizer).map((i) => end[i]));
    /** @type {Map<string, { start: number, end: number, all: boolean }[]>} */
    this.reductions = new Map();
    /** @type {Map<string, number[]>} */
    this.arrivals = new Map();
    /** @type {Map<string, number[]>} */
    const buckets = new Map(); // of several units, and parts of them, as DDP has them: nobody knows which
    for (const { op, act, units, places, step } of beats.list) {
      for (const i of places) {
        if (act === "backward" && op === "all_reduce" && !units.length && bucket[i])
          put(buckets, `${rank[i]}:${step}`, i);
        for (const { name } of units) {
          const key = `${rank[i]}:${name}`;
          if (act === "backward" && (op === "all_reduce" || op === "reduce_scatter"))
            put(this.reductions, key, { start: start[i], end: end[i], all: op === "all_reduce" });
          else if (act === "share" && (op === "all_gather" || op === "broadcast")) put(this.arrivals, key, end[i]);
        }
      }
    }
    for (const places of buckets.values()) {
      const from = Math.min(...places.map((i) => start[i]));
      const until = Math.max(...places.map((i) => end[i]));
      for (const { name } of model.units)
        put(this.reductions, `${rank[places[0]]}:${name}`, { start: from, end: until, all: true });
    }
    for (const ends of this.arrivals.values()) ends.sort((a, b) => a - b);
  }

  /**
   * The state of the part of `owner` that `rank` holds of a unit at a time; without owners all ranks hold the same.
   * @param {number} rank @param {State} category @param {Unit} unit @param {number} owner @param {number} time
   * @returns {Worth}
   */
  of(rank, category, unit, owner, time) {
    if (category === "gradients") return this.#gradient(rank, unit, owner, time);
    return category === "parameters" && unit.owners ? this.#parameter(rank, unit, owner, time) : "plain";
  }

  /** @param {number} rank @param {Unit} unit @param {number} owner @param {number} time @returns {Worth} */
  #gradient(rank, unit, owner, time) {
    const { model } = this;
    if (model.worldSize === 1) return "plain";
    const { at, spans } = model.changes(rank, "gradients", unit.name);
    let last = lastAtMost(at, model.at(time));
    if (last < 0 || size(spans[last]) < Math.min(unit.numel, unit.padded)) return "plain"; // a part is what was reduced
    while (last > 0 && spans[last - 1].length) last -= 1;
    const since = model.columns.t_end[at[last]];
    const reduced = this.reductions
      .get(`${rank}:${unit.name}`)
      ?.findLast((one) => one.start <= time && one.end > since);
    if (!reduced) return "local";
    if (time < reduced.end) return "local";
    return reduced.all || owner === rank ? "plain" : "local";
  }

  /**
   * Stale from the moment its owner has updated it until the new value arrives; fresh as long as others wait for it.
   * @param {number} rank @param {Unit} unit @param {number} owner @param {number} time @returns {Worth}
   */
  #parameter(rank, unit, owner, time) {
    const arrivals = this.arrivals.get(`${rank}:${unit.name}`);
    const updates = this.updates[owner] ?? [];
    const update = updates[lastAtMost(updates, time)];
    if (!arrivals || update === undefined) return "plain";
    const arrived = arrivals.find((one) => one > update);
    if (arrived === undefined || arrived <= time) return "plain";
    return owner === rank ? "fresh" : "stale";
  }
}

/**
 * @template T
 * @param {Map<string, T[]>} lists @param {string} key @param {T} value
 */
function put(lists, key, value) {
  const list = lists.get(key);
  if (list) list.push(value);
  else lists.set(key, [value]);
}

// Up to when each rank is shown. Ranks are not in step: some may be deep in a backward while another has yet to begin
// the forward, and no moment of the clock shows them all in the beat that is told.

import { lastAtMost } from "./model.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Act, Beat, Shown } from "./types.d.ts"
 */

/** What a beat shows of a rank ends where a backward begins that comes after the rank's own part in the beat. */
export class Moments {
  /** @param {Model} model @param {Act[]} acts */
  constructor(model, acts) {
    this.model = model;
    /** When the backwards of each rank began. */
    this.backwards = model.ofRank.map((places) => beginnings(model, acts, places));
    /** @type {Map<Beat, Map<number, number>>} */
    this.known = new Map();
  }

  /**
   * By rank the last time that a beat shows; none for a rank without a part in it, or a backward after that.
   * @param {Beat} beat
   */
  of(beat) {
    const found = this.known.get(beat) ?? new Map();
    if (this.known.has(beat)) return found;
    this.known.set(beat, found);
    const { rank, t_start: start } = this.model.columns;
    for (const i of beat.places) {
      const begun = this.backwards[rank[i]];
      const next = begun[lastAtMost(begun, start[i]) + 1];
      if (next !== undefined) found.set(rank[i], Math.max(next - 1, found.get(rank[i]) ?? 0));
    }
    return found;
  }
}

/**
 * When the backwards of one rank began, whose events are at `places`.
 * @param {Model} model @param {Act[]} acts @param {number[]} places
 */
function beginnings({ columns }, acts, places) {
  const own = places.filter((i) => acts[i] !== "aside").sort((a, b) => columns.seq[a] - columns.seq[b]);
  const first = own.filter((i, k) => acts[i] === "backward" && acts[own[k - 1]] !== "backward");
  return first.map((i) => columns.t_start[i]).sort((a, b) => a - b);
}

/**
 * The time at which a rank is shown.
 * @param {Pick<Shown, "time" | "until">} shown @param {number} rank
 */
export function timeOf({ time, until }, rank) {
  return Math.min(time, until?.get(rank) ?? Infinity);
}

/**
 * The last event that had ended by then.
 * @param {Shown} shown @param {number} rank
 */
export function indexOf(shown, rank) {
  const own = timeOf(shown, rank);
  return own < shown.time ? shown.model.at(own) : shown.index;
}

/**
 * The same of what a player shows.
 * @param {Player} player @param {number} rank
 */
export function shownOf({ frame, index }, rank) {
  return frame?.index === index ? indexOf(frame, rank) : index;
}

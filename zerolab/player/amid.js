// Collectives that move no unit, but lie within the pass of one that ranks have parts of: under tensor parallelism each
// rank has a part of a unit's matrices, and what they compute is added up or gathered before the unit can go on.

import { codeOf, grouped } from "./derived.js";

/**
 * @import { Model } from "./model.js"
 * @import { Beat, Unit } from "./types.d.ts"
 */

/** The passes of units that ranks compute in parts, in which such collectives lie. */
export class Amid {
  /** @param {Model} model @param {Set<string>} divided the units' names @param {(i: number) => string} when */
  constructor(model, divided, when) {
    const { columns, payload } = model;
    this.model = model;
    this.divided = divided;
    this.keyOf = (/** @type {number} */ i) => `${columns.rank[i]}:${when(i)}`;
    const pass = codeOf(payload.kinds, "module");
    const passes = divided.size ? [...columns.kind.keys()].filter((i) => columns.kind[i] === pass) : [];
    this.passes = grouped(passes, this.keyOf);
  }

  /**
   * The unit, which ranks have parts of, in whose pass collective `i` was asked for; null if that was in none's.
   * @param {number} i
   * @returns {Unit | null}
   */
  unitOf(i) {
    const { t_start: start, t_end: end, unit } = this.model.columns;
    const around = (this.passes.get(this.keyOf(i)) ?? []).filter((k) => start[k] <= start[i] && start[i] < end[k]);
    if (!around.length) return null;
    const inner = around.reduce((last, k) => (start[k] >= start[last] ? k : last));
    const found = this.model.units[unit[inner] - 1];
    return found && this.divided.has(found.name) ? found : null;
  }
}

/**
 * The units that a beat is about: those that it computes or moves, or the one amid which it sends.
 * @param {Pick<Beat, "units" | "amid">} beat
 */
export function unitsAbout({ units, amid }) {
  return amid ? [amid] : units;
}

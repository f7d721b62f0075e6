// What a rank would hold if it kept everything, as DDP does: read from the recording, never from the stage's name.

import { codeOf, size, summedUp, untold } from "./derived.js";
import { lastAtMost, STATE } from "./model.js";

/**
 * @import { Model } from "./model.js"
 * @import { RunningSum, State, Unit } from "./types.d.ts"
 */

/** What ranks save must be more than padding and step counters. */
const LEAST_SAVED = 0.02;

/**
 * The state at a moment, as if one rank held all of it. A unit counts whole in a category as long as the rank has a
 * part of it: before gradients exist, and after they are freed, DDP would have none either.
 */
export class Ghost {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.updates = model.ofRank.map((places) => this.#update(places));
    this.weights = this.#weights();
    /** @type {RunningSum[]} */
    this.sums = []; // by rank, each when it is first asked for
    this.known = this.updates.some(
      (i, rank) => i !== null && this.missing(rank, i) > LEAST_SAVED * this.whole(rank, i) && model.worldSize > 1,
    );
  }

  /**
   * The bytes that `rank` would hold after event `i` if it had all of everything it has a part of.
   * @param {number} rank @param {number} i
   */
  whole(rank, i) {
    if (!this.weights) return 0;
    this.sums[rank] ??= this.#sum(rank, this.weights);
    const { at, sums } = this.sums[rank];
    return sums[lastAtMost(at, i)] ?? 0;
  }

  /**
   * The bytes of state that `rank` holds after event `i`.
   * @param {number} rank @param {number} i
   */
  state(rank, i) {
    const live = this.model.live(rank, i);
    return live ? STATE.reduce((sum, category) => sum + live[category], 0) : 0;
  }

  /**
   * How many bytes less than all of it `rank` holds after event `i`.
   * @param {number} rank @param {number} i
   */
  missing(rank, i) {
    return Math.max(0, this.whole(rank, i) - this.state(rank, i));
  }

  /**
   * The last event before a rank's last update from step 2 on, where the state is complete; null without one.
   * @param {number[]} places
   */
  #update(places) {
    const { columns, payload } = this.model;
    const optimizer = codeOf(payload.kinds, "optimizer");
    const update = places.findLast((i) => columns.kind[i] === optimizer && columns.step[i] > 1);
    if (update === undefined) return null;
    const ended = places.map((i) => columns.t_end[i]);
    const last = lastAtMost(ended, columns.t_start[update]);
    return last < 0 ? null : places[last];
  }

  /**
   * Bytes an element of each category, as measured on the rank that holds most elements of it; null if unknown.
   * @returns {Record<State, number> | null}
   */
  #weights() {
    const { model } = this;
    if (untold(model) || model.devices.length > 1) return null;
    const weights = { parameters: 0, gradients: 0, optimizer_state: 0 };
    for (const category of STATE) {
      let most = 0;
      this.updates.forEach((i, rank) => {
        const held = i === null ? 0 : model.heldElements(rank, category, i);
        if (i === null || held <= most) return;
        most = held;
        weights[category] = model.liveAt(i)[category] / held;
      });
    }
    return weights.parameters ? weights : null;
  }

  /**
   * The bytes of all that a rank has a part of: at which events they change, and the sum from then on.
   * @param {number} rank @param {Record<State, number>} weights
   */
  #sum(rank, weights) {
    /** @type {(category: State, unit: Unit) => [place: number, more: number][]} */
    const changes = (category, { name, padded }) =>
      this.#existing(rank, category, name).map(({ i, sign }) => [i, sign * padded * weights[category]]);
    return summedUp(STATE.flatMap((category) => this.model.units.flatMap((unit) => changes(category, unit))));
  }

  /**
   * When a rank begins to hold anything of a category of a unit (sign 1), and when it ends (-1). Of what it never has a
   * part of, as where whole tensors are dealt out, when any rank begins and the last one ends.
   * @param {number} rank @param {State} category @param {string} unit
   */
  #existing(rank, category, unit) {
    const own = this.#flips(rank, category, unit);
    const flips = own.length ? own : this.model.ofRank.flatMap((_, other) => this.#flips(other, category, unit));
    flips.sort((a, b) => a.i - b.i);
    let holders = 0;
    const found = [];
    for (const { i, sign } of flips) {
      const before = holders;
      holders += sign;
      if (!before !== !holders) found.push({ i, sign });
    }
    return found;
  }

  /**
   * When one rank begins to hold anything of a category of a unit, and when it ends.
   * @param {number} rank @param {State} category @param {string} unit
   */
  #flips(rank, category, unit) {
    const { at, spans } = this.model.changes(rank, category, unit);
    const holds = spans.map((one) => (size(one) ? 1 : 0));
    return at.map((i, k) => ({ i, sign: holds[k] - (holds[k - 1] ?? 0) })).filter(({ sign }) => sign);
  }
}

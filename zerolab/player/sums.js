// What went on in a stretch of time: how long it was, what was sent in it, and what the ranks did meanwhile.

import { bytes, duration } from "./format.js";
import { allRanks } from "./rows.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { View } from "./types.d.ts"
 */

/**
 * How much of `view` is covered by stretches, in nanoseconds; where they overlap they count once.
 * @param {number[][]} stretches @param {View} view
 */
function covered(stretches, { t0, t1 }) {
  let [sum, until] = [0, t0];
  for (const [start, end] of stretches.sort((a, b) => a[0] - b[0])) {
    sum += Math.max(0, Math.min(end, t1) - Math.max(start, until));
    until = Math.max(until, Math.min(end, t1));
  }
  return sum;
}

/**
 * Bytes sent by the collectives that began in `view`, and the shares of its time that `ranks` were computing, had a
 * collective under way, and waited, as the host saw it; the three may overlap, and need not fill it.
 * @param {Model} model @param {number[]} ranks @param {View} view
 */
export function sumsIn(model, ranks, view) {
  const { kind, parent, t_start: start, t_end: end, logical_bytes: size } = model.columns;
  const total = { sent: 0, computing: 0, collectives: 0, waiting: 0 };
  for (const rank of ranks) {
    /** @type {Record<string, number[][]>} */
    const of = { module: [], optimizer: [], collective: [], wait: [] };
    for (const i of model.ofRank[rank]) {
      const name = model.payload.kinds[kind[i] - 1];
      if (!of[name] || (parent[i] >= 0 && name === "collective")) continue;
      if (end[i] >= view.t0 && start[i] <= view.t1) of[name].push([start[i], end[i]]);
      if (name === "collective" && start[i] >= view.t0 && start[i] < view.t1) total.sent += size[i];
    }
    const waiting = covered(of.wait, view);
    total.waiting += waiting;
    total.computing += covered([...of.module, ...of.optimizer, ...of.wait], view) - waiting;
    total.collectives += covered(of.collective, view);
  }
  const time = Math.max(1, (view.t1 - view.t0) * ranks.length);
  const { sent, computing, collectives, waiting } = total;
  return { sent, computing: computing / time, collectives: collectives / time, waiting: waiting / time };
}

/**
 * The same in a line.
 * @param {Model} model @param {number[]} ranks @param {View} view
 */
export function inOneLine(model, ranks, view) {
  const { sent, ...shares } = sumsIn(model, ranks, view);
  const percent = (/** @type {number} */ share) => `${Math.round(100 * share)} %`;
  const who = ranks.length === 1 ? `rank ${ranks[0]}` : `${ranks.length} ranks`;
  return (
    `${duration(view.t1 - view.t0)}, ${who}: ${bytes(sent)} sent; computing ${percent(shares.computing)}, ` +
    `collectives ${percent(shares.collectives)}, waiting ${percent(shares.waiting)}`
  );
}

/** A stretch of time under measure: from a mark to the cursor, however that is moved. */
export class Measure {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
    /** @type {number | null} */
    this.mark = null;
  }

  toggle() {
    this.mark = this.mark === null ? this.player.clock.time : null;
    this.player.refresh();
  }

  /** The stretch, earlier end first; null where nothing is measured. */
  get span() {
    const { time } = this.player.clock;
    return this.mark === null ? null : { t0: Math.min(this.mark, time), t1: Math.max(this.mark, time) };
  }

  /** What it says, "" where nothing is measured; of the ranks that the filter leaves. */
  get text() {
    const { model } = this.player;
    if (!this.span) return "";
    return this.span.t1 > this.span.t0
      ? inOneLine(model, allRanks(model.rows), this.span)
      : "Drag over the timeline, or move the cursor: this says what went on.";
  }
}

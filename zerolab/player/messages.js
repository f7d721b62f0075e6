// Which send belongs to which receive, and the lines between them in the timeline.

import { grouped } from "./derived.js";

/**
 * @import { Axis } from "./axis.js"
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Pen } from "./pen.js"
 */

/** Among more ranks than this only the messages of the event's own rank get a line, or they would hide each other. */
const FEW_RANKS = 4;

/**
 * Each send among some events with its receive on the other rank: the n-th between two ranks together, and that n from
 * 0; way by way.
 * @param {Model} model @param {number[]} events
 */
export function sentWithReceived(model, events) {
  const { rank, peer, op } = model.columns;
  const receives = (/** @type {number} */ k) => /recv/.test(model.payload.words[op[k] - 1]);
  const ways = grouped(events, (k) => (receives(k) ? `${peer[k] - 1}:${rank[k]}` : `${rank[k]}:${peer[k] - 1}`));
  return [...ways.values()].flatMap((way) => {
    const received = way.filter(receives);
    const sent = way.filter((k) => !receives(k)).slice(0, received.length);
    return sent.map((send, half) => {
      return { from: rank[send], to: peer[send] - 1, send, receive: received[half], half };
    });
  });
}

/**
 * The messages of a collective, `places` being its events on all ranks, as above, in the order of the sends; none where
 * messages were not recorded.
 * @param {Model} model @param {number[]} places
 * @param {(from: number, to: number) => boolean} [wanted] between which ranks; by default between all
 */
export function messages(model, places, wanted = () => true) {
  const { rank, peer } = model.columns;
  const parts = places.flatMap((i) => model.partsOf(i)).filter((k) => wanted(rank[k], peer[k] - 1));
  const place = new Map(parts.map((k, at) => [k, at]));
  return sentWithReceived(model, parts).sort((a, b) => Number(place.get(a.send)) - Number(place.get(b.send)));
}

/**
 * A line for each message of the collective that event `told` is part of, from where its send began to where its
 * receive ended; `height` gives the middle of a rank's bar of it, null where none is drawn.
 * @param {Pen} pen @param {Palette} palette @param {Axis} axis @param {Model} model @param {number} told
 * @param {(collective: number) => number | null} height
 */
export function wires(pen, palette, axis, model, told, height) {
  const { rank, parent, t_start: start, t_end: end } = model.columns;
  const near = (/** @type {number} */ k) => model.worldSize <= FEW_RANKS || rank[k] === rank[told];
  for (const { send, receive } of messages(model, model.drawnCollective(told))) {
    if (end[receive] < axis.t0 || start[send] > axis.t1 || !(near(send) || near(receive))) continue;
    const [from, to] = [height(parent[send]), height(parent[receive])];
    if (from === null || to === null) continue;
    const x = (/** @type {number} */ t) => Math.min(axis.right, Math.max(axis.left, axis.x(t)));
    const [x0, x1] = [x(start[send]), x(end[receive])];
    pen.line(x0, from, x1, to, palette.paper, 3);
    pen.line(x0, from, x1, to, palette.rankColour(rank[send]), 1.5);
  }
}

// A collective between ranks: arrows from the rank that sends a piece to the rank that gets it, and how big it is.

import { bytes } from "./format.js";

/** The category that a collective moves: it gathers parameters and reduces gradients. */
export const MOVED = { all_gather: "parameters", reduce_scatter: "gradients", all_reduce: "gradients" };

/** More receivers than this make a thicket; then the arrows go to the nearest ones. */
const MOST_ARROWS = 8;

/**
 * The pieces of a collective that event `event` tells of: `[{ from, to, piece }]`, `piece` being the owner whose part
 * it is. A send or a receive is one piece; a collective is all that its rank sends. An all-reduce is two halves: first
 * every part goes to its owner to be added up, then the owner gives the sum to all.
 */
export function sentPieces(model, event, time) {
  if (event.peer !== null && event.parent !== null) {
    const receiving = /recv/.test(event.op);
    const [from, to] = receiving ? [event.peer, event.rank] : [event.rank, event.peer];
    const { op } = model.event(event.parent);
    return [{ op, from, to, piece: op === "all_gather" ? from : to }];
  }
  if (event.kind !== "collective" || !(event.op in MOVED)) return [];
  const gathering = event.op === "all_gather" || (event.op === "all_reduce" && time >= (event.start + event.end) / 2);
  const others = (event.group ?? Array.from({ length: model.worldSize }, (_, rank) => rank)).filter((rank) => rank !== event.rank);
  const near = others.sort((a, b) => Math.abs(a - event.rank) - Math.abs(b - event.rank)).slice(0, MOST_ARROWS);
  return near.map((to) => ({ op: event.op, from: event.rank, to, piece: gathering ? event.rank : to }));
}

/** Draws the pieces of `event` over the ownership pane. */
export function flow(pane, model, palette, event, time) {
  for (const { op, from, to, piece } of sentPieces(model, event, time)) {
    const [start, end] = [from, to].map((rank) => pane.cell(model.rowOf(rank), MOVED[op], event.unit));
    if (!start || !end || start.y === end.y) continue;
    const x = start.x + ((piece + 0.5) * start.width) / model.worldSize;
    const down = end.y > start.y;
    arrow(pane.over.context, palette, x, down ? start.y + start.height : start.y, down ? end.y : end.y + end.height);
  }
}

/** The bytes of one piece in words: what a collective's rank must send, divided among the receivers. */
export function pieceSize(model, event) {
  const ranks = event.group ? event.group.length : model.worldSize;
  const passes = event.op === "all_reduce" ? 2 : 1;
  return ranks > 1 ? bytes(event.logicalBytes / (ranks - 1) / passes) : bytes(event.logicalBytes);
}

function arrow(context, palette, x, y0, y1) {
  const tip = y1 > y0 ? 1 : -1;
  const draw = (stroke, width) => {
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x, y0);
    context.quadraticCurveTo(x + 14, (y0 + y1) / 2, x, y1 - tip * 2);
    context.moveTo(x - 2, y1 - tip * 8);
    context.lineTo(x, y1 - tip);
    context.lineTo(x + 8, y1 - tip * 5);
    context.stroke();
  };
  context.lineJoin = context.lineCap = "round";
  draw(palette.paper, 5);
  draw(palette.ink, 2);
}

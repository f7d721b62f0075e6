// A collective between ranks: arrows from the rank that sends a piece to the rank that gets it, and how big it is.

import { ownersOf, partOf, size } from "./derived.js";
import { MOVED, WIDTH } from "./events.js";
import { bytes } from "./format.js";

/**
 * @import { Model } from "./model.js"
 * @import { Ownership } from "./ownership.js"
 * @import { Palette } from "./palette.js"
 * @import { Piece, RecordedEvent, Spans, Unit } from "./types.d.ts"
 */

/** With more receivers than this the arrows would hide each other; then only the nearest ones get one. */
const MOST_ARROWS = 8;

/** Pixels by which an arrow bends to the right. */
const BULGE = 14;

/** A piece narrower than this, in pixels, has a thin arrow, or its neighbours' arrows would hide it. */
const NARROW = 8;

/** Pixels between two rows that the size of a piece needs to be written there. */
const LABEL_ROOM = 9;

/**
 * The pieces that event `event` is about: `[{ category, from, to, piece }]`, `piece` being the owner whose part it is.
 * A send or a receive is one piece; a collective is all that its rank sends, waiting for one all that its rank is sent;
 * a unit that has become whole is what came from the others. An all-reduce is two halves: first every part goes to its
 * owner to be added up, then the owner gives the sum to all.
 * @param {Model} model @param {RecordedEvent} event @param {number} time
 * @returns {Piece[]}
 */
function sentPieces(model, event, time) {
  if (event.op === "hold") return arrivals(model, event);
  const whole = event.parent === null ? event : model.event(event.parent);
  const category = MOVED[whole.op];
  if (whole.kind !== "collective" || !category) return [];
  // For a collective that never ended, only its own messages say what has arrived.
  if (model.cut.has(event.index) && event.peer === null) return [];
  const gathering = whole.op === "all_gather" || (whole.op === "all_reduce" && secondHalf(model, event, whole, time));
  /** @type {(from: number, to: number) => Piece} */
  const piece = (from, to) => ({ category, from, to, piece: gathering ? from : to });
  const { rank, peer } = event;
  if (event.kind === "wait") return nearest(model, event).map((other) => piece(other, rank));
  if (event.parent === null) return nearest(model, event).map((other) => piece(rank, other));
  if (peer === null) return [];
  return [/recv/.test(event.op) ? piece(peer, rank) : piece(rank, peer)];
}

/** @param {Model} model @param {RecordedEvent} event */
function nearest(model, { group, rank }) {
  const others = (group ?? Array.from({ length: model.worldSize }, (_, k) => k)).filter(
    (other) => other !== rank && model.ofRank[other].length,
  );
  return others.sort((a, b) => Math.abs(a - rank) - Math.abs(b - rank)).slice(0, MOST_ARROWS);
}

/**
 * Whether an all-reduce is handing out sums: by its sends and receives where they are recorded, else after half its
 * time.
 * @param {Model} model @param {RecordedEvent} event @param {RecordedEvent} whole @param {number} time
 */
function secondHalf(model, event, whole, time) {
  if (event.peer !== null) return model.half(event.index) === 1;
  return time >= (model.secondHalf(whole.index) ?? (whole.start + whole.end) / 2);
}

/**
 * What has come from others since the holding before: the parts of owners that were not there and are now.
 * @param {Model} model @param {RecordedEvent} event
 * @returns {Piece[]}
 */
function arrivals(model, event) {
  const { rank, category, spans } = event;
  const unit = model.units.find(({ name }) => name === event.unit);
  if (category !== "parameters" || !unit?.owners || !spans) return [];
  const before = model.held(rank, category, unit.name, event.index - 1);
  if (!before.length) return [];
  /** @type {(held: Spans, start: number, stop: number) => boolean} */
  const has = (held, start, stop) => held.some((from, k) => k % 2 === 0 && from <= start && held[k + 1] >= stop);
  const fresh = ownersOf(unit, rank, model.worldSize).filter(
    ([start, stop, owner]) => owner !== rank && has(spans, start, stop) && !has(before, start, stop),
  );
  return fresh.slice(0, MOST_ARROWS).map(([, , owner]) => ({ category, from: owner, to: rank, piece: owner }));
}

/**
 * Draws the pieces of `event` over the ownership pane, and gives those that it drew.
 * @param {Ownership} pane @param {Model} model @param {Palette} palette @param {RecordedEvent} event
 * @param {number} time
 */
export function flow(pane, model, palette, event, time) {
  const moving = sentPieces(model, event, time);
  const unit = model.units.find(({ name }) => name === event.unit);
  const drawn = [];
  if (!unit) return [];
  for (const { category, from, to, piece } of moving) {
    if (model.folded && ![from, to].some((rank) => model.wholeRowOf(rank) === 0)) continue;
    const [start, end] = [from, to].map((rank) =>
      model.ofRank[rank].length ? pane.boxOf(model, rank, category, unit.name) : null,
    );
    if (!start || !end || start.y === end.y) continue;
    const [left, right] = placeOf(model, unit, piece);
    for (const { x, y, width, height } of [start, end]) {
      const wide = (right - left) * width;
      if (height >= 5 && wide >= 6) pane.over.frame(x + left * width, y, wide, height, palette.ink, 1.5);
    }
    const x = start.x + ((left + right) / 2) * start.width;
    const down = end.y > start.y;
    arrow(
      pane.over.context,
      palette,
      piece,
      x,
      down ? start.y + start.height : start.y,
      down ? end.y : end.y + end.height,
      (right - left) * start.width < NARROW,
    );
    drawn.push({ unit: unit.name, category, from, to, piece });
  }
  if (drawn.length) label(pane, model, palette, event, unit, drawn);
  return drawn;
}

/**
 * Where the largest stretch of a piece lies within its unit, as shares of its width; systems that cut a unit tensor by
 * tensor give a rank several.
 * @param {Model} model @param {Unit} unit @param {number} piece
 * @returns {[left: number, right: number]}
 */
function placeOf(model, unit, piece) {
  const spans = partOf(unit, piece, null, model.worldSize);
  let best = 0;
  for (let k = 2; k < spans.length; k += 2) if (spans[k + 1] - spans[k] > spans[best + 1] - spans[best]) best = k;
  return [spans[best] / unit.padded, spans[best + 1] / unit.padded];
}

/**
 * How big a piece is, between the rows and beside the arrows of the event's rank.
 * @param {Ownership} pane @param {Model} model @param {Palette} palette @param {RecordedEvent} event
 * @param {Unit} unit @param {Piece[]} moving
 */
function label(pane, model, palette, event, unit, moving) {
  const row = model.wholeRowOf(event.rank);
  const cell = pane.cell(row, moving[0].category, unit.name);
  const gap = pane.rows.pitch - pane.rows.row;
  const all = pane.cell(row, null, unit.name);
  if (!cell || !all || gap < LABEL_ROOM) return;
  const last =
    row > 0 &&
    (row === model.whole.length - 1 ||
      moving.every(({ from, to }) => model.wholeRowOf(from === event.rank ? to : from) < row));
  const y = last ? all.y - gap / 2 : all.y + all.height + gap / 2;
  const sending = moving[0].from === event.rank;
  const many = moving.length > 1 ? (sending ? " to each" : " from each") : "";
  const part = size(partOf(unit, moving[0].piece, null, model.worldSize));
  const each = event.op === "hold" ? bytes(part * (WIDTH[event.dtype ?? unit.dtype] ?? 4)) : pieceSize(model, event);
  const text = `${each}${many}`;
  const style = { colour: palette.ink, size: 12, weight: 600 };
  const width = pane.over.widthOf(text, style);
  // Next to the arrows, not on them: their heads say where the piece goes.
  const ends = moving
    .map(({ piece: part }) => placeOf(model, unit, part))
    .map(([from, to]) => cell.x + ((from + to) / 2) * cell.width);
  const beside = Math.max(...ends) + BULGE + 6;
  const x = beside + width + 4 <= pane.over.width ? beside : Math.max(pane.gutter.left, Math.min(...ends) - width - 12);
  pane.over.box(x - 3, y - 7, width + 6, 14, palette.paper);
  pane.over.text(text, x, y, style);
}

/**
 * The bytes of one piece in words: what a collective's rank must send, divided among the receivers.
 * @param {Model} model @param {RecordedEvent} event
 */
export function pieceSize(model, event) {
  const whole = event.parent === null ? event : model.event(event.parent);
  const ranks = whole.group ? whole.group.length : model.worldSize;
  const passes = whole.op === "all_reduce" ? 2 : 1;
  return bytes(whole.logicalBytes / Math.max(1, ranks - 1) / passes);
}

/**
 * An arrow in the colour of the piece's owner, edged so that it stands out from every bar that it crosses.
 * @param {CanvasRenderingContext2D} context @param {Palette} palette @param {number} piece @param {number} x
 * @param {number} y0 @param {number} y1 @param {boolean} thin
 */
function arrow(context, palette, piece, x, y0, y1, thin) {
  const tip = y1 > y0 ? 1 : -1;
  const head = thin ? 0.6 : 1;
  /** @type {(stroke: string, width: number) => void} */
  const draw = (stroke, width) => {
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.beginPath();
    context.moveTo(x, y0);
    context.quadraticCurveTo(x + BULGE * head, (y0 + y1) / 2, x, y1 - tip * 2);
    context.moveTo(x - 2 * head, y1 - tip * 8 * head);
    context.lineTo(x, y1 - tip);
    context.lineTo(x + 8 * head, y1 - tip * 5 * head);
    context.stroke();
  };
  context.save(); // dashes that are drawn next are not round
  context.lineJoin = "round";
  context.lineCap = "round";
  draw(palette.paper, thin ? 3 : 6);
  if (!thin) draw(palette.ink, 3.5);
  draw(palette.rankColour(piece), 1.75);
  context.restore();
}

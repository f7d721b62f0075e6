// Pieces in flight over the ownership pane: each at the place given by its recorded send and receive.

import { grouped, inside } from "./derived.js";
import { lastAtMost } from "./model.js";
import { indexOf, timeOf } from "./moments.js";

/**
 * @import { Ownership } from "./ownership.js"
 * @import { Pace } from "./pace.js"
 * @import { Pieces } from "./pieces.js"
 * @import { Beat, Box, Flight, Frame, Point } from "./types.d.ts"
 */

/** How strongly we draw pieces that belong to a beat other than the current one. */
const BESIDE = 0.4;
/** Seconds that a sum lights up after its last part has been added. */
const FLASH = 0.5;

/** How the number of parts that have come is written. */
const COUNT = /** @type {const} */ ({ size: 12, weight: 700, align: "center" });

/** Draws what moves in one beat, and gives the pieces that are on their way. */
export class Flights {
  /** @param {Pieces} pieces @param {Pace} pace */
  constructor(pieces, pace) {
    this.pieces = pieces;
    this.pace = pace;
    /** @type {(Point & { text: string })[]} */
    this.counts = []; // of sums: above what flies
  }

  /** @param {Ownership} pane @param {Frame} frame */
  draw(pane, frame) {
    const { beats } = this.pieces;
    const place = beats.at(frame.time);
    this.counts = [];
    const near = place < 0 ? [] : this.pieces.near(place);
    const own = place < 0 ? [] : this.pieces.of(beats.list[place]);
    if (place >= 0) this.#busy(pane, frame, beats.list[place]);
    for (const flights of near) {
      const added = flights.filter(({ adds }) => adds);
      // Parts that are added up in one place, together.
      for (const sum of grouped(added, ({ to, unit }) => `${to}:${unit.name}`).values()) this.#sum(pane, frame, sum);
    }
    const by = (/** @type {number} */ rank) => timeOf(frame, rank);
    const begun = near.flat().filter(({ from, to, start }) => start <= by(from) && start <= by(to));
    for (const flight of begun) if (flight.end <= by(flight.to) && !flight.adds) this.#landed(pane, frame, flight);
    const flying = begun.filter(({ to, end }) => by(to) < end);
    for (const flight of flying) this.#fly(pane, frame, flight, own.includes(flight) ? 1 : BESIDE);
    this.#counted(pane, frame);
    return flying.map(({ unit, category, from, to, piece }) => ({ unit: unit.name, category, from, to, piece }));
  }

  /**
   * A frame around what ranks compute right now.
   * @param {Ownership} pane @param {Frame} frame @param {Beat} beat
   */
  #busy(pane, frame, { kind, op, units, places }) {
    const { model, palette } = frame;
    if (kind !== "compute" && kind !== "update") return;
    const { rank, t_start: start, t_end: end } = model.columns;
    const colour = kind === "update" ? palette.optimizer : op === "backward" ? palette.backward : palette.forward;
    const about = units.length ? units : model.units;
    for (const i of places) {
      const time = timeOf(frame, rank[i]);
      for (const { name } of start[i] <= time && time < end[i] ? about : []) {
        const cell = pane.cell(model.wholeRowOf(rank[i]), null, name);
        if (cell) pane.over.frame(cell.x - 2, cell.y - 2, cell.width + 4, cell.height + 4, colour, 3);
      }
    }
  }

  /** @param {Ownership} pane @param {Frame} frame @param {Flight} flight @param {number} strength */
  #fly(pane, frame, flight, strength) {
    const { model, palette } = frame;
    const { unit, category, from, to, piece, start, end, spans } = flight;
    const [source, target] = [from, to].map((rank) => pane.boxOf(model, rank, category, unit.name));
    if (!source || !target || source.y === target.y) return;
    const share = this.pace.elapsed(start, timeOf(frame, to)) / this.pace.elapsed(start, end);
    const eased = share * share * (3 - 2 * share);
    const y = source.y + eased * (target.y - source.y);
    const { context } = pane.over;
    const colour = palette.rankColour(category === "gradients" && flight.adds ? from : piece);
    context.globalAlpha = strength;
    for (const { x, width } of boxes(source, unit.padded, spans)) {
      trail(context, colour, { x, width, y: source.y, height: source.height }, y);
      if (width >= 5) pane.over.box(x - 1.5, y - 1.5, width + 3, source.height + 3, palette.paper);
      context.globalAlpha = strength;
      pane.over.box(
        x,
        y,
        width,
        source.height,
        flight.adds ? palette.local(context, from) : pane.fill(palette, unit, piece),
      );
      if (width >= 5) pane.over.frame(x, y, width, source.height, palette.ink, 1);
    }
    context.globalAlpha = 1;
  }

  /** @param {Ownership} pane @param {Frame} frame */
  #counted({ over }, { palette }) {
    for (const { text, x, y } of this.counts) {
      const wide = over.widthOf(text, COUNT) + 6;
      over.box(x - wide / 2, y - 8, wide, 16, palette.paper);
      over.text(text, x, y, { ...COUNT, colour: palette.ink });
    }
  }

  /**
   * A piece that has come lies there until what the rank holds says so too; given back since, it is not here.
   * @param {Ownership} pane @param {Frame} frame @param {Flight} flight
   */
  #landed(pane, frame, { unit, category, to, piece, spans, half, over, end }) {
    const { model, palette } = frame;
    const target = pane.cell(model.wholeRowOf(to), category, unit.name);
    if (!target) return;
    const { at, spans: held } = model.changes(to, category, unit.name);
    const last = lastAtMost(at, indexOf(frame, to));
    const coming = held[last + 1] ?? [];
    const here = last >= 0 && inside(held[last], spans);
    const told = last >= 0 && model.columns.t_end[at[last]] >= end; // what comes next is another one, sent once more
    if (half === 0 && (here || told || !inside(coming, spans))) return;
    if (half === 1 && (!here || timeOf(frame, to) >= over)) return;
    for (const { x, width } of boxes(target, unit.padded, spans))
      pane.over.box(x, target.y, width, target.height, pane.fill(palette, unit, piece));
  }

  /**
   * A sum under way on its owner: its own part and those that have come fill the place up, then it lights up.
   * @param {Ownership} pane @param {Frame} frame @param {Flight[]} parts
   */
  #sum(pane, frame, parts) {
    const { model, palette } = frame;
    const [{ unit, category, to, spans, recorded, over: ends }] = parts;
    const target = pane.cell(model.wholeRowOf(to), category, unit.name);
    const last = Math.max(...parts.map(({ end }) => end));
    const time = timeOf(frame, to);
    const ago = time < last ? 0 : this.pace.elapsed(last, time);
    if (parts.every(({ start }) => time < start) || (time >= ends && ago >= FLASH)) return;
    if (!target || !model.held(to, category, unit.name, indexOf(frame, to)).length) return;
    const come = 1 + parts.filter(({ end }) => end <= time).length;
    const of = parts.length + 1;
    const { over } = pane;
    for (const { x, width } of boxes(target, unit.padded, spans)) {
      const filled = time >= last ? target.height : (target.height * come) / of;
      over.box(x, target.y, width, target.height, palette.paper);
      over.box(x, target.y + target.height - filled, width, filled, pane.fill(palette, unit, to));
      over.frame(x, target.y, width, target.height, palette.ink, 1);
      over.context.globalAlpha = Math.max(0, 0.7 - ago / FLASH);
      if (time >= last) over.box(x, target.y, width, target.height, palette.paper);
      over.context.globalAlpha = 1;
      const text = `${come}/${of}`;
      if (!recorded || time >= last || target.height < 13 || over.widthOf(text, COUNT) + 4 > width) continue;
      this.counts.push({ text, x: x + width / 2, y: target.y + target.height / 2 });
    }
  }
}

/**
 * Where spans lie within a cell of a unit of `padded` elements: each a pixel wide at least, unless it would reach the
 * next one, for stripes that touch would look like a whole.
 * @param {Box} cell @param {number} padded @param {number[]} spans
 */
export function boxes(cell, padded, spans) {
  const scale = cell.width / padded;
  const found = [];
  for (let k = 0; k < spans.length; k += 2) {
    const free = ((spans[k + 2] ?? Infinity) - spans[k + 1]) * scale;
    const own = (spans[k + 1] - spans[k]) * scale;
    found.push({ x: cell.x + spans[k] * scale, width: free < 2 ? own : Math.max(1, own) });
  }
  return found;
}

/**
 * The way that a piece has come, fading towards where it left.
 * @param {CanvasRenderingContext2D} context @param {string} colour @param {Box} from @param {number} y
 */
function trail(context, colour, from, y) {
  const fade = context.createLinearGradient(0, from.y, 0, y);
  fade.addColorStop(0, `${colour}00`);
  fade.addColorStop(1, `${colour}88`);
  context.fillStyle = fade;
  const inset = Math.min(2, from.width / 4);
  context.fillRect(from.x + inset, Math.min(from.y, y) + from.height / 2, from.width - 2 * inset, Math.abs(y - from.y));
}

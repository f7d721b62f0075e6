// Who holds what right now: a row per rank, a line per category, units side by side, true to their sizes.

import { tail, words } from "./format.js";
import { STATE } from "./model.js";
import { Pen } from "./pen.js";
import { rankName, rankTrouble, rowHeights } from "./rows.js";
import { GUTTER } from "./axis.js";

const HEAD = 20;
const GAP = 3;
/** The line (as in STATE) of what a collective moves: it gathers parameters and reduces gradients. */
const LINE_OF = { all_gather: 0, reduce_scatter: 1, all_reduce: 1 };

/** The units' places between `left` and `right`: widths true to their padded sizes, none below two pixels. */
export function unitPlaces(units, left, right) {
  const shown = units.filter((unit) => unit.padded > 0);
  const total = shown.reduce((sum, unit) => sum + unit.padded, 0);
  const room = right - left - GAP * (shown.length - 1);
  let x = left;
  return shown.map((unit) => {
    const width = Math.max(2, (room * unit.padded) / total);
    const place = { unit, x, width };
    x += width + GAP;
    return place;
  });
}

/** The pane. `draw` needs what the player shows now: `{ model, palette, index, event }`. */
export class Ownership {
  constructor(canvas) {
    this.pen = new Pen(canvas);
  }

  layout(model, width) {
    this.rows = rowHeights(model.worldSize, STATE.length, 13, 12);
    this.places = unitPlaces(model.units, GUTTER.left, width - 2);
    return this.pen.resize(width, HEAD + this.rows.pitch * model.worldSize - 6);
  }

  draw({ model, palette, index, event, time }) {
    this.pen.clear();
    this.#names(model, palette, event);
    for (let rank = 0; rank < model.worldSize; rank++) {
      this.#rank(model, palette, rank, index, event);
      for (const flight of model.ofRank[rank].length ? model.inFlight(rank, time) : []) this.#flight(palette, model.event(flight));
    }
    if (event && event.peer !== null && event.parent !== null) this.#piece(model, palette, event);
  }

  /** Middle of a line of a rank's row. */
  #middle(rank, line) {
    return HEAD + rank * this.rows.pitch + line * (this.rows.line + 2) + this.rows.line / 2;
  }

  /** A dashed frame around what is being gathered or reduced right now. */
  #flight(palette, event) {
    const place = this.places.find(({ unit }) => unit.name === event.unit);
    if (!place || !(event.op in LINE_OF)) return;
    const { context } = this.pen;
    context.setLineDash([4, 2]);
    const y = this.#middle(event.rank, LINE_OF[event.op]) - this.rows.line / 2;
    this.pen.frame(place.x - 1, y - 1, place.width + 2, this.rows.line + 2, palette.communicationColour, 2);
    context.setLineDash([]);
  }

  /** An arrow for one piece on its way from rank to rank: gathered pieces are the sender's own, reduced ones the receiver's. */
  #piece(model, palette, event) {
    const op = model.event(event.parent).op;
    const place = this.places.find(({ unit }) => unit.name === event.unit);
    if (!place || !(op in LINE_OF)) return;
    const receiving = /recv/.test(event.op);
    const [from, to] = receiving ? [event.peer, event.rank] : [event.rank, event.peer];
    const owner = op === "all_gather" ? from : to;
    const share = place.width / model.worldSize;
    const x = place.x + (op === "all_reduce" ? place.width / 2 : (owner + 0.5) * share);
    const inward = from < to ? 1 : -1;
    const edge = this.rows.line / 2;
    this.#arrow(palette, x, this.#middle(from, LINE_OF[op]) + inward * edge, this.#middle(to, LINE_OF[op]) - inward * edge);
  }

  #arrow(palette, x, y0, y1) {
    const { context } = this.pen;
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

  #names(model, palette, event) {
    for (const { unit, x, width } of this.places) {
      const now = event && event.unit === unit.name;
      const style = { colour: now ? palette.ink : palette.muted, weight: now ? 700 : 400, align: "center", room: width };
      this.pen.text(this.pen.fits(unit.name, style) ? unit.name : tail(unit.name), x + width / 2, 9, style);
    }
    if (!this.places.length) {
      const style = { colour: palette.muted, size: 12 };
      this.pen.text("This recording says nothing about who holds which unit.", GUTTER.left, 9, style);
    }
  }

  #rank(model, palette, rank, index, event) {
    const { pen, rows } = this;
    const top = HEAD + rank * rows.pitch;
    rankName(pen, palette, rank, top, rows.row >= 34 ? rows.line : rows.row);
    const trouble = rankTrouble(model, rank);
    if (trouble) {
      pen.text(trouble, GUTTER.left, top + rows.row / 2, { colour: palette.wait, size: 11.5 });
      return;
    }
    this.#light(palette, rank, top, event);
    STATE.forEach((category, line) => {
      const y = top + line * (rows.line + 2);
      const style = { colour: palette.muted, size: 10.5, align: "right" };
      if (rows.line >= 10) pen.text(words(category), GUTTER.left - 10, y + rows.line / 2, style);
      for (const place of this.places) this.#bar(model, palette, rank, category, place, y, index);
    });
  }

  /** One unit of one category on one rank: hollow where nothing is held, filled in the owners' colours where it is. */
  #bar(model, palette, rank, category, { unit, x, width }, y, index) {
    const { pen, rows } = this;
    const scale = width / unit.padded;
    const held = model.held(rank, category, unit.name, index);
    pen.frame(x, y, width, rows.line, palette.hollow);
    for (let k = 0; k < held.length; k += 2) {
      for (const [start, stop, owner] of unit.owners ?? [[0, unit.padded, rank]]) {
        const from = Math.max(start, held[k]);
        const to = Math.min(stop, held[k + 1]);
        if (to > from) pen.box(x + from * scale, y, (to - from) * scale, rows.line, palette.rank(pen.context, owner));
      }
    }
  }

  /** Lights the unit that the current event is about, on the rank where it happened. */
  #light(palette, rank, top, event) {
    const place = event && event.rank === rank && this.places.find(({ unit }) => unit.name === event.unit);
    if (!place) return;
    const line = STATE.indexOf(event.category);
    const y = line < 0 ? top : top + line * (this.rows.line + 2);
    const height = line < 0 ? this.rows.row : this.rows.line;
    this.pen.box(place.x - 4, y - 4, place.width + 8, height + 8, palette.lit);
    this.pen.box(place.x - 2, y - 2, place.width + 4, height + 4, palette.paper);
  }
}

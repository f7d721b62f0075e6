// Who holds what right now: a row per rank, a line per category, units side by side, true to their sizes.

import { tail, words } from "./format.js";
import { STATE } from "./model.js";
import { Pen } from "./pen.js";
import { rankName, rankTrouble, rowHeights } from "./rows.js";
import { GUTTER } from "./axis.js";

const HEAD = 20;
const GAP = 3;

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

  draw({ model, palette, index, event }) {
    const { pen } = this;
    pen.clear();
    this.#names(model, palette, event);
    for (let rank = 0; rank < model.worldSize; rank++) this.#rank(model, palette, rank, index, event);
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

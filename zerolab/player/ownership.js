// Who holds what right now: a row per rank, a line per category, units side by side, true to their sizes.

import { unitsAbout } from "./amid.js";
import { gutter } from "./axis.js";
import { ownersOf } from "./derived.js";
import { MOVED } from "./events.js";
import { flow } from "./flow.js";
import { words } from "./format.js";
import { lastAtMost, STATE } from "./model.js";
import { indexOf, timeOf } from "./moments.js";
import { Pen, ring } from "./pen.js";
import { nameRow, rowHeights, tellTrouble } from "./rows.js";
import { unitNames } from "./unitnames.js";

/**
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Values } from "./values.js"
 * @import { Category, Cell, Filter, Frame, Hit } from "./types.d.ts"
 * @import { Point, RecordedEvent, Row, Shown, TextStyle, Unit, UnitPlace } from "./types.d.ts"
 */

const HEAD = 20;
/** Pixels that a shard has at least. */
const LEAST = 2;
/** Lines lower than this, in pixels, are drawn in plain colours: a pattern could not be seen, and costs its time. */
const PATTERNED = 6;

/**
 * The units' places between `left` and `right`: widths true to their padded sizes, none below two pixels.
 * @param {Unit[]} units @param {number} left @param {number} right
 */
function unitPlaces(units, left, right) {
  const shown = units.filter((unit) => unit.padded > 0);
  const total = shown.reduce((sum, unit) => sum + unit.padded, 0);
  const gap = shown.length > 40 ? 1 : 3;
  const room = right - left - gap * (shown.length - 1) - 2 * shown.length;
  let x = left;
  return shown.map((unit) => {
    const width = 2 + Math.max(0, (room * unit.padded) / total);
    const place = { unit, x, width };
    x += width + gap;
    return place;
  });
}

/**
 * The pane. What is held lies in `pen` and is repainted only where it changed; what is lit, and pieces on their way, in
 * `over`.
 */
export class Ownership {
  /** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} overlay */
  constructor(canvas, overlay) {
    this.pen = new Pen(canvas);
    this.over = new Pen(overlay);
    this.gutter = gutter(0);
    this.rows = rowHeights(0, 1, 0, 0);
    this.lines = STATE;
    this.named = true;
    /** @type {UnitPlace[]} */
    this.places = [];
    /** @type {number | null} */
    this.painted = null;
    /** @type {Palette | null} */
    this.palette = null;
    /** @type {Cell[]} */
    this.watched = [];
    /** @type {ReturnType<typeof flow>} */
    this.moving = [];
    /** @type {Values | null} */
    this.values = null;
    /** @type {Shown | null} */
    this.moment = null;
    this.worldSize = 1;
  }

  /**
   * @param {Model} model @param {number} width @param {Filter} filter @param {number} grow
   * @param {number} [beside] pixels that are left free at the right
   */
  layout(model, width, filter, grow, beside = 0) {
    this.gutter = gutter(width);
    this.worldSize = model.worldSize;
    const chosen = STATE.filter((category) => category === filter.category);
    this.lines = chosen.length ? chosen : STATE;
    this.rows = rowHeights(model.whole.length, this.lines.length, 13, 12, grow);
    this.named = this.rows.line >= 10 && this.gutter.named;
    const units = filter.unit ? model.units.filter(({ name }) => name === filter.unit) : model.units;
    this.places = unitPlaces(units, this.gutter.left, width - 2 - beside);
    this.painted = null;
    const height = HEAD + this.rows.pitch * (model.whole.length - 1) + Math.max(this.rows.row + 6, 14);
    this.over.resize(width, height);
    return this.pen.resize(width, height);
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { model, palette, index, event, hover, time, flights } = frame;
    this.values = frame.values;
    this.moment = frame;
    if (this.painted === null || this.palette !== palette) this.#paint(frame);
    else this.#repaint(frame);
    this.painted = index;
    this.over.clear();
    const told = hover ?? event;
    if (flights) {
      const units = frame.beat ? unitsAbout(frame.beat) : [];
      unitNames(
        this,
        palette,
        units.map(({ name }) => name),
      );
      this.moving = flights.draw(this, frame);
      // No arrows of the hovered event: it is of another time than what is held here.
      if (hover) this.#light(model, palette, hover);
      return;
    }
    unitNames(this, palette, told?.unit ? [told.unit] : []);
    if (told) this.#light(model, palette, told);
    model.whole.forEach(({ rank }, row) => {
      for (const flight of model.inFlight(rank, timeOf(frame, rank))) this.#flight(palette, model.event(flight), row);
    });
    // As above: what a hovered event sent was sent at another time than what is held here.
    this.moving = event ? flow(this, model, palette, event, time) : [];
  }

  /**
   * The fill of what an owner keeps of a unit; of one that nobody owns a part of, of a copy.
   * @param {Palette} palette @param {Unit} unit @param {number} owner
   */
  fill(palette, unit, owner) {
    if (!unit.owners) return palette.copy;
    return this.rows.line < PATTERNED ? palette.rankColour(owner) : palette.rank(this.pen.context, owner);
  }

  /**
   * What lies at a point: `{ rank, category, unit }`, `{ row }` in the gutter, or null.
   * @param {Model} model @param {number} x @param {number} y
   * @returns {Hit | null}
   */
  hit(model, x, y) {
    const row = Math.floor((y - HEAD + 3) / this.rows.pitch);
    if (row < 0 || row >= model.whole.length) return null;
    if (x < this.gutter.left) return { row };
    const line = Math.floor((y - HEAD - row * this.rows.pitch) / (this.rows.line + 2));
    const place = this.places.find((one) => x >= one.x - 1 && x <= one.x + one.width + 1);
    return place && line >= 0 && line < this.lines.length
      ? { rank: model.whole[row].rank, category: this.lines[line], unit: place.unit.name }
      : null;
  }

  /**
   * The event that made what is at a point the way it is after event `index`; null if it never changed.
   * @param {Model} model @param {Point} point @param {number} index
   */
  changeAt(model, { x, y }, index) {
    const cell = this.hit(model, x, y);
    if (!cell || "row" in cell) return null;
    const { at } = model.changes(cell.rank, cell.category, cell.unit);
    const last = lastAtMost(at, this.moment?.index === index ? indexOf(this.moment, cell.rank) : index);
    return last < 0 ? null : at[last];
  }

  /**
   * The place of a unit's line in a row: `{ x, y, width, height }`; null if it is not drawn.
   * @param {number} row @param {Category | null} category @param {string | null} unit
   */
  cell(row, category, unit) {
    const place = this.places.find((one) => one.unit.name === unit);
    const line = /** @type {(Category | null)[]} */ (this.lines).indexOf(category);
    if (!place || row < 0) return null;
    const top = HEAD + row * this.rows.pitch;
    if (line < 0 && category !== null) return null; // a line that the filter leaves out
    if (line < 0) return { x: place.x, y: top, width: place.width, height: this.rows.row };
    return { x: place.x, y: top + line * (this.rows.line + 2), width: place.width, height: this.rows.line };
  }

  /**
   * The place of a unit's line of a rank, as `cell`.
   * @param {Model} model @param {number} rank @param {Category | null} category @param {string | null} unit
   */
  boxOf(model, rank, category, unit) {
    return this.cell(model.wholeRowOf(rank), category, unit);
  }

  /**
   * The place of a whole row.
   * @param {number} place
   */
  row(place) {
    return { y: HEAD + place * this.rows.pitch, height: this.rows.row };
  }

  /** @param {Frame} frame */
  #paint(frame) {
    const { model, palette } = frame;
    this.pen.clear();
    this.palette = palette;
    this.watched = [];
    for (const [place, row] of model.whole.entries()) this.#row(model, palette, row, place, indexOf(frame, row.rank));
  }

  /**
   * Paints the cells again whose last change is another one than when they were painted.
   * @param {Frame} frame
   */
  #repaint(frame) {
    const { palette } = frame;
    for (const cell of this.watched) {
      const { at } = cell.changes;
      const index = indexOf(frame, cell.rank);
      const before = cell.last;
      let last = before;
      while (last + 1 < at.length && at[last + 1] <= index) last += 1;
      while (last >= 0 && at[last] > index) last -= 1;
      if (last !== before || this.#worth(cell) !== cell.worth) this.#bar(palette, cell, last);
    }
  }

  /** @param {Model} model @param {Palette} palette @param {Row} row @param {number} place @param {number} index */
  #row(model, palette, row, place, index) {
    const { pen, rows } = this;
    const top = HEAD + place * rows.pitch;
    // Among many ranks its number is longer, and has the line of the units' names.
    const above = model.folded && this.gutter.named;
    const height = rows.row >= 34 ? rows.line : rows.row;
    nameRow(pen, palette, row, place, above ? 2 : top, above ? 14 : height, rows.pitch);
    if (tellTrouble(pen, palette, model, row, this.gutter.left, top + rows.row / 2)) return;
    this.lines.forEach((category, line) => {
      const y = top + line * (rows.line + 2);
      /** @type {TextStyle} */
      const style = { colour: palette.muted, size: 12, align: "right" };
      if (this.named) pen.text(words(category), this.gutter.left - 10, y + rows.line / 2, style);
      for (const { unit, x, width } of this.places) {
        const changes = model.changes(row.rank, category, unit.name);
        const cell = { x, y, width, unit, rank: row.rank, category, changes, last: -1, worth: "" };
        if (changes.at.length) this.watched.push(cell);
        this.#bar(palette, cell, lastAtMost(changes.at, index), true);
      }
    });
  }

  /**
   * One unit of one category on one rank: hollow where nothing is held, filled in the owners' colours where it is.
   * @param {Palette} palette @param {Cell} cell @param {number} last @param {boolean} [cleared]
   */
  #bar(palette, cell, last, cleared = false) {
    const { pen, rows } = this;
    const { x, y, width, unit, rank } = cell;
    cell.last = last;
    const scale = width / unit.padded;
    const held = last < 0 ? [] : cell.changes.spans[last];
    if (!cleared) pen.wipe({ x, y, width, height: rows.line });
    pen.frame(x, y, width, rows.line, palette.hollow);
    cell.worth = this.#worth(cell);
    if (!held.length) return;
    const owners = ownersOf(unit, rank, this.worldSize);
    // A shard among very many ranks is never drawn so narrow that it looks as if nothing were here.
    if (held.length === 2 && (held[1] - held[0]) * scale < LEAST) {
      const left = Math.min(x + held[0] * scale, x + width - LEAST);
      pen.box(left, y, LEAST, rows.line, this.fill(palette, unit, rank));
      return;
    }
    // Where owners lie closer than a pixel, one of them stands for its pixel.
    const every = Math.max(1, Math.floor(owners.length / Math.max(1, width)));
    for (let k = 0; k < held.length; k += 2) {
      for (let j = 0; j < owners.length; j += every) {
        const from = Math.max(owners[j][0], held[k]);
        const to = Math.min(owners[Math.min(j + every, owners.length) - 1][1], held[k + 1]);
        if (to > from) this.#part(palette, cell, owners[j][2], x + from * scale, (to - from) * scale);
      }
    }
    if (!unit.owners && this.worldSize > 1 && !cell.worth.startsWith("local")) copied(pen, palette, cell, rows.line);
  }

  /**
   * The states that the parts of a cell are in now, as a text to compare.
   * @param {Cell} cell
   */
  #worth({ rank, category, unit }) {
    const { values, moment } = this;
    if (!values || !moment || category === "optimizer_state") return "";
    const owners = new Set(unit.owners?.flat().map(([, , owner]) => owner) ?? [rank]);
    const time = timeOf(moment, rank);
    return [...owners].map((owner) => values.of(rank, category, unit, owner, time)).join();
  }

  /**
   * One owner's part of a cell, drawn by its state: fresh, stale or local.
   * @param {Palette} palette @param {Cell} cell @param {number} owner @param {number} x @param {number} width
   */
  #part(palette, { y, unit, rank, category, worth }, owner, x, width) {
    const { pen, rows, values, moment } = this;
    const { line } = rows;
    const own = worth && values && moment ? values.of(rank, category, unit, owner, timeOf(moment, rank)) : "plain";
    if (own === "local" && line >= PATTERNED) pen.box(x, y, width, line, palette.local(pen.context, rank));
    else if (own === "stale" && line >= PATTERNED) pen.box(x, y, width, line, palette.stale(pen.context, owner));
    else pen.box(x, y, width, line, this.fill(palette, unit, owner));
    if (own === "local") pen.frame(x, y, width, line, palette.rankColour(rank), Math.min(1.5, width / 2));
    if (own === "fresh" && width > 4) pen.frame(x, y, width, line, palette.ink, 2);
  }

  /**
   * A dashed frame around what is being gathered or reduced right now.
   * @param {Palette} palette @param {RecordedEvent} event @param {number} row
   */
  #flight(palette, event, row) {
    const category = MOVED[event.op];
    const cell = category && this.cell(row, category, event.unit);
    if (!cell) return;
    const { x, y, width, height } = cell;
    this.over.frame(x - 1, y - 1, width + 2, height + 2, palette.communicationColour, 2, [4, 2]);
  }

  /**
   * Frames what an event is about, on its own rank, and thinner on the other ranks of the same collective.
   * @param {Model} model @param {Palette} palette @param {RecordedEvent} event
   */
  #light(model, palette, event) {
    const shared = event.kind === "collective" || event.kind === "wait" ? model.drawnCollective(event.index) : [];
    for (const other of shared.map((i) => model.event(i)))
      if (model.wholeRowOf(other.rank) >= 0) this.#ring(model, palette, other, 1);
    this.#ring(model, palette, event, 2.5);
  }

  /** @param {Model} model @param {Palette} palette @param {RecordedEvent} event @param {number} lineWidth */
  #ring(model, palette, event, lineWidth) {
    // A send, a receive or a wait is about what its collective moves.
    const { op } = event.parent === null ? event : model.event(event.parent);
    const cell = event.unit && this.boxOf(model, event.rank, event.category ?? MOVED[op] ?? null, event.unit);
    if (!cell) return;
    const around = { x: cell.x - 1, y: cell.y - 1, width: cell.width + 2, height: cell.height + 2 };
    ring(this.over, palette, around, lineWidth);
  }
}

/**
 * Marks a cell as a copy, two sheets one behind the other: every rank has the same.
 * @param {Pen} pen @param {Palette} palette @param {{ x: number, y: number, width: number }} cell
 * @param {number} height
 */
function copied(pen, palette, { x, y, width }, height) {
  if (width < 20 || height < 14) return;
  const [left, top] = [x + width / 2 - 6, y + height / 2 - 6];
  for (const shift of [4, 0]) {
    pen.box(left + shift, top + 4 - shift, 8, 8, palette.paper);
    pen.frame(left + shift, top + 4 - shift, 8, 8, palette.ink, 1.25);
  }
}

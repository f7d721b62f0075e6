// What every rank did when, in lanes: computing and communication, or the host and each stream of its device.

import { gutter } from "./axis.js";
import { tail, words } from "./format.js";
import { Lanes } from "./lanes.js";
import { wires } from "./messages.js";
import { Pen, ring } from "./pen.js";
import { endedEarly, nameRow, rowHeights, tellTrouble } from "./rows.js";

/**
 * @import { Axis } from "./axis.js"
 * @import { Tools } from "./find.js"
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Bar, Frame, Kind, RecordedEvent, Row, Stretch, TextStyle } from "./types.d.ts"
 */

/**
 * The time axis through a pane: a thin line at every round time.
 * @param {Pen} pen @param {Palette} palette @param {Axis} axis @param {number} height
 */
export function drawTicks(pen, palette, axis, height) {
  for (const { x } of axis.ticks()) pen.line(x + 0.5, 0, x + 0.5, height, palette.hair);
}

/** Height of the time axis' numbers, which stand once, below the last pane that has the axis. */
export const AXIS_FOOT = 20;

/**
 * The numbers of the time axis, below a pane.
 * @param {Pen} pen @param {Palette} palette @param {Axis} axis @param {number} height
 */
export function drawTimes(pen, palette, axis, height) {
  let free = axis.left - 20;
  for (const { x, text } of axis.ticks()) {
    if (x < free || x > axis.right - 16) continue;
    free = x + pen.text(text, x, height + 11, { colour: palette.muted, size: 12, align: "center" }) + 12;
  }
}

/**
 * The cursor through a pane, and a fainter line where the event under the pointer ended.
 * @param {Pen} pen @param {Frame} frame @param {number} height
 */
export function drawCursor(pen, { palette, axis, hover, time }, height) {
  const [now, at] = [time, hover?.end ?? time].map((one) => Math.round(axis.x(one)) + 0.5);
  if (hover) pen.line(at, 0, at, height, palette.faint, 1, [2, 3]);
  if (now >= axis.left - 1 && now <= axis.right + 1) pen.line(now, 0, now, height, palette.ink, 1.5);
}

/** The pane. Bars are drawn once per view into `pen`; the cursor and the lit bars lie over it in `over`. */
export class Timeline {
  /** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} overlay */
  constructor(canvas, overlay) {
    this.pen = new Pen(canvas);
    this.over = new Pen(overlay);
    this.gutter = gutter(0);
    this.rows = rowHeights(0, 1, 0, 0);
    this.height = 0;
    this.foot = 0;
    /** @type {Tools | null} */
    this.tools = null;
    /** @type {Lanes | null} */
    this.lanes = null;
    /** @type {Map<number, Stretch[]>} */
    this.order = new Map(); // by rank, of those that had a row
    /** @type {Bar[]} */
    this.bars = [];
  }

  /** @param {Model} model @param {number} width @param {number} grow @param {boolean} last */
  layout(model, width, grow, last) {
    this.gutter = gutter(width);
    const lanes = new Lanes(model);
    this.lanes = lanes;
    this.rows = rowHeights(model.rows.length, lanes.names.length, 13, 6, grow);
    this.height = this.rows.pitch * model.rows.length;
    this.foot = last ? AXIS_FOOT : 0;
    this.order.clear();
    this.over.resize(width, this.height + this.foot);
    return this.pen.resize(width, this.height + this.foot);
  }

  /**
   * Everything that stays while the cursor moves.
   * @param {Frame} frame
   */
  drawView(frame) {
    const { model, palette, axis } = frame;
    const { pen } = this;
    pen.clear();
    this.bars = [];
    drawTicks(pen, palette, axis, this.height);
    if (this.foot) drawTimes(pen, palette, axis, this.height);
    for (const [place, row] of model.rows.entries()) this.#row(frame, row, place);
  }

  /**
   * The cursor, the current event's bar with its counterparts on other ranks, and those of the event under the pointer.
   * @param {Frame} frame
   */
  draw(frame) {
    const { model, palette, axis, event, hover } = frame;
    const { over } = this;
    over.clear();
    if (!event) return;
    this.tools?.draw(over, frame, this.height);
    const about = hover ?? event;
    if (about.kind === "collective" || about.kind === "wait")
      wires(over, palette, axis, model, about.index, (collective) => this.#middle(model, collective));
    for (const told of hover ? [event, hover] : [event]) {
      const shared = told.kind === "collective" || told.kind === "wait" ? model.drawnCollective(told.index) : [];
      for (const other of shared) this.#light(frame, other, 1);
      this.#light(frame, told.index, 2);
    }
    drawCursor(over, frame, this.height);
  }

  /**
   * The event whose bar lies at a point, children of it last; null where there is none.
   * @param {number} x @param {number} y
   */
  hit(x, y) {
    const found = this.bars.findLast(
      (bar) => x >= bar.x - 1 && x <= bar.x + bar.width + 1 && y >= bar.y && y <= bar.y + bar.height,
    );
    return found ? found.index : null;
  }

  /** @param {number} row @param {number} lane */
  #lane(row, lane) {
    return row * this.rows.pitch + lane * (this.rows.line + 2) + 2;
  }

  /**
   * The middle of a collective's bar; null where its rank has no row.
   * @param {Model} model @param {number} collective
   */
  #middle(model, collective) {
    const row = model.rowOf(model.columns.rank[collective]);
    const [stretch] = this.lanes?.of(model, collective) ?? [];
    if (row < 0 || !stretch) return null;
    const { y, height } = this.#inLane(row, stretch);
    return y + height / 2;
  }

  /**
   * How high a stretch stands, and where: those that share a lane at one time lie one below the other.
   * @param {number} row @param {Stretch} stretch
   */
  #inLane(row, { lane, place, places }) {
    const height = this.rows.line / places;
    return { y: this.#lane(row, lane) + place * height, height: places > 1 ? Math.max(1, height - 1) : height };
  }

  /** @param {Frame} frame @param {Row} row @param {number} place */
  #row(frame, row, place) {
    const { pen, rows } = this;
    const { model, palette, axis } = frame;
    const top = this.#lane(place, 0);
    const named = place - model.rows.findIndex(({ focus }) => focus); // the one in focus is
    nameRow(pen, palette, row, named, top, rows.row >= 24 ? rows.line : rows.row, rows.pitch);
    if (tellTrouble(pen, palette, model, row, axis.left, top + rows.row / 2)) return;
    if (rows.line >= 10 && this.gutter.named) {
      /** @type {TextStyle} */
      const style = { colour: palette.muted, size: 12, align: "right" };
      for (const [lane, name] of (this.lanes?.names ?? []).entries())
        pen.text(name, this.gutter.left - 10, this.#lane(place, lane) + rows.line / 2, style);
    }
    const first = this.bars.length;
    this.#bars(frame, row, place);
    for (const [bar, room] of freeRooms(this.bars.slice(first))) this.#label(frame, bar, room);
    if (endedEarly(model, row.rank)) this.#end(frame, row.rank, top);
  }

  /**
   * Where a rank's recording stops before its time.
   * @param {Frame} frame @param {number} rank @param {number} top
   */
  #end({ model, palette, axis }, rank, top) {
    const { pen, rows } = this;
    pen.text("ended early", axis.right + 8, top + rows.row / 2, { colour: palette.wait, size: 12 });
    const places = model.ofRank[rank];
    const x = places.length ? axis.x(model.columns.t_end[places[places.length - 1]]) : axis.left;
    if (x >= axis.left && x <= axis.right) pen.box(x, top - 2, 2, rows.row + 4, palette.wait);
  }

  /**
   * A row's bars; of those that share one pixel of a place only the first is drawn.
   * @param {Frame} frame @param {Row} row @param {number} place
   */
  #bars({ model, palette, axis, filter }, { rank }, place) {
    const { pen } = this;
    const { unit } = model.columns;
    /** @type {Map<number, number>} */
    const full = new Map(); // by height: up to where its pixels are taken
    if (!this.order.has(rank)) this.order.set(rank, this.lanes?.ofRank(model, rank) ?? []);
    for (const stretch of this.order.get(rank) ?? []) {
      const { index: i, start, end } = stretch;
      if (start > axis.t1) break;
      const extent = axis.extent(start, end);
      const kind = model.payload.kinds[model.columns.kind[i] - 1];
      if (!extent) continue;
      const [x, width] = extent;
      const { y, height } = this.#inLane(place, stretch);
      if (width <= 1 && x < (full.get(y) ?? -1)) continue;
      full.set(y, Math.floor(x) + 1);
      const faded = filter.unit !== null && model.units[unit[i] - 1]?.name !== filter.unit;
      pen.box(x, y, width, height, faded ? palette.hair : this.#fill(palette, kind, model, i));
      if (kind !== "wait" && width > 3) pen.box(x + width - 1, y, 1, height, palette.paper);
      this.bars.push({ index: i, x, y, width, height, faded });
    }
  }

  /**
   * Names a bar where nothing else lies over it.
   * @param {Frame} frame @param {Bar} bar @param {[x: number, width: number]} given
   */
  #label({ model, palette }, bar, [x, width]) {
    const event = model.event(bar.index);
    const { y } = bar;
    if (bar.height < 12 || event.kind === "wait" || width < 32 || bar.faded) return;
    const names = [
      this.#name(event, event.unit ?? ""),
      this.#name(event, tail(event.unit ?? "")),
      event.kind === "optimizer" ? "update" : tail(event.unit ?? event.op),
    ];
    const colour = palette.on(String(this.#fill(palette, event.kind, model, bar.index)));
    /** @type {TextStyle} */
    const style = { colour, size: 12, align: "center", room: width - 12 };
    const fits = names.find((name) => name && this.pen.fits(name, style));
    if (fits) this.pen.text(fits, x + width / 2, y + bar.height / 2, style);
  }

  /** @param {RecordedEvent} event @param {string} unit */
  #name(event, unit) {
    if (event.kind === "module") return unit;
    if (event.kind === "optimizer") return "update";
    if (event.kind === "save") return event.op;
    return `${words(event.op)} ${unit}`.trim();
  }

  /** @param {Palette} palette @param {Kind} kind @param {Model} model @param {number} i */
  #fill(palette, kind, model, i) {
    if (kind === "wait") return palette.waiting(this.pen.context);
    if (kind === "optimizer") return palette.optimizer;
    if (kind === "save") return palette.copy;
    const op = model.payload.words[model.columns.op[i] - 1];
    if (kind === "collective") return /reduce/.test(op) ? palette.reduction : palette.communicationColour;
    return op === "backward" ? palette.backward : palette.forward;
  }

  /**
   * Frames an event's bar; that of a send or a receive is its collective's.
   * @param {Frame} frame @param {number} index @param {number} lineWidth
   */
  #light({ model, palette, axis }, index, lineWidth) {
    const parent = model.columns.parent[index];
    const kind = model.payload.kinds[model.columns.kind[index] - 1];
    const at = parent >= 0 && kind === "collective" ? parent : index;
    const row = model.rowOf(model.columns.rank[at]);
    for (const stretch of this.lanes?.of(model, at) ?? []) {
      const extent = axis.extent(stretch.start, stretch.end);
      if (!extent || row < 0) continue;
      const [x, width] = extent;
      ring(this.over, palette, { x, width, ...this.#inLane(row, stretch) }, lineWidth + 1);
    }
  }
}

/**
 * Each bar wide enough for a name, with the widest part of it, `[x, width]`, that no later bar of its lane covers.
 * @param {Bar[]} bars
 * @returns {[bar: Bar, room: [x: number, width: number]][]}
 */
function freeRooms(bars) {
  /** @type {ReturnType<typeof freeRooms>} */
  const rooms = [];
  bars.forEach((bar, k) => {
    if (bar.width < 14) return;
    const end = bar.x + bar.width;
    /** @type {[x: number, width: number]} */
    let best = [bar.x, 0];
    let from = bar.x;
    for (let j = k + 1; j <= bars.length; j++) {
      const other = j < bars.length && bars[j].x < end ? bars[j] : { x: end, width: 0, y: bar.y };
      if (other.y === bar.y && other.x - from > best[1]) best = [from, other.x - from];
      if (other.y === bar.y) from = Math.max(from, other.x + other.width);
      if (other.x >= end) break;
    }
    rooms.push([bar, best]);
  });
  return rooms;
}

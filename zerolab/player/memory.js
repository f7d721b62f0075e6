// What every rank's memory held when: categories stacked over the common time axis, beside the formula's line.

import { gutter } from "./axis.js";
import { bytes } from "./format.js";
import { lastAtMost } from "./model.js";
import { STACK } from "./palette.js";
import { Pen } from "./pen.js";
import { endedEarly, nameRow, rowHeights, tellTrouble } from "./rows.js";
import { drawTicks } from "./timeline.js";

/**
 * @import { Axis } from "./axis.js"
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Device, Fill, Filter, Frame, Level, Row } from "./types.d.ts"
 */

/** Height of the time axis' numbers, which stand once, below this last of the panes. */
const AXIS_FOOT = 20;
/** Room above a row for the mark of its peak. */
const MARK = 7;

/** The pane of a device. The stacks are drawn once per view; the cursor and this moment's numbers lie over them. */
export class Memory {
  /**
   * @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} overlay @param {Model} model @param {Device} device
   */
  constructor(canvas, overlay, model, device) {
    this.device = device;
    this.foot = device === model.devices.at(-1) ? AXIS_FOOT : 0;
    this.peaks = model.peaksOn(device);
    this.formula = model.formulaOn(device);
    this.pen = new Pen(canvas);
    this.over = new Pen(overlay);
    this.gutter = gutter(0);
    this.rows = rowHeights(0, 1, 0, 0);
    this.height = 0;
    this.stack = STACK;
    this.whole = true;
    this.top = 1;
  }

  /** @param {Model} model @param {number} width @param {Filter} filter @param {number} top @param {number} grow */
  layout(model, width, filter, top, grow) {
    this.gutter = gutter(width);
    this.stack = STACK.filter((category) => !filter.category || category === filter.category);
    this.whole = this.stack.length === STACK.length;
    this.rows = rowHeights(model.rows.length, 1, 32, 9, grow);
    this.height = this.rows.pitch * model.rows.length;
    // One scale for all ranks and the whole recording, so that nothing jumps and rows can be compared.
    this.top = (this.whole ? top : this.#highest(model)) * 1.04;
    this.over.resize(width, this.height + this.foot);
    return this.pen.resize(width, this.height + this.foot);
  }

  /** @param {Frame} frame */
  drawView({ model, palette, axis }) {
    this.pen.clear();
    drawTicks(this.pen, palette, axis, this.height);
    this.#times(palette, axis);
    for (const [place, row] of model.rows.entries()) this.#row(model, palette, axis, row, place);
  }

  /** @param {Frame} frame */
  draw({ model, palette, axis, index, hover, time }) {
    const { over, rows } = this;
    over.clear();
    model.rows.forEach(({ rank }, place) => {
      const live = rows.line < 10 ? null : model.live(rank, hover ? hover.index : index, this.device);
      if (!live) return;
      const total = this.stack.reduce((sum, category) => sum + live[category], 0);
      const y = place * rows.pitch + MARK + (this.gutter.named ? Math.min(rows.line / 2, 7) : 22);
      if (!this.gutter.named && rows.line < 30) return;
      over.text(bytes(total), this.gutter.left - 10, y, { colour: palette.ink, size: 12, align: "right", weight: 600 });
    });
    if (hover)
      over.line(
        Math.round(axis.x(hover.end)) + 0.5,
        0,
        Math.round(axis.x(hover.end)) + 0.5,
        this.height,
        palette.faint,
        1,
        [2, 3],
      );
    const x = Math.round(axis.x(time)) + 0.5;
    if (model.count && x >= axis.left - 1 && x <= axis.right + 1) over.line(x, 0, x, this.height, palette.ink, 1.5);
  }

  /**
   * The event that had ended last on the row's rank at a point; null where there is none.
   * @param {Model} model @param {Axis} axis @param {number} x @param {number} y
   */
  hit(model, axis, x, y) {
    const row = model.rows[Math.floor(y / this.rows.pitch)];
    if (!row || x < axis.left) return null;
    const places = model.ofRank[row.rank];
    const last = lastAtMost(places, model.at(axis.t(x)));
    return last < 0 ? null : places[last];
  }

  /**
   * The highest level of the one category that is shown.
   * @param {Model} model
   */
  #highest(model) {
    return this.stack.reduce(
      (most, category) => model.columns[`${this.device}.${category}`].reduce((a, b) => Math.max(a, b), most),
      1,
    );
  }

  /** @param {Palette} palette @param {Axis} axis */
  #times(palette, axis) {
    if (!this.foot) return;
    let free = axis.left - 20;
    for (const { x, text } of axis.ticks()) {
      if (x < free || x > axis.right - 16) continue;
      free = x + this.pen.text(text, x, this.height + 11, { colour: palette.muted, size: 12, align: "center" }) + 12;
    }
  }

  /** @param {Model} model @param {Palette} palette @param {Axis} axis @param {Row} row @param {number} place */
  #row(model, palette, axis, row, place) {
    const { pen, rows } = this;
    const { rank } = row;
    const base = place * rows.pitch + MARK + rows.line;
    nameRow(pen, palette, row, place, base - rows.line, rows.line >= 24 ? 14 : rows.line, rows.pitch);
    pen.line(axis.left, base + 0.5, axis.right, base + 0.5, palette.hollow);
    if (tellTrouble(pen, palette, model, row, axis.left, base - rows.line / 2)) return;
    this.#stack(model, palette, axis, rank, base);
    if (this.whole) this.#marks(model, palette, axis, rank, base);
  }

  /**
   * The categories' areas from the bottom up, as steps: a level holds from the end of one event to the next.
   * @param {Model} model @param {Palette} palette @param {Axis} axis @param {number} rank @param {number} base
   */
  #stack(model, palette, axis, rank, base) {
    const steps = this.#steps(model, axis, rank);
    const floor = new Float64Array(steps.length);
    const { context } = this.pen;
    for (const category of this.stack) {
      const values = model.columns[`${this.device}.${category}`];
      if (steps.every(({ index }) => !values[index])) continue;
      context.beginPath();
      this.#edge(context, steps, floor, base, 1);
      for (let k = 0; k < steps.length; k++) floor[k] += values[steps[k].index];
      this.#edge(context, steps, floor, base, -1);
      context.fillStyle = palette.category(context, category);
      context.fill();
    }
  }

  /**
   * One edge of an area, rightwards or back; of levels that are as high as their neighbours only the ends are drawn.
   * @param {CanvasRenderingContext2D} context @param {Level[]} steps @param {Float64Array} heights @param {number} base
   * @param {number} direction
   */
  #edge(context, steps, heights, base, direction) {
    const [start, end] = direction > 0 ? /** @type {const} */ (["x0", "x1"]) : /** @type {const} */ (["x1", "x0"]);
    /** @type {number | null} */
    let before = null;
    for (let k = direction > 0 ? 0 : steps.length - 1; k >= 0 && k < steps.length; k += direction) {
      const y = base - (heights[k] / this.top) * this.rows.line;
      if (heights[k] !== before) context.lineTo(steps[k][start], y);
      before = heights[k];
      if (heights[k + direction] !== before) context.lineTo(steps[k][end], y);
    }
  }

  /**
   * The rank's levels in view: `[{ index, x0, x1 }]`; events closer than a third of a pixel keep only the last.
   * @param {Model} model @param {Axis} axis @param {number} rank
   */
  #steps(model, axis, rank) {
    const { t_end: end } = model.columns;
    /** @type {Level[]} */
    const steps = [];
    for (const index of model.ofRank[rank]) {
      if (end[index] > axis.t1) break;
      const x0 = Math.max(axis.left, axis.x(end[index]));
      const last = steps.at(-1);
      if (last) last.x1 = x0;
      if (last && x0 - last.x0 < 0.34 && this.peaks[rank]?.index !== last.index) steps.pop();
      steps.push({ index, x0, x1: axis.right });
    }
    // Nobody knows what a rank held after its recording ended.
    const last = steps.at(-1);
    if (last && endedEarly(model, rank)) last.x1 = last.x0 + 1;
    return steps;
  }

  /**
   * The formula's line and the mark of the highest level, both named in the right gutter.
   * @param {Model} model @param {Palette} palette @param {Axis} axis @param {number} rank @param {number} base
   */
  #marks(model, palette, axis, rank, base) {
    const { pen, rows, formula } = this;
    const peak = this.peaks[rank];
    if (!peak) return;
    /** @type {(value: number) => number} */
    const height = (value) => base - (value / this.top) * rows.line;
    const size = 12;
    const x = axis.right + 8;
    const room = this.gutter.right - 8;
    const peakText =
      rows.line >= 12 && this.gutter.named
        ? pen.text(`peak ${bytes(peak.bytes)}`, x, base - rows.line + 6, { colour: palette.ink, size, room })
        : 0;
    const at = axis.x(model.columns.t_end[peak.index]);
    if (at >= axis.left && at <= axis.right) this.#triangle(at, height(peak.bytes), palette.ink);
    if (formula === null || rows.line < 10) return; // in so low a row the line would hide the stack
    const y = Math.round(height(formula)) + 0.5;
    pen.line(axis.left, y, axis.right + 4, y, palette.formula, 1.25, [5, 3]);
    const below = peakText ? Math.max(y, base - rows.line + 6 + size * 1.25) : y;
    if (rows.line < 24 || !this.gutter.named) return;
    pen.text(`formula ${bytes(formula)}`, x, Math.min(below, base - 4), {
      colour: palette.formula,
      size,
      room,
    });
  }

  /** @param {number} x @param {number} y @param {Fill} fill */
  #triangle(x, y, fill) {
    const { context } = this.pen;
    context.fillStyle = fill;
    context.beginPath();
    context.moveTo(x, y + 1);
    context.lineTo(x - 4.5, y - 6);
    context.lineTo(x + 4.5, y - 6);
    context.fill();
  }
}

// What every rank's memory held when: categories stacked over the common time axis, with the formula's line.

import { gutter } from "./axis.js";
import { bytes } from "./format.js";
import { lastAtMost } from "./model.js";
import { STACK } from "./palette.js";
import { Pen } from "./pen.js";
import { endedEarly, MARK, nameRow, rowHeights, tellTrouble } from "./rows.js";
import { spreadRow } from "./spread.js";
import { ghostOf, hasState, highestOf, percent, saving, stackOf, tellStratum } from "./strata.js";
import { AXIS_FOOT, drawCursor, drawTicks, drawTimes } from "./timeline.js";

/**
 * @import { Axis } from "./axis.js"
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Ghost } from "./ghost.js"
 * @import { Device, Filter, Frame, Level, Row, Stratum } from "./types.d.ts"
 */

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
    /** @type {Ghost | null} */
    this.ghost = null;
    /** @type {Stratum | null} */
    this.pointed = null;
    this.top = 1;
  }

  /** @param {Model} model @param {number} width @param {Filter} filter @param {number} top @param {number} grow */
  layout(model, width, filter, top, grow) {
    this.gutter = gutter(width);
    this.stack = stackOf(filter);
    this.whole = this.stack.length === STACK.length;
    this.ghost = hasState(this.stack) ? ghostOf(model, this.device) : null;
    this.rows = rowHeights(model.whole.length, 1, 32, 9, grow);
    this.height = this.rows.pitch * (model.whole.length + (model.folded ? 1 : 0));
    // One scale for all ranks and the whole recording, so that nothing jumps and rows can be compared.
    this.top = (this.whole ? top : highestOf(model, this.stack, this.device)) * 1.04;
    this.over.resize(width, this.height + this.foot);
    return this.pen.resize(width, this.height + this.foot);
  }

  /** @param {Frame} frame */
  drawView(frame) {
    const { model, palette, axis } = frame;
    this.pen.clear();
    drawTicks(this.pen, palette, axis, this.height);
    if (this.foot) drawTimes(this.pen, palette, axis, this.height);
    for (const [place, row] of model.whole.entries()) this.#row(frame, row, place);
    if (model.folded) spreadRow(this, frame);
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { model, axis, hover, time } = frame;
    const { over } = this;
    over.clear();
    if (hover && this.pointed) this.#light(frame, this.pointed);
    const x = Math.round(axis.x(hover ? hover.end : time)) + 0.5;
    for (const [place, row] of model.whole.entries()) this.#now(frame, row, place, x);
    if (model.count) drawCursor(over, frame, this.height);
  }

  /**
   * A row's bytes now, in the left gutter, and next to the cursor how many fewer than DDP's they are.
   * @param {Frame} frame @param {Row} row @param {number} place @param {number} x
   */
  #now({ model, palette, axis, index, hover }, { rank }, place, x) {
    const { over, rows, ghost } = this;
    const at = hover ? hover.index : index;
    const live = rows.line < 10 ? null : model.live(rank, at, this.device);
    if (!live) return;
    const total = this.stack.reduce((sum, category) => sum + live[category], 0);
    const y = place * rows.pitch + MARK + (this.gutter.named ? Math.min(rows.line / 2, 7) : 22);
    if (this.gutter.named || rows.line >= 30)
      over.text(bytes(total), this.gutter.left - 10, y, { colour: palette.ink, size: 12, align: "right", weight: 600 });
    const missing = ghost?.missing(rank, at) ?? 0;
    const scale = rows.line / this.top;
    if (!ghost || !missing) return;
    if (missing * scale < 12 || x < axis.left || x > axis.right) {
      const small = { colour: palette.muted, size: 12, align: /** @type {const} */ ("right") };
      if (rows.line >= 24 && this.gutter.named)
        over.text(percent(ghost, rank, at), this.gutter.left - 10, y + 14, small);
      return;
    }
    const text = saving(ghost, rank, at);
    const style = { colour: palette.ink, size: 12, weight: 600 };
    const middle = place * rows.pitch + MARK + rows.line - (total + missing / 2) * scale;
    const width = over.widthOf(text, style);
    const left = x + 8 + width < axis.right ? x + 6 : Math.max(axis.left, x - 6 - width);
    over.box(left - 2, middle - 7, width + 4, 14, palette.paper);
    over.text(text, left, middle, style);
  }

  /**
   * The event that had ended last on the row's rank at a point, and the stratum there; null where there is none.
   * @param {Model} model @param {Axis} axis @param {number} x @param {number} y
   * @returns {Stratum | null}
   */
  hit(model, axis, x, y) {
    const place = Math.floor(y / this.rows.pitch);
    const row = model.whole[place];
    if (!row || x < axis.left) return null;
    const places = model.ofRank[row.rank];
    const last = lastAtMost(places, model.at(axis.t(x)));
    if (last < 0) return null;
    const up = ((place * this.rows.pitch + MARK + this.rows.line - y) / this.rows.line) * this.top;
    return { rank: row.rank, index: places[last], category: this.#at(model, row.rank, places[last], up) };
  }

  /**
   * A stratum in words, for the tooltip.
   * @param {Model} model @param {Stratum} stratum
   */
  tell(model, stratum) {
    return tellStratum(model, stratum, this.device);
  }

  /**
   * The stratum that lies a number of bytes above the base after event `index`.
   * @param {Model} model @param {number} rank @param {number} index @param {number} up
   * @returns {Stratum["category"]}
   */
  #at(model, rank, index, up) {
    let floor = 0;
    for (const category of this.stack) {
      floor += model.columns[`${this.device}.${category}`][index];
      if (up >= 0 && up <= floor) return category;
    }
    return this.ghost && up >= 0 && up <= floor + this.ghost.missing(rank, index) ? "ghost" : null;
  }

  /** @param {Frame} frame @param {Row} row @param {number} place */
  #row(frame, row, place) {
    const { pen, rows } = this;
    const { model, palette, axis } = frame;
    const base = place * rows.pitch + MARK + rows.line;
    nameRow(pen, palette, row, place, base - rows.line, rows.line >= 24 ? 14 : rows.line, rows.pitch);
    pen.line(axis.left, base + 0.5, axis.right, base + 0.5, palette.hollow);
    if (tellTrouble(pen, palette, model, row, axis.left, base - rows.line / 2)) return;
    this.#stack(frame, row.rank, base);
    this.#marks(frame, row, place, base);
  }

  /**
   * The categories' areas from the bottom up, as steps: a level holds from the end of one event to the next.
   * @param {Frame} frame @param {number} rank @param {number} base
   */
  #stack({ model, palette, axis }, rank, base) {
    const steps = this.#steps(model, axis, rank);
    const floor = new Float64Array(steps.length);
    const { rows } = this;
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
      if (rows.line < 36) continue;
      // Neighbours of like colours are parted by a thin line of paper, where that leaves them high enough.
      context.strokeStyle = palette.paper;
      context.lineWidth = 0.75;
      context.stroke();
    }
    this.#outline(palette, rank, steps, floor, base);
  }

  /**
   * What DDP would hold in addition to the stack, dashed on top of it.
   * @param {Palette} palette @param {number} rank @param {Level[]} steps @param {Float64Array} floor
   * @param {number} base
   */
  #outline(palette, rank, steps, floor, base) {
    const { ghost } = this;
    if (!ghost || !steps.length) return;
    const { context } = this.pen;
    const top = floor.map((height, k) => height + ghost.missing(rank, steps[k].index));
    context.beginPath();
    this.#edge(context, steps, floor, base, 1);
    this.#edge(context, steps, top, base, -1);
    context.fillStyle = palette.ghost;
    context.fill();
    context.beginPath();
    this.#edge(context, steps, top, base, 1);
    context.strokeStyle = palette.muted;
    context.lineWidth = 1;
    context.setLineDash([3, 2]);
    context.stroke();
    context.setLineDash([]);
  }

  /**
   * The stratum under the pointer, lit over the whole view.
   * @param {Frame} frame @param {Stratum} pointed
   */
  #light({ model, palette, axis }, { rank, category }) {
    const place = model.wholeRowOf(rank);
    if (!category || place < 0) return;
    const steps = this.#steps(model, axis, rank);
    const base = place * this.rows.pitch + MARK + this.rows.line;
    const top = new Float64Array(steps.length);
    const floor = new Float64Array(steps.length);
    for (const one of this.stack) {
      const values = model.columns[`${this.device}.${one}`];
      for (let k = 0; k < steps.length; k++) top[k] += values[steps[k].index];
      if (one === category) break;
      floor.set(top);
    }
    for (let k = 0; k < steps.length && category === "ghost"; k++)
      top[k] += this.ghost?.missing(rank, steps[k].index) ?? 0;
    const { context } = this.over;
    context.beginPath();
    this.#edge(context, steps, floor, base, 1);
    this.#edge(context, steps, top, base, -1);
    context.closePath();
    context.globalAlpha = 0.35;
    context.fillStyle = palette.lit;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = palette.lit;
    context.lineWidth = 1.5;
    context.stroke();
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
   * The formula's line and the mark of the highest level, both named in the right gutter: the one that is the same for
   * all in the first row alone.
   * @param {Frame} frame @param {Row} row @param {number} place @param {number} base
   */
  #marks({ model, palette, axis }, { rank }, place, base) {
    const { pen, rows, formula } = this;
    const peak = this.whole ? this.peaks[rank] : null;
    /** @type {(value: number) => number} */
    const height = (value) => base - (value / this.top) * rows.line;
    const size = 12;
    const x = axis.right + 8;
    const room = this.gutter.right - 8;
    const peakText =
      peak && rows.line >= 12 && this.gutter.named
        ? pen.text(`peak ${bytes(peak.bytes)}`, x, base - rows.line + 6, { colour: palette.ink, size, room })
        : 0;
    const at = peak ? axis.x(model.columns.t_end[peak.index]) : -1;
    if (peak && at >= axis.left && at <= axis.right) {
      const tip = height(peak.bytes) + 1;
      pen.shape([at, tip, at - 4.5, tip - 7, at + 4.5, tip - 7], palette.ink);
    }
    // In a very low row the line would hide the stack.
    if (formula === null || rows.line < 10 || !hasState(this.stack)) return;
    const y = Math.round(height(formula)) + 0.5;
    pen.line(axis.left, y, axis.right + 4, y, palette.formula, 1.25, [5, 3]);
    const below = peakText ? Math.max(y, base - rows.line + 6 + size * 1.25) : y;
    if (rows.line < 24 || !this.gutter.named || place) return;
    pen.text(`formula ${bytes(formula)}`, x, Math.min(below, base - 4), {
      colour: palette.formula,
      size,
      room,
    });
  }
}

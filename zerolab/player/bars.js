// One memory bar per rank, for the story: what is live on it right now, on one scale for all ranks and the whole run.

import { bytes } from "./format.js";
import { indexOf } from "./moments.js";
import { STACK } from "./palette.js";
import { Pen } from "./pen.js";
import { SPREAD, spreadBars } from "./spread.js";
import { ghostOf, hasState, highestOf, saving, stackOf } from "./strata.js";

/**
 * @import { Ghost } from "./ghost.js"
 * @import { Model } from "./model.js"
 * @import { Ownership } from "./ownership.js"
 * @import { Filter, Frame } from "./types.d.ts"
 */

/** How high a bar is at most, and the room for its number. */
const HIGHEST = 30;
const NUMBER = 16;
/** Between the rank in focus and all of them. */
const BELOW = 16;

/** The pane; its rows are next to those of the ownership pane. */
export class Bars {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.pen = new Pen(canvas);
    this.top = 1;
    this.stack = STACK;
    /** @type {Ghost | null} */
    this.ghost = null;
    this.least = 0; // the height of a row
    this.below = 0; // where all ranks together are drawn, of many
    this.brief = false; // beside another recording: what tells the two apart is written there instead
  }

  /**
   * @param {Model} model @param {number} width @param {Ownership} beside @param {Filter} filter @param {number} top
   */
  layout(model, width, beside, filter, top) {
    this.beside = beside;
    this.stack = stackOf(filter);
    this.ghost = hasState(this.stack) ? ghostOf(model) : null;
    this.top = this.stack.length === STACK.length ? top : highestOf(model, this.stack, "live");
    this.least = model.folded ? HIGHEST + NUMBER : 0;
    const first = this.row(0);
    this.below = first ? first.y + first.height + BELOW : 0;
    return this.pen.resize(width, model.folded ? this.below + SPREAD : beside.pen.height);
  }

  /**
   * The place of a bar with its number: next to its row; for the one in focus, they need less room than it may have.
   * @param {number} place
   */
  row(place) {
    const row = this.beside?.row(place);
    return row && { y: row.y, height: Math.max(row.height, this.least) };
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { model, palette, index } = frame;
    const { pen } = this;
    pen.clear();
    model.whole.forEach(({ rank }, place) => {
      const row = this.row(place);
      const own = indexOf(frame, rank);
      const live = model.live(rank, own);
      if (!row || !live) return;
      const height = Math.max(2, Math.min(HIGHEST, row.height - NUMBER));
      const y = row.y + Math.max(0, (row.height - height - NUMBER) / 2);
      const scale = pen.width / this.top;
      let x = 0;
      for (const category of this.stack) {
        const width = live[category] * scale;
        if (width > 0) pen.box(x, y, width, height, palette.category(pen.context, category));
        x += width;
      }
      pen.frame(0, y, pen.width, height, palette.hollow);
      const missing = this.ghost?.missing(rank, own) ?? 0;
      if (missing) {
        pen.box(x, y, missing * scale, height, palette.ghost);
        pen.frame(x, y, missing * scale, height, palette.muted, 1, [3, 2]);
      }
      const peak = this.stack.length === STACK.length ? model.peaks[rank] : null;
      if (peak) pen.line(peak.bytes * scale - 1, y, peak.bytes * scale - 1, y + height, palette.ink, 2);
      const formula = hasState(this.stack) ? model.formulaOn("live") : null;
      const at = formula === null ? -1 : formula * scale;
      if (at >= 0) pen.line(at, y - 2, at, y + height + 2, palette.formula, 1.5, [4, 3]);
      if (row.height < NUMBER + 6) return;
      const style = { colour: palette.ink, size: 12, weight: 600 };
      const total = bytes(this.stack.reduce((sum, category) => sum + live[category], 0));
      const after = pen.text(total, 0, y + height + 9, style) + 10;
      if (!this.ghost || !missing || this.brief) return;
      const room = pen.width - after;
      const said = saving(this.ghost, rank, own);
      const small = { colour: palette.muted, size: 12, room };
      pen.text(pen.fits(said, small) ? said : said.split(",")[0], after, y + height + 9, small);
    });
    if (!model.folded) return;
    const formula = hasState(this.stack) ? model.formulaOn("live") : null;
    spreadBars(pen, palette, model, { y: this.below, scale: pen.width / this.top, stack: this.stack, index, formula });
  }
}

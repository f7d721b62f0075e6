// One bar of memory a rank, for the story: what lives on it right now, on one scale for all ranks and the whole run.

import { bytes } from "./format.js";
import { STACK } from "./palette.js";
import { Pen } from "./pen.js";

/**
 * @import { Ownership } from "./ownership.js"
 * @import { Frame } from "./types.d.ts"
 */

/** How high a bar is at most, and the room for its number. */
const HIGHEST = 30;
const NUMBER = 16;

/** The pane; its rows stand beside those of the ownership pane. */
export class Bars {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.pen = new Pen(canvas);
    this.top = 1;
  }

  /** @param {number} width @param {Ownership} beside @param {number} top */
  layout(width, beside, top) {
    this.beside = beside;
    this.top = top;
    return this.pen.resize(width, beside.pen.height);
  }

  /** @param {Frame} frame */
  draw({ model, palette, index }) {
    const { pen, beside } = this;
    pen.clear();
    model.rows.forEach(({ rank }, place) => {
      const row = beside?.row(place);
      const live = model.live(rank, index);
      if (!row || !live) return;
      const height = Math.max(2, Math.min(HIGHEST, row.height - NUMBER));
      const y = row.y + Math.max(0, (row.height - height - NUMBER) / 2);
      const scale = pen.width / this.top;
      let x = 0;
      for (const category of STACK) {
        const width = live[category] * scale;
        if (width > 0) pen.box(x, y, width, height, palette.category(pen.context, category));
        x += width;
      }
      pen.frame(0, y, pen.width, height, palette.hollow);
      const peak = model.peaks[rank];
      if (peak) pen.line(peak.bytes * scale - 1, y, peak.bytes * scale - 1, y + height, palette.ink, 2);
      const formula = model.formulaOn("live");
      const at = formula === null ? -1 : formula * scale;
      if (at >= 0) pen.line(at, y - 2, at, y + height + 2, palette.formula, 1.5, [4, 3]);
      if (row.height < NUMBER + 6) return;
      const style = { colour: palette.ink, size: 12, weight: 600 };
      pen.text(bytes(Object.values(live).reduce((sum, one) => sum + one, 0)), 0, y + height + 9, style);
    });
  }
}

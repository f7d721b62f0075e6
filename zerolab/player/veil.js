// Dims what the guided walk is not about: three sheets over the ownership pane, next to and between its units.

import { element } from "./dom.js";

/** @import { Ownership } from "./ownership.js" */

/** Pixels that a unit's column keeps around itself, for its frames. */
const CLEAR = 3;

/** Sheets of the page: they lie over the canvas without being painted with every frame. */
export class Veil {
  /** @param {Ownership} pane */
  constructor(pane) {
    this.pane = pane;
    this.sheets = [0, 1, 2].map(() => element("i", { class: "zl-veil", "aria-hidden": "true" }));
    pane.over.canvas.after(...this.sheets);
    this.drawn = "";
  }

  /**
   * Leaves these units bright, all of them for an empty list, and nothing for null.
   * @param {string[] | null} units
   */
  draw(units) {
    const { pane } = this;
    const lit = pane.places.filter(({ unit }) => units?.includes(unit.name));
    const edges = lit.flatMap(({ x, width }) => [x - CLEAR, x + width + CLEAR]);
    const all = lit.length || !units ? [pane.gutter.left - CLEAR, ...edges, pane.over.width] : [];
    const gaps = this.sheets.map(() => [pane.over.width, 0]);
    for (let k = 0; k < all.length; k += 2)
      gaps[k + 2 < all.length ? k / 2 : gaps.length - 1] = [all[k], Math.max(0, all[k + 1] - all[k])];
    const drawn = `${gaps}:${pane.over.height}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    for (const [k, sheet] of this.sheets.entries()) {
      sheet.style.transform = `translateX(${gaps[k][0]}px)`;
      sheet.style.width = `${gaps[k][1]}px`;
      sheet.style.height = `${pane.over.height}px`;
    }
  }
}

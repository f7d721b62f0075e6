// The one time axis that all panes share: from nanoseconds to pixels and back.

import { toTheStep } from "./format.js";

/**
 * Space left of the axis for the names of ranks and rows, and right of it for what a line means; less on a phone.
 * @param {number} width
 */
export function gutter(width) {
  return width < 460 ? { left: 76, right: 10, named: false } : { left: 152, right: 110, named: true };
}

/** The axis between two times, drawn from `left` to `right` in pixels. */
export class Axis {
  /**
   * @param {number} t0 @param {number} t1 @param {number} width
   * @param {number} [origin] the time from which the axis counts
   */
  constructor(t0, t1, width, origin = t0) {
    const { left, right } = gutter(width);
    this.t0 = t0;
    this.t1 = t1;
    this.origin = origin;
    this.left = left;
    this.right = Math.max(left + 50, width - right);
    this.perPixel = (t1 - t0) / (this.right - this.left);
  }

  /** @param {number} t */
  x(t) {
    return this.left + (t - this.t0) / this.perPixel;
  }

  /** @param {number} x */
  t(x) {
    return this.t0 + (Math.min(Math.max(x, this.left), this.right) - this.left) * this.perPixel;
  }

  /**
   * The part of [start, end] that is in view, in pixels and at least one wide; null if none of it is.
   * @param {number} start @param {number} end
   * @returns {[x: number, width: number] | null}
   */
  extent(start, end) {
    if (end < this.t0 || start > this.t1) return null;
    const left = Math.max(this.x(start), this.left);
    return [left, Math.max(1, Math.min(this.x(end), this.right) - left)];
  }

  /** Round times since the origin, about one per 110 pixels: `[{ x, text }]`. */
  ticks() {
    const rough = this.perPixel * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10) * power;
    const ticks = [];
    for (let k = Math.ceil((this.t0 - this.origin) / step); k * step <= this.t1 - this.origin; k++) {
      ticks.push({ x: this.x(this.origin + k * step), text: k ? `+${toTheStep(k * step, step)}` : "0" });
    }
    return ticks;
  }
}

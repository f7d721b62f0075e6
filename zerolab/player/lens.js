// Which part of the recording the time axis shows: one training step, everything, or what was zoomed into.

import { Axis } from "./axis.js";

/**
 * @import { Model } from "./model.js"
 * @import { StepWindow, View } from "./types.d.ts"
 */

/** No closer than this many nanoseconds across the axis. */
const CLOSEST = 2000;

/** `at(index, time)` gives the part to show; it is the same object as long as nothing moved. */
export class Lens {
  /** @param {Model} model */
  constructor(model) {
    const { windows } = model;
    this.model = model;
    this.whole = false;
    /** @type {View | null} */
    this.zoom = null;
    /** @type {StepWindow | null} */
    this.window = null;
    /** @type {View} */
    this.view = { t0: 0, t1: 1e6 };
    this.length = 0; // nanoseconds that a step is shown at least; two players side by side share one length
    this.everything = { t0: Math.min(...windows.map((w) => w.t0)), t1: Math.max(...windows.map((w) => w.t1)) };
    /** @type {Map<StepWindow, StepWindow>} */
    this.stretched = new Map();
  }

  /**
   * Ranks are not in step with each other, so near the seam events of two steps alternate; the axis stays as long as
   * the time lies on it. A zoomed view moves along with the time and keeps its width.
   * @param {number} index @param {number} time
   */
  at(index, time) {
    if (this.model.windows.length) this.view = this.#viewAt(index, time);
    return this.view;
  }

  /** @param {number} index @param {number} time */
  #viewAt(index, time) {
    if (this.zoom) {
      const { t0, t1 } = this.zoom;
      if (time < t0 || time > t1) this.zoom = { t0: time - (t1 - t0) / 2, t1: time + (t1 - t0) / 2 };
      return this.zoom;
    }
    if (this.whole) return this.everything;
    const shown = this.window && this.#stretch(this.window);
    if (shown && shown === this.view && time >= shown.t0 && time <= shown.t1) return shown;
    return this.choose(this.model.windowOf(index));
  }

  /**
   * The axis for what is shown; it counts from the start of the step in which that begins.
   * @param {number} width in pixels
   */
  axis(width) {
    const { t0, t1 } = this.view;
    return new Axis(t0, t1, width, this.model.windows.findLast((window) => window.t0 <= t0)?.t0);
  }

  /**
   * Shows one window.
   * @param {StepWindow} window
   */
  choose(window) {
    this.window = window;
    this.zoom = null;
    this.view = this.#stretch(window);
    return this.view;
  }

  /**
   * Shows a step, unless more or less than a step is shown: beats belong to one even where ranks are in two at a time.
   * @param {number} step
   */
  follow(step) {
    const window = this.model.windows.find((one) => one.step === step);
    if (window && !this.zoom && !this.whole && this.window !== window) this.choose(window);
  }

  /**
   * Every step as long as `length` at least.
   * @param {number} length
   */
  setLength(length) {
    this.length = length;
    this.stretched.clear();
    this.window = null;
  }

  /**
   * Zooms by `factor` (below 1: closer) about time `centre`; all the way out is the whole recording.
   * @param {number} factor @param {number} centre
   */
  zoomBy(factor, centre) {
    const { t0, t1 } = this.view;
    const all = this.everything.t1 - this.everything.t0;
    const width = Math.min(all, Math.max(CLOSEST, (t1 - t0) * factor));
    const share = (centre - t0) / (t1 - t0);
    this.#place(centre - share * width, width);
  }

  /**
   * Moves the view by a share of its width, not beyond the recording.
   * @param {number} share
   */
  panBy(share) {
    const { t0, t1 } = this.view;
    this.#place(t0 + share * (t1 - t0), t1 - t0);
  }

  reset() {
    this.zoom = null;
    this.window = null;
  }

  /** @param {number} t0 @param {number} width */
  #place(t0, width) {
    const start = Math.max(this.everything.t0, Math.min(t0, this.everything.t1 - width));
    this.zoom = { t0: start, t1: start + width };
  }

  /** @param {StepWindow} window */
  #stretch(window) {
    if (window.t1 - window.t0 >= this.length) return window;
    // Kept, because a view that is another object is drawn again.
    const longer = this.stretched.get(window) ?? { ...window, t1: window.t0 + this.length };
    this.stretched.set(window, longer);
    return longer;
  }
}

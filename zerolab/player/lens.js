// Which part of the recording the time axis shows: one training step, everything, or what was zoomed into.

/** No closer than this many nanoseconds across the axis. */
const CLOSEST = 2000;

/** `at(index, time)` gives the part to show; it is the same object as long as nothing moved. */
export class Lens {
  constructor(model) {
    const { windows } = model;
    this.model = model;
    this.whole = false;
    this.zoom = null;
    this.length = 0; // nanoseconds that a step is shown at least; two players side by side share one length
    this.everything = { t0: Math.min(...windows.map((w) => w.t0)), t1: Math.max(...windows.map((w) => w.t1)) };
    this.stretched = new Map();
  }

  /**
   * Ranks are not in step with each other, so near the seam events of two steps alternate; the axis stays as long as
   * the time lies on it. A zoomed view moves along with the time and keeps its width.
   */
  at(index, time) {
    const { windows } = this.model;
    if (!windows.length) return this.view ?? (this.view = { t0: 0, t1: 1e6 });
    if (this.zoom) {
      const { t0, t1 } = this.zoom;
      if (time < t0 || time > t1) this.zoom = { t0: time - (t1 - t0) / 2, t1: time + (t1 - t0) / 2 };
      return (this.view = this.zoom);
    }
    if (this.whole) return (this.view = this.everything);
    if (this.window && this.view === this.#stretch(this.window) && time >= this.view.t0 && time <= this.view.t1)
      return this.view;
    return this.choose(this.model.windowOf(index));
  }

  /** Shows one window. */
  choose(window) {
    this.window = window;
    this.zoom = null;
    return (this.view = this.#stretch(window));
  }

  /** Every step as long as `length` at least. */
  setLength(length) {
    this.length = length;
    this.stretched.clear();
    this.window = null;
  }

  /** Zooms by `factor` (below 1: closer) about time `centre`; all the way out is the whole recording. */
  zoomBy(factor, centre) {
    const { t0, t1 } = this.view;
    const all = this.everything.t1 - this.everything.t0;
    const width = Math.min(all, Math.max(CLOSEST, (t1 - t0) * factor));
    const share = (centre - t0) / (t1 - t0);
    this.#place(centre - share * width, width);
  }

  /** Moves the view by a share of its width, not beyond the recording. */
  panBy(share) {
    const { t0, t1 } = this.view;
    this.#place(t0 + share * (t1 - t0), t1 - t0);
  }

  reset() {
    this.zoom = null;
    this.window = null;
  }

  #place(t0, width) {
    const start = Math.max(this.everything.t0, Math.min(t0, this.everything.t1 - width));
    this.zoom = { t0: start, t1: start + width };
  }

  #stretch(window) {
    if (window.t1 - window.t0 >= this.length) return window;
    if (!this.stretched.has(window)) this.stretched.set(window, { ...window, t1: window.t0 + this.length });
    return this.stretched.get(window);
  }
}

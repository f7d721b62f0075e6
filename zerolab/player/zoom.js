// How much of the time axis is visible: a step or the whole run, zoomed in or out, and which part of it.

/** @import { Player } from "./player.js" */

/** The time axis of one player, as keys, buttons and the pointer move it. */
export class Zoom {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
  }

  /** One step, or the whole run. */
  toggleWhole() {
    const { lens } = this.player;
    lens.reset();
    lens.whole = !lens.whole;
    this.player.refresh();
  }

  /**
   * Zooms by `factor` (below 1: closer) about a place in pixels, or about the cursor.
   * @param {number} factor @param {number | null} [x]
   */
  by(factor, x = null) {
    const { model, axis, lens, clock } = this.player;
    if (!model.count || !axis) return;
    lens.zoomBy(factor, x === null ? clock.time : axis.t(x));
    this.player.refresh();
  }

  /**
   * Moves the axis by a share of its width. The cursor stays where it is, unless that is out of view.
   * @param {number} share
   */
  pan(share) {
    const { model, axis, lens, clock } = this.player;
    if (!model.count || !axis) return;
    lens.panBy(share);
    const { t0, t1 } = lens.zoom ?? lens.view;
    this.player.showTime(Math.max(t0, Math.min(t1, clock.time)));
    this.player.settle();
  }

  reset() {
    this.player.lens.reset();
    this.player.refresh();
  }
}

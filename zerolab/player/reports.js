// Who else is told what is shown: the mirror, and, only a few times a second since they are slow, notebook and address.

import { whenIdle } from "./dom.js";
import { shownOf } from "./moments.js";

/** @import { Player } from "./player.js" */

/** Milliseconds between two reports; a key held down would flood the kernel, and Safari refuses more. */
const REPORT_EVERY = 250;

/** The reports of one player. */
export class Reports {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
    this.reported = -Infinity;
    this.later = 0;
  }

  /** Something moved: told at once if the last report is long enough ago, and once it rests. */
  moved() {
    const due = this.#due();
    if (due) whenIdle(() => this.#mirror(true));
    if (due) this.#tell();
    this.#tellLater();
  }

  /** What is shown stays for now: the mirror says so at once, with its sentences. */
  settled() {
    this.#mirror(this.player.clock.playing);
    if (!this.#due()) return this.#tellLater();
    this.#tell();
    this.stop();
  }

  stop() {
    clearTimeout(this.later);
  }

  #due() {
    return performance.now() - this.reported >= REPORT_EVERY;
  }

  #tellLater() {
    this.stop();
    this.later = window.setTimeout(() => {
      this.#mirror(this.player.clock.playing);
      this.#tell();
    }, REPORT_EVERY);
  }

  /** @param {boolean} moving */
  #mirror(moving) {
    const { player } = this;
    player.scene.mirror.draw(player.index, moving, (rank) => shownOf(player, rank));
  }

  #tell() {
    this.reported = performance.now();
    this.player.options.changed?.(this.player);
  }
}

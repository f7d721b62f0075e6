// Two recordings side by side on common axes: the same time since a step began, the same scale of bytes, one control.

import { caption } from "./caption.js";
import { element } from "./dom.js";
import { Player } from "./player.js";

/** @import { Options, PairPayload, Payload, StepWindow } from "./types.d.ts" */

/** Two players in `host`; the first leads. `payload`: `{ first, second, difference }`, see payload.py. */
export class Pair {
  /** @param {HTMLElement} host @param {PairPayload} payload @param {Options} [options] */
  constructor(host, payload, options = {}) {
    const { keyboard, changed, event, ...shared } = options;
    this.difference = payload.difference;
    this.said = payload.said;
    this.root = element("div", { class: "zl-pair" });
    host.append(this.root);
    // Until both are there, neither follows the other.
    this.following = true;
    this.matching = true;
    /** @type {(data: Payload, more: Options) => Player} */
    const player = (data, more) =>
      new Player(this.root, data, {
        ...shared,
        ...more,
        // Two are compared event by event, with everything in view.
        view: "all",
        events: true,
        moved: (one) => this.#follow(one),
        altered: (one) => this.#match(one),
      });
    this.first = player(payload.first, { keyboard, changed, event });
    this.second = player(payload.second, {});
    this.following = false;
    this.matching = false;
    this.first.root.classList.add("zl-first");
    this.second.root.classList.add("zl-second");
    this.#tellApart(this.first, "first");
    this.#tellApart(this.second, "second");
    this.root.prepend(this.#banner());
    this.difference?.events.forEach((index, k) => {
      if (index !== null) this.players[k].scene.transport.mark(index, "First difference");
    });
    this.#commonAxes();
    this.first.refresh();
  }

  get players() {
    return [this.first, this.second];
  }

  /** Shows in both recordings the first thing that they did differently. */
  gotoDifference() {
    if (!this.difference) return;
    this.following = true;
    this.difference.events.forEach((index, k) => {
      if (index === null) return;
      const player = this.players[k];
      player.lens.whole = false;
      player.lens.choose(player.model.windowOf(index));
      player.goto(index);
    });
    this.following = false;
  }

  remove() {
    for (const player of this.players) player.remove();
    this.root.remove();
  }

  /**
   * Names for screen readers, which jump from landmark to landmark and would otherwise meet each name twice.
   * @param {Player} player @param {string} place
   */
  #tellApart(player, place) {
    const named = [player.root, ...Object.values(player.scene.sections).map(({ section }) => section)];
    for (const one of named) one.setAttribute("aria-label", `${one.getAttribute("aria-label")} (${place} recording)`);
  }

  #commonAxes() {
    const models = this.players.map((player) => player.model);
    /** @type {(windows: StepWindow[]) => number} */
    const longest = (windows) => Math.max(0, ...windows.filter((w) => w.step > 0).map((w) => w.t1 - w.t0));
    const [one, other] = this.players.map(({ top }) => top);
    const top = (one.length > other.length ? one : other).map((_, k) => Math.max(one[k] ?? 1, other[k] ?? 1));
    const length = Math.max(...models.map((model) => longest(model.windows)));
    const whole = Math.max(...this.players.map(({ lens }) => lens.everything.t1 - lens.everything.t0));
    for (const player of this.players) if (player.model.count) player.share(top, length, whole);
  }

  /** What a rank keeps and sends, one beside the other; and the first difference in the words of both captions. */
  #banner() {
    if (!this.difference) {
      const same = "the same collectives over the same buffers, and every rank held the same, in the same order";
      return element("p", { class: "zl-difference" }, `Both did the same: ${same}.`);
    }
    const sum = this.said ? [element("strong", {}, this.said)] : [];
    const said = this.difference.events.map((index, k) => {
      const { model } = this.players[k];
      const name = model.payload.meta.stage ?? "your loop";
      return element(
        "span",
        {},
        element("b", {}, `${name}: `),
        index === null ? "nothing more." : caption(model, index),
      );
    });
    const button = element("button", { type: "button" }, "show it");
    button.addEventListener("click", () => this.gotoDifference());
    return element(
      "div",
      { class: "zl-difference" },
      ...sum,
      element("b", {}, `First difference, on rank ${this.difference.rank}`),
      ...said,
      button,
    );
  }

  /**
   * The other player shows the same time since the same step began, and as much of it.
   * @param {Player} leader
   */
  #follow(leader) {
    if (this.following || !this.second.model.count || !this.first.model.count) return;
    this.following = true;
    const other = leader === this.first ? this.second : this.first;
    const from = leader.model.windowOf(leader.index);
    const { windows } = other.model;
    const to = windows.find((window) => window.step === from.step) ?? windows[windows.length - 1];
    const shift = to.t0 - from.t0;
    const { zoom, whole } = leader.lens;
    other.lens.whole = whole;
    other.lens.zoom = zoom && { t0: zoom.t0 + shift, t1: zoom.t1 + shift };
    if (!whole && !zoom && other.lens.window !== to) other.lens.choose(to);
    other.showTime(Math.min(to.t1, leader.clock.time + shift));
    this.following = false;
  }

  /**
   * Theme and filter are one for both.
   * @param {Player} changed
   */
  #match(changed) {
    if (this.matching) return;
    this.matching = true;
    const other = changed === this.first ? this.second : this.first;
    if (other.chosenTheme !== changed.chosenTheme) other.setTheme(changed.chosenTheme);
    if (other.filter !== changed.filter) other.setFilter(changed.filter);
    this.matching = false;
  }
}

// Two recordings side by side: beat by beat, aligned by act and unit, or event by event on common axes; one control.

import { caption } from "./caption.js";
import { button, element, say } from "./dom.js";
import { focusOn } from "./focus.js";
import { listen } from "./keys.js";
import { Player } from "./player.js";
import { keepRoom } from "./room.js";
import { SharedClock, SharedSteps, Together } from "./together.js";
import { difference, Versus } from "./versus.js";

/** @import { Frame, Options, PairPayload, Payload, StepWindow } from "./types.d.ts" */

/** Two players in `host`; the first leads. `payload`: `{ first, second, difference }`, see payload.py. */
export class Pair {
  /** @param {HTMLElement} host @param {PairPayload} payload @param {Options} [options] */
  constructor(host, payload, options = {}) {
    const { keyboard, changed, event, time, ...shared } = options;
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
        drawn: (one, frame) => this.#drawn(one, frame),
        altered: (one) => this.#match(one),
      });
    this.first = player(payload.first, { keyboard, changed, event, time });
    // Its keys are the first one's: one of them plays.
    this.second = player(payload.second, { keyboard: element("div") });
    listen(this.second.root, this.first);
    this.names = this.#names();
    this.together = new Together(this.players, this.names);
    this.versus = this.players.map(
      (one, side) => new Versus(one, this.players[1 - side], (time) => this.#across(side, time)),
    );
    this.players.forEach((one, side) => {
      one.clock = new SharedClock(this.together, side, one.clock);
      one.steps = new SharedSteps(this.together, side, one);
      one.scene.transport.beat = () => this.together.tell(this.together.place);
      one.panes.bars.brief = true;
    });
    this.now = element("span", { class: "zl-moment" });
    this.told = element("div", { class: "zl-parting", hidden: "" });
    this.root.prepend(this.#banner());
    this.first.root.classList.add("zl-first");
    this.second.root.classList.add("zl-second");
    this.#tellApart(this.first, "first");
    this.#tellApart(this.second, "second");
    this.difference?.events.forEach((index, k) => {
      if (index !== null) this.players[k].scene.transport.mark(index, "First difference");
    });
    this.#commonAxes();
    this.matching = false;
    this.#match(this.first);
    this.following = false;
    this.first.refresh();
    if (this.first.byBeats && event === undefined) this.first.steps.edge(false);
    this.first.opened = this.first.index;
    this.#keepRoom();
    let { clientWidth: width } = this.root;
    this.resizing = new ResizeObserver(() => {
      if (width === this.root.clientWidth) return; // what it is given changes its height
      width = this.root.clientWidth;
      this.#keepRoom();
    });
    this.resizing.observe(this.root);
  }

  get players() {
    return [this.first, this.second];
  }

  /** What the two are called: their stages or, if those are the same, their places. */
  #names() {
    const [one, other] = this.players.map(({ model }) => model.payload.meta.stage ?? "your loop");
    return one === other ? ["the first", "the second"] : [one, other];
  }

  /** Shows in both recordings the first thing that they did differently. */
  gotoDifference() {
    if (!this.difference) return;
    this.told.hidden = false;
    this.first.tellEvents(true); // it is one event, and no beat of both
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
    this.resizing.disconnect();
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
    for (const player of this.players.filter(({ model }) => model.count)) {
      const { lens } = player;
      player.top = top;
      lens.setLength(length);
      lens.everything = { ...lens.everything, t1: lens.everything.t0 + whole };
      player.redraw();
    }
  }

  /** What a rank keeps and sends, one beside the other, in one line; what differs now; and the first difference. */
  #banner() {
    const sum = this.said ? [element("strong", {}, this.said)] : [];
    if (!this.difference) {
      const same = "the same collectives over the same buffers, and every rank held the same, in the same order";
      return element("div", { class: "zl-difference" }, element("p", {}, `Both did the same: ${same}.`));
    }
    const said = this.difference.events.map((index, k) => {
      const name = element("b", {}, `${this.names[k]}: `);
      return element("span", {}, name, index === null ? "nothing more." : caption(this.players[k].model, index));
    });
    this.told.append(element("b", {}, `First difference, on rank ${this.difference.rank}`), ...said);
    const show = button("Show the first difference", "first difference", () => this.gotoDifference());
    return element("div", { class: "zl-difference" }, ...sum, this.now, show, this.told);
  }

  /**
   * Whatever one shows, the other shows its counterpart; and over both, what the other one holds in addition.
   * @param {Player} one @param {Frame} frame
   */
  #drawn(one, frame) {
    if (!this.following) this.#follow(one);
    if (!this.versus) return;
    this.versus[one === this.first ? 0 : 1].draw(frame);
    if (one === this.first) say(this.now, difference(this.first, this.second, this.names));
  }

  /** @param {Player} leader */
  #follow(leader) {
    if (!this.second.model.count || !this.first.model.count) return;
    this.following = true;
    const side = leader === this.first ? 0 : 1;
    const other = this.players[1 - side];
    this.#sameView(side);
    if (this.first.byBeats) {
      if (leader.clock.time !== this.together.time(side)) this.together.seek(side, leader.clock.time);
      this.players.forEach((player, k) => {
        player.resting = this.together.resting(k);
        player.root.classList.toggle("zl-rests", player.resting !== "");
      });
      other.showTime(this.together.time(1 - side));
    } else {
      for (const player of this.players) player.root.classList.remove("zl-rests");
      other.showTime(this.#across(side, leader.clock.time));
    }
    this.following = false;
  }

  /**
   * As much of the same step, or all of it, on the other side.
   * @param {number} side
   */
  #sameView(side) {
    const [leader, other] = [this.players[side], this.players[1 - side]];
    const { zoom, whole } = leader.lens;
    const [from, to] = this.#windows(side, leader.clock.time);
    other.lens.whole = whole;
    other.lens.zoom = zoom && { t0: zoom.t0 + to.t0 - from.t0, t1: zoom.t1 + to.t0 - from.t0 };
    if (!whole && !zoom && !leader.byBeats && other.lens.window !== to) other.lens.choose(to);
  }

  /**
   * The step at a time of one side, and the same step of the other, or its last.
   * @param {number} side @param {number} time
   */
  #windows(side, time) {
    const { model } = this.players[side];
    const { windows } = this.players[1 - side].model;
    const from = model.windowOf(model.at(time));
    return [from, windows.find(({ step }) => step === from.step) ?? windows[windows.length - 1]];
  }

  /**
   * A time of one side as the other's: in the same stop; by events as long after the same step began.
   * @param {number} side @param {number} time
   */
  #across(side, time) {
    if (this.first.byBeats) return this.together.across(side, time);
    const [from, to] = this.#windows(side, time);
    return Math.min(to.t1, time + to.t0 - from.t0);
  }

  /**
   * Theme, filter and view are one for both, and so are beats or events.
   * @param {Player} changed
   */
  #match(changed) {
    if (this.matching) return;
    this.matching = true;
    const was = this.following;
    this.following = true;
    const other = changed === this.first ? this.second : this.first;
    // A line of code has no room beside another recording: with it, all is shown.
    if (changed.shown === "source") changed.setView("all");
    if (other.shown !== changed.shown) other.setView(changed.shown);
    if (other.byBeats !== changed.byBeats) other.tellEvents(!changed.byBeats);
    if (other.chosenTheme !== changed.chosenTheme) other.setTheme(changed.chosenTheme);
    if (other.filter !== changed.filter) other.setFilter(changed.filter);
    focusOn(other, changed.model.focus);
    this.following = was;
    this.matching = false;
    if (!was) this.#keepRoom();
    if (!was) changed.refresh();
  }

  /** Every caption has room for the longest one, on both sides. */
  #keepRoom() {
    keepRoom(
      this.players,
      this.players.flatMap((_, k) => this.together.list.map((_, place) => this.together.why(k, place))),
    );
    this.#levelHeads();
  }

  /** The heads of both panes of a name are equally high, whatever their legends say: their rows are on one line. */
  #levelHeads() {
    for (const name of /** @type {const} */ (["ownership", "timeline", "memory", "bars"])) {
      const heads = this.players.map(
        ({ scene }) => /** @type {HTMLElement} */ (scene.sections[name].legend.parentElement),
      );
      for (const head of heads) head.style.minHeight = "";
      const high = Math.max(...heads.map((head) => head.offsetHeight));
      for (const head of heads) head.style.minHeight = `${high}px`;
    }
    for (const player of this.players) player.redraw();
  }
}

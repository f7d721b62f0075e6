// Two recordings side by side: beat by beat, aligned by act and unit, or event by event on common axes; one control.

import { caption } from "./caption.js";
import { button, element, say } from "./dom.js";
import { focusOn } from "./focus.js";
import { listen } from "./keys.js";
import { shrink } from "./layout.js";
import { Player } from "./player.js";
import { keepRoom } from "./room.js";
import { growth } from "./rows.js";
import { SharedClock, SharedSteps, Together } from "./together.js";
import { difference, Versus } from "./versus.js";

/** @import { Frame, Options, PairPayload, Payload, StepWindow } from "./types.d.ts" */

/** Two players in `host`; the first leads. `payload`: `{ first, second, difference }`, see payload.py. */
export class Pair {
  /** @param {HTMLElement} host @param {PairPayload} payload @param {Options} [options] */
  constructor(host, payload, options = {}) {
    const { keyboard, changed, event, time, ...shared } = options;
    this.fills = Boolean(options.fill);
    this.share = 1; // of the usual height of rows
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
        share: () => this.share,
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
    this.#othersFirst();
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
    this.#scrollAsOne();
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

  /** Beside the buttons the second's facts have little room: those that the first has not stand first. */
  #othersFirst() {
    const [one, other] = this.players.map(({ root }) => /** @type {HTMLElement} */ (root.querySelector(".zl-facts")));
    const own = (other.textContent ?? "").split(" · ");
    const same = new Set((one.textContent ?? "").split(" · "));
    say(other, [...own.filter((fact) => !same.has(fact)), ...own.filter((fact) => same.has(fact))].join(" · "));
    for (const facts of [one, other]) facts.title = facts.textContent ?? "";
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
    this.fit();
  }

  /** Where one picture is scrolled, so is the other. */
  #scrollAsOne() {
    const bodies = this.players.map(({ scene }) => scene.body);
    /** @type {HTMLElement | null} */
    let follows = null; // it hears of what was done to it, and is not to answer
    bodies.forEach((body, side) => {
      const other = bodies[1 - side];
      body.addEventListener("scroll", () => {
        const isEcho = follows === body;
        follows = null;
        if (isEcho) return;
        const before = other.scrollTop;
        other.scrollTop = body.scrollTop;
        if (other.scrollTop !== before) follows = other;
      });
    });
  }

  /** Gives both as much room as the window has: panes of a name stand on one line, and rows are equally high. */
  fit() {
    const { players } = this;
    if (!this.root.clientWidth) return;
    const scenes = players.map(({ scene }) => scene);
    const parts = PANES.map((name) => scenes.map(({ sections }) => sections[name]));
    const heads = parts.map((both) => both.map(({ legend }) => /** @type {HTMLElement} */ (legend.parentElement)));
    const panes = [scenes.map(({ now }) => now), ...parts.slice(1).map((both) => both.map(({ section }) => section))];
    const redraw = (/** @type {number} */ share) => {
      this.share = share;
      for (const player of players) player.redraw();
      level(panes);
    };
    const fitted = (/** @type {number} */ share) => {
      redraw(share);
      level(heads);
      return shrink(players, () => level(panes), share);
    };
    level(heads);
    let share = fitted(1);
    if (share < 1) share = fitted(share); // in low rows the lines' names are in the legend, which is higher then
    const grows = share === 1 && this.fills && this.first.shown === "story";
    redraw(grows ? growth(this.root, this.first.panes.ownership.pen.height) : share);
  }
}

/** The panes that two have on one line. */
const PANES = /** @type {const} */ (["ownership", "timeline", "memory", "host"]);

/**
 * Makes the two of each pair equally high, as high as the higher one is by itself.
 * @param {HTMLElement[][]} pairs
 */
function level(pairs) {
  for (const one of pairs.flat()) one.style.minHeight = "";
  const heights = pairs.map((both) => Math.max(...both.map(({ offsetHeight }) => offsetHeight)));
  pairs.forEach((both, k) => {
    for (const one of both) one.style.minHeight = heights[k] ? `${heights[k]}px` : "";
  });
}

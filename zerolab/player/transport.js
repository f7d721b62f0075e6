// The row of controls below the panes: play, step, speed, and the scrubber over the whole recording.

import { SPEEDS } from "./clock.js";
import { button, element, icon, say } from "./dom.js";
import { count, exact } from "./format.js";

/**
 * @import { Player } from "./player.js"
 * @import { StepWindow } from "./types.d.ts"
 */

/**
 * "4 times slower than real", from the factor by which time is stretched.
 * @param {number} slower
 */
export function pace(slower) {
  const factor = slower >= 1 ? slower : 1 / slower;
  const shown = factor >= 10 ? exact(Number(factor.toPrecision(2))) : factor.toPrecision(2);
  return slower >= 1 ? `${shown}× slower than real` : `${shown}× faster than real`;
}

/** The controls of one player; `draw` shows the current event's place. */
export class Transport {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
    this.model = player.model;
    /** Which of the beats of its step one is, in words: of two players the stop. */
    this.beat = (/** @type {number} */ place) => player.beats.tell(place);
    /** @type {(name: Parameters<typeof icon>[0], title: string, action: () => void) => HTMLElement} */
    const moves = (name, title, action) => button(title, icon(name), action, { class: `zl-${name}` });
    /** @type {(shown: Node | string, title: string, action: () => void) => HTMLElement} */
    const zoom = (shown, title, action) => button(title, shown, action, { class: "zl-zoom" });
    this.before = moves("previous", "", () => player.step(-1));
    this.after = moves("next", "", () => player.step(1));
    this.play = moves("play", "Play", () => player.toggle());
    this.speed = this.#speeds();
    const wide = { class: "zl-wide", "aria-label": null };
    this.view = button("One step or the whole run (z)", "whole run", () => player.zoom.toggleWhole(), wide);
    this.reset = zoom("1:1", "No zoom (0)", () => player.zoom.reset());
    this.reset.hidden = true;
    this.thumb = element("i", { class: "zl-thumb" });
    this.track = this.#track();
    this.events = button("Beats or single events (e)", "events", () => player.tellEvents(player.byBeats), wide);
    this.place = element("span", { class: "zl-place" });
    this.pace = element("span", { class: "zl-pace" });
    this.element = element(
      "div",
      { class: "zl-transport", role: "group", "aria-label": "Controls" },
      moves("previousPhase", "Previous phase (↑)", () => player.steps.phase(-1)),
      this.before,
      this.play,
      this.after,
      moves("nextPhase", "Next phase (↓)", () => player.steps.phase(1)),
      this.track,
      this.place,
      this.events,
      element("label", { class: "zl-speed" }, this.speed, this.pace),
      element(
        "span",
        { class: "zl-view" },
        this.reset,
        zoom(icon("zoomOut"), "Zoom out (o)", () => player.zoom.by(2)),
        zoom(icon("zoomIn"), "Zoom in (i)", () => player.zoom.by(0.5)),
        this.view,
      ),
    );
    if (this.model.count) return;
    for (const button of this.element.querySelectorAll("button")) button.disabled = true;
    this.speed.disabled = true;
  }

  /** Shows where the player stands. */
  draw() {
    const { model, player } = this;
    const { index, clock, lens } = player;
    const { playing, speed } = clock;
    const place = player.byBeats ? player.beats.at(clock.time) : -1;
    const wanted = playing ? "pause" : "play";
    if (this.play.dataset.shows !== wanted) {
      this.play.dataset.shows = wanted;
      this.play.replaceChildren(icon(wanted));
      this.play.title = playing ? "Pause (space)" : "Play (space)";
      this.play.setAttribute("aria-label", playing ? "Pause" : "Play");
      this.play.setAttribute("aria-pressed", String(playing));
    }
    // A select looks through its options each time.
    if (this.speed.value !== String(speed)) this.speed.value = String(speed);
    this.#tellUnit(player.walk?.open ? "chapter" : place < 0 ? "event" : "beat");
    say(this.pace, place < 0 ? pace(clock.slow / speed) : "");
    this.events.setAttribute("aria-pressed", String(place < 0));
    this.view.setAttribute("aria-pressed", String(lens.whole));
    this.reset.hidden = lens.zoom === null;
    if (!model.count) return;
    this.thumb.style.translate = `${this.#share(index) * 100}cqw`;
    const said = place < 0 ? `event ${exact(index + 1)} of ${exact(model.count)}` : this.beat(place);
    say(this.place, said);
    this.track.setAttribute("aria-valuenow", String(index + 1));
    this.track.setAttribute("aria-valuetext", `${said}, ${name(model.windowOf(index))}`);
  }

  /**
   * What the buttons beside Play lead to.
   * @param {"event" | "beat" | "chapter"} unit
   */
  #tellUnit(unit) {
    if (this.after.dataset.unit === unit) return;
    this.after.dataset.unit = unit;
    for (const [button, said] of /** @type {const} */ ([
      [this.before, `Previous ${unit} (←)`],
      [this.after, `Next ${unit} (→)`],
    ])) {
      button.title = said;
      button.setAttribute("aria-label", said);
    }
  }

  /**
   * Marks event `index` on the track, with what it is in words.
   * @param {number} index @param {string} title
   */
  mark(index, title) {
    const mark = element("i", { class: "zl-mark", title });
    mark.style.left = `${this.#share(index) * 100}%`;
    this.track.append(mark);
  }

  #speeds() {
    const options = SPEEDS.map((speed) => element("option", { value: speed }, `${speed}×`));
    const select = element("select", { "aria-label": "Speed", title: "Speed (+ and −)" }, ...options);
    select.addEventListener("change", () => this.player.setSpeed(Number(select.value)));
    return select;
  }

  /** The scrubber: every event has the same room, so that a long setup does not hide the steps. */
  #track() {
    const parts = this.model.windows.map((window) => {
      const part = element(
        "span",
        { class: "zl-part", title: `${name(window)}: ${count(window.events, "event")}` },
        element("i"),
        element("span", {}, ...inParts(window)),
      );
      part.style.flexGrow = String(window.events);
      return part;
    });
    const attributes = {
      class: "zl-track",
      role: "slider",
      "aria-label": "Event",
      "aria-orientation": "horizontal",
      "aria-valuemin": Math.min(1, this.model.count),
      "aria-valuemax": this.model.count,
      "aria-valuenow": Math.min(1, this.model.count),
      tabindex: 0,
    };
    const ticks = this.#ticks();
    const track = element("div", attributes, element("div", { class: "zl-parts" }, ...parts), ...ticks, this.thumb);
    drag(
      track,
      (share) => this.player.scrub(this.#at(share)),
      () => this.player.settle(),
    );
    return track;
  }

  /** Exchanges that are not beats, such as a check that ranks do the same: one grey tick for those close together. */
  #ticks() {
    const { beats } = this.player;
    const first = new Map(beats.ticks.map((time) => [beats.at(time), this.model.at(time)]));
    return [...first.values()].map((index) => {
      const tick = element("i", { class: "zl-check", title: "a check, or another exchange of no unit" });
      tick.style.left = `${this.#share(index) * 100}%`;
      return tick;
    });
  }

  /**
   * Events in the order of the steps, as the parts of the track stand side by side.
   * @param {number} index
   */
  #share(index) {
    return (index + 0.5) / this.model.count;
  }

  /** @param {number} share */
  #at(share) {
    return Math.floor(share * this.model.count);
  }
}

/**
 * A window's name in two parts, so that where there is little room a step keeps its number.
 * @param {StepWindow} window
 */
function inParts(window) {
  const word = element("span", { class: "zl-word" }, window.step === 0 ? "setup" : "step ");
  return window.step === 0 ? [word] : [word, String(window.step)];
}

/**
 * A window's name: "setup" for what came before the first step.
 * @param {StepWindow} window
 */
export function name(window) {
  return window.step === 0 ? "setup" : `step ${window.step}`;
}

/** A finger that has moved less than so many pixels sideways may be about to scroll the page. */
const SIDEWAYS = 6;

/**
 * Calls `moved(share, event)` with the pointer's place across `target`, from 0 to 1, while it is held down; and then
 * `released`, also with a `pointercancel` where the browser has taken a finger over.
 * @param {HTMLElement} target @param {(share: number, event: PointerEvent) => void} moved
 * @param {(event: PointerEvent) => void} [released]
 */
export function drag(target, moved, released = () => {}) {
  let held = false;
  /** @type {number | null} */
  let waits = null; // where a finger came down, until it is known what for
  /** @type {(event: PointerEvent) => number} */
  const share = (event) => {
    const box = target.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };
  target.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = true;
    target.setPointerCapture(event.pointerId);
    waits = event.pointerType === "touch" ? event.clientX : null;
    if (waits === null) moved(share(event), event);
  });
  target.addEventListener("pointermove", (event) => {
    if (!held || (waits !== null && Math.abs(event.clientX - waits) < SIDEWAYS)) return;
    waits = null;
    moved(share(event), event);
  });
  /** @type {(event: PointerEvent) => void} */
  const end = (event) => {
    if (!held) return;
    held = false;
    if (waits !== null && event.type === "pointerup") moved(share(event), event); // it only tapped
    released(event);
  };
  target.addEventListener("pointerup", end);
  target.addEventListener("pointercancel", end);
}

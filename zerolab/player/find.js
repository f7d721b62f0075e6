// The tools of the timeline: a search for events by words, and the measure of a stretch of time.

import { button, element, say } from "./dom.js";
import { passes } from "./filter.js";
import { exact, words } from "./format.js";
import { within } from "./gestures.js";
import { Measure } from "./sums.js";
import { shows } from "./views.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Frame } from "./types.d.ts"
 */

/** What has a bar in the timeline: not sends and receives, which lie within their collective's bar. */
const BARRED = ["module", "optimizer", "wait", "collective", "save"];

/**
 * The text by which an event can be found, "" for one without a bar: what it does, its unit, phase and step, and the
 * line of source that caused it.
 * @param {Model} model @param {number} i
 */
export function textOf(model, i) {
  const { op, unit, phase, step, kind, parent } = model.event(i);
  if (!BARRED.includes(kind) || (kind === "collective" && parent !== null)) return "";
  const caused = model.lineOf(i);
  const source = caused && model.payload.sources[caused.source ?? -1];
  const line = source ? `${source.label}:${caused.line} ${source.text.split("\n")[caused.line - 1] ?? ""}` : "";
  return `${kind} ${op} ${words(op)} ${unit ?? ""} ${phase} step ${step} ${line}`.toLowerCase();
}

/** The tools of one player. */
export class Tools {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
    this.measure = new Measure(player);
    /** @type {string[] | null} */
    this.texts = null;
    this.known = { value: "", filter: player.filter, found: /** @type {number[]} */ ([]) };
    const attributes = { type: "search", placeholder: "find: blocks.2 reduce", title: "Find events by words (/)" };
    this.input = element("input", { ...attributes, "aria-label": "Find events by words", autocomplete: "off" });
    this.count = element("output", { class: "zl-found", "aria-live": "polite" });
    this.measuring = button("Measure a stretch of time (m)", "measure", () => this.measure.toggle());
    this.said = element("p", { class: "zl-sums", "aria-live": "polite", hidden: "" });
    this.element = element(
      "div",
      { class: "zl-tools", role: "group", "aria-label": "Events" },
      this.input,
      button("Previous match (shift enter)", "‹", () => this.next(-1)),
      button("Next match (enter)", "›", () => this.next(1)),
      this.count,
      this.measuring,
    );
    this.input.addEventListener("input", () => this.#count());
    this.input.addEventListener("keydown", (event) => this.#typed(event));
  }

  /** Whether something is searched for or measured, for the state: null where not. */
  state() {
    const { matches, place } = this;
    const found = this.input.value.trim() ? { words: this.input.value.trim(), matches: matches.length, place } : null;
    return { found, measured: this.measure.span && { ...this.measure.span, text: this.measure.text } };
  }

  /** The events that have all the words, of those that the filter leaves. */
  get matches() {
    const { model, filter } = this.player;
    const { value } = this.input;
    if (this.known.value === value && this.known.filter === filter) return this.known.found;
    const wanted = value.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = wanted.length ? this.#texts() : [];
    const found = texts.flatMap((text, i) =>
      wanted.every((word) => text.includes(word)) && passes(model, filter, i) ? [i] : [],
    );
    this.known = { value, filter, found };
    return found;
  }

  /** What every event is found by, made when first searched: a recording may have 20,000. */
  #texts() {
    const { model } = this.player;
    this.texts ??= Array.from({ length: model.count }, (_, i) => textOf(model, i));
    return this.texts;
  }

  /** The current event's place among the matches, from 1; 0 where it is none. */
  get place() {
    return this.matches.indexOf(this.player.index) + 1;
  }

  /**
   * Goes to the next match, or the one before; past the last comes the first.
   * @param {number} direction
   */
  next(direction) {
    const { matches, player } = this;
    if (!matches.length) return this.#count();
    player.pause();
    const found =
      direction > 0
        ? (matches.find((i) => i > player.index) ?? matches[0])
        : (matches.findLast((i) => i < player.index) ?? matches[matches.length - 1]);
    player.goto(found);
    this.#count();
  }

  /** Focuses the search; if the timeline is not shown, it is from then on. */
  open() {
    const { player } = this;
    if (!shows(player.shown, "timeline")) player.setView("timeline");
    this.input.focus();
    this.input.select();
  }

  /**
   * Into the pane, and onto its pointer: while something is measured, a press sets the mark.
   * @param {{ section: HTMLElement, heading: HTMLElement }} pane @param {HTMLElement} box
   */
  attach(pane, box) {
    pane.heading.after(this.element);
    pane.section.append(this.said);
    box.addEventListener(
      "pointerdown",
      (event) => {
        const { axis } = this.player;
        if (this.measure.mark !== null && axis && !event.shiftKey) this.measure.mark = axis.t(within(box, event).x);
      },
      { capture: true },
    );
  }

  /**
   * The measured stretch in the timeline, and what went on in it.
   * @param {import("./pen.js").Pen} over @param {Frame} frame @param {number} height
   */
  draw(over, { axis, palette }, height) {
    const { span, text } = this.measure;
    this.measuring.setAttribute("aria-pressed", String(span !== null));
    this.said.hidden = span === null;
    say(this.said, text);
    this.#count();
    const extent = span && axis.extent(span.t0, span.t1);
    if (!extent) return;
    const [x, width] = extent;
    over.context.globalAlpha = 0.12;
    over.box(x, 0, width, height, palette.ink);
    over.context.globalAlpha = 1;
    for (const edge of [x, x + width]) over.line(edge, 0, edge, height, palette.ink, 1, [4, 3]);
  }

  #count() {
    const { length } = this.matches;
    const nothing = this.input.value.trim() ? "no match" : "";
    say(this.count, length ? `${this.place ? `${exact(this.place)} of ` : ""}${exact(length)}` : nothing);
  }

  /** @param {KeyboardEvent} event */
  #typed(event) {
    event.stopPropagation(); // a letter is a letter here, and no key of the player
    if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") this.player.root.focus({ preventScroll: true });
  }
}

// The player: one recording, one current event, and panes that all draw that moment.

import { Beats } from "./beats.js";
import { Clock, SPEEDS } from "./clock.js";
import { ALL, chooseFilter, ranksOf } from "./filter.js";
import { Flights } from "./flight.js";
import { listen } from "./keys.js";
import { layOut } from "./layout.js";
import { legends } from "./legends.js";
import { Lens } from "./lens.js";
import { Model } from "./model.js";
import { open } from "./opening.js";
import { Pace } from "./pace.js";
import { Palette } from "./palette.js";
import { Pieces } from "./pieces.js";
import { Reports } from "./reports.js";
import { rowsOf } from "./rows.js";
import { build, labels, narrate, tell } from "./scene.js";
import { Steps } from "./steps.js";
import { Story } from "./story.js";
import { tops } from "./strata.js";
import { contrast, surroundingTheme, watchTheme } from "./theme.js";
import { Values } from "./values.js";
import { showPanes, shows } from "./views.js";
import { Walk } from "./walk.js";
import { Zoom } from "./zoom.js";

/** @import { Pair } from "./pair.js" */
/** @import { Filter, Frame, Options, Payload, Theme, View, ViewName } from "./types.d.ts" */

/** A player inside an element of a page. */
export class Player {
  /** @param {HTMLElement} host @param {Payload} payload @param {Options} [options] */
  constructor(host, payload, options = {}) {
    this.model = new Model(payload);
    this.model.focus = options.focus ?? 0;
    this.options = options;
    this.index = -1;
    /** @type {number | null} */
    this.hovered = null;
    this.hoversSource = true;
    this.filter = ALL;
    this.chosenTheme = options.theme ?? null;
    this.printed = false;
    this.palette = new Palette(this.chosenTheme ?? surroundingTheme(), contrast());
    this.lens = new Lens(this.model);
    /** @type {Frame["axis"] | null} */
    this.axis = null; // as what follows, not known before the first drawing
    /** @type {View | null} */
    this.view = null;
    /** @type {Frame | null} */
    this.frame = null;
    this.width = 0;
    this.stale = true;
    this.followed = 0;
    /** @type {Pair | null} */
    this.pair = null;
    this.resting = ""; // why it stands still while the other of a pair goes on
    this.top = tops(this.model);
    this.model.chooseRows(rowsOf(ranksOf(ALL, this.model.worldSize), this.model.peaks));
    this.story = new Story(this.model);
    this.beats = new Beats(this.model, this.story);
    this.pieces = new Pieces(this.model, this.beats);
    this.pace = new Pace(this.beats, this.pieces);
    this.values = new Values(this.model, this.beats);
    this.flights = new Flights(this.pieces, this.pace);
    this.steps = new Steps(this);
    this.zoom = new Zoom(this);
    this.byBeats = false;
    const holds = this.model.units.some(({ padded }) => padded) && !payload.meta.times_only;
    /** @type {ViewName} */
    this.shown = options.view ?? (holds ? "story" : payload.meta.total_only ? "memory" : "timeline");
    this.reports = new Reports(this);
    this.clock = new Clock(
      this.model,
      (time) => this.#show(this.model.at(time), time),
      () => this.settle(),
    );
    this.scene = build(this, host);
    this.root = this.scene.root;
    this.panes = this.scene.panes;
    this.walk = new Walk(this);
    listen(options.keyboard ?? this.root, this);
    this.setTheme(this.chosenTheme);
    this.stopTheme = watchTheme(this);
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.root);
    this.tellEvents(Boolean(options.events) || !this.beats.list.length);
    this.opened = open(this, options);
    this.settle();
  }

  /** Every event in the order in which the player steps through them, as plain values. */
  get events() {
    return Array.from({ length: this.model.count }, (_, i) => this.model.event(i));
  }

  /**
   * Shows the moment just after event `index` (bounded to the events there are).
   * @param {number} index
   */
  goto(index) {
    this.scrub(index);
    this.settle();
  }

  /**
   * As `goto`, while the pointer is still moving: the mirror and the notebook hear of it a few times a second.
   * @param {number} index
   */
  scrub(index) {
    const bounded = Math.max(0, Math.min(this.model.count - 1, Math.floor(index)));
    this.clock.time = this.model.count ? this.model.columns.t_end[bounded] : 0;
    this.#show(bounded, this.clock.time);
  }

  /**
   * Shows a place on the time axis, in pixels.
   * @param {number} x
   */
  scrubTo(x) {
    if (this.model.count && this.axis) this.showTime(this.axis.t(x));
  }

  /** @param {number} time */
  showTime(time) {
    this.clock.time = time;
    this.#show(this.model.at(time), time);
  }

  /** @param {number} direction */
  step(direction) {
    this.steps.next(direction);
  }

  play() {
    if (!this.model.count) return;
    if (!this.byBeats && this.index >= this.model.count - 1) this.goto(0);
    this.followed = this.model.columns.rank[this.index];
    this.clock.play();
    this.settle();
  }

  pause() {
    if (!this.clock.playing) return; // a step asks for it each time
    this.clock.pause();
    this.settle();
  }

  toggle() {
    if (this.clock.playing) this.pause();
    else this.play();
  }

  /** @param {number} speed */
  setSpeed(speed) {
    this.clock.speed = speed;
    this.settle();
  }

  /** @param {number} direction */
  faster(direction) {
    this.setSpeed(SPEEDS[SPEEDS.indexOf(this.clock.speed) + direction] ?? this.clock.speed);
  }

  /**
   * Goes by events, each told by itself, or by beats.
   * @param {boolean} wanted
   */
  tellEvents(wanted) {
    this.pause();
    this.byBeats = !wanted && this.beats.list.length > 0;
    this.clock.pace = this.byBeats ? this.pace : null;
    this.root.classList.toggle("zl-beats", this.byBeats);
    legends(this);
    this.redraw(); // legends of another height leave the panes another room
    if (this.index >= 0) this.settle();
    this.options.altered?.(this);
  }

  /** @param {ViewName} view */
  setView(view) {
    this.shown = view;
    this.root.dataset.view = view;
    showPanes(this.root, view);
    this.scene.views.draw(view);
    this.redraw();
    this.settle();
    this.options.altered?.(this);
  }

  /**
   * Shows only some ranks, a category, a unit: whatever of `{ ranks: [from, to], category, unit }` is given; null means
   * all.
   * @param {Partial<Filter>} change
   */
  setFilter(change) {
    chooseFilter(this, change);
  }

  /**
   * "light" or "dark"; null follows the surrounding page.
   * @param {Theme | null} theme
   */
  setTheme(theme) {
    this.chosenTheme = theme;
    this.palette = new Palette(this.printed ? "light" : (theme ?? surroundingTheme()), contrast());
    this.root.dataset.theme = this.palette.theme;
    this.root.classList.toggle("zl-contrast", this.palette.contrast);
    legends(this);
    this.redraw();
    this.options.altered?.(this);
  }

  toggleTheme() {
    this.setTheme(this.palette.theme === "light" ? "dark" : "light");
    this.settle();
  }

  /**
   * Lights event `index` in all panes, and tells of it at the pointer; null ends that. The current event, and without
   * `withSource` its source, stay.
   * @param {number | null} index @param {PointerEvent | null} [pointer] @param {boolean} [withSource]
   */
  preview(index, pointer = null, withSource = true) {
    if (index === null || !pointer) this.scene.tip.hide();
    else this.scene.tip.show(this.model, index, pointer);
    if (index === this.hovered) return;
    this.hovered = index;
    this.hoversSource = withSource;
    this.#panes();
    this.#source();
  }

  /** @param {number | null} index of an event that was clicked; null for none */
  pick(index) {
    if (index !== null) this.goto(index);
  }

  /** Everything that the panes show now, as plain values. */
  state() {
    return tell(this);
  }

  /** Every text drawn on a canvas, with its box in pixels of its canvas, for a test of overlaps. */
  labels() {
    return labels(this.panes);
  }

  remove() {
    this.clock.pause();
    this.reports.stop();
    this.stopTheme();
    this.resizing.disconnect();
    this.root.remove();
  }

  /** Draws again what is shown, on the axis as it is now. */
  refresh() {
    this.#show(this.index, this.clock.time);
    this.settle();
  }

  #resize() {
    const width = this.root.clientWidth;
    if (!width && this.width) this.pause(); // it is out of sight, as in a tab of Lab behind another
    if (width && width !== this.width) this.redraw();
  }

  /** Lays everything out again, as when the window has another height, and draws it. */
  redraw() {
    if (!this.root.clientWidth) return;
    // Known from the first draw on, or the observer's first call would draw all of it twice.
    this.width = this.root.clientWidth;
    layOut(this);
    if (this.#sees("source")) this.panes.source.layout(this.model);
    this.stale = true;
    if (this.index >= 0) this.#show(this.index, this.clock.time);
  }

  /** @param {number} index @param {number} time */
  #show(index, time) {
    const { model, panes } = this;
    const moved = index !== this.index;
    this.index = index;
    const event = model.count ? model.event(index) : null;
    if (!this.width) return narrate(this, event); // as in a notebook: the first resize draws it
    if (this.beat) this.lens.follow(this.beat.step);
    const view = this.lens.at(index, time);
    const fresh = this.view !== view || this.stale;
    const axis = fresh || !this.axis ? this.lens.axis(this.scene.now.clientWidth) : this.axis;
    const { palette, filter, values, beat } = this;
    const flights = beat && !this.clock.calm ? this.flights : null;
    // The walk asks of what was recorded at its moments.
    const until = beat && !this.walk.open ? this.beats.moments.of(beat) : null;
    const frame = { model, palette, axis, filter, index, event, hover: null, time, until, values, beat, flights };
    Object.assign(this, { view, stale: false, axis, frame });
    if (fresh && this.#sees("timeline")) panes.timeline.drawView(frame);
    if (fresh && this.#sees("memory")) for (const memory of panes.memories) memory.drawView(frame);
    this.#panes();
    if (moved || fresh || beat) narrate(this, event);
    this.scene.transport.draw();
    this.#source(); // last: it scrolls, and a page that scrolls is laid out at once with all that has changed before
    this.reports.moved();
    this.walk.moved();
    this.options.moved?.(this);
  }

  /** What moves: cursor, lit bars, what is held; with what the pointer hovers over. */
  #panes() {
    const { panes, model, hovered, index } = this;
    if (!this.frame) return;
    const frame = { ...this.frame, hover: hovered === null || hovered === index ? null : model.event(hovered) };
    if (this.#sees("timeline")) panes.timeline.draw(frame);
    if (this.#sees("memory")) for (const memory of panes.memories) memory.draw(frame);
    if (this.#sees("bars")) panes.bars.draw(frame);
    panes.ownership.draw(frame);
    this.options.drawn?.(this, frame);
  }

  /** @param {string} pane */
  #sees(pane) {
    return shows(this.shown, pane);
  }

  /** The beat that is told; null by events. */
  get beat() {
    return this.byBeats ? this.beats.list[this.beats.at(this.clock.time)] : null;
  }

  #source() {
    if (!this.#sees("source")) return;
    const { hovered, hoversSource, model, index } = this;
    const told = hoversSource && hovered !== null ? hovered : index;
    this.panes.source.draw({ model, event: model.count ? model.event(told) : null });
  }

  /** After a jump, a pause or the end: the controls and the mirror say at once what is shown. */
  settle() {
    this.scene.transport.draw();
    this.scene.spoken.setAttribute("aria-live", this.clock.playing && !this.byBeats ? "off" : "polite");
    this.reports.settled();
  }
}

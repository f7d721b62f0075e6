// The player: one recording, one current event, and panes that all draw that moment.

import { Axis } from "./axis.js";
import { caption } from "./caption.js";
import { Clock, SPEEDS } from "./clock.js";
import { say, whenIdle } from "./dom.js";
import { ALL, inWords, passes, ranksOf } from "./filter.js";
import { listen } from "./keys.js";
import { Lens } from "./lens.js";
import { Model, lastAtMost } from "./model.js";
import { Palette } from "./palette.js";
import { growth, rowsOf } from "./rows.js";
import { build, legends, tell } from "./scene.js";
import { Story } from "./story.js";
import { contrast, surroundingTheme, watchTheme } from "./theme.js";
import { name } from "./transport.js";

/** Milliseconds between two reports of what is shown; a key held down would flood the kernel, and Safari refuses more. */
const REPORT_EVERY = 250;

/** A player inside `host`. `options`: `{ event, theme, text, keyboard, changed(player), moved(player) }`; see `index.js`. */
export class Player {
  constructor(host, payload, options = {}) {
    this.model = new Model(payload);
    this.options = options;
    this.index = -1;
    this.hovered = null;
    this.filter = ALL;
    this.chosenTheme = options.theme ?? null;
    this.lens = new Lens(this.model);
    this.top = Math.max(1, this.model.formulaBytes ?? 0, ...this.model.peaks.map((peak) => peak?.bytes ?? 0));
    this.model.chooseRows(rowsOf(ranksOf(ALL, this.model.worldSize), this.model.peaks));
    this.story = new Story(this.model);
    this.clock = new Clock(
      this.model,
      (time) => this.#show(this.model.at(time), time),
      () => this.settle(),
    );
    build(this, host);
    listen(options.keyboard ?? this.root, this);
    this.setTheme(this.chosenTheme);
    this.stopTheme = watchTheme(() => this.setTheme(this.chosenTheme));
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.root);
    this.opened = this.model.opening();
    this.goto(options.event ?? this.opened);
  }

  /** Every event in the order in which the player steps through them, as plain values. */
  get events() {
    return Array.from({ length: this.model.count }, (_, i) => this.model.event(i));
  }

  /** Shows the moment just after event `index` (bounded to the events there are). */
  goto(index) {
    this.scrub(index);
    this.settle();
  }

  /** As `goto`, while the pointer is still moving: the mirror and the notebook hear of it a few times a second. */
  scrub(index) {
    const bounded = Math.max(0, Math.min(this.model.count - 1, Math.floor(index)));
    this.clock.time = this.model.count ? this.model.columns.t_end[bounded] : 0;
    this.#show(bounded, this.clock.time);
  }

  /** Shows a place on the time axis, in pixels. */
  scrubTo(x) {
    if (this.model.count) this.showTime(this.axis.t(x));
  }

  showTime(time) {
    this.clock.time = time;
    this.#show(this.model.at(time), time);
  }

  /** The next event that the filter leaves; all of them where it leaves everything. */
  step(direction) {
    this.pause();
    let index = this.index + direction;
    while (index >= 0 && index < this.model.count && !passes(this.model, this.filter, index)) index += direction;
    if (index >= 0 && index < this.model.count) this.goto(index);
  }

  stepPhase(direction) {
    this.pause();
    if (this.model.count) this.goto(this.model.nextPhase(this.index, direction));
  }

  stepUnit(direction) {
    this.pause();
    if (this.model.count) this.goto(this.model.nextUnit(this.index, direction));
  }

  stepWindow(direction) {
    this.pause();
    const { windows } = this.model;
    const next = windows[windows.indexOf(this.model.windowOf(this.index)) + direction];
    if (!next) return;
    this.lens.choose(next);
    this.goto(next.first);
  }

  /** The moment at which the current event's rank had most live bytes. */
  gotoPeak() {
    this.pause();
    if (this.model.count) this.goto(this.model.peaks[this.model.columns.rank[this.index]].index);
  }

  play() {
    if (!this.model.count) return;
    if (this.index >= this.model.count - 1) this.goto(0);
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

  setSpeed(speed) {
    this.clock.speed = speed;
    this.settle();
  }

  faster(direction) {
    this.setSpeed(SPEEDS[SPEEDS.indexOf(this.clock.speed) + direction] ?? this.clock.speed);
  }

  toggleView() {
    this.lens.reset();
    this.lens.whole = !this.lens.whole;
    this.refresh();
  }

  /** Zooms the time axis by `factor` (below 1: closer) about a place in pixels, or about the cursor. */
  zoomBy(factor, x = null) {
    if (!this.model.count || !this.axis) return;
    this.lens.zoomBy(factor, x === null ? this.clock.time : this.axis.t(x));
    this.refresh();
  }

  /** Moves the time axis by a share of its width. The cursor stays where it is, unless that is out of view. */
  panBy(share) {
    if (!this.model.count || !this.axis) return;
    this.lens.panBy(share);
    const { t0, t1 } = this.lens.zoom;
    this.showTime(Math.max(t0, Math.min(t1, this.clock.time)));
    this.settle();
  }

  resetZoom() {
    this.lens.reset();
    this.refresh();
  }

  /** Shows only some ranks, a category, a unit: whatever of `{ ranks: [from, to], category, unit }` is given; null means all. */
  setFilter(change) {
    const filter = { ...this.filter, ...change };
    this.filter = Object.values(filter).some(Boolean) ? filter : ALL;
    this.model.chooseRows(rowsOf(ranksOf(this.filter, this.model.worldSize), this.model.peaks));
    this.filterPanel.draw(this.filter);
    this.filterBadge.textContent = inWords(this.filter);
    this.filterBadge.hidden = this.filter === ALL;
    this.redraw();
    this.settle();
    this.options.altered?.(this);
  }

  /** Shows the ranks of one row alone, or all of them again. */
  toggleRow(place) {
    const { from, to } = this.model.rows[place];
    const alone = this.filter.ranks && this.model.rows.length === 1;
    this.setFilter({ ranks: alone ? null : [from, to] });
  }

  /** "light" or "dark"; null follows the surrounding page. */
  setTheme(theme) {
    this.chosenTheme = theme;
    this.palette = new Palette(theme ?? surroundingTheme(), contrast());
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

  toggleHelp(shown = this.help.hidden) {
    if (shown) this.toggleFilter(false);
    this.help.hidden = !shown;
    this.helpButton.setAttribute("aria-expanded", String(shown));
  }

  toggleFilter(shown = this.filterPanel.element.hidden) {
    if (shown) this.toggleHelp(false);
    this.filterPanel.element.hidden = !shown;
    this.filterButton.setAttribute("aria-expanded", String(shown));
    if (shown) this.filterPanel.selects.ranks.focus();
    else if (this.filterPanel.element.contains(document.activeElement)) this.filterButton.focus();
  }

  closePanels() {
    this.toggleHelp(false);
    this.toggleFilter(false);
    this.preview(null);
  }

  /** Lights event `index` in all panes, and tells of it at the pointer; null ends that. The current event, and without `withSource` its source, stay. */
  preview(index, pointer = null, withSource = true) {
    if (index === null && this.hovered === null) return;
    if (index === null) this.tip.hide();
    else this.tip.show(this.model, index, pointer);
    if (index === this.hovered) return;
    this.hovered = index;
    this.hoversSource = withSource;
    this.#panes();
    this.#source();
  }

  /** Goes to an event that was clicked; nothing for null. */
  pick(index) {
    if (Number.isInteger(index)) this.goto(index);
  }

  /** The event by which a cell of the ownership pane came to be as it is; null if it never changed. */
  changeAt(cell) {
    if (!cell || !cell.unit) return null;
    const { at } = this.model.changes(cell.rank, cell.category, cell.unit);
    const last = lastAtMost(at, this.index);
    return last < 0 ? null : at[last];
  }

  /** Everything that the panes show now, as plain values. */
  state() {
    return tell(this);
  }

  /** Every text drawn on a canvas, with its box in pixels of its canvas, for a test of overlaps. */
  labels() {
    const { ownership, timeline, memory } = this.panes;
    const all = ({ pen, over }) => [...pen.labels, ...over.labels];
    return { ownership: all(ownership), timeline: all(timeline), memory: all(memory) };
  }

  remove() {
    this.clock.pause();
    clearTimeout(this.later);
    this.stopTheme();
    this.resizing.disconnect();
    this.root.remove();
  }

  /** Draws again what is shown, on the axis as it is now. */
  refresh() {
    this.#show(this.index, this.clock.time);
    this.settle();
  }

  /** Gives the memory pane another scale, and the time axis other lengths: those that two players side by side share. */
  share(top, length, whole) {
    this.top = top;
    this.lens.setLength(length);
    this.lens.everything = { ...this.lens.everything, t1: this.lens.everything.t0 + whole };
    this.redraw();
  }

  #resize() {
    const width = this.root.clientWidth;
    if (width && width !== this.width) this.redraw();
  }

  /** Lays everything out again, as when the window has another height, and draws it. */
  redraw() {
    if (!this.panes || !this.root.clientWidth) return;
    this.width = this.root.clientWidth; // known from the first draw on, or the observer's first call would draw all of it twice
    for (const [mark, below] of [
      ["zl-medium", 1180],
      ["zl-narrow", 720],
      ["zl-tiny", 480],
    ])
      this.root.classList.toggle(mark, this.width < below);
    const { named } = this.panes.ownership;
    const drawn = this.#layout(1);
    // A page of its own is filled; in a notebook the player is as high as it needs.
    const grow = this.options.fill ? growth(this.root, drawn) : 1;
    if (grow > 1) this.#layout(grow);
    this.panes.source.layout(this.model);
    if (this.panes.ownership.named !== (named ?? true)) legends(this);
    this.stale = true;
    this.laidOut = true;
    if (this.index >= 0) this.#show(this.index, this.clock.time);
  }

  /** Gives the panes their sizes, rows `grow` times as high as usual; returns their heights together. */
  #layout(grow) {
    const { model, filter, sections, top } = this;
    const { ownership, timeline, memory } = this.panes;
    const width = (name) => sections[name].section.clientWidth;
    ownership.layout(model, width("ownership"), filter, grow);
    timeline.layout(model, width("timeline"), grow);
    memory.layout(model, width("memory"), filter, top, grow);
    return ownership.pen.height + timeline.pen.height + memory.pen.height;
  }

  #show(index, time) {
    const { model, panes } = this;
    const moved = index !== this.index;
    this.index = index;
    const event = model.count ? model.event(index) : null;
    if (!this.laidOut) return this.#words(event); // without a width yet, as in a notebook: the first resize draws it
    const view = this.lens.at(index, time);
    const fresh = this.view !== view || this.stale;
    if (fresh) {
      this.view = view;
      this.stale = false;
      this.axis = new Axis(view.t0, view.t1, this.sections.timeline.section.clientWidth);
    }
    this.frame = { model, palette: this.palette, axis: this.axis, filter: this.filter, index, event, time };
    if (fresh) {
      panes.timeline.drawView(this.frame);
      panes.memory.drawView(this.frame);
    }
    this.#panes();
    if (moved || fresh) this.#words(event);
    this.#controls();
    this.#source(); // last: it scrolls, and a page that scrolls is laid out at once with all that has changed before
    this.options.moved?.(this);
    this.#report(false);
  }

  /** What moves: cursor, lit bars, what is held; with what the pointer hovers over. */
  #panes() {
    const { panes, model, hovered, index } = this;
    const frame = { ...this.frame, hover: hovered === null || hovered === index ? null : model.event(hovered) };
    panes.timeline.draw(frame);
    panes.memory.draw(frame);
    panes.ownership.draw(frame);
    this.told = (this.hoversSource && frame.hover) || frame.event;
  }

  #source() {
    this.panes.source.draw({ model: this.model, event: this.told });
  }

  #controls() {
    const { index, clock, lens } = this;
    this.transport.draw({
      index,
      playing: clock.playing,
      speed: clock.speed,
      slower: clock.slow / clock.speed,
      whole: lens.whole,
      zoomed: lens.zoom !== null,
    });
  }

  #words(event) {
    if (!event) {
      this.where.textContent = "";
      this.caption.textContent = "This recording has no events: nothing ran while it was made.";
      return;
    }
    // While it plays, events of all ranks alternate within milliseconds; what is told of them stays with one rank.
    const told = this.clock.playing ? lastAtMost(this.model.ofRank[this.followed], this.index) : -1;
    const story = this.story.tell(told < 0 ? this.index : this.model.ofRank[this.followed][told]);
    say(this.why, story);
    const window = name(this.model.windowOf(this.index));
    const phase = event.phase === "step" ? "update" : event.phase; // "step 1 · step" would say one word for two things
    say(this.where, window === phase ? window : `${window} · ${phase}`);
    say(this.caption, caption(this.model, this.index));
  }

  /** After a jump, a pause or the end: the controls and the mirror say at once what is shown. */
  settle() {
    this.#controls();
    this.spoken.setAttribute("aria-live", this.clock.playing ? "off" : "polite");
    this.#report(true);
  }

  /** Writes the mirror, its sentences at rest only; and tells the notebook or the address, both slow, of the last place. */
  #report(now) {
    const wait = REPORT_EVERY - (performance.now() - (this.reported ?? -Infinity));
    if (now) this.mirror.draw(this.index, this.clock.playing);
    else if (wait <= 0) whenIdle(() => this.mirror.draw(this.index, true));
    if (wait <= 0) this.#tell();
    clearTimeout(this.later);
    if (now && wait <= 0) return;
    this.later = setTimeout(() => {
      this.mirror.draw(this.index, this.clock.playing);
      this.#tell();
    }, REPORT_EVERY);
  }

  #tell() {
    this.reported = performance.now();
    this.options.changed?.(this);
  }
}

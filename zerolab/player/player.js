// The player: one recording, one current event, and panes that all draw that moment.

import { Axis } from "./axis.js";
import { caption } from "./caption.js";
import { Clock, SPEEDS } from "./clock.js";
import { element, layers, pane, swatch } from "./dom.js";
import { count, words } from "./format.js";
import { help, listen } from "./keys.js";
import { Memory } from "./memory.js";
import { Mirror } from "./mirror.js";
import { Model, STATE } from "./model.js";
import { Ownership } from "./ownership.js";
import { Palette, STACK } from "./palette.js";
import { rankBadge } from "./rows.js";
import { SourcePane } from "./source.js";
import { surroundingTheme, watchTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Transport, drag, name } from "./transport.js";

/** Milliseconds between two writings of the text mirror while things move; at rest it is written at once. */
const MIRROR_EVERY = 250;

/** A player inside `host`. `options`: `{ event, theme, text, keyboard, changed(player) }`; see `index.js`. */
export class Player {
  constructor(host, payload, options = {}) {
    this.model = new Model(payload);
    this.options = options;
    this.index = -1;
    this.whole = false;
    this.chosenTheme = options.theme ?? null;
    const { windows } = this.model;
    this.everything = { t0: Math.min(...windows.map((w) => w.t0)), t1: Math.max(...windows.map((w) => w.t1)) };
    this.clock = new Clock(this.model, (time) => this.#show(this.model.at(time), time), () => this.#settle());
    this.#build(host);
    this.setTheme(this.chosenTheme);
    this.stopTheme = watchTheme(() => this.chosenTheme || this.setTheme(null));
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.root);
    this.goto(options.event ?? this.#opening());
  }

  /** Shows the moment just after event `index` (bounded to the events there are). */
  goto(index) {
    this.scrub(index);
    this.#settle();
  }

  /** As `goto`, while the pointer is still moving: the mirror and the notebook hear of it a few times a second. */
  scrub(index) {
    const bounded = Math.max(0, Math.min(this.model.count - 1, Math.floor(index)));
    this.clock.time = this.model.count ? this.model.columns.t_end[bounded] : 0;
    this.#show(bounded, this.clock.time);
  }

  step(direction) {
    this.pause();
    this.goto(this.index + direction);
  }

  stepPhase(direction) {
    this.pause();
    if (this.model.count) this.goto(this.model.nextPhase(this.index, direction));
  }

  stepWindow(direction) {
    this.pause();
    const { windows } = this.model;
    const next = windows[windows.indexOf(this.model.windowOf(this.index)) + direction];
    if (!next) return;
    this.view = next;
    this.goto(next.first);
  }

  play() {
    if (!this.model.count) return;
    if (this.index >= this.model.count - 1) this.goto(0);
    this.clock.play();
    this.#settle();
  }

  pause() {
    this.clock.pause();
    this.#settle();
  }

  toggle() {
    if (this.clock.playing) this.pause();
    else this.play();
  }

  setSpeed(speed) {
    this.clock.speed = speed;
    this.#settle();
  }

  faster(direction) {
    const at = SPEEDS.indexOf(this.clock.speed) + direction;
    this.setSpeed(SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, at))]);
  }

  toggleView() {
    this.whole = !this.whole;
    this.goto(this.index);
  }

  /** "light" or "dark"; null follows the surrounding page. */
  setTheme(theme) {
    this.chosenTheme = theme;
    this.palette = new Palette(theme ?? surroundingTheme());
    this.root.dataset.theme = this.palette.theme;
    this.#legends();
    this.#redraw();
  }

  toggleTheme() {
    this.setTheme(this.palette.theme === "light" ? "dark" : "light");
    this.#settle();
  }

  toggleHelp(shown = this.help.hidden) {
    this.help.hidden = !shown;
    this.helpButton.setAttribute("aria-expanded", String(shown));
  }

  /** Everything that the panes show now, as plain values. */
  state() {
    const { model, index, clock } = this;
    const event = model.count ? model.event(index) : null;
    const source = event && event.source !== null ? model.payload.sources[event.source] : null;
    const ranks = Array.from({ length: model.worldSize }, (_, rank) => rank);
    const held = (rank, category) => Object.fromEntries(model.units.map((unit) => [unit.name, model.held(rank, category, unit.name, index)]));
    return {
      index,
      events: model.count,
      event,
      time: clock.time,
      caption: this.caption.textContent,
      playing: clock.playing,
      speed: clock.speed,
      theme: this.palette.theme,
      view: this.axis ? [this.axis.t0, this.axis.t1] : null,
      live: ranks.map((rank) => model.live(rank, index)),
      held: ranks.map((rank) => Object.fromEntries(STATE.map((category) => [category, held(rank, category)]))),
      peak: model.peaks.map((peak) => peak && peak.bytes),
      formula: model.formula ?? null,
      source: source && { label: source.label, line: event.line, text: source.text.split("\n")[event.line - 1] ?? "" },
    };
  }

  /** Every text drawn on a canvas, with its box in pixels of its canvas, for a test of overlaps. */
  labels() {
    const { ownership, timeline, memory } = this.panes;
    return { ownership: ownership.pen.labels, timeline: timeline.pen.labels, memory: [...memory.pen.labels, ...memory.over.labels] };
  }

  remove() {
    this.clock.pause();
    clearTimeout(this.later);
    this.stopTheme();
    this.resizing.disconnect();
    this.root.remove();
  }

  /** The first event of the first training step: before it there is nothing to see. */
  #opening() {
    return this.model.windows.find((window) => window.step > 0)?.first ?? 0;
  }

  #build(host) {
    const { model, options } = this;
    const owned = layers("Who holds what; the table below the player says the same in words");
    const time = layers("What each rank computed and sent, over time");
    const memory = layers("Live bytes of each rank by category, over time");
    const code = element("pre", { class: "zl-code", tabindex: 0, "aria-label": "Source" });
    const panes = {
      ownership: pane("ownership", "Who holds what", owned.box),
      source: pane("source", "Source", code),
      timeline: pane("timeline", "Timeline", time.box),
      memory: pane("memory", "Live memory", memory.box),
    };
    this.sections = panes;
    this.panes = {
      ownership: new Ownership(owned.still),
      timeline: new Timeline(time.still, time.moving),
      memory: new Memory(memory.still, memory.moving),
      source: new SourcePane(panes.source.legend, code),
    };
    this.mirror = new Mirror(model);
    this.transport = new Transport(this);
    this.help = help();
    this.caption = element("p", { class: "zl-sentence" });
    this.where = element("span", { class: "zl-where" });
    this.spoken = element("div", { class: "zl-caption", "aria-live": "polite", "aria-atomic": "true" }, this.where, this.caption);
    this.root = element(
      "div", { class: "zl-player", tabindex: 0, role: "region", "aria-label": `Player: ${model.payload.title}`, "data-lm-suppress-shortcuts": "true" },
      this.#head(), this.spoken,
      element("div", { class: "zl-now" }, panes.ownership.section, panes.source.section),
      panes.timeline.section, panes.memory.section, this.transport.element, this.help, this.mirror.element,
    );
    this.root.classList.toggle("zl-textless", options.text === false);
    this.root.classList.toggle("zl-empty", model.count === 0);
    for (const { pen, over } of Object.values(this.panes)) for (const one of [pen, over]) if (one) one.showText = options.text !== false;
    host.append(this.root);
    listen(options.keyboard ?? this.root, this);
    drag(time.box, (_, event) => this.#scrub(time.box, event), (event) => this.#pick(time.box, event));
    drag(memory.box, (_, event) => this.#scrub(memory.box, event));
  }

  #head() {
    const { meta, world_size: ranks } = this.model.payload;
    const facts = [
      count(ranks, "rank"), meta.num_params ? count(meta.num_params, "parameter") : null, meta.optimizer,
      meta.precision, meta.backend ? `${meta.backend}${meta.device ? ` on ${meta.device}` : ""}` : meta.device,
    ].filter(Boolean);
    const button = (title, text, action) => {
      const made = element("button", { type: "button", title, "aria-label": title }, text);
      made.addEventListener("click", action);
      return made;
    };
    this.helpButton = button("Keyboard (?)", "?", () => this.toggleHelp());
    const badges = [meta.simulated ? "simulated" : null, ...Array.from({ length: ranks }, (_, rank) => rankBadge(this.model, rank))];
    return element(
      "div", { class: "zl-head" }, element("h2", {}, meta.stage ?? "Recording"),
      ...badges.filter(Boolean).map((text) => element("b", { class: "zl-badge" }, text)),
      element("span", { class: "zl-facts" }, facts.join(" · ")),
      button("Light or dark (t)", "◐", () => this.toggleTheme()), this.helpButton,
    );
  }

  #legends() {
    const { palette, sections } = this;
    const fill = (key, ...rest) => (context) => palette[key](context, ...rest);
    const flat = (key) => () => palette[key];
    sections.ownership.legend.replaceChildren("colour: owner", swatch("resident", flat("faint")), swatch("not here", null, palette.hollow), swatch("on its way", null, palette.communicationColour, [3, 2]));
    sections.timeline.legend.replaceChildren(
      swatch("forward", flat("forward")), swatch("backward", flat("backward")), swatch("update", flat("optimizer")),
      swatch("waiting", fill("waiting")), swatch("collective", fill("communication")),
    );
    sections.memory.legend.replaceChildren(...STACK.map((category) => swatch(words(category), fill("category", category))));
  }

  #scrub(box, event) {
    if (!this.model.count) return;
    const time = this.axis.t(event.clientX - box.getBoundingClientRect().left);
    this.clock.time = time;
    this.#show(this.model.at(time), time);
  }

  /** A click on a bar chooses the event that the bar is. */
  #pick(box, event) {
    const place = box.getBoundingClientRect();
    const hit = this.panes.timeline.hit(event.clientX - place.left, event.clientY - place.top);
    if (hit !== null) this.goto(hit);
  }

  #resize() {
    const width = this.root.clientWidth;
    if (width === this.width || !width) return;
    this.width = width;
    this.root.classList.toggle("zl-medium", width < 1180);
    this.root.classList.toggle("zl-narrow", width < 720);
    this.#redraw();
  }

  #redraw() {
    if (!this.panes || !this.root.clientWidth) return;
    const inner = (section) => section.clientWidth;
    const { ownership, timeline, memory } = this.panes;
    ownership.layout(this.model, inner(this.sections.ownership.section));
    timeline.layout(this.model, inner(this.sections.timeline.section));
    memory.layout(this.model, inner(this.sections.memory.section));
    this.panes.source.layout(this.model);
    this.stale = true;
    this.laidOut = true;
    if (this.index >= 0) this.#show(this.index, this.clock.time);
  }

  /**
   * The part of the recording that the time axis shows: everything, or a step. Ranks are not in step with each other,
   * so near the seam events of two steps alternate; the axis stays as long as the time lies on it.
   */
  #look(time) {
    const { windows } = this.model;
    if (!windows.length) return this.view ?? { t0: 0, t1: 1e6 };
    if (this.whole) return this.everything;
    if (windows.includes(this.view) && time >= this.view.t0 && time <= this.view.t1) return this.view;
    return this.model.windowOf(this.index);
  }

  #show(index, time) {
    const { model, palette, panes } = this;
    const moved = index !== this.index;
    this.index = index;
    const event = model.count ? model.event(index) : null;
    if (!this.laidOut) return this.#words(event); // without a width yet, as in a notebook: the first resize draws it
    const view = this.#look(time);
    const fresh = this.view !== view || this.stale;
    if (fresh) {
      this.view = view;
      this.stale = false;
      this.axis = new Axis(view.t0, view.t1, this.sections.timeline.section.clientWidth);
    }
    const frame = { model, palette, axis: this.axis, index, event, time };
    if (fresh) {
      panes.timeline.drawView(frame);
      panes.memory.drawView(frame);
    }
    panes.timeline.draw(frame);
    panes.memory.draw(frame);
    panes.ownership.draw(frame);
    if (moved || fresh) {
      panes.source.draw(frame);
      this.#words(event);
    }
    const slower = this.clock.slow / this.clock.speed;
    this.transport.draw({ index, playing: this.clock.playing, speed: this.clock.speed, slower, whole: this.whole });
    this.#report(false);
  }

  #words(event) {
    if (!event) {
      this.where.textContent = "";
      this.caption.textContent = "This recording has no events: nothing ran while it was made.";
      return;
    }
    const window = name(this.model.windowOf(this.index));
    this.where.textContent = window === event.phase ? window : `${window} · ${event.phase}`;
    this.caption.textContent = caption(this.model, this.index);
  }

  /** After a jump, a pause or the end: the controls and the mirror say at once what is shown. */
  #settle() {
    const slower = this.clock.slow / this.clock.speed;
    this.transport.draw({ index: this.index, playing: this.clock.playing, speed: this.clock.speed, slower, whole: this.whole });
    this.spoken.setAttribute("aria-live", this.clock.playing ? "off" : "polite");
    this.#report(true);
  }

  #report(now) {
    const at = performance.now();
    if (!now && at - (this.reported ?? -Infinity) < MIRROR_EVERY) {
      this.later ??= setTimeout(() => this.#report(true), MIRROR_EVERY);
      return;
    }
    clearTimeout(this.later);
    this.later = null;
    this.reported = at;
    this.mirror.draw(this.index);
    this.options.changed?.(this);
  }
}

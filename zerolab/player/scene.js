// The player's elements: head, caption, panes, controls. Built once; what they show is the player's business.

import { Bars } from "./bars.js";
import { caption, onCard } from "./caption.js";
import { button, element, layers, pane, say } from "./dom.js";
import { Tools } from "./find.js";
import { clickOwned, focusOf, hoverOwned, leaveOwned } from "./focus.js";
import { count, exact } from "./format.js";
import { hover, timeGestures, within } from "./gestures.js";
import { Memory } from "./memory.js";
import { Mirror } from "./mirror.js";
import { lastAtMost, STATE } from "./model.js";
import { shownOf } from "./moments.js";
import { Panels } from "./panels.js";
import { sentenceOf } from "./room.js";
import { rankBadge } from "./rows.js";
import { SourcePane } from "./source.js";
import { actOf } from "./steps.js";
import { ghostOf, pointAt } from "./strata.js";
import { paneOf } from "./tiles.js";
import { Timeline } from "./timeline.js";
import { Tip } from "./tip.js";
import { drag, name, Transport } from "./transport.js";
import { showPanes, views } from "./views.js";

/**
 * @import { Model } from "./model.js"
 * @import { Pen } from "./pen.js"
 * @import { Player } from "./player.js"
 * @import { Point, RecordedEvent, Spans, State } from "./types.d.ts"
 */

/** Badges beyond this many are counted instead of listed. */
const MOST_BADGES = 4;

/** Ranks times units beyond which what the panes show is told of one rank alone. */
const MOST_TOLD = 512;

/**
 * The panes, their sections, and what the pointer finds in them; memory has a pane for each device.
 * @param {Model} model
 */
function makePanes(model) {
  const owned = layers("Who holds what; the table below the player says the same in words");
  const time = layers("What each rank computed and sent, over time");
  const memory = layers("Live bytes of each rank by category, over time");
  const beside = layers("Live bytes of each rank in main memory by category, over time");
  const card = element("p", { class: "zl-card" });
  const apart = model.devices.length > 1;
  const now = element("canvas", { role: "img", "aria-label": "Live bytes of each rank now" });
  const code = element("pre", { class: "zl-code" });
  const sections = {
    ownership: pane("ownership", "Who holds what", owned.box),
    source: pane("source", "Source", code),
    timeline: pane("timeline", "Timeline", time.box),
    memory: pane("memory", apart ? "Live memory of the GPU" : "Live memory", memory.box, ...(apart ? [card] : [])),
    host: pane("memory", "Live main memory", beside.box),
    bars: pane("bars", apart ? "GPU memory now" : "Memory now", now),
  };
  // Below, so that its rows stand beside those of the ownership pane.
  sections.bars.section.append(sections.bars.legend);
  const panes = {
    ownership: paneOf(owned.still, owned.moving, model),
    timeline: new Timeline(time.still, time.moving),
    memories: [
      new Memory(memory.still, memory.moving, model, "live"),
      ...(apart ? [new Memory(beside.still, beside.moving, model, "host")] : []),
    ],
    source: new SourcePane(sections.source.legend, code),
    bars: new Bars(now),
  };
  const boxes = { owned: owned.box, time: time.box, memories: [memory.box, beside.box], code };
  return { sections, panes, boxes, card };
}

/**
 * Builds the player's elements into `host`, and gives those that change, and the panes.
 * @param {Player} player @param {HTMLElement} host
 */
export function build(player, host) {
  const { model, options } = player;
  const { sections, panes, boxes, card } = makePanes(model);
  const mirror = new Mirror(model);
  const panels = new Panels(player);
  const transport = new Transport(player);
  const tools = new Tools(player);
  tools.attach(sections.timeline, boxes.time);
  panes.timeline.tools = tools;
  const chosen = views(player);
  const top = head(player, panels, chosen.element);
  const sentence = element("p", { class: "zl-sentence" });
  const why = element("p", { class: "zl-story" });
  const where = element("span", { class: "zl-where" });
  const spoken = element("div", { class: "zl-caption", "aria-live": "polite" }, why, where, sentence);
  const attributes = {
    class: "zl-player",
    tabindex: 0,
    role: "region",
    "aria-label": `Player: ${model.payload.title}`,
    "data-lm-suppress-shortcuts": "true",
    "data-view": player.shown,
  };
  const { ownership, bars, source } = sections;
  const both = element("div", { class: "zl-now" }, ownership.section, bars.section, source.section);
  const body = element(
    "div",
    { class: "zl-body", role: "group", "aria-label": "Picture" },
    both,
    sections.timeline.section,
    sections.memory.section,
    ...(model.devices.length > 1 ? [sections.host.section] : []),
  );
  const root = element(
    "div",
    attributes,
    top.element,
    spoken,
    body,
    transport.element,
    panels.help,
    panels.filter.element,
    mirror.element,
  );
  showPanes(root, player.shown);
  root.classList.toggle("zl-textless", options.text === false);
  root.classList.toggle("zl-empty", model.count === 0);
  root.classList.toggle("zl-times", model.payload.meta.times_only);
  for (const { pen, over } of [panes.ownership, panes.timeline, ...panes.memories]) {
    for (const one of [pen, over]) one.showText = options.text !== false;
  }
  host.append(root);
  point(player, panes, boxes);
  const { filterBadge } = top;
  const tip = new Tip(root);
  const said = { sentence, why, where, spoken, card };
  const parts = { root, now: both, body, sections, panes, mirror, tip, filterBadge, panels, transport, tools };
  return { ...parts, ...said, views: chosen };
}

/**
 * What the pointer does over the panes.
 * @param {Player} player @param {Player["panes"]} panes
 * @param {{ owned: HTMLElement, time: HTMLElement, memories: HTMLElement[], code: HTMLElement }} boxes
 */
function point(player, panes, { owned, time, memories, code }) {
  const { model } = player;
  /** @type {(box: HTMLElement, find: (at: Point) => number | null) => void} */
  const over = (box, find) =>
    hover(
      box,
      (at, event) => player.preview(find(at), event),
      () => player.preview(null),
    );
  /** @type {(at: Point) => number | null} */
  const bar = ({ x, y }) => panes.timeline.hit(x, y);
  hover(
    owned,
    (at, event) => hoverOwned(player, at, event),
    () => leaveOwned(player),
  );
  over(time, bar);
  panes.memories.forEach((memory, k) => {
    pointAt(player, memory, memories[k]);
    scrubs(player, memories[k], () => null);
  });
  // Over the source itself the text stays as it is, or it would run away from under the pointer.
  const caused = (/** @type {Event} */ event) => {
    const row = /** @type {HTMLElement} */ (event.target).closest("[data-line]");
    return panes.source.eventOf(model, /** @type {HTMLElement | null} */ (row), player.index);
  };
  hover(
    code,
    (_, event) => player.preview(caused(event), event, false),
    () => player.preview(null),
  );
  code.addEventListener("click", (event) => player.pick(caused(event)));
  owned.addEventListener("click", (event) => clickOwned(player, within(owned, event)));
  scrubs(player, time, bar);
}

/**
 * A drag over a pane with a time axis scrubs; a click that hardly moves picks what `hit` finds.
 * @param {Player} player @param {HTMLElement} box @param {(at: Point) => number | null} hit
 */
function scrubs(player, box, hit) {
  const gestures = timeGestures(box, player);
  let moved = 0;
  drag(
    box,
    (_, event) => {
      moved += 1;
      if (!gestures.busy()) player.scrubTo(within(box, event).x);
    },
    (event) => {
      if (moved <= 2 && event.type === "pointerup") player.pick(hit(within(box, event)));
      moved = 0;
      player.settle();
    },
  );
}

/**
 * What the files of another tool do not say, to be unfolded.
 * @param {string[]} lacks
 */
function lacksOf(lacks) {
  const list = element("ul", {}, ...lacks.map((lack) => element("li", {}, lack)));
  return element("details", { class: "zl-lacks" }, element("summary", {}, "what is not in it"), list);
}

/**
 * The line above the caption: what was recorded, and the buttons for what is shown.
 * @param {Player} player @param {Panels} panels @param {HTMLElement} chosen
 */
function head(player, panels, chosen) {
  const { meta, world_size: ranks } = player.model.payload;
  const facts = [
    count(ranks, "rank"),
    meta.num_params ? count(meta.num_params, "parameter") : null,
    meta.optimizer,
    meta.precision,
    // What is simulated sends nothing: its backend only stands for one, and a badge says that it is simulated.
    [meta.simulated ? null : meta.backend, meta.device].filter(Boolean).join(" on "),
    meta.origin ? `from ${meta.origin}` : null,
  ].filter((fact) => fact !== null && fact !== "");
  const badges = troubles(player.model);
  const filterBadge = element("b", { class: "zl-only", hidden: "" });
  const bar = element(
    "div",
    { class: "zl-head" },
    element("h2", {}, meta.stage ?? "Recording"),
    ...badges.map((text) => element("b", { class: "zl-badge" }, text)),
    filterBadge,
    element("span", { class: "zl-facts" }, facts.join(" · ")),
    ...(meta.lacks?.length ? [lacksOf(meta.lacks)] : []),
    element(
      "div",
      { class: "zl-menu" },
      chosen,
      panels.filterButton,
      button("Light or dark (t)", "◐", () => player.toggleTheme()),
      panels.helpButton,
    ),
  );
  return { element: bar, filterBadge };
}

/**
 * What is to be said of ranks that are not there to their end, or only as a simulation; of many only how many.
 * @param {Model} model
 */
function troubles(model) {
  const ranks = model.worldSize;
  const all = Array.from({ length: ranks }, (_, rank) => rankBadge(model, rank)).filter((badge) => badge !== null);
  if (model.payload.meta.simulated) {
    return [all.length ? `simulated: ${ranks - all.length} of ${exact(ranks)} ranks drawn` : "simulated"];
  }
  return all.length > MOST_BADGES ? [`${count(all.length, "rank")} missing or ended early`] : all;
}

/**
 * Every text drawn on the panes' canvases, with its box.
 * @param {Player["panes"]} panes
 */
export function labels({ ownership, timeline, memories }) {
  const all = (/** @type {{ pen: Pen, over: Pen }} */ { pen, over }) => [...pen.labels, ...over.labels];
  const [memory, host] = memories.map(all);
  return { ownership: all(ownership), timeline: all(timeline), memory, ...(host ? { host } : {}) };
}

/**
 * Everything that the panes of `player` show now, as plain values.
 * @param {Player} player
 */
export function tell(player) {
  const { model, index, clock } = player;
  const event = model.count ? model.event(index) : null;
  const cause = event && model.lineOf(index);
  const source = cause && model.payload.sources[cause.source ?? -1];
  const ranks = Array.from({ length: model.worldSize }, (_, rank) => rank);
  /** @type {(rank: number, category: State) => Record<string, Spans>} */
  const held = (rank, category) =>
    Object.fromEntries(
      model.units.map((unit) => [unit.name, model.held(rank, category, unit.name, shownOf(player, rank))]),
    );
  // Of many ranks or units only the event's and the one in focus are told, or a notebook is sent thousands of lists.
  const told = ranks.length * model.units.length > MOST_TOLD ? new Set([event?.rank, focusOf(model)]) : null;
  return {
    index,
    events: model.count,
    event,
    time: clock.time,
    caption: player.scene.sentence.textContent,
    story: player.scene.why.textContent,
    beat: player.byBeats ? player.beats.at(clock.time) : null,
    beats: player.beats.list.length,
    shown: player.shown,
    walk: player.walk.state(),
    moving: player.panes.ownership.moving,
    playing: clock.playing,
    speed: clock.speed,
    theme: player.palette.theme,
    view: player.axis ? [player.axis.t0, player.axis.t1] : null,
    filter: player.filter,
    focus: focusOf(model),
    ...player.scene.tools.state(),
    hover: player.hovered,
    live: ranks.map((rank) => (told && !told.has(rank) ? null : model.live(rank, shownOf(player, rank)))),
    held: ranks.map((rank) =>
      told && !told.has(rank) ? null : Object.fromEntries(STATE.map((category) => [category, held(rank, category)])),
    ),
    host: model.devices.length > 1 ? ranks.map((rank) => model.live(rank, shownOf(player, rank), "host")) : null,
    card: player.scene.card.textContent,
    saved: ranks.map((rank) => ghostOf(model)?.missing(rank, shownOf(player, rank)) ?? null),
    peak: model.peaks.map((peak) => peak?.bytes ?? null),
    formula: model.formula,
    source: source && { label: source.label, line: cause.line, text: source.text.split("\n")[cause.line - 1] ?? "" },
  };
}

/**
 * Says what is going on, where in the run, and what the current event is.
 * @param {Player} player @param {RecordedEvent | null} event
 */
export function narrate(player, event) {
  const { scene, model, clock, story, followed, index, beat } = player;
  if (!event) {
    scene.where.textContent = "";
    scene.sentence.textContent = "This recording has no events: nothing ran while it was made.";
    return;
  }
  say(scene.card, onCard(model, event));
  if (beat) {
    const act = actOf(beat);
    say(scene.why, player.resting || beat.caption);
    say(scene.where, beat.step ? `step ${beat.step}${story.steps ? ` · ${act}` : ""}` : "setup");
    const about = beat.places[0] ?? index;
    const silent = player.resting || (beat.kind === "keep" && story.steps);
    say(scene.sentence, silent ? "" : sentenceOf(story, model, about));
    return;
  }
  // While it plays, events of all ranks alternate within milliseconds; what is told of them stays with one rank.
  const told = clock.playing ? lastAtMost(model.ofRank[followed], index) : -1;
  say(scene.why, story.tell(told < 0 ? index : model.ofRank[followed][told]));
  const window = name(model.windowOf(index));
  const phase = event.phase === "step" ? "update" : event.phase; // "step 1 · step" would say one word for two things
  say(scene.where, window === phase ? window : `${window} · ${phase}`);
  say(scene.sentence, caption(model, index));
}

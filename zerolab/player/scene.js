// The player's elements: head, caption, panes, controls. Built once; what they show is the player's business.

import { dashed, element, framed, icon, layers, pane, swatch } from "./dom.js";
import { FilterPanel } from "./filter.js";
import { count, exact, words } from "./format.js";
import { hover, timeGestures, within } from "./gestures.js";
import { help } from "./keys.js";
import { Memory } from "./memory.js";
import { Mirror } from "./mirror.js";
import { STATE } from "./model.js";
import { Ownership } from "./ownership.js";
import { STACK } from "./palette.js";
import { rankBadge } from "./rows.js";
import { SourcePane } from "./source.js";
import { Timeline } from "./timeline.js";
import { Tip } from "./tip.js";
import { Transport, drag } from "./transport.js";

/** Badges beyond this many are counted instead of listed. */
const MOST_BADGES = 4;

/** Ranks times units beyond which what the panes show is told of one rank alone. */
const MOST_TOLD = 512;

/** Builds the player's elements into `host` and gives them, and the panes, to the player. */
export function build(player, host) {
  const { model, options } = player;
  const owned = layers("Who holds what; the table below the player says the same in words");
  const time = layers("What each rank computed and sent, over time");
  const memory = layers("Live bytes of each rank by category, over time");
  const code = element("pre", { class: "zl-code", tabindex: 0, "aria-label": "Source" });
  const sections = {
    ownership: pane("ownership", "Who holds what", owned.box),
    source: pane("source", "Source", code),
    timeline: pane("timeline", "Timeline", time.box),
    memory: pane("memory", "Live memory", memory.box),
  };
  const panes = {
    ownership: new Ownership(owned.still, owned.moving),
    timeline: new Timeline(time.still, time.moving),
    memory: new Memory(memory.still, memory.moving),
    source: new SourcePane(sections.source.legend, code),
  };
  Object.assign(player, {
    sections,
    panes,
    mirror: new Mirror(model),
    filterPanel: new FilterPanel(player),
    help: help(),
  });
  player.transport = new Transport(player);
  player.caption = element("p", { class: "zl-sentence" });
  player.why = element("p", { class: "zl-story" });
  player.where = element("span", { class: "zl-where" });
  player.spoken = element(
    "div",
    { class: "zl-caption", "aria-live": "polite" },
    player.why,
    player.where,
    player.caption,
  );
  player.root = element(
    "div",
    {
      class: "zl-player",
      tabindex: 0,
      role: "region",
      "aria-label": `Player: ${model.payload.title}`,
      "data-lm-suppress-shortcuts": "true",
    },
    head(player),
    player.spoken,
    element("div", { class: "zl-now" }, sections.ownership.section, sections.source.section),
    sections.timeline.section,
    sections.memory.section,
    player.transport.element,
    player.help,
    player.filterPanel.element,
    player.mirror.element,
  );
  player.root.classList.toggle("zl-textless", options.text === false);
  player.root.classList.toggle("zl-empty", model.count === 0);
  for (const { pen, over } of Object.values(panes))
    for (const one of [pen, over]) if (one) one.showText = options.text !== false;
  host.append(player.root);
  player.tip = new Tip(player.root);
  point(player, { owned: owned.box, time: time.box, memory: memory.box, code });
}

/** What the pointer does over the panes. */
function point(player, { owned, time, memory, code }) {
  const { panes, model } = player;
  const over = (box, find) =>
    hover(
      box,
      (at, event) => player.preview(find(at), event),
      () => player.preview(null),
    );
  const cell = ({ x, y }) => player.changeAt(panes.ownership.hit(model, x, y));
  const bar = ({ x, y }) => panes.timeline.hit(x, y);
  const level = ({ x, y }) => panes.memory.hit(model, player.axis, x, y);
  over(owned, cell);
  over(time, bar);
  over(memory, level);
  // Over the source itself the text stays as it is, or it would run away from under the pointer.
  const caused = ({ target }) => panes.source.eventOf(model, target.closest("[data-line]"), player.index);
  hover(
    code,
    (_, event) => player.preview(caused(event), event, false),
    () => player.preview(null),
  );
  code.addEventListener("click", (event) => player.pick(caused(event)));
  owned.addEventListener("click", (event) => {
    const { x, y } = within(owned, event);
    const hit = panes.ownership.hit(model, x, y);
    if (hit && "row" in hit) player.toggleRow(hit.row);
    else player.pick(player.changeAt(hit));
  });
  for (const [box, hit] of [
    [time, bar],
    [memory, null],
  ]) {
    const gestures = timeGestures(box, player);
    let moved = 0;
    drag(
      box,
      (_, event) => {
        moved += 1;
        if (!gestures.busy()) player.scrubTo(within(box, event).x);
      },
      (event) => {
        if (hit && moved <= 2) player.pick(hit(within(box, event)));
        moved = 0;
        player.settle();
      },
    );
  }
}

function head(player) {
  const { meta, world_size: ranks } = player.model.payload;
  const facts = [
    count(ranks, "rank"),
    meta.num_params ? count(meta.num_params, "parameter") : null,
    meta.optimizer,
    meta.precision,
    meta.backend ? `${meta.backend}${meta.device ? ` on ${meta.device}` : ""}` : meta.device,
  ].filter(Boolean);
  const button = (title, text, action) => {
    const made = element("button", { type: "button", title, "aria-label": title }, text);
    made.addEventListener("click", action);
    return made;
  };
  player.filterButton = button("Show only some ranks, a category, a unit (f)", icon("funnel"), () =>
    player.toggleFilter(),
  );
  player.helpButton = button("How to read this, and the keyboard (?)", "?", () => player.toggleHelp());
  const troubles = Array.from({ length: ranks }, (_, rank) => rankBadge(player.model, rank)).filter(Boolean);
  const badges =
    troubles.length > MOST_BADGES ? [`${count(troubles.length, "rank")} missing or ended early`] : troubles;
  if (meta.simulated)
    badges.splice(
      0,
      badges.length,
      troubles.length ? `simulated: ${ranks - troubles.length} of ${exact(ranks)} ranks drawn` : "simulated",
    );
  player.filterBadge = element("b", { class: "zl-only", hidden: "" });
  return element(
    "div",
    { class: "zl-head" },
    element("h2", {}, meta.stage ?? "Recording"),
    ...badges.map((text) => element("b", { class: "zl-badge" }, text)),
    player.filterBadge,
    element("span", { class: "zl-facts" }, facts.join(" · ")),
    player.filterButton,
    button("Light or dark (t)", "◐", () => player.toggleTheme()),
    player.helpButton,
  );
}

/** The keys to colours and patterns above the panes, in the palette's theme. */
export function legends({ palette, sections, model, panes }) {
  const flat = (text, colour) => swatch(text, { colour });
  const named = panes.ownership.named ?? true; // in rows too low for names of lines the legend says which is which
  const told = named
    ? ["colour: its owner"]
    : [element("span", {}, `lines: ${STATE.map(words).join(", ")}`), "colour: owner"];
  sections.ownership.legend.replaceChildren(
    ...told,
    flat("here", palette.faint),
    framed("not here", palette.hollow),
    framed("on its way", palette.communicationColour, "3 2"),
  );
  sections.timeline.legend.replaceChildren(
    flat("forward", palette.forward),
    flat("backward", palette.backward),
    flat("update", palette.optimizer),
    swatch("waiting", palette.look()),
    flat("gather, broadcast", palette.communicationColour),
    flat("reduce", palette.reduction),
  );
  const formula = model.formulaBytes === null ? [] : [dashed("formula", palette.formula)];
  sections.memory.legend.replaceChildren(
    ...STACK.map((category) => swatch(words(category), palette.look(category))),
    ...formula,
    "▾ peak",
  );
}

/** Everything that the panes of `player` show now, as plain values. */
export function tell(player) {
  const { model, index, clock } = player;
  const event = model.count ? model.event(index) : null;
  const cause = event && model.lineOf(index);
  const source = cause && model.payload.sources[cause.source];
  const ranks = Array.from({ length: model.worldSize }, (_, rank) => rank);
  const held = (rank, category) =>
    Object.fromEntries(model.units.map((unit) => [unit.name, model.held(rank, category, unit.name, index)]));
  // Of many ranks or units only the event's rank is told, so that a notebook is not sent thousands of lists.
  const told = ranks.length * model.units.length > MOST_TOLD ? new Set([event?.rank]) : null;
  return {
    index,
    events: model.count,
    event,
    time: clock.time,
    caption: player.caption.textContent,
    story: player.why.textContent,
    moving: player.panes.ownership.moving ?? [],
    playing: clock.playing,
    speed: clock.speed,
    theme: player.palette.theme,
    view: player.axis ? [player.axis.t0, player.axis.t1] : null,
    filter: player.filter,
    hover: player.hovered,
    live: ranks.map((rank) => (told && !told.has(rank) ? null : model.live(rank, index))),
    held: ranks.map((rank) =>
      told && !told.has(rank) ? null : Object.fromEntries(STATE.map((category) => [category, held(rank, category)])),
    ),
    peak: model.peaks.map((peak) => peak && peak.bytes),
    formula: model.formula ?? null,
    source: source && { label: source.label, line: cause.line, text: source.text.split("\n")[cause.line - 1] ?? "" },
  };
}

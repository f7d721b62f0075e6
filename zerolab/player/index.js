// Where a player starts: in a notebook, by widget.mjs, or on a page of its own.

import { element } from "./dom.js";
import { PAYLOAD_VERSION } from "./events.js";
import { focusOf, focusOn } from "./focus.js";
import { Pair } from "./pair.js";
import { Player } from "./player.js";
import { SLIDE_HEIGHT } from "./rows.js";
import { surroundingTheme } from "./theme.js";
import { playUnasked } from "./unasked.js";
import { VIEWS } from "./views.js";

/** @import { Drawing, Options, PairPayload, Payload } from "./types.d.ts" */

/**
 * Every player on the page, in the order in which they appeared.
 * @param {Player} player
 */
function register(player) {
  window.zerolabPlayers = [...(window.zerolabPlayers ?? []), player];
  player.root.zerolabPlayer = player;
}

/**
 * A player in `host`, or a sentence there if the payload is not one that this code can read.
 * @param {HTMLElement} host @param {Payload | PairPayload} payload @param {Options} options
 */
export function mount(host, payload, options) {
  const sentence = trouble(payload);
  if (sentence) {
    host.append(
      element("p", { class: "zl-player zl-trouble", role: "alert", "data-theme": surroundingTheme() }, sentence),
    );
    return null;
  }
  if (!("second" in payload)) {
    const player = new Player(host, payload, options);
    register(player);
    return player;
  }
  const pair = new Pair(host, payload, options);
  for (const one of pair.players) register(one);
  pair.first.pair = pair;
  return pair.first;
}

/** @param {Payload | PairPayload | null} payload */
function trouble(payload) {
  if (payload?.format !== "zerolab-player") {
    const again = "make it again with recording.play() or recording.to_html()";
    return `This is not a recording that the player can read; ${again}.`;
  }
  if (payload.version === PAYLOAD_VERSION) return null;
  const versions = `for version ${payload.version} of the player, this is version ${PAYLOAD_VERSION}`;
  const remedy = "upgrade zerolab, or make the page again with the one that is installed";
  return `This recording was written ${versions}: ${remedy}.`;
}

/**
 * The options of a standalone page's address: `#event=12&beat=3&theme=dark&text=off&still&slides`.
 * @param {string} hash
 * @returns {Options & { still: boolean, slides: boolean, plays: boolean }}
 */
function hashOptions(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const event = Number.parseInt(given.get("event") ?? "", 10);
  const theme = given.get("theme");
  return {
    event: Number.isNaN(event) ? undefined : event - 1,
    beat: Number.parseInt(given.get("beat") ?? "", 10) || undefined,
    theme: theme === "light" || theme === "dark" ? theme : given.has("still") ? "light" : null,
    text: given.get("text") !== "off",
    still: given.has("still"),
    slides: given.has("slides"),
    plays: given.has("plays"),
    // A still is a picture of everything.
    view: VIEWS.find(([view]) => view === given.get("view"))?.[0] ?? (given.has("still") ? "all" : undefined),
    events: given.has("events") || given.has("still"),
    focus: given.has("rank") ? Number.parseInt(given.get("rank") ?? "", 10) || 0 : undefined,
    walk: given.has("walk") ? Number.parseInt(given.get("walk") || "1", 10) || undefined : undefined,
  };
}

/**
 * An element that page.py has put on the page.
 * @param {string} id
 */
function onPage(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** Starts the standalone page: its payload stands in the page, its options in the address. */
export function startPage() {
  /** @type {Payload | PairPayload} */
  const payload = JSON.parse(onPage("zerolab-payload").textContent ?? "");
  const host = onPage("zerolab-player");
  const options = hashOptions(window.location.hash || (host.dataset.address ?? ""));
  document.body.classList.toggle("zl-still", options.still);
  const scale = options.slides ? slides : options.still ? () => {} : enlarge;
  scale(host);
  // The page is the player's alone, so its keys work wherever the focus is.
  const player = mount(host, payload, {
    ...options,
    fill: !options.still,
    keyboard: document.body,
    changed: remember,
  });
  if (!player) return;
  const players = player.pair?.players ?? [player];
  if (options.plays) playUnasked(player);
  if (window.parent !== window) shrinkOnPaper(players);
  window.addEventListener("resize", () => {
    scale(host);
    if (player.pair) player.pair.fit();
    else player.redraw();
  });
  window.addEventListener("hashchange", () => {
    const { event, beat, theme, walk, focus } = hashOptions(window.location.hash);
    if (focus !== undefined) focusOn(player, focus);
    if (event !== undefined) player.goto(event);
    if (beat !== undefined) player.steps.beat(beat - 1);
    if (walk !== undefined) player.walk.show(walk - 1);
    // A page around a sandboxed frame has no other way to say that its theme has changed.
    if (theme) for (const one of players) one.setTheme(theme);
  });
}

/**
 * A frame cannot grow on paper: what would not fit into it is printed smaller.
 * @param {Player[]} players
 */
function shrinkOnPaper(players) {
  const { style } = document.body;
  window.addEventListener("beforeprint", () => {
    const hidden = players.reduce((sum, { scene: { body } }) => sum + body.scrollHeight - body.clientHeight, 0);
    style.zoom = String(Math.min(1, window.innerHeight / (document.body.offsetHeight + hidden)));
  });
  window.addEventListener("afterprint", () => {
    style.zoom = "";
  });
}

/** @param {HTMLElement} host */
function slides(host) {
  window.zerolabScale = Math.min((window.innerWidth * 9) / 16, window.innerHeight) / SLIDE_HEIGHT;
  document.body.classList.add("zl-slides");
  host.style.zoom = String(window.zerolabScale);
}

/**
 * On very wide screens everything grows; the canvases are told, because `zoom` alone would blow up their pixels.
 * @param {HTMLElement} host
 */
function enlarge(host) {
  window.zerolabScale = window.innerWidth >= 3200 ? 2 : window.innerWidth >= 2400 ? 1.5 : 1;
  const { style } = host;
  style.zoom = String(window.zerolabScale);
  style.setProperty("--zl-zoom", style.zoom); // it blows up the window's height, too
}

/** Milliseconds without a change after which the user is at rest; longer than between two reports of a player. */
const AT_REST = 400;
let remembering = 0;

/**
 * Puts the event into the page's address once it settles: during a drag, that would take browsers longer than drawing.
 * @param {Player} player
 */
function remember(player) {
  clearTimeout(remembering);
  remembering = window.setTimeout(() => writeAddress(player), AT_REST);
}

/**
 * The beat that is told, counted from 1; 0 where the address without it leads there: many events end in a beat before.
 * @param {Player} player @param {boolean} named whether the address names the event
 */
function beatBeside({ byBeats, beats, clock, model, index }, named) {
  const told = beats.at(clock.time);
  const led = named ? beats.at(model.columns.t_end[index]) : beats.opening();
  return byBeats && told !== led ? told + 1 : 0;
}

/**
 * The address as a link to the event that is shown; in a frame without an address, does nothing.
 * @param {Player} player
 */
function writeAddress(player) {
  if (window.location.protocol === "about:" || player.clock.playing || !player.model.count) return;
  const given = new URLSearchParams(window.location.hash.replace(/^#/, ""));
  const before = given.toString();
  const chapter = player.walk.state()?.chapter;
  if (chapter) given.set("walk", String(chapter));
  else given.delete("walk");
  // A chapter says by itself where it rests.
  if (chapter) given.delete("event");
  else if (given.has("event") || player.index !== player.opened) given.set("event", String(player.index + 1));
  const beat = chapter ? 0 : beatBeside(player, given.has("event"));
  if (beat) given.set("beat", String(beat));
  else given.delete("beat");
  const focus = focusOf(player.model);
  if (focus) given.set("rank", String(focus));
  else given.delete("rank");
  if (given.toString() === before) return;
  const hash = given.toString().replace(/=(?=&|$)/g, "");
  try {
    window.history.replaceState(null, "", `#${hash}`);
  } catch {
    // A sandboxed frame may not change its address; the player works without.
  }
}

/**
 * The entry of a notebook: the model holds the payload, and is told the current event.
 * @type {Drawing["render"]}
 */
export async function render({ model, el, unpacked }) {
  const changed = (/** @type {Player} */ player) => {
    // What a reload of the notebook opens again.
    model.set("event", player.index);
    model.set("walk", player.walk.state()?.chapter ?? 0);
    model.set("state", player.state());
    model.save_changes();
  };
  /** @type {Payload | PairPayload} */
  const payload = JSON.parse(await unpacked(model.get("payload")));
  const wanted = model.get("event");
  const { shown: view, beat, index, time } = model.get("state");
  const player = mount(el, payload, {
    event: wanted < 0 ? undefined : wanted,
    time: index === wanted ? time : undefined, // a cell may have gone elsewhere since
    walk: model.get("walk") || undefined,
    view,
    events: beat === null,
    changed,
  });
  if (!player) return undefined;
  const follow = () => {
    if (model.get("event") !== player.index) player.goto(model.get("event"));
  };
  model.on("change:event", follow);
  return () => {
    model.off("change:event", follow);
    const gone = player.pair?.players ?? [player];
    window.zerolabPlayers = window.zerolabPlayers?.filter((other) => !gone.includes(other));
    (player.pair ?? player).remove();
  };
}

export default { render };

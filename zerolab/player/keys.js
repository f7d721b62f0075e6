// The keyboard: one table, which the player follows and the help lists.

import { element } from "./dom.js";
import { FAR, moveFocus } from "./focus.js";
import { stateAlone } from "./strata.js";
import { VIEWS } from "./views.js";

/** @import { Player } from "./player.js" */

/** @type {[keys: string[], shown: string, what: string, action: (player: Player) => void][]} */
const TO_VIEWS = VIEWS.map(([view, title], k) => [
  [String(k + 1)],
  String(k + 1),
  `the view "${title}"`,
  (player) => player.setView(view),
]);

/**
 * `[keys, shown, what it does in words, what it does]`, and the words where one of many ranks is in focus, if they are
 * others. A key without words is not listed.
 * @type {[keys: string[], shown: string, what: string, action: (player: Player) => void, many?: string][]}
 */
export const KEYS = [
  [[" ", "k"], "space", "play or pause", (player) => player.toggle()],
  [["ArrowRight"], "→", "next beat, or event", (player) => player.step(1)],
  [["ArrowLeft"], "←", "previous beat, or event", (player) => player.step(-1)],
  [["Shift+ArrowRight"], "shift →", "next phase of this rank", (player) => player.steps.phase(1)],
  [["Shift+ArrowLeft"], "shift ←", "previous phase of this rank", (player) => player.steps.phase(-1)],
  [["ArrowDown"], "↓", "as shift →", (player) => down(player, 1, 1), "focus on the next rank"],
  [["ArrowUp"], "↑", "as shift ←", (player) => down(player, -1, 1), "focus on the previous rank"],
  [["Shift+ArrowDown"], "shift ↓", "", (player) => down(player, 1, FAR), `focus on the rank ${FAR} further down`],
  [["Shift+ArrowUp"], "shift ↑", "", (player) => down(player, -1, FAR), `focus on the rank ${FAR} further up`],
  [["u"], "u", "next unit of this rank", (player) => player.steps.unit(1)],
  [["U"], "shift u", "previous unit of this rank", (player) => player.steps.unit(-1)],
  [["PageDown"], "page down", "next training step", (player) => player.steps.window(1)],
  [["PageUp"], "page up", "previous training step", (player) => player.steps.window(-1)],
  [["p"], "p", "this rank's peak of memory", (player) => player.steps.peak()],
  [["Home"], "home", "first beat of the step, or first event", (player) => player.steps.edge(false)],
  [["End"], "end", "last beat of the step, or last event", (player) => player.steps.edge(true)],
  [["e"], "e", "by beats or by events", (player) => player.tellEvents(player.byBeats)],
  [["w"], "w", "the guided walk; escape ends it", (player) => player.walk.toggle()],
  ...TO_VIEWS,
  [["+", "="], "+", "faster", (player) => player.faster(1)],
  [["-"], "−", "slower", (player) => player.faster(-1)],
  [["z"], "z", "one step or the whole run", (player) => player.zoom.toggleWhole()],
  [["i"], "i, or ctrl wheel", "zoom in", (player) => player.zoom.by(0.5)],
  [["o"], "o, or ctrl wheel", "zoom out", (player) => player.zoom.by(2)],
  [["a"], "a, or shift drag", "pan left", (player) => player.zoom.pan(-0.25)],
  [["d"], "d, or shift drag", "pan right", (player) => player.zoom.pan(0.25)],
  [["0"], "0", "no zoom", (player) => player.zoom.reset()],
  [["/"], "/", "find events by words", (player) => player.scene.tools.open()],
  [["m"], "m", "measure from here to the cursor", (player) => player.scene.tools.measure.toggle()],
  [["s"], "s", "state alone, in memory", stateAlone],
  [["f"], "f", "show only some ranks, a category, a unit", (player) => player.scene.panels.toggleFilter()],
  [["t"], "t", "light or dark", (player) => player.toggleTheme()],
  [["?"], "?", "this list", (player) => player.scene.panels.toggleHelp()],
];

/**
 * Down or up among many ranks; of few to another phase.
 * @param {Player} player @param {number} direction @param {number} ranks
 */
function down(player, direction, ranks) {
  if (!moveFocus(player, direction * ranks)) player.steps.phase(direction);
}

const BY_KEY = new Map(KEYS.flatMap(([keys, , , action]) => keys.map((key) => /** @type {const} */ ([key, action]))));

/** By these a text that has the focus scrolls. */
const SCROLLS = new Set([" ", "ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"]);

/**
 * Handles the keyboard while `root` has the focus. A button that was reached by keyboard keeps its own space and enter.
 * @param {HTMLElement} root @param {Player} player
 */
export function listen(root, player) {
  // A button that was clicked gives the focus back: space plays then, as its tooltip says.
  root.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("button");
    if (event.detail && button?.matches(":focus")) player.root.focus({ preventScroll: true });
    else if (button) keepFocus(player.root, button);
  });
  root.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const { tagName, classList } = target;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (tagName === "SELECT" && event.key !== "Escape") return;
    const focused = document.activeElement;
    if (event.key === "Escape") {
      leaveOff(player);
      keepFocus(player.root, focused);
    }
    // Radio buttons keep the keys by which they are chosen.
    if (tagName === "INPUT" && (event.key === " " || event.key.startsWith("Arrow"))) return;
    if ((tagName === "BUTTON" || tagName === "SUMMARY") && event.key === " ") return;
    if (SCROLLS.has(event.key) && target.closest(".zl-help, .zl-code")) return;
    if (classList.contains("zl-body") && event.key.startsWith("Page")) return; // a picture too high scrolls by them
    const name = event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key;
    const action = BY_KEY.get(name);
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action(player);
    keepFocus(player.root, focused);
  });
}

/**
 * Gives the player the focus where what had it within is gone: else it would be the page's, and a notebook's keys would
 * edit the notebook.
 * @param {HTMLElement} root @param {Element | null} had
 */
function keepFocus(root, had) {
  const at = document.activeElement;
  const isGone = had && (!had.isConnected || !had.getClientRects().length || had.matches(":disabled"));
  if (isGone && (at === had || at === document.body)) root.focus({ preventScroll: true });
}

/**
 * Closes what is open: the words at the pointer, a list, and a panel, or else the walk.
 * @param {Player} player
 */
function leaveOff(player) {
  const { panels } = player.scene;
  for (const one of player.pair?.players ?? [player]) {
    one.preview(null);
    one.root.querySelector("details")?.removeAttribute("open");
  }
  if (panels.open) panels.close();
  else player.walk.leave();
}

/**
 * How the picture is read, for whoever sees one for the first time: `[what, meaning, whether a player has it]`.
 * @type {[what: string, meaning: string, has?: (player: Player) => boolean][]}
 */
const READING = [
  ["a colour", "the rank that owns a part: keeps it and updates it"],
  ["filled, hollow", "here; not here, so another rank has it"],
  ["grey, two sheets", "a whole copy, the same on every rank", copies],
  ["lines, filled", "the gradient of one rank's batch; the mean over all", sums],
  ["faint, dotted", "an old parameter: its owner has a new one, framed", ({ values }) => values.arrivals.size > 0],
  ["a moving box", "a piece on its way to another rank", beats],
  ["1/4, 2/4", "how many parts of a sum have come, of how many", sums],
  ["a wide frame", "what a rank computes, in the colour of its pass", beats],
  ["an arrow", "by events: a piece, with its size"],
  ["a heavy frame", "the current event, the same one in every pane"],
  ["a vertical line", "this moment, in both panes with time"],
  ["many ranks", "the one in focus is drawn whole; the maps show how much of each unit each rank holds", folded],
  ["memory", "live bytes of a rank; the formula counts state alone"],
  ["dashed outline", "what DDP would hold beside it: all state, whole"],
  ["dotted outline", "what the other recording holds, and this one lacks", ({ options }) => !!options.drawn],
  ["pointer", "hover lights an event everywhere, a click goes there"],
];

/** @param {Player} player */
function copies({ model }) {
  return model.worldSize > 1 && model.units.some(({ owners, padded }) => padded && !owners);
}

/** @param {Player} player */
function sums({ values }) {
  return values.reductions.size > 0;
}

/** @param {Player} player */
function beats({ beats: { list } }) {
  return list.length > 0;
}

/** @param {Player} player */
function folded({ model }) {
  return Boolean(model.folded);
}

/**
 * How to read the picture, and the list of keys, shown under `?`: of what this recording has.
 * @param {Player} player
 */
export function help(player) {
  const many = folded(player);
  const keys = KEYS.map(([, shown, few, , other]) => [shown, (many && other) || few]).filter(([, what]) => what);
  const half = Math.ceil(keys.length / 2);
  /** @type {(rows: string[][]) => HTMLElement} */
  const list = (rows) =>
    element("dl", {}, ...rows.flatMap(([term, meaning]) => [element("dt", {}, term), element("dd", {}, meaning)]));
  return element(
    "div",
    { class: "zl-help", hidden: "", role: "note", "aria-label": "How to read this, and the keyboard", tabindex: 0 },
    element(
      "div",
      {},
      element("h3", {}, "How to read this"),
      list(READING.filter(([, , has]) => !has || has(player)).map(([what, meaning]) => [what, meaning])),
    ),
    element(
      "div",
      {},
      element("h3", {}, "Keyboard"),
      element("div", { class: "zl-keys" }, list(keys.slice(0, half)), list(keys.slice(half))),
    ),
  );
}

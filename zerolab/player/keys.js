// The keyboard: one table that the player obeys and the help lists.

import { element } from "./dom.js";

/** `[keys, shown, what it does, method of the player, argument]`. */
export const KEYS = [
  [[" ", "k"], "space", "play or pause", "toggle"],
  [["ArrowRight"], "→", "next event", "step", 1],
  [["ArrowLeft"], "←", "previous event", "step", -1],
  [["Shift+ArrowRight", "ArrowDown"], "↓ or shift →", "next phase of this rank", "stepPhase", 1],
  [["Shift+ArrowLeft", "ArrowUp"], "↑ or shift ←", "previous phase of this rank", "stepPhase", -1],
  [["u"], "u", "next unit of this rank", "stepUnit", 1],
  [["U"], "shift u", "previous unit of this rank", "stepUnit", -1],
  [["PageDown"], "page down", "next training step", "stepWindow", 1],
  [["PageUp"], "page up", "previous training step", "stepWindow", -1],
  [["p"], "p", "this rank's peak of memory", "gotoPeak"],
  [["Home"], "home", "first event", "goto", 0],
  [["End"], "end", "last event", "goto", Infinity],
  [["+", "="], "+", "faster", "faster", 1],
  [["-"], "−", "slower", "faster", -1],
  [["z"], "z", "one step or the whole run", "toggleView"],
  [["i"], "i, or ctrl wheel", "zoom in", "zoomBy", 0.5],
  [["o"], "o, or ctrl wheel", "zoom out", "zoomBy", 2],
  [["a"], "a, or shift drag", "pan left", "panBy", -0.25],
  [["d"], "d, or shift drag", "pan right", "panBy", 0.25],
  [["0"], "0", "no zoom", "resetZoom"],
  [["f"], "f", "show only some ranks, a category, a unit", "toggleFilter"],
  [["t"], "t", "light or dark", "toggleTheme"],
  [["?"], "?", "this list", "toggleHelp"],
];

const BY_KEY = new Map(KEYS.flatMap(([keys, , , method, argument]) => keys.map((key) => [key, [method, argument]])));

/** Obeys the keyboard while `root` has the focus. A pressed button keeps its own space and enter. */
export function listen(root, player) {
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || (event.target.tagName === "SELECT" && event.key !== "Escape"))
      return;
    if (event.key === "Escape") player.closePanels();
    if (event.target.tagName === "BUTTON" && event.key === " ") return;
    const name = event.shiftKey && event.key.startsWith("Arrow") ? `Shift+${event.key}` : event.key;
    const [method, argument] = BY_KEY.get(name) ?? [];
    if (!method) return;
    event.preventDefault();
    event.stopPropagation();
    player[method](argument);
  });
}

/** How the picture is read, for whoever sees one for the first time: `[what, meaning]`. */
const READING = [
  ["a colour", "the rank that owns a part: keeps it and updates it"],
  ["filled, hollow", "here; not here, so another rank has it"],
  ["an arrow", "a piece on its way to another rank, with its size"],
  ["amber", "the current event, the same one in every pane"],
  ["a vertical line", "this moment, in both panes with time"],
  ["memory", "live bytes of a rank; the formula counts state alone"],
  ["pointer", "hover lights an event everywhere, a click goes there"],
];

/** How to read the picture, and the list of keys, shown under `?`. */
export function help() {
  const list = (title, rows) =>
    element(
      "div",
      {},
      element("h3", {}, title),
      element("dl", {}, ...rows.flatMap(([term, meaning]) => [element("dt", {}, term), element("dd", {}, meaning)])),
    );
  return element(
    "div",
    { class: "zl-help", hidden: "", role: "note", "aria-label": "How to read this, and the keyboard", tabindex: 0 },
    list("How to read this", READING),
    list(
      "Keyboard",
      KEYS.map(([, shown, what]) => [shown, what]),
    ),
  );
}

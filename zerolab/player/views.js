// What is seen at once: the story first, one pane more by and by, or all of them.

import { button, element } from "./dom.js";

/**
 * @import { Player } from "./player.js"
 * @import { ViewName } from "./types.d.ts"
 */

/**
 * `[view, title, the panes that it shows]`.
 * @type {[view: ViewName, title: string, panes: string[]][]}
 */
export const VIEWS = [
  ["story", "Story", ["ownership", "bars"]],
  ["timeline", "Timeline", ["ownership", "timeline"]],
  ["memory", "Memory", ["ownership", "memory"]],
  ["source", "Source", ["ownership", "source"]],
  ["all", "All", ["ownership", "source", "timeline", "memory"]],
];

/**
 * The row of buttons that choose a view, and `draw`, which marks one of them.
 * @param {Player} player
 */
export function views(player) {
  const buttons = VIEWS.map(([view, title], k) => {
    const more = { "data-view": view, "aria-label": null };
    return button(`${title} (${k + 1})`, title, () => player.setView(view), more);
  });
  const bar = element("div", { class: "zl-views", role: "group", "aria-label": "View" }, ...buttons);
  /** @type {(view: ViewName) => void} */
  const draw = (view) => {
    for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.view === view));
  };
  draw(player.shown);
  return { element: bar, draw };
}

/**
 * Shows the panes of a view, and no others.
 * @param {HTMLElement} root @param {ViewName} view
 */
export function showPanes(root, view) {
  for (const pane of /** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll(".zl-pane")))
    pane.hidden = !shows(view, pane.dataset.pane ?? "");
}

/**
 * Whether a view shows a pane.
 * @param {ViewName} view @param {string} pane
 */
export function shows(view, pane) {
  return VIEWS.some(([name, , panes]) => name === view && panes.includes(pane));
}

// The two panels that open over the player, one at a time: how to read it, and what to show.

import { button, icon } from "./dom.js";
import { FilterPanel } from "./filter.js";
import { help } from "./keys.js";

/** @import { Player } from "./player.js" */

/** The panels of one player, and the buttons that open them. */
export class Panels {
  /** @param {Player} player */
  constructor(player) {
    this.help = help(player);
    this.filter = new FilterPanel(player);
    this.helpButton = button("How to read this, and the keyboard (?)", "?", () => this.toggleHelp());
    const title = "Show only some ranks, a category, a unit (f)";
    this.filterButton = button(title, icon("funnel"), () => this.toggleFilter());
    // On a narrow screen a panel lies over the button that opened it, and a finger has no escape key.
    for (const panel of [this.help, this.filter.element])
      panel.prepend(button("Close (escape)", "✕", () => this.close(), { class: "zl-close" }));
  }

  /** @param {boolean} [shown] */
  toggleHelp(shown = Boolean(this.help.hidden)) {
    if (shown) this.toggleFilter(false);
    const inside = this.help.contains(document.activeElement); // no longer, as soon as it is hidden
    this.help.hidden = !shown;
    this.helpButton.setAttribute("aria-expanded", String(shown));
    if (!shown && inside) this.helpButton.focus();
  }

  /** @param {boolean} [shown] */
  toggleFilter(shown = Boolean(this.filter.element.hidden)) {
    const { element, selects } = this.filter;
    if (shown) this.toggleHelp(false);
    element.hidden = !shown;
    this.filterButton.setAttribute("aria-expanded", String(shown));
    if (shown) selects.ranks.focus();
    else if (element.contains(document.activeElement)) this.filterButton.focus();
  }

  get open() {
    return !this.help.hidden || !this.filter.element.hidden;
  }

  close() {
    this.toggleHelp(false);
    this.toggleFilter(false);
  }
}

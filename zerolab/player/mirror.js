// The current moment as text in the page, for screen readers and for tests: neither can read a canvas.

import { caption } from "./caption.js";
import { element, say } from "./dom.js";
import { focusInWords, focusOf } from "./focus.js";
import { exact, words } from "./format.js";
import { STATE } from "./model.js";
import { MOST_ROWS } from "./rows.js";
import { ghostOf } from "./strata.js";

/** @import { Model } from "./model.js" */

/** How many events before and after the current one get a sentence; all of them would be a page of 20,000. */
const AROUND = 10;

/**
 * A table with a row per rank (of very many, those that are drawn): elements held of each category, and live bytes; and
 * a list with a sentence for each event around the current one. The player decides how often it is rewritten.
 */
export class Mirror {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {HTMLElement[][]} */
    this.cells = [];
    /** @type {Map<number, HTMLLIElement>} */
    this.told = new Map(); // event -> its list item
    this.current = -1;
    const live = { live: "live bytes", host: "live bytes in main memory" };
    const held = STATE.map((category) => `${words(category)}: elements held`);
    this.ghost = ghostOf(model);
    const less = this.ghost ? ["bytes of state less than DDP's"] : [];
    const heads = ["rank", ...held, ...model.devices.map((device) => live[device]), ...less];
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    this.ranks =
      model.worldSize > MOST_ROWS
        ? model.rows.map((row) => row.rank)
        : Array.from({ length: model.worldSize }, (_, rank) => rank);
    const rows = this.ranks.map((rank) => this.#row(rank));
    const title = element("caption", {}, "What each rank holds after the current event");
    const table = element("table", {}, title, element("thead", {}, head), element("tbody", {}, ...rows));
    this.list = element("ol", { "aria-label": "Events around the current one" });
    this.focus = element("p", { role: "status" }); // said aloud when it changes, what it holds when it is asked for
    this.holds = element("p");
    this.element = element("div", { class: "zl-hidden zl-mirror" }, this.focus, this.holds, table, this.list);
  }

  /**
   * Writes the moment after event `index`; the sentences only where it stays for a while.
   * @param {number} index @param {boolean} moving @param {(rank: number) => number} shown up to which event
   */
  draw(index, moving, shown) {
    const { model } = this;
    if (!moving) this.#tell(index);
    const focus = focusOf(model);
    say(this.focus, focus === null ? "" : `Rank ${focus} is in focus: up and down lead to others.`);
    say(this.holds, focusInWords(model, index));
    this.cells.forEach((cells, place) => {
      const rank = this.ranks[place];
      const totals = model.devices.map((device) => {
        const live = model.live(rank, shown(rank), device);
        return live && Object.values(live).reduce((sum, value) => sum + value, 0);
      });
      const held = [...STATE.map((category) => model.heldElements(rank, category, shown(rank))), ...totals];
      if (this.ghost) held.push(this.ghost.missing(rank, shown(rank)));
      const { times_only: timesOnly, total_only: totalOnly } = model.payload.meta;
      const values = held.map((value, k) => (timesOnly || (totalOnly && k < STATE.length) ? null : value));
      values.forEach((value, k) => {
        say(cells[k], value === null ? "not recorded" : exact(value));
      });
    });
  }

  /**
   * The sentences around event `index`. Neighbouring moments share nearly all of them, so those stay in the page.
   * @param {number} index
   */
  #tell(index) {
    const first = Math.max(0, index - AROUND);
    const last = Math.min(this.model.count - 1, index + AROUND);
    this.told.get(this.current)?.removeAttribute("aria-current");
    for (const [i, item] of this.told) if (i < first || i > last) this.#forget(i, item);
    const following = /** @type {HTMLLIElement | null} */ (this.list.firstChild);
    for (let i = first; i <= last; i++) {
      if (this.told.has(i)) continue;
      this.list.insertBefore(this.#sentence(i), following && i < following.value ? following : null);
    }
    this.told.get(index)?.setAttribute("aria-current", "true");
    this.current = index;
  }

  /** @param {number} i @param {HTMLLIElement} item */
  #forget(i, item) {
    item.remove();
    this.told.delete(i);
  }

  /** @param {number} i */
  #sentence(i) {
    const item = element("li", { value: i + 1 }, caption(this.model, i));
    this.told.set(i, item);
    return item;
  }

  /** @param {number} rank */
  #row(rank) {
    const cells = [...STATE, ...this.model.devices, ...(this.ghost ? ["saved"] : [])].map((name) =>
      element("td", { "data-of": name }),
    );
    this.cells.push(cells);
    return element("tr", { "data-rank": rank }, element("th", { scope: "row" }, `rank ${rank}`), ...cells);
  }
}

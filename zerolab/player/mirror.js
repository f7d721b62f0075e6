// The current moment as text in the page: what screen readers read and tests compare, because a canvas says nothing.

import { element } from "./dom.js";
import { exact, words } from "./format.js";
import { STATE } from "./model.js";
import { MOST_ROWS } from "./rows.js";

/** Elements of a category that a rank holds, over all units. */
function elements(model, rank, category, index) {
  let sum = 0;
  for (const unit of model.units) {
    const spans = model.held(rank, category, unit.name, index);
    for (let k = 0; k < spans.length; k += 2) sum += spans[k + 1] - spans[k];
  }
  return sum;
}

/** A table with a row per rank (of very many, those that are drawn): elements held of each category, and live bytes. Rewritten at most `EVERY` ms apart. */
export class Mirror {
  constructor(model) {
    this.model = model;
    this.cells = [];
    const heads = ["rank", ...STATE.map((category) => `${words(category)}: elements held`), "live bytes"];
    const head = element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)));
    this.ranks = model.worldSize > MOST_ROWS ? model.rows.map((row) => row.rank) : Array.from({ length: model.worldSize }, (_, rank) => rank);
    const rows = this.ranks.map((rank) => this.#row(rank));
    const title = element("caption", {}, "What each rank holds after the current event");
    const table = element("table", {}, title, element("thead", {}, head), element("tbody", {}, ...rows));
    this.element = element("div", { class: "zl-hidden zl-mirror" }, table);
  }

  /** Writes the moment after event `index`. */
  draw(index) {
    const { model } = this;
    this.cells.forEach((cells, place) => {
      const rank = this.ranks[place];
      const live = model.live(rank, index);
      const total = live && Object.values(live).reduce((sum, value) => sum + value, 0);
      const values = [...STATE.map((category) => elements(model, rank, category, index)), total];
      values.forEach((value, k) => {
        cells[k].textContent = value === null ? "not recorded" : exact(value);
      });
    });
  }

  #row(rank) {
    const cells = [...STATE, "live"].map((name) => element("td", { "data-of": name }));
    this.cells.push(cells);
    return element("tr", { "data-rank": rank }, element("th", { scope: "row" }, `rank ${rank}`), ...cells);
  }
}

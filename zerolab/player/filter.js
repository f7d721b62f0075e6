// What is shown: all ranks or some, all categories or one, all units or one; and which events the steps stop at.

import { button, element } from "./dom.js";
import { entries } from "./events.js";
import { spoken, words } from "./format.js";
import { timelineLegend } from "./legends.js";
import { STACK } from "./palette.js";
import { rowsOf } from "./rows.js";
import { pressToggles, withoutInWords } from "./strata.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Filter } from "./types.d.ts"
 */

/**
 * Nothing left out.
 * @type {Filter}
 */
export const ALL = { ranks: null, category: null, unit: null, off: null };

/**
 * The ranks that a filter leaves.
 * @param {Filter} filter @param {number} worldSize
 */
export function ranksOf(filter, worldSize) {
  const [from, to] = filter.ranks ?? [0, worldSize - 1];
  return Array.from({ length: to - from + 1 }, (_, k) => from + k);
}

/**
 * "only rank 2, blocks.1; state alone"; "" where nothing is left out.
 * @param {Filter} filter
 */
function inWords(filter) {
  const { ranks, category, unit } = filter;
  const those = ranks && (ranks[0] === ranks[1] ? `rank ${ranks[0]}` : `ranks ${ranks[0]} to ${ranks[1]}`);
  const said = [those, category && words(category), spoken(unit)].filter(Boolean);
  return [said.length ? `only ${said.join(", ")}` : "", withoutInWords(filter)].filter(Boolean).join("; ");
}

/**
 * Whether event `i` is left: of a shown rank, about the chosen unit, and changing live bytes of the chosen category.
 * @param {Model} model @param {Filter} filter @param {number} i
 */
export function passes(model, filter, i) {
  const { columns, payload } = model;
  if (filter.ranks && (columns.rank[i] < filter.ranks[0] || columns.rank[i] > filter.ranks[1])) return false;
  if (filter.unit && (!columns.unit[i] || payload.units[columns.unit[i] - 1].name !== filter.unit)) return false;
  if (!filter.category) return true;
  if (columns.category[i] && payload.categories[columns.category[i] - 1] === filter.category) return true;
  const live = columns[`live.${filter.category}`];
  const before = model.before[i];
  return before >= 0 ? live[i] !== live[before] : live[i] > 0;
}

/**
 * Makes a player show only what a filter leaves.
 * @param {Player} player @param {Partial<Filter>} change
 */
export function chooseFilter(player, change) {
  const filter = { ...player.filter, ...change };
  player.filter = Object.values(filter).some(Boolean) ? filter : ALL;
  player.model.chooseRows(rowsOf(ranksOf(player.filter, player.model.worldSize), player.model.peaks));
  const { panels, filterBadge } = player.scene;
  panels.filter.draw(player.filter);
  filterBadge.textContent = inWords(player.filter);
  filterBadge.hidden = player.filter === ALL;
  timelineLegend(player); // which ranks share a row
  player.redraw();
  player.settle();
  player.options.altered?.(player);
}

/**
 * "2-5" as `[2, 5]`.
 * @param {string} text
 * @returns {[from: number, to: number]}
 */
function rangeOf(text) {
  const [from, to] = text.split("-").map(Number);
  return [from, to];
}

/** The panel under "filter": one choice each. */
export class FilterPanel {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
    const { model } = player;
    /** @type {(title: string, choices: string[][], chosen: (value: string | null) => void) => HTMLSelectElement} */
    const of = (title, choices, chosen) => {
      const select = element(
        "select",
        { "aria-label": title },
        element("option", { value: "" }, "all"),
        ...choices.map(([value, text]) => element("option", { value }, text)),
      );
      select.addEventListener("change", () => chosen(select.value || null));
      return select;
    };
    this.selects = {
      ranks: of(
        "Rank",
        Array.from({ length: model.worldSize }, (_, rank) => [`${rank}-${rank}`, String(rank)]),
        (value) => player.setFilter({ ranks: value ? rangeOf(value) : null }),
      ),
      category: of(
        "Category",
        STACK.map((category) => [category, words(category)]),
        (chosen) => player.setFilter({ category: STACK.find((category) => category === chosen) ?? null }),
      ),
      unit: of(
        "Unit",
        model.units.map(({ name }) => [name, name]),
        (unit) => player.setFilter({ unit }),
      ),
    };
    const clear = button(null, "show all", () => player.setFilter(ALL));
    const labels = entries(this.selects).map(([key, select]) =>
      element("label", {}, element("span", {}, key === "ranks" ? "rank" : key), select),
    );
    this.element = element(
      "div",
      { class: "zl-filter", hidden: "", role: "group", "aria-label": "Filter" },
      element("h3", {}, "Show only"),
      ...labels,
      clear,
    );
  }

  /** @param {Filter} filter */
  draw(filter) {
    const { ranks } = this.selects;
    const range = filter.ranks?.join("-") ?? "";
    if (filter.ranks && ![...ranks.options].some((option) => option.value === range)) {
      ranks.append(element("option", { value: range }, filter.ranks.join(" to ")));
    }
    ranks.value = range;
    this.selects.category.value = filter.category ?? "";
    this.selects.unit.value = filter.unit ?? "";
    pressToggles(this.player.root.querySelectorAll(".zl-toggle"), filter);
  }
}

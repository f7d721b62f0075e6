// What is shown: all ranks or some, all categories or one, all units or one; and which events the steps stop at.

import { element } from "./dom.js";
import { words } from "./format.js";
import { STACK } from "./palette.js";

/** Nothing left out. `ranks` is `[from, to]`, both included. */
export const ALL = { ranks: null, category: null, unit: null };

/** The ranks that a filter leaves. */
export function ranksOf(filter, worldSize) {
  const [from, to] = filter.ranks ?? [0, worldSize - 1];
  return Array.from({ length: to - from + 1 }, (_, k) => from + k);
}

/** "only rank 2, blocks.1"; "" where nothing is left out. */
export function inWords({ ranks, category, unit }) {
  const those = ranks && (ranks[0] === ranks[1] ? `rank ${ranks[0]}` : `ranks ${ranks[0]} to ${ranks[1]}`);
  const said = [those, category && words(category), unit].filter(Boolean);
  return said.length ? `only ${said.join(", ")}` : "";
}

/** Whether event `i` is left: of a shown rank, about the chosen unit, and changing the live bytes of the chosen category. */
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

/** The panel under "filter": one choice each. */
export class FilterPanel {
  constructor(player) {
    const { model } = player;
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
        (value) => player.setFilter({ ranks: value && value.split("-").map(Number) }),
      ),
      category: of(
        "Category",
        STACK.map((category) => [category, words(category)]),
        (category) => player.setFilter({ category }),
      ),
      unit: of(
        "Unit",
        model.units.map(({ name }) => [name, name]),
        (unit) => player.setFilter({ unit }),
      ),
    };
    const clear = element("button", { type: "button" }, "show all");
    clear.addEventListener("click", () => player.setFilter(ALL));
    const labels = Object.entries({ rank: "ranks", category: "category", unit: "unit" }).map(([text, key]) =>
      element("label", {}, element("span", {}, text), this.selects[key]),
    );
    this.element = element(
      "div",
      { class: "zl-filter", hidden: "", role: "group", "aria-label": "Filter" },
      element("h3", {}, "Show only"),
      ...labels,
      clear,
    );
  }

  draw(filter) {
    const ranks = filter.ranks && `${filter.ranks[0]}-${filter.ranks[1]}`;
    if (ranks && ![...this.selects.ranks.options].some((option) => option.value === ranks)) {
      this.selects.ranks.append(element("option", { value: ranks }, `${filter.ranks[0]} to ${filter.ranks[1]}`));
    }
    this.selects.ranks.value = ranks ?? "";
    this.selects.category.value = filter.category ?? "";
    this.selects.unit.value = filter.unit ?? "";
  }
}

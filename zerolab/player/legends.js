// The keys to colours and patterns, next to the panes' names.

import { dashed, element, framed, swatch } from "./dom.js";
import { exact, words } from "./format.js";
import { Lanes } from "./lanes.js";
import { STATE } from "./model.js";
import { leftOutInWords } from "./rows.js";
import { ghostOf, toggles } from "./strata.js";
import { Tiles } from "./tiles.js";

/** @import { Player } from "./player.js" */

/** The mark of a copy. */
const SHEET = { marks: "M4 2h5v6h-5z", solid: true };

/**
 * The keys to colours and patterns above the panes, in the palette's theme.
 * @param {Player} player
 */
export function legends(player) {
  const { palette, scene, model, panes } = player;
  const { sections } = scene;
  const { named } = panes.ownership; // in rows too low for names of lines the legend says which is which
  const lines = named ? [] : [element("span", {}, `lines: ${STATE.map(words).join(", ")}`)];
  const told = model.units.some(({ owners }) => owners)
    ? [...lines, model.folded ? "colour: owner, 8 in turn" : named ? "colour: its owner" : "colour: owner"]
    : lines;
  const copies = Math.max(...model.units.map(({ owners }) => owners?.length ?? 0), 0);
  if (copies > 1 && !player.story.divided.size) told.push(element("span", {}, `${copies} replicas, each a whole`));
  const meant = player.pieces.meant
    ? [element("span", {}, "messages not recorded: drawn as what the collective means")]
    : [];
  sections.ownership.legend.replaceChildren(
    ...told,
    framed("not here", palette.hollow),
    ...worths(player),
    ...(player.options.drawn ? [framed("the other holds it", palette.ink, "1.5 2")] : []),
    ...(player.byBeats && player.values.reductions.size ? [element("span", {}, "solid: mean")] : []),
    ...(player.byBeats && !model.folded ? meant : [framed("on its way", palette.communicationColour, "3 2")]),
    ...(player.byBeats && model.folded ? meant : []),
    ...(model.folded ? [heatKeys(player)] : []),
  );
  if (panes.ownership instanceof Tiles) {
    sections.ownership.heading.textContent = "Whose numbers lie where";
    const adds = panes.ownership.exchanges.some((one) => one.adds);
    const texts = ["colour: whose", ...(adds ? ["stripes, 2/4: the ranks in a sum, of how many"] : [])];
    const said = texts.map((text) => element("span", {}, text));
    sections.ownership.legend.replaceChildren(framed("nothing yet", palette.hollow), ...said);
  }
  timelineLegend(player);
  const { times_only: timesOnly, total_only: totalOnly, origin } = model.payload.meta;
  const nothing = `not recorded: ${origin ? `${origin} does not say it` : "this recording has times only"}`;
  if (timesOnly || totalOnly) {
    for (const { legend } of [sections.ownership, ...(timesOnly ? [sections.memory, sections.bars] : [])])
      legend.replaceChildren(nothing);
  }
  if (timesOnly) return;
  /** @type {(legend: HTMLElement, formula: number | null, peak: string, ghost?: unknown) => void} */
  const categories = (legend, formula, peak, ghost = null) =>
    legend.replaceChildren(
      ...toggles(player),
      ...(ghost ? [framed("DDP would hold", palette.muted, "3 2")] : []),
      // Together: alone on a line the last would look like a word that is left over.
      formula === null ? peak : element("span", { class: "zl-key" }, dashed("formula", palette.formula), peak),
      ...(player.options.drawn ? [element("span", {}, "dotted: the other")] : []),
    );
  categories(sections.bars.legend, model.formulaOn("live"), "▏peak", ghostOf(model));
  for (const { formula, device } of panes.memories) {
    const { legend } = device === "host" ? sections.host : sections.memory;
    categories(legend, formula, "▾ peak", ghostOf(model, device));
  }
}

/**
 * The key of the timeline alone, which depends on the rows that are shown.
 * @param {Player} player
 */
export function timelineLegend({ palette, scene, model }) {
  /** @type {(text: string, colour: string) => HTMLElement} */
  const flat = (text, colour) => swatch(text, { colour });
  const { clock, saves } = new Lanes(model);
  scene.sections.timeline.legend.replaceChildren(
    flat("forward", palette.forward),
    flat("backward", palette.backward),
    flat("update", palette.optimizer),
    swatch("waiting", palette.look()),
    flat("gather, broadcast", palette.communicationColour),
    flat("reduce", palette.reduction),
    ...(saves ? [flat("checkpoint", palette.copy)] : []),
    ...[clock, leftOutInWords(model.rows)].flatMap((said) => (said ? [element("span", {}, said)] : [])),
  );
}

/**
 * What the ways of drawing a value mean, as far as this recording uses them.
 * @param {Player} player
 */
function worths({ palette, model, story, values }) {
  const isSame = !story.passes && (story.summed || !story.updated);
  const whole = isSame ? "copy, the same on every rank" : "whole unit";
  const [local, stale] = [palette.worth("local"), palette.worth("stale")];
  return [
    ...(values.reductions.size ? [swatch("local gradient", local)] : []),
    ...(values.arrivals.size ? [swatch("stale", stale), framed("new, not sent yet", palette.ink)] : []),
    ...(model.worldSize > 1 && model.units.some(({ owners, padded }) => padded && !owners)
      ? [swatch(whole, { colour: palette.copy, ...SHEET, stroke: palette.paper })]
      : []),
  ];
}

/**
 * What the colours of the heat map mean, from nothing to all of a unit.
 * @param {Player} player
 */
function heatKeys({ palette, model }) {
  const ranks = model.worldSize;
  const middle = Math.round(Math.sqrt(ranks));
  const shares = [ranks, middle, 1].map((parts) =>
    swatch(parts === 1 ? "1" : `1/${exact(parts)}`, { colour: palette.share(1 / parts, ranks) }),
  );
  return element("span", { class: "zl-shares" }, "share of a unit:", framed("0", palette.hollow), ...shares);
}

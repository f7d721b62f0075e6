// Which of many ranks is drawn in full: chosen by a click on the heat map or by key, put in words, kept in the address.

import { Folded } from "./folded.js";
import { bytes, exact, words } from "./format.js";
import { STATE } from "./model.js";
import { recordedRanks } from "./rows.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Point } from "./types.d.ts"
 */

/** Ranks that a key with shift goes on. */
export const FAR = 8;

/**
 * The rank in focus; null where all are drawn whole.
 * @param {Model} model
 */
export function focusOf(model) {
  return model.folded ? model.whole[0].rank : null;
}

/**
 * Draws another rank in full; if nothing of it was recorded, the nearest recorded one.
 * @param {Player} player @param {number} rank
 */
export function focusOn(player, rank) {
  const { model, pieces, pace } = player;
  const before = focusOf(model);
  model.focus = rank;
  model.chooseRows(model.rows);
  if (focusOf(model) === before) return;
  pieces.forget();
  pace.known.clear();
  // All rows are as high as before: they are painted anew, but not laid out.
  player.panes.ownership.painted = null;
  player.stale = true;
  player.refresh();
  player.options.altered?.(player);
}

/**
 * So many recorded ranks on, or back; false where all are drawn whole.
 * @param {Player} player @param {number} by
 */
export function moveFocus(player, by) {
  const { model } = player;
  const focus = focusOf(model);
  if (focus === null) return false;
  const ranks = recordedRanks(model.rows);
  focusOn(player, ranks[Math.max(0, Math.min(ranks.length - 1, ranks.indexOf(focus) + by))]);
  return true;
}

/**
 * The pointer over the pane of who holds what: over a folded rank it describes that rank, elsewhere the event that
 * brought what is there.
 * @param {Player} player @param {Point} at @param {PointerEvent} event
 */
export function hoverOwned(player, at, event) {
  const { panes, scene, model, index } = player;
  const { ownership } = panes;
  const told = ownership instanceof Folded ? ownership.tellAt(at) : null;
  ownership.pen.canvas.style.cursor = told ? "pointer" : "";
  if (player.hovered === null) scene.tip.hide();
  player.preview(told ? null : ownership.changeAt(model, at, index), event);
  if (told) scene.tip.tell(told, event);
}

/**
 * The pointer has left that pane.
 * @param {Player} player
 */
export function leaveOwned(player) {
  player.preview(null);
  player.scene.tip.hide();
}

/**
 * A click on the pane of who holds what: on a folded rank it brings that into focus, on a row's name it shows only
 * those ranks or all again, on what is held it goes to the event that brought it.
 * @param {Player} player @param {Point} at
 */
export function clickOwned(player, at) {
  const { model, panes, index } = player;
  const { ownership } = panes;
  const rank = ownership instanceof Folded ? ownership.rankAt(at) : null;
  if (rank !== null) return focusOn(player, rank);
  const hit = ownership.hit(model, at.x, at.y);
  if (!hit || !("row" in hit)) return player.pick(ownership.changeAt(model, at, index));
  const { from, to } = model.whole[hit.row];
  const alone = player.filter.ranks && model.rows.length === 1;
  player.setFilter({ ranks: alone ? null : [from, to] });
}

/**
 * What the rank in focus holds, in words; "" where all are drawn whole.
 * @param {Model} model @param {number} index
 */
export function focusInWords(model, index) {
  const rank = focusOf(model);
  if (rank === null) return "";
  const held = STATE.map((category) => `${exact(model.heldElements(rank, category, index))} of ${words(category)}`);
  const live = Object.values(model.live(rank, index) ?? {}).reduce((sum, value) => sum + value, 0);
  return `Rank ${rank} holds so many elements: ${held.join(", ")}; ${bytes(live)} live.`;
}

// What the panes with one row per rank have in common: how high a row is, its name, and what it says when it is empty.

/** Heights for `ranks` rows of `lines` lines each: as high as `best`, lower the more ranks there are. */
export function rowHeights(ranks, lines, best, gap) {
  const crowded = ranks > 4 ? Math.max(0.25, 4 / ranks) : 1;
  const line = Math.max(2, Math.round(best * crowded));
  const space = Math.max(2, Math.round(gap * crowded));
  return { line, row: line * lines + (lines - 1) * 2, pitch: line * lines + (lines - 1) * 2 + space };
}

/** The rank's name with its colour and pattern, in the left gutter; names are left out where rows are too low. */
export function rankName(pen, palette, rank, y, height) {
  const size = Math.min(12, height);
  pen.box(0, y + (height - size) / 2, size, size, palette.rank(pen.context, rank));
  if (height >= 10) pen.text(`rank ${rank}`, 18, y + height / 2, { colour: palette.ink, size: 12, weight: 600 });
}

/** Why a rank has nothing to show, in words; null for a rank with events. */
export function rankTrouble(model, rank) {
  if (model.ofRank[rank].length) return null;
  const known = model.payload.ranks.some((entry) => entry.rank === rank);
  return known ? `Rank ${rank} recorded no events.` : `No recording of rank ${rank} arrived.`;
}

/** Whether a rank raised or died while it was recorded. */
export function endedEarly(model, rank) {
  return model.payload.ranks.some((entry) => entry.rank === rank && !entry.complete);
}

/** What the head of the player says about a rank that is not there to its end; null for all others. */
export function rankBadge(model, rank) {
  if (endedEarly(model, rank)) return `rank ${rank} ended early`;
  return model.count && rankTrouble(model, rank) ? `rank ${rank} missing` : null;
}

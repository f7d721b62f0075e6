// What panes with one row per rank have in common: how high a row is, its name, and what it says when it is empty.

/**
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Pen } from "./pen.js"
 * @import { Peak, Row } from "./types.d.ts"
 */

/**
 * Heights for `ranks` rows of `lines` lines each: as high as `best` for four, lower for more, higher for fewer; times
 * `grow`.
 * @param {number} ranks @param {number} lines @param {number} best @param {number} gap @param {number} [grow]
 */
export function rowHeights(ranks, lines, best, gap, grow = 1) {
  const crowded = Math.max(0.2, Math.min(1.75, 4 / Math.max(1, ranks)));
  // Rounded down after growing: a window is never filled by more than it has.
  const line = Math.floor(grow * Math.max(2, Math.round(best * crowded)));
  const space = Math.floor(grow * Math.max(2, Math.round(gap * crowded)));
  return { line, row: line * lines + (lines - 1) * 2, pitch: line * lines + (lines - 1) * 2 + space };
}

/** The height of a slide of 16:9 in its own pixels, whatever window it is scaled to. */
export const SLIDE_HEIGHT = 810;

/** How many times as high rows may become so that they fill the window. */
const MOST_GROWTH = 1.8;

/**
 * How many times as high rows can be for `root`, laid out with panes of `drawn` pixels, to fill the window, or its
 * slide; 1 where it is full.
 * @param {HTMLElement} root @param {number} drawn
 */
export function growth(root, drawn) {
  const room = root.closest(".zl-slides") ? SLIDE_HEIGHT : window.innerHeight / (window.zerolabScale ?? 1);
  const free = room - root.offsetHeight;
  return free < 24 ? 1 : Math.min(MOST_GROWTH, 1 + free / drawn);
}

/** Room above a row of memory for the mark of its peak. */
export const MARK = 7;

/** No more rows than this are drawn; beyond it neighbours share a row. */
export const MOST_ROWS = 64;
/** Among more ranks than this, neighbours of which nothing was recorded share a row, or they would fill the picture. */
const FEW = 8;
/** How many rows a summary has. */
const SUMMARY_ROWS = 32;

/**
 * The rows of the panes for a list of ranks. Up to 64 ranks have a row each; of more, a row stands for the ranks `from`
 * to `to` and draws one of them, `rank`: that of the highest peak, until another is in focus. `silent`: nothing was
 * recorded.
 * @param {number[]} ranks @param {(Peak | null)[]} peaks
 * @returns {Row[]}
 */
export function rowsOf(ranks, peaks) {
  const drawn = ranks.filter((rank) => peaks[rank]).length;
  const size = drawn <= MOST_ROWS ? 1 : Math.ceil(drawn / SUMMARY_ROWS);
  const rows = [];
  for (let k = 0; k < ranks.length; ) {
    const silent = !peaks[ranks[k]];
    let stop = k + 1;
    while (stop < ranks.length && !peaks[ranks[stop]] === silent) stop += 1;
    const group = ranks.slice(k, Math.min(stop, k + (silent && ranks.length > FEW ? ranks.length : size)));
    const highest = group.reduce((best, rank) =>
      (peaks[rank]?.bytes ?? -1) > (peaks[best]?.bytes ?? -1) ? rank : best,
    );
    rows.push({ rank: highest, highest, focus: false, from: group[0], to: group[group.length - 1], silent });
    k += group.length;
  }
  return rows;
}

/**
 * The same rows, the one that stands for `focus` drawing that rank, all others that of their highest peak.
 * @param {Row[]} rows @param {number} focus
 */
export function rowsAbout(rows, focus) {
  return rows.map((row) => {
    const inside = !row.silent && row.from <= focus && focus <= row.to;
    return !inside && !row.focus ? row : { ...row, rank: inside ? focus : row.highest, focus: inside };
  });
}

/**
 * Which ranks rows leave out, in words; "" where every recorded rank has its own.
 * @param {Row[]} rows
 */
export function leftOutInWords(rows) {
  const widest = Math.max(0, ...rows.map(({ from, to, silent }) => (silent ? 0 : to - from + 1)));
  return widest > 1 ? `a row: one of ${widest} ranks, that in focus or of the highest peak` : "";
}

/** Of more rows than this one is drawn whole, and the others are folded. */
const MOST_WHOLE = 8;

/**
 * The rows that are drawn whole: all of few; of many that of the rank in focus, or of the recorded one next to it.
 * Tensors of no model are never folded: their picture has other columns.
 * @param {Row[]} rows @param {Pick<Model, "units" | "focus">} model
 */
export function wholeRows(rows, { units, focus }) {
  if (rows.length <= MOST_WHOLE || !units.some(({ padded }) => padded)) return rows;
  const rank = recordedRanks(rows).reduce((best, one) => (Math.abs(one - focus) < Math.abs(best - focus) ? one : best));
  return [{ rank, highest: rank, focus: true, from: rank, to: rank, silent: false }];
}

/**
 * All ranks that some rows stand for.
 * @param {Row[]} rows
 */
export function allRanks(rows) {
  return rows.flatMap(({ from, to }) => Array.from({ length: to - from + 1 }, (_, k) => from + k));
}

/**
 * Those of which anything was recorded.
 * @param {Row[]} rows
 */
export function recordedRanks(rows) {
  return allRanks(rows.filter(({ silent }) => !silent));
}

/**
 * "rank 3", or "32–63" for a row that stands for several; that of the rank in focus goes by its name.
 * @param {Row} row
 */
function rowName({ rank, focus, from, to }) {
  return from === to || focus ? `rank ${rank}` : `${from}–${to}`;
}

/**
 * A row's name with the rank's colour and pattern, in the left gutter; where rows are low only every second or third
 * is named, counted by `place`.
 * @param {Pen} pen @param {Palette} palette @param {Row} row @param {number} place @param {number} y
 * @param {number} height @param {number} pitch
 */
export function nameRow(pen, palette, row, place, y, height, pitch) {
  const size = Math.min(12, height);
  if (row.silent) pen.frame(0, y + (height - size) / 2, size, size, palette.hollow);
  else pen.box(0, y + (height - size) / 2, size, size, palette.rank(pen.context, row.rank));
  if (place % Math.ceil(14 / pitch) === 0)
    pen.text(rowName(row), 18, y + height / 2, { colour: palette.ink, size: 12, weight: 600, room: 70 });
}

/**
 * Why a rank has nothing to show, in words; null for a rank with events.
 * @param {Model} model @param {number} rank
 */
function rankTrouble(model, rank) {
  if (model.ofRank[rank].length) return null;
  const known = model.payload.ranks.some((entry) => entry.rank === rank);
  return known ? `Rank ${rank} recorded no events.` : `No recording of rank ${rank} arrived.`;
}

/**
 * Says in a row that has nothing to show why that is; false for a row with events.
 * @param {Pen} pen @param {Palette} palette @param {Model} model @param {Row} row @param {number} x @param {number} y
 */
export function tellTrouble(pen, palette, model, row, x, y) {
  if (!row.silent) return false;
  const alike = row.to > row.from && model.payload.meta.simulated;
  const several = alike
    ? `Ranks ${row.from} to ${row.to} do the same, each on its own shards.`
    : `No recording of ranks ${row.from} to ${row.to} arrived.`;
  const text = row.to > row.from ? several : (rankTrouble(model, row.rank) ?? "");
  pen.text(text, x, y, { colour: alike ? palette.muted : palette.wait, size: 12 });
  return true;
}

/**
 * Whether a rank raised or died while it was recorded.
 * @param {Model} model @param {number} rank
 */
export function endedEarly(model, rank) {
  return model.payload.ranks.some((entry) => entry.rank === rank && !entry.complete);
}

/**
 * What the header of the player says about a rank whose recording ends early; null for all others.
 * @param {Model} model @param {number} rank
 */
export function rankBadge(model, rank) {
  if (endedEarly(model, rank)) return `rank ${rank} ended early`;
  return model.count && rankTrouble(model, rank) ? `rank ${rank} missing` : null;
}

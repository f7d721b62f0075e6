// What many ranks hold: the lowest, the median and the highest of them, now and over time.

import { bytes, exact } from "./format.js";
import { lastAtMost } from "./model.js";
import { STACK } from "./palette.js";
import { MARK, recordedRanks } from "./rows.js";
import { hasState } from "./strata.js";

/**
 * @import { Memory } from "./memory.js"
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Pen } from "./pen.js"
 * @import { Category, Device, Frame } from "./types.d.ts"
 */

/** Pixels from one moment of the picture over time to the next. */
const STRIDE = 3;
/** Among more ranks than this the moments are further apart. */
const MOST_CLOSE = 64;

/** How the three are called, and their place in the order of all. */
const NAMED = /** @type {const} */ ([
  ["lowest", 0],
  ["median", 0.5],
  ["highest", 1],
]);

/**
 * Bytes of some categories on each recorded rank that is shown after event `index`, from the lowest to the highest:
 * `[{ rank, bytes }]`. A rank is left out before its first event.
 * @param {Model} model @param {Category[]} stack @param {number} index @param {Device} device
 */
function inOrder(model, stack, index, device) {
  const columns = stack.map((category) => model.columns[`${device}.${category}`]);
  const found = [];
  for (const rank of recordedRanks(model.rows)) {
    const places = model.ofRank[rank];
    const last = lastAtMost(places, index);
    if (last >= 0) found.push({ rank, bytes: columns.reduce((sum, values) => sum + values[places[last]], 0) });
  }
  return found.sort((a, b) => a.bytes - b.bytes || a.rank - b.rank);
}

/**
 * The lowest, the middle and the highest: `[{ name, rank, bytes }]`; none where nothing is known yet.
 * @param {Model} model @param {Category[]} stack @param {number} index @param {Device} [device]
 */
function spreadAt(model, stack, index, device = "live") {
  const all = inOrder(model, stack, index, device);
  if (!all.length) return [];
  return NAMED.map(([name, place]) => {
    const at = all[Math.floor(place * (all.length - 1))];
    return { name, ...(all.find((one) => one.bytes === at.bytes) ?? at) };
  });
}

/** Height of one of the three with its words, and of the line above them. */
const EACH = 30;
const SPREAD_HEAD = 22;

/** How high the three are together. */
export const SPREAD = SPREAD_HEAD + NAMED.length * EACH;

/**
 * The three as bars below each other, from `y` on, at `scale` pixels a byte.
 * @param {Pen} pen @param {Palette} palette @param {Model} model
 * @param {{ y: number, scale: number, stack: Category[], index: number, formula: number | null }} given
 */
export function spreadBars(pen, palette, model, { y, scale, stack, index, formula }) {
  const style = { colour: palette.muted, size: 12, room: pen.width };
  pen.text(amongInWords(model), 0, y + 8, { ...style, weight: 600, colour: palette.ink });
  spreadAt(model, stack, index).forEach((one, k) => {
    const top = y + SPREAD_HEAD + k * EACH;
    pen.box(0, top, Math.max(1, one.bytes * scale), 8, palette.muted);
    pen.frame(0, top, pen.width, 8, palette.hollow);
    if (formula !== null) pen.line(formula * scale, top - 2, formula * scale, top + 10, palette.formula, 1.5, [4, 3]);
    const said = `${one.name} ${bytes(one.bytes)}`;
    const rank = `, rank ${one.rank}`;
    pen.text(pen.fits(said + rank, style) ? said + rank : said, 0, top + 16, style);
  });
}

/**
 * "all 64 ranks", or how many of them were recorded.
 * @param {Model} model
 */
function amongInWords(model) {
  const recorded = recordedRanks(model.rows).length;
  return recorded === model.worldSize ? `all ${exact(recorded)} ranks` : `${exact(recorded)} recorded ranks`;
}

/**
 * A row of the memory pane below that of the rank in focus, over time: the lowest and the highest as the edges of a
 * band, the one in the middle as a line in it.
 * @param {Memory} memory @param {Frame} frame
 */
export function spreadRow({ pen, rows, gutter, stack, device, top, formula, peaks }, { model, palette, axis }) {
  const base = 2 * rows.pitch - (rows.pitch - rows.line) + MARK;
  const scale = rows.line / top;
  const recorded = recordedRanks(model.rows);
  const stride = STRIDE * Math.max(1, Math.ceil(recorded.length / MOST_CLOSE));
  const points = [];
  for (let x = axis.left; x <= axis.right; x += stride) {
    const three = spreadAt(model, stack, model.at(axis.t(x)), device);
    if (three.length) points.push({ x, ys: three.map((one) => base - one.bytes * scale) });
  }
  area(pen, palette, points);
  pen.line(axis.left, base + 0.5, axis.right, base + 0.5, palette.hollow);
  const style = { colour: palette.ink, size: 12, room: gutter.left - 10 };
  const highest = recorded.reduce((best, rank) =>
    (peaks[rank]?.bytes ?? 0) > (peaks[best]?.bytes ?? 0) ? rank : best,
  );
  const peak = bytes(peaks[highest]?.bytes ?? 0);
  const whole = stack.length === STACK.length;
  const [among, below] = gutter.named
    ? [[amongInWords(model)], ["lowest to highest"]]
    : [amongInWords(model).split(/ (?=ranks$)/), whole ? [`≤ ${peak}`] : []]; // there is no gutter on the right
  for (const [k, text] of [...among, ...below].entries()) {
    const named = k < among.length ? { weight: 600 } : { colour: palette.muted };
    pen.text(text, 0, base - rows.line + 6 + 16 * k, { ...style, ...named });
  }
  if (formula !== null && hasState(stack)) {
    const y = Math.round(base - formula * scale) + 0.5;
    pen.line(axis.left, y, axis.right + 4, y, palette.formula, 1.25, [5, 3]);
  }
  if (!gutter.named || !whole) return;
  const room = { ...style, room: gutter.right - 8 };
  pen.text(`peak ${peak}`, axis.right + 8, base - rows.line + 6, room);
  pen.text(`rank ${highest}`, axis.right + 8, base - rows.line + 22, { ...room, colour: palette.muted });
}

/** @param {Pen} pen @param {Palette} palette @param {{ x: number, ys: number[] }[]} points */
function area(pen, palette, points) {
  const back = [...points].reverse();
  pen.shape([...points.flatMap(({ x, ys }) => [x, ys[2]]), ...back.flatMap(({ x, ys }) => [x, ys[0]])], palette.hollow);
  const { context } = pen;
  context.beginPath();
  for (const { x, ys } of points) context.lineTo(x, ys[1]);
  context.strokeStyle = palette.ink;
  context.lineWidth = 1.25;
  context.stroke();
}

// What two recordings hold differently at this moment: outlined in the one that lacks it, as a line over its memory,
// and in a sentence.

import { size, untold } from "./derived.js";
import { bytes, words } from "./format.js";
import { indexOf, shownOf } from "./moments.js";
import { STACK } from "./palette.js";
import { shows } from "./views.js";

/**
 * @import { Memory } from "./memory.js"
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Box, Frame, Spans } from "./types.d.ts"
 */

/** The outline of what the other holds: dotted, as nothing else is. */
const DOTTED = [1.5, 2.5];
/** Activations depend on where in its pass a rank happens to be, not on what it keeps. */
const TOLD_OF = STACK.filter((category) => category !== "activations" && category !== "other");
/** The share of a unit by which two paddings may differ. */
const CUT = 0.02;
/** Pixels between two points of the other's line over memory. */
const EVERY = 2;
/** Bytes below which a difference is not mentioned: a counter, or a scalar. */
const LEAST_TOLD = 1000;

/**
 * The parts of a unit that `theirs` has and `ours` lacks, as shares of it: its padding may differ.
 * @param {Spans} theirs @param {number} theirSize @param {Spans} ours @param {number} ourSize
 */
export function lacking(theirs, theirSize, ours, ourSize) {
  /** @type {[number, number][]} */
  let left = [];
  for (let k = 0; k < theirs.length; k += 2) left.push([theirs[k] / theirSize, theirs[k + 1] / theirSize]);
  for (let k = 0; k < ours.length; k += 2) {
    const [from, to] = [ours[k] / ourSize, ours[k + 1] / ourSize];
    left = left.flatMap(([a, b]) => [
      ...(a < Math.min(b, from) ? [/** @type {[number, number]} */ ([a, Math.min(b, from)])] : []),
      ...(Math.max(a, to) < b ? [/** @type {[number, number]} */ ([Math.max(a, to), b])] : []),
    ]);
  }
  return left;
}

/**
 * What a rank holds in bytes, in one recording and in the other, by category.
 * @param {Player} player @param {Player} other @param {number} rank
 */
function changes(player, other, rank) {
  const [own, their] = [player, other].map((one) => one.model.live(rank, shownOf(one, rank)));
  if (!own || !their || untold(player.model) || untold(other.model)) return null;
  return TOLD_OF.map((category) => /** @type {const} */ ([category, own[category] - their[category]]));
}

/** @param {readonly (readonly [string, number])[]} by */
const sum = (by) => by.reduce((all, [, one]) => all + one, 0);

/**
 * "−637 kB", or nothing for next to nothing.
 * @param {number} by
 */
function amount(by) {
  return Math.abs(by) < LEAST_TOLD ? "" : `${by < 0 ? "−" : "+"}${bytes(Math.abs(by))}`;
}

/**
 * What the second holds now compared with the first, on the first rank that both have.
 * @param {Player} first @param {Player} second @param {string[]} names
 */
export function difference(first, second, [one, other]) {
  const rank = first.model.whole.find((row) => second.model.whole.some((own) => own.rank === row.rank))?.rank;
  const by = rank === undefined ? null : changes(second, first, rank);
  if (!by) return "";
  const told = by.filter(([, more]) => Math.abs(more) >= LEAST_TOLD);
  if (!told.length) return `At this moment, on rank ${rank}, activations apart: both hold as much.`;
  const list = told.map(([category, more]) => `${words(category)} ${amount(more)}`);
  const all = sum(by);
  const total = amount(all) ? `${bytes(Math.abs(all))} ${all < 0 ? "less" : "more"} than` : "as much as";
  return `At this moment, on rank ${rank}, activations apart: ${other} holds ${total} ${one} (${list.join(", ")}).`;
}

/** Draws over the panes of one player what the other holds in addition. */
export class Versus {
  /**
   * `across` gives a time of this side as the other's.
   * @param {Player} player @param {Player} other @param {(time: number) => number} across
   */
  constructor(player, other, across) {
    this.player = player;
    this.other = other;
    this.across = across;
    /** @type {Map<Memory, { view: unknown, top: number, lines: Map<number, number[]> }>} */
    this.lines = new Map();
  }

  /** @param {Frame} frame */
  draw(frame) {
    const { panes, model, shown } = this.player;
    if (!this.other.model.count || !model.count) return;
    this.#cells(frame);
    if (shows(shown, "bars")) this.#bars(frame);
    if (shows(shown, "memory")) for (const pane of panes.memories) this.#memory(pane, frame);
  }

  /** @param {Frame} frame */
  #cells(frame) {
    const { model, palette } = frame;
    const { ownership: pane } = this.player.panes;
    const their = this.other.model;
    for (const { unit } of pane.places) {
      const same = their.units.find(({ name }) => name === unit.name);
      for (const [row, { rank }] of same ? model.whole.entries() : []) {
        if (!their.ofRank[rank]?.length) continue;
        for (const category of pane.lines) {
          const cell = pane.cell(row, category, unit.name);
          const held = their.held(rank, category, unit.name, shownOf(this.other, rank));
          const own = model.held(rank, category, unit.name, indexOf(frame, rank));
          // The same number of other elements is not less: systems cut a unit in different ways.
          if (!cell || !same || size(held) / same.padded - size(own) / unit.padded < CUT) continue;
          for (const part of lacking(held, same.padded, own, unit.padded)) outline(pane.over, cell, part, palette.ink);
        }
      }
    }
  }

  /** @param {Frame} frame */
  #bars({ model, palette }) {
    const { bars } = this.player.panes;
    const { pen, top } = bars;
    model.whole.forEach(({ rank }, place) => {
      const row = bars.row(place);
      const by = changes(this.player, this.other, rank);
      const more = by && amount(sum(by));
      if (!row || !by || !more || row.height < 40) return;
      const own = everything(this.player.model, rank, shownOf(this.player, rank)) * (pen.width / top);
      const their = own - sum(by) * (pen.width / top);
      const height = 26;
      const y = row.y + row.height / 2 - 8 - height / 2;
      if (their > own) pen.frame(own, y, their - own, height, palette.ink, 1.5, DOTTED);
      else pen.line(their, y - 3, their, y + height + 3, palette.ink, 1.5, DOTTED);
      pen.text(more, pen.width, row.y + row.height / 2 + 15, { colour: palette.ink, size: 12, align: "right" });
    });
  }

  /** @param {Memory} pane @param {Frame} frame */
  #memory(pane, { model, palette, axis, time }) {
    if (pane.device !== "live" || pane.rows.line < 10) return;
    const known = this.lines.get(pane);
    const stale = !known || known.view !== axis || known.top !== pane.rows.line;
    const made = stale ? { view: axis, top: pane.rows.line, lines: new Map() } : known;
    this.lines.set(pane, made);
    const { context } = pane.over;
    model.whole.forEach(({ rank }, place) => {
      if (!this.other.model.live(rank, this.other.index)) return;
      const base = (place + 1) * pane.rows.pitch - (pane.rows.pitch - pane.rows.line - 7);
      const points = made.lines.get(rank) ?? this.#line(pane, axis, rank);
      made.lines.set(rank, points);
      context.beginPath();
      points.forEach((/** @type {number} */ y, /** @type {number} */ k) => {
        context.lineTo(axis.left + k * EVERY, base - y);
      });
      context.strokeStyle = palette.ink;
      context.lineWidth = 1.5;
      context.setLineDash(DOTTED);
      context.stroke();
      context.setLineDash([]);
      const by = changes(this.player, this.other, rank);
      const more = by && amount(sum(by));
      if (!more || pane.rows.line < 24) return;
      const wide = pane.over.widthOf(more, { size: 12 }) + 8;
      const x = Math.max(axis.left, Math.min(axis.x(time) + 5, axis.right - wide));
      pane.over.box(x, base - pane.rows.line - 2, wide, 15, palette.paper);
      pane.over.text(more, x + 4, base - pane.rows.line + 6, { colour: palette.ink, size: 12, weight: 600 });
    });
  }

  /**
   * Heights of the other's line at every so many pixels.
   * @param {Memory} pane @param {Frame["axis"]} axis @param {number} rank
   */
  #line(pane, axis, rank) {
    const { model } = this.other;
    /** @type {number[]} */
    const points = [];
    for (let x = axis.left; x <= axis.right; x += EVERY) {
      const live = model.live(rank, model.at(this.across(axis.t(x))));
      const held = live ? pane.stack.reduce((all, category) => all + live[category], 0) : 0;
      points.push((held / pane.top) * pane.rows.line);
    }
    return points;
  }
}

/** @param {Model} model @param {number} rank @param {number} index */
function everything(model, rank, index) {
  return Object.values(model.live(rank, index) ?? {}).reduce((all, one) => all + one, 0);
}

/**
 * @param {import("./pen.js").Pen} pen @param {Box} cell @param {[number, number]} part @param {string} colour
 */
function outline(pen, { x, y, width, height }, [from, to], colour) {
  const [left, right] = [x + from * width, x + to * width];
  if (right - left < 3) return;
  pen.frame(left + 1.5, y + 1.5, right - left - 3, height - 3, colour, 1.25, DOTTED);
}

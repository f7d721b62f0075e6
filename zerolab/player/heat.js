// Many ranks as a heat map, one or several ranks to a line: where they hold something of a unit, and how much.

import { codeOf, partOf, size } from "./derived.js";
import { exact, spoken, words } from "./format.js";
import { allRanks, recordedRanks, tellTrouble } from "./rows.js";

/**
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Pen } from "./pen.js"
 * @import { Box, Point, Row, Spans, State, Told, Unit, UnitPlace } from "./types.d.ts"
 */

/** Pixels between the maps of two categories. */
const GAP = 8;
/** Lines at least so high are parted by a pixel of paper. */
const PARTED = 5;
/** Pixels from one rank's number to the next at least. */
const TICKS_APART = 26;
/** Room that a map's name needs, and the height of its line. */
const ROOM = 60;
const HIGH = 16;
/** With more changes than this at once all is painted again. */
const MOST_CHANGES = 4000;

/** One map for each category, of the same lines, below each other; the columns are those of the row in focus. */
export class Heat {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    this.hold = codeOf(model.payload.words, "hold");
    /** @type {Map<Unit, Map<number, Spans>>} */
    this.owned = new Map();
    /** @type {number[]} */
    this.ranks = [];
    /** @type {Map<number, number>} */
    this.like = new Map(); // of each rank that a simulation did not write out the one that does the same
    /** @type {Set<number>} */
    this.unknown = new Set(); // ranks whose recordings did not arrive
    /** @type {UnitPlace[]} */
    this.places = [];
    /** @type {State[]} */
    this.lines = [];
    this.per = 1; // ranks in a line
    this.line = 1; // its pixels
    this.top = 0;
    this.left = 0;
    this.index = -1;
  }

  /** How high a map is. */
  get height() {
    return Math.round(Math.ceil(this.ranks.length / this.per) * this.line);
  }

  get bottom() {
    return this.top + this.lines.length * (this.height + GAP) - GAP;
  }

  /**
   * Lays the maps out, each at most `height` pixels high.
   * @param {UnitPlace[]} places @param {State[]} lines @param {number} top @param {number} left @param {number} height
   */
  layout(places, lines, top, left, height) {
    const { model } = this;
    const { rows } = model;
    this.ranks = allRanks(rows);
    const recorded = recordedRanks(rows);
    this.like = new Map();
    this.unknown = new Set();
    for (const { from, to } of rows.filter((row) => row.silent)) {
      const last = recorded.findLast((rank) => rank < from) ?? recorded[0];
      for (let rank = from; rank <= to; rank++)
        if (model.payload.meta.simulated) this.like.set(rank, last);
        else this.unknown.add(rank);
    }
    this.per = Math.max(1, Math.ceil(this.ranks.length / height));
    this.line = height / Math.ceil(this.ranks.length / this.per);
    this.places = places.map(({ unit, x, width }) => {
      const from = Math.round(x);
      return { unit, x: from, width: Math.max(1, Math.round(x + width) - from) };
    });
    Object.assign(this, { lines, top, left });
  }

  /**
   * The line of a rank; -1 if it is not shown.
   * @param {number} rank
   */
  lineOf(rank) {
    const place = rank - this.ranks[0];
    return this.ranks[place] === rank ? Math.floor(place / this.per) : -1;
  }

  /**
   * The place of a unit in a rank's line of a category; null if it is not drawn.
   * @param {number} rank @param {string | null} category @param {string | null} unit
   * @returns {Box | null}
   */
  box(rank, category, unit) {
    const map = /** @type {(string | null)[]} */ (this.lines).indexOf(category);
    const place = this.places.find((one) => one.unit.name === unit);
    const line = this.lineOf(rank);
    if (map < 0 || !place || line < 0) return null;
    return { x: place.x, width: place.width, y: this.#y(map, line), height: this.#inked(line) };
  }

  /**
   * As `box`, with those of all ranks that do the same as this one: `ranks` of them together.
   * @param {number} rank @param {string | null} category @param {string | null} unit
   */
  boxes(rank, category, unit) {
    const alike = [rank, ...[...this.like].flatMap(([other, like]) => (like === rank ? [other] : []))];
    const lines = new Map(alike.map((one) => [this.lineOf(one), this.box(one, category, unit)]));
    return { ranks: alike.length, boxes: [...lines.values()].filter((box) => box !== null) };
  }

  /**
   * The first rank of the line at a point, and what lies there; null outside the maps.
   * @param {Point} point
   */
  hit({ x, y }) {
    const map = Math.floor((y - this.top) / (this.height + GAP));
    const line = Math.floor((y + 0.5 - this.#y(map, 0)) / this.line);
    const rank = this.ranks[line * this.per];
    if (map < 0 || map >= this.lines.length || line < 0 || rank === undefined) return null;
    if (y >= this.#y(map, 0) + this.height) return null;
    const place = this.places.find((one) => x >= one.x - 1 && x <= one.x + one.width + 1);
    return { rank, category: this.lines[map], unit: place?.unit.name ?? null };
  }

  /**
   * What lies at a point of the maps, in words, for the tooltip; null beside them.
   * @param {Point} point
   * @returns {Told | null}
   */
  tell(point) {
    const hit = this.hit(point);
    const unit = hit && this.places.find((one) => one.unit.name === hit.unit)?.unit;
    if (!hit || !unit) return null;
    const line = this.lineOf(hit.rank);
    const ranks = this.#known(line);
    if (!ranks.length) return null;
    const held = ranks.reduce((sum, rank) => sum + size(this.held(rank, hit.category, unit)), 0) / ranks.length;
    const [first, last] = [ranks[0], ranks[ranks.length - 1]];
    const head = last === first ? `rank ${exact(last)}` : `ranks ${exact(first)} to ${exact(last)}`;
    const each = last === first ? "" : " each, in the mean";
    const elements = `${exact(Math.round(held))} of ${exact(unit.padded)} elements`;
    const text = `${words(hit.category)} of ${spoken(unit.name)}: ${elements}`;
    return { head, text: text + each, foot: `Click to draw rank ${exact(this.like.get(first) ?? first)} whole.` };
  }

  /**
   * The ranks of a line, but those of which nothing is known.
   * @param {number} line
   */
  #known(line) {
    return this.ranks.slice(line * this.per, (line + 1) * this.per).filter((rank) => !this.unknown.has(rank));
  }

  /**
   * Paints all, as it is after event `index`.
   * @param {Pen} pen @param {Palette} palette @param {number} index
   */
  paint(pen, palette, index) {
    this.index = index;
    this.lines.forEach((category, map) => {
      this.#name(pen, palette, category, map);
      for (let line = 0; line * this.per < this.ranks.length; line++)
        for (const place of this.places) this.#cell(pen, palette, map, line, place);
      for (const row of this.model.rows) if (row.silent) this.#missing(pen, palette, row, map);
    });
  }

  /**
   * Repaints what has changed since the last time.
   * @param {Pen} pen @param {Palette} palette @param {number} index
   */
  repaint(pen, palette, index) {
    const [from, to] = [Math.min(index, this.index), Math.max(index, this.index)];
    const { op, category, unit, rank } = this.model.columns;
    const { categories, units } = this.model.payload;
    /** @type {Set<string>} */
    const changed = new Set();
    for (let i = from + 1; i <= to && changed.size <= MOST_CHANGES; i++) {
      if (!this.hold || op[i] !== this.hold || !unit[i] || !category[i]) continue;
      const map = this.lines.findIndex((one) => one === categories[category[i] - 1]);
      const column = this.places.findIndex((one) => one.unit === units[unit[i] - 1]);
      if (map < 0 || column < 0) continue;
      for (const line of this.#linesOf(rank[i])) changed.add(`${map} ${line} ${column}`);
    }
    if (changed.size > MOST_CHANGES) return this.paint(pen, palette, index);
    this.index = index;
    for (const key of changed) {
      const [map, line, column] = key.split(" ").map(Number);
      this.#cell(pen, palette, map, line, this.places[column]);
    }
    return undefined;
  }

  /**
   * The lines that show what a rank holds: its own, and those of the ranks that do the same.
   * @param {number} rank
   */
  #linesOf(rank) {
    const lines = new Set([this.lineOf(rank)]);
    for (const [other, like] of this.like) if (like === rank) lines.add(this.lineOf(other));
    lines.delete(-1);
    return lines;
  }

  /**
   * Marks ranks for which nothing was recorded: nobody knows what they hold.
   * @param {Pen} pen @param {Palette} palette @param {Row} row @param {number} map
   */
  #missing(pen, palette, row, map) {
    if (!this.unknown.has(row.from)) return;
    const [from, to] = [this.lineOf(row.from), this.lineOf(row.to) + 1].map((line) => this.#y(map, line));
    if (to - from >= HIGH) tellTrouble(pen, palette, this.model, row, this.left, (from + to) / 2);
  }

  /** @param {number} map @param {number} line */
  #y(map, line) {
    return this.top + map * (this.height + GAP) + Math.round(line * this.line);
  }

  /**
   * How much of a line is painted.
   * @param {number} line
   */
  #inked(line) {
    return this.#y(0, line + 1) - this.#y(0, line) - (this.line >= PARTED ? 1 : 0);
  }

  /**
   * One unit of one category in one line: where any of its ranks holds something, in the colour of how much they do.
   * @param {Pen} pen @param {Palette} palette @param {number} map @param {number} line @param {UnitPlace} place
   */
  #cell(pen, palette, map, line, { unit, x, width }) {
    const ranks = this.#known(line);
    if (!ranks.length) return;
    const [y, high] = [this.#y(map, line), this.#inked(line)];
    pen.box(x, y, width, high, palette.ghost);
    const held = ranks.map((rank) => this.held(rank, this.lines[map], unit));
    const share = held.reduce((sum, spans) => sum + size(spans), 0) / (ranks.length * unit.padded);
    if (!share) return;
    const fill = palette.share(share, this.model.worldSize);
    for (const [from, to] of merged(held)) {
      const left = x + Math.round((from / unit.padded) * width * pen.scale) / pen.scale;
      const right = x + Math.round((to / unit.padded) * width * pen.scale) / pen.scale;
      const wide = Math.max(1, right - left); // a shard among very many is still seen
      pen.box(Math.min(left, x + width - wide), y, wide, high, fill);
    }
  }

  /**
   * What a rank holds of a category of a unit. One that a simulation did not write out does as the last that it did:
   * it has all, nothing, or its own part.
   * @param {number} rank @param {State} category @param {Unit} unit
   * @returns {Spans}
   */
  held(rank, category, unit) {
    const { model, index } = this;
    const like = this.like.get(rank);
    const spans = model.held(like ?? rank, category, unit.name, index);
    if (like === undefined || !spans.length || size(spans) >= unit.numel) return spans;
    return this.#own(unit, rank);
  }

  /** @param {Unit} unit @param {number} rank */
  #own(unit, rank) {
    const parts = this.owned.get(unit) ?? new Map();
    this.owned.set(unit, parts);
    const part = parts.get(rank) ?? partOf(unit, rank, null, this.model.worldSize);
    parts.set(rank, part);
    return part;
  }

  /**
   * A map's name, and the numbers of ranks beside it.
   * @param {Pen} pen @param {Palette} palette @param {State} category @param {number} map
   */
  #name(pen, palette, category, map) {
    const { left, ranks, per, line, height } = this;
    const top = this.#y(map, 0);
    const style = { colour: palette.muted, size: 12 };
    const every = per * Math.ceil(TICKS_APART / line);
    const round = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((step) => step >= every) ?? 1024;
    let last = -Infinity;
    let wide = 0;
    const end = ranks[ranks.length - 1];
    for (const rank of ranks) {
      const y = top + (this.lineOf(rank) + 0.5) * line;
      const near = rank !== end && top + (this.lineOf(end) + 0.5) * line - y < 14;
      if ((rank % round && rank !== ranks[0] && rank !== end) || near || y - last < 14) continue;
      last = y;
      const inside = Math.min(Math.max(y, top + 6), top + height - 6);
      wide = Math.max(wide, pen.text(exact(rank), left - 12, inside, { ...style, align: "right" }));
    }
    const beside = { ...style, room: left - wide - 20 };
    if (beside.room < ROOM) return;
    pen.text(words(category), 0, top + 7, { ...beside, colour: palette.ink });
    if (height < 3 * HIGH) return;
    for (const { from, to } of this.model.rows.filter((row) => row.silent && this.like.has(row.from)))
      pen.text(`${exact(from)}–${exact(to)} like ${this.like.get(from)}`, 0, top + 7 + HIGH, beside);
  }
}

/**
 * All spans of several ranks, those that touch each other as one.
 * @param {Spans[]} held
 */
function merged(held) {
  /** @type {[from: number, to: number][]} */
  const all = [];
  for (const spans of held) for (let k = 0; k < spans.length; k += 2) all.push([spans[k], spans[k + 1]]);
  all.sort((a, b) => a[0] - b[0]);
  /** @type {[from: number, to: number][]} */
  const found = [];
  for (const [from, to] of all) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

// The pane of a recording without a model: a row per rank, a column per part, in each block whose numbers are there.

import { Folded } from "./folded.js";
import { count, words } from "./format.js";
import { numbersAt, written } from "./numbers.js";
import { Ownership } from "./ownership.js";
import { beside, contents, exchangesOf } from "./parts.js";
import { nameRow, rowHeights, tellTrouble } from "./rows.js";

/**
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Pen } from "./pen.js"
 * @import { Box, Exchange, Filter, Frame } from "./types.d.ts"
 */

/** Height of the two lines above the blocks. */
const TILE_HEAD = 40;
/** A block is at most so many times as wide as high. */
const WIDEST = 3;

/**
 * The pane for who holds what: of tensors that belong to no model their parts, of a model its units.
 * @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} overlay @param {Model} model
 */
export function paneOf(canvas, overlay, model) {
  const exchanges = exchangesOf(model);
  return exchanges.length ? new Tiles(canvas, overlay, exchanges) : new Folded(canvas, overlay, model);
}

/** The blocks lie in `pen`, and are painted where one has changed; what is on its way in `over`. */
export class Tiles extends Ownership {
  /** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} overlay @param {Exchange[]} exchanges */
  constructor(canvas, overlay, exchanges) {
    super(canvas, overlay);
    this.exchanges = exchanges;
    this.batches = beside(exchanges);
    this.shown = "";
    this.block = { width: 1, height: 1, pitch: 1 };
  }

  /**
   * @override
   * @param {Model} model @param {number} width @param {Filter} _ @param {number} grow
   */
  layout(model, width, _, grow) {
    super.layout(model, width, { ranks: null, category: null, unit: null, off: null }, grow);
    this.rows = rowHeights(model.rows.length, 1, 40, 10, grow);
    const room = (width - this.gutter.left - 4) / model.worldSize;
    const gap = room > 12 ? 4 : 1;
    const across = Math.max(1, Math.min(room - gap, WIDEST * this.rows.line));
    this.block = { width: across, height: this.rows.line, pitch: across + gap };
    this.shown = "";
    const height = TILE_HEAD + this.rows.pitch * model.rows.length;
    this.over.resize(width, height);
    return this.pen.resize(width, height);
  }

  /**
   * @override
   * @param {Frame} frame
   */
  draw({ model, palette, time, hover }) {
    const now = hover ? hover.end : time;
    const batch = this.at(now);
    const all = Array.from({ length: batch[0].parts }, (_, part) => part);
    const tiles = model.rows.map(({ rank }) => {
      const exchange = ofRank(batch, rank);
      return exchange ? all.map((part) => contents(exchange, rank, part, now)) : null;
    });
    const shown = `${palette.theme} ${palette.contrast} ${this.batches.indexOf(batch)} ${JSON.stringify(tiles)}`;
    if (shown !== this.shown) this.#paintAll(model, palette, batch, tiles);
    this.shown = shown;
    this.over.clear();
    const drawn = batch.flatMap((exchange) => {
      const flying = exchange.shipments.filter(({ start, end }) => start <= now && now < end);
      const seen = flying.filter(({ from, to }) => model.rowOf(from) >= 0 && model.rowOf(to) >= 0);
      for (const one of seen) this.#fly(model, palette, exchange, one, now);
      return seen;
    });
    const category = /** @type {const} */ ("parameters"); // what has no model is of no category: any will do
    this.moving = drawn.map(({ from, to, part }) => ({ category, unit: "", from, to, piece: part }));
  }

  /**
   * Whose numbers a rank has at a place at a time; none where it takes no part.
   * @param {number} rank @param {number} part @param {number} time
   */
  has(rank, part, time) {
    const exchange = ofRank(this.at(time), rank);
    return exchange ? contents(exchange, rank, part, time) : [];
  }

  /**
   * The exchange that began last before a time, with those of other groups beside it; the first before any has.
   * @param {number} time
   */
  at(time) {
    const last = this.exchanges.findLast(({ start }) => start <= time) ?? this.exchanges[0];
    return this.batches.find((batch) => batch.includes(last)) ?? [last];
  }

  /**
   * @override What lies at a point: a row where it is in the gutter, for what is in a block has no event of its own.
   * @param {Model} model @param {number} x @param {number} y
   */
  hit(model, x, y) {
    const row = Math.floor((y - TILE_HEAD + 3) / this.rows.pitch);
    return x < this.gutter.left && row >= 0 && row < model.rows.length ? { row } : null;
  }

  /**
   * @override
   * @param {number} place
   */
  row(place) {
    return { y: TILE_HEAD + place * this.rows.pitch, height: this.rows.row };
  }

  /** @param {Model} model @param {Palette} palette @param {Exchange[]} batch @param {(number[][] | null)[]} tiles */
  #paintAll(model, palette, batch, tiles) {
    const { pen, block, rows } = this;
    const [{ parts }] = batch;
    const title = titleOf(batch, model.worldSize);
    pen.clear();
    pen.text(title, this.gutter.left, 9, { colour: palette.ink, size: 12.5, weight: 600 });
    const every = Math.ceil(44 / block.pitch);
    for (let part = 0; part < parts && parts > 1; part += every) {
      const { x } = this.#place(0, part);
      const style = /** @type {const} */ ({ colour: palette.muted, size: 12, align: "center" });
      pen.text(`part ${part}`, x + block.width / 2, 28, style);
    }
    model.rows.forEach((row, place) => {
      const y = TILE_HEAD + place * rows.pitch;
      nameRow(pen, palette, row, place, y, rows.line, rows.pitch);
      if (tellTrouble(pen, palette, model, row, this.gutter.left, y + rows.line / 2)) return;
      const exchange = ofRank(batch, row.rank);
      const style = { colour: palette.muted, size: 12 };
      if (!exchange) pen.text("takes no part", this.gutter.left, y + rows.line / 2, style);
      else
        for (const [part, has] of (tiles[place] ?? []).entries())
          this.#tile(pen, palette, this.#place(place, part), exchange, row.rank, part, has);
    });
    const said = model.rows.map(({ rank }, place) => {
      const exchange = ofRank(batch, rank);
      if (!exchange) return `rank ${rank}: takes no part`;
      const lying = (tiles[place] ?? []).map((has, part) => {
        const numbers = numbersAt(exchange, rank, part, has);
        const from = has.length ? `of ${has.join(" and ")}` : "nothing";
        return numbers ? `${written(numbers)} ${from}` : from;
      });
      return `rank ${rank}: ${lying.join(", ")}`;
    });
    pen.canvas.setAttribute("aria-label", `${title}. ${said.join("; ")}`);
  }

  /**
   * One part on its way from row to row.
   * @param {Model} model @param {Palette} palette @param {Exchange} exchange
   * @param {Exchange["shipments"][number]} one @param {number} now
   */
  #fly(model, palette, exchange, { from, to, source, part, start, end }, now) {
    const [a, b] = [this.#place(model.rowOf(from), source), this.#place(model.rowOf(to), part)];
    const share = (now - start) / (end - start);
    const eased = share * share * (3 - 2 * share);
    const [width, height] = [a.width * 0.7, a.height * 0.6];
    const x = a.x + (b.x - a.x) * eased + (a.width - width) / 2;
    const y = a.y + (b.y - a.y) * eased + (a.height - height) / 2;
    const box = { x, y, width, height };
    this.over.box(x, y, width, height, palette.paper);
    this.#tile(this.over, palette, box, exchange, from, source, contents(exchange, from, source, start));
    this.over.frame(x - 1, y - 1, width + 2, height + 2, palette.ink, 1.5);
  }

  /**
   * What a rank has in a part, at `box`.
   * @param {Pen} pen @param {Palette} palette @param {Box} box @param {Exchange} exchange @param {number} rank
   * @param {number} part @param {number[]} has
   */
  #tile(pen, palette, box, exchange, rank, part, has) {
    const numbers = numbersAt(exchange, rank, part, has);
    const flies = pen === this.over; // one rank's alone as a whole block: there is no room for stripes
    const adds = exchange.adds && !(flies && has.length === 1);
    drawTile(pen, palette, box, has, numbers && written(numbers), adds, exchange.ranks);
  }

  /** @param {number} row @param {number} part */
  #place(row, part) {
    const { width, height, pitch } = this.block;
    return { x: this.gutter.left + part * pitch, y: TILE_HEAD + row * this.rows.pitch, width, height };
  }
}

/**
 * That of some exchanges in which a rank takes part.
 * @param {Exchange[]} batch @param {number} rank
 */
function ofRank(batch, rank) {
  return batch.find(({ ranks }) => ranks.includes(rank)) ?? null;
}

/**
 * "all reduce: 16 elements in 4 parts", and among whom where it is not all ranks.
 * @param {Exchange[]} batch @param {number} worldSize
 */
function titleOf(batch, worldSize) {
  const [{ op, ranks, numel, parts, recorded }] = batch;
  const whose = batch.length > 1 ? `, in each of ${batch.length} groups` : `, among ranks ${ranks.join(", ")}`;
  const among = ranks.length < worldSize ? whose : "";
  const name = op === "messages" ? "sends and receives" : words(op);
  const how = recorded ? "" : ", drawn as what it means";
  return `${name}: ${count(numel, "element")}${parts > 1 ? ` in ${parts} parts` : ""}${among}${how}`;
}

/**
 * A block: hollow without numbers; one rank's in its colour; of sums a stripe for each rank that is in it.
 * @param {Pen} pen @param {Palette} palette @param {Box} box @param {number[]} has @param {string | null} numbers
 * @param {boolean} adds @param {number[]} ranks those that take part
 */
function drawTile(pen, palette, { x, y, width, height }, has, numbers, adds, ranks) {
  const told = width >= 30 && height >= (adds ? 30 : 16);
  const head = adds && told ? 18 : 0; // a number amid stripes would hide the ranks that are there
  const stripe = width / ranks.length;
  if (!adds && has.length) pen.box(x, y, width, height, palette.rank(pen.context, has[0]));
  else
    for (const rank of has)
      pen.box(x + ranks.indexOf(rank) * stripe, y + head, stripe, height - head, palette.rank(pen.context, rank));
  pen.frame(x, y, width, height, has.length === ranks.length && adds ? palette.ink : palette.hollow, 1);
  if (!has.length || !told) return;
  const style = { colour: palette.ink, size: 12, weight: 600 };
  const whose = width < 76 ? `of ${has[0]}` : `of rank ${has[0]}`;
  const share = adds ? `${has.length}/${ranks.length}` : whose;
  const text = numbers && pen.widthOf(numbers, style) <= width - 6 ? numbers : share;
  const middle = y + (head || height) / 2;
  const wide = pen.widthOf(text, style) + 8;
  if (!head) pen.box(x + (width - wide) / 2, middle - 8, wide, 16, palette.paper);
  pen.text(text, x + width / 2, middle, { ...style, align: "center" });
}

// Who holds what among many ranks: the one in focus drawn whole, and below it all of them as a heat map.

import { MOVED } from "./events.js";
import { exact } from "./format.js";
import { Heat } from "./heat.js";
import { Ownership } from "./ownership.js";

/**
 * @import { Model } from "./model.js"
 * @import { Palette } from "./palette.js"
 * @import { Box, Category, Filter, Frame, Hit, Point, RecordedEvent, State } from "./types.d.ts"
 */

/**
 * A rank that takes part in a collective, and those that do the same: where they are in a map, and how many.
 * @typedef {{ ranks: number, boxes: Box[] }} Alike
 */

/** How high the maps of all categories are together, in pixels. */
const MAPS = 200;
/** How rows in focus are drawn beside the usual height, at least and at most. */
const ROW = { least: 0.5, most: 0.85, share: 0.5 };
/** Room beside the maps for who takes part in a collective: with its numbers, and without. */
const SIDE = { named: 64, bare: 16 };
/** How wide its band is. */
const BAND = 8;

/** The pane; of few ranks it is the same as of any. */
export class Folded extends Ownership {
  /** @param {HTMLCanvasElement} canvas @param {HTMLCanvasElement} overlay @param {Model} model */
  constructor(canvas, overlay, model) {
    super(canvas, overlay);
    this.model = model;
    this.heat = new Heat(model);
  }

  /**
   * @override
   * @param {Model} model @param {number} width @param {Filter} filter @param {number} grow
   */
  layout(model, width, filter, grow) {
    if (!model.folded) return super.layout(model, width, filter, grow);
    const room = width < 460 ? SIDE.bare : SIDE.named;
    super.layout(model, width, filter, Math.max(ROW.least, Math.min(ROW.most, ROW.share * grow)), room);
    const top = this.row(0).y + this.rows.pitch;
    const height = Math.floor((MAPS * grow) / this.lines.length);
    this.heat.layout(this.places, this.lines, top, this.gutter.left, height);
    const bottom = this.heat.bottom + 6;
    this.over.resize(width, bottom);
    return this.pen.resize(width, bottom);
  }

  /**
   * @override
   * @param {Frame} frame
   */
  draw(frame) {
    const { model, palette, index } = frame;
    const fresh = this.painted === null || this.palette !== palette;
    super.draw(frame);
    if (!model.folded) return;
    if (fresh) this.heat.paint(this.pen, palette, index);
    else this.heat.repaint(this.pen, palette, index);
    this.#mark(palette);
    this.#bundle(frame);
  }

  /**
   * @override
   * @param {Model} model @param {number} x @param {number} y
   * @returns {Hit | null}
   */
  hit(model, x, y) {
    const found = model.folded && x >= this.gutter.left && this.heat.hit({ x, y });
    if (found && found.unit !== null) return { ...found, unit: found.unit };
    return super.hit(model, x, y);
  }

  /**
   * The rank, or the first of those, whose line of the maps lies at a point; null beside them.
   * @param {Point} point
   */
  rankAt(point) {
    return this.model.folded ? (this.heat.hit(point)?.rank ?? null) : null;
  }

  /**
   * What lies at a point of the maps, in words; null beside them.
   * @param {Point} point
   */
  tellAt(point) {
    return this.model.folded ? this.heat.tell(point) : null;
  }

  /**
   * @override
   * @param {Model} model @param {number} rank @param {Category | null} category @param {string | null} unit
   */
  boxOf(model, rank, category, unit) {
    return model.folded && model.wholeRowOf(rank) < 0
      ? this.heat.box(rank, category, unit)
      : super.boxOf(model, rank, category, unit);
  }

  /**
   * Frames the line of the rank in focus in each map.
   * @param {Palette} palette
   */
  #mark({ ink, paper }) {
    const { over, heat, model } = this;
    const [first, last] = [this.places[0], this.places[this.places.length - 1]];
    for (const category of first ? this.lines : []) {
      const box = heat.box(model.whole[0].rank, category, first.unit.name);
      if (!box) continue;
      const [x, width] = [box.x - 3, last.x + last.width - box.x + 6];
      over.frame(x + 1, box.y - 1, width - 2, box.height + 2, paper, 1);
      over.frame(x, box.y - 2, width, box.height + 4, ink, 1);
      const y = box.y + box.height / 2;
      over.shape([x - 7, y - 4, x - 1, y, x - 7, y + 4], ink);
    }
  }

  /**
   * The collective under way as one shape: its units framed over all ranks that take part, and beside them a band,
   * solid where a rank has finished.
   * @param {Frame} frame
   */
  #bundle({ model, palette, beat, event, time }) {
    const { rank, t_start: start, t_end: end } = model.columns;
    const places = beat ? (beat.kind === "collective" ? beat.places : []) : together(model, event);
    const category = MOVED[beat ? beat.op : places.length ? model.event(places[0]).op : ""];
    const units = beat ? beat.units.map(({ name }) => name) : places.map((i) => model.event(i).unit ?? "").slice(0, 1);
    const begun = places.filter((i) => start[i] <= time);
    const over = begun.filter((i) => end[i] <= time);
    if (!category || !begun.length || over.length === places.length) return;
    const found = new Map(places.map((i) => [i, this.heat.boxes(rank[i], category, units[0])]));
    const boxes = [...found.values()].flatMap((one) => one.boxes);
    if (!boxes.length) return;
    const [top, bottom] = [Math.min(...boxes.map(({ y }) => y)), Math.max(...boxes.map(({ y, height }) => y + height))];
    this.#columns(palette, category, units, top, bottom);
    const [all, doing, done] = [places, begun, over].map((list) => list.flatMap((i) => found.get(i) ?? []));
    this.#band(palette, doing, done, top, bottom);
    if (this.gutter.named) this.#count(palette, ranksIn(done), ranksIn(all), (top + bottom) / 2);
  }

  /**
   * @param {Palette} palette @param {State} category @param {string[]} units @param {number} top
   * @param {number} bottom
   */
  #columns({ communicationColour: colour }, category, units, top, bottom) {
    for (const unit of units) {
      const box = this.heat.box(this.heat.ranks[0], category, unit);
      if (box) this.over.frame(box.x - 2, top - 2, box.width + 4, bottom - top + 4, colour, 2, [4, 2]);
    }
  }

  /** Where the band beside the maps begins. */
  get #beside() {
    const last = this.places[this.places.length - 1];
    return Math.round(last.x + last.width) + 7;
  }

  /**
   * @param {Palette} palette @param {Alike[]} doing @param {Alike[]} done @param {number} top @param {number} bottom
   */
  #band({ communicationColour: colour }, doing, done, top, bottom) {
    const { over } = this;
    const x = this.#beside;
    /** @type {(list: Alike[], alpha: number) => void} */
    const fill = (list, alpha) => {
      over.context.globalAlpha = alpha;
      for (const { y, height } of list.flatMap(({ boxes }) => boxes)) over.box(x, y, BAND, height, colour);
      over.context.globalAlpha = 1;
    };
    fill(doing, 0.3 / Math.sqrt(this.heat.per));
    fill(done, 1);
    over.frame(x - 1, top - 1, BAND + 2, bottom - top + 2, colour, 1);
  }

  /** @param {Palette} palette @param {number} done @param {number} all @param {number} y */
  #count(palette, done, all, y) {
    const x = this.#beside + BAND + 5;
    this.over.text(exact(done), x, y - 8, { colour: palette.ink, size: 12, weight: 700 });
    this.over.text(`of ${exact(all)}`, x, y + 8, { colour: palette.muted, size: 12 });
  }
}

/** @param {Alike[]} list */
function ranksIn(list) {
  return list.reduce((sum, { ranks }) => sum + ranks, 0);
}

/**
 * The collective that an event is, or is a part of, on all ranks; none for another event.
 * @param {Model} model @param {RecordedEvent | null} event
 */
function together(model, event) {
  return event && (event.kind === "collective" || event.kind === "wait") ? model.sameCollective(event.index) : [];
}

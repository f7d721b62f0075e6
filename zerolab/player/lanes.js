// The lanes of the timeline: what is drawn in each, from when to when, and whose time that is.

/**
 * @import { Model } from "./model.js"
 * @import { Kind, Stretch } from "./types.d.ts"
 */

/** @type {Partial<Record<Kind, number>>} */
const ON_HOST = { module: 0, optimizer: 0, wait: 0, save: 0, collective: 1 };

/** The place of a stretch that has its lane to itself. */
const ALONE = { place: 0, places: 1 };

/** Streams in the order in which their lanes are drawn: computing before communication. */
const byKind = (/** @type {string} */ a, /** @type {string} */ b) =>
  Number(!a.startsWith("compute")) - Number(!b.startsWith("compute")) || (a < b ? -1 : 1);

/**
 * The lanes that every rank has. Where events say when a device executed them, each of its streams has a lane, and
 * above them stands the host's: what it asked for, which the device does later, and the collectives that it executes
 * itself.
 */
export class Lanes {
  /** @param {Model} model */
  constructor(model) {
    const { columns, payload } = model;
    const used = [...new Set(columns.stream)].filter((place) => place).map((place) => payload.words[place - 1]);
    this.streams = used.sort(byKind);
    this.names = used.length ? ["host", ...this.streams] : ["computing", "communication"];
    const saves = [...columns.kind.keys()].filter((i) => payload.kinds[columns.kind[i] - 1] === "save");
    this.saves = saves.length > 0;
    if (saves.some((i) => isBeside(model, i))) this.names.push("saving");
    /** @type {Map<number, { place: number, places: number }>} */
    this.beside = new Map(); // collectives that share their lane with others at a time
    for (const places of model.ofRank) this.#divide(model, places);
    /** @type {string | null} */
    this.clock = used.length ? "GPU time" : payload.meta.device === "cuda" ? "host time" : null;
  }

  /**
   * Where event `i` is drawn: nowhere, in one lane, or in the host's and in a stream's.
   * @param {Model} model @param {number} i
   * @returns {Stretch[]}
   */
  of(model, i) {
    const { columns, payload } = model;
    const kind = payload.kinds[columns.kind[i] - 1];
    const lane = ON_HOST[kind];
    if (lane === undefined || (kind === "collective" && columns.parent[i] >= 0)) return [];
    const at = { index: i, ...(this.beside.get(i) ?? ALONE) };
    const asked = { ...at, lane: this.streams.length ? 0 : lane, start: columns.t_start[i], end: columns.t_end[i] };
    if (isBeside(model, i)) return [{ ...asked, lane: this.names.length - 1 }];
    if (!columns.stream[i]) return [asked];
    const stream = 1 + this.streams.indexOf(payload.words[columns.stream[i] - 1]);
    const done = { ...at, lane: stream, start: columns.device_start[i], end: columns.device_end[i] };
    // The host is done with a collective as soon as it has asked, and is told of its end only in a wait.
    return kind === "collective" ? [done] : [asked, done];
  }

  /**
   * Gives the collectives of a rank that are under way at the same time in the same lane a place each, so that none
   * hides another: the first that is free. A lane is divided only for as long as it is shared.
   * @param {Model} model @param {number[]} events
   */
  #divide(model, events) {
    const { columns, payload } = model;
    const sent = events.filter((i) => payload.kinds[columns.kind[i] - 1] === "collective");
    const all = sent.flatMap((i) => this.of(model, i)).sort((a, b) => a.start - b.start || b.end - a.end);
    for (const lane of new Set(all.map((one) => one.lane)))
      for (const group of overlapping(all.filter((one) => one.lane === lane))) {
        /** @type {number[]} */
        const ends = [];
        const taken = group.map(({ start, end }) => {
          const free = ends.findIndex((until) => until <= start);
          const place = free < 0 ? ends.length : free;
          ends[place] = end;
          return place;
        });
        group.forEach(({ index }, k) => {
          if (ends.length > 1) this.beside.set(index, { place: taken[k], places: ends.length });
        });
      }
  }

  /**
   * Everything that is drawn of a rank, long ones first where they start together, so that what is inside lies on top.
   * @param {Model} model @param {number} rank
   */
  ofRank(model, rank) {
    const all = model.ofRank[rank].flatMap((i) => this.of(model, i));
    return all.sort((a, b) => a.start - b.start || b.end - a.end);
  }
}

/**
 * Whether event `i` is a checkpoint's part that a thread writes while the training goes on.
 * @param {Model} model @param {number} i
 */
function isBeside({ columns, payload }, i) {
  return payload.kinds[columns.kind[i] - 1] === "save" && payload.words[columns.op[i] - 1] === "write";
}

/**
 * Stretches in groups of those that overlap, directly or through others; they are sorted by their start.
 * @param {Stretch[]} all
 */
function overlapping(all) {
  /** @type {Stretch[][]} */
  const groups = [];
  let end = Number.NEGATIVE_INFINITY;
  for (const one of all) {
    if (one.start >= end) groups.push([]);
    groups[groups.length - 1].push(one);
    end = Math.max(end, one.end);
  }
  return groups;
}

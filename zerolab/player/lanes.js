// The lanes of the timeline: what is drawn in which of them, from when to when, and whose time that is.

/**
 * @import { Model } from "./model.js"
 * @import { Kind, Stretch } from "./types.d.ts"
 */

/** @type {Partial<Record<Kind, number>>} */
const ON_HOST = { module: 0, optimizer: 0, wait: 0, collective: 1 };

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
    /** @type {string | null} */
    this.clock = used.length ? "GPU time" : payload.meta.device === "cuda" ? "host time" : null;
  }

  /**
   * Where event `i` is drawn: nowhere, in one lane, or in the host's and in a stream's.
   * @param {Model} model @param {number} i
   * @returns {Stretch[]}
   */
  of({ columns, payload }, i) {
    const kind = payload.kinds[columns.kind[i] - 1];
    const lane = ON_HOST[kind];
    if (lane === undefined || (kind === "collective" && columns.parent[i] >= 0)) return [];
    const asked = { index: i, lane: this.streams.length ? 0 : lane, start: columns.t_start[i], end: columns.t_end[i] };
    if (!columns.stream[i]) return [asked];
    const stream = 1 + this.streams.indexOf(payload.words[columns.stream[i] - 1]);
    const done = { index: i, lane: stream, start: columns.device_start[i], end: columns.device_end[i] };
    // The host is done with a collective as soon as it has asked, and is told of its end only in a wait.
    return kind === "collective" ? [done] : [asked, done];
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

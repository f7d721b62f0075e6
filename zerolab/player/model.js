// The recording, as the panes need it: what one event says, who holds what after it, what was live, which steps exist.

import {
  awaitedEvents,
  byRank,
  codeOf,
  cutEvents,
  flightsOf,
  holdings,
  matchedCollectives,
  partsByCollective,
  predecessors,
  runningSum,
  stepsOfEvents,
  stepWindows,
} from "./derived.js";
import { decode, entries, readEvent } from "./events.js";
import { rowsAbout, wholeRows } from "./rows.js";

/** @import { Category, Changes, Device, Live, Payload, Peak, Row, RunningSum, State } from "./types.d.ts" */

/**
 * The categories that make up the state, in the order in which they are drawn.
 * @type {State[]}
 */
export const STATE = ["parameters", "gradients", "optimizer_state"];

/**
 * The place of the last value of an ascending list that is <= `value`; -1 if there is none.
 * @param {ArrayLike<number>} list @param {number} value
 */
export function lastAtMost(list, value) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** @type {Changes} */
const NOTHING = { at: [], spans: [] };

/** A recording, decoded once; everything else is looked up by event index. */
export class Model {
  /** @param {Payload} payload */
  constructor(payload) {
    this.payload = payload;
    this.count = payload.count;
    this.worldSize = payload.world_size;
    this.units = payload.units;
    this.columns = decode(payload);
    /** @type {Device[]} */
    this.devices = this.columns["host.other"] ? ["live", "host"] : ["live"];
    this.ofRank = byRank(payload, this.columns);
    this.before = predecessors(this.ofRank, this.count);
    this.cut = cutEvents(payload, this.columns, this.ofRank);
    this.awaited = awaitedEvents(payload, this.columns);
    this.window = stepsOfEvents(this.columns, this.ofRank, this.count);
    this.windows = stepWindows(this.columns, this.window, this.cut);
    this.holds = holdings(payload, this.columns);
    this.peaks = this.peaksOn("live");
    this.collectives = matchedCollectives(this.columns);
    this.flights = flightsOf(payload, this.columns, this.ofRank);
    this.formula = payload.meta.formula;
    this.formulaBytes = this.#formulaOf(STATE);
    /** @type {ReturnType<typeof partsByCollective> | null} */
    this.parts = null; // as `totals`, worked out when first asked for
    /** @type {Partial<Record<Category, RunningSum>>[] | null} */
    this.totals = null;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Row[]} */
    this.whole = []; // those that are drawn whole: all, or of many the one of the rank in focus
    this.folded = false; // whether ranks are so many that one alone is drawn whole
    this.focus = 0;
    /** @type {Map<number, number>} */
    this.places = new Map();
  }

  /**
   * Event `i` with its numbers replaced by the words they stand for; null where it says nothing.
   * @param {number} i
   */
  event(i) {
    return readEvent(this.payload, this.columns, i);
  }

  /**
   * The event whose line of source stands for event `i`; null for none. A send's or a receive's is its collective's.
   * @param {number} i
   */
  lineOf(i) {
    const { parent, kind, source } = this.columns;
    const isPart = parent[i] >= 0 && kind[i] === codeOf(this.payload.kinds, "collective");
    const at = isPart && source[parent[i]] ? parent[i] : i;
    return source[at] ? this.event(at) : null;
  }

  /**
   * The same of the last event of its rank, up to event `i`, that has a line.
   * @param {number} i
   */
  lastLine(i) {
    const places = this.ofRank[this.columns.rank[i]];
    let at = lastAtMost(places, i);
    while (at >= 0 && !this.columns.source[places[at]]) at -= 1;
    return at < 0 ? null : this.lineOf(places[at]);
  }

  /**
   * Live bytes per category on `rank` just after event `i`; null before the rank's first event.
   * @param {number} rank @param {number} i @param {Device} [device]
   */
  live(rank, i, device = "live") {
    const places = this.ofRank[rank] ?? []; // the other of a pair may have fewer ranks
    const last = lastAtMost(places, i);
    return last < 0 ? null : this.liveAt(places[last], device);
  }

  /**
   * Live bytes per category on its own rank just after event `i`.
   * @param {number} i @param {Device} [device]
   */
  liveAt(i, device = "live") {
    const out = /** @type {Live} */ ({});
    for (const category of this.payload.categories) out[category] = this.columns[`${device}.${category}`][i];
    return out;
  }

  /**
   * Sum of the live bytes after event `i`, of the event's own rank.
   * @param {number} i @param {Device} [device]
   */
  total(i, device = "live") {
    let sum = 0;
    for (const category of this.payload.categories) sum += this.columns[`${device}.${category}`][i];
    return sum;
  }

  /**
   * The highest moment among the events of each rank; null where there are none.
   * @param {Device} device
   */
  peaksOn(device) {
    return this.ofRank.map((places) => {
      /** @type {Peak | null} */
      let best = null;
      for (const index of places) {
        const bytes = this.total(index, device);
        if (best === null || bytes > best.bytes) best = { index, bytes };
      }
      return best;
    });
  }

  /**
   * What the formula says of one device: with offload the optimizer's state is in main memory, and nothing else is.
   * @param {Device} device
   */
  formulaOn(device) {
    const apart = this.devices.length > 1 && this.payload.meta.offload;
    const isHost = device === "host";
    if (!apart) return isHost ? null : this.formulaBytes;
    return this.#formulaOf(STATE.filter((category) => (category === "optimizer_state") === isHost));
  }

  /** @param {State[]} categories */
  #formulaOf(categories) {
    const { formula } = this;
    return formula && categories.reduce((sum, category) => sum + formula[category], 0);
  }

  /**
   * What the card of event `i`'s rank held in its step, by name; null where that was not measured.
   * @param {number} i
   */
  cardAt(i) {
    const { rank, step } = this.columns;
    return this.payload.ranks.find((one) => one.rank === rank[i])?.cards?.[step[i] - 1] ?? null;
  }

  /**
   * The spans `[start, stop, start, stop, ...]` of a category of a unit that `rank` holds after event `i`.
   * @param {number} rank @param {Category} category @param {string} unit @param {number} i
   */
  held(rank, category, unit, i) {
    const changes = this.changes(rank, category, unit);
    const last = lastAtMost(changes.at, i);
    return last < 0 ? [] : changes.spans[last];
  }

  /**
   * Every change of what `rank` holds of a category of a unit: the events' places, and the spans from then on.
   * @param {number} rank @param {Category} category @param {string} unit
   */
  changes(rank, category, unit) {
    return this.holds[rank]?.[category]?.get(unit) ?? NOTHING;
  }

  /**
   * Elements of a category that `rank` holds after event `i`, over all units.
   * @param {number} rank @param {Category} category @param {number} i
   */
  heldElements(rank, category, i) {
    this.totals ??= this.#totals();
    const total = this.totals[rank]?.[category];
    return total?.sums[lastAtMost(total.at, i)] ?? 0;
  }

  /**
   * The last event that had ended by time `t`; the first event before any has.
   * @param {number} t
   */
  at(t) {
    return Math.max(0, lastAtMost(this.columns.t_end, t));
  }

  /**
   * The window (a training step, or what came before the first) that event `i` belongs to.
   * @param {number} i
   */
  windowOf(i) {
    return this.windows.find((window) => window.step === this.window[i]) ?? this.windows[0];
  }

  /**
   * Takes the rows of the panes, `[{ rank, from, to }]`.
   * @param {Row[]} rows
   */
  chooseRows(rows) {
    this.whole = wholeRows(rows, this);
    this.folded = this.whole !== rows;
    this.rows = this.folded ? rowsAbout(rows, this.whole[0].rank) : rows;
    this.places = new Map();
    rows.forEach(({ from, to }, place) => {
      for (let rank = from; rank <= to; rank++) this.places.set(rank, place);
    });
  }

  /**
   * Which row of the panes `rank` has a part in; -1 if it is not shown.
   * @param {number} rank
   */
  rowOf(rank) {
    return this.places.get(rank) ?? -1;
  }

  /**
   * Which of the rows that are drawn whole is `rank`'s; -1 if none is.
   * @param {number} rank
   */
  wholeRowOf(rank) {
    return this.folded ? this.whole.findIndex((row) => row.rank === rank) : this.rowOf(rank);
  }

  /**
   * As `sameCollective`, but only of the ranks that the rows draw.
   * @param {number} i
   */
  drawnCollective(i) {
    const { rank } = this.columns;
    return this.sameCollective(i).filter((other) => this.rows[this.rowOf(rank[other])]?.rank === rank[other]);
  }

  /** Running sums of what is held, so that a moment's sum is looked up instead of added over all units. */
  #totals() {
    return this.holds.map((categories) => {
      /** @type {Partial<Record<Category, RunningSum>>} */
      const sums = {};
      for (const [category, units] of entries(categories)) if (units) sums[category] = runningSum(units);
      return sums;
    });
  }

  /**
   * The collectives that `rank` has under way at time `t`, sends and receives left out.
   * @param {number} rank @param {number} t
   */
  inFlight(rank, t) {
    const { starts, places } = this.flights[rank];
    const found = [];
    // Few are under way at once, so looking a little way back from the last one that has started finds them all.
    for (let k = lastAtMost(starts, t), seen = 0; k >= 0 && seen < 16; k--, seen++) {
      if (this.columns.t_end[places[k]] > t) found.push(places[k]);
    }
    return found;
  }

  /**
   * The sends and receives of collective `i` on its own rank, in the order in which they began.
   * @param {number} i
   */
  partsOf(i) {
    this.parts ??= partsByCollective(this.payload, this.columns);
    return this.parts.get(i) ?? [];
  }

  /**
   * Which half of its all-reduce a send or a receive belongs to: a second one to the same peer is of the second half.
   * @param {number} i
   */
  half(i) {
    const { parent, op, peer } = this.columns;
    const like = this.partsOf(parent[i]).filter((k) => op[k] === op[i] && peer[k] === peer[i]);
    return like.indexOf(i);
  }

  /**
   * When the second half of all-reduce `i` began on its rank; null where its sends and receives were not recorded.
   * @param {number} i
   */
  secondHalf(i) {
    const first = this.partsOf(i).find((k) => this.half(k) === 1);
    return first === undefined ? null : this.columns.t_start[first];
  }

  /**
   * The same collective on every rank, event `i` included; a send, a receive or a wait counts as its collective.
   * @param {number} i
   */
  sameCollective(i) {
    const at = this.columns.parent[i] >= 0 ? this.columns.parent[i] : i;
    return this.collectives.get(`${this.columns.group[at]}:${this.columns.number[at]}`) ?? [i];
  }
}

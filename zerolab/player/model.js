// The recording as the panes ask for it: what one event says, who holds what after it, what was live, which steps.

import { decode } from "./decode.js";

/** The categories that make up the state, in the order in which they are drawn. */
export const STATE = ["parameters", "gradients", "optimizer_state"];

/** The place of the last value of an ascending list that is <= `value`; -1 if there is none. */
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

const NOTHING = { at: [], spans: [] };

/** The elements held of all units together, change by change: where, and how many from then on. */
function runningSum(units) {
  const changed = [];
  for (const { at, spans } of units.values()) {
    let before = 0;
    at.forEach((i, k) => {
      let now = 0;
      for (let edge = 0; edge < spans[k].length; edge += 2) now += spans[k][edge + 1] - spans[k][edge];
      changed.push([i, now - before]);
      before = now;
    });
  }
  changed.sort((a, b) => a[0] - b[0]);
  let sum = 0;
  return { at: changed.map(([i]) => i), sums: changed.map(([, more]) => (sum += more)) };
}

/** A recording, decoded once; everything else is looked up by event index. */
export class Model {
  constructor(payload) {
    this.payload = payload;
    this.count = payload.count;
    this.worldSize = payload.world_size;
    this.units = payload.units;
    this.columns = decode(payload);
    this.levels = payload.categories.map((category) => this.columns[`live.${category}`]);
    this.ofRank = this.#perRank();
    this.before = this.#previous();
    this.cut = this.#cutOff();
    this.window = this.#windowSteps();
    this.holds = this.#ownership();
    this.windows = this.#windows();
    this.peaks = this.#peaks();
    this.collectives = this.#matched();
    this.flights = this.#flights();
    this.chooseRows([]);
    this.formula = payload.meta.formula;
    this.formulaBytes = this.formula ? STATE.reduce((sum, category) => sum + this.formula[category], 0) : null;
  }

  /** Event `i` with its numbers replaced by the words they stand for; null where it says nothing. */
  event(i) {
    const { payload, columns } = this;
    const from = (table, column) => (columns[column][i] ? table[columns[column][i] - 1] : null);
    const unit = from(payload.units, "unit");
    return {
      index: i,
      rank: columns.rank[i],
      seq: columns.seq[i],
      start: columns.t_start[i],
      end: columns.t_end[i],
      step: columns.step[i],
      phase: from(payload.phases, "phase"),
      kind: from(payload.kinds, "kind"),
      op: from(payload.words, "op"),
      unit: unit && unit.name,
      group: from(payload.groups, "group"),
      dtype: from(payload.words, "dtype"),
      numel: columns.numel[i],
      logicalBytes: columns.logical_bytes[i],
      number: columns.number[i] ? columns.number[i] - 1 : null,
      parent: columns.parent[i] < 0 ? null : columns.parent[i],
      peer: columns.peer[i] ? columns.peer[i] - 1 : null,
      category: from(payload.categories, "category"),
      spans: from(payload.spans, "spans"),
      text: from(payload.words, "text"),
      source: columns.source[i] ? columns.source[i] - 1 : null,
      line: columns.line[i],
      fromAutograd: columns.from_autograd[i] === 1,
    };
  }

  /** The event whose line of source stands for event `i`; null for none. A send's or a receive's is its collective's. */
  lineOf(i) {
    const { parent, kind, source } = this.columns;
    const isPart = parent[i] >= 0 && kind[i] === this.payload.kinds.indexOf("collective") + 1;
    const at = isPart && source[parent[i]] ? parent[i] : i;
    return source[at] ? this.event(at) : null;
  }

  /** The same of the last event of its rank, up to event `i`, that has a line. */
  lastLine(i) {
    const places = this.ofRank[this.columns.rank[i]];
    let at = lastAtMost(places, i);
    while (at >= 0 && !this.columns.source[places[at]]) at -= 1;
    return at < 0 ? null : this.lineOf(places[at]);
  }

  /**
   * Where there is something to see: the first event in a training step with a line, of the kinds that one looks at and
   * about the largest unit, whose pieces and arrows are the easiest to see; of any unit where the largest has none. Where
   * that is a mere pass, nothing is sent and nothing but parameters is held yet: then while gradients are reduced.
   */
  opening() {
    const { payload, columns, units } = this;
    const largest = units.reduce((best, unit, k) => (unit.padded > (units[best]?.padded ?? 0) ? k : best), -1) + 1;
    let first = null;
    const hold = payload.words.indexOf("hold") + 1;
    const shows = ["collective", "module"].map((kind) => payload.kinds.indexOf(kind) + 1);
    for (let i = 0; i < this.count; i++) {
      if (columns.step[i] < 1 || !columns.source[i] || columns.parent[i] >= 0) continue;
      if (!shows.includes(columns.kind[i]) && columns.op[i] !== hold) continue;
      if (!largest || columns.unit[i] === largest) return columns.kind[i] === shows[1] ? (this.#reducing() ?? i) : i;
      first ??= i;
    }
    return first ?? this.windows.find((window) => window.step > 0)?.first ?? 0;
  }

  /** Halfway through the reductions of rank 0 in step 2, the first with optimizer state (or the last before it); null without any. */
  #reducing() {
    const { payload, columns } = this;
    const [phase, kind] = [payload.phases.indexOf("reduce") + 1, payload.kinds.indexOf("collective") + 1];
    const all = (this.ofRank[0] ?? []).filter(
      (i) =>
        phase && columns.phase[i] === phase && columns.kind[i] === kind && columns.parent[i] < 0 && columns.source[i],
    );
    const step = Math.min(2, ...all.slice(-1).map((i) => columns.step[i]));
    const of = all.filter((i) => columns.step[i] === step);
    return of.length ? of[of.length >> 1] : null;
  }

  /** Live bytes per category on `rank` just after event `i`; null before the rank's first event. */
  live(rank, i) {
    const places = this.ofRank[rank];
    const last = lastAtMost(places, i);
    if (last < 0) return null;
    const out = {};
    for (const category of this.payload.categories) out[category] = this.columns[`live.${category}`][places[last]];
    return out;
  }

  /** Sum of the live bytes after event `i`, of the event's own rank. */
  total(i) {
    let sum = 0;
    for (const level of this.levels) sum += level[i];
    return sum;
  }

  /** The spans `[start, stop, start, stop, ...]` of a category of a unit that `rank` holds after event `i`. */
  held(rank, category, unit, i) {
    const changes = this.changes(rank, category, unit);
    const last = lastAtMost(changes.at, i);
    return last < 0 ? [] : changes.spans[last];
  }

  /** Every change of what `rank` holds of a category of a unit: the events' places, and the spans from then on. */
  changes(rank, category, unit) {
    return this.holds[rank]?.[category]?.get(unit) ?? NOTHING;
  }

  /** Elements of a category that `rank` holds after event `i`, over all units. */
  heldElements(rank, category, i) {
    this.totals ??= this.#totals();
    const total = this.totals[rank]?.[category];
    const last = total ? lastAtMost(total.at, i) : -1;
    return last < 0 ? 0 : total.sums[last];
  }

  /** The last event that had ended by time `t`; the first event before any has. */
  at(t) {
    return Math.max(0, lastAtMost(this.columns.t_end, t));
  }

  /** The window (a training step, or what came before the first) that event `i` belongs to. */
  windowOf(i) {
    return this.windows.find((window) => window.step === this.window[i]) ?? this.windows[0];
  }

  /** The nearest event in `direction` (+1 or -1) at which the phase changes, on the rank of event `i`. */
  nextPhase(i, direction) {
    const places = this.ofRank[this.columns.rank[i]];
    const same = (a, b) => ["phase", "step"].every((name) => this.columns[name][a] === this.columns[name][b]);
    let at = lastAtMost(places, i);
    if (direction > 0) {
      while (at + 1 < places.length && same(places[at], places[at + 1])) at += 1;
      return places[Math.min(at + 1, places.length - 1)];
    }
    at = Math.max(0, at - 1);
    while (at > 0 && same(places[at], places[at - 1])) at -= 1;
    return places[at];
  }

  /** The nearest event in `direction` on the rank of event `i` that is about another unit. */
  nextUnit(i, direction) {
    const places = this.ofRank[this.columns.rank[i]];
    const { unit } = this.columns;
    for (let at = lastAtMost(places, i) + direction; at >= 0 && at < places.length; at += direction) {
      if (unit[places[at]] && unit[places[at]] !== unit[i]) return places[at];
    }
    return i;
  }

  /** Takes the rows of the panes, `[{ rank, from, to }]`. */
  chooseRows(rows) {
    this.rows = rows;
    this.places = new Map();
    rows.forEach(({ from, to }, place) => {
      for (let rank = from; rank <= to; rank++) this.places.set(rank, place);
    });
  }

  /** Which row of the panes `rank` has a part in; -1 if it is not shown. */
  rowOf(rank) {
    return this.places.get(rank) ?? -1;
  }

  /** As `sameCollective`, but only of the ranks that the rows draw. */
  drawnCollective(i) {
    return this.sameCollective(i).filter(
      (other) => this.rows[this.rowOf(this.columns.rank[other])]?.rank === this.columns.rank[other],
    );
  }

  #perRank() {
    const lists = Array.from({ length: this.worldSize }, () => []);
    for (let i = 0; i < this.count; i++) lists[this.columns.rank[i]]?.push(i);
    return lists;
  }

  /** Each event's predecessor on its own rank; -1 for a rank's first. */
  #previous() {
    const out = new Float64Array(this.count).fill(-1);
    for (const places of this.ofRank) for (let k = 1; k < places.length; k++) out[places[k]] = places[k - 1];
    return out;
  }

  /**
   * The events that were still under way when their rank's recording was cut off, as that of a rank in a hang is. A wait
   * that ends by itself ends a moment before its collective; only what is cut off ends at the same nanosecond.
   */
  #cutOff() {
    const { t_end: end, kind, parent } = this.columns;
    const [wait, pass] = ["wait", "module"].map((name) => this.payload.kinds.indexOf(name) + 1);
    const cut = new Set();
    for (const { rank, complete } of this.payload.ranks) {
      const places = complete ? [] : (this.ofRank[rank] ?? []);
      const last = places.filter((i) => end[i] === end[places.at(-1)]);
      const waits = last.filter((i) => kind[i] === wait && last.includes(parent[i]));
      if (waits.length)
        for (const i of [...waits, ...waits.map((i) => parent[i]), ...last.filter((i) => kind[i] === pass)]) cut.add(i);
    }
    return cut;
  }

  /** Each event's window: its training step; what lies between two steps belongs to the one before. */
  #windowSteps() {
    const out = new Float64Array(this.count);
    for (const places of this.ofRank) {
      let step = 0;
      for (const i of places) out[i] = step = this.columns.step[i] || step;
    }
    return out;
  }

  /** By rank, category and unit; nested, because one joined key would be put together ten thousand times for a picture. */
  #ownership() {
    const holds = [];
    const { columns, payload } = this;
    const hold = payload.words.indexOf("hold") + 1;
    for (let i = 0; i < this.count; i++) {
      if (!hold || columns.op[i] !== hold || !columns.unit[i] || !columns.category[i]) continue;
      const ofRank = (holds[columns.rank[i]] ??= {});
      const units = (ofRank[payload.categories[columns.category[i] - 1]] ??= new Map());
      const unit = payload.units[columns.unit[i] - 1].name;
      if (!units.has(unit)) units.set(unit, { at: [], spans: [] });
      units.get(unit).at.push(i);
      units.get(unit).spans.push(columns.spans[i] ? payload.spans[columns.spans[i] - 1] : []);
    }
    return holds;
  }

  /** Running sums of what is held, so that a moment's sum is looked up instead of added over all units. */
  #totals() {
    return this.holds.map((categories) =>
      Object.fromEntries(Object.entries(categories).map(([category, units]) => [category, runningSum(units)])),
    );
  }

  #windows() {
    const windows = new Map();
    const {
      window: step,
      columns: { t_start: start, t_end: end },
    } = this;
    for (let i = 0; i < this.count; i++) {
      if (!windows.has(step[i]))
        windows.set(step[i], { step: step[i], t0: Infinity, t1: -Infinity, first: i, last: i, events: 0 });
      const window = windows.get(step[i]);
      window.t0 = Math.min(window.t0, start[i]);
      // Between two steps anything may happen; the axis ends with the step itself.
      // What never ended was waited for until somebody gave up; seconds of it would leave no room for what was done.
      if (this.columns.step[i] || !step[i]) window.t1 = Math.max(window.t1, this.cut.has(i) ? start[i] : end[i]);
      window.last = i;
      window.events += 1;
    }
    const sorted = [...windows.values()].sort((a, b) => a.step - b.step);
    for (const window of sorted) window.t1 = Math.max(window.t1, window.t0 + 1000);
    // The bar of such a wait runs on to the edge of its step's view.
    for (const i of this.cut) {
      const window = windows.get(step[i]);
      window.t1 = Math.max(window.t1, Math.min(end[i], start[i] + 0.2 * (start[i] - window.t0)));
    }
    return sorted;
  }

  #peaks() {
    return this.ofRank.map((places) => {
      let best = null;
      for (const i of places)
        if (best === null || this.total(i) > best.bytes) best = { index: i, bytes: this.total(i) };
      return best;
    });
  }

  #flights() {
    const collective = this.payload.kinds.indexOf("collective") + 1;
    return this.ofRank.map((all) => {
      const places = all.filter((i) => this.columns.kind[i] === collective && this.columns.parent[i] < 0);
      places.sort((a, b) => this.columns.t_start[a] - this.columns.t_start[b]);
      return { places, starts: places.map((i) => this.columns.t_start[i]) };
    });
  }

  #matched() {
    const matched = new Map();
    for (let i = 0; i < this.count; i++) {
      const number = this.columns.number[i];
      if (!number || this.columns.parent[i] >= 0) continue;
      const key = `${this.columns.group[i]}:${number}`;
      if (!matched.has(key)) matched.set(key, []);
      matched.get(key).push(i);
    }
    return matched;
  }

  /** The collectives that `rank` has under way at time `t`, sends and receives left out. */
  inFlight(rank, t) {
    const { starts, places } = this.flights[rank];
    const found = [];
    // Few are under way at once, so looking a little way back from the last one that has started finds them all.
    for (let k = lastAtMost(starts, t), seen = 0; k >= 0 && seen < 16; k--, seen++) {
      if (this.columns.t_end[places[k]] > t) found.push(places[k]);
    }
    return found;
  }

  /** The sends and receives of collective `i` on its own rank, in the order in which they began. */
  partsOf(i) {
    if (!this.parts) {
      this.parts = new Map();
      const collective = this.payload.kinds.indexOf("collective") + 1;
      const { parent, kind, seq } = this.columns;
      for (let k = 0; k < this.count; k++)
        if (parent[k] >= 0 && kind[k] === collective)
          this.parts.set(parent[k], [...(this.parts.get(parent[k]) ?? []), k]);
      for (const list of this.parts.values()) list.sort((a, b) => seq[a] - seq[b]);
    }
    return this.parts.get(i) ?? [];
  }

  /** Which half of its all-reduce a send or a receive belongs to: a second one to the same peer is of the second half. */
  half(i) {
    const { parent, op, peer } = this.columns;
    const like = this.partsOf(parent[i]).filter((k) => op[k] === op[i] && peer[k] === peer[i]);
    return like.indexOf(i);
  }

  /** When the second half of all-reduce `i` began on its rank; null where its sends and receives were not recorded. */
  secondHalf(i) {
    const first = this.partsOf(i).find((k) => this.half(k) === 1);
    return first === undefined ? null : this.columns.t_start[first];
  }

  /** The same collective on every rank, event `i` included; a send, a receive or a wait counts as its collective. */
  sameCollective(i) {
    const at = this.columns.parent[i] >= 0 ? this.columns.parent[i] : i;
    return this.collectives.get(`${this.columns.group[at]}:${this.columns.number[at]}`) ?? [i];
  }
}

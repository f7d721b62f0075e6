// What the guided walk reads from one step of a recording: who holds how much of a unit when, and who sent what.

import { codeOf, size } from "./derived.js";
import { MOVED, WIDTH } from "./events.js";
import { STATE } from "./model.js";

/**
 * @import { Beats } from "./beats.js"
 * @import { Model } from "./model.js"
 * @import { Values } from "./values.js"
 * @import { Act, Beat, State, Unit } from "./types.d.ts"
 */

/** One step of a recording, explained by following one unit and one rank. */
export class Facts {
  /** @param {Model} model @param {Beats} beats @param {Values} values */
  constructor(model, beats, values) {
    this.model = model;
    this.beats = beats;
    this.values = values;
    this.step = this.#chooseStep();
    this.unit = this.#chooseUnit();
    /** The ranks for which anything was recorded; in a simulation that is not all of them. */
    this.ranks = model.ofRank.flatMap((places, rank) => (places.length ? [rank] : []));
    this.me = this.ranks[0];
  }

  /** The beats of the step that end, in order. */
  get own() {
    const { model, step } = this;
    return this.beats.list.filter((beat) => beat.step === step && !beat.places.some((i) => model.cut.has(i)));
  }

  /** The step in which a player opens; the last with an update where that one has none. */
  #chooseStep() {
    const { list } = this.beats;
    const opening = list[this.beats.opening()]?.step ?? 0;
    const updated = list.filter(({ kind, step }) => kind === "update" && step > 0).map(({ step }) => step);
    return updated.includes(opening) ? opening : (updated.at(-1) ?? opening);
  }

  /**
   * The largest unit; of several the one with which the most is done; of those the second, to have one on either side.
   * Not the root, unless there is no other: to compute it is to compute all.
   * @returns {Unit | null}
   */
  #chooseUnit() {
    const trained = this.model.units.filter(({ padded, frozen }) => padded && !frozen);
    const inner = trained.filter(({ name }) => name !== "root");
    const units = inner.length ? inner : trained;
    // What is sent: whether computing is a beat of its own differs from run to run.
    const sends = this.own.filter(({ kind }) => kind === "collective");
    const deeds = (/** @type {Unit} */ unit) =>
      new Set(sends.filter((beat) => beat.units.includes(unit)).map(({ act, op }) => act + op)).size;
    const most = Math.max(...units.map((unit) => unit.padded));
    const large = units.filter(({ padded }) => padded === most);
    const busy = Math.max(...large.map(deeds));
    const busiest = large.filter((unit) => deeds(unit) === busy);
    return busiest[Math.min(1, busiest.length - 1)] ?? null;
  }

  /**
   * The collective beat in which the unit, alone or with others, is moved during an act by one of these operations.
   * @param {Act} act @param {string[]} ops
   */
  moved(act, ...ops) {
    const { unit } = this;
    return this.own.find((beat) => unit && beat.act === act && ops.includes(beat.op) && beat.units.includes(unit));
  }

  /** The module that the unit is of: of its matrices and of the rest, which are two units, both times "blocks.1". */
  get module() {
    return this.unit?.name.split(" ")[0] ?? "";
  }

  /**
   * The passes of its module over all ranks.
   * @param {"forward" | "backward"} op
   */
  passes(op) {
    return this.#events("module", (i) => this.model.payload.words[this.model.columns.op[i] - 1] === op, this.module);
  }

  /** The updates of all ranks, for each the one that ended first: some systems call one within another. */
  updates() {
    const all = this.#events("optimizer", () => true, null);
    return this.ranks.flatMap((rank) => all.find((i) => this.model.columns.rank[i] === rank) ?? []);
  }

  /**
   * @param {"module" | "optimizer" | "collective"} kind @param {(i: number) => boolean} fits
   * @param {string | null} unit
   */
  #events(kind, fits, unit) {
    const { columns, payload, cut, units } = this.model;
    const code = codeOf(payload.kinds, kind);
    const found = [];
    for (let i = 0; i < this.model.count; i++) {
      if (columns.kind[i] !== code || columns.step[i] !== this.step || columns.parent[i] >= 0 || cut.has(i)) continue;
      if ((!unit || units[columns.unit[i] - 1]?.name === unit) && fits(i)) found.push(i);
    }
    return found;
  }

  /**
   * When the last of these events ended.
   * @param {number[]} places
   */
  ended(places) {
    return Math.max(...places.map((i) => this.model.columns.t_end[i]));
  }

  /**
   * When the first of these events began.
   * @param {number[]} places
   */
  began(places) {
    return Math.min(...places.map((i) => this.model.columns.t_start[i]));
  }

  /**
   * Elements of a category of the unit that a rank holds at a time.
   * @param {number} rank @param {State} category @param {number} time
   */
  held(rank, category, time) {
    return this.unit ? size(this.model.held(rank, category, this.unit.name, this.model.at(time))) : 0;
  }

  /**
   * How many ranks hold all of the unit's elements of a category at a time.
   * @param {State} category @param {number} time
   */
  whole(category, time) {
    const all = this.unit ? Math.min(this.unit.numel, this.unit.padded) : Infinity;
    return this.ranks.filter((rank) => this.held(rank, category, time) >= all).length;
  }

  /**
   * When, in the step, after `from` and before its own first event of `next`, the last rank gave back a part of what it
   * held of a category of the unit; null if one did not.
   * @param {State} category @param {number} from @param {number[]} next
   */
  freed(category, from, next) {
    const { model, unit, step } = this;
    const { t_end: ends, rank: rankOf } = model.columns;
    const times = this.ranks.map((rank) => {
      const until = this.began(next.filter((i) => rankOf[i] === rank));
      const { at, spans } = model.changes(rank, category, unit?.name ?? "");
      const less = (/** @type {number} */ k) =>
        k > 0 &&
        k < at.length &&
        model.window[at[k]] === step &&
        ends[at[k]] <= until &&
        size(spans[k]) < size(spans[k - 1]);
      let k = at.findIndex((i, place) => ends[i] > from && less(place));
      if (k < 0) return Infinity;
      while (less(k + 1)) k += 1; // some give a unit back tensor by tensor
      return ends[at[k]];
    });
    const last = Math.max(...times);
    return last === Infinity ? null : last;
  }

  /**
   * When, after `from`, the last rank had all of the unit's elements of a category; null if one had not.
   * @param {State} category @param {number} from
   */
  came(category, from) {
    const { model, unit } = this;
    const { t_end: ends } = model.columns;
    const times = this.ranks.map((rank) => {
      const { at, spans } = model.changes(rank, category, unit?.name ?? "");
      const k = at.findIndex((i, place) => ends[i] > from && size(spans[place]) >= (unit?.numel ?? Infinity));
      return k < 0 ? Infinity : ends[at[k]];
    });
    const last = Math.max(...times);
    return last === Infinity ? null : last;
  }

  /**
   * Bytes that the example's rank had to send for a beat.
   * @param {Beat} beat
   */
  sent({ places }) {
    const { rank, logical_bytes: bytes } = this.model.columns;
    return places.reduce((sum, i) => sum + (rank[i] === this.me ? bytes[i] : 0), 0);
  }

  /**
   * Bytes of all that a beat's collective moves, in the dtype in which it is sent; 0 for one that is no number's.
   * @param {Beat} beat
   */
  travels({ places }) {
    const own = places.map((i) => this.model.event(i)).filter(({ rank }) => rank === this.me);
    return own.reduce((sum, { numel, dtype }) => sum + numel * (WIDTH[dtype ?? ""] ?? 0), 0);
  }

  /** Bytes that the example's rank had to send in the whole step. */
  sentInStep() {
    const { rank, logical_bytes: bytes } = this.model.columns;
    return this.#events("collective", (i) => rank[i] === this.me, null).reduce((sum, i) => sum + bytes[i], 0);
  }

  /**
   * The dtype in which the example's rank holds so many elements of a category of the unit in the step.
   * @param {State} category @param {number} elements
   */
  dtype(category, elements) {
    const { model, me, unit, step } = this;
    const { at, spans } = model.changes(me, category, unit?.name ?? "");
    const least = at
      .map((i, k) => ({ i, held: size(spans[k]) }))
      .filter(({ i, held }) => model.window[i] === step && held >= elements)
      .reduce((/** @type {{ i: number, held: number } | null} */ a, b) => (a && a.held <= b.held ? a : b), null);
    return (least && model.event(least.i).dtype) ?? unit?.dtype ?? "";
  }

  /**
   * Bytes of so many elements of a category of the unit, as the example's rank holds them.
   * @param {State} category @param {number} elements
   */
  weight(category, elements) {
    return elements * (WIDTH[this.dtype(category, elements)] ?? 4);
  }

  /**
   * Between how many ranks a beat's collective goes.
   * @param {Beat} beat
   */
  among({ places }) {
    return this.model.event(places[0]).group?.length ?? this.model.worldSize;
  }

  /**
   * Bytes of parameters, gradients and optimizer state of the example's rank at its update, and what they would be if
   * it held all, and padding as well; null where one of them is not there.
   */
  state() {
    const { model, me } = this;
    const update = this.updates().find((i) => model.columns.rank[i] === me);
    if (update === undefined) return null;
    const live = model.liveAt(update);
    /** @type {Record<string, { held: number, all: number, padded: number }>} */
    const of = {};
    for (const category of STATE) {
      const elements = model.heldElements(me, category, update);
      if (!live[category] || !elements) return null;
      const units = model.units.filter(({ frozen }) => category === "parameters" || !frozen);
      const all = units.reduce((sum, unit) => sum + this.#kept(unit), 0);
      const padded = units.reduce((sum, unit) => sum + unit.padded, 0);
      const each = live[category] / elements;
      of[category] = { held: live[category], all: each * all, padded: each * padded };
    }
    return /** @type {Record<State, { held: number, all: number, padded: number }>} */ (of);
  }

  /**
   * Elements of a unit that all ranks together keep at their updates: FSDP2 keeps no padding, though it sends some.
   * @param {Unit} unit
   */
  #kept({ name, padded }) {
    const { model, ranks } = this;
    // The end may be with ranks that are not here.
    if (ranks.length < model.worldSize || this.#keepsPadding()) return padded;
    const ends = this.updates().flatMap((i) => model.held(model.columns.rank[i], "parameters", name, i));
    return Math.max(0, ...ends) || padded;
  }

  /** Whether the last rank's optimizer state is as large as the first's, for fewer elements: the rest is padding. */
  #keepsPadding() {
    const { model } = this;
    const updates = this.updates();
    const [first, last] = [updates[0], updates[updates.length - 1]].map((i) => ({
      bytes: model.liveAt(i).optimizer_state,
      elements: model.heldElements(model.columns.rank[i], "optimizer_state", i),
    }));
    return last.bytes === first.bytes && last.elements < first.elements;
  }

  /**
   * The unit whose gather went on while most ranks computed this one, the rank on which that took longest, and for how
   * many nanoseconds.
   */
  ahead() {
    const { model, unit } = this;
    const { t_start: start, t_end: end, rank } = model.columns;
    const passes = this.passes("forward");
    let best = null;
    for (const beat of this.own) {
      if (beat.act !== "forward" || MOVED[beat.op] !== "parameters" || beat.units.length !== 1) continue;
      if (beat.units[0] === unit) continue;
      const both = beat.places.flatMap((i) =>
        passes
          .filter((pass) => rank[pass] === rank[i])
          .map((pass) => ({ rank: rank[i], took: Math.min(end[i], end[pass]) - Math.max(start[i], start[pass]) })),
      );
      const beside = both.filter(({ took }) => took > 0);
      const longest = beside.reduce((most, one) => (one.took > most.took ? one : most), { rank: -1, took: 0 });
      if (2 * beside.length > this.ranks.length && longest.took > (best?.took ?? 0))
        best = { beat, unit: beat.units[0], ...longest };
    }
    return best;
  }

  /** The moment of the step at which the example's rank had most live bytes; null where nothing was recorded. */
  peak() {
    const { model, me } = this;
    let best = null;
    for (const i of model.ofRank[me] ?? []) {
      const bytes = model.total(i);
      if (model.window[i] === this.step && bytes > (best?.bytes ?? 0)) best = { index: i, bytes };
    }
    return best;
  }
}

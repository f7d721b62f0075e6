// A recording in beats: what all ranks do together, one thing after another, each with a caption to read meanwhile.
// A collective over all its ranks is a beat, and so is the computing of one unit in between. They follow from the
// events, not from the stage's name. What belongs to no unit, such as a check that ranks do the same, is none; but what
// ranks send within the pass of a unit that each has a part of belongs to it.

import { Amid } from "./amid.js";
import { Sequence } from "./clock.js";
import { codeOf, grouped } from "./derived.js";
import { lastAtMost } from "./model.js";
import { Moments } from "./moments.js";
import { telling } from "./telling.js";

/**
 * @import { Model } from "./model.js"
 * @import { Story } from "./story.js"
 * @import { Act, Beat, StepWindow, Unit } from "./types.d.ts"
 */

/** Words that a newcomer reads in a second; and the seconds that a beat takes at least and at most. */
const WORDS_A_SECOND = 5;
const SHORTEST = 1.5;
export const LONGEST = 3;
/** Computing of which less than this share is left between two collectives went on beside them, and is no beat. */
const LEFT = 0.1;

/**
 * The beats of a recording, in order, without gaps; `ticks` are the times of collectives that are no beats.
 * @extends {Sequence<Beat>}
 */
export class Beats extends Sequence {
  /** @param {Model} model @param {Story} story */
  constructor(model, story) {
    super();
    this.model = model;
    this.story = story;
    this.turns = model.ofRank.map((places) => this.#turns(places));
    /** @type {number[]} */
    this.ticks = [];
    /** @type {Map<number, Unit[]>} */
    this.units = new Map(); // a collective's first event -> the units that it moves
    this.#match();
    this.amid = new Amid(model, story.divided, (i) => this.#when(i));
    const deeds = [...this.#collectives(), ...this.#ofRanks()];
    for (const window of model.windows) this.list.push(...this.#cut(window, deeds));
    this.moments = new Moments(model, story.acts);
    this.starts = this.list.map(({ t0 }) => t0);
    for (const beat of this.list) beat.caption = telling(beat, model, story);
    for (const beat of this.list) beat.seconds = this.#seconds(beat);
  }

  /**
   * The place of the beat at a time; 0 before the first, -1 where there is none.
   * @param {number} time
   */
  at(time) {
    return this.list.length ? Math.max(0, lastAtMost(this.starts, time)) : -1;
  }

  /**
   * Where there is most to see: the beginning of the second step, the first with optimizer state; else of the last.
   */
  opening() {
    const steps = this.model.windows.map(({ step }) => step);
    return Math.max(0, this.first(steps.includes(2) ? 2 : steps.at(-1)));
  }

  /**
   * The units that collective `i` moves, also where the system that called it did not say which.
   * @param {number} i
   */
  unitsOf(i) {
    return this.units.get(this.model.sameCollective(i)[0]) ?? [];
  }

  /**
   * For each event of a rank how often the act had changed before it in its step: two passes of one are told apart
   * by it.
   * @param {number[]} places
   */
  #turns(places) {
    /** @type {Map<number, number>} */
    const turns = new Map();
    let turn = 0;
    let step = 0;
    /** @type {Act | null} */
    let before = null;
    for (const i of [...places].sort((a, b) => this.model.columns.seq[a] - this.model.columns.seq[b])) {
      const act = this.story.acts[i];
      if (this.model.window[i] !== step) {
        step = this.model.window[i];
        turn = 0;
        before = null;
      }
      if (before !== null && act !== before && act !== "aside") turn += 1;
      if (act !== "aside") before = act;
      turns.set(i, turn);
    }
    return turns;
  }

  /** @param {number} i */
  #when(i) {
    const { model, turns } = this;
    return `${model.window[i]}:${turns[model.columns.rank[i]].get(i) ?? 0}`;
  }

  /**
   * Finds the units of every collective: the one it names; else the one whose turn it is among those of its size. Where
   * ranks compute with parts of units, what they compute is sent, too, and may be as large as one.
   */
  #match() {
    const { model } = this;
    const { columns, units, payload } = model;
    const pass = codeOf(payload.kinds, "module");
    const all = units.reduce((sum, unit) => sum + unit.padded, 0);
    const both = units.reduce((sum, unit) => sum + unit.numel, 0);
    /** @type {number[]} */
    const unnamed = [];
    for (const [head, ...rest] of model.collectives.values()) {
      // Of the lowest rank: whichever ended first may be another rank's each time.
      const first = rest.reduce((low, i) => (columns.rank[i] < columns.rank[low] ? i : low), head);
      const unit = units[columns.unit[first] - 1];
      const n = columns.numel[first];
      if (unit) this.units.set(head, [unit]);
      else if (!this.story.divided.size && units.length > 1 && (n === all || n === both)) this.units.set(head, units);
      else if (columns.step[first]) unnamed.push(first);
    }
    const { rank, op, numel } = columns;
    if (this.story.divided.size) return;
    for (const places of grouped(unnamed, (i) => `${rank[i]}:${this.#when(i)}:${op[i]}:${numel[i]}`).values()) {
      const [first] = places;
      const fits = (/** @type {number} */ i) => {
        const unit = units[columns.unit[i] - 1];
        return unit && [unit.padded, unit.numel].includes(columns.numel[first]);
      };
      const passes = model.ofRank[columns.rank[first]]
        .filter((i) => columns.kind[i] === pass && this.#when(i) === this.#when(first) && fits(i))
        .sort((a, b) => columns.t_start[a] - columns.t_start[b]);
      // As many as there are passes, in their order: otherwise nobody knows which is whose.
      if (passes.length !== places.length) continue;
      const inOrder = [...places].sort((a, b) => columns.t_start[a] - columns.t_start[b]);
      for (const [k, i] of inOrder.entries())
        this.units.set(model.sameCollective(i)[0], [units[columns.unit[passes[k]] - 1]]);
    }
  }

  /** @returns {Beat[]} */
  #collectives() {
    const { model } = this;
    if (model.worldSize === 1) return [];
    const { columns, payload, units } = model;
    const smallest = Math.min(...units.filter(({ padded }) => padded).map(({ padded }) => padded));
    const { steps } = this.story;
    /** @type {Map<string, Beat>} */
    const deeds = new Map();
    /** @type {Map<string, number>} */
    const before = new Map();
    for (const [key, places] of model.collectives) {
      const [first] = places;
      const moved = this.unitsOf(first);
      const amid = steps && !moved.length && columns.step[first] ? this.amid.unitOf(first) : null;
      const alone = steps && !moved.length && !amid && (!columns.step[first] || columns.numel[first] < smallest);
      if (alone) this.ticks.push(columns.t_end[first]);
      if (alone || (steps && this.story.acts[first] === "setup")) continue; // the latter is told of as one
      const op = payload.words[columns.op[first] - 1];
      // Systems that send a unit parameter by parameter are told of once; one that is sent whole again, once more.
      const within = amid && `in ${amid.name}:${columns.numel[first]}:${this.#apart(first)}`;
      const one = `${this.#when(first)}:${op}:${within ?? moved[0]?.name}`;
      const here = `${columns.group[first]}:${one}`;
      const again = before.get(here) ?? 0;
      if (amid || (moved.length === 1 && columns.numel[first] >= moved[0].numel)) before.set(here, again + 1);
      const id = amid || moved.length === 1 ? `${one}:${again}` : key;
      this.#add(deeds, id, "collective", op, moved, places, amid);
    }
    return [...deeds.values()];
  }

  /**
   * How far apart the ranks of a collective's group are: alike for all groups that a mesh has in one direction.
   * @param {number} i
   */
  #apart(i) {
    const group = this.model.event(i).group ?? [];
    return group.map((rank) => rank - group[0]).join();
  }

  /** The computing of a unit, over all ranks (of one around others what is left after them), and their updates. */
  #ofRanks() {
    const { model } = this;
    const { columns, payload, units } = model;
    const [pass, optimizer] = [codeOf(payload.kinds, "module"), codeOf(payload.kinds, "optimizer")];
    /** @type {Map<string, Beat>[]} */
    const [passes, updates] = [new Map(), new Map()];
    for (let i = 0; i < model.count; i++) {
      if (columns.kind[i] === optimizer) this.#add(updates, this.#when(i), "update", "step", [], [i]);
      if (columns.kind[i] !== pass || !columns.unit[i]) continue;
      const [op, unit] = [payload.words[columns.op[i] - 1], units[columns.unit[i] - 1]];
      this.#add(passes, `${this.#when(i)}:${op}:${unit.name}`, "compute", op, [unit], [i]);
    }
    return [...passes.values(), ...updates.values()];
  }

  /**
   * Adds events to the deed `id`.
   * @param {Map<string, Beat>} deeds @param {string} id @param {Beat["kind"]} kind @param {string} op
   * @param {Unit[]} units @param {number[]} places @param {Unit | null} [amid]
   */
  #add(deeds, id, kind, op, units, places, amid = null) {
    const { columns, window } = this.model;
    const fresh = { t0: Infinity, t1: -Infinity, first: -1, last: -1, caption: "", seconds: 0, places: [], busy: 0 };
    const [i] = places;
    const deed = deeds.get(id) ?? { ...fresh, kind, op, units, amid, act: this.story.acts[i], step: window[i] };
    deeds.set(id, deed);
    deed.places = [...deed.places, ...places];
    for (const place of places) {
      deed.t0 = Math.min(deed.t0, columns.t_start[place]);
      deed.t1 = Math.max(deed.t1, columns.t_end[place]);
    }
  }

  /**
   * The deeds of a window as beats, one after another: in the order in which they ended, each from the end of the one
   * before. Computing that goes on beside the next collective leaves the rest of its time to that.
   * @param {StepWindow} window @param {Beat[]} deeds
   */
  #cut(window, deeds) {
    const { model } = this;
    const of = deeds.filter(({ step }) => step === window.step);
    // One slow rank would make all computing seem to end at once, and hide it behind what it came to; a collective
    // that moves a unit ends only with its last rank.
    for (const deed of of) if (deed.kind === "compute" || deed.amid) deed.t1 = this.#middle(deed, "t_end");
    for (const deed of of) if (deed.amid) this.#interrupt(deed, of);
    of.sort((a, b) => a.t1 - b.t1 || a.t0 - b.t0);
    const next = model.windows[model.windows.indexOf(window) + 1];
    // Its last event is shown within it: at the time that the last beat ends with, the next step has begun.
    const end = 1 + Math.max(window.t1, next ? next.t0 - 1 : model.columns.t_end[window.last]);
    if (!of.length) of.push(this.#still(window));
    /** @type {Beat[]} */
    const beats = [];
    // Ranks are not in step: the first may have begun a step before the last has ended the one before.
    const start = Math.max(window.t0, this.list.at(-1)?.t1 ?? -Infinity);
    let from = start;
    of.forEach((deed, k) => {
      const coming = of.slice(k + 1).find(({ kind }) => kind === "collective");
      const gives = deed.kind === "compute" && coming;
      const own = gives ? Math.min(deed.t1, Math.max(from, this.#middle(coming, "t_start"))) : deed.t1;
      // Of its time since the window began: what ended before, while a slow rank was still in the last step, is told.
      // The first rank may begin it long before most do.
      const its = Math.max(0, deed.t1 - Math.max(this.#middle(deed, "t_start"), start));
      if (deed.kind === "compute" && Math.max(0, own - from) < LEFT * its && k < of.length - 1) return;
      const until = Math.max(from + 1, own, k === of.length - 1 ? end : own);
      const begun = deed.kind === "collective" ? this.#middle(deed, "t_start") : deed.t0;
      const busy = Math.max(from, Math.min(until, begun));
      const [first, last] = [model.at(from) + (beats.length ? 1 : 0), model.at(until)];
      beats.push({ ...deed, t0: from, t1: until, busy, first: Math.min(first, last), last });
      from = until;
    });
    return beats;
  }

  /**
   * Computing is told of until what it comes to is first sent, and the rest of it with what is sent.
   * @param {Beat} sent @param {Beat[]} deeds
   */
  #interrupt(sent, deeds) {
    const begun = this.#middle(sent, "t_start");
    const around = deeds.find(
      ({ units, op, t0, t1 }) => units[0] === sent.amid && op === sent.act && t0 < begun && begun < t1,
    );
    if (around?.kind === "compute") around.t1 = begun;
  }

  /**
   * When half of the ranks had begun a deed, or ended it.
   * @param {Beat} beat @param {"t_start" | "t_end"} edge
   */
  #middle({ places }, edge) {
    const times = places.map((i) => this.model.columns[edge][i]).sort((a, b) => a - b);
    return times[times.length >> 1];
  }

  /**
   * A window in which nothing was sent or computed, as the one before the first step.
   * @param {StepWindow} window
   * @returns {Beat}
   */
  #still({ step, t0, t1, first, last }) {
    const act = this.story.acts[first];
    return {
      kind: "keep", op: "", units: [], amid: null, act, step,
      t0, t1, busy: t0, first, last, places: [], caption: "", seconds: 0,
    }; // biome-ignore format: a table
  }

  /** @param {Beat} beat */
  #seconds(beat) {
    const reading = beat.caption.split(" ").length / WORDS_A_SECOND;
    return Math.min(LONGEST, Math.max(beat.kind === "collective" ? 2.2 : SHORTEST, reading));
  }
}

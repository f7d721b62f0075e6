// The beats of two recordings side by side: what both do with a unit is one stop, and where only one of them does
// something, the other rests and says why.

import { unitsAbout } from "./amid.js";
import { grouped, size } from "./derived.js";
import { MOVED } from "./events.js";

/**
 * @import { Beats } from "./beats.js"
 * @import { Beat, Stop } from "./types.d.ts"
 */

/** The weight of matching two beats: of the same operation, of the same kind, or merely about the same units. */
const SAME = 5;
const ALIKE = 4;
const ABOUT = 1;

/**
 * The stops of two recordings, step by step: each a place in `first`, in `second`, or in both; -1 where one rests.
 * @param {Beats} first @param {Beats} second
 * @returns {Stop[]}
 */
export function align(first, second) {
  const sides = [first, second].map(({ list }) => grouped(list.keys(), (place) => list[place].step));
  const steps = [...new Set(sides.flatMap((side) => [...side.keys()]))].sort((a, b) => a - b);
  return steps.flatMap((step) => {
    const [left, right] = sides.map((side) => side.get(step) ?? []);
    return matched(first.list, second.list, left, right).map((beats) => ({ step, beats }));
  });
}

/**
 * How well two beats match: 0 unless they belong to the same act and the same units. Computing that overlaps sending is
 * not a beat of its own, so what the other side computes is matched with what this one sends.
 * @param {Beat} one @param {Beat} other
 */
function likeness(one, other) {
  if (one.act !== other.act || about(one) !== about(other)) return 0;
  if (one.kind !== other.kind) return one.units.length ? ABOUT : 0;
  if (one.kind === "collective" && MOVED[one.op] !== MOVED[other.op]) return 0;
  return one.op === other.op ? SAME : ALIKE;
}

/** @param {Beat} beat */
function about(beat) {
  return unitsAbout(beat)
    .map(({ name }) => name)
    .join();
}

/**
 * The longest common subsequence of two steps, by weight; beats without a counterpart go in between, act by act.
 * @param {Beat[]} first @param {Beat[]} second @param {number[]} left @param {number[]} right
 */
function matched(first, second, left, right) {
  const [n, m] = [left.length, right.length];
  /** The best sums of what is left from (i, j) on. */
  const best = Array.from({ length: n + 1 }, () => new Float64Array(m + 1));
  const like = (/** @type {number} */ i, /** @type {number} */ j) => likeness(first[left[i]], second[right[j]]);
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      const both = like(i, j);
      best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], both ? both + best[i + 1][j + 1] : 0);
    }
  }
  /** @type {Stop["beats"][]} */
  const stops = [];
  let [i, j] = [0, 0];
  let act = first[left[0]]?.act;
  while (i < n || j < m) {
    const both = i < n && j < m ? like(i, j) : 0;
    const mine = j === m || (i < n && best[i][j] === best[i + 1][j]);
    const other = i === n || (j < m && best[i][j] === best[i][j + 1]);
    if (both && best[i][j] === both + best[i + 1][j + 1]) stops.push([left[i++], right[j++]]);
    else if (mine && !(other && j < m && first[left[i]].act !== act && second[right[j]].act === act))
      stops.push([left[i++], -1]);
    else stops.push([-1, right[j++]]);
    act = (i > 0 && stops[stops.length - 1][0] >= 0 ? first[left[i - 1]] : second[right[j - 1]]).act;
  }
  return stops;
}

/**
 * Why one recording rests while the other does `beat`, in a sentence that follows from what it holds and does itself.
 * @param {Beats} beats @param {string} name @param {Beat} beat @param {number} before the place of its last beat
 */
export function resting(beats, name, beat, before) {
  const { model, list, story } = beats;
  if (!list.length) return `${name} has no beats: nobody recorded what its units are.`;
  if (!list.some(({ step }) => step === beat.step)) return `${name} has no step ${beat.step}.`;
  const missing = beat.units.find((unit) => !model.units.some((own) => own.name === unit.name));
  if (missing) return `${name} has no unit ${missing.name}.`;
  const elsewhere = list.findIndex((own) => own.step === beat.step && likeness(own, beat) >= ALIKE);
  if (elsewhere >= 0) return elsewhere <= before ? `${name} has done this already.` : `${name} does this later.`;
  if (beat.kind === "compute")
    return computed(beats, beat)
      ? `${name} computes this, too, within another beat.`
      : `${name} does not compute this by itself.`;
  const nothing = `${name} has nothing to do here`;
  if (MOVED[beat.op] === "gradients") {
    const own = list.some(
      ({ step, op, units }) => step === beat.step && MOVED[op] === "gradients" && shares(units, beat),
    );
    return own ? `${nothing}: it adds up these gradients at another time.` : `${nothing}.`;
  }
  if (beat.act === "share")
    return story.own
      ? `${nothing}: the owners keep their new parameters until somebody gathers them.`
      : `${nothing}${story.known.optimizer_state ? ": every rank has changed all parameters itself" : ""}.`;
  return MOVED[beat.op] === "parameters" && kept(beats, beat, list[before]?.t1 ?? -1)
    ? `${nothing}: it kept the parameters.`
    : `${nothing}.`;
}

/**
 * Whether a rank computed the units of a beat in its step although that is no beat of its own.
 * @param {Beats} beats @param {Beat} beat
 */
function computed({ model }, { step, op, units }) {
  const { columns, payload } = model;
  return columns.op.some((code, i) => {
    const unit = model.units[columns.unit[i] - 1];
    const own = columns.step[i] === step && payload.words[code - 1] === op;
    return own && payload.kinds[columns.kind[i] - 1] === "module" && units.some(({ name }) => name === unit?.name);
  });
}

/** @param {Beat["units"]} units @param {Beat} beat */
function shares(units, beat) {
  return units.some((unit) => beat.units.some(({ name }) => name === unit.name));
}

/**
 * Whether every rank already has all parameters of the beat's units at a time.
 * @param {Beats} beats @param {Beat} beat @param {number} time
 */
function kept({ model }, { units }, time) {
  const at = model.at(time);
  return units.every(({ name }) => {
    const own = model.units.find((unit) => unit.name === name);
    return model.rows.every(({ rank }) => own && size(model.held(rank, "parameters", name, at)) >= own.numel);
  });
}

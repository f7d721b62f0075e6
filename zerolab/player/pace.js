// How recorded time becomes time on the screen: a beat takes as long as its sentence, and no piece flies past unseen.

import { LONGEST } from "./beats.js";

/**
 * @import { Beats } from "./beats.js"
 * @import { Pieces } from "./pieces.js"
 * @import { Beat, Flight } from "./types.d.ts"
 */

/** The least number of seconds that a piece is in flight. */
const FLIGHT = 0.5;
/** Seconds between two parts that are added up in one place; otherwise they would seem to arrive together. */
const APART = 0.15;
/** The share of a beat, up to some seconds, before its subject begins. */
const LEAD = 0.3;
/** The least number of seconds of a beat that are spread like its recorded time, so that no moment is skipped. */
const SHARED = 0.1;
/** With more pieces than this no single one can be followed, and only the collective is given its time. */
const MANY = 300;

/** A piecewise linear map between recorded nanoseconds and seconds on the screen at speed 1, made beat by beat. */
export class Pace {
  /** @param {Beats} beats @param {Pieces} pieces */
  constructor(beats, pieces) {
    this.beats = beats;
    this.pieces = pieces;
    /** @type {Map<Beat, { times: number[], seconds: number[] }>} */
    this.known = new Map();
  }

  /**
   * The time on the screen since its beat began, of a recorded time in beat `place`.
   * @param {number} place @param {number} time
   */
  seconds(place, time) {
    const { times, seconds } = this.of(place);
    return between(times, seconds, time);
  }

  /**
   * The recorded time so many seconds after beat `place` began on the screen.
   * @param {number} place @param {number} shown
   */
  time(place, shown) {
    const { times, seconds } = this.of(place);
    return between(seconds, times, shown);
  }

  /**
   * How long beat `place` is shown, in seconds at speed 1.
   * @param {number} place
   */
  length(place) {
    return this.of(place).seconds.at(-1) ?? 0;
  }

  /**
   * Seconds on the screen between two recorded times.
   * @param {number} from @param {number} to
   */
  elapsed(from, to) {
    return this.#since(from, to) - this.#since(from, from);
  }

  /**
   * Seconds on the screen from the beginning of the beat in which `origin` lies to a later time.
   * @param {number} origin @param {number} time
   */
  #since(origin, time) {
    const [first, last] = [this.beats.at(origin), this.beats.at(time)];
    let sum = this.seconds(last, time);
    for (let place = first; place < last; place++) sum += this.length(place);
    return sum;
  }

  /** @param {number} place */
  of(place) {
    const beat = this.beats.list[place];
    const made = this.known.get(beat) ?? this.#make(beat, place);
    this.known.set(beat, made);
    return made;
  }

  /** @param {Beat} beat @param {number} place */
  #make(beat, place) {
    const { t0, t1, busy } = beat;
    // Of the neighbours too: what overlaps is on its way here already, or still.
    const landing = this.pieces
      .near(place)
      .flat()
      .filter(({ end }) => t0 < end && end <= t1);
    const seen = landing.length > MANY ? [] : landing;
    const flights = seen.map(({ start, end }) => [Math.max(t0, start), end]);
    const times = [...new Set([t0, busy, t1, ...flights.flat()])].sort((a, b) => a - b);
    const least = times.slice(1).map((to, k) => (to <= busy ? LEAD * Math.min(1, (to - times[k]) / (busy - t0)) : 0));
    lengthen(times, least, flights, FLIGHT);
    const apart = [...least];
    lengthen(times, apart, steps(seen), APART);
    const gaps = total(apart) + SHARED > LONGEST ? least : apart;
    const needed = total(gaps);
    const rest = Math.max(SHARED, beat.seconds - needed);
    // What is left over is shared as the recorded time is, so that long waits look longer than short ones.
    const own = Math.max(1, t1 - busy);
    const seconds = [0];
    for (const [k, gap] of gaps.entries()) {
      const more = times[k] >= busy ? (rest * (times[k + 1] - times[k])) / own : 0;
      seconds.push(seconds[k] + gap + more);
    }
    // A beat without length, as that of a recording of one moment, still takes its time.
    if (seconds.length === 1) return { times: [t0, t0], seconds: [0, beat.seconds] };
    return { times, seconds };
  }
}

/** @param {number[]} seconds */
function total(seconds) {
  return seconds.reduce((sum, one) => sum + one, 0);
}

/**
 * From one part that lands to the next, wherever parts are added up.
 * @param {Flight[]} flights
 */
function steps(flights) {
  const ends = flights.filter(({ adds }) => adds).sort((a, b) => a.to - b.to || a.end - b.end);
  return ends.flatMap(({ to, unit, end }, k) => {
    const next = ends[k + 1];
    return next?.to === to && next.unit === unit && next.end > end ? [[end, next.end]] : [];
  });
}

/**
 * Gives each stretch at least so many seconds, the soonest to end first: what is missing goes to the gaps that it
 * spans, by their recorded length.
 * @param {number[]} times @param {number[]} gaps @param {number[][]} stretches @param {number} seconds
 */
function lengthen(times, gaps, stretches, seconds) {
  for (const [start, end] of [...stretches].sort((a, b) => a[1] - b[1])) {
    const [first, last] = [times.indexOf(start), times.indexOf(end)];
    let has = 0;
    for (let k = first; k < last; k++) has += gaps[k];
    const missing = seconds - has;
    for (let k = first; missing > 0 && k < last; k++) gaps[k] += (missing * (times[k + 1] - times[k])) / (end - start);
  }
}

/**
 * The value at `x` on the line through ascending points.
 * @param {number[]} xs @param {number[]} ys @param {number} x
 */
function between(xs, ys, x) {
  let k = 0;
  while (k + 2 < xs.length && xs[k + 1] <= x) k += 1;
  const share = xs[k + 1] > xs[k] ? (x - xs[k]) / (xs[k + 1] - xs[k]) : 0;
  return ys[k] + Math.min(1, Math.max(0, share)) * (ys[k + 1] - ys[k]);
}

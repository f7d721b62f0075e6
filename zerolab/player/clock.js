// Playing: recorded time, slowed down. By beats each takes its own time and the step begins again at its end; by events
// a step takes some seconds, and stretches without events are cut short.

/**
 * @import { Model } from "./model.js"
 * @import { Pace } from "./pace.js"
 */

/** Seconds that a training step of middle length takes at speed 1. */
const STEP_SECONDS = 12;
/** No stretch in which no event ends is shown for longer than this, in seconds at speed 1. */
const LONGEST_WAIT = 0.8;

/** Where the reader prefers reduced motion, the picture changes no more often than this, in milliseconds. */
const CALM_EVERY = 700;

/** Seconds that a step rests at its end before it begins again. */
const REST = 1;

export const SPEEDS = [0.25, 0.5, 1, 2, 4];

/**
 * How many times slower than real the recording plays at speed 1; below 1 it plays faster than real.
 * @param {Model} model
 */
function slowdown(model) {
  const steps = model.windows.filter((window) => window.step > 0 || model.windows.length === 1);
  const lengths = steps.map((window) => window.t1 - window.t0).sort((a, b) => a - b);
  const middle = lengths[lengths.length >> 1] ?? 1e9;
  return (STEP_SECONDS * 1e9) / middle;
}

/**
 * What is told one after another, step by step: beats, or the stops of two recordings.
 * @template {{ step: number }} T
 */
export class Sequence {
  /** @param {T[]} [list] */
  constructor(list = []) {
    this.list = list;
  }

  /**
   * The place of the first of a step.
   * @param {number | undefined} step
   */
  first(step) {
    return this.list.findIndex((one) => one.step === step);
  }

  /**
   * Whether a step ends with the one at `place`; what came before the first step leads on into it.
   * @param {number} place
   */
  ends(place) {
    const [one, next] = [this.list[place], this.list[place + 1]];
    return !next || (next.step !== one.step && one.step > 0);
  }

  /**
   * Which of those of its step one is, in words.
   * @param {number} place
   */
  tell(place) {
    const { step } = this.list[place];
    return `beat ${place - this.first(step) + 1} of ${this.list.filter((one) => one.step === step).length}`;
  }

  /**
   * Moves on by some seconds: from one to the next, and at the end of a step, after a rest, to its first.
   * @param {{ place: number, within: number }} at @param {number} seconds
   * @param {(place: number) => number} length how long the one at a place is shown
   */
  advance(at, seconds, length) {
    const whole = () => length(at.place) + (this.ends(at.place) ? REST : 0);
    at.within += seconds;
    while (at.within >= whole()) {
      at.within -= whole();
      at.place = this.ends(at.place) ? this.first(this.list[at.place].step) : at.place + 1;
    }
  }
}

/** Moves a time on while the player plays; `moved(time)` is called once per frame, `ended()` at the end. */
export class Clock {
  /** @param {Model} model @param {(time: number) => void} moved @param {() => void} ended */
  constructor(model, moved, ended) {
    this.model = model;
    this.moved = moved;
    this.ended = ended;
    this.speed = 1;
    this.playing = false;
    this.time = 0;
    this.frame = 0;
    this.motion = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.shown = -Infinity;
    this.slow = slowdown(model);
    /** @type {Pace | null} */
    this.pace = null; // set while it plays by beats
    this.place = 0;
    this.within = 0; // seconds since the beat at `place` began
    this.last = -1; // the time at which playing left it; another one was shown since
  }

  /** Whether less motion is asked for, which may change at any time. */
  get calm() {
    return this.motion.matches;
  }

  play() {
    if (this.playing) return;
    this.playing = true;
    /** @type {number | null} */
    let last = null;
    this.shown = -Infinity;
    /** @type {FrameRequestCallback} */
    const tick = (now) => {
      if (!this.playing) return;
      if (last !== null) this.#advance(Math.min(now - last, 100) * 1e6);
      last = now;
      if (this.playing) this.frame = requestAnimationFrame(tick);
    };
    this.frame = requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    cancelAnimationFrame(this.frame);
  }

  /**
   * Moves on by `real` nanoseconds of the viewer's time.
   * @param {number} real
   */
  #advance(real) {
    if (this.pace) this.byBeats(this.pace, (real / 1e9) * this.speed);
    else this.#byEvents(real);
    const now = performance.now();
    if (!this.calm || !this.playing || now - this.shown >= CALM_EVERY) {
      this.shown = now;
      this.moved(this.calm ? this.model.columns.t_end[this.model.at(this.time)] : this.time);
    }
    if (!this.playing) this.ended();
  }

  /** @param {Pace} pace @param {number} seconds */
  byBeats(pace, seconds) {
    const { beats } = pace;
    if (this.time !== this.last) {
      this.place = beats.at(this.time);
      this.within = pace.seconds(this.place, this.time);
    }
    beats.advance(this, seconds, (place) => pace.length(place));
    // Short of its end, which is where the next one begins.
    this.time = Math.min(pace.time(this.place, this.within), beats.list[this.place].t1 - 1);
    this.last = this.time;
  }

  /** @param {number} real */
  #byEvents(real) {
    const { t_end: ends } = this.model.columns;
    const rate = this.speed / this.slow;
    const next = this.model.at(this.time) + 1;
    const quiet = next < this.model.count ? ends[next] - Math.max(this.time, ends[next - 1]) : 0;
    const whole = next < this.model.count ? ends[next] - ends[next - 1] : 0;
    const longest = LONGEST_WAIT * 1e9 * rate;
    const hurry = quiet > 0 && whole > longest ? whole / longest : 1;
    const step = real * rate * hurry;
    this.time += hurry > 1 ? Math.min(step, quiet) : step;
    const end = ends[this.model.count - 1];
    if (this.time >= end) {
      this.time = end;
      this.pause();
    }
  }
}

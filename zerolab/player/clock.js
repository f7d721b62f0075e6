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
export const REST = 1;

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
    this.calm = false;
    this.shown = -Infinity;
    this.slow = slowdown(model);
    /** @type {Pace | null} */
    this.pace = null; // set while it plays by beats
    this.place = 0;
    this.within = 0; // seconds since the beat at `place` began
    this.last = -1; // the time at which playing left it; another one was shown since
  }

  play() {
    if (this.playing) return;
    this.playing = true;
    /** @type {number | null} */
    let last = null;
    this.calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
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
    this.within += seconds;
    const length = () => pace.length(this.place) + (beats.ends(this.place) ? REST : 0);
    while (this.within >= length()) {
      this.within -= length();
      this.place = beats.ends(this.place) ? beats.first(beats.list[this.place].step) : this.place + 1;
    }
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

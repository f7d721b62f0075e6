// Two recordings stop by stop: both show the same stop, each at its own recorded time, and a stop lasts as long as the
// longer of its two beats.

import { align, resting } from "./align.js";
import { Clock, Sequence } from "./clock.js";
import { Steps, UNDER_WAY } from "./steps.js";

/**
 * @import { Player } from "./player.js"
 * @import { Stop } from "./types.d.ts"
 */

/**
 * The stops of two players, and the one that they show: its place, and the seconds since it began.
 * @extends {Sequence<Stop>}
 */
export class Together extends Sequence {
  /** @param {Player[]} players @param {string[]} names */
  constructor(players, names) {
    super(align(players[0].beats, players[1].beats));
    this.players = players;
    this.names = names;
    /** Of each side and stop its beat, or the last one before if it rests. */
    this.before = [0, 1].map((side) => {
      let last = -1;
      return this.list.map(({ beats }) => {
        if (beats[side] >= 0) last = beats[side];
        return last;
      });
    });
    /** @type {Map<string, string>} */
    this.said = new Map(); // why a side rests at a stop, found once
    this.place = 0;
    this.within = 0;
  }

  /**
   * How long a stop is shown, in seconds at speed 1.
   * @param {number} place
   */
  length(place) {
    const { beats } = this.list[place];
    return Math.max(...beats.map((beat, side) => (beat < 0 ? 0 : this.players[side].pace.length(beat))));
  }

  /**
   * The recorded time that a side shows now.
   * @param {number} side
   */
  time(side) {
    return this.list.length ? this.#time(side, this.place, this.within / (this.length(this.place) || 1)) : 0;
  }

  /**
   * A side's time at a share of a stop: of a beat before its end, where the next one begins; where it rests, the end of
   * the beat before, or the beginning of its step.
   * @param {number} side @param {number} place @param {number} share
   */
  #time(side, place, share) {
    const { pace, beats, model } = this.players[side];
    const { step, beats: shown } = this.list[place];
    const own = shown[side];
    if (own >= 0) {
      const time = pace.time(own, Math.min(1, share) * pace.length(own));
      return Math.min(time, beats.list[own].t1 - 1);
    }
    const before = beats.list[this.before[side][place]];
    if (before?.step === step) return before.t1 - 1;
    return beats.list[beats.first(step)]?.t0 ?? (before ? before.t1 - 1 : (model.windows[0]?.t0 ?? 0));
  }

  /**
   * The place of the stop in which a side shows a time, and the share of it that has passed.
   * @param {number} side @param {number} time
   */
  #at(side, time) {
    const { beats, pace } = this.players[side];
    const beat = beats.at(time);
    const place = this.list.findIndex((stop) => stop.beats[side] === beat);
    return { place, share: place < 0 ? 0 : pace.seconds(beat, time) / (pace.length(beat) || 1) };
  }

  /**
   * A time of one side as the other's.
   * @param {number} side @param {number} time
   */
  across(side, time) {
    const { place, share } = this.#at(side, time);
    return place < 0 ? 0 : this.#time(1 - side, place, share);
  }

  /**
   * Makes the stop in which a side shows a time the one that is shown.
   * @param {number} side @param {number} time
   */
  seek(side, time) {
    const { place, share } = this.#at(side, time);
    if (place < 0) return;
    this.place = place;
    this.within = share * this.length(place);
  }

  /**
   * Why a side rests at the stop that is shown; empty if it does not.
   * @param {number} side
   */
  resting(side) {
    return this.why(side, this.place);
  }

  /**
   * The same of any stop.
   * @param {number} side @param {number} place
   */
  why(side, place) {
    const stop = this.list[place];
    if (!stop || stop.beats[side] >= 0) return "";
    const key = `${side}:${place}`;
    const other = this.players[1 - side].beats.list[stop.beats[1 - side]];
    const said =
      this.said.get(key) ??
      resting(this.players[side].beats, this.names[side].replace(/^the/, "The"), other, this.before[side][place]);
    this.said.set(key, said);
    return said;
  }
}

/** The clock of one of two players: by beats it moves both on. */
export class SharedClock extends Clock {
  /** @param {Together} together @param {number} side @param {Clock} clock */
  constructor(together, side, clock) {
    super(clock.model, clock.moved, clock.ended);
    this.together = together;
    this.side = side;
    this.time = clock.time;
    this.pace = clock.pace;
  }

  /** @override @param {import("./pace.js").Pace} _pace @param {number} seconds */
  byBeats(_pace, seconds) {
    const { together, side } = this;
    together.advance(together, seconds, (place) => together.length(place));
    this.time = together.time(side);
  }
}

/** The steps of one of two players: by beats they lead from stop to stop, also where this player rests. */
export class SharedSteps extends Steps {
  /** @param {Together} together @param {number} side @param {Player} player */
  constructor(together, side, player) {
    super(player);
    this.together = together;
    this.side = side;
  }

  /** @override @param {number} direction */
  next(direction) {
    if (!this.player.byBeats) return super.next(direction);
    this.player.pause();
    this.to(this.together.place + direction);
  }

  /** @override @param {boolean} last */
  edge(last) {
    if (!this.player.byBeats) return super.edge(last);
    this.player.pause();
    const { list, place } = this.together;
    const { step } = list[place];
    if (last) this.to(list.findLastIndex((stop) => stop.step === step));
    else this.to(this.together.first(step), 0);
  }

  /** @param {number} place @param {number} [share] */
  to(place, share = UNDER_WAY) {
    const { together, side, player } = this;
    if (!together.list[place]) return;
    together.place = place;
    together.within = share * together.length(place);
    player.showTime(together.time(side));
    player.settle();
  }
}

// Where the buttons and keys lead: to the next beat or event, phase, unit or training step.

import { passes } from "./filter.js";
import { lastAtMost } from "./model.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Beat } from "./types.d.ts"
 */

/** The share of a beat's time on the screen after which its pieces are well on their way. */
export const UNDER_WAY = 0.6;

/** The steps of one player; each pauses it. */
export class Steps {
  /** @param {Player} player */
  constructor(player) {
    this.player = player;
  }

  /**
   * The next beat; by events the next event that the filter leaves, all of them where it leaves everything.
   * @param {number} direction
   */
  next(direction) {
    const { player } = this;
    const { model, filter, byBeats } = player;
    player.pause();
    if (player.walk.open) return player.walk.go(direction);
    if (byBeats) return this.beat(player.beats.at(player.clock.time) + direction);
    let index = player.index + direction;
    while (index >= 0 && index < model.count && !passes(model, filter, index)) index += direction;
    if (index >= 0 && index < model.count) player.goto(index);
  }

  /**
   * The moment of a beat at which what it is about is well under way; of the last one of a step its end.
   * @param {number} place
   */
  beat(place) {
    const { beats, pace } = this.player;
    if (!beats.list[place]) return;
    const under = pace.time(place, UNDER_WAY * pace.length(place));
    this.#to(beats.ends(place) ? beats.list[place].t1 - 1 : under);
  }

  /**
   * By beats the phases are those that are told with them.
   * @param {number} direction
   */
  phase(direction) {
    const { beats, byBeats, clock } = this.player;
    if (!byBeats) return this.#on(({ model, index }) => nextPhase(model, index, direction));
    this.player.pause();
    const found = beats.list[nextAct(beats.list, beats.at(clock.time), direction, clock.time)];
    if (found) this.#to(found.t0);
  }

  /** @param {number} direction */
  unit(direction) {
    this.#on(({ model, index }) => nextUnit(model, index, direction));
  }

  /** @param {number} direction */
  window(direction) {
    const { player } = this;
    const { model, beats, beat } = player;
    player.pause();
    // Where a fast rank is ahead, a step begins while another is still told; so by beats theirs count.
    const step = beat ? beat.step : model.windowOf(player.index)?.step;
    const next = model.windows[model.windows.findIndex((one) => one.step === step) + direction];
    if (!next) return;
    player.lens.choose(next);
    if (player.byBeats) this.#to(beats.list[beats.first(next.step)].t0);
    else player.goto(next.first);
  }

  /** The moment at which the current event's rank had most live bytes. */
  peak() {
    this.#on(({ model, index }) => model.peaks[model.columns.rank[index]]?.index ?? index);
  }

  /**
   * The first beat of the step that is shown, or the last; by events those of the recording.
   * @param {boolean} last
   */
  edge(last) {
    const { player } = this;
    if (!player.byBeats) return player.goto(last ? Infinity : 0);
    player.pause();
    const { beats, clock } = player;
    const { list } = beats;
    const step = list[beats.at(clock.time)]?.step;
    const place = last ? list.findLastIndex((beat) => beat.step === step) : beats.first(step);
    if (last) this.beat(place);
    else if (list[place]) this.#to(list[place].t0);
  }

  /** @param {number} time */
  #to(time) {
    this.player.showTime(time);
    this.player.settle();
  }

  /** @param {(player: Player) => number} place */
  #on(place) {
    this.player.pause();
    if (this.player.model.count) this.player.goto(place(this.player));
  }
}

/**
 * The name of a beat's act: to send new parameters is a part of the update.
 * @param {Beat} beat
 */
export function actOf({ act }) {
  return act === "share" ? "update" : act;
}

/**
 * The beat that begins the next act; backwards the one that began this act, or, from there, the act before.
 * @param {Beat[]} list @param {number} place @param {number} direction @param {number} time
 */
function nextAct(list, place, direction, time) {
  const isBeginning = (/** @type {number} */ k) =>
    k === 0 || actOf(list[k]) !== actOf(list[k - 1]) || list[k].step !== list[k - 1].step;
  let at = direction < 0 && time > list[place]?.t0 ? place : place + direction;
  while (list[at] && !isBeginning(at)) at += direction;
  return at;
}

/**
 * The nearest event in `direction` (+1 or -1) at which the phase changes, on the rank of event `i`.
 * @param {Model} model @param {number} i @param {number} direction
 */
export function nextPhase({ ofRank, columns }, i, direction) {
  const places = ofRank[columns.rank[i]];
  const { phase, step } = columns;
  /** @type {(a: number, b: number) => boolean} */
  const same = (a, b) => phase[a] === phase[b] && step[a] === step[b];
  let at = lastAtMost(places, i);
  if (direction > 0) {
    while (at + 1 < places.length && same(places[at], places[at + 1])) at += 1;
    return places[Math.min(at + 1, places.length - 1)];
  }
  at = Math.max(0, at - 1);
  while (at > 0 && same(places[at], places[at - 1])) at -= 1;
  return places[at];
}

/**
 * The nearest event in `direction` on the rank of event `i` that is about another unit.
 * @param {Model} model @param {number} i @param {number} direction
 */
export function nextUnit({ ofRank, columns }, i, direction) {
  const places = ofRank[columns.rank[i]];
  const { unit } = columns;
  for (let at = lastAtMost(places, i) + direction; at >= 0 && at < places.length; at += direction) {
    if (unit[places[at]] && unit[places[at]] !== unit[i]) return places[at];
  }
  return i;
}

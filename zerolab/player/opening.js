// Where a player opens: where there is something to see.

import { codeOf } from "./derived.js";

/**
 * @import { Model } from "./model.js"
 * @import { Player } from "./player.js"
 * @import { Options } from "./types.d.ts"
 */

/**
 * Shows where a player opens, or what the page or the notebook asks for instead; returns the event where it opens.
 * @param {Player} player @param {Options} options
 */
export function open(player, { event, walk, time, beat }) {
  const { beats, byBeats, model } = player;
  const opening = byBeats ? beats.list[beats.opening()].t0 : 0;
  const opened = byBeats ? model.at(opening) : openingOf(model);
  if (byBeats && event === undefined) player.showTime(opening);
  else player.goto(event ?? opened);
  if (time !== undefined) {
    // By beats most moments lie between the ends of two events: that of the event is often in the beat before.
    player.clock.time = time;
    player.refresh();
  }
  if (beat) player.steps.beat(beat - 1);
  if (walk) player.walk.show(walk - 1, event === undefined);
  return opened;
}

/**
 * Where there is something to see: the first event in a training step that has a line, is of a kind worth seeing and is
 * about the largest unit, whose pieces and arrows are the easiest to see; or about any unit if the largest has none.
 * If that is a mere pass, nothing is being sent and only parameters are held so far: then we open while gradients are
 * reduced.
 * @param {Model} model
 */
function openingOf(model) {
  const { payload, columns, units } = model;
  const largest = units.reduce((best, unit, k) => (unit.padded > (units[best]?.padded ?? 0) ? k : best), -1) + 1;
  /** @type {number | null} */
  let first = null;
  const hold = codeOf(payload.words, "hold");
  const [collective, pass] = [codeOf(payload.kinds, "collective"), codeOf(payload.kinds, "module")];
  for (let i = 0; i < model.count; i++) {
    if (columns.step[i] < 1 || !columns.source[i] || columns.parent[i] >= 0) continue;
    const kind = columns.kind[i];
    if (kind !== collective && kind !== pass && columns.op[i] !== hold) continue;
    if (!largest || columns.unit[i] === largest) return kind === pass ? (reducing(model) ?? i) : i;
    first ??= i;
  }
  return first ?? model.windows.find((window) => window.step > 0)?.first ?? 0;
}

/**
 * Halfway through the reductions of rank 0 in step 2, the first with optimizer state (or the last before it); null
 * without any.
 * @param {Model} model
 */
function reducing({ payload, columns, ofRank }) {
  const { step: steps, phase, kind, parent, source } = columns;
  const [reduce, collective] = [codeOf(payload.phases, "reduce"), codeOf(payload.kinds, "collective")];
  const isOne = (/** @type {number} */ i) => phase[i] === reduce && kind[i] === collective && parent[i] < 0;
  const all = (ofRank[0] ?? []).filter((i) => reduce && isOne(i) && source[i]);
  const step = Math.min(2, ...all.slice(-1).map((i) => steps[i]));
  const of = all.filter((i) => steps[i] === step);
  return of.length ? of[of.length >> 1] : null;
}

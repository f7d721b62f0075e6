// How much of a unit's parameters ranks ever had, and which units none of them ever had whole.

import { codeOf, grouped, size } from "./derived.js";

/**
 * @import { Model } from "./model.js"
 * @import { Act, Unit } from "./types.d.ts"
 */

/**
 * The least and the most elements of a unit that a rank was ever recorded to have, 0 if none.
 * @param {Model} model @param {number} rank @param {Unit} unit
 */
export function range(model, rank, unit) {
  const sizes = model.changes(rank, "parameters", unit.name).spans.map(size).filter(Boolean);
  return sizes.length ? { least: Math.min(...sizes), most: Math.max(...sizes) } : { least: 0, most: 0 };
}

/**
 * The names of the units that ranks have computed with although each has a part alone, as under tensor parallelism.
 * @param {Model} model
 */
export function divided(model) {
  const { columns, cut, payload, rows, units } = model;
  const forward = codeOf(payload.words, "forward");
  const used = new Set(columns.unit.filter((_, i) => columns.op[i] === forward && !cut.has(i)));
  const isDivided = (/** @type {Unit} */ unit) => {
    const most = rows.map(({ rank }) => range(model, rank, unit).most);
    return most.some(Boolean) && most.every((held) => held < 0.99 * unit.numel);
  };
  return new Set(
    units.filter((unit, k) => used.has(k + 1) && !unit.replicated && isDivided(unit)).map(({ name }) => name),
  );
}

/**
 * Whether units are gathered for a forward, not only what was computed with them.
 * @param {Model} model @param {Act[]} acts
 */
export function gathers({ columns, payload }, acts) {
  const gather = codeOf(payload.words, "all_gather");
  return columns.op.some((op, i) => op === gather && columns.unit[i] > 0 && acts[i] === "forward");
}

/**
 * Whether no rank keeps all of any unit.
 * @param {Model} model
 */
export function areAllInParts(model) {
  const units = model.units.filter(({ numel }) => numel);
  return units.every((unit) => model.rows.every(({ rank }) => range(model, rank, unit).least < 0.99 * unit.numel));
}

/**
 * Whether operations of an act move, on a rank in a step, a unit or as many elements as are trained: parameters or
 * gradients, no figures. And whether that many are just what they move, on all in each, but for less than a unit.
 * @param {Model} model @param {Act[]} acts @param {Act} act @param {string[]} ops
 */
export function sends({ columns, payload, units }, acts, act, ...ops) {
  const trained = units.filter(({ frozen, numel }) => !frozen && numel).map(({ numel }) => numel);
  const all = trained.reduce((sum, numel) => sum + numel, 0);
  const codes = ops.map((op) => codeOf(payload.words, op)).filter(Boolean);
  const sent = [...acts.keys()].filter(
    (i) => acts[i] === act && columns.parent[i] < 0 && codes.includes(columns.op[i]),
  );
  const each = [...grouped(sent, (i) => `${columns.rank[i]}:${columns.step[i]}`).values()].map((places) => ({
    named: places.some((i) => columns.unit[i] || columns.from_autograd[i]),
    numel: places.reduce((sum, i) => sum + columns.numel[i], 0),
  }));
  return {
    all: all > 0 && each.some(({ named, numel }) => named || numel >= all),
    just: each.every(({ numel }) => numel >= all && numel < all + Math.min(...trained)),
  };
}

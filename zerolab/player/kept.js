// How much of a unit's parameters ranks ever had, and which units none of them ever had whole.

import { codeOf, size } from "./derived.js";

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

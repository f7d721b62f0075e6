// The numbers of tensors that belong to no model, as they were recorded: before a collective, and after it.

import { codeOf } from "./derived.js";

/**
 * @import { Model } from "./model.js"
 * @import { Exchange, Numbers } from "./types.d.ts"
 */

/**
 * What the events of a collective say, and the waits for them, by rank.
 * @param {Model} model @param {number[]} places
 * @returns {Numbers}
 */
export function numbersOf(model, places) {
  const { kind, parent, rank, numbers } = model.columns;
  const wait = codeOf(model.payload.kinds, "wait");
  /** @type {Numbers} */
  const found = { before: [], after: [] };
  if (!model.payload.numbers.length) return found;
  for (const i of places) found.before[rank[i]] = model.event(i).numbers;
  const own = new Set(places);
  for (let i = 0; i < model.count; i++)
    if (kind[i] === wait && numbers[i] && own.has(parent[i])) found.after[rank[i]] = model.event(i).numbers;
  return found;
}

/**
 * The numbers that a rank has in a part, if they were recorded: what one rank brought, or what all came to.
 * @param {Exchange} exchange @param {number} rank @param {number} part @param {number[]} has
 * @returns {number[] | null}
 */
export function numbersAt(exchange, rank, part, has) {
  const { op, ranks, adds, numbers } = exchange;
  if (!has.length) return null;
  if (adds && has.length > 1)
    return has.length === ranks.length ? shareOf(exchange, numbers.after[ranks[part]], part) : null;
  const [whose] = has;
  const place = op === "all_to_all" && whose !== rank ? ranks.indexOf(rank) : part;
  return shareOf(exchange, numbers.before[whose], place);
}

/**
 * A part of the whole buffer; a rank that has a share of it has its own.
 * @param {Exchange} exchange @param {number[] | null | undefined} all @param {number} part
 */
function shareOf({ numel, parts }, all, part) {
  const size = numel / parts;
  if (all?.length === numel) return all.slice(part * size, (part + 1) * size);
  return all?.length === size ? all : null;
}

/**
 * Numbers as short as they can be read: 60, 0.5, 1.23.
 * @param {number[]} numbers
 */
export function written(numbers) {
  return numbers.map((one) => String(Number(one.toPrecision(3)))).join(" ");
}

// Collectives of tensors that belong to no model: which parts are on which rank at a moment, and whose they are.

import { codeOf } from "./derived.js";
import { sentWithReceived } from "./messages.js";
import { numbersOf } from "./numbers.js";

/**
 * @import { Model } from "./model.js"
 * @import { Exchange, Shipment } from "./types.d.ts"
 */

/** What is drawn: whether parts are added up, and what each rank has of the buffer beforehand. */
const KNOWN = new Set(["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]);

/** More ranks than this get no picture: its blocks would be too small to see. */
const MOST_RANKS = 64;

/**
 * The exchanges of a recording without a model, in the order in which they began; none where there is a model, nor of
 * another tool's times, which do not say what was in them.
 * @param {Model} model
 * @returns {Exchange[]}
 */
export function exchangesOf(model) {
  if (model.payload.meta.times_only) return [];
  if (model.units.some(({ padded }) => padded) || model.worldSize < 2 || model.worldSize > MOST_RANKS) return [];
  const found = [...collectivesOf(model), ...messagesOf(model)].filter(({ shipments }) => shipments.length);
  return found.sort((a, b) => a.start - b.start);
}

/** @param {Model} model */
function collectivesOf(model) {
  const { columns, payload } = model;
  const collective = codeOf(payload.kinds, "collective");
  /** @type {Exchange[]} */
  const found = [];
  for (const places of model.collectives.values()) {
    const own = places.filter((i) => columns.kind[i] === collective);
    const event = own.length ? model.event(own[0]) : null;
    if (!event || !KNOWN.has(event.op)) continue;
    const ranks = event.group ?? everyRank(model);
    const [, root] = /^from rank (\d+)$/.exec(event.text ?? "") ?? [];
    if (event.op === "broadcast" && root === undefined) continue;
    const { op, numel } = event;
    const start = Math.max(...own.map((i) => columns.t_start[i])); // a group begins when the last of its ranks has come
    const recorded = own.flatMap((i) => model.partsOf(i));
    const parts = numel % ranks.length && /all_reduce|broadcast/.test(op) ? 1 : ranks.length;
    const shipments = recorded.length
      ? recordedShipments(model, op, ranks, recorded)
      : impliedShipments(model, parts === 1 && op === "all_reduce" ? "one" : op, ranks, own, Number(root ?? 0));
    found.push({
      op,
      ranks,
      turn: columns.number[own[0]],
      numel,
      parts,
      numbers: numbersOf(model, own),
      start,
      shipments,
      adds: /reduce/.test(op),
      root: Number(root ?? 0),
      recorded: recorded.length > 0,
    });
  }
  return found;
}

/** @param {Model} model */
const everyRank = ({ worldSize }) => Array.from({ length: worldSize }, (_, rank) => rank);

/**
 * Exchanges that are drawn together: what groups that share no rank do alike in their same turn.
 * @param {Exchange[]} exchanges
 */
export function beside(exchanges) {
  /** @type {Exchange[][]} */
  const found = [];
  for (const one of exchanges) {
    const [size, key] = [one.ranks.length, `${one.op} ${one.turn} ${one.numel}`];
    const like = found.find(
      (others) =>
        size === others[0].ranks.length &&
        key === `${others[0].op} ${others[0].turn} ${others[0].numel}` &&
        !others.some(({ ranks }) => ranks.some((rank) => one.ranks.includes(rank))),
    );
    if (like) like.push(one);
    else found.push([one]);
  }
  return found;
}

/**
 * What a collective's own messages carry.
 * @param {Model} model @param {string} op @param {number[]} ranks @param {number[]} messages
 * @returns {Shipment[]}
 */
function recordedShipments(model, op, ranks, messages) {
  const { t_start: start, t_end: end } = model.columns;
  return sentWithReceived(model, messages).map(({ from, to, send, receive, half }) => {
    const adds = op === "reduce_scatter" || (op === "all_reduce" && half === 0);
    const part = ranks.indexOf(adds ? to : from);
    return { from, to, source: part, part, adds, start: start[send], end: end[receive] };
  });
}

/**
 * What a collective means whose messages were not recorded: each rank has it all when its own event is over.
 * @param {Model} model @param {string} op @param {number[]} ranks @param {number[]} places @param {number} root
 * @returns {Shipment[]}
 */
function impliedShipments(model, op, ranks, places, root) {
  const { t_start, t_end, rank } = model.columns;
  const start = Math.max(...places.map((i) => t_start[i]));
  const there = places.map((i) => rank[i]);
  return places.flatMap((i) => {
    const to = rank[i];
    const end = Math.max(start + 1, t_end[i]);
    const half = (start + end) / 2;
    return there
      .filter((from) => from !== to)
      .flatMap((from) => {
        const way = { from, to, start, end };
        const [theirs, own] = [ranks.indexOf(from), ranks.indexOf(to)];
        if (op === "one") return [{ ...way, source: 0, part: 0, adds: true }];
        if (op === "all_gather") return [{ ...way, source: theirs, part: theirs, adds: false }];
        if (op === "reduce_scatter") return [{ ...way, source: own, part: own, adds: true }];
        if (op === "all_to_all") return [{ ...way, source: own, part: theirs, adds: false }];
        if (op === "broadcast")
          return from === root ? ranks.map((_, part) => ({ ...way, source: part, part, adds: false })) : [];
        const middle = Math.min(half, ...places.map((k) => (start + Math.max(start + 1, t_end[k])) / 2));
        return [
          { ...way, end: middle, source: own, part: own, adds: true },
          { ...way, start: middle, source: theirs, part: theirs, adds: false },
        ];
      });
  });
}

/**
 * Hand-written sends and receives between two collectives of all ranks make one exchange. We know which part a message
 * carries if it is a slice of a tensor with as many equal parts as there are ranks. A message received into a separate
 * buffer is assumed to be added to the same part of the receiver's.
 * @param {Model} model
 */
function messagesOf(model) {
  const { columns, payload } = model;
  const collective = codeOf(payload.kinds, "collective");
  /** @type {Map<number, number[]>} */
  const runs = new Map();
  for (const places of model.ofRank) {
    let run = 0;
    for (const i of [...places].sort((a, b) => columns.seq[a] - columns.seq[b])) {
      if (columns.kind[i] !== collective || columns.parent[i] >= 0) continue;
      // What a group does on its own does not delimit an exchange of all ranks.
      if (columns.number[i]) run += columns.group[i] ? 0 : 1;
      else if (columns.peer[i]) runs.set(run, [...(runs.get(run) ?? []), i]);
    }
  }
  return [...runs.values()].map((messages) => handMade(model, messages));
}

/**
 * @param {Model} model @param {number[]} messages
 * @returns {Exchange}
 */
function handMade(model, messages) {
  const { t_start, t_end } = model.columns;
  const shipments = sentWithReceived(model, messages).flatMap(({ from, to, send, receive }) => {
    const [source, at] = [partNoted(model, send), partNoted(model, receive)];
    if (source === null) return [];
    return [{ from, to, source, part: at ?? source, adds: at === null, start: t_start[send], end: t_end[receive] }];
  });
  const adds = shipments.some((one) => one.adds);
  const numel = messages.length ? model.event(messages[0]).numel * model.worldSize : 0;
  const start = Math.min(...messages.map((i) => t_start[i]));
  const [ranks, numbers] = [everyRank(model), { before: [], after: [] }];
  const [parts, turn] = [ranks.length, 0];
  return { op: "messages", ranks, turn, numel, parts, numbers, start, shipments, adds, root: 0, recorded: true };
}

/**
 * Which part of its tensor a message is, from "elements 4 to 8 of 16"; null where it is none of N equal ones.
 * @param {Model} model @param {number} i
 */
function partNoted(model, i) {
  const found = /^elements (\d+) to (\d+) of (\d+)$/.exec(model.event(i).text ?? "");
  if (!found) return null;
  const [from, to, whole] = found.slice(1).map(Number);
  const part = whole / model.worldSize;
  return to - from === part && from % part === 0 ? from / part : null;
}

/**
 * What comes to the places of an exchange, in order, and what a rank has there after each, once it was asked for.
 * @typedef {{ before: number[], came: Shipment[], has: number[][] }} Block
 * @type {WeakMap<Exchange, Map<string, Block>>}
 */
const blocks = new WeakMap();

/**
 * @param {Exchange} exchange @param {number} rank @param {number} part
 * @returns {Block}
 */
function blockOf(exchange, rank, part) {
  const places = blocks.get(exchange) ?? new Map();
  blocks.set(exchange, places);
  const key = `${rank} ${part}`;
  const found = places.get(key);
  if (found) return found;
  const came = exchange.shipments.filter((one) => one.to === rank && one.part === part).sort((a, b) => a.end - b.end);
  const made = { before: hadBefore(exchange, rank, part), came, has: [] };
  places.set(key, made);
  return made;
}

/**
 * Whose numbers a rank has at a place at a time, in order: several where they are added up, none where nothing is.
 * @param {Exchange} exchange @param {number} rank @param {number} part @param {number} time
 * @returns {number[]}
 */
export function contents(exchange, rank, part, time) {
  const { before, came, has } = blockOf(exchange, rank, part);
  const there = came.findLastIndex(({ end }) => end <= time);
  for (let k = has.length; k <= there; k++) {
    const { from, source, start, adds } = came[k];
    const more = contents(exchange, from, source, start);
    has[k] = adds ? [...new Set([...(has[k - 1] ?? before), ...more])].sort((a, b) => a - b) : more;
  }
  return has[there] ?? before;
}

/**
 * What a rank has of a part before the exchange.
 * @param {Exchange} exchange @param {number} rank @param {number} part
 */
function hadBefore({ op, ranks, adds, root, shipments }, rank, part) {
  if (op === "broadcast") return rank === root ? [root] : [];
  if (op === "all_gather") return rank === ranks[part] ? [rank] : [];
  if (adds || op === "all_to_all") return [rank];
  // By hand: a rank has what it sends before any of it has come.
  const sent = shipments.filter((one) => one.from === rank && one.source === part).map(({ start }) => start);
  const came = shipments.filter((one) => one.to === rank && one.part === part).map(({ end }) => end);
  return came.length && Math.min(...came) <= Math.min(Infinity, ...sent) ? [] : [rank];
}

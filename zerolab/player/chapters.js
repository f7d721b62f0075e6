// The chapters of the guided walk, cut from one step of a recording: what happens to one unit, one thing after another.
// A chapter for which the recording has nothing is left out; nothing is derived from the stage's name.

import { untold } from "./derived.js";
import { tellPeak, tellTotal, tellTurn } from "./endings.js";
import { entries } from "./events.js";
import { Facts } from "./facts.js";
import { bytes, capital, duration, exact, possessive, spoken, words } from "./format.js";
import { alike, howMany, howMuch, part, whoUpdates } from "./questions.js";
import { listed, Teller } from "./teller.js";

/**
 * @import { Beats } from "./beats.js"
 * @import { Model } from "./model.js"
 * @import { Story } from "./story.js"
 * @import { Values } from "./values.js"
 * @import { Beat, Chapter, State } from "./types.d.ts"
 */

/** With fewer chapters than this, the last one included, there is nothing to be led through. */
const FEWEST = 4;

/**
 * The chapters of a recording; none where it has no step, no units, or does not say who holds what.
 * @param {{ model: Model, beats: Beats, story: Story, values: Values }} player
 * @returns {Chapter[]}
 */
export function chaptersOf({ model, beats, story, values }) {
  if (untold(model) || !model.count) return [];
  const facts = new Facts(model, beats, values);
  if (!facts.step || !facts.unit || !facts.own.length) return [];
  // Its chapters tell of nothing else, and of units that all ranks compute, whole once they are gathered.
  if (!story.known.parameters || !story.known.optimizer_state || story.divided.size || story.passes) return [];
  const teller = new Teller(facts, facts.unit, story);
  for (const tell of TOLD_IN_ORDER) tell(teller);
  if (teller.chapters.length + 1 < FEWEST) return [];
  tellTurn(teller);
  return teller.chapters;
}

/** @type {((t: Teller) => void)[]} */
const TOLD_IN_ORDER = [
  tellRest, tellGather, tellForward, tellAhead, tellBackward, tellReduce, tellUpdate, tellShare, tellPeak, tellTotal,
]; // biome-ignore format: a table

/** @param {Teller} t */
function tellRest(t) {
  const { facts, story, unit, name, start } = t;
  const { parts } = story;
  const { me } = facts;
  const sizes = [...new Set(Object.values(parts).filter(Boolean))];
  const named = (/** @type {number} */ n) =>
    listed(entries(parts).flatMap(([category, of]) => (of === n ? [words(category)] : [])));
  const kept = sizes.map((n) => `${story.uneven ? "what it owns" : part(n)} of all ${named(n)}`);
  const drawn = facts.model.units.filter(({ padded }) => padded);
  const root = drawn.some((one) => one.name === "root") ? " Root is what lies in no block." : "";
  const units = parts.parameters
    ? `The model is cut into units, such as ${name}: their parameters travel together.${root}`
    : `The model is shown in units, such as ${name}, one column each.${root}`;
  const says =
    t.ranks === 1
      ? "This rank is alone and keeps everything: parameters, gradients and optimizer state."
      : kept.length
        ? `Each of ${exact(t.ranks)} ranks keeps ${listed(kept)}. A colour says whose part it is.`
        : story.summed
          ? `Each of ${t.ranks} ranks keeps a copy of everything; grey says that all copies are the same.`
          : `Each of ${t.ranks} ranks keeps everything for itself.`;
  const time = start;
  const asks = t.ask("state", () => {
    const held = facts.held(me, "optimizer_state", time);
    return held && t.ranks > 1 ? howMuch("optimizer_state", name, me, held, unit.padded, t.ranks) : null;
  });
  t.add("Who holds what", [units, says], start, time, asks, []);
}

/** @param {Teller} t */
function tellGather(t) {
  const { facts, name } = t;
  const beat = facts.moved("forward", "all_gather");
  if (!beat || facts.among(beat) === 1) return;
  const of = facts.among(beat);
  const own = t.story.uneven ? "what it owns" : `its own part, ${bytes(facts.sent(beat) / (of - 1))},`;
  const group = of < t.ranks ? " of its group" : "";
  const others = `${of === 2 ? "the other rank" : `the ${exact(of - 1)} others`}${group}`;
  const says = [
    `To compute with ${name} a rank needs all of it, ${t.bytes("parameters")}.`,
    `So each sends ${own} to ${others}: an all-gather.`,
  ];
  // A rank shows what it received just after its last piece; but a fast one may have freed it before a slow one has it.
  const came = facts.came("parameters", facts.began(beat.places)) ?? 0;
  const rest = facts.whole("parameters", came) === facts.ranks.length ? came : beat.t1 - 1;
  t.add(`${name} is gathered`, says, Math.min(beat.t0, rest), rest, t.sending(beat));
}

/** @param {Teller} t */
function tellForward(t) {
  const { facts } = t;
  const { me, model } = facts;
  const module = spoken(facts.module);
  const passes = facts.passes("forward");
  if (!passes.length) return;
  const gathered = t.chapters.length > 1;
  const ended = facts.ended(passes);
  const freed = gathered ? facts.freed("parameters", facts.began(passes), facts.passes("backward")) : null;
  const mine = passes.find((i) => model.columns.rank[i] === me);
  const more = mine === undefined ? 0 : model.liveAt(mine).activations - before(model, mine);
  const kept = more > 0 ? ` and leaves ${bytes(more)} of activations for the backward` : "";
  const says = [`${capital(t.each)} runs ${module} on its own batch of data${kept}.`];
  const rest = freed ?? ended;
  const own = facts.held(me, "parameters", rest);
  if (freed) says.push(`Then it frees what the others own${ofAll(t, "parameters", own)}.`);
  else if (t.ranks > 1 && !t.story.sent.forward?.has("all_gather"))
    says.push("All parameters are here already, so nothing need be sent.");
  const title = freed ? `${module} is computed, and freed` : `${module} is computed`;
  const asks = t.all && t.ranks > 1 ? t.ask("many", () => askMany(t, rest)) : null;
  t.add(title, says, Math.max(t.start, gathered ? t.rest : facts.began(passes)), rest, asks);
}

/**
 * ": of 200 kB it keeps 50.0 kB", which may be of another dtype than the whole; "" where ranks keep unlike parts.
 * @param {Teller} t @param {State} category @param {number} elements
 */
function ofAll(t, category, elements) {
  if (t.story.uneven) return "";
  const [whole, own] = [t.unit.numel, elements].map((some) => t.facts.dtype(category, some));
  const keeps = `: of ${t.bytes(category)} it keeps ${t.bytes(category, elements)}`;
  return own === whole ? keeps : `${keeps}, in ${own}`;
}

/** @param {Teller} t @param {number} time */
function askMany(t, time) {
  const { facts, name, story } = t;
  const { parameters } = story.parts;
  if (parameters && story.uneven) return null; // a rank that owns all of it never frees it
  return howMany(name, facts.whole("parameters", time), t.ranks, parameters);
}

/** @param {Teller} t */
function tellAhead(t) {
  const found = t.facts.ahead();
  if (!found) return;
  const { beat, unit, rank, took } = found;
  const name = spoken(unit.name);
  const says = [
    `While rank ${rank} computes ${spoken(t.facts.module)}, parts of ${name} are already on their way.`,
    `Both go on for ${duration(took)}.`,
    "Whatever has arrived by the time it is needed costs no waiting.",
  ];
  t.add(`Meanwhile ${name} comes`, says, beat.t0, beat.t1 - 1, null, [t.unit.name, unit.name]);
}

/** @param {Teller} t */
function tellBackward(t) {
  const { facts, name, unit } = t;
  const { me } = facts;
  const passes = facts.passes("backward");
  if (!passes.length) return;
  const again = facts.moved("backward", "all_gather");
  const reduction = reductionOf(t);
  // A rank that waits for no other may reduce before the slowest has its gradients; but none can have the sum.
  const done = facts.ended(passes);
  const summed = reduction ? facts.began(reduction.places.filter((i) => beganLast(t, reduction, i))) : Infinity;
  const came = facts.came("gradients", facts.began(passes)) ?? done;
  const rest = Math.min(done, came, Math.max(summed, facts.began(passes)));
  const holds = facts.held(me, "gradients", rest) >= unit.numel;
  const says = [
    "The backward goes from the last unit to the first.",
    again ? `${name} was freed after its forward, so it is gathered once more.` : "",
    holds
      ? `From its own batch ${t.each} gets ${t.bytes("gradients")} of gradients of ${name}.`
      : `${capital(t.each)} computes gradients of ${name}.`,
  ];
  const from = Math.max(again ? again.t0 : facts.began(passes), t.start);
  t.add(`${possessive(name)} gradients are computed`, says, Math.min(from, rest), rest, askAlike(t, rest, reduction));
}

/**
 * Whether an event of a beat is that of the rank that began last: before it nobody has the sums.
 * @param {Teller} t @param {Beat} beat @param {number} i
 */
function beganLast(t, { places }, i) {
  const { t_start: start } = t.facts.model.columns;
  return places.every((other) => start[other] <= start[i]);
}

/** @param {Teller} t @param {number} time @param {Beat | undefined} reduction */
function askAlike(t, time, reduction) {
  const { facts, unit, name } = t;
  const holders = facts.ranks.filter((rank) => facts.held(rank, "gradients", time) >= unit.numel);
  if (holders.length < facts.ranks.length || facts.ranks.length < 2) return null;
  const local = holders.every((rank) => facts.values.of(rank, "gradients", unit, rank, time) === "local");
  return local ? t.ask("alike", () => alike(name, local, Boolean(reduction))) : null;
}

/** @param {Teller} t */
function reductionOf(t) {
  return t.facts.moved("backward", "reduce_scatter", "all_reduce");
}

/** @param {Teller} t */
function tellReduce(t) {
  const { facts, name, unit } = t;
  const { me } = facts;
  const beat = reductionOf(t);
  if (!beat || t.ranks === 1) return;
  const before = facts.held(me, "gradients", Math.max(t.rest, beat.busy));
  const freed = facts.freed("gradients", t.rest, facts.updates());
  const rest = Math.max(freed ?? beat.t1, beat.t1) - 1;
  const held = facts.held(me, "gradients", freed ?? rest);
  // As in FSDP1, which gives its part to the optimizer only when the backward is over.
  const aside = !held && facts.held(me, "gradients", facts.began(facts.updates())) > 0;
  const all = beat.units.length > 1;
  const group = facts.among(beat) < t.ranks ? " in its group" : "";
  const to =
    beat.op === "all_reduce"
      ? "In two halves: parts to one rank each, which adds them up, then the sums to all."
      : `Each rank gets the gradients of the others${group} for what it owns, and adds them up.`;
  const says = [
    all ? `All units travel in one exchange.` : "",
    to,
    freed && held < before && !aside ? `Then it frees the rest${ofAll(t, "gradients", held)}.` : "",
  ];
  const title = all ? "All gradients are added up" : `${possessive(name)} gradients are added up`;
  const time = Math.max(rest, freed ?? 0);
  const kept = held
    ? () => howMuch("gradients", name, me, facts.held(me, "gradients", time), unit.padded, t.ranks)
    : () => null;
  const asks = t.sending(beat) ?? t.ask("kept", kept);
  t.add(title, says, Math.max(t.rest, beat.t0), time, asks);
}

/** @param {Teller} t */
function tellUpdate(t) {
  const { facts, name, story, unit } = t;
  const updates = facts.updates();
  if (!updates.length) return;
  const share = story.uneven ? "" : `, ${part(story.own)} of the parameters`;
  const says = [
    story.own
      ? `Each rank updates only what it owns${share}${story.whole}.`
      : `${capital(t.each)} updates ${story.trained}${t.ranks > 1 ? story.alike : ""}.`,
    story.own ? "It needs optimizer state for nothing else." : "",
  ];
  const owner = story.own ? unit.owners?.[0].at(-1)?.[2] : null;
  const known = t.ranks > 1 && owner !== undefined && t.all && (story.own > 0 || story.summed);
  // Of several replicas more than one rank would be right.
  const isOne = (unit.owners?.length ?? 0) < 2;
  const asks = known && isOne ? t.ask("who", () => whoUpdates(name, owner, t.ranks)) : null;
  const ended = facts.ended(updates);
  t.add("The update", says, Math.max(t.start, facts.began(updates)), ended, asks);
}

/** @param {Teller} t */
function tellShare(t) {
  const { facts, name } = t;
  const beat = facts.moved("share", "all_gather", "broadcast");
  if (!beat || t.ranks === 1) return;
  const says = [
    "The others still have the old parameters: what is out of date is dotted.",
    `So each owner sends what it has updated of ${beat.units.length > 1 ? "all units" : name} to all others.`,
  ];
  t.add("New parameters travel back", says, beat.t0, beat.t1 - 1, t.sending(beat));
}

/**
 * Activations just before a pass began, of its rank.
 * @param {Model} model @param {number} i
 */
function before(model, i) {
  const { rank, t_start: start } = model.columns;
  return model.live(rank[i], model.at(start[i]))?.activations ?? 0;
}

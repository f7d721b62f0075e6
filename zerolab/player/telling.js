// What is said of a beat: who does what, with which unit; of one that broke off, on which ranks.

import { grouped } from "./derived.js";
import { atStart, capital, count, exact, spoken, words } from "./format.js";
import { part } from "./questions.js";

/**
 * @import { Model } from "./model.js"
 * @import { Story } from "./story.js"
 * @import { Beat } from "./types.d.ts"
 */

/**
 * What ranks get of a tensor that is combined over them.
 * @type {Record<string, string>}
 */
const COMBINED = {
  all_reduce: "which all get the result",
  reduce_scatter: "each of which gets its own part of the result",
};

/**
 * Ranks by their number, or of several how many.
 * @param {Set<number>} ranks
 */
const whom = (ranks) => (ranks.size === 1 ? `rank ${[...ranks][0]}` : count(ranks.size, "rank"));

/**
 * The caption of a beat.
 * @param {Beat} beat @param {Model} model @param {Story} story
 */
export function telling(beat, model, story) {
  const all = beat.units.length > 1 && beat.units.length === model.units.length;
  const unit = all ? "All units" : beat.units.map(({ name }) => spoken(name)).join(", ");
  const never = endless(beat, model);
  if (beat.kind === "keep") return story.tell(beat.first);
  if (beat.kind === "update") {
    const { own, uneven, trained, whole, alike } = story;
    const owned = uneven ? "what" : `the ${part(own).replace("a ", "")} that`;
    if (story.divided.size) return `Update: each rank changes what it has.${never}`;
    if (own) return `Update: each rank changes only ${owned} it owns${whole}.${never}`;
    const [who, does, whose] = doing(beat, model, "changes", "change");
    if (!story.known.optimizer_state) return `Update: ${who} ${does} ${whose} parameters.${never}`;
    if (who === "the rank") return `Update: the rank changes ${trained}.${never}`;
    return `Update: ${who} ${does} ${who === "every rank" ? trained + alike : `${whose} parameters`}.${never}`;
  }
  if (beat.kind === "compute") {
    const [who, does, whose] = doing(beat, model, "computes", "compute");
    const what = beat.op === "backward" ? "gradients" : "the forward";
    const batch = story.passes || story.divided.size ? "" : ` of ${whose} own batch`;
    return atStart(`${unit}: ${who} ${does} ${what}${batch}.${never}`);
  }
  if (beat.amid && !never && !differing(beat, model))
    return atStart(`${spoken(beat.amid.name)}: ${amid(beat, model)}.`);
  const numel = model.columns.numel[beat.places[0]];
  const does = `${differing(beat, model) || sending(beat, model, story, never !== "")}.${never}`;
  if (beat.op === "barrier") return capital(does);
  return atStart(`${unit || count(numel, "element")}: ${does}`);
}

/**
 * That a beat never ended, and on which of its ranks; "" where it did on all.
 * @param {Beat} beat @param {Model} model
 */
function endless({ places }, { cut, columns }) {
  const ranks = new Set(places.map((i) => columns.rank[i]));
  const broken = new Set(places.filter((i) => cut.has(i)).map((i) => columns.rank[i]));
  if (!broken.size) return "";
  return broken.size === ranks.size ? " It never ended." : ` It never ended on ${whom(broken)}.`;
}

/**
 * Who does it, the verb, and whose batch: where a run broke off, or ranks have parts of a model, not all do.
 * @param {Beat} beat @param {Model} model @param {string} one @param {string} several
 */
function doing({ places }, { worldSize, ofRank, columns }, one, several) {
  const done = new Set(places.map((i) => columns.rank[i]));
  const isAll = done.size === ofRank.filter(({ length }) => length).length;
  if (isAll) return [worldSize === 1 ? "the rank" : "every rank", one, "its"];
  if (done.size === 1) return [`rank ${[...done][0]} alone`, one, "its"];
  return [`${exact(done.size)} of ${exact(worldSize)} ranks`, several, "their"];
}

/**
 * Who called what, where ranks called different collectives; "" where they agree.
 * @param {Beat} beat @param {Model} model
 */
function differing({ places }, { columns, payload }) {
  const called = grouped(places, (i) => words(payload.words[columns.op[i] - 1]));
  const told = [...called].map(([op, of]) => `${op} on ${whom(new Set(of.map((i) => columns.rank[i])))}`);
  return called.size > 1 ? told.join(", ") : "";
}

/**
 * What a collective does, in words; of one that is broken off, which one it is.
 * @param {Beat} beat @param {Model} model @param {Story} story @param {boolean} isBroken
 */
function sending({ op, act, places, units }, model, story, isBroken) {
  const { group } = model.event(places[0]);
  const ranks = group?.length ?? model.worldSize;
  const [first] = places;
  const isKnown = units.length > 0 || model.columns.from_autograd[first] > 0 || story.just;
  const gradients = act === "backward" && model.units.length && isKnown ? "gradients are " : "";
  const some = ranks < model.worldSize;
  const [whose, theirs] = some ? [`the ${exact(ranks)} ranks of a group`, " of the group"] : ["all ranks", ""];
  const number = story.uneven && !story.divided.size ? "" : `${exact(ranks)} `; // some may have nothing
  const others = some ? "the others of its group" : "all other ranks";
  if (isBroken && op !== "barrier") return `${words(op)} between ${exact(ranks)} ranks`;
  if (op === "all_gather" && act === "share") return `each owner sends its new parameters to ${others}`;
  if (op === "all_gather")
    return !units.length
      ? `every rank gets the parts of ${some ? whose : `all ${exact(ranks)}`}`
      : units.some(({ name }) => story.divided.has(name))
        ? `what ${whose} keep of it is gathered, so that each of them has it`
        : `its ${number}shards are gathered, so every rank${theirs} has all of it`;
  // The operation is not recorded; but our own collectives, whose messages are, add up.
  if (op in COMBINED && !gradients && !model.partsOf(first).length) return `combined over ${whose}, ${COMBINED[op]}`;
  if (op === "reduce_scatter")
    return gradients
      ? `${gradients}added up${some ? ` over ${whose}` : ""}, each part on the rank that owns it`
      : `each rank gets the sum${theirs} of its own part`;
  if (op === "all_reduce")
    return !gradients || some
      ? `${gradients}added up over ${whose}, which all get the sum`
      : "gradients are added up, and all ranks get the sum";
  if (op === "all_to_all" && act === "update")
    return "rows of whole matrices travel to the rank that works out their update, or back from it";
  if (op === "broadcast")
    return act === "share"
      ? `the owners send their new parameters to all${theirs}`
      : `one rank sends its values to all others${theirs}`;
  return op === "barrier" ? `${whose} wait for each other` : `${words(op)} between ${exact(ranks)} ranks`;
}

/**
 * What a collective within a unit's pass does. What it sends is not recorded, nor whether it adds that up: a backward
 * may send gradients of the unit before, or compute a forward once more.
 * @param {Beat} beat @param {Model} model
 */
function amid({ op, act, places }, model) {
  const { group, numel } = model.event(places[0]);
  const ranks = group?.length ?? model.worldSize;
  const [whose, theirs] =
    ranks < model.worldSize ? [`the ${exact(ranks)} ranks of a group`, " of the group"] : ["all ranks", ""];
  const what = `within its ${act}, ${count(numel, "element")} ${numel === 1 ? "is" : "are"}`;
  if (op in COMBINED) return `${what} combined over ${whose}, ${COMBINED[op]}`;
  if (op === "all_gather") return `${what} gathered, so every rank${theirs} has all of them`;
  return `within its ${act}, ${words(op)} between ${exact(ranks)} ranks, of ${count(numel, "element")}`;
}

// What the chapters of the guided walk have in common: the unit and the rank they tell of, and where each came to rest.

import { atStart, bytes, spoken } from "./format.js";
import { howManyBytes } from "./questions.js";

/**
 * @import { Facts } from "./facts.js"
 * @import { Story } from "./story.js"
 * @import { Beat, Chapter, Question, State, Unit } from "./types.d.ts"
 */

/** A chapter plays no more beats than this, the last ones. */
const MOST_BEATS = 3;

/** Collects the chapters; what one has asked no other asks again. */
export class Teller {
  /** @param {Facts} facts @param {Unit} unit @param {Story} story */
  constructor(facts, unit, story) {
    this.facts = facts;
    this.unit = unit;
    this.story = story;
    this.name = spoken(unit.name); // in sentences
    this.start = facts.own[0].t0;
    this.rest = this.start; // of the chapter before
    /** @type {Set<string>} */
    this.asked = new Set();
    /** @type {Chapter[]} */
    this.chapters = [];
  }

  /**
   * @param {string} title @param {string[]} says @param {number} from @param {number} rest
   * @param {Question | null} [asks] @param {string[] | null} [units] as in `Chapter`
   */
  add(title, says, from, rest, asks = null, units = [this.unit.name]) {
    const { beats } = this.facts;
    const last = beats.at(rest);
    const begin = Math.max(from, beats.list[Math.max(0, last - MOST_BEATS + 1)].t0);
    const told = { title: atStart(title), says: atStart(says.filter(Boolean).join(" ")) };
    this.chapters.push({ ...told, from: begin, rest, first: beats.at(begin), last, units, asks });
    this.rest = rest;
  }

  /**
   * A question, unless one of its kind was asked before.
   * @param {string} kind @param {() => Question | null} make
   */
  ask(kind, make) {
    const made = this.asked.has(kind) ? null : make();
    if (made) this.asked.add(kind);
    return made;
  }

  /** @param {Beat} beat */
  sending(beat) {
    const { facts, name } = this;
    const sent = facts.sent(beat);
    // Of unequal parts a rank may send all, or nothing: no answer could be worked out from their number.
    if (!sent || beat.units.length !== 1 || this.story.uneven) return null;
    return this.ask("bytes", () => howManyBytes(name, facts.me, sent, facts.travels(beat), facts.among(beat)));
  }

  /** Ranks that were recorded are not all there are: then nobody can count them. */
  get all() {
    const { facts } = this;
    return facts.ranks.length === facts.model.worldSize;
  }

  get ranks() {
    return this.facts.model.worldSize;
  }

  /** "each rank", or the only one there is. */
  get each() {
    return this.ranks === 1 ? "the rank" : "each rank";
  }

  /** @param {State} category @param {number} [elements] of the unit, without a number all of it */
  bytes(category, elements = this.unit.numel) {
    return bytes(this.facts.weight(category, elements));
  }
}

/**
 * "parameters, gradients and optimizer state".
 * @param {string[]} names
 */
export function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

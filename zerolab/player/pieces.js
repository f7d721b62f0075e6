// The pieces that a beat's collective moves between ranks: whose part, from when to when, and where in its unit.

import { partOf, size } from "./derived.js";
import { MOVED } from "./events.js";
import { messages } from "./messages.js";

/**
 * @import { Beats } from "./beats.js"
 * @import { Model } from "./model.js"
 * @import { Beat, Flight } from "./types.d.ts"
 */

/** The pieces of each beat, found when first asked for. */
export class Pieces {
  /** @param {Model} model @param {Beats} beats */
  constructor(model, beats) {
    this.model = model;
    this.beats = beats;
    /** @type {Map<Beat, Flight[]>} */
    this.known = new Map();
  }

  /** Another rank is in focus: other pieces are followed. */
  forget() {
    this.known.clear();
  }

  /** Whether there are collectives whose messages were not recorded. */
  get meant() {
    const { model } = this;
    return this.beats.list.some(
      ({ kind, op, units, places }) =>
        kind === "collective" && op in MOVED && units.length > 0 && !places.some((i) => model.partsOf(i).length),
    );
  }

  /**
   * All pieces of a beat; none for one that sends nothing, or nothing that the panes draw.
   * @param {Beat} beat
   */
  of(beat) {
    const found = this.known.get(beat) ?? this.#find(beat);
    this.known.set(beat, found);
    return found;
  }

  /**
   * The pieces of the beat at `place` and of those near it, which may overlap it, beat by beat.
   * @param {number} place
   */
  near(place) {
    return this.beats.list.slice(Math.max(0, place - 1), place + 7).map((beat) => this.of(beat));
  }

  /** @param {Beat} beat */
  #find(beat) {
    if (beat.kind !== "collective") return [];
    const { model } = this;
    const seen = new Set(beat.places.map((i) => model.sameCollective(i)));
    return [...seen].flatMap((places) => {
      const recorded = this.#recorded(beat, places);
      return recorded.length ? recorded : this.#meant(beat, places);
    });
  }

  /**
   * Whether a piece is followed: of many ranks those of the one in focus are, or all would hide each other.
   * @param {number} from @param {number} to
   */
  #drawn(from, to) {
    const { model } = this;
    return !model.folded || model.wholeRowOf(from) === 0 || model.wholeRowOf(to) === 0;
  }

  /**
   * Each recorded send with its receive on the other rank.
   * @param {Beat} beat @param {number[]} places
   */
  #recorded(beat, places) {
    const { model } = this;
    const { t_start: start, t_end: end } = model.columns;
    const followed = messages(model, places, (from, to) => this.#drawn(from, to));
    return followed.flatMap(({ from, to, send, receive, half }) => {
      const times = { start: start[send], end: Math.max(end[receive], start[send] + 1), half, recorded: true };
      return this.#pieces(beat, places, { from, to, ...times });
    });
  }

  /**
   * What the collective means, where its messages are not recorded: every rank's part to every other, from when the
   * last of them had begun until the receiver had ended; of an all-reduce in two halves. Nothing where it never ended.
   * @param {Beat} beat @param {number[]} places
   */
  #meant(beat, places) {
    const { rank, t_start: start, t_end: end } = this.model.columns;
    if (places.some((i) => this.model.cut.has(i))) return [];
    const halves = beat.op === "all_reduce" ? 2 : 1;
    const begun = Math.max(...places.map((i) => start[i])); // without its last rank it cannot end
    /** @type {Flight[]} */
    const found = [];
    for (const a of places) {
      for (const b of places) {
        const took = (end[b] - begun) / halves;
        if (!this.#drawn(rank[a], rank[b])) continue;
        for (let half = 0; a !== b && half < halves && took > 0; half++) {
          const times = { start: begun + half * took, end: begun + (half + 1) * took, half, recorded: false };
          found.push(...this.#pieces(beat, places, { from: rank[a], to: rank[b], ...times }));
        }
      }
    }
    return found;
  }

  /**
   * A message as pieces, one in each unit that the collective moves.
   * @param {Beat} beat @param {number[]} places
   * @param {Pick<Flight, "from" | "to" | "start" | "end" | "half" | "recorded">} sent
   * @returns {Flight[]}
   */
  #pieces(beat, places, sent) {
    const category = MOVED[beat.op];
    // What is combined after an update is no gradient: parameters, of which nobody owns a part.
    if (!category || (category === "gradients" && beat.act !== "backward")) return [];
    const adds = category === "gradients" && sent.half === 0;
    const piece = adds ? sent.to : sent.from;
    const { rank, t_end: end } = this.model.columns;
    const { group } = this.model.event(places[0]);
    const over = end[places.find((i) => rank[i] === sent.to) ?? places[0]];
    return beat.units
      .filter(({ padded }) => padded)
      .map((unit) => {
        const spans = partOf(unit, piece, group, this.model.worldSize);
        return { ...sent, category, unit, piece, adds, spans, over };
      })
      .filter(({ spans }) => size(spans)); // who owns nothing of a unit sends nothing of it
  }
}

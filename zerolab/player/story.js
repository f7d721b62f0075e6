// What is going on and why: one sentence for each act of a training step, from what this recording holds and sends.
// The event's own sentence changes too often to be read while the recording plays; this one stands for seconds.

import { codeOf, size } from "./derived.js";
import { MOVED } from "./flow.js";

/**
 * @import { Model } from "./model.js"
 * @import { Act, Category, Known, Unit } from "./types.d.ts"
 */

/**
 * The acts of a recording, and the sentence for each. Nothing is inferred from the stage's name: a learner's engine is
 * described by what it does.
 */
export class Story {
  /** @param {Model} model */
  constructor(model) {
    this.model = model;
    /** @type {Act[]} */
    this.acts = new Array(model.count).fill("setup");
    for (const places of model.ofRank) this.#ofRank(places);
    this.parts = {
      parameters: this.#inParts("parameters"),
      gradients: this.#inParts("gradients"),
      optimizer_state: this.#inParts("optimizer_state"),
    };
    this.sent = this.#sent();
    this.released = this.#released();
    /** @type {Partial<Record<Act, string>>} */
    this.texts = {};
    this.steps = model.windows.some((window) => window.step > 0);
  }

  /**
   * The sentence for the act that event `i` is in.
   * @param {number} i
   */
  tell(i) {
    const act = this.acts[i];
    this.texts[act] ??= this.model.worldSize === 1 ? this.#alone(act) : this.#text(act);
    return this.texts[act];
  }

  /**
   * A rank's acts in the order in which its events began: a gather belongs to the act around it, or follows the update.
   * @param {number[]} places
   */
  #ofRank(places) {
    const { columns, payload } = this.model;
    /** @type {Act} */
    let act = "setup";
    let step = 0;
    for (const i of [...places].sort((a, b) => columns.seq[a] - columns.seq[b])) {
      if (columns.step[i] && columns.step[i] !== step) {
        step = columns.step[i];
        act = "forward";
      }
      const phase = payload.phases[columns.phase[i] - 1];
      if (phase === "forward") act = "forward";
      else if (phase === "backward" || phase === "reduce") act = "backward";
      else if (phase === "step" && act !== "share") act = "update";
      else if (phase === "gather" && act === "update") act = "share";
      this.acts[i] = step && !columns.step[i] && phase === "setup" ? "aside" : act;
    }
  }

  /**
   * In how many parts a category is kept at the last update, read off the largest unit: 4 if each rank has a quarter; 0
   * if all of it.
   * @param {Category} category
   */
  #inParts(category) {
    const { model } = this;
    const optimizer = codeOf(model.payload.kinds, "optimizer");
    const updates = model.rows.map(({ rank }) => {
      const places = model.ofRank[rank];
      return [rank, places.findLast((i) => model.columns.kind[i] === optimizer) ?? places.at(-1) ?? -1];
    });
    /** @type {(unit: Unit) => number[]} */
    const held = (unit) =>
      updates.map(([rank, update]) => size(model.held(rank, category, unit.name, update))).filter(Boolean);
    const largest = [...model.units]
      .sort((a, b) => b.padded - a.padded)
      .find((unit) => unit.padded && held(unit).length);
    if (!largest) return 0;
    // Some systems shard unevenly, and then the ranks' mean says into how many parts.
    const sizes = held(largest);
    const parts = Math.round((largest.padded * sizes.length) / sizes.reduce((sum, one) => sum + one, 0));
    return parts > 1 ? parts : 0;
  }

  /** The operations that each act sends with. */
  #sent() {
    const { columns, payload } = this.model;
    const collective = codeOf(payload.kinds, "collective");
    /** @type {Partial<Record<Act, Set<string>>>} */
    const sent = {};
    this.acts.forEach((act, i) => {
      if (!columns.step[i] && act !== "setup") return; // checks between steps, no part of the training
      const op = payload.words[columns.op[i] - 1];
      if (columns.kind[i] !== collective || columns.parent[i] >= 0 || !(op in MOVED || op === "broadcast")) return;
      sent[act] ??= new Set();
      sent[act].add(op);
    });
    return sent;
  }

  /** Whether parameters are given back before the forward is over. */
  #released() {
    const { model } = this;
    return model.units.some((unit) =>
      model.rows.some(({ rank }) => {
        const { at, spans } = model.changes(rank, "parameters", unit.name);
        return at.some((i, k) => k > 0 && this.acts[i] === "forward" && size(spans[k]) < size(spans[k - 1]));
      }),
    );
  }

  /** @param {Act} act */
  #alone(act) {
    const name = {
      aside: "Aside from the training step",
      setup: "Before the first step",
      forward: "Forward",
      backward: "Backward, last unit first",
      update: "Update",
      share: "After the update",
    }[act];
    return `${name}: this rank is alone, holds everything, and has nobody to send to.`;
  }

  /** In how many parts ranks own what they update; 0 if they all update everything. */
  get own() {
    const { parts, sent } = this;
    const shared = sent.share?.has("all_gather") ? this.model.worldSize : 0;
    return parts.optimizer_state || parts.parameters || parts.gradients || shared;
  }

  /** @param {Act} act */
  #text(act) {
    const { parts, sent, released, own } = this;
    if (!this.steps && !this.model.units.length) {
      const how = "as the sentences below tell one by one";
      return `There is no training step here: the ranks send each other tensors, ${how}.`;
    }
    return TOLD[act]({ parts, released, own, does: (...ops) => ops.some((op) => sent[act]?.has(op)) });
  }
}

/**
 * The sentence for each act, from what is known of the recording.
 * @type {Record<Act, (known: Known) => string>}
 */
const TOLD = {
  aside() {
    const what = "something that is no part of a unit, such as a check that all do the same";
    return `Aside from the training step: the ranks send each other ${what}.`;
  },
  setup({ parts, does }) {
    const agreed = does("broadcast") ? "rank 0 sends its parameters to all, so that all begin alike; " : "";
    const kept = parts.parameters ? `1/${parts.parameters} of every unit, its shard` : "all of them";
    return `Before the first step: ${agreed}each rank keeps ${kept}.`;
  },
  forward({ parts, released, does }) {
    if (!parts.parameters) {
      const sent = does("all_gather", "all_reduce") ? "" : ", so nothing is sent";
      return `Forward: every rank has all parameters and computes on its own batch${sent}.`;
    }
    const kept = `a rank keeps 1/${parts.parameters} of each unit, but computing needs all of it`;
    return `Forward: ${kept}, so each is gathered just before its turn${released ? " and released after it" : ""}.`;
  },
  backward({ parts, released, does }) {
    const again = parts.parameters && released ? "each is gathered once more; " : "";
    const start = `Backward, last unit first: ${again}`;
    if (does("reduce_scatter")) {
      const rest = parts.gradients ? ", and the rest is freed" : "; whole ones stay until the update";
      return `${start}gradients are added up over the ranks, each part on its owner${rest}.`;
    }
    if (does("all_reduce")) {
      const one = "so that all of them make the same update";
      const use = parts.optimizer_state ? "and each then uses its own part of the sums" : one;
      return `${start}each gradient is added up over all ranks, ${use}.`;
    }
    return `${start}every rank has the gradients of its own batch, and sends none of them yet.`;
  },
  update({ parts, own }) {
    if (!own) return "Update: every rank makes the same update of all parameters.";
    const why = parts.optimizer_state ? ", so it needs optimizer state for that part alone" : "";
    return `Update: each rank updates only the 1/${own} that it owns${why}.`;
  },
  share({ own }) {
    const why = "so that everybody has the new parameters";
    return `After the update: each rank sends the 1/${own} that it updated to all others, ${why}.`;
  },
};

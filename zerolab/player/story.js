// What is going on and why: one sentence for each act of a training step, from what this recording holds and sends.
// The event's own sentence changes too often to be read while the recording plays; this one stands for seconds.

import { MOVED } from "./flow.js";
import { STATE } from "./model.js";

/** Elements in `[start, stop, start, stop, ...]`. */
export function size(spans) {
  let sum = 0;
  for (let k = 0; k < spans.length; k += 2) sum += spans[k + 1] - spans[k];
  return sum;
}

/** The acts of a recording, and the sentence for each. Nothing is assumed from the stage's name: a learner's engine is told by what it does. */
export class Story {
  constructor(model) {
    this.model = model;
    this.acts = new Array(model.count).fill("setup");
    for (const places of model.ofRank) this.#ofRank(places);
    this.parts = Object.fromEntries(STATE.map((category) => [category, this.#inParts(category)]));
    this.sent = this.#sent();
    this.released = this.#released();
    this.texts = {};
    this.steps = model.windows.some((window) => window.step > 0);
  }

  /** The sentence for the act that event `i` is in. */
  tell(i) {
    const act = this.acts[i];
    this.texts[act] ??= this.model.worldSize === 1 ? this.#alone(act) : this.#text(act);
    return this.texts[act];
  }

  /** A rank's acts in the order in which its events began: a gather belongs to the act around it, or follows the update. */
  #ofRank(places) {
    const { columns, payload } = this.model;
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

  /** In how many parts a category is kept at the last update, read off the largest unit: 4 if each rank has a quarter; 0 if all of it. */
  #inParts(category) {
    const { model } = this;
    const optimizer = model.payload.kinds.indexOf("optimizer") + 1;
    const updates = model.rows.map(({ rank }) => {
      const places = model.ofRank[rank];
      return [rank, places.findLast((i) => model.columns.kind[i] === optimizer) ?? places.at(-1) ?? -1];
    });
    const held = (unit) =>
      updates.map(([rank, update]) => size(model.held(rank, category, unit.name, update))).filter(Boolean);
    const largest = [...model.units]
      .sort((a, b) => b.padded - a.padded)
      .find((unit) => unit.padded && held(unit).length);
    if (!largest) return 0;
    // Some systems cut unevenly, and then it is the ranks' mean that tells in how many.
    const sizes = held(largest);
    const parts = Math.round((largest.padded * sizes.length) / sizes.reduce((sum, one) => sum + one, 0));
    return parts > 1 ? parts : 0;
  }

  /** The operations that each act sends with. */
  #sent() {
    const { columns, payload } = this.model;
    const collective = payload.kinds.indexOf("collective") + 1;
    const sent = {};
    this.acts.forEach((act, i) => {
      if (!columns.step[i] && act !== "setup") return; // checks between steps, no part of the training
      const op = payload.words[columns.op[i] - 1];
      if (columns.kind[i] === collective && columns.parent[i] < 0 && (op in MOVED || op === "broadcast"))
        (sent[act] ??= new Set()).add(op);
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

  #text(act) {
    const { parts, sent, released } = this;
    if (!this.steps && !this.model.units.length)
      return "There is no training step here: the ranks send each other tensors, as the sentences below tell one by one.";
    if (act === "aside")
      return "Aside from the training step: the ranks send each other something that is no part of a unit, such as a check that all do the same.";
    const own =
      parts.optimizer_state ||
      parts.parameters ||
      parts.gradients ||
      (sent.share?.has("all_gather") ? this.model.worldSize : 0);
    const [part, ownPart] = [`1/${parts.parameters}`, `1/${own}`];
    const does = (...ops) => ops.some((op) => sent[act]?.has(op));
    if (act === "setup") {
      const agreed = does("broadcast") ? "rank 0 sends its parameters to all, so that all begin alike; " : "";
      return `Before the first step: ${agreed}each rank keeps ${parts.parameters ? `${part} of every unit, its shard` : "all of them"}.`;
    }
    if (act === "forward") {
      if (!parts.parameters)
        return `Forward: every rank has all parameters and computes on its own batch${does("all_gather", "all_reduce") ? "" : ", so nothing is sent"}.`;
      return `Forward: a rank keeps ${part} of each unit, but computing needs all of it, so each is gathered just before its turn${released ? " and released after it" : ""}.`;
    }
    if (act === "backward") {
      const again = parts.parameters && released ? "each is gathered once more; " : "";
      if (does("reduce_scatter"))
        return `Backward, last unit first: ${again}gradients are added up over the ranks, each part on its owner${parts.gradients ? ", and the rest is freed" : "; whole ones stay until the update"}.`;
      if (does("all_reduce"))
        return `Backward, last unit first: ${again}each gradient is added up over all ranks, ${parts.optimizer_state ? "and each then uses its own part of the sums" : "so that all of them make the same update"}.`;
      return `Backward, last unit first: ${again}every rank has the gradients of its own batch, and sends none of them yet.`;
    }
    if (act === "update") {
      if (parts.optimizer_state)
        return `Update: each rank updates only the ${ownPart} that it owns, so it needs optimizer state for that part alone.`;
      return own
        ? `Update: each rank updates only the ${ownPart} that it owns.`
        : "Update: every rank makes the same update of all parameters.";
    }
    return `After the update: each rank sends the ${ownPart} that it updated to all others, so that everybody has the new parameters.`;
  }
}

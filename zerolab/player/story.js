// What is going on and why: one sentence for each act of a training step, from what this recording holds and sends.
// The event's own sentence changes too often to be read while the recording plays; this one stands for seconds.

import { codeOf, mean, size, untold } from "./derived.js";
import { MOVED } from "./events.js";
import { exact } from "./format.js";
import { areAllInParts, divided, gathers, range, sends } from "./kept.js";

/**
 * @import { Model } from "./model.js"
 * @import { Act, Category, Known, Spans, State, Unit } from "./types.d.ts"
 */

/** The collectives that the sentences tell of. */
const MENTIONED = new Set([...Object.keys(MOVED), "broadcast", "all_to_all", "send", "recv"]);

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
    /** @type {Set<Category>} */
    this.lacking = new Set(); // of which it was not recorded who holds all there is
    /** Whether an update was made. Without one, what a rank keeps is the least that it ever had. */
    this.updated = model.columns.kind.some(
      (kind, i) => kind === codeOf(model.payload.kinds, "optimizer") && !model.cut.has(i),
    );
    this.uneven = false; // whether ranks keep very unlike parts of a unit, as owners of whole matrices do
    this.parts = {
      parameters: this.#inParts("parameters"),
      gradients: this.#inParts("gradients"),
      optimizer_state: this.#inParts("optimizer_state"),
    };
    this.known = {
      parameters: this.#isKnown("parameters"),
      gradients: this.#isKnown("gradients"),
      optimizer_state: this.#isKnown("optimizer_state"),
      update: this.updated,
    };
    this.sent = this.#sent();
    /** Whether ranks send each other what they have computed, as stages of a pipeline do, of which none has all. */
    this.passes = [this.sent.forward, this.sent.backward].some((ops) => ops?.has("send") || ops?.has("recv"));
    const sums = sends(model, this.acts, "backward", "all_reduce", "reduce_scatter");
    /** Whether gradients are added up by a collective, and how alike updates are that nobody owns a part of. */
    this.summed = sums.all;
    this.just = sums.just; // so that what names no unit is gradients, too
    this.alike = this.summed ? ", each in the same way" : this.#isSilent() ? ", each by its own gradients alone" : "";
    this.released = this.#released();
    this.divided = divided(model);
    this.uneven ||= this.divided.size > 0;
    /** @type {Partial<Record<Act, string>>} */
    this.texts = {};
    const frozen = model.units.some((unit) => unit.frozen) ? " that are not frozen" : "";
    /** What is updated where nobody owns a part of it, and what is beside such parts. */
    this.trained = `${this.passes ? "the parameters that it has" : "all parameters"}${frozen}`;
    this.whole = model.units.some(({ replicated }) => replicated) ? ", and what all ranks keep whole" : "";
    this.steps = this.#trains();
  }

  /** Whether a step trains something: an exercise's step may be exchanges alone. Other tools' files need not say. */
  #trains() {
    const { columns, payload, units, windows } = this.model;
    const deeds = [codeOf(payload.kinds, "module"), codeOf(payload.kinds, "optimizer")];
    const trains = units.length || payload.meta.origin || columns.kind.some((kind) => deeds.includes(kind));
    return Boolean(trains) && windows.some((window) => window.step > 0);
  }

  /**
   * The sentence for the act that event `i` is in.
   * @param {number} i
   */
  tell(i) {
    const act = this.acts[i];
    const isUntrained = !this.steps && !this.model.units.length;
    this.texts[act] ??= isUntrained ? this.#untrained() : this.#isAlone() ? this.#alone(act) : this.#text(act);
    return this.texts[act];
  }

  /** Whether there is one rank, and not only the files of one: those of other tools need not say how many there are. */
  #isAlone() {
    return this.model.worldSize === 1 && !this.model.payload.meta.origin;
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
    const [forward, backward] = ["forward", "backward"].map((word) => codeOf(payload.words, word));
    const until = { [forward]: 0, [backward]: 0 }; // the ends of the passes so far
    for (const i of [...places].sort((a, b) => columns.seq[a] - columns.seq[b])) {
      if (columns.step[i] && columns.step[i] !== step) {
        step = columns.step[i];
        act = "forward";
      }
      const phase = payload.phases[columns.phase[i] - 1];
      if (columns.op[i] in until) until[columns.op[i]] = Math.max(until[columns.op[i]], columns.t_end[i]);
      // Ranks that share the computing of a unit add up what they get, before its forward is over.
      const within = act === "forward" && !columns.unit[i] && columns.t_start[i] < until[forward];
      // Nor is it gradients what they combine once there was an update, unless that is made as backward goes on.
      const after = (act === "update" || act === "share") && columns.t_start[i] >= until[backward];
      if (phase === "forward") act = "forward";
      else if (phase === "backward" || (phase === "reduce" && !within && !after)) act = "backward";
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
    const [model, updates] = [this.model, this.#updates()];
    /** @type {(i: number, unit: Unit) => Spans | undefined} */
    const at = (i, { name }) =>
      category === "optimizer_state" // which the first update makes, and nobody gathers
        ? model.changes(model.columns.rank[i], category, name).spans.findLast((spans) => spans.length)
        : model.held(model.columns.rank[i], category, name, i);
    // Without padding, unless only some of the ranks are here.
    const total = (/** @type {Unit} */ unit) => (updates.length === model.worldSize ? unit.numel : unit.padded);
    /** @type {(i: number, unit: Unit) => number} */
    const held = (i, unit) =>
      category === "parameters" && !this.updated
        ? range(model, model.columns.rank[i], unit).least
        : size((at(i, unit) ?? []).map((edge) => Math.min(edge, total(unit))));
    const kept = model.units
      .map((unit) => ({ sizes: updates.map((i) => held(i, unit)), whole: total(unit) }))
      .filter(({ sizes, whole }) => whole && sizes.some(Boolean));
    if (!kept.length) {
      if (updates.some((i) => model.liveAt(i)[category])) this.lacking.add(category); // nobody told which elements
      return 0;
    }
    // Some systems shard unevenly, and then the ranks' mean says into how many parts.
    const { sizes, whole } = kept.reduce((most, one) => (one.whole > most.whole ? one : most));
    const weighs = kept.filter((one) => one.whole > whole / 100); // nobody need hear of a few numbers
    this.uneven ||= weighs.some(({ sizes }) => sizes.some((one) => Math.abs(one - mean(sizes)) > mean(sizes) / 2));
    const parts = Math.round(whole / mean(sizes));
    // What all ranks together lack was not recorded, as of a tensor that is sharded by columns.
    if (sizes.length === model.worldSize && sizes.length * mean(sizes) < 0.99 * whole) {
      this.lacking.add(category);
      this.uneven = true;
    }
    return parts > 1 ? parts : 0;
  }

  /**
   * Whether it was recorded who holds what of a category: of some systems its bytes were counted, and no more.
   * @param {State} category
   */
  #isKnown(category) {
    const { model } = this;
    if (this.lacking.has(category)) return false;
    return this.#isHeld(category) || (!untold(model) && this.#updates().every((i) => !model.liveAt(i)[category]));
  }

  /** @param {State} category */
  #isHeld(category) {
    const { model } = this;
    return model.units.some((unit) =>
      model.rows.some(({ rank }) => model.changes(rank, category, unit.name).at.length),
    );
  }

  /** The last update of each rank of the panes that has ended one; the last event of each where none has. */
  #updates() {
    const { cut, columns, ofRank, payload, rows } = this.model;
    const optimizer = codeOf(payload.kinds, "optimizer");
    const own = rows.map(({ rank }) => ofRank[rank]);
    const updates = own.flatMap((all) => all.findLast((i) => columns.kind[i] === optimizer && !cut.has(i)) ?? []);
    return updates.length ? updates : own.flatMap((all) => all.at(-1) ?? []);
  }

  /** Whether ranks send each other nothing in a step. */
  #isSilent() {
    const { columns, payload } = this.model;
    const collective = codeOf(payload.kinds, "collective");
    return !columns.kind.some((kind, i) => kind === collective && columns.step[i]);
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
      if (columns.kind[i] !== collective || columns.parent[i] >= 0 || !MENTIONED.has(op)) return;
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
    const { parts } = this;
    const shares = !this.#isHeld("optimizer_state") && sends(this.model, this.acts, "share", "all_gather").all;
    const shared = shares && this.model.units.length ? this.model.worldSize : 0;
    return parts.optimizer_state || parts.parameters || parts.gradients || shared;
  }

  #untrained() {
    const { columns, payload } = this.model;
    const none = "There is no training step here";
    if (payload.meta.total_only) return `${none}, but how many bytes were allocated, and when.`;
    if (this.#isAlone()) return `${none}: this rank is alone, and has nobody to send to.`;
    if (!columns.kind.includes(codeOf(payload.kinds, "collective"))) return `${none}, and nothing is sent.`;
    return `${none}: the ranks send each other tensors, as the sentences below tell one by one.`;
  }

  /** @param {Act} act */
  #text(act) {
    const { model, parts, known, sent, passes, released, own, uneven, trained, whole, summed, alike } = this;
    return TOLD[act]({
      parts,
      known,
      passes,
      released,
      divided: this.divided.size > 0,
      gathered: gathers(model, this.acts),
      some: areAllInParts(model) ? "each unit" : "some units",
      own,
      share: uneven ? "what it owns" : `1/${exact(parts.parameters)}`,
      owned: uneven ? "what" : `the 1/${exact(own)} that`,
      trained,
      whole,
      summed,
      alike,
      does: (...ops) => ops.some((op) => sent[act]?.has(op)),
    });
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
  setup({ parts, known, passes, divided, share, some, whole, does }) {
    const agreed = does("broadcast") && !divided ? "rank 0 sends its parameters to all, so that all begin alike; " : "";
    const part = `${share} of every ${whole ? "sharded " : ""}unit, its shard`;
    const all = passes ? "the parameters that it computes with" : "all of them";
    const kept = divided ? `its part of ${some}` : parts.parameters ? part : all;
    const keeps = known.parameters ? `each rank keeps ${kept}` : "what each rank keeps was not recorded";
    return `Before the first step: ${agreed}${keeps}.`;
  },
  forward({ parts, known, passes, released, divided, gathered, share, some, whole, does }) {
    if (passes) return "Forward: ranks send each other what they have computed, and go on with what they get.";
    if (divided && !gathered) return `Forward: every rank computes with its own part of ${some}; none is gathered.`;
    if (!known.parameters) {
      const batch = divided ? "" : " on its own batch";
      return `Forward: every rank computes${batch}${does("all_gather") ? "; parameters are gathered for it" : ""}.`;
    }
    if (!parts.parameters) {
      const sent = does("all_gather", "all_reduce") ? "" : ", so nothing is sent";
      return `Forward: every rank has all parameters and computes on its own batch${sent}.`;
    }
    const unit = whole ? "sharded unit" : "unit";
    const kept = divided
      ? `a rank keeps a part of ${some}, but computing needs more of it`
      : `a rank keeps ${share} of each ${unit}, but computing needs all of it`;
    return `Forward: ${kept}, so each is gathered just before its turn${released ? " and released after it" : ""}.`;
  },
  backward({ parts, known, passes, released, divided, summed, does }) {
    const again = parts.parameters && released ? "each is gathered once more; " : "";
    const start = `Backward, last unit first: ${again}`;
    if (summed && does("reduce_scatter")) {
      const isKnown = known.gradients && known.update;
      const kept = parts.gradients ? ", and the rest is freed" : "; whole ones stay until the update";
      return `${start}gradients are added up over the ranks, each part on its owner${isKnown ? kept : ""}.`;
    }
    if (divided) return `${start}every rank has the gradients of its own part.`;
    if (summed && does("all_reduce")) {
      const one = known.optimizer_state ? ", so that all of them make the same update" : "";
      const use = parts.optimizer_state ? ", and each then uses its own part of the sums" : one;
      return `${start}each gradient is added up over all ranks${use}.`;
    }
    if (passes) return `${start}ranks send each other what they have computed, and go on with what they get.`;
    const none = does("all_reduce", "reduce_scatter") ? "" : ", and sends none of them yet";
    return `${start}every rank has the gradients of its own batch${none}.`;
  },
  update({ parts, known, own, owned, divided, trained, whole, summed, alike, does }) {
    if (divided) return "Update: each rank updates what it has.";
    if (!own && !known.optimizer_state) return "Update: which parameters a rank updates was not recorded.";
    if (!own)
      return `Update: every rank ${summed ? `makes the same update of ${trained}` : `updates ${trained}${alike}`}.`;
    const why = parts.optimizer_state && !whole ? ", so it needs optimizer state for that part alone" : "";
    const first = does("all_to_all")
      ? "each matrix is put together on one rank to work out its update, which goes back in parts; "
      : "";
    return `Update: ${first}each rank updates only ${owned} it owns${whole}${why}.`;
  },
  share({ own, owned }) {
    if (!own) return "After the update: the ranks gather what is no parameter, such as their losses.";
    const why = "so that everybody has the new parameters";
    return `After the update: each rank sends ${owned} it updated to all others, ${why}.`;
  },
};

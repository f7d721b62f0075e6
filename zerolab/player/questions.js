// The questions of the guided walk. The right answer comes from the recording; a wrong one is told what it would mean.

import { exact, possessive, words } from "./format.js";

/** @import { Answer, Category, Question } from "./types.d.ts" */

/**
 * An answer, what it stands for, and what it would mean where it is wrong.
 * @typedef {{ value: number | string, text: string, says: string }} Choice
 */

/** No more answers than this. */
const MOST_ANSWERS = 4;

/**
 * A question whose answers are the right one and those of the others that differ from it; null where none does.
 * @param {string} asks @param {Choice[]} answers
 * @param {number | string} right @param {string} because
 * @returns {Question | null}
 */
function question(asks, answers, right, because) {
  /** @type {Map<string, Answer>} */
  const given = new Map();
  const rest = answers.filter(({ value }) => value !== right);
  const mine = answers.find(({ value }) => value === right);
  if (!mine || !rest.length) return null;
  for (const one of [mine, ...rest]) {
    const isRight = one.value === right;
    if (given.size < MOST_ANSWERS && !given.has(one.text))
      given.set(one.text, { text: one.text, right: isRight, says: isRight ? because : one.says });
  }
  if (given.size < 2) return null;
  // In the order in which they were thought of: the right one would else always be the first.
  const order = answers.map(({ text }) => text);
  const sorted = [...given.values()].sort((a, b) => order.indexOf(a.text) - order.indexOf(b.text));
  return { text: asks, answers: sorted };
}

/**
 * "a quarter", for a half, a third and a quarter; "1/8" for others.
 * @param {number} parts
 */
export function part(parts) {
  return ["", "all", "half", "a third", "a quarter"][parts] ?? `1/${exact(parts)}`;
}

/**
 * How many ranks hold all of a unit's parameters.
 * @param {string} unit @param {number} right @param {number} ranks @param {number} parts in how many it is kept
 */
export function howMany(unit, right, ranks, parts) {
  const whole = parts
    ? `Each rank holds only its own part: ${part(parts)} of it.`
    : "They all keep it whole all the time.";
  const because = {
    0: `${whole} Nobody could compute with ${unit} at this moment.`,
    [ranks]: parts ? "It is whole everywhere at this moment: every rank has the parts of all." : whole,
  }[right];
  const answers = [...new Set([0, 1, ranks - 1, ranks, right])].filter((number) => number >= 0).sort((a, b) => a - b);
  /** @type {(number: number) => string} */
  const says = (number) => {
    if (number === 0) return `Then nobody could compute with ${unit} now; but filled cells are here.`;
    if (number === ranks) return `Then its cells would be filled from end to end in every row.`;
    if (number === 1) return "Then that rank would hold it for all, and the others would have to ask it each time.";
    return `Then ${ranks - number === 1 ? "one rank" : "the others"} would lack a part. Look for a hollow one.`;
  };
  return question(
    `How many of the ${ranks} ranks hold all of ${possessive(unit)} parameters now?`,
    answers.map((value) => ({ value, text: exact(value), says: says(value) })),
    right,
    because ?? "The others lack a part of it.",
  );
}

/**
 * Why a rank holds a part of a category, all of it, or none.
 * @type {Record<"part" | "all" | "none", Partial<Record<Category, string>>>}
 */
const WHY = {
  part: {
    optimizer_state: "It updates only that part, so it needs optimizer state for nothing else.",
    gradients: "It updates only that part, and has freed the rest.",
  },
  all: {
    optimizer_state: "It updates all of the unit itself, so it needs optimizer state for all of it.",
    gradients: "They stay as they are until the update; nothing of them is freed before.",
  },
  none: {
    optimizer_state: "It updates nothing of this unit, so it needs no optimizer state for it.",
    gradients: "All of them are with the ranks that update them.",
  },
};

/**
 * What part of a category of a unit a rank keeps.
 * @param {Category} category @param {string} unit @param {number} rank @param {number} held @param {number} all
 * @param {number} ranks
 */
export function howMuch(category, unit, rank, held, all, ranks) {
  const name = words(category);
  const right = held === 0 ? 0 : Math.max(1, Math.round(all / held));
  const because = WHY[right > 1 ? "part" : right ? "all" : "none"][category] ?? "";
  const them = category === "optimizer_state" ? "it" : "them"; // one thing, where gradients are several
  const answers = [
    { value: 1, text: `all of ${them}`, says: `Then its cell of ${name} would be filled from end to end.` },
    {
      value: ranks,
      text: `${part(ranks)} of ${them}`,
      says: "Then its cell would be mostly hollow, and the rest on other ranks.",
    },
    { value: 0, text: "none", says: `Then its cell of ${name} would be hollow.` },
  ];
  if (!answers.some(({ value }) => value === right))
    answers.splice(1, 0, { value: right, text: `${part(right)} of ${them}`, says: "" });
  const text = `How much of ${possessive(unit)} ${name} does rank ${rank} hold now?`;
  return question(text, answers, right, because);
}

/**
 * How many bytes a rank sent for a collective.
 * @param {string} unit @param {number} rank @param {number} right @param {number} whole bytes of the unit
 * @param {number} ranks
 */
export function howManyBytes(unit, rank, right, whole, ranks) {
  const others = ranks === 2 ? "to the other rank" : `to each of the ${exact(ranks - 1)} others`;
  const shard = whole / ranks;
  const passes = Math.round(right / (shard * (ranks - 1)));
  const because =
    passes === 2
      ? `${exact(shard)} bytes ${others}, twice: a part for each owner first, then the sums of its own part to all.`
      : `${exact(shard)} bytes ${others}${ranks === 2 ? "" : `: ${exact(right)} together`}.`;
  const twice = 2 * shard * (ranks - 1);
  const once = passes === 2 ? "That would be only half the way: parts to their owners, and nobody gets the sums." : "";
  const answers = [
    {
      value: shard,
      text: `${exact(shard)} bytes`,
      says: `That is one part. It goes out ${exact(ranks - 1)} times, ${others}.`,
    },
    { value: shard * (ranks - 1), text: `${exact(shard * (ranks - 1))} bytes`, says: once },
    { value: whole, text: `${exact(whole)} bytes`, says: `That is all of ${unit}; but nobody sends a part to itself.` },
    {
      value: twice,
      text: `${exact(twice)} bytes`,
      says: "Then each part would travel twice: to be added up, and back.",
    },
  ];
  return question(`How many bytes did rank ${rank} send for this?`, answers, right, because);
}

/**
 * Whether all ranks have the same gradients.
 * @param {string} unit @param {boolean} local @param {boolean} reduced whether they are added up later
 */
export function alike(unit, local, reduced) {
  const later = reduced ? "adding up comes next" : "nothing has added them up";
  return question(
    `Are ${possessive(unit)} gradients the same on every rank now?`,
    [
      {
        value: 0,
        text: "no, each has its own",
        says: "They were added up already, so what differed is gone.",
      },
      {
        value: 1,
        text: "yes, all have the mean",
        says: `Then all would have computed on the same batch. Each has its own; ${later}.`,
      },
    ],
    local ? 0 : 1,
    local ? `Each computed on a batch of its own, hence the hatching; ${later}.` : "They have been added up already.",
  );
}

/**
 * Which rank updates the end of a unit.
 * @param {string} unit @param {number | null} owner null if all do @param {number} ranks
 */
export function whoUpdates(unit, owner, ranks) {
  const shown = owner ?? ranks - 1;
  const other = shown === 0 ? 1 : 0;
  const behind = "Then the others would fall behind: here nobody sends them new parameters.";
  const hollow = "It has no optimizer state for them: its cell is hollow there.";
  const answers = [
    { value: other, text: `rank ${other} alone`, says: owner === null ? behind : hollow },
    { value: shown, text: `rank ${shown} alone`, says: behind },
    { value: -1, text: `all ${ranks} ranks`, says: "Then all would need optimizer state for them." },
  ];
  const because =
    owner === null
      ? "All have the same sums, so all make the same update, and nothing need be sent."
      : "It owns them: it has their mean gradients and the optimizer state for them.";
  return question(`Which ranks update the last elements of ${unit}?`, answers, owner ?? -1, because);
}

/**
 * What most of the memory was at the peak.
 * @param {number} rank @param {[name: string, bytes: number][]} live largest first
 */
export function whatMost(rank, live) {
  const all = live.reduce((sum, [, value]) => sum + value, 0);
  const share = (/** @type {number} */ value) => `${Math.round((100 * value) / all)} %`;
  const seen = live.filter(([, value]) => value > 0.01 * all);
  const answers = seen.slice(0, MOST_ANSWERS).map(([name, value]) => ({
    value: name,
    text: words(name),
    says: `${words(name)}: ${share(value)} of it. Look at the longest stretch of its bar.`,
  }));
  // By name, so that the longest is not always first.
  answers.sort((a, b) => a.text.localeCompare(b.text));
  const [name, value] = live[0] ?? ["", 0];
  return question(`What took most of rank ${rank}'s memory here?`, answers, name, `${words(name)}: ${share(value)}.`);
}

/**
 * What share of everything a rank held, from `{ held, all }` of parameters, gradients and optimizer state.
 * @param {number} rank @param {{ held: number, all: number }[]} state @param {number} ranks
 */
export function whatShare(rank, state, ranks) {
  const all = state.reduce((sum, one) => sum + one.all, 0);
  const right = Math.round((100 * state.reduce((sum, one) => sum + one.held, 0)) / all);
  const [parameters, gradients, optimizer] = state.map((one) => one.all);
  /** @type {(bytes: number, divided: string, because: string) => Choice & { because: string }} */
  const choice = (bytes, divided, because) => {
    const value = Math.round((100 * bytes) / all);
    const says = `It would be that if ${divided} were divided among the ranks.`;
    return { value, text: `${value} %`, says, because };
  };
  const later = gradients + optimizer;
  const answers = [
    choice(all, "nothing", "Every rank holds everything."),
    choice(all - optimizer + optimizer / ranks, "only optimizer state", "Only optimizer state is divided."),
    choice(parameters + later / ranks, "gradients and optimizer state", "Gradients and optimizer state are divided."),
    choice(all / ranks, "all three", "Parameters, gradients and optimizer state are all divided."),
  ];
  const near = answers.find(({ value }) => Math.abs(Number(value) - right) <= 1);
  if (!near) return null; // divided in some other way, of which these numbers say nothing
  return question(`What share of all state did rank ${rank} hold at its update?`, answers, near.value, near.because);
}

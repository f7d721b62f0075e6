// How the guided walk ends: the memory peak, what the step added up to, and what to look for on your own.

import { largestFirst } from "./caption.js";
import { bytes, words } from "./format.js";
import { whatMost, whatShare } from "./questions.js";

/** @import { Teller } from "./teller.js" */

/** @param {Teller} t */
export function tellPeak(t) {
  const { facts } = t;
  const { model, me } = facts;
  const peak = facts.peak();
  if (!peak) return;
  const live = largestFirst(model, peak);
  const time = model.columns.t_end[peak.index];
  const act = t.story.acts[peak.index];
  const when = act === "update" ? "at the update" : act === "share" ? "after the update" : `in the ${act}`;
  const two = live.slice(0, 2).map(([name, value]) => `${words(name)} ${bytes(value)}`);
  const asks = t.ask("most", () => whatMost(me, live));
  const said = asks ? `${bytes(peak.bytes)}, ${when}` : `${bytes(peak.bytes)}, ${when}: ${two.join(", ")}`;
  const says = [
    `Rank ${me} held most in this step at this moment: ${said}.`,
    "The mark at the end of its bar is the peak of the run.",
  ];
  const from = facts.beats.list[facts.beats.at(time)].t0;
  t.add("Where memory was highest", says, Math.min(from, time), time, asks, null);
}

/** @param {Teller} t */
export function tellTotal(t) {
  const { facts } = t;
  const { me } = facts;
  const state = facts.state();
  if (!state) return;
  const of = Object.values(state);
  const [held, all] = [of.reduce((sum, one) => sum + one.held, 0), of.reduce((sum, one) => sum + one.all, 0)];
  const sent = facts.sentInStep();
  const isAlike = !t.story.uneven || held < 0.99 * all; // where one rank owns everything, not every rank holds it
  const asks = t.ranks > 1 && isAlike ? t.ask("share", () => whatShare(me, of, t.ranks)) : null;
  const says = [
    `At its update rank ${me} held ${bytes(held)} of parameters, gradients and optimizer state.`,
    `All of it would be ${bytes(all)}.`,
    t.ranks > 1
      ? `In the step it sent ${bytes(sent)}${timesAll(t, sent, state.parameters)}.`
      : "It sent nothing. There is nobody else.",
  ];
  const [update] = facts.updates();
  const time = facts.model.columns.t_start[update];
  t.add("What it came to", says, time, time, asks, []);
}

/**
 * How often the bytes of all parameters fit into what was sent, which was padded.
 * @param {Teller} t @param {number} sent @param {{ all: number, padded: number }} parameters
 */
function timesAll(t, sent, { all, padded }) {
  const passes = sent / ((padded * (t.ranks - 1)) / t.ranks);
  const near = Math.round(passes);
  if (Math.abs(passes - near) > 0.02 || near < 1 || t.story.uneven)
    return `, ${(sent / all).toPrecision(2)} times as much as all parameters`;
  return `: ${near === 1 ? "" : `${near} times `}all parameters, less its own part${near === 1 ? "" : " each time"}`;
}

/** @param {Teller} t */
export function tellTurn(t) {
  const { story, name } = t;
  const gathers = t.chapters.some(({ title }) => title.endsWith("is gathered"));
  const frees = t.chapters.some(({ title }) => title.endsWith("and freed"));
  const shares = t.facts.moved("share", "all_gather", "broadcast");
  const look = gathers
    ? `a row filled from end to end: ${name} is whole there${frees ? ", and soon hollow again" : ""}`
    : shares
      ? "the dotted cells after the update: parameters that are out of date"
      : story.own
        ? "which cells stay hollow from the beginning to the end"
        : story.summed && t.ranks > 1
          ? "hatching that turns solid: a gradient of one batch becomes the mean"
          : "activations, which pile up in the forward and are used up in the backward";
  const says = [
    "Escape ends the walk. Space then plays the whole step, and the arrow keys go from beat to beat.",
    `Look for ${look}. Keys 2 to 5 show time, memory and the source behind it.`,
  ];
  t.add("Your turn", says, t.start, t.start, null, []);
}

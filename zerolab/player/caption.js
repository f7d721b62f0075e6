// One sentence about one event, in words and numbers, all of them from the recording.

import { MOVED, WIDTH } from "./flow.js";
import { bytes, count, duration, exact, words } from "./format.js";
import { size } from "./story.js";

/** "12,352 elements" of a rank's part: how many, of how many. */
function share(part, whole) {
  return part === whole ? `all ${count(whole, "element")}` : `${exact(part)} of ${count(whole, "element")}`;
}

function numbered(event) {
  return event.number === null ? words(event.op) : `${words(event.op)} #${event.number}`;
}

/** What a collective did, seen from the rank that the event belongs to. */
function collective(model, event) {
  const ranks = event.group ? event.group.length : model.worldSize;
  const what = `${event.unit ?? "a buffer"} (${numbered(event)})`;
  const part = exact(event.numel / ranks);
  const sent = `it sent ${count(event.logicalBytes, "byte")}`;
  const took = `in ${duration(event.end - event.start)}`;
  if (ranks === 1 && event.op in MOVED)
    return `${event.op === "all_gather" ? "gathered" : "reduced"} ${what} ${took}: it is alone, so nothing was sent.`;
  if (event.op === "all_gather") {
    const own = `its ${part} of ${count(event.numel, "element")} to ${ranks === 2 ? "the other rank" : `each of the other ${ranks - 1}`}`;
    return `gathered ${what} ${took}: ${sent}, ${own}.`;
  }
  if (event.op === "reduce_scatter")
    return `reduced ${what} ${took}: ${sent} and keeps the sum of its own ${part} of ${count(event.numel, "element")}.`;
  if (event.op === "all_reduce")
    return `reduced ${what} ${took}: every part to its owner to be added up, then the sums to all; ${sent} of ${count(event.numel, "element")}.`;
  const buffer = event.numel ? `; the buffer has ${count(event.numel, "element")}` : "";
  return `took part in ${event.unit ? what : numbered(event)} ${took}: ${sent}${buffer}.`;
}

/** A send or a receive that belongs to a collective: whose part it is, and what for. */
function exchange(model, event) {
  const whole = model.event(event.parent);
  const receiving = /recv/.test(event.op);
  const unit = whole.unit ?? "a buffer";
  const end = `: ${event.numel ? count(event.numel, "element") : "its piece"} (${numbered(whole)}).`;
  if (event.peer === null || !(whole.op in MOVED))
    return `${receiving ? "received" : "sent"} a part of ${unit}${event.peer === null ? "" : ` ${receiving ? "from" : "to"} rank ${event.peer}`}${end}`;
  const peer = `rank ${event.peer}`;
  if (whole.op === "all_gather")
    return (receiving ? `received ${peer}'s part of ${unit}` : `sent its own part of ${unit} to ${peer}`) + end;
  if (whole.op === "all_reduce" && model.half(event.index) === 1) {
    return (
      (receiving
        ? `received the sums of ${peer}'s part of ${unit}`
        : `sent the sums of its own part of ${unit} to ${peer}`) + end
    );
  }
  return (
    (receiving
      ? `received ${peer}'s gradients for its own part of ${unit}, to add them up`
      : `sent ${peer} the gradients of the part of ${unit} that ${peer} owns`) + end
  );
}

/** What a rank lacks while it waits for a collective. */
const WAITED_FOR = {
  all_gather: (unit) => `the parts of ${unit} that it does not own`,
  reduce_scatter: (unit) => `the others' gradients for its own part of ${unit}`,
  all_reduce: (unit) => `the gradients of ${unit}, added up over all ranks`,
};

function waited(model, event) {
  const of = event.parent === null ? event : model.event(event.parent);
  const what =
    of.kind === "collective" ? `${numbered(of)}${of.unit ? ` of ${of.unit}` : ""}` : (event.unit ?? words(event.op));
  const lacking =
    of.unit && model.worldSize > 1 && WAITED_FOR[of.op] ? `${WAITED_FOR[of.op](of.unit)} (${numbered(of)})` : what;
  return `waited ${duration(event.end - event.start)} for ${lacking}.`;
}

/** What a rank was in the middle of when its recording was cut off: where a run ends that hangs. */
function cutOff(model, event) {
  const since = duration(event.end - event.start);
  if (event.kind === "module")
    return `was in the middle of the ${event.op} of ${event.unit ?? "the model"}, ${since} after it began: its recording ends here.`;
  const of = event.parent === null ? event : model.event(event.parent);
  const what = `${numbered(of)}${of.unit ? ` of ${of.unit}` : ""}`;
  return `waited ${since} in ${what}, which never ended: its recording ends here.`;
}

/** A change of ownership: what is held from now on, and whether that is more or less than before. */
function hold(model, event) {
  const what = `the ${words(event.category)} of ${event.unit}`;
  const now = size(event.spans ?? []);
  const before = size(model.held(event.rank, event.category, event.unit, event.index - 1));
  const unit = model.units.find(({ name }) => name === event.unit);
  const whole = unit?.padded || event.numel;
  if (now === 0) return `let go of ${what}: nothing of them is held any more.`;
  if (now < before) return `released ${what}: of ${exact(before)} elements it keeps ${exact(now)}.`;
  const rest =
    before && now === whole && event.category === "parameters"
      ? `: its own ${exact(before)}, and the rest from the others`
      : "";
  const weight = now * (WIDTH[event.dtype ?? unit?.dtype] ?? 0); // of moments there are several an element: not told
  const heavy = weight && event.category !== "optimizer_state" ? ` (${bytes(weight)})` : "";
  if (now > before) return `now holds ${share(now, whole)}${heavy} of ${what}${rest}.`;
  return `still holds ${share(now, whole)} of ${what}.`;
}

function peak(model, event) {
  const live = model.live(event.rank, event.index);
  const largest = Object.entries(live)
    .filter(([, value]) => value > 0)
    .sort((a, b) => b[1] - a[1])
    .slice(0, 3);
  const parts = largest.map(([category, value]) => `${words(category)} ${exact(value)}`).join(", ");
  const where = event.text ? ` ${event.text}` : "";
  return `reached a new peak of ${exact(model.total(event.index))} live bytes${where}: ${parts}.`;
}

/** Why memory stands where it stands at a rank's peak: its terms, largest first, beside the formula. */
function highest(model, event) {
  const live = Object.entries(model.live(event.rank, event.index))
    .filter(([, value]) => value > 0)
    .sort((a, b) => b[1] - a[1]);
  const named = live.length > 4 ? live.slice(0, 3) : live;
  const rest = live.slice(named.length).reduce((sum, [, value]) => sum + value, 0);
  const why = { parameters: wholeUnits(model, event) };
  const terms = [
    ...named.map(([category, value]) => `${words(category)} ${bytes(value)}${why[category] ?? ""}`),
    ...(rest ? [`the rest ${bytes(rest)}`] : []),
  ].join(" + ");
  const formula = model.formulaBytes === null ? "" : `; formula ${bytes(model.formulaBytes)}`;
  const total = model.total(event.index);
  return `is at its peak, ${total < 1e9 ? count(total, "byte") : bytes(total)}: ${terms}${formula}.`; // beyond that the line would not hold it
}

/** " (blocks.3 whole)": which units a rank that keeps shards has gathered; "" where it keeps all of them anyway. */
function wholeUnits(model, { rank, index }) {
  const whole = model.units.filter(
    ({ name, padded }) => padded && size(model.held(rank, "parameters", name, index)) === padded,
  );
  if (!whole.length || whole.length === model.units.length) return "";
  return whole.length === 1 ? ` (${whole[0].name} whole)` : ` (${whole.length} units whole)`;
}

function updated(model, event) {
  const live = model.live(event.rank, event.index);
  const state = live.parameters + live.gradients + live.optimizer_state;
  const formula = model.formulaBytes === null ? "" : `; the formula says ${exact(model.formulaBytes)}`;
  return `updated its parameters in ${duration(event.end - event.start)}; its state is ${count(state, "byte")}${formula}.`;
}

/** The sentence about event `i`. */
export function caption(model, i) {
  const event = model.event(i);
  const rank = `Rank ${event.rank}`;
  if (model.cut.has(i)) return `${rank} ${cutOff(model, event)}`;
  if (model.peaks[event.rank]?.index === i && model.total(i) > 0) return `${rank} ${highest(model, event)}`;
  if (event.kind === "collective")
    return `${rank} ${event.parent === null ? collective(model, event) : exchange(model, event)}`;
  if (event.kind === "wait") return `${rank} ${waited(model, event)}`;
  if (event.kind === "optimizer") return `${rank} ${updated(model, event)}`;
  if (event.kind === "memory" && event.op === "hold") return `${rank} ${hold(model, event)}`;
  if (event.kind === "memory" && event.op === "peak") return `${rank} ${peak(model, event)}`;
  if (event.kind === "module") {
    const activations = model.live(event.rank, i).activations;
    const what = event.unit ?? "the model";
    return `${rank} computed the ${event.op} of ${what} in ${duration(event.end - event.start)}; ${bytes(activations)} of activations are live.`;
  }
  return event.text ? `${rank}: ${event.text}` : `${rank}: ${words(event.op)}.`;
}

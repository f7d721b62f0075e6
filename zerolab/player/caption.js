// One sentence about one event, in words and numbers, all of them from the recording.

import { size, untold } from "./derived.js";
import { entries, MOVED, WIDTH } from "./events.js";
import { bytes, count, duration, exact, readableBytes, spoken, words } from "./format.js";

/**
 * @import { Model } from "./model.js"
 * @import { Category, Device, RecordedEvent } from "./types.d.ts"
 */

/**
 * "12,352 elements" of a rank's part: how many, of how many.
 * @param {number} part @param {number} whole
 */
function share(part, whole) {
  return part === whole ? `all ${count(whole, "element")}` : `${exact(part)} of ${count(whole, "element")}`;
}

/** @param {RecordedEvent} event */
function numbered(event) {
  return event.number === null ? words(event.op) : `${words(event.op)} #${event.number}`;
}

/**
 * How long an event lasted: on the device, if that executed it.
 * @param {RecordedEvent} event
 */
const lasted = ({ start, end, deviceStart, deviceEnd }) =>
  deviceStart === null || deviceEnd === null
    ? duration(end - start)
    : `${duration(deviceEnd - deviceStart)} of GPU time`;

/**
 * How long a collective lasted, where that is known: the flight recorder does not notice all ends, and what native code
 * waits for, nobody sees.
 * @param {Model} model @param {RecordedEvent} event
 */
function ended(model, event) {
  const unwaited = model.worldSize > 1 && event.op !== "barrier" && !model.awaited.has(event.index);
  const unseen = model.payload.meta.origin ? event.end === event.start : unwaited;
  return unseen && event.deviceEnd === null ? "(its end was not recorded)" : `in ${lasted(event)}`;
}

/**
 * What a collective did, seen from the rank that the event belongs to.
 * @param {Model} model @param {RecordedEvent} event
 */
function collective(model, event) {
  const ranks = event.group ? event.group.length : model.worldSize;
  const what = `${spoken(event.unit) ?? "a buffer"} (${numbered(event)})`;
  const part = exact(event.numel / ranks);
  const sent = `it sent ${count(event.logicalBytes, "byte")}`;
  const took = ended(model, event);
  if (model.payload.meta.origin) {
    const known = event.dtype || event.op === "barrier";
    const name = event.unit ? what : numbered(event);
    if (event.text)
      return `asked for ${name}${event.numel ? ` of ${count(event.numel, "element")}` : ""}: ${event.text}.`;
    if (!known) return `took part in ${name} ${took}: its size was not recorded.`;
  }
  if (ranks === 1 && event.op in MOVED)
    return `${event.op === "all_gather" ? "gathered" : "reduced"} ${what} ${took}: it is alone, so nothing was sent.`;
  if (event.op === "all_gather") {
    const others = ranks === 2 ? "the other rank" : `each of the other ${exact(ranks - 1)}`;
    const own = `its ${part} of ${count(event.numel, "element")} to ${others}`;
    return `gathered ${what} ${took}: ${sent}, ${own}.`;
  }
  // Of a tensor that is no unit's gradient nobody recorded how it was combined; but our own collectives add up.
  const adds = event.unit || model.columns.from_autograd[event.index] || model.partsOf(event.index).length;
  if (event.op === "reduce_scatter") {
    const [kept, whose] = adds ? ["the sum of its own", ""] : ["its own", " of the result"];
    return `reduced ${what} ${took}: ${sent} and keeps ${kept} ${part} of ${count(event.numel, "element")}${whose}.`;
  }
  if (event.op === "all_reduce") {
    const both = adds
      ? "every part to its owner to be added up, then the sums to all"
      : "every part to one rank to be combined, then the results to all";
    return `reduced ${what} ${took}: ${both}; ${sent} of ${count(event.numel, "element")}.`;
  }
  const buffer = event.numel ? `; the buffer has ${count(event.numel, "element")}` : "";
  return `took part in ${event.unit ? what : numbered(event)} ${took}: ${sent}${buffer}.`;
}

/**
 * A send or a receive that belongs to a collective: whose part it is, and what for.
 * @param {Model} model @param {RecordedEvent} event @param {RecordedEvent} whole
 */
function exchange(model, event, whole) {
  const receiving = /recv/.test(event.op);
  const unit = spoken(whole.unit) ?? "a buffer";
  const end = `: ${event.numel ? count(event.numel, "element") : "its piece"} (${numbered(whole)}).`;
  const peer = `rank ${event.peer}`;
  if (event.peer === null || !(whole.op in MOVED)) {
    const other = event.peer === null ? "" : ` ${receiving ? "from" : "to"} ${peer}`;
    return `${receiving ? "received" : "sent"} a part of ${unit}${other}${end}`;
  }
  if (whole.op === "all_gather")
    return (receiving ? `received ${peer}'s part of ${unit}` : `sent its own part of ${unit} to ${peer}`) + end;
  if (whole.op === "all_reduce" && model.half(event.index) === 1) {
    return (
      (receiving
        ? `received the sums of ${peer}'s part of ${unit}`
        : `sent the sums of its own part of ${unit} to ${peer}`) + end
    );
  }
  const values = whole.unit ? "gradients" : "values";
  return (
    (receiving
      ? `received ${peer}'s ${values} for its own part of ${unit}, to add them up`
      : `sent ${peer} the ${values} of the part of ${unit} that ${peer} owns`) + end
  );
}

/**
 * What a rank lacks while it waits for a collective.
 * @type {Partial<Record<string, (unit: string) => string>>}
 */
const WAITED_FOR = {
  all_gather: (unit) => `the parts of ${unit} that it does not own`,
  reduce_scatter: (unit) => `the others' gradients for its own part of ${unit}`,
  all_reduce: (unit) => `the gradients of ${unit}, added up over all ranks`,
};

/** @param {Model} model @param {RecordedEvent} event */
function waited(model, event) {
  const of = event.parent === null ? event : model.event(event.parent);
  const unit = spoken(of.unit);
  const what =
    of.kind === "collective" ? `${numbered(of)}${unit ? ` of ${unit}` : ""}` : (spoken(event.unit) ?? words(event.op));
  const lacks = model.worldSize > 1 ? WAITED_FOR[of.op] : undefined;
  const lacking = unit && lacks ? `${lacks(unit)} (${numbered(of)})` : what;
  return `waited ${lasted(event)} for ${lacking}.`;
}

/**
 * What a rank was in the middle of when its recording was cut off, as it is when a run hangs.
 * @param {Model} model @param {RecordedEvent} event
 */
function cutOff(model, event) {
  const since = duration(event.end - event.start);
  const amid = {
    module: `the ${event.op} of ${spoken(event.unit) ?? "the model"}`,
    optimizer: "its update",
    save: "writing a checkpoint",
  }[String(event.kind)];
  if (amid) return `was in the middle of ${amid}, ${since} after it began: its recording ends here.`;
  const of = event.parent === null ? event : model.event(event.parent);
  const what = `${numbered(of)}${of.unit ? ` of ${spoken(of.unit)}` : ""}`;
  if (event.kind === "collective" && !model.awaited.has(event.index))
    return `had begun ${what} ${since} before its recording ended; that it was over by then was not seen.`;
  return `waited ${since} in ${what}, which never ended: its recording ends here.`;
}

/**
 * A rank's part of a checkpoint, copied or written.
 * @param {RecordedEvent} event
 */
function saved(event) {
  const size = event.text === null ? "its part" : readableBytes(event.text);
  const took = `in ${duration(event.end - event.start)}`;
  if (event.op === "copy") return `copied ${size} of a checkpoint ${took}; a thread writes the copy.`;
  if (event.op === "write") return `wrote ${size} of a checkpoint ${took}, beside the training.`;
  return `wrote ${size} of a checkpoint ${took}, and the training waited.`;
}

/**
 * A change of ownership: what is held from now on, and whether that is more or less than before.
 * @param {Model} model @param {RecordedEvent} event @param {Category} category @param {string} name
 */
function hold(model, event, category, name) {
  const what = `the ${words(category)} of ${spoken(name)}`;
  const now = size(event.spans ?? []);
  const before = size(model.held(event.rank, category, name, event.index - 1));
  const unit = model.units.find((one) => one.name === name);
  const whole = unit?.padded || event.numel;
  if (now === 0) return `let go of ${what}: nothing of them is held any more.`;
  if (now < before) return `released ${what}: of ${exact(before)} elements it keeps ${exact(now)}.`;
  const gathered = before && now === whole && category === "parameters";
  const rest = gathered ? `: its own ${exact(before)}, and the rest from the others` : "";
  const weight = now * (WIDTH[event.dtype ?? unit?.dtype ?? ""] ?? 0);
  // Adam keeps several numbers per element, so a number of elements would mislead.
  const heavy = weight && category !== "optimizer_state" ? ` (${bytes(weight)})` : "";
  if (now > before) return `now holds ${share(now, whole)}${heavy} of ${what}${rest}.`;
  return `still holds ${share(now, whole)} of ${what}.`;
}

/**
 * What is live after an event, by category, largest first.
 * @param {Model} model @param {{ index: number }} event @param {Device} [device]
 */
export function largestFirst(model, { index }, device = "live") {
  const live = entries(model.liveAt(index, device)).filter(([, value]) => value > 0);
  return live.sort((a, b) => b[1] - a[1]);
}

/** @param {Model} model @param {RecordedEvent} event @param {Device} device */
function peak(model, event, device) {
  const parts = largestFirst(model, event, device)
    .slice(0, 3)
    .map(([category, value]) => `${words(category)} ${exact(value)}`)
    .join(", ");
  const where = event.text ? ` ${event.text}` : "";
  const place = device === "host" ? " in main memory" : "";
  return `reached a new peak of ${exact(model.total(event.index, device))} live bytes${place}${where}: ${parts}.`;
}

/**
 * What a rank's memory consists of at its peak, largest first, next to the formula.
 * @param {Model} model @param {RecordedEvent} event
 */
function highest(model, event) {
  const live = largestFirst(model, event);
  const named = live.length > 4 ? live.slice(0, 3) : live;
  const rest = live.slice(named.length).reduce((sum, [, value]) => sum + value, 0);
  const terms = named.map(([category, value]) => {
    const why = category === "parameters" ? wholeUnits(model, event) : "";
    return `${words(category)} ${bytes(value)}${why}`;
  });
  if (rest) terms.push(`the rest ${bytes(rest)}`);
  const formula = model.formulaBytes === null ? "" : `; formula ${bytes(model.formulaBytes)}`;
  const total = model.total(event.index);
  const said = total < 1e9 ? count(total, "byte") : bytes(total); // more digits would not fit
  return `is at its peak, ${said}: ${terms.join(" + ")}${formula}.`;
}

/**
 * What the card of an event's rank held in its step, as a sum: "" where that was not measured.
 * @param {Model} model @param {RecordedEvent} event
 */
export function onCard(model, { index, rank, step }) {
  const card = model.cardAt(index);
  if (!card) return "";
  const terms = Object.entries(card.terms).filter(([, value]) => value);
  const sum = terms.reduce((all, [, value]) => all + value, 0);
  const parts = terms.map(([name, value]) => `${name} ${bytes(value)}`).join(" + ");
  return `Rank ${rank}'s card at the peak of step ${step}: ${parts} = ${bytes(sum)} of ${bytes(card.total)}`;
}

/**
 * " (blocks.3 whole)": which units a rank that keeps shards has gathered; "" where it keeps all of them anyway.
 * @param {Model} model @param {RecordedEvent} event
 */
function wholeUnits(model, { rank, index }) {
  const whole = model.units.filter(
    ({ name, padded }) => padded && size(model.held(rank, "parameters", name, index)) === padded,
  );
  if (!whole.length || whole.length === model.units.length) return "";
  return whole.length === 1 ? ` (${spoken(whole[0].name)} whole)` : ` (${whole.length} units whole)`;
}

/** @param {Model} model @param {RecordedEvent} event */
function updated(model, event) {
  const live = model.liveAt(event.index);
  const state = live.parameters + live.gradients + live.optimizer_state;
  const formula = model.formulaBytes === null ? "" : `; the formula says ${exact(model.formulaBytes)}`;
  const took = lasted(event);
  if (untold(model)) return `updated its parameters in ${took}.`;
  return `updated its parameters in ${took}; its state is ${count(state, "byte")}${formula}.`;
}

/**
 * What a rank did, as a sentence without its subject; null for an event that has no sentence.
 * @param {Model} model @param {RecordedEvent} event
 */
function deed(model, event) {
  const { index, rank, kind, op, parent, category, unit } = event;
  if (model.cut.has(index)) return cutOff(model, event);
  if (model.peaks[rank]?.index === index && model.total(index) > 0) return highest(model, event);
  if (kind === "collective" && parent === null) return collective(model, event);
  if (kind === "collective" && parent !== null) return exchange(model, event, model.event(parent));
  if (kind === "wait") return waited(model, event);
  if (kind === "optimizer") return updated(model, event);
  if (kind === "module") return passed(model, event);
  if (kind === "save") return saved(event);
  if (kind === "memory" && op === "hold" && category && unit) return hold(model, event, category, unit);
  if (kind === "memory" && op === "peak") return peak(model, event, "live");
  if (kind === "memory" && op === "host peak") return peak(model, event, "host");
  return null;
}

/** @param {Model} model @param {RecordedEvent} event */
function passed(model, event) {
  const took = lasted(event);
  const passed = `computed the ${event.op} of ${spoken(event.unit) ?? "the model"} in ${took}`;
  if (untold(model)) return `${passed}.`;
  const live = `${bytes(model.liveAt(event.index).activations)} of activations are live`;
  return `${passed}; ${live}.`;
}

/**
 * The sentence about event `i`.
 * @param {Model} model @param {number} i
 */
export function caption(model, i) {
  const event = model.event(i);
  const did = deed(model, event);
  if (did !== null) return `Rank ${event.rank} ${did}`;
  return `Rank ${event.rank}: ${event.text ? readableBytes(event.text) : `${words(event.op)}.`}`;
}

// The strata of memory: which are drawn, how high they are together, and what the one under the pointer is.

import { size } from "./derived.js";
import { button, swatch } from "./dom.js";
import { bytes, spoken, words } from "./format.js";
import { hover } from "./gestures.js";
import { Ghost } from "./ghost.js";
import { lastAtMost, STATE } from "./model.js";
import { STACK } from "./palette.js";

/**
 * @import { Memory } from "./memory.js"
 * @import { Player } from "./player.js"
 * @import { Category, Device, Filter, State, Stratum } from "./types.d.ts"
 * @import { Model } from "./model.js"
 */

/**
 * What is no state.
 * @type {Category[]}
 */
const NO_STATE = STACK.filter((category) => !STATE.some((state) => state === category));

/**
 * The categories that a filter leaves, from the bottom up.
 * @param {Filter} filter
 */
export function stackOf({ category, off }) {
  return STACK.filter((one) => (!category || one === category) && !off?.includes(one));
}

/**
 * Whether the drawn categories are all of the state, so that it can be compared with the whole of it.
 * @param {Category[]} stack
 */
export function hasState(stack) {
  return STATE.every((category) => stack.includes(category));
}

/** @type {WeakMap<Model, Ghost>} */
const GHOSTS = new WeakMap();

/**
 * What DDP would hold beside what ranks do; null where that is unknown, or where they save nothing.
 * @param {Model} model @param {Device} [device]
 */
export function ghostOf(model, device = "live") {
  if (device === "host") return null;
  const ghost = GHOSTS.get(model) ?? new Ghost(model);
  GHOSTS.set(model, ghost);
  return ghost.known ? ghost : null;
}

/**
 * The highest moment of some categories over all ranks, with what DDP would hold beside them; at least 1.
 * @param {Model} model @param {Category[]} stack @param {Device} device
 */
export function highestOf(model, stack, device) {
  const ghost = hasState(stack) ? ghostOf(model, device) : null;
  const columns = stack.map((category) => model.columns[`${device}.${category}`]);
  let most = 1;
  model.ofRank.forEach((places, rank) => {
    for (const i of places) {
      const sum = columns.reduce((all, values) => all + values[i], ghost ? ghost.missing(rank, i) : 0);
      most = Math.max(most, sum);
    }
  });
  return hasState(stack) ? Math.max(most, model.formulaOn(device) ?? 0) : most;
}

/**
 * The bytes at which the memory panes end, by device: one scale for all ranks and the whole recording.
 * @param {Model} model
 */
export function tops(model) {
  return model.devices.map((device) => highestOf(model, STACK, device));
}

/**
 * "−75 %, 2.55 MB less than DDP"; "" where nothing is missing.
 * @param {Ghost} ghost @param {number} rank @param {number} i
 */
export function saving(ghost, rank, i) {
  const missing = ghost.missing(rank, i);
  return missing ? `${percent(ghost, rank, i)}, ${bytes(missing)} less than DDP` : "";
}

/**
 * "−75 %"; of nearly all a decimal, rounded down, for nobody saves it all.
 * @param {Ghost} ghost @param {number} rank @param {number} i
 */
export function percent(ghost, rank, i) {
  const less = (100 * ghost.missing(rank, i)) / ghost.whole(rank, i);
  return `−${less < 99.5 ? Math.round(less) : Math.floor(10 * less) / 10} %`;
}

// --- the legend ---

/**
 * The categories as buttons that switch them off and on, and one that leaves state alone.
 * @param {Player} player
 */
export function toggles(player) {
  const made = STACK.map((category) => {
    const more = { class: "zl-toggle", "data-off": category, "aria-label": null };
    const key = swatch(words(category), player.palette.look(category));
    return button(`${words(category)}: show or leave out`, key, () => switchOff(player, category), more);
  });
  const more = { class: "zl-toggle zl-alone", "data-off": "beside", "aria-label": null };
  const alone = button("Only what the formula counts (s)", "state alone", () => stateAlone(player), more);
  const all = [...made, alone];
  pressToggles(all, player.filter);
  return all;
}

/**
 * Says of each button whether its category is shown.
 * @param {Iterable<HTMLElement>} buttons @param {Filter} filter
 */
export function pressToggles(buttons, { off }) {
  for (const one of buttons) {
    const alone = one.dataset.off === "beside";
    const is = alone ? isAlone(off) : !off?.some((category) => category === one.dataset.off);
    one.setAttribute("aria-pressed", String(is));
  }
}

/** @param {Filter["off"]} off */
function isAlone(off) {
  return off?.length === NO_STATE.length && NO_STATE.every((category) => off.includes(category));
}

/**
 * Leaves out what is no state, or shows it again.
 * @param {Player} player
 */
export function stateAlone(player) {
  player.setFilter({ off: isAlone(player.filter.off) ? null : NO_STATE });
}

/**
 * Leaves out a category, or shows it again.
 * @param {Player} player @param {Category} category
 */
function switchOff(player, category) {
  const off = player.filter.off ?? [];
  const left = STACK.filter((one) => off.includes(one) !== (one === category));
  player.setFilter({ off: left.length ? left : null });
}

/**
 * "state alone", "without activations"; "" where all are drawn.
 * @param {Filter} filter
 */
export function withoutInWords({ off }) {
  if (!off) return "";
  return isAlone(off) ? "state alone" : `without ${off.map(words).join(", ")}`;
}

// --- the pointer ---

/**
 * What the pointer finds in a pane of memory: its stratum lights up, and is named at the pointer.
 * @param {Player} player @param {Memory} memory @param {HTMLElement} box
 */
export function pointAt(player, memory, box) {
  const { model } = player;
  hover(
    box,
    ({ x, y }, event) => {
      const found = player.axis && memory.hit(model, player.axis, x, y);
      const before = player.hovered;
      memory.pointed = found;
      player.preview(found?.index ?? null, event);
      if (!found) return;
      if (before === found.index && player.frame) memory.draw({ ...player.frame, hover: model.event(found.index) });
      const told = memory.tell(model, found);
      if (told) player.scene.tip.tell(told, event);
    },
    () => {
      memory.pointed = null;
      player.preview(null);
    },
  );
}

/**
 * A stratum in words: how large it is, what of it is more than the rank's own part, and by what it grew last.
 * @param {Model} model @param {Stratum} stratum @param {Device} device
 */
export function tellStratum(model, { rank, index, category }, device) {
  if (!category) return null;
  if (category === "ghost") return tellGhost(model, rank, index);
  const now = model.columns[`${device}.${category}`][index];
  const said = [...gatheredUnits(model, rank, category, index), ...grownLast(model, category, index, device)];
  return {
    head: `${words(category)} ${bytes(now)} · rank ${rank}`,
    text: said.join("; "),
    foot: "Click for this moment.",
  };
}

/** @param {Model} model @param {number} rank @param {number} index */
function tellGhost(model, rank, index) {
  const ghost = ghostOf(model);
  if (!ghost) return null;
  const [state, whole] = [ghost.state(rank, index), ghost.whole(rank, index)].map(bytes);
  return {
    head: `DDP would hold ${bytes(ghost.missing(rank, index))} more · rank ${rank}`,
    text: `state ${state} instead of ${whole}: ${percent(ghost, rank, index)}`,
    foot: "All of what this rank has a part of now.",
  };
}

/**
 * "blocks.2 whole +200 kB": the units of which a rank holds more than its own part.
 * @param {Model} model @param {number} rank @param {Category} category @param {number} index
 */
function gatheredUnits(model, rank, category, index) {
  const weights = ghostOf(model)?.weights;
  const state = /** @type {State | undefined} */ (STATE.find((one) => one === category));
  if (!weights || !state) return [];
  const more = model.units
    .map(({ name, owners }) => {
      const mine = (owners ?? []).flat().filter((part) => part[2] === rank);
      const own = mine.reduce((sum, [start, stop]) => sum + stop - start, 0);
      const held = size(model.held(rank, state, name, index));
      return { name, extra: owners ? (held - own) * weights[state] : 0 };
    })
    .filter(({ extra }) => extra > 0);
  const shown = more.slice(0, 2).map(({ name, extra }) => `${spoken(name)} whole +${bytes(extra)}`);
  const rest = more.slice(2).reduce((sum, { extra }) => sum + extra, 0);
  return rest ? [...shown, `${more.length - 2} more whole +${bytes(rest)}`] : shown;
}

/**
 * By what a category grew last before an event, and where in the source that was.
 * @param {Model} model @param {Category} category @param {number} index @param {Device} device
 */
function grownLast(model, category, index, device) {
  const values = model.columns[`${device}.${category}`];
  let at = index;
  while (at >= 0 && !(values[at] > (values[model.before[at]] ?? 0))) at = model.before[at];
  if (at < 0) return [];
  const by = values[at] - (values[model.before[at]] ?? 0);
  const cause = causeOf(model, at);
  const during = cause ? ` in ${cause.kind === "wait" ? "the wait for " : ""}${words(cause.op)}` : "";
  const line = cause && model.lineOf(cause.index);
  const label = line && model.payload.sources[line.source ?? -1]?.label;
  const where = label ? ` (line ${line.line} of ${fileOf(label)})` : "";
  return [`last +${bytes(by)}${during}${cause?.unit ? ` of ${spoken(cause.unit)}` : ""}${where}`];
}

/**
 * The event in which event `i` happened: of a part of a collective that, of a mere note of memory the pass around it.
 * @param {Model} model @param {number} i
 */
function causeOf(model, i) {
  const { columns, ofRank } = model;
  const made = model.event(i);
  if (made.kind === "collective" && made.parent !== null) return model.event(made.parent);
  if (made.kind !== "memory") return made;
  const places = ofRank[made.rank];
  for (let k = lastAtMost(places, i) + 1; k < places.length; k++)
    if (columns.t_start[places[k]] <= made.start && model.event(places[k]).kind !== "memory")
      return model.event(places[k]);
  return null;
}

/**
 * The file of a label: "zerolab/engines/flat.py" -> "flat.py".
 * @param {string} label
 */
function fileOf(label) {
  return label.slice(label.lastIndexOf("/") + 1);
}

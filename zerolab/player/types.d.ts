// The shapes that the files here hand each other. Nothing of this reaches a page: `make lint` alone reads it.

import type { Axis } from "./axis.js";
import type { Flights } from "./flight.js";
import type { Model } from "./model.js";
import type { Palette } from "./palette.js";
import type { Player } from "./player.js";
import type { Values } from "./values.js";

// --- words, as recording/events.py declares them ---

export type Category = "parameters" | "gradients" | "optimizer_state" | "activations" | "communication" | "other";
export type Phase = "setup" | "forward" | "backward" | "reduce" | "step" | "gather";
export type Kind = "module" | "collective" | "wait" | "optimizer" | "memory" | "note" | "save";

/** Where bytes lie: where the rank computes, or in main memory beside a GPU. */
export type Device = "live" | "host";

/** Half-open ranges of elements, flat: `[start, stop, start, stop, ...]`. */
export type Spans = number[];

// --- the payload, as payload.py writes it ---

/** The fields of an event that are columns of numbers; `events.js` says what each stands for. */
export type Field =
  | "rank"
  | "seq"
  | "parent"
  | "t_start"
  | "duration"
  | "step"
  | "phase"
  | "kind"
  | "op"
  | "unit"
  | "group"
  | "dtype"
  | "numel"
  | "logical_bytes"
  | "source"
  | "line"
  | "from_autograd"
  | "number"
  | "peer"
  | "category"
  | "spans"
  | "text"
  | "numbers"
  | "stream"
  | "device_start"
  | "device_duration"
  | `${Device}.${Category}`;

/** A column as it is written: base64, and whether it holds differences. */
export interface Stored {
  delta: boolean;
  data: string;
}

/** The columns as arrays, in the order in which events ended. */
export type Columns = Record<Field | "t_end" | "device_end", Float64Array>;

/** A part of a unit, and the rank that owns it. */
export type Part = [start: number, stop: number, owner: number];

export interface Unit {
  name: string;
  numel: number;
  padded: number;
  dtype: string;
  parameters: number;
  frozen: boolean;
  replicated: boolean;
  /** The parts of one whole after another, of which each replica has one; null if all ranks keep all of it. */
  owners: Part[][] | null;
}

export interface Source {
  label: string;
  text: string;
}

export interface Meta {
  stage: string | null;
  num_params: number | null;
  optimizer: string | null;
  precision: string | null;
  backend: string | null;
  device: string | null;
  simulated: boolean | null;
  offload: boolean;
  formula: Record<State, number> | null;
  steps: number | null;
  times_only?: boolean;
  /** Bytes of memory are known, and not what they are for. */
  total_only?: boolean;
  /** Which tool's files it was made of, and what those do not say. */
  origin?: string | null;
  lacks?: string[];
}

export interface Payload {
  format: string;
  version: number;
  title: string;
  world_size: number;
  meta: Meta;
  /** `cut` is when a rank's recording was cut off: what was under way ends then. */
  ranks: { rank: number; complete: boolean; events: number; cut?: number; cards?: CardInStep[] }[];
  phases: Phase[];
  kinds: Kind[];
  categories: Category[];
  words: string[];
  groups: number[][];
  spans: Spans[];
  numbers: number[][];
  units: Unit[];
  sources: Source[];
  count: number;
  columns: Record<Field, Stored>;
}

/** What a rank's card held in a step, by name, and its size; in bytes. */
export interface CardInStep {
  terms: Record<string, number>;
  total: number;
}

export interface PairPayload {
  format: string;
  version: number;
  title: string;
  first: Payload;
  second: Payload;
  difference: { rank: number; events: (number | null)[] } | null;
  said: string | null;
}

// --- the model ---

/** The categories that the formula counts. */
export type State = "parameters" | "gradients" | "optimizer_state";

/** One event in words; null where it says nothing. Its places in other lists are counted from 0. */
export interface RecordedEvent {
  index: number;
  rank: number;
  seq: number;
  start: number;
  end: number;
  step: number;
  phase: Phase;
  kind: Kind;
  op: string;
  unit: string | null;
  group: number[] | null;
  dtype: string | null;
  numel: number;
  logicalBytes: number;
  number: number | null;
  parent: number | null;
  peer: number | null;
  category: Category | null;
  spans: Spans | null;
  text: string | null;
  numbers: number[] | null;
  source: number | null;
  line: number;
  fromAutograd: boolean;
  /** The device's stream that executed it, and when; null if the host did. */
  stream: string | null;
  deviceStart: number | null;
  deviceEnd: number | null;
}

/** Live bytes by category. */
export type Live = Record<Category, number>;

/** Every change of what a rank holds of a category of a unit: the events' places, and the spans from then on. */
export interface Changes {
  at: number[];
  spans: Spans[];
}

/** By rank, then category, then unit; a rank or a category that holds nothing is left out. */
export type Holdings = Partial<Record<Category, Map<string, Changes>>>[];

/** A sum that changes at events: their places, and the sum from then on. */
export interface RunningSum {
  at: number[];
  sums: number[];
}

/**
 * What values are: of this batch alone, updated since by their owner or as new as only their owner has them; or plainly
 * what they should be.
 */
export type Worth = "plain" | "local" | "stale" | "fresh";

/** A part of the recording: nanoseconds from and to. */
export interface View {
  t0: number;
  t1: number;
}

/** A training step, or with step 0 what came before the first: its time, and its first and last event. */
export interface StepWindow extends View {
  step: number;
  first: number;
  last: number;
  events: number;
}

/** The moment at which a rank had most live bytes. */
export interface Peak {
  index: number;
  bytes: number;
}

/** A row of the panes: it draws `rank`, and stands for the ranks `from` to `to`. */
export interface Row {
  rank: number;
  highest: number;
  focus: boolean;
  from: number;
  to: number;
  silent: boolean;
}

/** What goes on around a moment of a training step, or before or beside it. */
export type Act = "setup" | "forward" | "backward" | "update" | "share" | "aside";

/**
 * What all ranks do together for a while: a collective, the computing of a unit, an update; or nothing of these. It
 * lies between two times, and what it is about begins at `busy`; `first` and `last` are the events that end within it.
 */
export interface Beat extends View {
  kind: "collective" | "compute" | "update" | "keep";
  op: string;
  units: Unit[];
  /** The unit that ranks compute in parts, within whose pass it sends something. */
  amid: Unit | null;
  act: Act;
  step: number;
  busy: number;
  first: number;
  last: number;
  /** The events that it is made of, over all ranks. */
  places: number[];
  caption: string;
  /** How long it is shown at speed 1. */
  seconds: number;
}

/** Where two recordings stand beside each other: the places of their beats, -1 for the one that rests. */
export interface Stop {
  step: number;
  beats: [first: number, second: number];
}

/** What a sentence about an act is made of: see `story.js`. */
export interface Known {
  /** In how many parts a category is kept; 0 if every rank has all of it. */
  parts: Record<State, number>;
  /** Whether it was recorded who holds what of a category, and whether an update ended. */
  known: Record<State | "update", boolean>;
  /** Whether ranks send each other what they have computed. */
  passes: boolean;
  released: boolean;
  /** Whether ranks compute with units of which none ever has all, and whether units are gathered for a forward. */
  divided: boolean;
  gathered: boolean;
  /** Of how many units a rank keeps a part, in words. */
  some: string;
  /** In how many parts ranks own what they update; 0 if they all update everything. */
  own: number;
  /** What a rank keeps of a unit, and the words before "it owns": a share, unless shares are unlike. */
  share: string;
  owned: string;
  /** What is updated where nobody owns a part of it. */
  trained: string;
  /** "", or what is updated beside a part that is owned. */
  whole: string;
  /** Whether gradients are added up by a collective. */
  summed: boolean;
  /** "", or how alike updates are that nobody owns a part of. */
  alike: string;
  /** Whether any of these operations sends during the act. */
  does: (...ops: string[]) => boolean;
}

/** An answer to a question, whether it is right, and what choosing it is told. */
export interface Answer {
  text: string;
  right: boolean;
  says: string;
}

export interface Question {
  text: string;
  answers: Answer[];
}

/**
 * A chapter of the guided walk: it plays the time between `from` and `rest`, which lie in the beats `first` and `last`,
 * and leaves `units` bright, all of them where there are none, and for null the memory beside them alone.
 */
export interface Chapter {
  title: string;
  says: string;
  units: string[] | null;
  from: number;
  rest: number;
  first: number;
  last: number;
  asks: Question | null;
}

/** What is shown; null means all. `ranks` is `[from, to]`, both included. */
export interface Filter {
  ranks: [from: number, to: number] | null;
  category: Category | null;
  unit: string | null;
  /** Categories that the panes of memory leave out. */
  off: Category[] | null;
}

/**
 * A part on its way: from place `source` of rank `from` to place `part` of rank `to`, to be added there or not, from
 * nanosecond `start` to `end`.
 */
export interface Shipment {
  from: number;
  to: number;
  source: number;
  part: number;
  adds: boolean;
  start: number;
  end: number;
}

/** By rank what was given to a collective and what it brought, where that was recorded. */
export interface Numbers {
  before: (number[] | null)[];
  after: (number[] | null)[];
}

/** A collective, or messages sent by hand, over a tensor of no model. */
export interface Exchange {
  op: string;
  /** Who takes part, in the order of their parts. */
  ranks: number[];
  /** Which of the group's collectives it is; groups that do alike in the same turn are drawn together. */
  turn: number;
  numel: number;
  /** As many as there are ranks; one of a buffer that cannot be cut so. */
  parts: number;
  numbers: Numbers;
  start: number;
  shipments: Shipment[];
  /** Whether parts are sums over ranks. */
  adds: boolean;
  /** Who has it before a broadcast. */
  root: number;
  /** Whether its messages were recorded, or only the collective that they are parts of. */
  recorded: boolean;
}

// --- the panes ---

export type Theme = "light" | "dark";

/** A moment; `until` has the ranks of which less is shown than up to then, and up to when. */
export interface Shown {
  model: Model;
  index: number;
  time: number;
  until: Map<number, number> | null;
}

/** What all panes draw: one moment. */
export interface Frame extends Shown {
  palette: Palette;
  axis: Axis;
  filter: Filter;
  event: RecordedEvent | null;
  hover: RecordedEvent | null;
  values: Values;
  /** What the play by beats draws; null where events are told one by one. */
  beat: Beat | null;
  flights: Flights | null;
}

export interface Point {
  x: number;
  y: number;
}

export interface Box extends Point {
  width: number;
  height: number;
}

/** What a text on a canvas looks like; `room` is the width that it is cut to. */
export interface TextStyle {
  colour?: string;
  size?: number;
  weight?: number;
  align?: "left" | "center" | "right";
  room?: number;
}

export type Fill = string | CanvasPattern;

export type Pattern = "plain" | "rising" | "falling" | "dots" | "level" | "upright" | "cross" | "checks";

/** How a meaning is painted: its colour, its pattern, and the pattern's colour and strength. */
export type Paint = [colour: string, pattern: Pattern, stroke: string, strength: number];

/** The same for a legend: the pattern as a path of SVG, whose shapes are filled where `solid`. */
export interface Look {
  colour: string;
  marks?: string;
  stroke?: string;
  strength?: number;
  solid?: boolean;
}

/** Attributes of an element; one that is null is left out. */
export type Attributes = Record<string, string | number | null>;

/** A unit's column in the ownership pane. */
export interface UnitPlace {
  unit: Unit;
  x: number;
  width: number;
}

/** One unit of one category on one rank in the ownership pane; `last` is the change that it shows, -1 for none. */
export interface Cell extends Point {
  width: number;
  unit: Unit;
  rank: number;
  category: State;
  changes: Changes;
  last: number;
  /** What each owner's part was worth when it was painted. */
  worth: string;
}

/** One event's part in one lane of the timeline. */
export interface Stretch {
  index: number;
  lane: number;
  start: number;
  end: number;
  /** Which of how many places, one below the other, it has in its lane: more than one where several are under way. */
  place: number;
  places: number;
}

/** An event's bar in the timeline; `faded` if the filter leaves it out. */
export interface Bar extends Box {
  index: number;
  faded: boolean;
}

/** From where to where on the memory pane a rank's live bytes stay as event `index` left them. */
export interface Level {
  index: number;
  x0: number;
  x1: number;
}

/** What the pointer finds in a pane of memory: `category` is null beside the strata, "ghost" in what DDP would hold. */
export interface Stratum {
  rank: number;
  index: number;
  category: Category | "ghost" | null;
}

/** What the tooltip says, in three lines. */
export interface Told {
  head: string;
  text: string;
  foot: string;
}

/** What is seen at once. */
export type ViewName = "story" | "timeline" | "memory" | "source" | "all";

/** A line of a row in the ownership pane, or the whole row of a rank in its gutter. */
export type Hit = { rank: number; category: State; unit: string } | { row: number };

/** A piece on its way; `piece` is the owner whose part it is. */
export interface Piece {
  category: State;
  from: number;
  to: number;
  piece: number;
}

/**
 * A piece of a unit between two ranks, from `start` to `end`; `adds` if it is added up where it lands. Its collective
 * is over on the receiving rank at `over`.
 */
export interface Flight extends Piece {
  unit: Unit;
  start: number;
  end: number;
  over: number;
  /** Which half of an all-reduce it belongs to. */
  half: number;
  adds: boolean;
  spans: Spans;
  /** Whether its send and its receive were recorded, or only the collective that it is a part of. */
  recorded: boolean;
}

// --- where a player starts ---

export interface Options {
  event?: number;
  /** The moment that was shown of it, in nanoseconds; without it the one just after it. */
  time?: number;
  /** The beat that is told, counted from 1 through all steps. */
  beat?: number;
  theme?: Theme | null;
  text?: boolean;
  view?: ViewName;
  /** Tells events one by one instead of beats. */
  events?: boolean;
  /** Of many ranks the one that is drawn whole. */
  focus?: number;
  /** The chapter at which the guided walk is open, counted from 1. */
  walk?: number;
  /** Fills the height of the window. */
  fill?: boolean;
  /** The element whose keys the player obeys. */
  keyboard?: HTMLElement;
  /** Another event is shown: called a few times a second at most. */
  changed?: (player: Player) => void;
  /** Another moment is shown: called with each. */
  moved?: (player: Player) => void;
  /** How high the story's rows are of their usual height, beside another recording. */
  share?: () => number;
  /** The moving layer was drawn: called with every drawing, to draw over it. */
  drawn?: (player: Player, frame: Frame) => void;
  /** Theme, filter or view changed, or it goes by beats now, or by events. */
  altered?: (player: Player) => void;
}

/** The model that is handed to `render`, as far as it is used: shell.py has it beside the widget. */
export interface WidgetModel {
  get(name: "event" | "walk"): number;
  /** What the panes showed last; empty before they have. */
  get(name: "state"): { shown?: ViewName; beat?: object | null; index?: number; time?: number };
  get(name: "payload" | "figure"): string;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(name: string, callback: () => void): void;
  off(name: string, callback: () => void): void;
}

/** The code of a widget, packed: shell.py sends it once for all of a kind. */
export interface CodeModel {
  get(name: "script" | "style"): string;
}

/** What that code exports. */
export interface Drawing {
  render(given: { model: WidgetModel; el: HTMLElement; unpacked(packed: string): Promise<string> }): unknown;
}

/** The colours of a theme that are no rank's and no category's. */
export interface Inks {
  paper: string;
  ink: string;
  muted: string;
  faint: string;
  hair: string;
  hollow: string;
  lit: string;
  wait: string;
  forward: string;
  backward: string;
  optimizer: string;
  onDark: string;
  copy: string;
  /** What DDP would hold and a rank does not: hardly there. */
  ghost: string;
  formula: string;
  reduction: string;
}

// A palette is made by taking in its theme's colours, which TypeScript does not see.
declare module "./palette.js" {
  interface Palette extends Inks {}
}

declare global {
  /** What plotly, put before live.mjs, leaves. */
  const module: { exports: unknown };
  interface Window {
    /** Every player on the page, in the order in which they appeared. */
    zerolabPlayers?: Player[];
    /** How much the page is enlarged; 1 where it is not set. */
    zerolabScale?: number;
    /** What draws widgets, by the model that it came in. */
    zerolabCode?: WeakMap<CodeModel, Promise<Drawing>>;
  }
  interface HTMLElement {
    zerolabPlayer?: Player;
  }
}

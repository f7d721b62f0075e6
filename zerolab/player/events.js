// Events out of the payload: its columns back as arrays of numbers, in the order in which the events ended, and one
// event out of them. The only place that knows which column holds which field, and what an event's words stand for.

/** @import { Columns, Field, Payload, RecordedEvent, State, Stored } from "./types.d.ts" */

/** Version of the payload that this page understands. */
export const PAYLOAD_VERSION = 2;

/**
 * The category that a collective moves: it gathers parameters and reduces gradients.
 * @type {Partial<Record<string, State>>}
 */
export const MOVED = { all_gather: "parameters", reduce_scatter: "gradients", all_reduce: "gradients" };

/**
 * Bytes of an element.
 * @type {Partial<Record<string, number>>}
 */
export const WIDTH = { float64: 8, float32: 4, bfloat16: 2, float16: 2 };

/**
 * `Object.entries` of a record, which by itself forgets what the keys are.
 * @type {<K extends string, V>(record: Partial<Record<K, V>>) => [K, V][]}
 */
export const entries = Object.entries;

/**
 * The numbers of one base64 column: zigzag varints; a zero is followed by how many more zeros come after it.
 * @param {string} text @param {number} length
 */
function unpack(text, length) {
  const raw = atob(text);
  const out = new Float64Array(length);
  let at = 0;
  let place = 0;
  const varint = () => {
    let value = 0;
    // Multiplied, not shifted: nanoseconds and bytes pass 2^32.
    for (let scale = 1; ; scale *= 128) {
      const byte = raw.charCodeAt(at++);
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < raw.length) {
    const value = varint();
    if (value === 0) place += varint() + 1;
    else out[place++] = value % 2 ? -(value + 1) / 2 : value / 2;
  }
  return out;
}

/**
 * One column as plain values: differences summed up where the column holds differences.
 * @param {Stored} stored @param {number} length
 */
function column({ delta, data }, length) {
  const out = unpack(data, length);
  if (delta) for (let i = 1; i < length; i++) out[i] += out[i - 1];
  return out;
}

/**
 * Places sorted by end time; events of one rank keep the order in which they were written.
 * @param {Float64Array} rank @param {Float64Array} start @param {Float64Array} length @param {number} count
 */
function endOrder(rank, start, length, count) {
  const end = start.map((from, i) => from + length[i]);
  const places = Array.from({ length: count }, (_, i) => i);
  return places.sort((a, b) => end[a] - end[b] || rank[a] - rank[b] || a - b);
}

/**
 * The values in another order. A loop: `Float64Array.from` with a function takes ten times as long, for each column.
 * @param {Float64Array} values @param {number[]} order
 */
function reordered(values, order) {
  const out = new Float64Array(order.length);
  for (let i = 0; i < order.length; i++) out[i] = values[order[i]];
  return out;
}

/**
 * The place of each event's parent; -1 for none. `seq` and `parent` are as in the columns, `parent` back from `seq`.
 * @param {Pick<Columns, "rank" | "seq" | "parent">} given
 */
function parents({ rank, seq, parent }) {
  /** @type {Map<number, number>[]} */
  const placeOf = [];
  seq.forEach((number, i) => {
    placeOf[rank[i]] ??= new Map();
    placeOf[rank[i]].set(number, i);
  });
  return parent.map((back, i) => (back ? (placeOf[rank[i]].get(seq[i] - back) ?? -1) : -1));
}

/**
 * All columns of a payload as typed arrays, sorted by the end of the events, because `live` and ownership are what
 * holds just after an event. Adds `t_end` and `device_end`, and turns `seq` and `parent` into places in the sorted
 * arrays (-1 for none).
 * @param {Payload} payload
 */
export function decode(payload) {
  const count = payload.count;
  const raw = /** @type {Record<Field, Float64Array>} */ ({});
  for (const [name, stored] of entries(payload.columns)) raw[name] = column(stored, count);
  const order = endOrder(raw.rank, raw.t_start, raw.duration, count);
  const sorted = /** @type {Columns} */ ({});
  for (const [name, values] of entries(raw)) sorted[name] = reordered(values, order);
  sorted.device_start = sorted.device_start.map((after, i) => sorted.t_start[i] + after);
  sorted.device_end = sorted.device_start.map((start, i) => start + sorted.device_duration[i]);
  sorted.t_end = sorted.t_start.map((start, i) => start + sorted.duration[i]);
  sorted.seq = sorted.seq.map((number, i) => number + order[i]);
  sorted.parent = parents(sorted);
  return sorted;
}

/**
 * Event `i` with its numbers replaced by the words they stand for; null where it says nothing.
 * @param {Payload} payload @param {Columns} columns @param {number} i
 * @returns {RecordedEvent}
 */
export function readEvent(payload, columns, i) {
  /** @type {<T>(table: T[], column: Field) => T | null} */
  const from = (table, column) => (columns[column][i] ? table[columns[column][i] - 1] : null);
  /** @type {(column: Field) => number | null} */
  const counted = (column) => (columns[column][i] ? columns[column][i] - 1 : null);
  return {
    index: i,
    rank: columns.rank[i],
    seq: columns.seq[i],
    start: columns.t_start[i],
    end: columns.t_end[i],
    step: columns.step[i],
    // These three every event has.
    phase: payload.phases[columns.phase[i] - 1],
    kind: payload.kinds[columns.kind[i] - 1],
    op: payload.words[columns.op[i] - 1],
    unit: from(payload.units, "unit")?.name ?? null,
    group: from(payload.groups, "group"),
    dtype: from(payload.words, "dtype"),
    numel: columns.numel[i],
    logicalBytes: columns.logical_bytes[i],
    number: counted("number"),
    parent: columns.parent[i] < 0 ? null : columns.parent[i],
    peer: counted("peer"),
    category: from(payload.categories, "category"),
    spans: from(payload.spans, "spans"),
    text: from(payload.words, "text"),
    numbers: from(payload.numbers, "numbers"),
    source: counted("source"),
    line: columns.line[i],
    fromAutograd: columns.from_autograd[i] === 1,
    stream: from(payload.words, "stream"),
    deviceStart: columns.stream[i] ? columns.device_start[i] : null,
    deviceEnd: columns.stream[i] ? columns.device_end[i] : null,
  };
}

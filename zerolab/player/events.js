// One event out of the columns: the only place that knows which column holds which field, and how.

/** @import { Columns, Field, Payload, RecordedEvent } from "./types.d.ts" */

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

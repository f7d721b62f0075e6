// Payloads of a few events for the tests of the player's pure parts, written as payload.py writes them.

const PHASES = ["setup", "forward", "backward", "reduce", "step", "gather"];
const KINDS = ["module", "collective", "wait", "optimizer", "memory", "note", "save"];
const CATEGORIES = ["parameters", "gradients", "optimizer_state", "activations", "communication", "other"];

/** Numbers as payload.py's `encode` writes them. */
export function encode(values) {
  const out = [];
  const varint = (value) => {
    let left = value;
    for (; left > 127; left = Math.floor(left / 128)) out.push((left % 128) + 128);
    out.push(left);
  };
  let zeros = 0;
  for (const value of [...values, null]) {
    if (value === 0) {
      zeros += 1;
      continue;
    }
    if (zeros) out.push(0);
    if (zeros) varint(zeros - 1);
    zeros = 0;
    if (value !== null) varint(value > 0 ? 2 * value : -2 * value - 1);
  }
  return btoa(String.fromCharCode(...out));
}

/** A list that gives each value a place, counted from 1; 0 for null. */
function table() {
  const values = [];
  const index = (value) => {
    if (value === undefined || value === null) return 0;
    const at = values.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
    return at < 0 ? values.push(value) : at + 1;
  };
  return { values, index };
}

/**
 * The payload of `events`: plain objects with the names of Python's `Event`, ranks in order, `seq` as they stand;
 * whatever is left out says nothing. `units` are `[name, padded]`; `cut` is when the recordings were cut off.
 */
export function payloadOf(events, { units = [["a", 8]], cut } = {}) {
  const [words, groups, spans, numbers] = [table(), table(), table(), table()];
  const ranks = [...new Set(events.map((event) => event.rank))];
  const all = ranks.flatMap((rank) =>
    events.filter((event) => event.rank === rank).map((event, seq) => ({ seq, ...event })),
  );
  const counted = (value) => (value === undefined ? 0 : value + 1);
  const columns = {
    rank: (e) => e.rank,
    seq: (e, place) => e.seq - place,
    parent: (e) => (e.parent === undefined ? 0 : e.seq - e.parent),
    t_start: (e) => e.t_start,
    duration: (e) => e.t_end - e.t_start,
    step: (e) => e.step ?? 0,
    phase: (e) => PHASES.indexOf(e.phase ?? "setup") + 1,
    kind: (e) => KINDS.indexOf(e.kind) + 1,
    op: (e) => words.index(e.op),
    unit: (e) => units.findIndex(([name]) => name === e.unit) + 1,
    group: (e) => groups.index(e.group),
    dtype: (e) => words.index(e.dtype),
    numel: (e) => e.numel ?? 0,
    logical_bytes: (e) => e.logical_bytes ?? 0,
    source: () => 0,
    line: () => 0,
    from_autograd: (e) => e.from_autograd ?? 0,
    number: (e) => counted(e.number),
    peer: (e) => counted(e.peer),
    category: (e) => CATEGORIES.indexOf(e.category) + 1,
    spans: (e) => spans.index(e.spans),
    text: (e) => words.index(e.text),
    numbers: (e) => numbers.index(e.numbers),
    stream: (e) => words.index(e.stream),
    device_start: (e) => (e.stream ? e.device_start - e.t_start : 0),
    device_duration: (e) => (e.stream ? e.device_end - e.device_start : 0),
  };
  for (const device of events.some((event) => event.host) ? ["live", "host"] : ["live"])
    for (const name of CATEGORIES) columns[`${device}.${name}`] = (e) => e[device]?.[name] ?? 0;
  const stored = Object.entries(columns).map(([name, of]) => [name, { delta: false, data: encode(all.map(of)) }]);
  return {
    format: "zerolab-player",
    version: 2,
    title: "a few events",
    world_size: Math.max(...ranks) + 1,
    meta: { formula: null },
    ranks: ranks.map((rank) => ({ rank, cut, complete: cut === undefined })),
    phases: PHASES,
    kinds: KINDS,
    categories: CATEGORIES,
    words: words.values,
    groups: groups.values,
    spans: spans.values,
    numbers: numbers.values,
    units: units.map(([name, padded]) => ({
      name,
      padded,
      numel: padded,
      dtype: "float32",
      frozen: false,
      owners: null,
    })),
    sources: [],
    count: all.length,
    columns: Object.fromEntries(stored),
  };
}

/** A pass over unit `unit` between two times, as an event. */
export function pass(rank, t_start, t_end, more = {}) {
  return { rank, t_start, t_end, kind: "module", op: "forward", phase: "forward", step: 1, unit: "a", ...more };
}

// The payload's columns back as arrays of numbers, in the order in which the events ended.

/** Version of the payload that this page understands. */
export const PAYLOAD_VERSION = 1;

/** The numbers of one base64 column: zigzag varints; a zero is followed by how many more zeros come after it. */
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

/** One column as plain values: differences summed up where the column holds differences. */
function column({ delta, data }, length) {
  const out = unpack(data, length);
  if (delta) for (let i = 1; i < length; i++) out[i] += out[i - 1];
  return out;
}

/** Places sorted by end time; events of one rank keep the order in which they were written. */
function endOrder(rank, start, length, count) {
  const places = Array.from({ length: count }, (_, i) => i);
  return places.sort((a, b) => start[a] + length[a] - start[b] - length[b] || rank[a] - rank[b] || a - b);
}

/**
 * All columns of a payload as typed arrays, sorted by the end of the events, because `live` and ownership are what
 * holds just after an event. Adds `t_end` and turns `seq` and `parent` into places in the sorted arrays (-1 for none).
 */
export function decode(payload) {
  const count = payload.count;
  const raw = {};
  for (const [name, stored] of Object.entries(payload.columns)) raw[name] = column(stored, count);
  const order = endOrder(raw.rank, raw.t_start, raw.duration, count);
  const sorted = {};
  for (const [name, values] of Object.entries(raw)) sorted[name] = Float64Array.from(order, (place) => values[place]);
  sorted.t_end = sorted.t_start.map((start, i) => start + sorted.duration[i]);
  sorted.seq = Float64Array.from(order, (place) => raw.seq[place] + place);
  const placeOf = new Map(order.map((place, i) => [`${raw.rank[place]}:${raw.seq[place] + place}`, i]));
  const parent = (i) => (sorted.parent[i] ? placeOf.get(`${sorted.rank[i]}:${sorted.seq[i] - sorted.parent[i]}`) ?? -1 : -1);
  sorted.parent = Float64Array.from({ length: count }, (_, i) => parent(i));
  return sorted;
}

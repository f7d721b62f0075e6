import assert from "node:assert/strict";
import { test } from "node:test";
import { Model } from "../../zerolab/player/model.js";
import { contents, exchangesOf } from "../../zerolab/player/parts.js";
import { pass, payloadOf } from "./tiny.js";

const all = (count) => Array.from({ length: count }, (_, k) => k);

/** One all_reduce of `ranks` ranks, whose messages nobody recorded. */
function exchangeOf(ranks, meta = {}) {
  const sum = { kind: "collective", op: "all_reduce", number: 1, numel: ranks, logical_bytes: 8 * ranks, unit: null };
  const payload = payloadOf(all(ranks).map((rank) => pass(rank, 10, 1010, sum)));
  Object.assign(payload, { units: [], world_size: ranks, meta: { ...payload.meta, ...meta } });
  return exchangesOf(new Model(payload));
}

test("of 64 ranks it is known at once who has what: all of it in the end, their own before", () => {
  const [exchange] = exchangeOf(64);
  for (const rank of all(64))
    for (const part of all(64)) {
      assert.deepEqual(contents(exchange, rank, part, 0), [rank]);
      assert.deepEqual(contents(exchange, rank, part, 2000), all(64));
    }
  assert.deepEqual(contents(exchange, 3, 3, 600), all(64)); // half of the time is for adding up
  assert.deepEqual(contents(exchange, 3, 4, 600), [3]);
});

test("of another tool's times there is no picture of what was sent", () => {
  assert.equal(exchangeOf(4).length, 1);
  assert.equal(exchangeOf(4, { times_only: true }).length, 0);
});

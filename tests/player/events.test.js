import assert from "node:assert/strict";
import { test } from "node:test";
import { decode } from "../../zerolab/player/events.js";
import { encode, pass, payloadOf } from "./tiny.js";

test("numbers of any size and sign, and runs of zeros, survive", () => {
  const values = [0, 0, 0, 1, -1, 127, 128, -129, 2 ** 33, -(2 ** 50), 0];
  const payload = payloadOf(values.map((_, i) => pass(0, i, i + 1)));
  payload.columns.numel = { delta: false, data: encode(values) };
  assert.deepEqual([...decode(payload).numel], values);
});

test("differences are summed up", () => {
  const payload = payloadOf([pass(0, 0, 1), pass(0, 1, 2), pass(0, 2, 3)]);
  payload.columns.numel = { delta: true, data: encode([5, -2, 0]) };
  assert.deepEqual([...decode(payload).numel], [5, 3, 3]);
});

test("events come in the order in which they end, and those of one rank keep theirs where they end together", () => {
  const { rank, seq, t_end } = decode(payloadOf([pass(0, 0, 9), pass(0, 1, 9), pass(1, 0, 4)]));
  assert.deepEqual([...t_end], [4, 9, 9]);
  assert.deepEqual([...rank], [1, 0, 0]);
  assert.deepEqual([...seq], [0, 0, 1]);
});

test("a parent is found by its number on its own rank, wherever it ends; one that is not there is none", () => {
  const outer = { rank: 1, t_start: 0, t_end: 9, kind: "collective", op: "all_gather", number: 0 };
  const inner = { rank: 1, t_start: 1, t_end: 2, kind: "collective", op: "send", parent: 0 };
  const { parent, op } = decode(payloadOf([pass(0, 0, 5), outer, inner, { ...inner, t_end: 3, parent: -7 }]));
  assert.deepEqual([...op], [3, 3, 1, 2]);
  assert.deepEqual([...parent], [3, -1, -1, -1]);
});

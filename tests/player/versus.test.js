// What one recording holds of a unit and the other lacks.

import assert from "node:assert/strict";
import { test } from "node:test";
import { lacking } from "../../zerolab/player/versus.js";

test("what the other holds beside this one is left, as shares of the unit", () => {
  assert.deepEqual(lacking([0, 8], 8, [2, 4], 8), [
    [0, 0.25],
    [0.5, 1],
  ]);
  assert.deepEqual(lacking([0, 8], 8, [], 8), [[0, 1]]);
  assert.deepEqual(lacking([2, 4], 8, [0, 8], 8), []);
  assert.deepEqual(lacking([], 8, [0, 8], 8), []);
});

test("units that are padded to other sizes are compared by shares", () => {
  assert.deepEqual(lacking([0, 8], 8, [0, 6], 12), [[0.5, 1]]);
});

test("of several parts each is cut by each", () => {
  assert.deepEqual(lacking([0, 2, 6, 8], 8, [1, 7], 8), [
    [0, 0.125],
    [0.875, 1],
  ]);
});

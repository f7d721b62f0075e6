import assert from "node:assert/strict";
import { test } from "node:test";
import { boxes } from "../../zerolab/player/flight.js";

const cell = { x: 10, y: 0, width: 64, height: 8 };

test("a piece is never drawn so narrow that it looks as if nothing travelled", () => {
  assert.deepEqual(boxes(cell, 6400, [100, 110]), [{ x: 11, width: 1 }]);
  assert.deepEqual(boxes(cell, 6400, [0, 10, 1000, 1200]), [
    { x: 10, width: 1 },
    { x: 20, width: 2 },
  ]);
});

test("of a matrix cut by columns a piece is striped on its way, too: half of it is not there", () => {
  const stripes = Array.from({ length: 128 }, (_, row) => [row * 100, row * 100 + 50]).flat();
  const drawn = boxes(cell, 12_800, stripes).slice(0, -1);
  assert.equal(Math.max(...drawn.map(({ width }) => width)), 0.25);
});

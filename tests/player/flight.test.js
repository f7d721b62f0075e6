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

for (const ranks of [2, 4, 8])
  test(`of a matrix that ${ranks} ranks cut by columns a piece is striped on its way, too, as wide as it is`, () => {
    const stripes = Array.from({ length: 128 }, (_, row) => [row * 80, row * 80 + 80 / ranks]).flat();
    const drawn = boxes(cell, 10_240, stripes).slice(0, -1);
    for (const { width } of drawn) assert.equal(width, 0.5 / ranks);
  });

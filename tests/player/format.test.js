import assert from "node:assert/strict";
import { test } from "node:test";
import { atStart, bytes, duration, readableBytes, spoken, toTheStep } from "../../zerolab/player/format.js";

test("what rounds to 1,000 of a unit is 1 of the next", () => {
  assert.deepEqual([999, 1000, 999_499, 999_500, 999_950_000].map(bytes), [
    "999 B",
    "1.00 kB",
    "999 kB",
    "1.00 MB",
    "1.00 GB",
  ]);
  assert.deepEqual([999, 999_499, 999_700, 999_999_999].map(duration), ["999 ns", "999 µs", "1.00 ms", "1.00 s"]);
});

test("a time is as exact as the step to the next one asks, and no more", () => {
  assert.equal(toTheStep(3_200_000, 1_000), "3.2 ms");
  assert.equal(toTheStep(3_202_000, 1_000), "3.202 ms");
  assert.equal(toTheStep(2_000_000, 1_000_000), "2 ms");
  assert.equal(toTheStep(1_500_000_000, 500_000_000), "1.5 s");
});

test("a unit that is called by a number is told of as a unit, and any other by its name", () => {
  assert.deepEqual(["2", "2 matrices", "blocks.2", "root", null].map(spoken), [
    "unit 2",
    "unit 2 matrices",
    "blocks.2",
    "root",
    null,
  ]);
  assert.equal(atStart("unit 2 is freed. unit 3 is not: unit 4"), "Unit 2 is freed. Unit 3 is not: unit 4");
});

test("of a text that was recorded bytes get separators, and nothing else does", () => {
  assert.equal(readableBytes("212400 bytes existed before"), "212,400 bytes existed before");
  assert.equal(readableBytes("1234 bytes of 56789 bytes in step 4096"), "1,234 bytes of 56,789 bytes in step 4096");
  assert.equal(readableBytes("model-12345 bytes, 1 byte"), "model-12345 bytes, 1 byte");
});
